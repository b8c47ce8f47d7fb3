"""One process's turn at a rebuild, and the two tables of it.

The *old* table is the one that readers see; the *staging* table is going to take its place. A turn lasts until another
process takes over: every look at the old table, and every write, asks first whether it still does.
"""

from __future__ import annotations

from dataclasses import dataclass

from floodmark.commit import TableState
from floodmark.control import datasets, generations
from floodmark.control.database import Database
from floodmark.control.datasets import Dataset
from floodmark.control.generations import Rebuild, TakenOver
from floodmark.errors import Corrupt, Retryable
from floodmark.lake.generations import find_table
from floodmark.lake.table import Lake


@dataclass(slots=True)
class Turn:
    """One epoch: what it may rely on, because nobody else can write to its staging table."""

    database: Database
    lake: Lake
    mine: Rebuild
    copied_through: int = 0
    synced: int | None = None
    """The staging table's snapshot that has reached the disk."""

    @property
    def dataset(self) -> str:
        return self.mine.dataset

    def declared(self) -> Dataset:
        return self.database.read(lambda c: datasets.get(c, self.dataset))

    def check_mine(self) -> None:
        """`TakenOver` if another process has it now."""
        self.database.read(lambda c: generations.check_mine(c, self.mine))

    def old(self) -> tuple[Dataset, TableState | None]:
        """The table that readers see. The horizon is read before it, so it has every row up to there (I9)."""
        self.check_mine()
        declared, old = find_table(self.database, self.lake, self.declared())
        if declared.generation == self.mine.generation:
            raise TakenOver(f"Dataset {self.dataset!r} has been rebuilt.", hint="Nothing is left to do here.")
        if old is None and declared.horizon:
            raise Corrupt(
                f"The table of {self.dataset!r} is gone, and rows up to {declared.horizon} are committed.",
                hint="Restore the lake's directory, or its catalog, and run it again.",
            )
        return declared, old

    def staging(self) -> TableState:
        """The table that nobody reads yet."""
        state = self.lake.load(self.declared().of_generation(self.mine.generation).table_name)
        if state is None:
            self.check_mine()
            raise Retryable(f"The staging table of {self.dataset!r} is not there.", hint="Run it again.")
        return state

    def make_durable(self) -> TableState:
        """As it goes along, so that behind the fence there is little left to do."""
        staging = self.staging()
        self.lake.sync(staging, since=self.synced)
        self.synced = staging.head
        return staging
