"""One block, from its append to the table's verdict on it.

    send → verdict → sync → record (or void)

Any process that finds an undecided block does the same: the table decides, and what is recorded is the
same. I4, I7, I8, I11 and U34 (see `commit.flush`) are kept here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection

from floodmark import faults
from floodmark.commit.protocol import (
    Append,
    Barrier,
    BlockSegment,
    PartitionStats,
    Settlement,
    TableState,
    Verdict,
    verdict,
)
from floodmark.control import blocks, datasets, removals
from floodmark.control import segments as segment_records
from floodmark.control.blocks import Block
from floodmark.control.database import Database
from floodmark.control.datasets import Dataset
from floodmark.control.segments import Segment
from floodmark.engine import Engine
from floodmark.errors import Corrupt, FloodmarkError, Retryable, reason_of
from floodmark.lake import queries
from floodmark.lake.generations import is_fenced, table_of
from floodmark.rows.identities import identity_hashes
from floodmark.schema import CONTENT_ID
from floodmark.spool.segments import remove_leftovers

if TYPE_CHECKING:
    import pyarrow as pa

SENDS_MAX = 3
"""How often one call sends the same block before it leaves it, undecided, to a later call."""


@dataclass(frozen=True, slots=True)
class Decided:
    """A decided block: what it added, as far as this process recorded it."""

    block: Block
    rows: int = 0
    duplicates: int = 0
    snapshot: int | None = None
    expired: int = 0
    dropped: int = 0
    problem: str | None = None


def commit_block(
    engine: Engine, block: Block, segments: Sequence[Segment], declared: Dataset, *, fresh: bool = False
) -> Decided | None:
    """Send a block until the table has decided it. None: void, its segments are free again.

    Of a `fresh` block nothing was sent before.
    """
    error: Exception | None = None
    for attempt in range(SENDS_MAX):
        try:
            out = _exclusions(engine, block, segments, declared)
            request = append_request(engine, block, segments, declared, purged=out.purged)
            landed, error = send(engine, request)
            if not landed and request.settle is not None and may_land_late(fresh=fresh, attempt=attempt):
                # B5: the settle function's result changed. The same numbers, unchanged, either land in place of the
                # earlier attempt or have nothing to send, as it had nothing.
                request = replace(request, settle=None, settlement=Settlement())
                landed, error = send(engine, request)
        except FloodmarkError:
            if engine.database.read(lambda c: _is_decided(c, block)):
                return _as_decided_by_another(engine, block)  # so its segments were removed
            raise
        settlement = request.settlement
        if not landed:
            return void_block(
                engine,
                block,
                reason="no row was left to commit",
                consume=True,
                expired=out.expired,
                dropped=settlement.dropped,
            )
        state = table_of(engine.database, engine.lake, declared, block.base)
        outcome = _verdict(engine, block, declared, state)
        faults.reach("flush.decided")
        if outcome is Verdict.LANDED and state is not None:
            return record_landed(engine, block, segments, declared, state, problem=settlement.problem)
        if outcome is Verdict.VOID:
            return void_block(engine, block, reason="another commit came first", consume=False)
    cause = f" ({reason_of(error)})" if error else ""
    raise Retryable(
        f"The append of block {block.range} of {block.dataset!r} failed {SENDS_MAX} times{cause}.",
        hint="The rows are safe in the spool; the next flush sends the same block again.",
    ) from error


def may_land_late(*, fresh: bool, attempt: int) -> bool:
    """B5: whether the block was sent before this attempt, so that it may still land as it was then."""
    return attempt > 0 or not fresh


def append_request(
    engine: Engine, block: Block, segments: Sequence[Segment], declared: Dataset, *, purged: tuple[int, ...]
) -> Append:
    known = [span for span in map(_span, segments) if span is not None]
    return Append(
        table=declared.of_generation(block.base.generation).table_name,
        block=block.id,
        range=block.range,
        base=block.base,
        segments=tuple(
            BlockSegment(s.id, _file(engine, s), s.rows, s.block_offset or 0, _span(s), engine.segments.bucket, s.path)
            for s in segments
        ),
        schema=declared.schema,
        identity=declared.identity,
        event_time=declared.event_time,
        event_span=(min(low for low, _ in known), max(high for _, high in known)) if known else None,
        settle=declared.settle,
        event_cutoff=declared.event_cutoff,
        purged=purged,
        partition_by=declared.partition_by,
        declaration=declared.declaration if declared.generation == block.base.generation else None,
        any_time=declared.identity_scope == datasets.ALL,
        by_content=declared.by_content,
    )


def send(engine: Engine, request: Append) -> tuple[bool, Exception | None]:
    """Send the append. False only if nothing was left to send; an error is not a verdict and not an end."""
    # U22: it is not created here. If it is missing, it was renamed, and an empty one would be taken for it.
    engine.lake.ensure(request.table, request.schema, create=False, declaration=request.declaration)
    faults.reach("flush.appending")
    error: Exception | None = None
    try:
        sent = engine.lake.append(request)
    except FloodmarkError:
        raise  # nothing was sent: the lake says so by raising one of ours
    except Exception as unclear:  # noqa: BLE001 - I4: whatever it was, the table decides, not the error
        sent, error = True, unclear
    faults.reach("flush.appended")
    return sent, error


def _verdict(engine: Engine, block: Block, declared: Dataset, state: TableState | None) -> Verdict:
    """I4: from one load of the metadata."""
    visible = False
    if state is not None and state.head not in (None, block.base.snapshot):
        known = state.since(block.base.snapshot) or state.lineage
        visible = not any(snapshot.block == block.id for snapshot in known) and queries.has_rows(
            engine.lake, state.name, snapshot=state.lineage[0].id, within=block.range
        )
    # U22: not from the records. Until the table is renamed, a pending request may still land.
    fenced = is_fenced(declared, block.base, state)
    return verdict(block=block.id, base=block.base, fenced=fenced, state=state, row_visible=visible)


def record_landed(
    engine: Engine,
    block: Block,
    segments: Sequence[Segment],
    declared: Dataset,
    state: TableState,
    *,
    problem: str | None = None,
) -> Decided | None:
    _check_whole(block, state)
    make_durable(engine, declared, state)
    faults.reach("flush.synced")
    segments, others = _landed_segments(engine, block, segments, state)
    stats, rows = _stats(engine, block, segments, declared, state)
    snapshot = _landing_snapshot(block, state)
    expired = 0 if rows == len(block.range) else _expired(engine, block, segments, declared)
    # Stored in the commit itself, so that any process can record it.
    dropped = next((item.dropped for item in state.lineage if item.block == block.id), 0)
    recorded = engine.database.transact(
        lambda c: blocks.record(
            c,
            block,
            snapshot=snapshot,
            synced_snapshot=state.head,
            rows=rows,
            expired=expired,
            dropped=dropped,
            reason=problem,
            stats=stats,
            now=engine.clock.now(),
            consumed={segment.id for segment in segments} if others else None,
        ),
        landed=lambda c: _is_decided(c, block),
    )
    faults.reach("flush.recorded")
    sent = sum(segment.rows for segment in segments)
    decided: Decided | None = Decided(
        block,
        rows,
        duplicates=sent - rows - expired - dropped,
        snapshot=snapshot,
        expired=expired,
        dropped=dropped,
        problem=problem,
    )
    if not recorded:
        decided = _as_decided_by_another(engine, block)
    if decided is not None:  # I7: the segments of a void block may be in another one by now
        remove_segments(engine, segments)
        remove_leftovers(engine, block.dataset)
    return decided


def make_durable(engine: Engine, declared: Dataset, state: TableState) -> None:
    """I7: a segment outlives the way of its rows to the disk. Hadoop's local file system does not fsync.

    Since the last sync on record: others rewrite files after it, and do not sync them.
    """
    engine.lake.sync(state, since=declared.synced_snapshot)


def _landed_segments(
    engine: Engine, block: Block, segments: Sequence[Segment], state: TableState
) -> tuple[Sequence[Segment], Sequence[Segment]]:
    """The segments that are in the table with this block, and those that are not.

    A snapshot that names the block added them all. Where only rows prove it, the snapshot may have expired; or the
    rows are those of a block that a restored control database has forgotten, with the same numbers and some of
    the same segments. A segment without a row there is flushed again: what it has of duplicates is dropped again.
    """
    if any(snapshot.block == block.id for snapshot in state.lineage):
        return segments, ()
    there = queries.segments_above(engine.lake, state.name, snapshot=state.lineage[0].id, after=block.range.after)
    return [one for one in segments if one.id in there], [one for one in segments if one.id not in there]


def _expired(engine: Engine, block: Block, segments: Sequence[Segment], declared: Dataset) -> int:
    """How many rows of a landed block were left out on purpose; the rest of what is missing were duplicates."""
    try:
        return _exclusions(engine, block, segments, declared).expired
    except Retryable:
        if engine.database.read(lambda c: _is_decided(c, block)):
            return 0  # so its segments were removed: the process that recorded it has counted
        raise


def void_block(
    engine: Engine, block: Block, *, reason: str, consume: bool, expired: int = 0, dropped: int = 0
) -> Decided | None:
    not_committed = {"expired": expired, "dropped": dropped}
    voided = engine.database.transact(
        lambda c: blocks.void(c, block, reason=reason, consume=consume, now=engine.clock.now(), **not_committed),
        landed=lambda c: _is_decided(c, block),
    )
    faults.reach("flush.released")
    if not voided:
        return _as_decided_by_another(engine, block)
    if not consume:
        return None
    duplicates = len(block.range) - expired - dropped
    return Decided(block, rows=0, duplicates=duplicates, snapshot=None, expired=expired, dropped=dropped)


def _as_decided_by_another(engine: Engine, block: Block) -> Decided | None:
    """Another process decided this block at the same time: its record counts, with its row counts."""
    found, folded = engine.database.read(lambda c: (blocks.get(c, block.id), blocks.is_folded(c, block)))
    if folded:
        return None  # long ago: whoever decided it has removed its segments, or they are in another block
    if found is None or found.state == "reserved":
        raise Corrupt(
            f"Block {block.range} of {block.dataset!r} lost its record.",
            hint="Do not change the store, and run `floodmark fsck`.",
        )
    return None if found.state == "void" else Decided(found)


def _stats(
    engine: Engine, block: Block, segments: Sequence[Segment], declared: Dataset, state: TableState
) -> tuple[list[PartitionStats], int]:
    """Rows and checksum per partition. Where every row landed the segments' own figures are the table's."""
    landed = next((s for s in state.lineage if s.block == block.id), None)
    if landed is not None and landed.added_rows == len(block.range):
        return _stats_of_segments(engine, block, segments), landed.added_rows
    stats = queries.stats(
        engine.lake, state.name, snapshot=state.lineage[0].id, within=block.range, partition_by=declared.partition_by
    )
    return stats, sum(item.tally.rows for item in stats)


def _stats_of_segments(engine: Engine, block: Block, segments: Sequence[Segment]) -> list[PartitionStats]:
    parts = engine.database.read(lambda c: segment_records.partitions_of(c, [s.id for s in segments]))
    result: dict[str, PartitionStats] = {}
    for segment in segments:
        start = block.range.after + 1 + (segment.block_offset or 0)
        for part in parts.get(segment.id, []):
            new = PartitionStats(part.partition, part.tally, start + part.first_row, start + part.last_row)
            old = result.get(part.partition)
            result[part.partition] = new if old is None else _together(old, new)
    return list(result.values())


def _file(engine: Engine, segment: Segment) -> str:
    """The file on this machine. One that is missing is found out where it is read."""
    with contextlib.suppress(FileNotFoundError):
        return str(engine.segments.path(segment.path))
    return str(engine.root / segment.path)


def remove_segments(engine: Engine, segments: Sequence[Segment]) -> None:
    def one_by_one() -> Iterator[str]:
        for segment in segments:
            yield segment.path
            faults.reach("flush.segment_removed")

    engine.segments.remove(one_by_one())


def decide_block(engine: Engine, dataset: str) -> list[Decided]:
    """I8. There is at most one."""
    block = engine.database.read(lambda c: blocks.undecided(c, dataset))
    if block is None:
        return []
    declared = engine.database.read(lambda c: datasets.get(c, dataset))
    segments = engine.database.read(lambda c: segment_records.of_block(c, block.id))
    state = table_of(engine.database, engine.lake, declared, block.base)
    outcome = _verdict(engine, block, declared, state)
    if outcome is Verdict.LANDED and state is not None:
        decided = record_landed(engine, block, segments, declared, state)
    elif outcome is Verdict.VOID:
        decided = void_block(engine, block, reason="another commit came first", consume=False)
    else:
        decided = commit_block(engine, block, segments, declared)
    return [] if decided is None else [decided]


def raise_barrier(engine: Engine, dataset: str) -> Block | None:
    """U34: let no request of the undecided block land any more, and decide it; None if there is none.

    I4: the barrier's answer is no verdict either. The table is read afterwards, and the request that is under
    way may have come first: then the block is committed.
    """
    block = engine.database.read(lambda c: blocks.undecided(c, dataset))
    if block is None:
        return None
    declared = engine.database.read(lambda c: datasets.get(c, dataset))
    error: Exception | None = None
    faults.reach("barrier.sending")
    try:
        own = declared.of_generation(block.base.generation)
        engine.lake.append(Barrier(own.table_name, block.id, block.base, block.range.through))
    except Exception as unclear:  # noqa: BLE001 - I4
        error = unclear
    faults.reach("barrier.sent")
    state = table_of(engine.database, engine.lake, declared, block.base)
    outcome = _verdict(engine, block, declared, state)
    if outcome is Verdict.OPEN:
        raise Retryable(
            f"Block {block.range} of {dataset!r} is undecided, and could still be committed"
            + (f": {reason_of(error)}." if error else "."),
            hint="Run it again when the lake can be written to.",
        ) from error
    segments = engine.database.read(lambda c: segment_records.of_block(c, block.id))
    if outcome is Verdict.LANDED and state is not None:
        record_landed(engine, block, segments, declared, state)
    else:
        if state is not None:
            # I7: undone by a power loss, the barrier would let a late request land after the block is void.
            engine.lake.sync(state, since=declared.synced_snapshot)
        void_block(engine, block, reason="it was given up, and an append without rows came first", consume=False)
    return engine.database.read(lambda c: blocks.get(c, block.id))


def _span(segment: Segment) -> tuple[int, int] | None:
    if segment.event_min is None or segment.event_max is None:
        return None
    return segment.event_min, segment.event_max


def _is_decided(connection: Connection, block: Block) -> bool:
    found = blocks.get(connection, block.id)
    return blocks.is_folded(connection, block) if found is None else found.state != "reserved"


def _check_whole(block: Block, state: TableState) -> None:
    """I11: a commit has exactly the announced rows. If not, it is not recorded, not read, and its segments stay."""
    landed = next((snapshot for snapshot in state.lineage if snapshot.block == block.id), None)
    if landed is not None and landed.announced_rows not in (None, landed.added_rows):
        raise Corrupt(
            f"The commit of block {block.range} of {block.dataset!r} has {landed.added_rows} rows instead of "
            f"{landed.announced_rows}.",
            hint="It is not recorded, and the rows are safe in the spool. Do not change the store, and report this.",
        )


def _landing_snapshot(block: Block, state: TableState) -> int | None:
    return next((s.id for s in state.lineage if s.block == block.id), state.head)


def _together(old: PartitionStats, new: PartitionStats) -> PartitionStats:
    return PartitionStats(
        old.partition,
        old.tally + new.tally,
        min(old.first_seq, new.first_seq),
        max(old.last_seq, new.last_seq),
    )


# ── rows that a block leaves out ─────────────────────────────────────────────────────────────────────────────────────
# They depend on the segments, the dataset's cut-off and its purged identities alone. Those two change only while no
# block is undecided (U13), so a block that is sent again, by whomever, leaves out the same rows.


@dataclass(frozen=True, slots=True)
class Exclusions:
    """What of a block is not committed, beside duplicates."""

    purged: tuple[int, ...] = ()
    """Sequence numbers."""
    expired: int = 0
    """How many rows there are of both kinds together."""


def _exclusions(engine: Engine, block: Block, segments: Sequence[Segment], declared: Dataset) -> Exclusions:
    """Check the segments of a block; usually their recorded figures are enough."""
    purges = _has_purged(engine.database, declared)
    if not purges and not _could_be_old(declared, segments):
        return Exclusions()
    gone: list[int] = []
    count = 0
    for segment in segments:
        rows = _columns(engine.segments.path(segment.path), declared)
        purged = _purged_places(engine.database, rows, declared) if purges else []
        start = block.range.after + 1 + (segment.block_offset or 0)
        gone += [start + place for place in purged]
        count += len({*purged, *_expired_places(rows, declared)})
    return Exclusions(tuple(gone), count)


def excluded_places(database: Database, path: Path, declared: Dataset) -> list[int]:
    """The places of the rows in a segment's file that flush would leave out."""
    purges = _has_purged(database, declared)
    if not purges and declared.event_cutoff is None:
        return []
    rows = _columns(path, declared)
    return sorted({*_expired_places(rows, declared), *(_purged_places(database, rows, declared) if purges else ())})


def _has_purged(database: Database, declared: Dataset) -> bool:
    return bool(declared.identity) and database.read(lambda c: removals.has_purged(c, declared.name))


def _could_be_old(declared: Dataset, segments: Sequence[Segment]) -> bool:
    cutoff = declared.event_cutoff
    return cutoff is not None and any(s.event_min is not None and s.event_min < cutoff for s in segments)


def _columns(path: Path, declared: Dataset) -> pa.Table:
    import pyarrow as pa
    import pyarrow.parquet as pq

    wanted = {name for names in declared.identity for name in names} | {declared.event_time}
    wanted |= {CONTENT_ID} if declared.by_content else set()
    try:
        present = pq.read_schema(path).names
        return pq.read_table(path, columns=[name for name in present if name in wanted])
    except (OSError, pa.ArrowInvalid) as error:
        raise Retryable(
            f"A segment of {declared.name!r} cannot be read: {error}.", hint="Nothing was committed; flush again."
        ) from error


def _expired_places(rows: pa.Table, declared: Dataset) -> list[int]:
    import pyarrow as pa
    import pyarrow.compute as pc

    if declared.event_cutoff is None or declared.event_time not in rows.column_names:
        return []
    times = rows[declared.event_time]
    if pa.types.is_date(times.type):
        times = times.cast(pa.timestamp("us", tz="UTC"))
    old = pc.fill_null(pc.less(times.cast(pa.int64()), declared.event_cutoff), fill_value=False)
    return [int(place) for place in pc.indices_nonzero(old).to_pylist()]


def _purged_places(database: Database, rows: pa.Table, declared: Dataset) -> list[int]:
    hashes = identity_hashes(rows, declared.identity, declared.key_time, by_content=declared.by_content)
    wanted = {item for item in hashes if item is not None}
    found = database.read(lambda c: removals.purged_among(c, declared.name, wanted))
    return [place for place, item in enumerate(hashes) if item in found]
