"""How committed rows are removed or changed, by retention, purge and settling again. The order of steps is the point:

    count ─▶ plan (recorded) ─▶ raise the table's max-seq ─▶ delete ─▶ make durable ─▶ record ─▶ expire snapshots ─▶ end
                                              settle: commit ─▶ verdict: make durable ─▶ record, or drop

After a crash the next process finds the operation and completes it: the same selection names the
same rows, and deleting them again removes nothing more (U12).

- U15 Every delete is bounded by the horizon: the rows of an undecided block, by which its commit would be recognised,
  are never among those that go. The table's own `max-seq` is raised first, so that no number is ever given twice.
- U17 Rows are counted in one table state, and the plan is valid only if no operation began or ended since. What is
  recorded in the end was counted in the state right before the commit that took the rows.
- U18 A settlement is never carried out by anything but its own commit. The table says whether that has landed; where it
  may still land, a commit that changes nothing supersedes it.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from sqlalchemy import Connection

from floodmark import faults, removal
from floodmark.commit.flush import decide_beside_flushes
from floodmark.commit.protocol import Snapshot, TableState, Verdict
from floodmark.commit.recovery import decide
from floodmark.control import datasets, generations, removals
from floodmark.control.blocks import BlockUndecided
from floodmark.control.datasets import Dataset
from floodmark.control.removals import Operation, RowsMoved
from floodmark.engine import Engine
from floodmark.errors import Permanent, Retryable, reason_of
from floodmark.lake import inventory, queries
from floodmark.lake.generations import find_table
from floodmark.maintenance.expiry import expire_snapshots, make_durable
from floodmark.maintenance.pending_deliveries import Needs, Position, needs_of, positions_of
from floodmark.removal import Part, Selection, Stretch, cuts_of
from floodmark.sequence import SequenceRange, Tally
from floodmark.settlement import Resettling, verdict

PLANS_MAX = 20
"""How often a plan is retried after a flush."""
DELETES_MAX = 5
"""How often a delete is tried beside other commits."""
DECISIONS_MAX = 5
"""How often a settlement is searched for, and superseded, beside other commits."""


@dataclass(frozen=True, slots=True)
class Records:
    """The records of one instant, read before the table is read (U17)."""

    declared: Dataset
    needs: Needs
    positions: tuple[Position, ...]
    moment: int


@dataclass(frozen=True, slots=True)
class Counted:
    """The rows that a selection names in one table state."""

    state: TableState | None
    stretches: dict[str, list[Stretch]]
    """By partition, counted apart between the cuts."""
    filters: frozenset[str] = frozenset()

    @property
    def base(self) -> int | None:
        return None if self.state is None else self.state.head

    @property
    def table_uuid(self) -> str | None:
        return None if self.state is None else self.state.uuid


@dataclass(frozen=True, slots=True)
class Gone:
    """What an operation has removed."""

    parts: tuple[Part, ...] = ()
    bytes_freed: int = 0
    landed: bool = True
    """False: its commit never landed, and nothing has changed."""

    @property
    def rows(self) -> int:
        return sum((part.tally for part in self.parts), Tally()).rows


def tables_of(engine: Engine, declared: Dataset) -> list[str]:
    """All tables that may hold rows of a dataset: those of retired generations too."""
    return [declared.table_name, *engine.database.read(lambda c: generations.retired_tables(c, declared.name))]


def prepare(engine: Engine, dataset: str) -> Dataset:
    """Bring the dataset into order before anything is decided about it, and end what another left unfinished."""
    decide_beside_flushes(engine, dataset)
    end_unfinished(engine, dataset)
    return engine.database.read(lambda c: datasets.get(c, dataset))


def end_unfinished(engine: Engine, dataset: str) -> None:
    """Bring to its end what another began: there is one operation at a time."""
    unfinished = engine.database.read(lambda c: removals.unfinished(c, dataset))
    if unfinished is not None:
        carry_out(engine, unfinished)


@contextlib.contextmanager
def retry_if_changed(engine: Engine, records: Records) -> Iterator[None]:
    """U17: leave this block, to count again, if other operations began or ended since the records were read."""
    try:
        yield
    except RowsMoved:
        return
    except Retryable:  # they may have removed what was read
        if engine.database.read(lambda c: removals.moment(c, records.declared.name)) == records.moment:
            raise


def read_records(engine: Engine, dataset: str) -> Records:
    """U17: the records, read before the table."""

    def work(connection: Connection) -> Records:
        declared = datasets.get(connection, dataset)
        needs, positions = needs_of(connection, declared), positions_of(connection, declared)
        return Records(declared, needs, tuple(positions), removals.moment(connection, dataset))

    return engine.database.read(work)


def count_rows(engine: Engine, records: Records, selection: Selection, *, state: TableState | None = None) -> Counted:
    """The rows that a selection names, counted apart at the positions of the sinks, and by the sinks' filters.

    In a state that was loaded after the records, or in the newest.
    """
    declared = records.declared
    if state is None:
        declared, state = find_table(engine.database, engine.lake, declared)
    if state is None or state.head is None or selection.through == 0:
        return Counted(state, {}, records.needs.filters)
    cuts = {*cuts_of(records.needs.everyone, through=selection.through)}
    cuts |= {end for item in records.positions for end in (item.delivered.after, item.delivered.through)}
    inside = sorted(cut for cut in cuts if 0 < cut < selection.through)
    found = _stretches(engine, declared, state, state.head, selection, cuts=inside, filters=records.needs.filters)
    faults.reach("removal.counted")
    return Counted(state, found, records.needs.filters)


def plan_operation(engine: Engine, dataset: str, work: Callable[[Connection], Operation | None]) -> Operation | None:
    """Run a planning transaction; an undecided block is decided first (U13).

    Under the flush lock: otherwise it could be the block of a flush on this machine that is not finished.
    """
    for _ in range(PLANS_MAX):
        try:
            planned = engine.database.transact(work)
        except BlockUndecided:
            decide(engine, dataset)
            continue
        faults.reach("removal.planned")
        return planned
    raise Retryable(f"Dataset {dataset!r} is flushed too often for this operation.", hint="Run it again.")


def record_plan(
    engine: Engine,
    connection: Connection,
    records: Records,
    verdict: removal.Verdict,
    *,
    kind: str,
    selection: Selection,
    counted: Counted,
    reason: str,
    touching: Mapping[str, SequenceRange] | None = None,
) -> Operation:
    """U12: the operation, entered with everything that it will remove. For the rest see `removals.plan`."""
    operation = Operation(
        uuid.uuid4().hex, records.declared.name, kind, "planned", selection, counted.table_uuid, counted.base
    )
    removals.plan(
        connection,
        operation,
        seen=records.moment,
        parts=verdict.parts,
        given_up=verdict.forfeits,
        reason=reason,
        now=engine.clock.now(),
        touching=touching,
    )
    return operation


def carry_out(engine: Engine, operation: Operation) -> Gone:
    """Complete an operation, from any of its states."""
    if operation.kind == "settle":
        return _decide_operation(engine, operation)
    declared = engine.database.read(lambda c: datasets.get(c, operation.dataset))
    tables = tables_of(engine, declared)
    before = sum(inventory.stored_bytes(engine.lake, table) for table in tables)
    if operation.state == "planned":
        for table in tables:
            _delete(engine, table, declared, operation)
        _record_gone(engine, declared, operation, partial(taken_rows, engine))
    decide_beside_flushes(engine, declared.name)
    expire_snapshots(engine, declared.name, tables)
    faults.reach("removal.expired")
    _end_operation(engine, operation)
    parts = tuple(engine.database.read(lambda c: removals.parts_of(c, operation)))
    return Gone(parts, max(0, before - sum(inventory.stored_bytes(engine.lake, table) for table in tables)))


def _delete(engine: Engine, table: str, declared: Dataset, operation: Operation) -> None:
    selection = operation.selection
    if engine.lake.load(table) is None:
        return
    engine.lake.ensure(table, create=False, max_seq=selection.through)  # U15
    faults.reach("removal.max_seq_raised")
    failed: Retryable | None = None
    for _ in range(DELETES_MAX):
        if not _left(engine, table, declared, operation):
            faults.reach("removal.deleted")
            return
        try:
            engine.lake.remove(table, selection=selection, schema=declared.schema, partition_by=declared.partition_by)
        except Retryable as error:  # another commit came in between, or the answer was lost: read again
            failed = error
    if _left(engine, table, declared, operation):
        raise Retryable(
            f"Rows of {declared.name!r} could not be deleted because of concurrent commits.", hint="Run it again."
        ) from failed
    faults.reach("removal.deleted")


def _left(engine: Engine, table: str, declared: Dataset, operation: Operation) -> bool:
    state = engine.lake.load(table)
    if state is None or state.head is None:
        return False
    if state.uuid == operation.table_uuid and state.head == operation.base:
        return True  # they were counted in this very state
    return bool(_stretches(engine, declared, state, state.head, operation.selection))


def taken_rows(engine: Engine, declared: Dataset, operation: Operation) -> list[Part] | None:
    """U17: what the delete took, counted in the state before it; None if it is what was planned.

    Operations exclude each other, so since the base nothing else has deleted rows or changed them.
    """
    planned = engine.database.read(lambda c: removals.parts_of(c, operation))
    state = engine.lake.load(declared.table_name)
    since = None if state is None or state.uuid != operation.table_uuid else state.since(operation.base)
    if state is None or since is None or operation.base is None:
        return None  # a restored control database: its history is lost, and only the plan is known
    deletes = [one for one in since if one.operation in ("delete", "overwrite") and one.block is None]
    before = deletes[-1].parent if deletes else state.head
    if before not in {one.id for one in state.lineage}:
        return None
    taken = _stretches(engine, declared, state, before, operation.selection) if deletes and before else {}
    if _tallies(Part(key, item.range, item.tally) for key, items in taken.items() for item in items) == _tallies(
        planned
    ):
        return None
    return _parts(engine, declared, state, before, operation, planned) if taken and before else []


def _parts(
    engine: Engine, declared: Dataset, state: TableState, snapshot: int, operation: Operation, planned: list[Part]
) -> list[Part]:
    """What a selection names in a snapshot, counted apart where it was when it was planned."""
    cuts = sorted({end for part in planned for end in (part.range.after, part.range.through) if end})
    inside = [cut for cut in cuts if cut < operation.selection.through]
    filters = engine.database.read(lambda c: removals.filters_of(c, operation))
    found = _stretches(engine, declared, state, snapshot, operation.selection, cuts=inside, filters=filters)
    return [Part(key, item.range, item.tally, item.filtered) for key in sorted(found) for item in found[key]]


def _record_gone(
    engine: Engine, declared: Dataset, operation: Operation, counted: Callable[[Dataset, Operation], list[Part] | None]
) -> None:
    state = make_durable(engine, declared)  # U2: before the old files go
    parts = counted(declared, operation)
    engine.database.transact(
        lambda c: removals.finish(
            c,
            operation,
            synced_snapshot=None if state is None else state.head,
            now=engine.clock.now(),
            parts=parts,
        )
    )
    faults.reach("removal.recorded")


def _end_operation(engine: Engine, operation: Operation) -> None:
    engine.database.transact(lambda c: removals.end(c, operation, now=engine.clock.now()))


def _decide_operation(engine: Engine, operation: Operation) -> Gone:
    """U18: by the table. One that may still land is superseded, so that it cannot, and the table is read again."""
    declared = engine.database.read(lambda c: datasets.get(c, operation.dataset))
    failed: Exception | None = None
    for _ in range(DECISIONS_MAX):
        state = engine.lake.load(declared.table_name)
        outcome, landed = verdict(operation.id, table_uuid=operation.table_uuid, base=operation.base, state=state)
        if operation.state == "removed" or outcome is Verdict.LANDED:
            return _landed(engine, declared, operation, state, landed)
        if outcome is Verdict.VOID:
            return _void(engine, declared, operation, state)
        if state is not None and state.head is not None:
            failed = _supersede(engine, declared, state.name, state.head)
    raise Retryable(
        f"It is not known yet whether rows of {declared.name!r} were settled again"
        f"{'' if failed is None else f': {reason_of(failed)}'}.",
        hint="Nothing is lost. Compact it again.",
    ) from failed


def _supersede(engine: Engine, declared: Dataset, table: str, snapshot: int) -> Exception | None:
    try:
        engine.lake.resettle(Resettling(table, snapshot, declared.horizon, declared.schema, settle=None)).commit(None)
    except Exception as error:  # noqa: BLE001 - U18: whatever it was, the table decides, not the error
        return error
    finally:
        faults.reach("settle.superseded")
    return None


def _landed(
    engine: Engine, declared: Dataset, operation: Operation, state: TableState | None, landed: Snapshot | None
) -> Gone:
    def went(declared: Dataset, operation: Operation) -> list[Part] | None:
        """U17: the named rows that were there before the commit, and are not there after it."""
        planned = engine.database.read(lambda c: removals.parts_of(c, operation))
        known = set() if state is None else {one.id for one in state.lineage}
        if state is None or landed is None or landed.parent not in known or landed.parent is None or not planned:
            return None
        before = _parts(engine, declared, state, landed.parent, operation, planned)
        left = _parts(engine, declared, state, landed.id, operation, planned)
        return None if _tallies(before) == _tallies(planned) and not left else before

    if operation.state == "planned":
        _record_gone(engine, declared, operation, went)
    _end_operation(engine, operation)
    return Gone(tuple(engine.database.read(lambda c: removals.parts_of(c, operation))))


def _void(engine: Engine, declared: Dataset, operation: Operation, state: TableState | None) -> Gone:
    """Its commit is not in the table's history, and can never come there."""
    if _went_unseen(engine, declared, operation, state):
        return _landed(engine, declared, operation, state, None)
    make_durable(engine, declared)  # what supersedes it must survive a power loss
    engine.database.transact(lambda c: removals.drop(c, operation))
    faults.reach("settle.dropped")
    return Gone(landed=False)


def _went_unseen(engine: Engine, declared: Dataset, operation: Operation, state: TableState | None) -> bool:
    """Whether the rows were removed by a commit that is no longer known: a restored control database, or an operation
    that an earlier version planned.
    """
    if state is None or state.head is None or not engine.database.read(lambda c: removals.parts_of(c, operation)):
        return False
    known = operation.base is not None and state.uuid == operation.table_uuid
    if known and state.since(operation.base) is not None:
        return False
    return not _stretches(engine, declared, state, state.head, operation.selection)


def _stretches(
    engine: Engine,
    declared: Dataset,
    state: TableState,
    snapshot: int,
    selection: Selection,
    *,
    cuts: Iterable[int] = (),
    filters: Iterable[str] = (),
) -> dict[str, list[Stretch]]:
    def stats(chosen: Selection) -> dict[tuple[SequenceRange, str], Stretch]:
        counted = queries.selected_stats(
            engine.lake,
            state.name,
            snapshot=snapshot,
            selection=chosen,
            schema=declared.schema,
            partition_by=declared.partition_by,
            cuts=tuple(cuts),
        )
        return {
            (between, item.partition): Stretch(SequenceRange(item.first_seq - 1, item.last_seq), item.tally)
            for between, item in counted
        }

    whole = stats(selection)
    by_filter: dict[str, dict[tuple[SequenceRange, str], Stretch]] = {}
    for condition in sorted(filters) if whole else ():
        try:
            by_filter[condition] = stats(selection.also(condition))
        except Permanent:  # it does not fit this dataset, so its sink has got nothing of it
            continue
    found: dict[str, list[Stretch]] = {}
    for (between, partition), item in whole.items():
        filtered = tuple((name, counted.get((between, partition))) for name, counted in by_filter.items())
        found.setdefault(partition, []).append(Stretch(item.range, item.tally, filtered))
    return found


def check_same(counted: Counted, needs: Needs) -> None:
    """`RowsMoved` if there is a filter by now that the rows were not counted by."""
    if not needs.filters <= counted.filters:
        raise RowsMoved("A sink with another filter was added in the meantime.", hint="Run it again.")


def _tallies(parts: Iterable[Part]) -> dict[str, Tally]:
    found: dict[str, Tally] = {}
    for part in parts:
        found[part.partition] = found.get(part.partition, Tally()) + part.tally
    return found
