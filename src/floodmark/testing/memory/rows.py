"""Rows in memory: read, selected, counted, stamped and compared. Arrow tables in, Arrow tables out."""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from floodmark.commit.protocol import Append
from floodmark.errors import Retryable
from floodmark.lake.filters import kept_by_sqlite
from floodmark.lake.queries import Checksum, Group
from floodmark.lake.stored import FileKeys
from floodmark.removal import Selection, Spared
from floodmark.schema import CONTENT_ID, SEQ, partition_key
from floodmark.sequence import SequenceRange, Tally
from floodmark.settlement import Resettling

Key = tuple[Any, ...] | None
_NO_ROWS = pa.table({SEQ: pa.array([], pa.int64())})


def in_order(parts: Iterable[pa.Table]) -> pa.Table:
    """Files of different ages as one table: columns that came later are null before, narrower types are widened."""
    return pa.concat_tables(list(parts) or [_NO_ROWS], promote_options="permissive").sort_by(SEQ)


def inside(rows: pa.Table, within: SequenceRange) -> pa.Table:
    return rows.filter(pc.and_(pc.greater(rows[SEQ], within.after), pc.less_equal(rows[SEQ], within.through)))


def with_values(rows: pa.Table, values: Mapping[str, Any]) -> pa.Table:
    """The rows with these column values; a frozenset stands for any of its own."""
    for name, value in values.items():
        if name not in rows.column_names:
            rows = rows if value is None else rows.slice(0, 0)
        elif isinstance(value, frozenset):
            rows = rows.filter(pc.is_in(rows[name], pa.array(sorted(value), rows[name].type)))
        elif value is None:
            rows = rows.filter(pc.is_null(rows[name]))
        else:
            rows = rows.filter(pc.equal(rows[name], pa.scalar(value, rows[name].type)))
    return rows


def without(rows: pa.Table, numbers: Iterable[int]) -> pa.Table:
    return rows.filter(pc.invert(_numbered(rows, numbers)))


def only(rows: pa.Table, numbers: Iterable[int]) -> pa.Table:
    return rows.filter(_numbered(rows, numbers))


def _numbered(rows: pa.Table, numbers: Iterable[int]) -> Any:
    return pc.is_in(rows[SEQ], pa.array(sorted(numbers), pa.int64()))


# ── the rows that a selection names ──────────────────────────────────────────────────────────────────────────────────


def selected_numbers(
    rows: pa.Table, selection: Selection, *, columns: Iterable[str], partition_by: Sequence[str]
) -> set[int]:
    """The sequence numbers of the rows that a selection names; `columns` are those that its condition may use."""
    rows = inside(rows, selection.range)
    if selection.before is not None:
        rows = _before(rows, selection.event_time or "", selection.before)
    if selection.numbers is not None:
        rows = only(rows, selection.numbers)
    rows = without(rows, selection.without)
    if selection.where is not None:
        rows = kept_by_sqlite(rows, selection.where, set(columns))
    return set(rows[SEQ].to_pylist()) - spared_numbers(rows, selection.spared, partition_by)


def spared_numbers(rows: pa.Table, spared: Sequence[Spared], partition_by: Sequence[str]) -> set[int]:
    """The sequence numbers of rows that stay, whatever else is said of them."""
    ranges = {item.partition: item.ranges for item in spared}
    return {
        row[SEQ]
        for row in (rows.to_pylist() if ranges else ())
        if any(
            row[SEQ] in one for one in ranges.get(partition_key(partition_by, [row.get(n) for n in partition_by]), ())
        )
    }


def _before(rows: pa.Table, event_time: str, cutoff: int) -> pa.Table:
    if event_time not in rows.column_names:
        return rows.slice(0, 0)
    times = rows[event_time]
    times = times.cast(pa.timestamp("us", tz="UTC")) if pa.types.is_date(times.type) else times
    return rows.filter(pc.fill_null(pc.less(times.cast(pa.int64()), cutoff), fill_value=False))


def grouped(
    rows: pa.Table, *, by: Sequence[str], cuts: Sequence[int], width: int | None, checksum: Checksum
) -> list[Group]:
    """Rows counted apart, as the contract has it."""
    found: dict[tuple[Any, ...], Group] = {}
    for row in rows.to_pylist():
        seq = row[SEQ]
        place = bisect_left(cuts, seq) if width is None else seq // width
        key = tuple(row.get(name) for name in by)
        old = found.get((place, *key), Group(key, place, Tally(), seq, seq))
        tally = old.tally + Tally(1, _checksum(row, checksum))
        found[place, *key] = Group(key, place, tally, min(old.first_seq, seq), max(old.last_seq, seq))
    return list(found.values())


def _checksum(row: dict[str, Any], kind: Checksum) -> int:
    match kind:
        case Checksum.NONE:
            return 0
        case Checksum.CONTENT:
            return int(row[CONTENT_ID][:16], 16)
        case Checksum.ROW:  # a value that is not there is null
            whole = repr(sorted((name, value) for name, value in row.items() if value is not None))
            return int.from_bytes(hashlib.blake2b(whole.encode(), digest_size=8).digest())


# ── what an append brings ────────────────────────────────────────────────────────────────────────────────────────────


def stamped(request: Append) -> pa.Table:
    """The rows of a block with their numbers, without those from before the cut-off and those that were purged."""
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
    gone = set(request.purged)
    if request.event_cutoff is not None:
        old = Selection(request.range.through, event_time=request.event_time, before=request.event_cutoff)
        gone |= {seq for part in parts for seq in selected_numbers(part, old, columns=(), partition_by=())}
    return without(pa.concat_tables(parts, promote_options="permissive"), gone)


def keys_of(request: Append | FileKeys | Resettling, rows: pa.Table) -> Iterator[Key]:
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


def first_of_each(request: Append, rows: pa.Table, seen: set[Key]) -> pa.Table:
    """The rows whose keys were not seen before, not even in another of these rows."""
    kept = []
    for index, key in enumerate(keys_of(request, rows)):
        if key is None or key not in seen:
            kept.append(index)
            seen.add(key)
    return rows.take(pa.array(kept, pa.int64()))
