"""Which rows of a batch are duplicates, found in this process where that means reading little: no job of Spark.

Only the key's columns are read: of the batch, and of the data files that its span of event time reaches. Data files
never change, so what was read of one is kept, up to a bound: the next batch reads only what is new since.

The answer is exact, and the same as Spark's. Where this is not the way to it, there is none, and Spark is asked:
fallback identities, rows that are compared by content, types on whose equality engines disagree, deleted rows, too
much to read.
"""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from floodmark.commit.protocol import Append
from floodmark.lake.files import RangeReader, StoredColumn, StoredFile
from floodmark.lake.manifests import ListedFile, is_reachable
from floodmark.lake.plan import stored_columns
from floodmark.rows.identities import is_plain
from floodmark.schema import SEQ
from floodmark.schema.types import to_arrow
from floodmark.sequence import SEQUENCE_MAX, SequenceRange

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.table import Table as IcebergTable

    from floodmark.lake.overlap import Overlap

BATCH_ROWS_MAX = 200_000
COMMITTED_ROWS_MAX = 2_000_000
"""Of larger batches, and where more committed rows could be duplicates, Spark finds them sooner."""


@dataclass(slots=True)
class KeyCache:
    """The key columns of data files, those that were used last, up to so many bytes. May be used by many threads."""

    bytes_max: int = 64 << 20
    _held: OrderedDict[tuple[str, tuple[StoredColumn, ...]], pa.Table] = field(default_factory=OrderedDict)
    bytes: int = 0
    """How many they are now."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def keys(self, table: IcebergTable, file: ListedFile, columns: tuple[StoredColumn, ...]) -> pa.Table:
        """The columns of a file, from memory if it was read before."""
        place = (file.location, columns)
        with self._lock:
            if (found := self._held.get(place)) is not None:
                self._held.move_to_end(place)
                return found
        read = read_keys(table, file, columns)
        with self._lock:
            if place not in self._held and read.nbytes <= self.bytes_max:
                self._held[place] = read
                self.bytes += read.nbytes
            while self.bytes > self.bytes_max:
                self.bytes -= self._held.popitem(last=False)[1].nbytes
        return read


def duplicates_here(
    table: IcebergTable, request: Append, near: Overlap, *, distinct: bool, cache: KeyCache
) -> list[int] | None:
    """The numbers of the batch's rows that are committed, or are in the batch before; in order.

    `near` has the files that may have them. No two rows of a `distinct` batch have one key. None: ask Spark.
    """
    if len(request.identity) != 1:
        return None
    if len(request.range) > BATCH_ROWS_MAX or near.rows > COMMITTED_ROWS_MAX:
        return None
    (identity,) = request.identity
    names = tuple(dict.fromkeys([*identity, *([request.key_time] if request.key_time else [])]))
    types = {name: to_arrow(column.type) for name in names if (column := request.schema.get(name)) is not None}
    if len(types) < len(names) or not all(map(is_plain, types.values())):
        return None
    if not all(file.is_plain and is_reachable(table, file.location) for file in near.listed):
        return None
    ours = _with_identity(_batch_keys(request, types), identity)
    columns = () if near.snapshot is None else tuple(stored_columns(table, near.snapshot, {*names, SEQ}).values())
    committed: set[tuple[Any, ...]] = set()
    # A column that the snapshot does not have is null in all its rows: then none of them has this identity.
    if {column.name for column in columns} >= set(identity):
        for file in near.listed:
            theirs = _typed(cache.keys(table, file, columns), types)
            committed.update(_tuples(_with_identity(_among(theirs, ours, identity[0]), identity), names))
    return list(_losers(ours, committed, names, distinct=distinct))


def _losers(ours: pa.Table, committed: set[tuple[Any, ...]], names: Sequence[str], *, distinct: bool) -> Iterator[int]:
    seen = committed
    if distinct and not committed:
        return
    for number, key in zip(ours[SEQ].to_pylist(), _tuples(ours, names), strict=True):
        if key in seen:
            yield number
        elif not distinct:
            seen.add(key)


def _batch_keys(request: Append, types: Mapping[str, pa.DataType]) -> pa.Table:
    """The key's columns of all segments, with the number of each row, in order."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    parts = []
    for segment in sorted(request.segments, key=lambda one: one.offset):
        with pq.ParquetFile(segment.path) as opened:
            held = set(opened.schema_arrow.names)
            rows = opened.read(columns=[name for name in types if name in held])
        first = request.range.after + 1 + segment.offset
        numbers = pa.array(range(first, first + segment.rows), pa.int64())
        parts.append(_typed(rows.append_column(SEQ, numbers), {**types, SEQ: pa.int64()}))
    return pa.concat_tables(parts)


def _typed(rows: pa.Table, types: Mapping[str, pa.DataType]) -> pa.Table:
    """In the dataset's types of today; a column that is newer than the rows is null."""
    import pyarrow as pa

    held = set(rows.column_names)
    return pa.table(
        {name: rows[name].cast(kind) if name in held else pa.nulls(rows.num_rows, kind) for name, kind in types.items()}
    )


def _with_identity(rows: pa.Table, identity: Sequence[str]) -> pa.Table:
    """A row without an identity is nobody's duplicate."""
    import pyarrow.compute as pc

    for name in identity:
        if rows[name].null_count:
            rows = rows.filter(pc.is_valid(rows[name]))
    return rows


def _among(theirs: pa.Table, ours: pa.Table, name: str) -> pa.Table:
    """The rows of theirs that could equal one of ours. By one column: the batch is small, so this takes one look."""
    import pyarrow.compute as pc

    return theirs.filter(pc.is_in(theirs[name], value_set=ours[name].combine_chunks()))


def _tuples(rows: pa.Table, names: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    import pyarrow as pa

    columns = [rows[name] for name in names]
    exact = [column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column for column in columns]
    return zip(*[column.to_pylist() for column in exact], strict=True)


def read_keys(table: IcebergTable, file: ListedFile, columns: tuple[StoredColumn, ...]) -> pa.Table:
    """Some columns of a data file; the sequence number must be among them, and does not come back."""
    stored = StoredFile(file.location, 1, SEQUENCE_MAX, file.rows, file.size)
    reader = RangeReader([stored], columns, {}, table.io.properties, threads=True)
    with contextlib.closing(reader):
        rows = reader.rows(SequenceRange(0, SEQUENCE_MAX))
    return rows.drop_columns([SEQ]).combine_chunks()
