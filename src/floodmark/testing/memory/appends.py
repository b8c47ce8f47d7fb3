"""What an append brings to a table in memory: read → stamp → leave out → settle → compare and swap."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from floodmark.commit.protocol import Append, Barrier, named_segments
from floodmark.errors import FilesMissing, Retryable
from floodmark.lake.settling import problem_of, settled_table
from floodmark.lake.stored import FileKeys
from floodmark.lake.table import AppendRefused
from floodmark.removal import Selection
from floodmark.schema import CONTENT_ID, SEQ
from floodmark.settlement import Resettling
from floodmark.testing.memory.reading import ALL_NUMBERS
from floodmark.testing.memory.removals import selected_numbers, without

if TYPE_CHECKING:
    from floodmark.testing.memory.lake import MemoryLake


def stamped(lake: MemoryLake, request: Append) -> pa.Table:
    """The rows of a block with their numbers, without those that are duplicates at the base."""
    parts = []
    for segment in request.segments:
        try:
            with pq.ParquetFile(segment.path) as file:
                part = file.read(use_threads=False)
        except FileNotFoundError as error:
            raise Retryable(f"Segment {segment.id} cannot be read: {error}.") from error
        if part.num_rows != segment.rows:
            raise Retryable(f"Segment {segment.id} has {part.num_rows} rows, not {segment.rows}.")
        start = request.range.after + 1 + segment.offset
        parts.append(part.append_column(SEQ, pa.array(range(start, start + segment.rows), pa.int64())))
    rows = without(pa.concat_tables(parts, promote_options="permissive"), _left_out(request, parts))
    rows = _without_duplicates(lake, request, rows)
    if request.settle is None or rows.num_rows == 0:
        return rows
    try:
        settled = settled_table(request, rows)
    except Exception as error:  # noqa: BLE001 - B6: whatever it was, it has changed nothing
        request.settlement.problem = problem_of(request.settle, error)
        return rows
    request.settlement.dropped = rows.num_rows - settled.num_rows
    return _without_duplicates(lake, request, settled)


def land_append(lake: MemoryLake, request: Append, rows: pa.Table) -> None:
    """The compare-and-swap: refused if anything was appended since the base."""
    table = lake.tables.get(request.table)
    if table is None or (request.base.snapshot is None and table.uuid != request.base.table_uuid):
        raise AppendRefused("the table is another one")
    state = lake.load(request.table)
    since = state.since(request.base.snapshot) if state else None
    if since is None or any(snapshot.brought_rows for snapshot in since):
        raise AppendRefused("found conflicting files")
    new = lake.store_by_bucket(request.table, rows)
    lake.commit(
        table,
        operation="append",
        files=(*table.head_files, *new),
        added_files=len(new),
        added_rows=rows.num_rows,
        block=request.block,
        through=request.range.through,
        dropped=request.settlement.dropped,
        segments=named_segments(request),
    )


def land_barrier(lake: MemoryLake, request: Barrier) -> None:
    """An append without rows, under the same condition as any other."""
    table, state = lake.tables.get(request.table), lake.load(request.table)
    if table is None or state is None or not state.may_append_on(request.base):
        raise AppendRefused("found conflicting files")
    lake.commit(
        table,
        operation="append",
        files=table.head_files,
        added_files=1,
        added_rows=0,
        through=request.through,
        barrier=request.block,
    )


def keys_of(request: Append | FileKeys | Resettling, rows: pa.Table) -> Iterator[tuple[Any, ...] | None]:
    """The deduplication key of each row: the first identity that is complete, with the event time."""
    for row in rows.to_pylist():
        when = row.get(request.key_time) if request.key_time else None
        for rank, identity in enumerate(request.identity):
            values = tuple(row.get(name) for name in identity)
            if None not in values:
                yield (rank, values, when)
                break
        else:
            yield (len(request.identity), (row[CONTENT_ID],), when) if request.by_content else None  # B10


def _left_out(request: Append, parts: list[pa.Table]) -> set[int]:
    """Rows from before the cut-off, and rows that were purged."""
    old = Selection(request.range.through, event_time=request.event_time, before=request.event_cutoff)
    if request.event_cutoff is None:
        return set(request.purged)
    found = (selected_numbers(part, old, schema=request.schema, partition_by=()) for part in parts)
    return set(request.purged).union(*found)


def _without_duplicates(lake: MemoryLake, request: Append, rows: pa.Table) -> pa.Table:
    if not request.identity:
        return rows
    seen: set[tuple[Any, ...] | None] = set()
    state = lake.load(request.table)
    snapshot = None if state is None else state.standing_for(request.base.snapshot)
    if snapshot is not None:
        committed = lake.parts(request.table, snapshot, ALL_NUMBERS)
        try:
            seen = {key for part in committed for key in keys_of(request, part) if key is not None}
        except FilesMissing as error:
            raise Retryable(f"Duplicates cannot be looked for: {error}") from error
    kept = []
    for index, key in enumerate(keys_of(request, rows)):
        if key is None or key not in seen:
            kept.append(index)
            seen.add(key)
    return rows.take(pa.array(kept, pa.int64()))
