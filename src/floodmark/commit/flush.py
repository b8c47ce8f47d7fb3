"""Flush: reserve → stamp → commit. The one chokepoint through which every row gets its sequence number.

Terms. A *block* is the range of numbers reserved for one flush. Its *base* is the table's head as it was when the
flush began. The block's rows are appended by a compare-and-swap on that base.

Invariants
- I1 The allocator never goes back: a block starts above everything that carries a number.
- I2 Base before reserve: what is visible at the base was reserved earlier, so it is lower. Hence the order of
  commits is the order of numbers, and the horizon is the end of the last committed block.
- I3 The horizon only rises, and only over decided blocks.
- I4 A block is decided once, and the table decides it. An error, a time-out or a conflict is never a verdict.
- I7 A segment's file goes only after its rows are durable in the table and its block says so.
- I8 At most one undecided block per dataset; whoever finds it settles it before reserving another.
- I10 What is wrong with one dataset is remembered for it alone, and stops nothing else.
- U34 One segment that cannot be committed holds up no other. A block that failed in the same way several times is made
  impossible by a barrier, an append without rows on its base: then it is void, by the table's own history. Its segments
  are tried again in smaller blocks. One that fails alone, where another gets through, is set aside, on record.

States of a block, and who makes each transition

    (none) ─_reserve─▶ reserved ─_record─▶ committed        the rows are in the table, durable, recorded
                          │  └───_void──▶ void              they are not and never will be; segments free again
                          │                 ▲               (also after `block_off`: then no request can land)
                          └──_send again: same block, same base
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from sqlalchemy import Connection

from floodmark import faults
from floodmark.clock import Clock
from floodmark.commit.exclusions import LeftOut, left_out
from floodmark.commit.protocol import (
    Append,
    Barrier,
    Base,
    BlockSegment,
    PartitionStats,
    Settlement,
    TableState,
    Verdict,
    verdict,
)
from floodmark.commit.recovery import Recovery
from floodmark.control import blocks, datasets, problems
from floodmark.control import segments as segment_records
from floodmark.control.blocks import BatchLimits, Block, BlockUndecided
from floodmark.control.database import Database
from floodmark.control.datasets import Dataset
from floodmark.control.segments import Segment
from floodmark.errors import (
    CommitConflict,
    Corrupt,
    FloodmarkError,
    OutcomeUnknown,
    Permanent,
    Retryable,
    UnknownDataset,
    reason_of,
)
from floodmark.files import advisory_lock, make_directory, sync_directory
from floodmark.lake import inventory, queries
from floodmark.lake.generations import being_rebuilt, find_table, is_fenced, table_of
from floodmark.lake.table import Lake
from floodmark.sequence import SequenceRange
from floodmark.spool.sealing import Sealer, SealReport
from floodmark.spool.segments import SegmentStore

SENDS_MAX = 3
"""How often one call sends the same block before it leaves it, undecided, to a later call."""
BLOCKS_MAX = 20
"""How many blocks one call may lose to other writers before it says so."""
ALIKE_MAX = 3
"""After so many flushes that failed in the same way, the segment that does it is looked for."""
SPLITS_MAX = 30
"""How many blocks one call gives up in order to find it."""
NAMED_MAX = 3
"""How many segments that are left behind a report names."""
_MEMORY = ("OutOfMemoryError", "Java heap space", "GC overhead limit")


@dataclass(frozen=True, slots=True)
class FlushReport:
    """What a flush of one dataset did."""

    dataset: str
    rows: int = 0
    duplicates: int = 0
    block: SequenceRange | None = None
    snapshot_id: int | None = None
    blocks: int = 0
    quarantined: int = 0
    expired: int = 0
    """Rows that were not committed because retention or a purge has removed their like before."""
    dropped: int = 0
    """Rows that the dataset's settle function left out."""
    settle_problem: str | None = None
    """Why the settle function's answer did not count: the rows were committed as they came (B6)."""
    problems: tuple[str, ...] = ()
    """What could not be committed, and what to do about it: segments that were left behind, and, in the report of
    several datasets, those that could not be flushed.
    """


@dataclass(slots=True)
class _Careful:
    """How one call goes on after failures: in blocks of how many segments, and whom it suspects."""

    segments_max: int | None = None
    alike: int = 0
    """How many flushes before this one failed, and … """
    gist: str = ""
    """… in which way."""
    splits: int = 0
    others_went: bool = False
    """Whether something got through since the first of them."""
    suspects: list[int] = field(default_factory=list)
    """Segments that failed alone, and nothing got through since: it may be the table's fault."""

    def got_through(self) -> None:
        self.suspects.clear()
        self.others_went = self.splits > 0
        if self.segments_max is not None:
            self.segments_max *= 2


@dataclass(frozen=True, slots=True)
class _Decided:
    """A block with its end: what it brought, as far as this process recorded it."""

    block: Block
    rows: int = 0
    duplicates: int = 0
    snapshot: int | None = None
    expired: int = 0
    dropped: int = 0
    problem: str | None = None


@dataclass(slots=True)
class Flusher:
    """Commits what waits in the spool. Any number of processes may run one on the same store."""

    root: Path
    database: Database
    lake: Lake
    segments: SegmentStore
    sealer: Sealer
    recovery: Recovery
    clock: Clock
    limits: BatchLimits = BatchLimits()  # noqa: RUF009 - frozen
    patience_seconds: float = 60.0
    """How long to wait for another flush of the same dataset on this machine instead of repeating its work."""

    def flush(self, dataset: str, *, stop: Callable[[], bool] | None = None) -> FlushReport:
        """Seal and commit everything acknowledged at this moment; less, once `stop` says so between two blocks.

        Segments whose files are damaged, and those that are set aside, are left behind: the report names them.
        """
        before = self.database.read(lambda c: problems.find(c, dataset))
        careful = _Careful() if before is None else _Careful(before.segments_max, before.failures, before.gist)
        try:
            sealed, done = self._flush(dataset, careful, stop=stop)
            left = self._left_behind(dataset)
        except Exception as error:
            self._remember(dataset, error, careful)
            raise
        if left:
            self._remember(dataset, Corrupt(" ".join(left)), careful)
        elif before is not None:
            self.database.transact(lambda c: problems.forget(c, dataset))
        return replace(_report(dataset, done, quarantined=sealed.quarantined), problems=left)

    def _flush(
        self, dataset: str, careful: _Careful, *, stop: Callable[[], bool] | None
    ) -> tuple[SealReport, list[_Decided]]:
        self._recover(dataset)
        sealed = self.sealer.seal(dataset)
        # What is registered from now on is the next flush's: beside a busy writer this one would never end.
        registered = self.database.read(segment_records.registered_so_far)
        done: list[_Decided] = []
        with self.quietly_alone(dataset):
            while True:
                try:
                    done.extend(self._settle(dataset))
                    while not (stop is not None and stop()):
                        decided = self._flush_batch(dataset, registered=registered, careful=careful)
                        if decided is None:
                            break
                        careful.got_through()
                        done.append(decided)
                except FloodmarkError as error:
                    if not self._isolated(dataset, error, careful):
                        raise
                else:
                    return sealed, done

    def recover(self, dataset: str | None = None) -> None:
        """Bring a dataset into order, once per process; without one, only the numbers, which are the whole store's."""
        if dataset is None:
            self.recovery.raise_numbers()
            return
        try:
            self._recover(dataset)
        except FloodmarkError as error:
            self._remember(dataset, error, _Careful())
            raise

    def _recover(self, dataset: str) -> None:
        self.recovery.run(dataset, self._settle)

    @contextlib.contextmanager
    def quietly_alone(self, dataset: str) -> Iterator[None]:
        """Let another flush on this machine finish first. Only politeness: nothing below depends on it."""
        directory = self.root / "spool" / dataset
        make_directory(directory, private=True)
        with advisory_lock(directory / "flush.lock", wait_seconds_max=self.patience_seconds):
            yield

    # ── one batch ────────────────────────────────────────────────────────────────────────────────────────────────

    def _flush_batch(self, dataset: str, *, registered: int, careful: _Careful) -> _Decided | None:
        """Commit the next segments; None when none wait. A void block's segments go with the next one."""
        damaged = {segment.id for segment in self._damaged(dataset)}
        for _ in range(BLOCKS_MAX):
            oldest = self.database.read(lambda c: segment_records.oldest_waiting(c, dataset))
            if oldest is None or oldest > registered:
                return None
            try:
                reserved = self._reserve(dataset, without=damaged, segments_max=careful.segments_max)
            except BlockUndecided:
                self._settle(dataset)  # I8: another flusher's, begun since we looked
                continue
            if reserved is None:
                return None
            decided = self._commit(reserved.block, reserved.segments, reserved.dataset, fresh=True)
            if decided is not None:
                return decided
            registered = max(registered, reserved.segments[-1].registered)  # what was begun is seen to its end
        raise CommitConflict(
            f"Dataset {dataset!r} is being committed to by others faster than this flush can follow.",
            hint="The rows are safe in the spool; flush again.",
        )

    def _damaged(self, dataset: str) -> list[Segment]:
        """The waiting segments whose files are gone or of another size. A look at each file's size, no more."""
        waiting = self.database.read(lambda c: segment_records.sealed(c, dataset))
        return [one for one in waiting if one.set_aside is None and self.segments.damage(one.path, one.bytes)]

    def _reserve(
        self, dataset: str, *, without: Collection[int], segments_max: int | None
    ) -> blocks.Reservation | None:
        limits = self.limits
        if segments_max is not None:
            limits = replace(limits, segments_max=max(1, min(segments_max, limits.segments_max)))
        declared = self.database.read(lambda c: datasets.get(c, dataset))
        # I2: base before reserve. Read the other way round, a flush that reserved first could commit above a higher
        # block that is already visible, and its rows would be skipped for ever.
        declared, state = self._load_or_create(declared)
        base = Base(table_uuid=state.uuid, generation=declared.generation, snapshot=state.head)
        self.recovery.catch_up(declared, state, self._settle)
        faults.reach("flush.base_loaded")
        block_id = uuid.uuid4().hex
        seen_through = inventory.highest_seq(self.lake, state)  # not inside: the transaction holds everybody else up
        reserved = self.database.transact(
            lambda c: blocks.reserve(
                c,
                id=block_id,
                dataset=dataset,
                base=base,
                seen_through=seen_through,
                limits=limits,
                now=self.clock.now(),
                without=without,
            ),
            landed=lambda c: blocks.get(c, block_id) is not None,
        )
        faults.reach("flush.reserved")
        return reserved

    def _load_or_create(self, declared: Dataset) -> tuple[Dataset, TableState]:
        if declared.fenced:
            raise being_rebuilt(declared.name)
        declared, state = find_table(self.database, self.lake, declared)
        if state is None:
            if declared.horizon:
                # A new one would hide that. Its rows may be there under the name of another generation.
                raise Corrupt(
                    f"The table {declared.table_name!r} is gone, and rows up to {declared.horizon} are committed.",
                    hint="The rows to flush are safe in the spool. Was the control database restored from a backup of "
                    "before a rebuild, or the lake moved? Restore what fits; `floodmark fsck` says more.",
                )
            self.lake.ensure(
                declared.table_name, declared.schema, layout=declared.layout, declaration=declared.declaration
            )
            state = self.lake.load(declared.table_name)
        if state is None:
            raise Retryable(f"The table of dataset {declared.name!r} was created and is not there.")
        return declared, state

    def _commit(
        self, block: Block, segments: Sequence[Segment], declared: Dataset, *, fresh: bool = False
    ) -> _Decided | None:
        """Send a block until the table has decided it. None: void, its segments are free again.

        Of a `fresh` block nothing was sent before.
        """
        error: Exception | None = None
        for attempt in range(SENDS_MAX):
            try:
                out = self._left_out(block, segments, declared)
                request = self._request(block, segments, declared, purged=out.purged)
                landed, error = self._send(request)
                if not landed and request.settle is not None and not (fresh and attempt == 0):
                    # B5: the settle function has changed its mind, and what an earlier attempt sent may still land. The
                    # same numbers, as they came, either land in its place or have nothing to send, as it had nothing.
                    request = replace(request, settle=None, settlement=Settlement())
                    landed, error = self._send(request)
            except FloodmarkError:
                if self.database.read(lambda c: _is_decided(c, block)):
                    return self._as_decided_by_another(block)  # and its segments are gone for that reason
                raise
            told = request.settlement
            if not landed:
                return self._void(
                    block,
                    reason="no row was left to commit",
                    consume=True,
                    expired=out.expired,
                    dropped=told.dropped,
                )
            state = table_of(self.database, self.lake, declared, block.base)
            outcome = self._verdict(block, declared, state)
            faults.reach("flush.decided")
            if outcome is Verdict.LANDED and state is not None:
                return self._record(block, segments, declared, state, problem=told.problem)
            if outcome is Verdict.VOID:
                return self._void(block, reason="another commit came first", consume=False)
        cause = f" ({reason_of(error)})" if error else ""
        raise Retryable(
            f"The append of block {block.range} of {block.dataset!r} failed {SENDS_MAX} times{cause}.",
            hint="The rows are safe in the spool; the next flush sends the same block again.",
        ) from error

    def _left_out(self, block: Block, segments: Sequence[Segment], declared: Dataset) -> LeftOut:
        return left_out(self.database, self.root, declared, segments, after=block.range.after)

    def _request(
        self, block: Block, segments: Sequence[Segment], declared: Dataset, *, purged: tuple[int, ...]
    ) -> Append:
        known = [span for span in map(_span, segments) if span is not None]
        return Append(
            table=declared.of_generation(block.base.generation).table_name,
            block=block.id,
            range=block.range,
            base=block.base,
            segments=tuple(
                BlockSegment(s.id, str(self.segments.path(s.path)), s.rows, s.block_offset or 0, _span(s))
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

    def _send(self, request: Append) -> tuple[bool, Exception | None]:
        """Send the append. False only if nothing was left to send; an error is not a verdict and not an end."""
        # U22: it is not created here. If it is gone, it was renamed, and an empty one would be taken for it.
        self.lake.ensure(request.table, request.schema, create=False, declaration=request.declaration)
        faults.reach("flush.appending")
        error: Exception | None = None
        try:
            sent = self.lake.append(request)
        except FloodmarkError:
            raise  # nothing was sent: the lake says so by raising one of ours
        except Exception as unclear:  # noqa: BLE001 - I4: whatever it was, the table decides, not the error
            sent, error = True, unclear
        faults.reach("flush.appended")
        return sent, error

    def _verdict(self, block: Block, declared: Dataset, state: TableState | None) -> Verdict:
        """I4: from one load of the metadata."""
        visible = False
        if state is not None and state.head not in (None, block.base.snapshot):
            known = state.since(block.base.snapshot) or state.lineage
            visible = not any(snapshot.block == block.id for snapshot in known) and queries.has_rows(
                self.lake, state.name, snapshot=state.lineage[0].id, within=block.range
            )
        # U22: not what the records say. Until the table has its other name, a request under way may still land.
        fenced = is_fenced(declared, block.base, state)
        return verdict(block=block.id, base=block.base, fenced=fenced, state=state, row_visible=visible)

    # ── the two ends of a block ──────────────────────────────────────────────────────────────────────────────────

    def _record(
        self,
        block: Block,
        segments: Sequence[Segment],
        declared: Dataset,
        state: TableState,
        *,
        problem: str | None = None,
    ) -> _Decided | None:
        _check_whole(block, state)
        # I7: a segment outlives the way of its rows to the disk. Hadoop's local file system does not fsync.
        self.lake.sync(state, since=declared.synced_snapshot)
        faults.reach("flush.synced")
        segments, others = self._landed_segments(block, segments, state)
        stats, rows = self._stats(block, segments, declared, state)
        snapshot = _landing_snapshot(block, state)
        expired = 0 if rows == len(block.range) else self._expired(block, segments, declared)
        # Written down by the commit itself, so that whoever records it knows.
        dropped = next((item.dropped for item in state.lineage if item.block == block.id), 0)
        recorded = self.database.transact(
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
                now=self.clock.now(),
                consumed={segment.id for segment in segments} if others else None,
            ),
            landed=lambda c: _is_decided(c, block),
        )
        faults.reach("flush.recorded")
        sent = sum(segment.rows for segment in segments)
        decided: _Decided | None = _Decided(
            block,
            rows,
            duplicates=sent - rows - expired - dropped,
            snapshot=snapshot,
            expired=expired,
            dropped=dropped,
            problem=problem,
        )
        if not recorded:
            decided = self._as_decided_by_another(block)
        if decided is not None:  # I7: the segments of a void block may be in another one by now
            self._remove_segments(segments)
            self.segments.remove_leftovers(block.dataset)
        return decided

    def _landed_segments(
        self, block: Block, segments: Sequence[Segment], state: TableState
    ) -> tuple[Sequence[Segment], Sequence[Segment]]:
        """The segments that are in the table with this block, and those that are not.

        A snapshot that names the block brought them all. Where only rows tell, the snapshot may have expired; or the
        rows are those of a block that a restored control database has forgotten, with the same numbers and some of
        the same segments. A segment without a row there is flushed again: what it has of duplicates is dropped again.
        """
        if any(snapshot.block == block.id for snapshot in state.lineage):
            return segments, ()
        there = queries.segments_above(self.lake, state.name, snapshot=state.lineage[0].id, after=block.range.after)
        return [one for one in segments if one.id in there], [one for one in segments if one.id not in there]

    def _expired(self, block: Block, segments: Sequence[Segment], declared: Dataset) -> int:
        """How many rows of a landed block were left out on purpose; the rest of what is missing were duplicates."""
        try:
            return self._left_out(block, segments, declared).expired
        except Retryable:
            if self.database.read(lambda c: _is_decided(c, block)):
                return 0  # and its segments are gone for that reason: whoever recorded it has counted
            raise

    def _void(self, block: Block, *, reason: str, consume: bool, expired: int = 0, dropped: int = 0) -> _Decided | None:
        left_out = {"expired": expired, "dropped": dropped}
        voided = self.database.transact(
            lambda c: blocks.void(c, block, reason=reason, consume=consume, now=self.clock.now(), **left_out),
            landed=lambda c: _is_decided(c, block),
        )
        faults.reach("flush.released")
        if not voided:
            return self._as_decided_by_another(block)
        if not consume:
            return None
        duplicates = len(block.range) - expired - dropped
        return _Decided(block, rows=0, duplicates=duplicates, snapshot=None, expired=expired, dropped=dropped)

    def _as_decided_by_another(self, block: Block) -> _Decided | None:
        """Another process settled this very block while we did: its word stands, and it counted the rows."""
        found = self.database.read(lambda c: blocks.get(c, block.id))
        if found is None or found.state == "reserved":
            raise Corrupt(
                f"Block {block.range} of {block.dataset!r} lost its record.",
                hint="Keep the store as it is, and run `floodmark fsck`.",
            )
        return None if found.state == "void" else _Decided(found)

    def _stats(
        self, block: Block, segments: Sequence[Segment], declared: Dataset, state: TableState
    ) -> tuple[list[PartitionStats], int]:
        """Rows and checksum per partition. Where every row landed the segments' own figures are the table's."""
        landed = next((s for s in state.lineage if s.block == block.id), None)
        if landed is not None and landed.added_rows == len(block.range):
            return self._stats_of_segments(block, segments), landed.added_rows
        stats = queries.stats(
            self.lake, state.name, snapshot=state.lineage[0].id, within=block.range, partition_by=declared.partition_by
        )
        return stats, sum(item.tally.rows for item in stats)

    def _stats_of_segments(self, block: Block, segments: Sequence[Segment]) -> list[PartitionStats]:
        parts = self.database.read(lambda c: segment_records.partitions_of(c, [s.id for s in segments]))
        result: dict[str, PartitionStats] = {}
        for segment in segments:
            start = block.range.after + 1 + (segment.block_offset or 0)
            for part in parts.get(segment.id, []):
                new = PartitionStats(part.partition, part.tally, start + part.first_row, start + part.last_row)
                old = result.get(part.partition)
                result[part.partition] = new if old is None else _together(old, new)
        return list(result.values())

    def _remove_segments(self, segments: Sequence[Segment]) -> None:
        directories = set()
        for segment in segments:
            path = self.segments.path(segment.path)
            path.unlink(missing_ok=True)
            directories.add(path.parent)
            faults.reach("flush.segment_removed")
        for directory in directories:
            sync_directory(directory)

    # ── recovery ─────────────────────────────────────────────────────────────────────────────────────────────────

    def settle(self, dataset: str) -> list[_Decided]:
        """I8: decide the undecided block that somebody left, whoever it was, of a dataset that is in order (I10)."""
        self.recover(dataset)
        return self._settle(dataset)

    def _settle(self, dataset: str) -> list[_Decided]:
        """I8. There is at most one."""
        block = self.database.read(lambda c: blocks.undecided(c, dataset))
        if block is None:
            return []
        declared = self.database.read(lambda c: datasets.get(c, dataset))
        segments = self.database.read(lambda c: segment_records.of_block(c, block.id))
        state = table_of(self.database, self.lake, declared, block.base)
        outcome = self._verdict(block, declared, state)
        if outcome is Verdict.LANDED and state is not None:
            decided = self._record(block, segments, declared, state)
        elif outcome is Verdict.VOID:
            decided = self._void(block, reason="another commit came first", consume=False)
        else:
            decided = self._commit(block, segments, declared)
        return [] if decided is None else [decided]

    # ── failures ─────────────────────────────────────────────────────────────────────────────────────────────────

    def block_off(self, dataset: str) -> Block | None:
        """U34: let no request of the undecided block land any more, and decide it; None if there is none.

        I4: what the barrier said is no verdict either. The table is looked at afterwards, and the request that is under
        way may have come first: then the block is committed.
        """
        block = self.database.read(lambda c: blocks.undecided(c, dataset))
        if block is None:
            return None
        declared = self.database.read(lambda c: datasets.get(c, dataset))
        error: Exception | None = None
        faults.reach("barrier.sending")
        try:
            own = declared.of_generation(block.base.generation)
            self.lake.append(Barrier(own.table_name, block.id, block.base, block.range.through))
        except Exception as unclear:  # noqa: BLE001 - I4
            error = unclear
        faults.reach("barrier.sent")
        state = table_of(self.database, self.lake, declared, block.base)
        outcome = self._verdict(block, declared, state)
        if outcome is Verdict.OPEN:
            raise Retryable(
                f"Block {block.range} of {dataset!r} is undecided, and could still land"
                + (f": {reason_of(error)}." if error else "."),
                hint="Run it again when the lake can be written to.",
            ) from error
        segments = self.database.read(lambda c: segment_records.of_block(c, block.id))
        if outcome is Verdict.LANDED and state is not None:
            self._record(block, segments, declared, state)
        else:
            if state is not None:
                # I7: taken back by a loss of power, the barrier would let a late request land behind a void block.
                self.lake.sync(state, since=declared.synced_snapshot)
            self._void(block, reason="it was given up, and an append without rows came first", consume=False)
        return self.database.read(lambda c: blocks.get(c, block.id))

    def _isolated(self, dataset: str, error: FloodmarkError, careful: _Careful) -> bool:
        """U34: after a failure, whether it is worth going on: in smaller blocks, or without a segment that is alone in
        failing.

        Only where others wait behind what fails, and where it has failed like this before, or for want of memory.
        """
        if isinstance(error, Permanent | OutcomeUnknown | CommitConflict) or careful.splits >= SPLITS_MAX:
            return False
        alike = careful.alike + 1 if careful.gist == problems.gist_of(str(error)) else 1
        full = alike == 1 and any(word in str(error) for word in _MEMORY)
        block = self.database.read(lambda c: blocks.undecided(c, dataset))
        if block is None or not (full or _is_due(alike) or careful.splits):
            return False
        own = self.database.read(lambda c: segment_records.of_block(c, block.id))
        waiting = self.database.read(lambda c: segment_records.sealed(c, dataset))
        others = [one for one in waiting if one.block is None and one.set_aside is None]
        alone = len(own) == 1
        if alone and not others and not careful.others_went:
            self._acquit(careful)  # all have failed alone: it is not the segments' fault
            return False
        try:
            decided = self.block_off(dataset)
        except FloodmarkError:
            self._acquit(careful)  # the table takes nothing: it is not the segments' fault
            return False
        careful.splits += 1
        careful.segments_max = max(1, len(own) // 2)
        if not alone or decided is None or decided.state == "committed":
            return True
        reason = f"it could not be committed, also alone: {error.message}"
        careful.suspects.append(own[0].id)
        return self.database.transact(lambda c: segment_records.set_aside(c, own[0].id, reason))

    def _acquit(self, careful: _Careful) -> None:
        """Nothing shows that it was the fault of the segments that failed alone: they wait like the others."""
        for one in careful.suspects:
            self.database.transact(partial(segment_records.set_aside, id=one, reason=None))
        careful.suspects.clear()

    def _remember(self, dataset: str, error: Exception, careful: _Careful) -> None:
        """I10. Not being able to write it down must not hide the error itself."""
        if isinstance(error, UnknownDataset):
            return
        told = str(error) if isinstance(error, FloodmarkError) else reason_of(error)
        with contextlib.suppress(FloodmarkError):
            self.database.transact(
                lambda c: problems.record(c, dataset, told, now=self.clock.now(), segments_max=careful.segments_max)
            )

    def _left_behind(self, dataset: str) -> tuple[str, ...]:
        """What is acknowledged and was not committed by a flush that went to its end."""
        waiting = self.database.read(lambda c: segment_records.sealed(c, dataset))
        found = [(one, one.set_aside or self.segments.damage(one.path, one.bytes)) for one in waiting]
        bad = [(one, reason) for one, reason in found if reason]
        lines = [f"Segment {one.id} of {dataset!r} ({one.rows} rows) was left behind: {why}" for one, why in bad]
        if not lines:
            return ()
        more = [f"… and {len(lines) - NAMED_MAX} more segments."] if len(lines) > NAMED_MAX else []
        advice = (
            "Everything else is committed. `floodmark fsck` tells more, `floodmark fsck --repair` offers what to do."
        )

        return (*lines[:NAMED_MAX], *more, advice)


def _is_due(alike: int) -> bool:
    """At the third failure of a kind, the sixth, the twelfth and so on: looking for a segment costs commits."""
    times, rest = divmod(alike, ALIKE_MAX)
    return rest == 0 and times.bit_count() == 1


def _span(segment: Segment) -> tuple[int, int] | None:
    if segment.event_min is None or segment.event_max is None:
        return None
    return segment.event_min, segment.event_max


def _is_decided(connection: Connection, block: Block) -> bool:
    found = blocks.get(connection, block.id)
    return found is not None and found.state != "reserved"


def _check_whole(block: Block, state: TableState) -> None:
    """I11: what a commit was to bring is what it brought. Not recorded, it is read by nobody, and its segments stay."""
    landed = next((snapshot for snapshot in state.lineage if snapshot.block == block.id), None)
    if landed is not None and landed.announced_rows not in (None, landed.added_rows):
        raise Corrupt(
            f"The commit of block {block.range} of {block.dataset!r} has {landed.added_rows} rows instead of "
            f"{landed.announced_rows}.",
            hint="It is not recorded, and the rows are safe in the spool. Keep the store as it is, and report this.",
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


def _report(dataset: str, decided: Sequence[_Decided], *, quarantined: int) -> FlushReport:
    done = [item for item in decided if item.rows or item.duplicates or item.expired or item.dropped]
    if not done:
        return FlushReport(dataset, quarantined=quarantined)
    ranges = [item.block.range for item in done]
    return FlushReport(
        dataset,
        rows=sum(item.rows for item in done),
        duplicates=sum(item.duplicates for item in done),
        block=SequenceRange(min(r.after for r in ranges), max(r.through for r in ranges)),
        snapshot_id=next((item.snapshot for item in reversed(done) if item.snapshot is not None), None),
        blocks=len(done),
        quarantined=quarantined,
        expired=sum(item.expired for item in done),
        dropped=sum(item.dropped for item in done),
        settle_problem=next((item.problem for item in done if item.problem is not None), None),
    )
