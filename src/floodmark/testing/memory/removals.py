"""Selected rows as the lake in memory sees them: Arrow tables in, Arrow tables out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from floodmark.commit.protocol import PartitionStats
from floodmark.lake.filters import kept_by_sqlite
from floodmark.removal import Selection, Spared
from floodmark.schema import CONTENT_ID, SEQ, Schema, partition_key
from floodmark.sequence import SequenceRange, Tally


def selected_numbers(rows: pa.Table, selection: Selection, *, schema: Schema, partition_by: Sequence[str]) -> set[int]:
    """The sequence numbers of the rows that a selection names."""
    rows = rows.filter(pc.less_equal(rows[SEQ], selection.through))
    if selection.before is not None:
        rows = _before(rows, selection.event_time or "", selection.before)
    if selection.numbers is not None:
        rows = only(rows, selection.numbers)
    if selection.where is not None:
        rows = kept_by_sqlite(rows, selection.where, schema.names)
    return set(rows[SEQ].to_pylist()) - spared_numbers(rows, selection.spared, partition_by)


def spared_numbers(rows: pa.Table, spared: Sequence[Spared], partition_by: Sequence[str]) -> set[int]:
    """The sequence numbers of rows that stay, whatever else is said of them."""
    ranges = {item.partition: item.ranges for item in spared}
    return {
        row[SEQ]
        for row in (rows.to_pylist() if ranges else ())
        if any(row[SEQ] in one for one in ranges.get(_key(row, partition_by), ()))
    }


def _before(rows: pa.Table, event_time: str, cutoff: int) -> pa.Table:
    if event_time not in rows.column_names:
        return rows.slice(0, 0)
    times = rows[event_time]
    times = times.cast(pa.timestamp("us", tz="UTC")) if pa.types.is_date(times.type) else times
    return rows.filter(pc.fill_null(pc.less(times.cast(pa.int64()), cutoff), fill_value=False))


def without(rows: pa.Table, numbers: Iterable[int]) -> pa.Table:
    gone = pa.array(sorted(numbers), pa.int64())
    return rows.filter(pc.invert(pc.is_in(rows[SEQ], gone)))


def only(rows: pa.Table, numbers: Iterable[int]) -> pa.Table:
    return rows.filter(pc.is_in(rows[SEQ], pa.array(sorted(numbers), pa.int64())))


def stats_between(
    rows: pa.Table, cuts: Sequence[int], *, through: int, partition_by: Sequence[str]
) -> list[tuple[SequenceRange, PartitionStats]]:
    """Rows and checksums, counted apart for each partition and between every two cuts."""
    ends = [0, *cuts, through]
    found: dict[tuple[SequenceRange, str], PartitionStats] = {}
    for row in rows.to_pylist():
        seq, partition = row[SEQ], _key(row, partition_by)
        low = max(end for end in ends if end < seq)
        between = SequenceRange(low, min(end for end in ends if end >= seq))
        tally = Tally(1, int(row[CONTENT_ID][:16], 16))
        old = found.get((between, partition), PartitionStats(partition, Tally(), seq, seq))
        found[between, partition] = PartitionStats(
            partition, old.tally + tally, min(old.first_seq, seq), max(old.last_seq, seq)
        )
    return [(between, item) for (between, _), item in sorted(found.items())]


def _key(row: dict[str, Any], partition_by: Sequence[str]) -> str:
    return partition_key(partition_by, [row.get(name) for name in partition_by])
