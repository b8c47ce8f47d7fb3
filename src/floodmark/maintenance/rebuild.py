"""Rebuild: a dataset is copied into a new generation of its table, and then the pointer is switched.

    take over (epoch + 1) ─▶ name the staging table after the epoch ─▶ copy what is missing, range by range ─▶ compare
      ─▶ fence: in the records, then by renaming the old table ─▶ decide the undecided block against the renamed table
      ─▶ copy the rest, compare, repair until equal ─▶ switch

Terms. The *old* table is the one that readers see; the *staging* table will replace it. An *epoch* is one
process's work on a rebuild: a process that takes over raises it. The tables are copied and compared
(`table_copy`) twice: before the fence, and after it for the rows that came since. Flushes continue until the
fence, and wait after it; readers follow the old table under its other name.

- U20 One rebuild per dataset; every epoch's staging table has a name that was never used.
- U21 Copies are compare-and-swap appends. After an unknown outcome the process takes over from itself: under the
  next epoch's name a late copy cannot land. Otherwise rows that retention removes from both tables could
  return with it after the switch.
- U22 Only a renamed table is fenced. A block is decided by the table that it was reserved on, whatever its name.
- U23 The pointer is switched only if both tables hold the same rows after the fence.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial

from floodmark import faults
from floodmark.commit.flush import flush_lock
from floodmark.commit.protocol import TableState
from floodmark.commit.recovery import catch_up, decide, recover
from floodmark.control import blocks, datasets, generations
from floodmark.control.datasets import Dataset
from floodmark.control.generations import NumberTaken, Rebuild, RemovalUnderWay, TakenOver
from floodmark.engine import Engine
from floodmark.errors import FilesMissing, InvalidSetting, Permanent, Retryable
from floodmark.files import advisory_lock, make_directory
from floodmark.lake import inventory
from floodmark.lake.generations import find_table
from floodmark.layout import Layout
from floodmark.maintenance.remover import end_unfinished
from floodmark.maintenance.table_copy import Copied, Epoch, TableCopy

ATTEMPTS_MAX = 5
"""How often one call takes over from itself."""
TRIES_MAX = 20
"""How often one step is tried beside flushes and removals."""
COPY_ROWS_MAX = 2_000_000
"""How many sequence numbers one copy spans."""
GRACE = timedelta(days=1)
"""How long the table of a retired generation stays for readers that still hold it."""


@dataclass(frozen=True, slots=True)
class RebuildReport:
    """What a rebuild has done so far, and in the end."""

    dataset: str
    generation: int
    layout: Layout
    rows_copied: int = 0
    copies: int = 0
    buckets_repaired: int = 0
    """Stretches of the staging table that differed and were copied again."""
    epochs: int = 1
    """How many turns the rebuild took: more than one after a crash, or where a copy's outcome was not known."""
    rows: int = 0
    """Rows of the new table, compared with the old one's."""
    location: str | None = None
    previous_location: str | None = None
    removed: tuple[int, ...] = ()
    """Earlier generations that were removed, with their files."""


@dataclass(slots=True)
class Rebuilder:
    """Rebuilds datasets of one store. Any number of processes may try at once; each step is guarded."""

    engine: Engine
    progress: Callable[[RebuildReport], None] = field(default=lambda _: None)

    def rebuild(
        self,
        dataset: str,
        change: Callable[[Layout], Layout] = lambda layout: layout,
        *,
        takeover: bool = False,
        grace: timedelta = GRACE,
    ) -> RebuildReport:
        """Bring a dataset into a new table, and continue an earlier attempt."""
        layout = self._new_layout(dataset, change)
        directory = self.engine.root / "spool" / dataset
        make_directory(directory, private=True)
        with advisory_lock(directory / "rebuild.lock", wait_seconds_max=0) as alone:
            if not alone and not takeover:
                raise Retryable(
                    f"Dataset {dataset!r} is being rebuilt by another process on this machine.",
                    hint="Wait for it. If it hangs, take over from it (--take-over): it then stops automatically.",
                )
            removed = remove_retired(self.engine, dataset, grace=grace)
            recover(self.engine, dataset)
            end_unfinished(self.engine, dataset)
            self._make_old(dataset)
            report = self._attempts(dataset, layout)
        return replace(report, removed=removed)

    def _new_layout(self, dataset: str, change: Callable[[Layout], Layout]) -> Layout:
        declared, begun = self.engine.database.read(
            lambda c: (datasets.get(c, dataset), generations.unfinished(c, dataset))
        )
        unknown = sorted(set(change(declared.layout).sort) - set(declared.schema.names))
        if unknown:
            raise InvalidSetting(
                f"Dataset {dataset!r} has no column {unknown[0]!r} to sort by.",
                hint=f"It has {', '.join(declared.schema.names)}.",
            )
        if begun is None:
            return change(declared.layout)
        if change(begun.layout) != begun.layout:
            raise Permanent(
                f"A rebuild of {dataset!r} into another layout was started and not completed.",
                hint=f"Run `floodmark rebuild {dataset}` without options first: it continues that rebuild.",
            )
        return begun.layout

    def _attempts(self, dataset: str, layout: Layout) -> RebuildReport:
        failed: Retryable | None = None
        for _ in range(ATTEMPTS_MAX):
            # U21: every attempt begins with a takeover.
            epoch = Epoch(self.engine, take_over(self.engine, dataset, layout))
            try:
                return self._attempt(epoch)
            except TakenOver:
                raise
            except Retryable as error:
                epoch.check_mine()  # from itself only: what failed may have failed because another has it now
                failed = error
        raise Retryable(
            f"Dataset {dataset!r} could not be rebuilt in {ATTEMPTS_MAX} attempts: {failed}",
            hint="Nothing is lost. Run it again: it continues.",
        ) from failed

    def _attempt(self, epoch: Epoch) -> RebuildReport:
        self._name_staging(epoch)
        copy = TableCopy(epoch, COPY_ROWS_MAX, progress=lambda copied: self.progress(_report(epoch.mine, copied)))
        if not epoch.declared().fenced:
            copy.copy_until_equal()
            faults.reach("rebuild.caught_up")
        with flush_lock(self.engine, epoch.dataset):  # flushes on this machine wait, instead of failing
            self._fence(epoch)
            self._decide(epoch)
            rows = copy.copy_until_equal()
            faults.reach("rebuild.equal")
            return self._switch(epoch, replace(_report(epoch.mine, copy.copied), rows=rows))

    # ── the epoch begins ──────────────────────────────────────────────────────────────────────────────────────────

    def _name_staging(self, epoch: Epoch) -> None:
        """The table that an earlier epoch left gets this one's name; if there is none, it is created."""
        declared = epoch.declared()
        earlier = [
            item.generation
            for item in self.engine.database.read(lambda c: generations.everyone(c, epoch.dataset))
            if item.state == "staging" and item.generation != epoch.mine.generation
        ]
        name = declared.of_generation(epoch.mine.generation).table_name
        epoch.check_mine()  # from a later epoch nothing is taken away
        for number in reversed(earlier):
            if self.engine.lake.rename(declared.of_generation(number).table_name, name):
                break
        faults.reach("rebuild.named")
        try:
            staging = self._made(epoch, name)
        except FilesMissing:  # a power loss before a copy was durable: its source still exists
            epoch.check_mine()
            self.engine.lake.drop(name)
            staging = self._made(epoch, name)
        epoch.synced, epoch.copied_through = staging.head, inventory.highest_seq(self.engine.lake, staging)

    def _made(self, epoch: Epoch, name: str) -> TableState:
        self.engine.lake.ensure(name, epoch.declared().schema, layout=epoch.mine.layout)
        staging = epoch.staging()
        self.engine.lake.sync(staging, since=None)
        return staging

    # ── the fence, and after it ─────────────────────────────────────────────────────────────────────────────────

    def _fence(self, epoch: Epoch) -> None:
        for _ in range(TRIES_MAX):
            try:
                self.engine.database.transact(
                    lambda c: generations.fence(c, epoch.mine), landed=lambda c: datasets.get(c, epoch.dataset).fenced
                )
                break
            except RemovalUnderWay:  # U24
                end_unfinished(self.engine, epoch.dataset)
        else:
            raise RemovalUnderWay(f"Rows of {epoch.dataset!r} are removed too often.", hint="Run it again.")
        faults.reach("rebuild.fenced")
        declared = epoch.declared()
        if declared.fenced and self.engine.lake.load(declared.fenced_name) is None:
            self.engine.lake.rename(declared.table_name, declared.fenced_name)
        faults.reach("rebuild.renamed")

    def _decide(self, epoch: Epoch) -> None:
        """U22: decide the last block of the old table, and find what a restored control database has forgotten."""
        for _ in range(TRIES_MAX):
            if self.engine.database.read(lambda c: blocks.undecided(c, epoch.dataset)) is None:
                declared, old = epoch.old()
                if old is not None:
                    catch_up(self.engine, declared, old)
                faults.reach("rebuild.settled")
                return
            decide(self.engine, epoch.dataset)
        raise Retryable(f"The last block of {epoch.dataset!r} cannot be decided yet.", hint="Run it again.")

    def _switch(self, epoch: Epoch, report: RebuildReport) -> RebuildReport:
        declared, old = epoch.old()
        staging = epoch.staging()
        if old is not None:
            # No number is given again that only the old table's history knows (I1).
            used = inventory.highest_seq(self.engine.lake, old)
            self.engine.lake.ensure(staging.name, create=False, max_seq=used)
        staging = epoch.make_durable()
        locations = (None if old is None else old.location, staging.location)
        self.engine.database.transact(
            lambda c: generations.switch(
                c,
                epoch.mine,
                old=declared.generation,
                synced_snapshot=staging.head,
                locations=locations,
                now=self.engine.clock.now(),
            ),
            landed=lambda c: datasets.get(c, epoch.dataset).generation == epoch.mine.generation,
        )
        faults.reach("rebuild.switched")
        # Only the current table keeps the declaration: this distinguishes it from an unfinished copy.
        now = epoch.declared()
        self.engine.lake.ensure(now.table_name, now.schema, create=False, declaration=now.declaration)
        return replace(report, location=locations[1], previous_location=locations[0])

    # ── small words ──────────────────────────────────────────────────────────────────────────────────────────────

    def _declared(self, dataset: str) -> Dataset:
        return self.engine.database.read(lambda c: datasets.get(c, dataset))

    def _make_old(self, dataset: str) -> None:
        """A dataset that was never flushed has no table to fence."""
        declared, old = find_table(self.engine.database, self.engine.lake, self._declared(dataset))
        if old is None and not declared.horizon:
            self.engine.lake.ensure(declared.table_name, declared.schema, layout=declared.layout)


def take_over(engine: Engine, dataset: str, layout: Layout) -> Rebuild:
    """U20: with a number that neither the records nor the lake know."""
    for _ in range(TRIES_MAX):
        declared, number = engine.database.read(
            lambda c: (datasets.get(c, dataset), generations.highest(c, dataset) + 1)
        )
        # A control database that was restored from a backup may have forgotten generations.
        while any(engine.lake.load(name) for name in _names(declared.of_generation(number))):
            number += 1
        try:
            mine = engine.database.transact(
                partial(
                    generations.take_over,
                    id=uuid.uuid4().hex,
                    dataset=dataset,
                    generation=number,
                    layout=layout,
                    now=engine.clock.now(),
                ),
                landed=partial(generations.is_staging, dataset=dataset, generation=number),
            )
        except NumberTaken:
            continue
        faults.reach("rebuild.taken_over")
        return mine
    raise Retryable(f"Several processes start to rebuild {dataset!r} at once.", hint="Run one of them.")


def remove_retired(engine: Engine, dataset: str, *, grace: timedelta = GRACE) -> tuple[int, ...]:
    """Drop the tables of generations that were retired long enough ago."""
    declared = engine.database.read(lambda c: datasets.get(c, dataset))
    before = engine.clock.now() - grace
    gone = []
    for item in engine.database.read(lambda c: generations.everyone(c, dataset)):
        if item.state != "retired" or item.retired_at is None or item.retired_at > before:
            continue
        own = declared.of_generation(item.generation)
        engine.lake.drop(own.fenced_name)
        engine.lake.drop(own.table_name)
        faults.reach("rebuild.dropped")
        engine.database.transact(partial(generations.forget, dataset=dataset, generation=item.generation))
        gone.append(item.generation)
    return tuple(gone)


def _names(declared: Dataset) -> Iterator[str]:
    yield declared.table_name
    yield declared.fenced_name


def _report(mine: Rebuild, copied: Copied) -> RebuildReport:
    return RebuildReport(
        mine.dataset,
        mine.generation,
        mine.layout,
        rows_copied=copied.rows_copied,
        copies=copied.copies,
        buckets_repaired=copied.buckets_repaired,
        epochs=mine.epoch,
        rows=copied.rows,
    )
