"""Reading a table's data files without an engine: the row groups that can hold a range, each decoded once.

It is for files that need nothing but reading. Columns are found by Iceberg's field ids, never by name or place; an
`int` in a file older than the column's widening is a `long` to the reader, and a column that the file is older than is
null. Everything else, such as a struct that has grown since or a file without ids, is `Odd`: Iceberg's own reader
gets it.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from floodmark.schema import SEQ, PartitionValues
from floodmark.schema.types import WIDER, ColumnType, to_arrow
from floodmark.sequence import SequenceRange

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

_FIELD_ID = b"PARQUET:field_id"
RUNS_MAX = 200
"""Rows in more runs than this are sorted."""


class Odd(Exception):
    """A file that only Iceberg's own reader can be trusted with."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A data file, and the range of its rows' numbers."""

    location: str
    first: int
    last: int
    rows: int
    bytes: int

    def share(self, within: SequenceRange) -> float:
        """About how much of the file is in a range, from 0 to 1."""
        inside = min(self.last, within.through) - max(self.first - 1, within.after)
        return max(0, inside) / (self.last - self.first + 1)


@dataclass(frozen=True, slots=True)
class StoredColumn:
    """A column of a snapshot: its name and type there, and the field ids of itself and all that is nested in it."""

    name: str
    type: ColumnType
    ids: tuple[int, ...]


def local_path(location: str) -> str | None:
    """The path of a file on this machine; None for one that is elsewhere.

    In Iceberg's locations nothing is quoted: a blank is a blank, and a `%20` three characters of a name.
    """
    if location.startswith("/"):
        return location
    scheme, _, rest = location.partition(":")
    return "/" + rest.lstrip("/") if scheme == "file" else None


def local_location(path: str | Path) -> str:
    """The location of a file on this machine."""
    return f"file://{path}"


@dataclass(slots=True)
class RangeReader:
    """Reads ascending ranges. A file is opened once and closed after its last row, a row group is decoded once."""

    files: Sequence[StoredFile]
    columns: Sequence[StoredColumn]
    partition_values: PartitionValues
    settings: Mapping[str, str]
    """How files that are not on this machine are reached."""
    threads: bool = False
    """Whether to decode on all cores. A task has one: it would only take the others' from other tasks."""
    _open: dict[str, _OpenFile] = field(default_factory=dict)

    def rows(self, within: SequenceRange) -> pa.Table:
        """The range's rows in order, with the stored columns."""
        import pyarrow as pa

        parts = []
        for file in self.files:
            if file.share(within) > 0:
                try:
                    parts += self._opened(file).parts(within)
                except (OSError, pa.ArrowException) as error:  # gone, cut off, or damaged
                    raise Odd(f"{file.location}: {error}") from error
        for file in self.files:
            if file.last <= within.through and file.location in self._open:
                self._open.pop(file.location).close()
        return in_order(parts) if parts else _no_rows(self.columns)

    def _opened(self, file: StoredFile) -> _OpenFile:
        if file.location not in self._open:
            source = _parquet_file(file.location, self.settings)
            self._open[file.location] = _OpenFile(source, self.columns, self.partition_values, threads=self.threads)
        return self._open[file.location]

    def close(self) -> None:
        while self._open:
            self._open.popitem()[1].close()


def _parquet_file(location: str, settings: Mapping[str, str]) -> pq.ParquetFile:
    import pyarrow.parquet as pq

    path = local_path(location)
    if path is not None:
        return pq.ParquetFile(path, memory_map=True)
    from pyiceberg.io import load_file_io

    return pq.ParquetFile(load_file_io(dict(settings), location).new_input(location).open(), pre_buffer=True)


class _OpenFile:
    """One data file: which of its columns are wanted, which numbers each of its row groups spans."""

    def __init__(
        self,
        file: pq.ParquetFile,
        columns: Sequence[StoredColumn],
        partition_values: PartitionValues,
        *,
        threads: bool,
    ) -> None:
        self._file, self._columns, self._partition_values, self._threads = file, columns, partition_values, threads
        held = {_field_id(item): item for item in file.schema_arrow}
        self._found = [held.get(column.ids[0]) for column in columns]
        for column, found in zip(columns, self._found, strict=True):
            if found is not None:
                _check_fits(column, found)
            elif None in held:
                raise Odd("a column has no field id")
        self._wanted = [found.name for found in self._found if found is not None]
        self._spans = list(_spans(file.metadata, self._found[[column.name for column in columns].index(SEQ)]))
        self._decoded: dict[int, pa.Table] = {}

    def parts(self, within: SequenceRange) -> list[pa.Table]:
        found = []
        for group, (first, last) in enumerate(self._spans):
            if first <= within.through and last > within.after:
                if group not in self._decoded:
                    self._decoded[group] = self._decode(group)
                found.append(cut(self._decoded[group], within))
                if last <= within.through:
                    del self._decoded[group]
        return [part for part in found if part.num_rows]

    def _decode(self, group: int) -> pa.Table:
        import pyarrow as pa

        stored = self._file.read_row_group(group, columns=self._wanted, use_threads=self._threads)
        arrays = [
            pa.nulls(stored.num_rows, to_arrow(column.type))
            if found is None
            else stored[found.name].cast(to_arrow(column.type))
            for column, found in zip(self._columns, self._found, strict=True)
        ]
        rows = pa.Table.from_arrays(arrays, names=[column.name for column in self._columns])
        return only(rows, self._partition_values)

    def close(self) -> None:
        self._decoded.clear()
        self._file.close()


def _field_id(item: pa.Field) -> int | None:
    found = (item.metadata or {}).get(_FIELD_ID)
    return int(found) if found is not None else None


def _check_fits(column: StoredColumn, found: pa.Field) -> None:
    wanted = to_arrow(column.type)
    narrower = next((to_arrow(narrow) for narrow, wide in WIDER.items() if wide == column.type), None)
    same = found.type == wanted or (narrower is not None and found.type == narrower)
    if not same or tuple(_ids(found)) != column.ids or "." in found.name:
        raise Odd(f"column {column.name!r} is {found.type} there")


def _ids(item: pa.Field) -> Iterator[int | None]:
    import pyarrow as pa

    yield _field_id(item)
    if pa.types.is_struct(item.type):
        for inner in item.type:
            yield from _ids(inner)
    elif pa.types.is_list(item.type):
        yield from _ids(item.type.value_field)


def _spans(metadata: pq.FileMetaData, number: pa.Field | None) -> Iterator[tuple[int, int]]:
    """The least and the greatest sequence number of each row group; all there are, where the file does not say."""
    if number is None:
        raise Odd("there is no sequence number")
    place = [metadata.schema.column(at).path for at in range(metadata.num_columns)].index(number.name)
    for group in range(metadata.num_row_groups):
        known = metadata.row_group(group).column(place).statistics
        yield (known.min, known.max) if known is not None and known.has_min_max else (0, 2**63 - 1)


# ── rows in order ────────────────────────────────────────────────────────────────────────────────────────────────────


def only(rows: pa.Table, partition_values: PartitionValues) -> pa.Table:
    """The rows whose columns have the values; null is a value."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for name, value in partition_values.items():
        held = rows[name]
        rows = rows.filter(pc.is_null(held) if value is None else pc.equal(held, pa.scalar(value, held.type)))
    return rows


def rising(rows: pa.Table) -> bool:
    import pyarrow.compute as pc

    numbers = rows[SEQ]
    return len(numbers) < 2 or bool(pc.all(pc.less(numbers[:-1], numbers[1:])).as_py())


def cut(rows: pa.Table, within: SequenceRange) -> pa.Table:
    """The rows of a range. If they are in order, the usual case, nothing is copied."""
    import pyarrow.compute as pc

    numbers = rows[SEQ]
    if not rising(rows):
        return rows.filter(pc.and_(pc.greater(numbers, within.after), pc.less_equal(numbers, within.through)))
    start, end = (bisect_right(numbers, seq, key=lambda item: item.as_py()) for seq in (within.after, within.through))
    return rows.slice(start, end - start)


def cut_all(rows: pa.Table, ranges: Sequence[SequenceRange]) -> Iterator[tuple[int, pa.Table]]:
    """The rows of each of many ranges that has any, with the range's place. The ranges rise."""
    import pyarrow.compute as pc

    if rows.num_rows == 0:
        return
    span = pc.min_max(rows[SEQ]).as_py()
    start = bisect_left(ranges, span["min"], key=lambda item: item.through)
    for index in range(start, len(ranges)):
        if ranges[index].after >= span["max"]:
            return
        part = cut(rows, ranges[index])
        if part.num_rows:
            yield index, part


def in_order(parts: Sequence[pa.Table]) -> pa.Table:
    """The rows by number. A commit writes the segments of a block one after the other, each in order, but not in the
    order of their numbers: such runs are put in order without a copy.
    """
    import pyarrow as pa

    ordered = sorted((run for part in parts for run in _runs(part)), key=lambda run: run[SEQ][0].as_py())
    rows = pa.concat_tables(ordered, promote_options="permissive") if ordered else parts[0]
    return rows if rising(rows) else rows.sort_by(SEQ)


def _runs(rows: pa.Table) -> list[pa.Table]:
    """The rows in as few pieces as rise, if these are not many."""
    import pyarrow.compute as pc

    if rows.num_rows == 0:
        return []
    numbers = rows[SEQ].combine_chunks()
    falls = pc.indices_nonzero(pc.greater_equal(numbers[:-1], numbers[1:])).to_pylist()
    if not falls or len(falls) > RUNS_MAX:
        return [rows]
    starts = [0, *(place + 1 for place in falls)]
    return [rows.slice(start, end - start) for start, end in itertools.pairwise([*starts, rows.num_rows])]


def _no_rows(columns: Sequence[StoredColumn]) -> pa.Table:
    import pyarrow as pa

    return pa.schema([(column.name, to_arrow(column.type)) for column in columns]).empty_table()
