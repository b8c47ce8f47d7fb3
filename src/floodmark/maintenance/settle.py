"""Settling again: a dataset's settle function runs again over committed rows.

    run the function → record the plan → one commit: new values in, collapsed and dropped rows out
      → the table says whether it has landed → durable, recorded; or the plan is dropped

Mostly the function says what it said before. So it runs beside flushes first; only if there is something to change, it
runs again while flushes on this machine wait, because one in between would prevent the commit (B7).

- B7 Rows are settled again by one commit that lands only if nothing was appended since the function ran, and
  beside no undecided block. It is always an operation (U17), decided by the table (U18): removed rows
  are counted with that commit or not at all.
- B8 Of two rows that turn out to be one the lower number stays.
- B9 No row that is being delivered is removed or changed: it waits for the next run.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection

from floodmark import faults
from floodmark.commit.flush import flush_lock
from floodmark.commit.protocol import TableState
from floodmark.commit.recovery import decide
from floodmark.control import datasets, removals
from floodmark.control.datasets import Dataset
from floodmark.control.removals import Operation, RowsMoved
from floodmark.engine import Engine
from floodmark.errors import Retryable, reason_of
from floodmark.maintenance.pending_deliveries import needs_of
from floodmark.maintenance.remover import (
    Counted,
    Records,
    carry_out,
    check_same,
    count_rows,
    plan_operation,
    prepare,
    read_records,
    record_plan,
    retry_if_changed,
)
from floodmark.removal import Selection, judge, kept_back, under_way
from floodmark.sequence import SequenceRange
from floodmark.settlement import CHANGED_MAX, Resettled, Resettling

TRIES_MAX = 5
"""How often the function runs again because rows were removed in the meantime."""


@dataclass(frozen=True, slots=True)
class SettledAgain:
    """What became of committed rows."""

    changed: int = 0
    """Rows with other values than before."""
    collapsed: int = 0
    """Rows that became duplicates, and were removed."""
    dropped: int = 0
    """Rows that the function dropped, and that were removed."""
    waiting: int = 0
    """Rows that are being delivered to a sink: the next run settles them."""
    problem: str | None = None
    """Why nothing was done."""


def settle_again(engine: Engine, dataset: str, *, changed_max: int = CHANGED_MAX) -> SettledAgain:
    """Run the dataset's settle function again, if it has one."""
    declared = engine.database.read(lambda c: datasets.get(c, dataset))
    if declared.settle is None:
        return SettledAgain()
    for attempt in range(TRIES_MAX):
        prepare(engine, dataset)
        if attempt == 0 and (looked := _looked(engine, dataset, changed_max)) is not None:
            return looked
        with flush_lock(engine, dataset):
            decide(engine, dataset)
            records = read_records(engine, dataset)
            with retry_if_changed(engine, records):
                return _once(engine, records, changed_max)
    raise Retryable(f"Rows of {dataset!r} are removed too often for this settlement.", hint="Compact it again.")


def _looked(engine: Engine, dataset: str, changed_max: int) -> SettledAgain | None:
    """The result where there is nothing to change, or None."""
    records = read_records(engine, dataset)
    result: SettledAgain | None = None
    with retry_if_changed(engine, records):
        result = _unchanged(_asked(engine, records, engine.lake.load(records.declared.table_name), changed_max))
        faults.reach("settle.looked")
    return result


def _once(engine: Engine, records: Records, changed_max: int) -> SettledAgain:
    state = engine.lake.load(records.declared.table_name)
    found = _asked(engine, records, state, changed_max)
    faults.reach("settle.asked")
    if (unchanged := _unchanged(found)) is not None:
        return unchanged
    operation = _planned(engine, records, found, state)
    if operation is None:
        return SettledAgain(problem="Rows to change are being delivered to a sink: settle again later.")
    return _carry_out(engine, records.declared, operation, found)


def _unchanged(found: Resettled) -> SettledAgain | None:
    if found.problem is None and found.touched:
        return None
    return SettledAgain(waiting=found.waiting, problem=found.problem)


def _asked(engine: Engine, records: Records, state: TableState | None, changed_max: int) -> Resettled:
    declared = records.declared
    if state is None or state.head is None or declared.settle is None:
        return Resettled()
    request = Resettling(
        declared.table_name,
        state.head,
        declared.horizon,
        declared.schema,
        declared.settle,
        declared.identity,
        declared.event_time,
        declared.partition_by,
        changed_max,
        kept_back(records.needs.by_partition),
        any_time=declared.identity_scope == datasets.ALL,
        by_content=declared.by_content,
    )
    return engine.lake.resettle(request)


def _carry_out(engine: Engine, declared: Dataset, operation: Operation, found: Resettled) -> SettledAgain:
    # U15: the newest row may go.
    engine.lake.ensure(declared.table_name, create=False, max_seq=declared.horizon)
    faults.reach("settle.planned")
    failed: Exception | None = None
    try:
        found.commit(operation.id)
    except Exception as error:  # noqa: BLE001 - U18: whatever it was, the table decides, not the error
        failed = error
    faults.reach("settle.committed")
    if not carry_out(engine, operation).landed:
        what = "Rows were appended in the meantime." if failed is None else f"Nothing was changed: {reason_of(failed)}."
        return SettledAgain(waiting=found.waiting, problem=what)
    return SettledAgain(len(found.changed), len(found.collapsed), len(found.dropped), found.waiting)


def _planned(engine: Engine, records: Records, found: Resettled, state: TableState | None) -> Operation | None:
    """The operation, recorded; None if some of its rows are being delivered."""
    declared = records.declared
    touched = count_rows(engine, records, Selection(declared.horizon, numbers=found.touched), state=state)
    selection = Selection(declared.horizon, numbers=found.gone)
    gone = (
        count_rows(engine, records, selection, state=state)
        if found.gone
        else Counted(touched.state, {}, touched.filters)
    )

    def work(connection: Connection) -> Operation | None:
        removals.check_decided(connection, declared.name)
        now = needs_of(connection, declared)
        check_same(gone, now)
        # B7: rows above the horizon that the commit overwrites up to: they landed before the table was read.
        if datasets.get(connection, declared.name).horizon != declared.horizon:
            raise RowsMoved(f"Rows of {declared.name!r} were committed in the meantime.", hint="Compact it again.")
        if removals.is_rebuilding(connection, declared.name):
            raise Retryable(f"Dataset {declared.name!r} is being rebuilt.", hint="Compact it afterwards.")
        if under_way(touched.stretches, now.by_partition):  # B9: pinned since the function ran
            return None
        # Every sink gets its duplicate, so no sink needs the removed row.
        verdict = judge(gone.stretches, now.by_partition, given_up=list(now.names))
        if verdict.spared:
            raise RowsMoved(f"A sink of {declared.name!r} delivered rows in the meantime.", hint="Compact it again.")
        touching = {
            partition: SequenceRange(items[0].range.after, max(item.range.through for item in items))
            for partition, items in touched.stretches.items()
        }
        return record_plan(
            engine,
            connection,
            records,
            verdict,
            kind="settle",
            selection=selection,
            counted=touched,
            reason="settled",
            touching=touching,
        )

    return plan_operation(engine, declared.name, work)
