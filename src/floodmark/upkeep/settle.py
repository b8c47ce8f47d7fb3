"""Settling again: what a dataset's settle function knows by now of rows that are committed.

    ask the function → record what goes → one commit: new values in, collapsed and dropped rows out → durable, recorded

- B7 Rows are settled again by one commit that lands only if nothing was appended since the function was asked, and
  beside no undecided block. What goes is recorded before, like any removal (U12): a crash leaves the commit done or
  not, and whoever finds the record removes the same rows.
- B8 Of two rows that turn out to be one the lower number stays. No row that is on its way to a sink goes (U11): then
  all of it waits for the next time.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from sqlalchemy import Connection

from floodmark import faults
from floodmark.control import datasets, removals
from floodmark.control.datasets import Dataset
from floodmark.control.removals import Operation
from floodmark.errors import Retryable
from floodmark.removal import Selection, cuts_of, judge
from floodmark.settlement import CHANGED_MAX, Resettled, Resettling
from floodmark.upkeep.needs import needs_of
from floodmark.upkeep.removing import Remover


@dataclass(frozen=True, slots=True)
class SettledAgain:
    """What became of committed rows."""

    changed: int = 0
    """Rows with other values than before."""
    collapsed: int = 0
    """Rows that turned out to be another one, and are gone."""
    dropped: int = 0
    """Rows that the function left out, and that are gone."""
    problem: str | None = None
    """Why nothing was done."""


@dataclass(slots=True)
class Resettler:
    """Settles committed rows."""

    remover: Remover
    changed_max: int = CHANGED_MAX

    def settle(self, dataset: str) -> SettledAgain:
        """Ask the dataset's function once more; nothing, if it has none."""
        declared = self.remover.database.read(lambda c: datasets.get(c, dataset))
        if declared.settle is None:
            return SettledAgain()
        self.remover.ready(dataset)
        with self.remover.flusher.quietly_alone(dataset):
            self.remover.flusher.settle(dataset)
            declared = self.remover.database.read(lambda c: datasets.get(c, dataset))
            found = self._asked(declared)
            if found.problem is not None or not (found.changed or found.gone):
                return SettledAgain(problem=found.problem)
            return self._carry_out(declared, found)

    def _asked(self, declared: Dataset) -> Resettled:
        state = self.remover.lake.load(declared.table_name)
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
            self.changed_max,
            any_time=declared.identity_scope == datasets.ALL,
            by_content=declared.by_content,
        )
        return self.remover.lake.resettle(request)

    def _carry_out(self, declared: Dataset, found: Resettled) -> SettledAgain:
        operation = None
        if found.gone:
            operation = self._planned(declared, found)
            if operation is None:
                return SettledAgain(problem="Rows that are to go are on their way to a sink: settle again later.")
        self.remover.lake.raise_max_seq(declared.table_name, declared.horizon)  # U15: the newest row may go
        faults.reach("settle.planned")
        failed: Retryable | None = None
        try:
            found.commit()
        except Retryable as error:  # it may have landed all the same: what was recorded is seen to its end
            failed = error
        faults.reach("settle.committed")
        if operation is not None:
            self.remover.carry_out(operation)
        elif failed is None:
            self.remover.make_durable(declared)
        if failed is not None:
            return SettledAgain(collapsed=len(found.collapsed), dropped=len(found.dropped), problem=failed.message)
        return SettledAgain(found.changed, len(found.collapsed), len(found.dropped))

    def _planned(self, declared: Dataset, found: Resettled) -> Operation | None:
        """B8: what goes, on record; None if some of it is under way."""
        selection = Selection(declared.horizon, numbers=found.gone)
        needs = self.remover.database.read(lambda c: needs_of(c, declared))
        doomed = self.remover.doomed(declared, selection, cuts=cuts_of(needs.everyone, through=selection.through))

        def work(connection: Connection) -> Operation | None:
            removals.check_decided(connection, declared.name)
            now = needs_of(connection, declared)
            # Its twin is what every sink gets, so no sink needs the one that goes.
            verdict = judge(doomed, now.by_partition, given_up=list(now.names))
            if verdict.spared or removals.is_rebuilding(connection, declared.name):
                return None
            operation = Operation(uuid.uuid4().hex, declared.name, "settle", "planned", selection)
            removals.plan(
                connection,
                operation,
                parts=verdict.parts,
                given_up=verdict.forfeits,
                reason="settled",
                now=self.remover.clock.now(),
            )
            return operation

        return self.remover.plan(declared.name, work)
