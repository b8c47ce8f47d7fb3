"""Queries about rows of a table, once for every lake: each question is one scan or one aggregate.

What a question costs is what its scan or aggregate costs: one job where the lake has an engine.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from floodmark.commit.protocol import PartitionStats
from floodmark.lake.filters import check_text
from floodmark.lake.targets import Cut
from floodmark.removal import Selection
from floodmark.schema import CONTENT_ID, SEGMENT, SEQ, Column, PartitionValues, Schema, partition_key
from floodmark.sequence import SEQUENCE_MAX, SequenceRange, Tally

if TYPE_CHECKING:
    import pyarrow as pa

    from floodmark.lake.table import Lake

ALL_NUMBERS = SequenceRange(0, SEQUENCE_MAX)
COUNTED_HERE_MAX = 20_000
"""Ranges of so many numbers are counted in this process: a job would take longer to start than to finish."""
FILE = "_file"
"""The column of a scan that names the data file of each row."""


class Checksum(enum.Enum):
    """What the checksum of an aggregate is computed from."""

    NONE = "none"
    CONTENT = "content"
    """The content ids: comparable with what a segment and a destination say."""
    ROW = "row"
    """All that a row has, its number and its values of today: two tables of one lake are compared by it, and it means
    nothing elsewhere. A column of the schema that the table does not have is null."""


@dataclass(frozen=True, slots=True)
class Group:
    """Rows that were counted together."""

    key: tuple[Any, ...]
    """Their values in the columns that were grouped by."""
    place: int
    """How many of the cuts are below them, or the bucket of so many numbers that they are in (`seq // width`)."""
    tally: Tally
    first_seq: int
    last_seq: int


@dataclass(frozen=True, slots=True)
class StoredRow:
    """One row and its place."""

    seq: int
    content_id: str
    segment: int | None
    """The segment that it came from."""
    file: str
    """The data file that holds it."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """Its requested columns."""


def has_rows(lake: Lake, table: str, *, snapshot: int, within: SequenceRange) -> bool:
    """Whether a row with a number in the range is visible in a snapshot."""
    found = lake.scan(table, snapshot=snapshot, within=within, columns=(), rows_max=1)
    return any(part.num_rows for part in found)


def find_rows(
    lake: Lake,
    table: str,
    *,
    snapshot: int,
    values: Mapping[str, Any],
    columns: tuple[str, ...] = (),
    rows_max: int = 100,
) -> list[StoredRow]:
    """The rows with these column values, in sequence order, at most `rows_max`; system columns may be named too.

    It costs what the files cost that can hold such rows: name columns whose values the files' bounds separate.
    """
    found = lake.scan(
        table,
        snapshot=snapshot,
        within=ALL_NUMBERS,
        columns=(CONTENT_ID, SEGMENT, FILE, *columns),
        partition_values=dict(values),
        rows_max=rows_max,
    )
    return [
        StoredRow(row[SEQ], row[CONTENT_ID], row[SEGMENT], row[FILE], {name: row[name] for name in columns})
        for part in found
        for row in part.to_pylist()
    ]


def stats(
    lake: Lake,
    table: str,
    *,
    snapshot: int,
    within: SequenceRange,
    partition_by: tuple[str, ...],
    partition_values: PartitionValues | None = None,
    row_filter: str | None = None,
) -> list[PartitionStats]:
    """Rows and checksums of a range, partition by partition, counted in a snapshot."""
    if row_filter is None and len(within) <= COUNTED_HERE_MAX:
        return _stats_here(lake, table, snapshot, within, partition_by, partition_values)
    selection = Selection(within.through, after=within.after, where=row_filter)
    found = lake.aggregate(
        table, snapshot=snapshot, selection=selection, by=partition_by, partition_values=partition_values
    )
    return sorted((_of_partition(group, partition_by) for group in found), key=lambda item: item.partition)


def _stats_here(
    lake: Lake,
    table: str,
    snapshot: int,
    within: SequenceRange,
    partition_by: tuple[str, ...],
    partition_values: Mapping[str, Any] | None,
) -> list[PartitionStats]:
    """From the few rows themselves: where files need only reading, no job is started."""
    from floodmark.rows.content import partition_stats, prefixes_of

    found = []
    columns = (CONTENT_ID, *partition_by)
    for rows in lake.scan(table, snapshot=snapshot, within=within, columns=columns, partition_values=partition_values):
        numbers = rows[SEQ]
        prefixes = prefixes_of(rows[CONTENT_ID].combine_chunks())
        found += [
            PartitionStats(part.partition, part.tally, numbers[part.first_row].as_py(), numbers[part.last_row].as_py())
            for part in partition_stats(rows, prefixes, partition_by)
        ]
    return sorted(found, key=lambda item: item.partition)


def selected_stats(
    lake: Lake,
    table: str,
    *,
    snapshot: int,
    selection: Selection,
    schema: Schema,
    partition_by: tuple[str, ...],
    cuts: Sequence[int] = (),
) -> list[tuple[SequenceRange, PartitionStats]]:
    """The rows that a selection names, counted for each partition and between every two of the rising `cuts`."""
    ends = [selection.after, *cuts, selection.through]
    found = lake.aggregate(table, snapshot=snapshot, selection=selection, schema=schema, by=partition_by, cuts=cuts)
    between = [
        (SequenceRange(ends[group.place], ends[group.place + 1]), _of_partition(group, partition_by)) for group in found
    ]
    return sorted(between, key=lambda item: (item[0], item[1].partition))


def segments_above(lake: Lake, table: str, *, snapshot: int, after: int) -> set[int]:
    """The ids of the segments that added rows above a sequence number."""
    return set(segment_rows(lake, table, snapshot=snapshot, within=SequenceRange(after, SEQUENCE_MAX)))


def segment_rows(lake: Lake, table: str, *, snapshot: int, within: SequenceRange) -> dict[int, int]:
    """How many rows of a range each segment added; segments without any are not named."""
    selection = Selection(within.through, after=within.after)
    found = lake.aggregate(table, snapshot=snapshot, selection=selection, by=(SEGMENT,), checksum=Checksum.NONE)
    return {group.key[0]: group.tally.rows for group in found}


def tallies(
    lake: Lake, table: str, *, snapshot: int, within: SequenceRange, width: int, schema: Schema
) -> dict[int, Tally]:
    """Rows and checksum of each bucket of so many numbers that has rows of the range, to compare two tables."""
    selection = Selection(within.through, after=within.after)
    found = lake.aggregate(
        table, snapshot=snapshot, selection=selection, schema=schema, width=width, checksum=Checksum.ROW
    )
    return {group.place: group.tally for group in found}


def tally(lake: Lake, cut: Cut) -> Tally:
    """How much is in a range. Where files need only reading, counting takes a tenth of the time of a query."""
    if cut.row_filter is not None or cut.without:
        return sum((group.tally for group in _counted(lake, cut, Checksum.CONTENT)), Tally())
    counted = lake.each_range(
        cut.table,
        snapshot=cut.snapshot,
        ranges=[cut.range],
        columns=(),
        schema=cut.columns,
        work=_only_counted,
        partition_values=cut.partition_values,
    )
    return sum((tally for _, tally, _ in counted), Tally())


def last_seq(lake: Lake, cut: Cut) -> int:
    """The number of the last row in a range; 0 if it has none."""
    return max((group.last_seq for group in _counted(lake, cut, Checksum.NONE)), default=0)


def _counted(lake: Lake, cut: Cut, checksum: Checksum) -> list[Group]:
    return lake.aggregate(
        cut.table,
        snapshot=cut.snapshot,
        selection=Selection(
            cut.range.through, after=cut.range.after, where=cut.row_filter, without=tuple(sorted(cut.without))
        ),
        schema=cut.columns,
        partition_values=cut.partition_values,
        checksum=checksum,
    )


def _only_counted(_range: SequenceRange, _rows: pa.Table) -> dict[str, Any]:
    """The work on a range of which only the tally is needed."""
    return {}


def check_filter(lake: Lake, table: str, expression: str) -> None:
    """`Permanent` for a filter that cannot be used on the table's columns. A table that is not there has none."""
    state = lake.load(table)
    if state is None:
        check_text(expression, None)
        return
    schema = Schema(tuple(Column(name, kind) for name, kind in state.columns))
    lake.matching(schema.arrow().empty_table(), expression, schema=schema)


def _of_partition(group: Group, partition_by: Sequence[str]) -> PartitionStats:
    return PartitionStats(partition_key(partition_by, group.key), group.tally, group.first_seq, group.last_seq)
