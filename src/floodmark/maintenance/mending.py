"""What the checks of fsck share: the store's parts, and a fault with its way to repair it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from floodmark.clock import Clock
from floodmark.commit.protocol import TableState
from floodmark.commit.recovery import Recovery, Settle
from floodmark.control.database import Database
from floodmark.control.datasets import Dataset
from floodmark.lake.generations import find_table
from floodmark.lake.table import Lake
from floodmark.maintenance.findings import Finding
from floodmark.sequence import SequenceRange
from floodmark.spool.sealing import Sealer
from floodmark.spool.segments import SegmentStore

REPAIR = "Run `floodmark fsck --repair`."


@dataclass(frozen=True, slots=True)
class Offer:
    """A segment that cannot be committed as it is: what would be lost by giving it up."""

    segment: int
    dataset: str
    rows: int
    range: SequenceRange | None
    """The numbers that its rows have in a block that is undecided; None if it is in none."""
    problem: str


@dataclass(frozen=True, slots=True)
class Problem:
    """A fault, and how it is repaired, if that needs nobody's decision. What is returned says what was done."""

    finding: Finding
    mend: Callable[[], str | None] | None = None
    offer: Offer | None = None
    """What somebody may decide to lose, so that the rest goes on."""


@dataclass(frozen=True, slots=True)
class Workshop:
    """The parts of one store."""

    root: Path
    database: Database
    lake: Lake
    segments: SegmentStore
    sealer: Sealer
    clock: Clock
    settle: Settle
    """Decides a dataset's undecided block."""
    block_off: Settle = lambda _: None
    """Decides it where it cannot be sent: nothing of it lands any more (U34)."""

    def table(self, dataset: Dataset) -> TableState | None:
        """The dataset's table as it stands now, whatever it is called."""
        return find_table(self.database, self.lake, dataset)[1]

    def recovery(self) -> Recovery:
        """What a process does before its first commit, to be done now."""
        return Recovery(self.database, self.lake, self.segments, self.sealer, self.clock)


def worth_knowing(finding: Finding) -> Finding:
    return replace(finding, wrong=False)
