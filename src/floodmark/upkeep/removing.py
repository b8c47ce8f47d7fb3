"""How rows go, for retention and purge alike. The order of every step is the point:

    plan (recorded) → raise the table's max-seq → delete → make durable → record → expire snapshots → end

Whatever dies in between, the next retention or purge of the dataset finds the operation and goes on with it: the same
selection names the same rows, and deleting them again removes nothing more (U12).

- U15 Every delete is bounded by the horizon: the rows of an undecided block, by which its commit would be recognised,
  are never among those that go. The table's own `max-seq` is raised first, so that no number is ever given twice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy import Connection

from floodmark import faults
from floodmark.clock import Clock
from floodmark.commit import TableState
from floodmark.control import datasets, generations, removals
from floodmark.control.blocks import BlockUndecided
from floodmark.control.database import Database
from floodmark.control.datasets import Dataset
from floodmark.control.removals import Operation
from floodmark.errors import Retryable
from floodmark.flush import Flusher
from floodmark.lake.generations import find_table
from floodmark.lake.table import Lake
from floodmark.removal import Selection, Stretch
from floodmark.sequence import SequenceRange, Tally
from floodmark.upkeep.expiry import Expiry

PLANS_MAX = 20
"""How often a plan gives way to a flush that has just begun."""
DELETES_MAX = 5
"""How often a delete is tried beside other commits."""


@dataclass(frozen=True, slots=True)
class Gone:
    """What an operation has removed."""

    rows: int
    bytes_freed: int


@dataclass(slots=True)
class Remover:
    """Carries removals out. Any number of processes may try at once; each step is guarded or harmless to repeat."""

    database: Database
    lake: Lake
    flusher: Flusher
    clock: Clock

    def tables(self, declared: Dataset) -> list[str]:
        """All tables that may hold rows of a dataset: those of retired generations too."""
        return [declared.table_name, *self.database.read(lambda c: generations.retired_tables(c, declared.name))]

    def ready(self, dataset: str) -> Dataset:
        """Bring the dataset into order before anything is decided about it, and end what another left unfinished."""
        self.flusher.recover()
        self.flusher.settle(dataset)
        declared = self.database.read(lambda c: datasets.get(c, dataset))
        unfinished = self.database.read(lambda c: removals.unfinished(c, dataset))
        if unfinished is not None:
            self.carry_out(unfinished)
        return declared

    def doomed(self, declared: Dataset, selection: Selection, *, cuts: tuple[int, ...]) -> dict[str, list[Stretch]]:
        """The rows that a selection names, by partition, counted apart between the cuts."""
        declared, state = find_table(self.database, self.lake, declared)
        if state is None or state.head is None or selection.through == 0:
            return {}
        figures = self.lake.doomed(
            state.name,
            snapshot=state.head,
            selection=selection,
            schema=declared.schema,
            partition_by=declared.partition_by,
            cuts=cuts,
        )
        found: dict[str, list[Stretch]] = {}
        for _, item in figures:
            stretch = Stretch(SequenceRange(item.first_seq - 1, item.last_seq), item.tally)
            found.setdefault(item.partition, []).append(stretch)
        return found

    def plan(self, dataset: str, work: Callable[[Connection], Operation | None]) -> Operation | None:
        """Run a planning transaction; while a flush is under way it is settled first (U13)."""
        for _ in range(PLANS_MAX):
            try:
                planned = self.database.transact(work)
            except BlockUndecided:
                self.flusher.settle(dataset)
                continue
            faults.reach("removal.planned")
            return planned
        raise Retryable(f"Dataset {dataset!r} is being flushed all the time.", hint="Run it again.")

    def carry_out(self, operation: Operation) -> Gone:
        """From `planned` to `done`, from wherever it stands."""
        declared = self.database.read(lambda c: datasets.get(c, operation.dataset))
        tables = self.tables(declared)
        before = sum(self.lake.stored_bytes(table) for table in tables)
        rows = sum((part.tally for part in self.database.read(lambda c: removals.parts_of(c, operation))), Tally()).rows
        if operation.state == "planned":
            for table in tables:
                self._delete(table, declared, operation)
            self._record(declared, operation)
        self._expiry().expire(declared.name, tables)
        faults.reach("removal.expired")
        self.database.transact(lambda c: removals.end(c, operation, now=self.clock.now()))
        return Gone(rows, max(0, before - sum(self.lake.stored_bytes(table) for table in tables)))

    # ── the steps ────────────────────────────────────────────────────────────────────────────────────────────────

    def _delete(self, table: str, declared: Dataset, operation: Operation) -> None:
        selection = operation.selection
        if self.lake.load(table) is None:
            return
        self.lake.raise_max_seq(table, selection.through)  # U15
        faults.reach("removal.max_seq_raised")
        failed: Retryable | None = None
        for _ in range(DELETES_MAX):
            if not self._left(table, declared, selection):
                faults.reach("removal.deleted")
                return
            try:
                self.lake.remove(table, selection=selection, schema=declared.schema, partition_by=declared.partition_by)
            except Retryable as error:  # another commit came in between, or the answer was lost: look again
                failed = error
        if self._left(table, declared, selection):
            raise Retryable(
                f"Rows of {declared.name!r} could not be deleted beside other commits.", hint="Run it again."
            ) from failed
        faults.reach("removal.deleted")

    def _left(self, table: str, declared: Dataset, selection: Selection) -> bool:
        state = self.lake.load(table)
        return (
            state is not None
            and state.head is not None
            and bool(
                self.lake.doomed(
                    table,
                    snapshot=state.head,
                    selection=selection,
                    schema=declared.schema,
                    partition_by=declared.partition_by,
                )
            )
        )

    def _record(self, declared: Dataset, operation: Operation) -> None:
        state = self.make_durable(declared)  # U2: before the old files go
        self.database.transact(
            lambda c: removals.finish(
                c, operation, synced_snapshot=None if state is None else state.head, now=self.clock.now()
            )
        )
        faults.reach("removal.recorded")

    def make_durable(self, declared: Dataset) -> TableState | None:
        """See to it that a table's newest files are on the disk, and on record as such."""
        return self._expiry().make_durable(declared)

    def _expiry(self) -> Expiry:
        return Expiry(self.database, self.lake, self.flusher, self.clock)
