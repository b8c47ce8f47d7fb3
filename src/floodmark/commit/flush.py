"""Flush: reserve → stamp → commit. The one chokepoint through which every row gets its sequence number.

Terms. A *block* is the range of numbers reserved for one flush. Its *base* is the table's head as it was when the
flush began. The block's rows are appended by a compare-and-swap on that base.

Invariants
- I1 The allocator never goes back: a block starts above everything that carries a number.
- I2 Base before reserve: what is visible at the base was reserved earlier, so it is lower. Hence the order of
  commits is the order of numbers, and the horizon is the end of the last committed block.
- I3 The horizon only rises, and only over decided blocks.
- I4 A block is decided once, and the table decides it. An error, a time-out or a conflict is never a verdict.
- I7 A segment's file is removed only after its rows are durable in the table and its block says so.
- I8 At most one undecided block per dataset; a flush that finds one decides it before it reserves another.
- I10 What is wrong with one dataset is remembered for it alone, and stops nothing else.
- U34 One segment that cannot be committed blocks no other. A block that failed in the same way several times is made
  impossible by a barrier, an append without rows on its base: then it is void, by the table's own history. Its segments
  are tried again in smaller blocks. One that fails alone for lack of memory is replaced by two halves; one that fails
  alone, where another gets through, is set aside, on record.

States of a block, and who makes each transition

    (none) ─reserve_block─▶ reserved ─record_landed─▶ committed   the rows are in the table, durable, recorded
                               │  └────void_block───▶ void        they are not and never will be; segments free again
                               │                       ▲          (also after `raise_barrier`: no request can land then)
                               └──send again: same block, same base

`reserve_block` is here; the other transitions are one block's, in `commit.block`.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from floodmark import faults, meters, traces
from floodmark.commit.block import Decided, commit_block, decide_block, raise_barrier
from floodmark.commit.protocol import Base, TableState
from floodmark.commit.recovery import catch_up, decide, recover, recover_dataset, remember_problem
from floodmark.control import blocks, datasets, problems
from floodmark.control import segments as segment_records
from floodmark.control.blocks import BatchLimits, Block, BlockUndecided
from floodmark.control.datasets import Dataset
from floodmark.control.segments import Segment
from floodmark.engine import Engine
from floodmark.errors import CommitConflict, Corrupt, FloodmarkError, OutcomeUnknown, Paused, Permanent, Retryable
from floodmark.files import advisory_lock, make_directory
from floodmark.lake import inventory
from floodmark.lake.generations import being_rebuilt, find_table
from floodmark.lake.types import quoted
from floodmark.removal import Selection
from floodmark.schema.types import WIDER, ColumnType, ListType, StructType, physical
from floodmark.sequence import SEQUENCE_MAX, SequenceRange
from floodmark.spool.landing import landing_bytes
from floodmark.spool.sealing import SealReport, landing_directory, seal
from floodmark.spool.segments import segment_damage, split_segment

BLOCKS_MAX = 20
"""How many blocks one call may lose to other writers before it fails."""
ALIKE_MAX = 3
"""After this many flushes with the same failure, flush searches for the segment that causes it."""
SPLITS_MAX = 30
"""How many blocks one call gives up in order to find it."""
SPLIT_ROWS_MIN = 8
"""A segment of fewer rows is not split: every split costs a commit that fails."""
NAMED_MAX = 3
"""How many skipped segments a report names."""
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
    """Rows that were not committed because retention or a purge removed rows with the same identity before."""
    dropped: int = 0
    """Rows that the dataset's settle function dropped."""
    settle_problem: str | None = None
    """Why the settle function's result was rejected: the rows were committed unchanged (B6)."""
    problems: tuple[str, ...] = ()
    """What could not be committed, and what to do about it: segments that were skipped, and, in the report of
    several datasets, those that could not be flushed.
    """


@dataclass(slots=True)
class _Backoff:
    """How one call continues after failures: the size of its blocks, and the segments it suspects."""

    segments_max: int | None = None
    alike: int = 0
    """How many flushes before this one failed, and … """
    gist: str = ""
    """… in which way."""
    splits: int = 0
    others_succeeded: bool = False
    """Whether a block was committed since the first of them."""
    suspects: list[int] = field(default_factory=list)
    """Segments that failed alone, and nothing was committed since: it may be the table's fault."""

    def succeeded(self) -> None:
        self.suspects.clear()
        self.others_succeeded = self.splits > 0
        if self.segments_max is not None:
            self.segments_max *= 2


def flush(engine: Engine, dataset: str, *, stop: Callable[[], bool] | None = None) -> FlushReport:
    """Seal and commit all rows acknowledged so far; fewer, if `stop` returns true between two blocks.

    Segments whose files are damaged, and those that are set aside, are skipped: the report names them.
    """
    with traces.span("flush", dataset=dataset) as attribute:
        report = _flush_on_record(engine, dataset, stop=stop)
        attribute("rows", report.rows)
        return report


def flush_all(engine: Engine, *, stop: Callable[[], bool] | None = None) -> FlushReport:
    """Flush every dataset that is not paused. One that fails stops none of the others (I10).

    If none can be flushed, the first error is raised.
    """
    reports: list[FlushReport] = []
    failed: list[FloodmarkError] = []
    for item in engine.database.read(datasets.everyone):
        try:
            if item.paused_at is None:
                reports.append(flush(engine, item.name, stop=stop))
        except FloodmarkError as error:
            failed.append(error)
    if failed and not reports:
        raise failed[0]
    whole = reports[0] if len(reports) == 1 else _sum(reports)
    return replace(whole, problems=(*whole.problems, *map(str, failed)))


def _sum(reports: Sequence[FlushReport]) -> FlushReport:
    ranges = [report.block for report in reports if report.block is not None]
    return FlushReport(
        dataset="*",
        rows=sum(report.rows for report in reports),
        duplicates=sum(report.duplicates for report in reports),
        block=SequenceRange(min(r.after for r in ranges), max(r.through for r in ranges)) if ranges else None,
        snapshot_id=None,
        blocks=sum(report.blocks for report in reports),
        quarantined=sum(report.quarantined for report in reports),
        expired=sum(report.expired for report in reports),
        dropped=sum(report.dropped for report in reports),
        settle_problem=next((report.settle_problem for report in reports if report.settle_problem), None),
        problems=tuple(problem for report in reports for problem in report.problems),
    )


def _flush_on_record(engine: Engine, dataset: str, *, stop: Callable[[], bool] | None) -> FlushReport:
    """The same; a problem is remembered until a flush succeeds (I10)."""
    engine.database.read(lambda c: datasets.get(c, dataset)).check_running()
    before = engine.database.read(lambda c: problems.find(c, dataset))
    backoff = _Backoff() if before is None else _Backoff(before.segments_max, before.failures, before.gist)
    try:
        sealed, done = _flush(engine, dataset, backoff, stop=stop)
        left = _skipped(engine, dataset)
    except Paused:
        raise  # between two blocks: what waits is no problem
    except Exception as error:
        remember_problem(engine, dataset, error, segments_max=backoff.segments_max)
        raise
    if left:
        remember_problem(engine, dataset, Corrupt(" ".join(left)), segments_max=backoff.segments_max)
    elif before is not None:
        engine.database.transact(lambda c: problems.forget(c, dataset))
    return replace(_report(dataset, done, quarantined=sealed.quarantined), problems=left)


def _flush(
    engine: Engine, dataset: str, backoff: _Backoff, *, stop: Callable[[], bool] | None
) -> tuple[SealReport, list[Decided]]:
    if not engine.announced and _has_waiting(engine, dataset):
        engine.announced = True
        engine.lake.prepare()  # beside recovery and sealing
    recover_dataset(engine, dataset)
    sealed = seal(engine, dataset)
    # What is registered from now on is the next flush's: beside a busy writer this one would never end.
    registered = engine.database.read(segment_records.registered_so_far)
    done: list[Decided] = []
    with flush_lock(engine, dataset):
        while True:
            try:
                done.extend(decide_block(engine, dataset))
                while not (stop is not None and stop()):
                    decided = _flush_batch(engine, dataset, registered=registered, backoff=backoff)
                    if decided is None:
                        break
                    backoff.succeeded()
                    done.append(decided)
            except FloodmarkError as error:
                if not _isolated(engine, dataset, error, backoff):
                    raise
            else:
                return sealed, done


def _has_waiting(engine: Engine, dataset: str) -> bool:
    """Whether there is something to commit, sealed or not."""
    engine.database.read(lambda c: datasets.get(c, dataset))  # before its name becomes a path
    if engine.database.read(lambda c: segment_records.sealed(c, dataset)):
        return True
    offsets = engine.database.read(lambda c: segment_records.landing_offsets(c, dataset))
    return landing_bytes(landing_directory(engine, dataset), sealed=offsets) > 0


@contextlib.contextmanager
def flush_lock(engine: Engine, dataset: str) -> Iterator[None]:
    """Wait for another flush on this machine. An optimisation: correctness does not depend on it."""
    directory = engine.root / "spool" / dataset
    make_directory(directory, private=True)
    with advisory_lock(directory / "flush.lock", wait_seconds_max=engine.settings.flush.patience_seconds):
        yield


def decide_beside_flushes(engine: Engine, dataset: str) -> None:
    """Decide a block that was left undecided (I8). A flush on this machine that is not finished decides its own: sent
    from here too, its rows would be written twice, at the same time.
    """
    recover(engine, dataset)
    with flush_lock(engine, dataset):
        decide(engine, dataset)


def _flush_batch(engine: Engine, dataset: str, *, registered: int, backoff: _Backoff) -> Decided | None:
    """Commit the next segments; None when none wait. A void block's segments go with the next one."""
    damaged = {segment.id for segment in _damaged(engine, dataset)}
    for _ in range(BLOCKS_MAX):
        oldest = engine.database.read(lambda c: segment_records.oldest_waiting(c, dataset))
        if oldest is None or oldest > registered:
            return None
        try:
            reserved = reserve_block(engine, dataset, without=damaged, segments_max=backoff.segments_max)
        except BlockUndecided:
            decide_block(engine, dataset)  # I8: another flusher's, begun since we looked
            continue
        if reserved is None:
            return None
        decided = commit_block(engine, reserved.block, reserved.segments, reserved.dataset, fresh=True)
        if decided is not None:
            return decided
        meters.count(meters.COMMIT_CONFLICTS, dataset)
        registered = max(registered, reserved.segments[-1].registered)  # a batch that was started is completed
    raise CommitConflict(
        f"Other processes commit to dataset {dataset!r} faster than this flush can follow.",
        hint="The rows are safe in the spool; flush again.",
    )


def _damaged(engine: Engine, dataset: str) -> list[Segment]:
    """The waiting segments whose files are missing or of another size. Only the size of each file is read."""
    waiting = engine.database.read(lambda c: segment_records.sealed(c, dataset))
    return [one for one in waiting if one.set_aside is None and segment_damage(engine, one.path, one.bytes)]


def reserve_block(
    engine: Engine, dataset: str, *, without: Collection[int], segments_max: int | None
) -> blocks.Reservation | None:
    own = engine.settings.flush
    limits = BatchLimits(own.rows_max, own.bytes_max, own.segments_max)
    if segments_max is not None:
        limits = replace(limits, segments_max=max(1, min(segments_max, limits.segments_max)))
    declared = engine.database.read(lambda c: datasets.get(c, dataset))
    # I2: base before reserve. Read the other way round, a flush that reserved first could commit above a higher
    # block that is already visible, and its rows would be skipped for ever.
    declared, state = _load_or_create(engine, declared)
    base = Base(table_uuid=state.uuid, generation=declared.generation, snapshot=state.head)
    catch_up(engine, declared, state)
    faults.reach("flush.base_loaded")
    block_id = uuid.uuid4().hex
    seen_through = inventory.highest_seq(engine.lake, state)  # not inside: the transaction blocks all other processes
    reserved = engine.database.transact(
        lambda c: blocks.reserve(
            c,
            id=block_id,
            dataset=dataset,
            base=base,
            seen_through=seen_through,
            limits=limits,
            now=engine.clock.now(),
            without=without,
        ),
        landed=lambda c: blocks.get(c, block_id) is not None,
    )
    faults.reach("flush.reserved")
    return reserved


def _load_or_create(engine: Engine, declared: Dataset) -> tuple[Dataset, TableState]:
    if declared.fenced:
        raise being_rebuilt(declared.name)
    declared, state = find_table(engine.database, engine.lake, declared)
    if state is None:
        if declared.horizon:
            # A new one would hide that. Its rows may be there under the name of another generation.
            raise Corrupt(
                f"The table {declared.table_name!r} is missing, and rows up to {declared.horizon} are committed.",
                hint="The rows to flush are safe in the spool. Was the control database restored from a backup of "
                "before a rebuild, or the lake moved? Restore copies that match; `floodmark fsck` reports details.",
            )
        engine.lake.ensure(
            declared.table_name, declared.schema, layout=declared.layout, declaration=declared.declaration
        )
        state = engine.lake.load(declared.table_name)
    elif drop_corrected_columns(engine, declared, state):  # U42: the command that corrected them was interrupted
        state = engine.lake.load(declared.table_name)
    if state is None:
        raise Retryable(f"The table of dataset {declared.name!r} was created, and does not exist.")
    return declared, state


def _isolated(engine: Engine, dataset: str, error: FloodmarkError, backoff: _Backoff) -> bool:
    """U34: after a failure, whether to continue: in smaller blocks, with the halves of a segment, or without a
    segment that is alone in failing.

    Only if it failed in the same way before, or for lack of memory; a segment is left out only if others wait.
    """
    block = engine.database.read(lambda c: blocks.undecided(c, dataset))
    if isinstance(error, Permanent | OutcomeUnknown | CommitConflict) or backoff.splits >= SPLITS_MAX or block is None:
        return False
    own = engine.database.read(lambda c: segment_records.of_block(c, block.id))
    alone = len(own) == 1
    full = any(word in str(error) for word in _MEMORY)
    # A part of the smallest size failed, and nothing was committed since: then it is not the size.
    divisible = full and alone and own[0].rows >= SPLIT_ROWS_MIN and not backoff.suspects
    alike = backoff.alike + 1 if backoff.gist == problems.gist_of(str(error)) else 1
    if not ((full and alike == 1) or _is_due(alike) or backoff.splits):
        return False
    waiting = engine.database.read(lambda c: segment_records.sealed(c, dataset))
    others = [one for one in waiting if one.block is None and one.set_aside is None]
    blameless = alone and not others and not backoff.others_succeeded  # all have failed alone: not the segments' fault
    decided = None if blameless and not divisible else _given_up(engine, dataset)
    if decided is None:
        _clear_suspects(engine, backoff)
        return False
    backoff.splits += 1
    backoff.segments_max = max(1, len(own) // 2)
    if not alone or decided.state == "committed" or (divisible and _split(engine, dataset, own[0].id)):
        return True
    reason = f"it could not be committed, not even alone: {error.message}"
    backoff.suspects.append(own[0].id)
    return not blameless and engine.database.transact(lambda c: segment_records.set_aside(c, own[0].id, reason))


def _given_up(engine: Engine, dataset: str) -> Block | None:
    """The undecided block, decided by a barrier; None if the table takes nothing: it is not the segments' fault."""
    try:
        return raise_barrier(engine, dataset)
    except FloodmarkError:
        return None


def _split(engine: Engine, dataset: str, id: int) -> bool:
    """U34: replace a segment that does not fit the heap by its halves. True also if another process has taken it."""
    declared = engine.database.read(lambda c: datasets.get(c, dataset))
    segment = engine.database.read(lambda c: segment_records.find(c, id))
    if segment is None or split_segment(engine, declared, segment):
        return True
    return not engine.database.read(lambda c: segment_records.is_waiting(c, id))


def _clear_suspects(engine: Engine, backoff: _Backoff) -> None:
    """Nothing shows that it was the fault of the segments that failed alone: they wait like the others."""
    for one in backoff.suspects:
        engine.database.transact(partial(segment_records.set_aside, id=one, reason=None))
    backoff.suspects.clear()


def _skipped(engine: Engine, dataset: str) -> tuple[str, ...]:
    """The acknowledged segments that a complete flush did not commit."""
    waiting = engine.database.read(lambda c: segment_records.sealed(c, dataset))
    found = [(one, one.set_aside or segment_damage(engine, one.path, one.bytes)) for one in waiting]
    bad = [(one, reason) for one, reason in found if reason]
    lines = [f"Segment {one.id} of {dataset!r} ({one.rows} rows) was skipped: {why}" for one, why in bad]
    if not lines:
        return ()
    more = [f"… and {len(lines) - NAMED_MAX} more segments."] if len(lines) > NAMED_MAX else []
    advice = "All other rows are committed. `floodmark fsck` reports why; `floodmark fsck --repair` offers repairs."
    return (*lines[:NAMED_MAX], *more, advice)


def _is_due(alike: int) -> bool:
    """At the third failure of a kind, the sixth, the twelfth and so on: the search for a segment costs commits."""
    times, rest = divmod(alike, ALIKE_MAX)
    return rest == 0 and times.bit_count() == 1


def _report(dataset: str, decided: Sequence[Decided], *, quarantined: int) -> FlushReport:
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


# ── columns whose type was corrected ─────────────────────────────────────────────────────────────────────────────────
# … in the records, and not yet in the table. The records come first: from then on every block is reserved with the new
# type. They change only while the table has no value of the column, so the table's column can be dropped at any time
# later; the next `ensure` adds it with its new type (U42). Whoever finds such a column completes the correction: the
# command itself, or the next flush.


def drop_corrected_columns(engine: Engine, declared: Dataset, state: TableState) -> bool:
    """Drop the table's columns of another type than the records have; whether there were any."""
    found = [
        name
        for name, kind in state.columns
        if name in declared.schema and not _fits(physical(kind), physical(declared.schema.column(name).type))
    ]
    for name in found:
        rows = values_in(engine, declared, state, name)
        if rows:  # nobody writes values of the old type after the correction: somebody else changed the table
            raise Corrupt(
                f"Column {name!r} of table {state.name!r} has another type than dataset {declared.name!r} declares, "
                f"and {rows:,} rows have a value in it.",
                hint="Was the table changed by another program? Do not change the store, and run `floodmark fsck`.",
            )
        engine.lake.ensure(state.name, create=False, drop=[name])
        faults.reach("column.dropped")
    return bool(found)


def values_in(engine: Engine, declared: Dataset, state: TableState, column: str) -> int:
    """How many committed rows have a value in a column."""
    if state.head is None or column not in dict(state.columns):
        return 0
    groups = engine.lake.aggregate(
        state.name,
        snapshot=state.head,
        selection=Selection(SEQUENCE_MAX, where=f"{quoted(column)} IS NOT NULL"),
        schema=declared.schema,
    )
    return sum(group.tally.rows for group in groups)


def _fits(have: ColumnType, want: ColumnType) -> bool:
    """Whether the table has the type, or `ensure` widens it."""
    match have, want:
        case ListType(inner), ListType(wanted):
            return _fits(inner, wanted)
        case StructType(fields), StructType(wanted_fields):
            known = dict(fields)
            return all(name not in known or _fits(known[name], kind) for name, kind in wanted_fields)
    return have == want or WIDER.get(have) == want or WIDER.get(want) == have
