"""Makes two tables equal: copies missing rows, compares, and copies again what differs, until nothing does.

- U21 A copy is a compare-and-swap append, and its error is no verdict: the epoch ends, and the next one begins with a
  takeover. Under the next epoch's name the late copy cannot land.
- U23 Equal tables have the same rows and checksums in every bucket. Only after the fence does that last.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from floodmark import faults
from floodmark.commit.protocol import Base, TableState
from floodmark.control import datasets, generations
from floodmark.control.datasets import Dataset
from floodmark.control.generations import Rebuild, TakenOver
from floodmark.engine import Engine
from floodmark.errors import Corrupt, FloodmarkError, Retryable, reason_of
from floodmark.lake import queries
from floodmark.lake.generations import find_table
from floodmark.lake.table import Copy
from floodmark.read import row_windows
from floodmark.removal import Selection
from floodmark.schema import Schema
from floodmark.sequence import SequenceRange, Tally

# ── One epoch of a rebuild, and its two tables ────────────────────────────────────────────────────────
# The *old* table is the one that readers see; the *staging* table will replace it. An epoch lasts until another process
# takes over: every read of the old table, and every write, first checks that it still does.


@dataclass(slots=True)
class Epoch:
    """One epoch: what it may rely on, because no other epoch can write to its staging table."""

    engine: Engine
    mine: Rebuild
    copied_through: int = 0
    synced: int | None = None
    """The staging table's snapshot that has reached the disk."""

    @property
    def dataset(self) -> str:
        return self.mine.dataset

    def declared(self) -> Dataset:
        return self.engine.database.read(lambda c: datasets.get(c, self.dataset))

    def check_mine(self) -> None:
        """`TakenOver` if another process has it now."""
        self.engine.database.read(lambda c: generations.check_mine(c, self.mine))

    def old(self) -> tuple[Dataset, TableState | None]:
        """The table that readers see. The horizon is read before it, so it has every row up to there (I9)."""
        self.check_mine()
        declared, old = find_table(self.engine.database, self.engine.lake, self.declared())
        if declared.generation == self.mine.generation:
            raise TakenOver(f"Dataset {self.dataset!r} has been rebuilt.", hint="There is nothing left to do.")
        if old is None and declared.horizon:
            raise Corrupt(
                f"The table of {self.dataset!r} is missing, and rows up to {declared.horizon} are committed.",
                hint="Restore the lake's directory, or its catalog, and run it again.",
            )
        return declared, old

    def staging(self) -> TableState:
        """The table that is not read yet."""
        state = self.engine.lake.load(self.declared().of_generation(self.mine.generation).table_name)
        if state is None:
            self.check_mine()
            raise Retryable(f"The staging table of {self.dataset!r} is missing.", hint="Run it again.")
        return state

    def make_durable(self) -> TableState:
        """After each copy, so that after the fence there is little left to do."""
        staging = self.staging()
        self.engine.lake.sync(staging, since=self.synced)
        self.synced = staging.head
        return staging


# ── TableCopy ────────────────────────────────────────────────────────────────────────────────────────────────────────


TRIES_MAX = 20
"""How often what differs is copied again, beside flushes and removals."""
COMPARED_WIDTH = 1 << 20
"""How many sequence numbers are compared, and if need be copied again, at once."""


@dataclass(frozen=True, slots=True)
class Copied:
    """What one epoch has copied so far."""

    rows_copied: int = 0
    copies: int = 0
    buckets_repaired: int = 0
    rows: int = 0
    """How many there were in each table when they were last level."""


@dataclass(frozen=True, slots=True)
class _Level:
    """Two snapshots that were found equal up to a number."""

    old: int | None
    new: int | None
    through: int


@dataclass(slots=True)
class TableCopy:
    """Makes the staging table of one epoch equal to the old one, as often as it is called."""

    epoch: Epoch
    copy_rows_max: int
    progress: Callable[[Copied], None]
    copied: Copied = field(default_factory=Copied)
    _level: _Level | None = None

    def copy_until_equal(self) -> int:
        """Copy what is missing and repair what differs, until both tables hold the same; how many rows that is."""
        for _ in range(TRIES_MAX):
            self._catch_up()
            rows, different = self.compare()
            if not different:
                return rows
            for within in different:
                self._copy_again(within)
        raise Retryable(f"Dataset {self.epoch.dataset!r} changes faster than it can be copied.", hint="Run it again.")

    # ── comparing ────────────────────────────────────────────────────────────────────────────────────────────────

    def compare(self) -> tuple[int, list[SequenceRange]]:
        """U23: rows and checksums, bucket by bucket: how many rows there are, and the stretches that differ."""
        declared, old = self.epoch.old()
        new = self.epoch.staging()
        known, rows = self._known_level(old, new)
        if known >= declared.horizon:
            return rows, []
        within = SequenceRange(known, declared.horizon)
        schema = self.epoch.declared().schema
        here, there = (self._tallies(state, within, schema) for state in (old, new))
        different = sorted(key for key in here.keys() | there.keys() if here.get(key) != there.get(key))
        if not different:
            rows += sum(item.rows for item in here.values())
            self._level = _Level(old.head if old else None, new.head, declared.horizon)
            self.copied = replace(self.copied, rows=rows)
        return rows, [part for key in different if (part := _bucket(key).intersect(within)) is not None]

    def _known_level(self, old: TableState | None, new: TableState) -> tuple[int, int]:
        """Up to which number the tables are equal, and how many rows that is, if nothing but rows above came since.

        So that after the fence not all of the history is compared.
        """
        if self._level is None or old is None:
            return 0, 0
        since_old, since_new = old.since(self._level.old), new.since(self._level.new)
        if since_old is None or any(item.operation not in ("append", "replace") for item in since_old):
            return 0, 0
        if since_new is None or any(item.operation != "append" for item in since_new):
            return 0, 0
        return self._level.through, self.copied.rows

    def _tallies(self, state: TableState | None, within: SequenceRange, schema: Schema) -> dict[int, Tally]:
        if state is None or state.head is None:
            return {}
        lake = self.epoch.engine.lake
        return queries.tallies(
            lake, state.name, snapshot=state.head, within=within, width=COMPARED_WIDTH, schema=schema
        )

    # ── copying ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _catch_up(self) -> None:
        epoch = self.epoch
        declared, old = epoch.old()
        if old is None or old.head is None or epoch.copied_through >= declared.horizon:
            return
        left = SequenceRange(epoch.copied_through, declared.horizon)
        for window in row_windows(epoch.engine, epoch.dataset, left, rows_max=self.copy_rows_max):
            self._copy(old, window)
            epoch.copied_through = window.through

    def _copy_again(self, within: SequenceRange) -> None:
        epoch = self.epoch
        staging = epoch.staging()
        if staging.head is not None and queries.has_rows(
            epoch.engine.lake, staging.name, snapshot=staging.head, within=within
        ):
            epoch.check_mine()
            with _nobody_knows(f"whether {within} was cleared"):
                epoch.engine.lake.remove(
                    staging.name,
                    selection=Selection(within.through, after=within.after),
                    schema=epoch.declared().schema,
                    partition_by=(),
                )
            faults.reach("rebuild.cleared")
        _, old = epoch.old()
        self.copied = replace(self.copied, buckets_repaired=self.copied.buckets_repaired + 1)
        if old is not None:
            for window in row_windows(epoch.engine, epoch.dataset, within, rows_max=self.copy_rows_max):
                self._copy(old, window)

    def _copy(self, old: TableState, window: SequenceRange) -> None:
        epoch = self.epoch
        if old.head is None or not queries.has_rows(epoch.engine.lake, old.name, snapshot=old.head, within=window):
            return
        epoch.check_mine()
        declared = epoch.declared()  # read after the old table, so it has all of its columns
        staging = epoch.staging()
        epoch.engine.lake.ensure(staging.name, declared.schema, create=False)
        request = Copy(
            source=old.name,
            snapshot=old.head,
            table=staging.name,
            base=Base(staging.uuid, epoch.mine.generation, staging.head),
            within=window,
            through=max(window.through, epoch.copied_through),
            schema=declared.schema,
        )
        faults.reach("rebuild.copying")
        with _nobody_knows(f"whether {window} was copied"):
            epoch.engine.lake.append(request)
        faults.reach("rebuild.copied")
        epoch.make_durable()
        copied = self.copied
        self.copied = replace(copied, copies=copied.copies + 1, rows_copied=copied.rows_copied + self._rows())
        self.progress(self.copied)

    def _rows(self) -> int:
        return next((item.added_rows for item in self.epoch.staging().lineage), 0)


class _nobody_knows:  # noqa: N801 - reads as a statement
    """U21: an error of a request to the staging table is no verdict on it; the next attempt takes over."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, FloodmarkError):
            raise Retryable(f"It is not known {self._what}: {reason_of(error)}.") from error


def _bucket(number: int) -> SequenceRange:
    return SequenceRange(max(0, number * COMPARED_WIDTH - 1), (number + 1) * COMPARED_WIDTH - 1)
