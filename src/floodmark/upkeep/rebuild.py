"""Rebuild: a dataset is copied into a new generation of its table, and then the pointer is switched.

    take over (epoch + 1) ─▶ name the staging table after the epoch ─▶ copy what is missing, range by range ─▶ compare
      ─▶ fence: in the records, then by renaming the old table ─▶ settle the undecided block against the renamed table
      ─▶ copy the rest, compare, repair until equal ─▶ switch

Terms. The *old* table is the one that readers see; the *staging* table is going to take its place. An *epoch* is one
process's turn at a rebuild: whoever takes over raises it. Flushes go on until the fence, and wait behind it; readers
follow the old table under its other name.

- U20 One rebuild per dataset; every epoch's staging table has a name that was never used.
- U21 Copies are compare-and-swap appends. Who does not know what became of a copy takes over from itself: under the
  next epoch's name the late copy has nowhere to land. Else rows that retention takes out of both tables meanwhile could
  come back with it after the switch.
- U22 Only a renamed table is fenced. A block is settled against the table that it was reserved on, whatever its name.
- U23 The pointer is switched only if both tables hold the same rows behind the fence.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path

from floodmark import faults
from floodmark.clock import Clock
from floodmark.commit import Base, TableState
from floodmark.control import blocks, datasets, generations, removals
from floodmark.control.database import Database
from floodmark.control.datasets import Dataset
from floodmark.control.generations import NumberTaken, Rebuild, RemovalUnderWay, TakenOver
from floodmark.errors import Corrupt, FilesMissing, FloodmarkError, InvalidSetting, Permanent, Retryable, reason_of
from floodmark.files import advisory_lock, make_directory
from floodmark.flush import Flusher
from floodmark.lake.generations import Copy, find_table
from floodmark.lake.table import Lake
from floodmark.layout import Layout
from floodmark.read import Reader
from floodmark.schema import Schema
from floodmark.sequence import SequenceRange, Tally
from floodmark.upkeep.removing import Remover

ATTEMPTS_MAX = 5
"""How often one call takes over from itself."""
TRIES_MAX = 20
"""How often one step is tried beside flushes and removals."""
COPY_ROWS_MAX = 2_000_000
"""How many sequence numbers one copy spans."""
COMPARED_WIDTH = 1 << 20
"""How many sequence numbers are compared, and if need be copied again, at once."""
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


@dataclass(frozen=True, slots=True)
class _Level:
    """Two snapshots that were found equal up to a number."""

    old: int | None
    new: int | None
    through: int


@dataclass(slots=True)
class _Turn:
    """One epoch: what it may rely on, because nobody else can write to its staging table."""

    mine: Rebuild
    report: RebuildReport
    copied_through: int = 0
    synced: int | None = None
    """The staging table's snapshot that has reached the disk."""
    level: _Level | None = None

    @property
    def dataset(self) -> str:
        return self.mine.dataset


@dataclass(slots=True)
class Rebuilder:
    """Rebuilds datasets of one store. Any number of processes may try at once; each step is guarded."""

    root: Path
    database: Database
    lake: Lake
    flusher: Flusher
    remover: Remover
    reader: Reader
    clock: Clock
    copy_rows_max: int = COPY_ROWS_MAX
    progress: Callable[[RebuildReport], None] = field(default=lambda _: None)

    def rebuild(
        self,
        dataset: str,
        change: Callable[[Layout], Layout] = lambda layout: layout,
        *,
        takeover: bool = False,
        grace: timedelta = GRACE,
    ) -> RebuildReport:
        """Bring a dataset into a new table, from wherever an earlier attempt stands."""
        layout = self._wanted(dataset, change)
        directory = self.root / "spool" / dataset
        make_directory(directory)
        with advisory_lock(directory / "rebuild.lock", wait_seconds_max=0) as alone:
            if not alone and not takeover:
                raise Retryable(
                    f"Dataset {dataset!r} is being rebuilt by another process of this machine.",
                    hint="Wait for it. If it hangs, take over from it (--take-over): it finds that out by itself.",
                )
            removed = self.remove_retired(dataset, grace=grace)
            self.flusher.recover()
            self._end_removal(dataset)
            self._make_old(dataset)
            report = self._attempts(dataset, layout)
        return replace(report, removed=removed)

    def remove_retired(self, dataset: str, *, grace: timedelta = GRACE) -> tuple[int, ...]:
        """Drop the tables of generations that were retired long enough ago."""
        declared = self._declared(dataset)
        before = self.clock.now() - grace
        gone = []
        for item in self.database.read(lambda c: generations.everyone(c, dataset)):
            if item.state != "retired" or item.retired_at is None or item.retired_at > before:
                continue
            own = declared.of_generation(item.generation)
            self.lake.drop(own.fenced_name)
            self.lake.drop(own.table_name)
            faults.reach("rebuild.dropped")
            self.database.transact(lambda c, number=item.generation: generations.forget(c, dataset, number))  # type: ignore[misc]
            gone.append(item.generation)
        return tuple(gone)

    def _wanted(self, dataset: str, change: Callable[[Layout], Layout]) -> Layout:
        declared, begun = self.database.read(lambda c: (datasets.get(c, dataset), generations.unfinished(c, dataset)))
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
                f"A rebuild of {dataset!r} into another layout has been begun and not ended.",
                hint=f"Run `floodmark rebuild {dataset}` without options first: it goes on with that one.",
            )
        return begun.layout

    def _attempts(self, dataset: str, layout: Layout) -> RebuildReport:
        failed: Retryable | None = None
        for _ in range(ATTEMPTS_MAX):
            # U21: every attempt begins with a takeover.
            mine = self._take_over(dataset, layout)
            try:
                return self._attempt(mine)
            except TakenOver:
                raise
            except Retryable as error:
                self._check_mine(mine)  # from itself only: what failed may have failed because another has it now
                failed = error
        raise Retryable(
            f"Dataset {dataset!r} could not be rebuilt in {ATTEMPTS_MAX} attempts: {failed}",
            hint="Nothing is lost. Run it again: it goes on where it was.",
        ) from failed

    def _attempt(self, mine: Rebuild) -> RebuildReport:
        dataset = mine.dataset
        turn = _Turn(mine, RebuildReport(dataset, mine.generation, mine.layout, epochs=mine.epoch))
        self._name_staging(turn)
        if not self._declared(dataset).fenced:
            self._bring_level(turn)
            faults.reach("rebuild.caught_up")
        with self.flusher.quietly_alone(dataset):  # flushes on this machine wait, instead of being told to
            self._fence(turn)
            self._settle(turn)
            rows = self._bring_level(turn)
            faults.reach("rebuild.equal")
            return self._switch(turn, rows)

    # ── the turn begins ──────────────────────────────────────────────────────────────────────────────────────────

    def _take_over(self, dataset: str, layout: Layout) -> Rebuild:
        """U20: with a number that neither the records nor the lake know."""
        for _ in range(TRIES_MAX):
            declared, number = self.database.read(
                lambda c: (datasets.get(c, dataset), generations.highest(c, dataset) + 1)
            )
            # A control database that was restored from a backup may have forgotten generations.
            while any(self.lake.load(name) for name in _names(declared.of_generation(number))):
                number += 1
            try:
                mine = self.database.transact(
                    lambda c, number=number: generations.take_over(  # type: ignore[misc]
                        c,
                        id=uuid.uuid4().hex,
                        dataset=dataset,
                        generation=number,
                        layout=layout,
                        now=self.clock.now(),
                    ),
                    landed=lambda c, number=number: generations.is_staging(c, dataset, number),  # type: ignore[misc]
                )
            except NumberTaken:
                continue
            faults.reach("rebuild.taken_over")
            return mine
        raise Retryable(f"Several processes begin to rebuild {dataset!r} at once.", hint="Run one of them.")

    def _name_staging(self, turn: _Turn) -> None:
        """The table that an earlier epoch left gets this one's name; if there is none, it is made."""
        declared = self._declared(turn.dataset)
        earlier = [
            item.generation
            for item in self.database.read(lambda c: generations.everyone(c, turn.dataset))
            if item.state == "staging" and item.generation != turn.mine.generation
        ]
        name = declared.of_generation(turn.mine.generation).table_name
        self._check_mine(turn.mine)  # from a later epoch nothing is taken away
        for number in reversed(earlier):
            if self.lake.rename(declared.of_generation(number).table_name, name):
                break
        faults.reach("rebuild.named")
        try:
            staging = self._made(turn, name)
        except FilesMissing:  # the power went before a copy had reached the disk: what it came from is still there
            self._check_mine(turn.mine)
            self.lake.drop(name)
            staging = self._made(turn, name)
        turn.synced, turn.copied_through = staging.head, self.lake.highest_seq(staging)

    def _made(self, turn: _Turn, name: str) -> TableState:
        self.lake.ensure(name, self._declared(turn.dataset).schema, layout=turn.mine.layout)
        staging = self._staging(turn)
        self.lake.sync(staging, since=None)
        return staging

    # ── copying and comparing ────────────────────────────────────────────────────────────────────────────────────

    def _bring_level(self, turn: _Turn) -> int:
        """Copy what is missing and repair what differs, until both tables hold the same; how many rows that is."""
        for _ in range(TRIES_MAX):
            self._catch_up(turn)
            rows, different = self._compare(turn)
            if not different:
                return rows
            for within in different:
                self._copy_again(turn, within)
        raise Retryable(f"Dataset {turn.dataset!r} changes faster than it can be copied.", hint="Run it again.")

    def _catch_up(self, turn: _Turn) -> None:
        declared, old = self._old(turn)
        if old is None or old.head is None or turn.copied_through >= declared.horizon:
            return
        left = SequenceRange(turn.copied_through, declared.horizon)
        for window in self.reader.windows(turn.dataset, left, rows_max=self.copy_rows_max):
            self._copy(turn, old, window)
            turn.copied_through = window.through

    def _compare(self, turn: _Turn) -> tuple[int, list[SequenceRange]]:
        """U23: rows and checksums, bucket by bucket: how many rows there are, and the stretches that differ."""
        declared, old = self._old(turn)
        new = self._staging(turn)
        known, rows = self._known_level(turn, old, new)
        if known >= declared.horizon:
            return rows, []
        within = SequenceRange(known, declared.horizon)
        schema = self._declared(turn.dataset).schema
        here, there = (self._tallies(state, within, schema) for state in (old, new))
        different = sorted(key for key in here.keys() | there.keys() if here.get(key) != there.get(key))
        if not different:
            rows += sum(item.rows for item in here.values())
            turn.level = _Level(old.head if old else None, new.head, declared.horizon)
            turn.report = replace(turn.report, rows=rows)
        return rows, [part for key in different if (part := _bucket(key).intersect(within)) is not None]

    def _known_level(self, turn: _Turn, old: TableState | None, new: TableState) -> tuple[int, int]:
        """Up to which number the tables are equal, and how many rows that is, if nothing but rows above came since.

        So that behind the fence not all of the history is compared.
        """
        if turn.level is None or old is None:
            return 0, 0
        since_old, since_new = old.since(turn.level.old), new.since(turn.level.new)
        if since_old is None or any(item.operation not in ("append", "replace") for item in since_old):
            return 0, 0
        if since_new is None or any(item.operation != "append" for item in since_new):
            return 0, 0
        return turn.level.through, turn.report.rows

    def _tallies(self, state: TableState | None, within: SequenceRange, schema: Schema) -> dict[int, Tally]:
        if state is None or state.head is None:
            return {}
        return self.lake.tallies(state.name, snapshot=state.head, within=within, width=COMPARED_WIDTH, schema=schema)

    def _copy_again(self, turn: _Turn, within: SequenceRange) -> None:
        staging = self._staging(turn)
        if staging.head is not None and self.lake.has_rows(staging.name, snapshot=staging.head, within=within):
            self._check_mine(turn.mine)
            with _nobody_knows(f"whether {within} was cleared"):
                self.lake.clear(staging.name, within)
            faults.reach("rebuild.cleared")
        _, old = self._old(turn)
        turn.report = replace(turn.report, buckets_repaired=turn.report.buckets_repaired + 1)
        if old is not None:
            for window in self.reader.windows(turn.dataset, within, rows_max=self.copy_rows_max):
                self._copy(turn, old, window)

    def _copy(self, turn: _Turn, old: TableState, window: SequenceRange) -> None:
        if old.head is None or not self.lake.has_rows(old.name, snapshot=old.head, within=window):
            return
        self._check_mine(turn.mine)
        declared = self._declared(turn.dataset)  # behind the old table, whose columns it has all
        staging = self._staging(turn)
        self.lake.ensure(staging.name, declared.schema, create=False)
        request = Copy(
            source=old.name,
            snapshot=old.head,
            target=staging.name,
            base=Base(staging.uuid, turn.mine.generation, staging.head),
            within=window,
            through=max(window.through, turn.copied_through),
            schema=declared.schema,
        )
        faults.reach("rebuild.copying")
        with _nobody_knows(f"whether {window} was copied"):
            self.lake.copy(request)
        faults.reach("rebuild.copied")
        self._make_durable(turn)
        report = turn.report
        turn.report = replace(report, copies=report.copies + 1, rows_copied=report.rows_copied + self._rows(turn))
        self.progress(turn.report)

    def _rows(self, turn: _Turn) -> int:
        return next((item.added_rows for item in self._staging(turn).lineage), 0)

    def _make_durable(self, turn: _Turn) -> TableState:
        """As it goes along, so that behind the fence there is little left to do."""
        staging = self._staging(turn)
        self.lake.sync(staging, since=turn.synced)
        turn.synced = staging.head
        return staging

    # ── the fence, and behind it ─────────────────────────────────────────────────────────────────────────────────

    def _fence(self, turn: _Turn) -> None:
        for _ in range(TRIES_MAX):
            try:
                self.database.transact(
                    lambda c: generations.fence(c, turn.mine), landed=lambda c: datasets.get(c, turn.dataset).fenced
                )
                break
            except RemovalUnderWay:  # U24
                self._end_removal(turn.dataset)
        else:
            raise RemovalUnderWay(f"Rows of {turn.dataset!r} are being removed all the time.", hint="Run it again.")
        faults.reach("rebuild.fenced")
        declared = self._declared(turn.dataset)
        if declared.fenced and self.lake.load(declared.fenced_name) is None:
            self.lake.rename(declared.table_name, declared.fenced_name)
        faults.reach("rebuild.renamed")

    def _settle(self, turn: _Turn) -> None:
        """U22: decide the last block of the old table, and find what a restored control database has forgotten."""
        for _ in range(TRIES_MAX):
            if self.database.read(lambda c: blocks.undecided(c, turn.dataset)) is None:
                declared, old = self._old(turn)
                if old is not None:
                    self.flusher.recovery.catch_up(declared, old, self.flusher.settle)
                faults.reach("rebuild.settled")
                return
            self.flusher.settle(turn.dataset)
        raise Retryable(f"The last block of {turn.dataset!r} cannot be decided yet.", hint="Run it again.")

    def _switch(self, turn: _Turn, rows: int) -> RebuildReport:
        declared, old = self._old(turn)
        staging = self._staging(turn)
        if old is not None:
            # No number is given again that only the old table's history knows (I1).
            self.lake.raise_max_seq(staging.name, self.lake.highest_seq(old))
        staging = self._make_durable(turn)
        locations = (None if old is None else self.lake.location(old.name), self.lake.location(staging.name))
        self.database.transact(
            lambda c: generations.switch(
                c,
                turn.mine,
                old=declared.generation,
                synced_snapshot=staging.head,
                locations=locations,
                now=self.clock.now(),
            ),
            landed=lambda c: datasets.get(c, turn.dataset).generation == turn.mine.generation,
        )
        faults.reach("rebuild.switched")
        return replace(turn.report, rows=rows, location=locations[1], previous_location=locations[0])

    # ── small words ──────────────────────────────────────────────────────────────────────────────────────────────

    def _declared(self, dataset: str) -> Dataset:
        return self.database.read(lambda c: datasets.get(c, dataset))

    def _check_mine(self, mine: Rebuild) -> None:
        self.database.read(lambda c: generations.check_mine(c, mine))

    def _make_old(self, dataset: str) -> None:
        """A dataset that was never flushed has no table to fence."""
        declared, old = find_table(self.database, self.lake, self._declared(dataset))
        if old is None and not declared.horizon:
            self.lake.ensure(declared.table_name, declared.schema, layout=declared.layout)

    def _end_removal(self, dataset: str) -> None:
        unfinished = self.database.read(lambda c: removals.unfinished(c, dataset))
        if unfinished is not None:
            self.remover.carry_out(unfinished)

    def _old(self, turn: _Turn) -> tuple[Dataset, TableState | None]:
        """The table that readers see. The horizon is read before it, so it has every row up to there (I9)."""
        self._check_mine(turn.mine)
        declared, old = find_table(self.database, self.lake, self._declared(turn.dataset))
        if declared.generation == turn.mine.generation:
            raise TakenOver(f"Dataset {turn.dataset!r} has been rebuilt.", hint="Nothing is left to do here.")
        if old is None and declared.horizon:
            raise Corrupt(
                f"The table of {turn.dataset!r} is gone, and rows up to {declared.horizon} are committed.",
                hint="Restore the lake's directory, or its catalog, and run it again.",
            )
        return declared, old

    def _staging(self, turn: _Turn) -> TableState:
        state = self.lake.load(self._declared(turn.dataset).of_generation(turn.mine.generation).table_name)
        if state is None:
            self._check_mine(turn.mine)
            raise Retryable(f"The staging table of {turn.dataset!r} is not there.", hint="Run it again.")
        return state


class _nobody_knows:  # noqa: N801 - reads as a statement
    """U21: an error of a request to the staging table is no verdict on it; the next attempt takes over."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, FloodmarkError):
            raise Retryable(f"It is not known {self._what}: {reason_of(error)}.") from error


def _names(declared: Dataset) -> Iterator[str]:
    yield declared.table_name
    yield declared.fenced_name


def _bucket(number: int) -> SequenceRange:
    return SequenceRange(max(0, number * COMPARED_WIDTH - 1), (number + 1) * COMPARED_WIDTH - 1)
