"""Which data files hold a range, read from a snapshot's manifests without a JVM, and whether they need only reading.

A file needs more than reading where rows of it are deleted by another file, where it is not Parquet, is encrypted, or
where a column has a default for older rows. A plan is made only if none of that applies.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from floodmark.errors import SchemaConflict
from floodmark.lake.files import RangeReader, StoredColumn, StoredFile
from floodmark.lake.manifests import Manifests, is_reachable
from floodmark.lake.types import from_iceberg
from floodmark.schema import CONTENT_ID, SEQ, PartitionValues
from floodmark.schema.types import physical
from floodmark.sequence import SequenceRange

if TYPE_CHECKING:
    from pyiceberg.table import Table as IcebergTable


@dataclass(frozen=True, slots=True)
class Plan:
    """The files of some ranges that can be read directly."""

    files: tuple[StoredFile, ...]
    columns: tuple[StoredColumn, ...]
    """The requested ones that the snapshot has, and the system columns."""
    partition_values: PartitionValues
    settings: Mapping[str, str]

    def within(self, range_: SequenceRange) -> Plan:
        """The part of it that a range needs."""
        return replace(self, files=tuple(file for file in self.files if file.share(range_) > 0))

    def reader(self, *, threads: bool = False) -> RangeReader:
        return RangeReader(self.files, self.columns, self.partition_values, self.settings, threads)

    def rows(self, range_: SequenceRange) -> float:
        """About how many rows a range has."""
        return sum(file.rows * file.share(range_) for file in self.files)

    def bytes(self, range_: SequenceRange) -> float:
        """About how many bytes of files a range takes."""
        return sum(file.bytes * file.share(range_) for file in self.files)


def plan(
    table: IcebergTable,
    *,
    snapshot: int,
    ranges: Sequence[SequenceRange],
    columns: Sequence[str] | None,
    partition_values: PartitionValues,
    manifests: Manifests,
) -> Plan | None:
    """The files of the ranges; None where Iceberg's own reader is needed. `columns` None: all there are."""
    try:
        held = stored_columns(
            table, snapshot, None if columns is None else {*columns, *partition_values, SEQ, CONTENT_ID}
        )
        files = tuple(_files(table, snapshot, ranges, manifests))
    except (NeedsMore, LookupError, SchemaConflict, NotImplementedError, ValueError, EOFError, OSError):
        # If the table is damaged, Spark reports it better.
        return None
    # A name that the snapshot does not have yet is null in all its rows.
    if any(value is not None for name, value in partition_values.items() if name not in held):
        files = ()
    present = {name: value for name, value in partition_values.items() if name in held}
    return Plan(files, tuple(held.values()), present, dict(table.io.properties))


class NeedsMore(Exception):
    """Reading is not enough."""


def _files(
    table: IcebergTable, snapshot: int, ranges: Sequence[SequenceRange], manifests: Manifests
) -> Iterator[StoredFile]:
    from pyiceberg.expressions import And, GreaterThan, LessThanOrEqual

    hull = SequenceRange(ranges[0].after, ranges[-1].through)
    near = And(GreaterThan(SEQ, hull.after), LessThanOrEqual(SEQ, hull.through))
    number = table.schema().find_field(SEQ).field_id
    for file in manifests.files(table, snapshot, within=hull, row_filter=near):
        stored = StoredFile(file.location, *file.numbers(number), file.rows, file.size)
        if not any(stored.share(item) > 0 for item in ranges):
            continue
        if not file.is_plain or not is_reachable(table, file.location):
            raise NeedsMore
        yield stored


def stored_columns(table: IcebergTable, snapshot: int, names: set[str] | None) -> dict[str, StoredColumn]:
    """The columns as they were called and typed at the snapshot."""
    known = table.snapshot_by_id(snapshot)
    if known is None:
        raise NeedsMore
    schema = table.schema() if known.schema_id is None else table.schemas()[known.schema_id]
    held = {}
    for item in schema.fields:
        if names is None or item.name in names:
            if any(default is not None for default in _defaults(item)):
                raise NeedsMore
            kind = physical(from_iceberg(item.field_type))
            held[item.name] = StoredColumn(item.name, kind, tuple(_ids(item)))
    return held


def _nested(item: Any) -> Iterator[Any]:
    from pyiceberg.types import ListType, StructType

    yield item
    if isinstance(item.field_type, StructType):
        for inner in item.field_type.fields:
            yield from _nested(inner)
    elif isinstance(item.field_type, ListType):
        yield from _nested(item.field_type.element_field)


def _ids(item: Any) -> Iterator[int]:
    return (inner.field_id for inner in _nested(item))


def _defaults(item: Any) -> Iterator[Any]:
    return (inner.initial_default for inner in _nested(item))
