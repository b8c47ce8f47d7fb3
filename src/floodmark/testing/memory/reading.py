"""Reading tables in memory: the rows of a range that conditions let through, in order, and what they add up to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from floodmark.commit.protocol import PartitionStats
from floodmark.lake.filters import kept_by_sqlite
from floodmark.schema import CONTENT_ID, SEQ, Schema, partition_key
from floodmark.sequence import SEQUENCE_MAX, SequenceRange, Tally

if TYPE_CHECKING:
    from floodmark.testing.memory.tables import MemoryTables

ALL_NUMBERS = SequenceRange(0, SEQUENCE_MAX)
_NO_ROWS = pa.table({SEQ: pa.array([], pa.int64())})


def in_order(parts: Iterable[pa.Table]) -> pa.Table:
    """Files of different ages as one table: columns that came later are null before, narrower types are widened."""
    return pa.concat_tables(list(parts) or [_NO_ROWS], promote_options="permissive").sort_by(SEQ)


def selected(
    lake: MemoryTables,
    table: str,
    snapshot: int,
    within: SequenceRange,
    *,
    partition_values: Mapping[str, Any] | None = None,
    row_filter: str | None = None,
    schema: Schema | None = None,
) -> pa.Table:
    """The rows of a range that the conditions let through, in order."""
    rows = in_order(lake.parts(table, snapshot, within))
    for name, value in (partition_values or {}).items():
        held = rows[name] if name in rows.column_names else pa.nulls(rows.num_rows, pa.scalar(value).type)
        rows = rows.filter(pc.is_null(held) if value is None else pc.equal(held, pa.scalar(value, held.type)))
    if row_filter is None:
        return rows
    return kept_by_sqlite(rows, row_filter, {*lake.table(table).schema.names, *(schema.names if schema else ())})


def stats_of(parts: Iterable[pa.Table], partition_by: Sequence[str]) -> list[PartitionStats]:
    """Rows and checksums, counted apart for each partition."""
    result: dict[str, PartitionStats] = {}
    for part in parts:
        for row in part.to_pylist():
            key = partition_key(partition_by, [row.get(name) for name in partition_by])
            new = PartitionStats(key, Tally(1, int(row[CONTENT_ID][:16], 16)), row[SEQ], row[SEQ])
            old = result.get(key, replace(new, tally=Tally()))
            result[key] = PartitionStats(
                key, old.tally + new.tally, min(old.first_seq, new.first_seq), max(old.last_seq, new.last_seq)
            )
    return [result[key] for key in sorted(result)]
