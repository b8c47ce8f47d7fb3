"""What the checks of fsck share: the store's parts, and a fault with its way to repair it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from floodmark.commit.protocol import TableState
from floodmark.control.datasets import Dataset
from floodmark.engine import Engine
from floodmark.lake.generations import find_table
from floodmark.maintenance.findings import Finding
from floodmark.sequence import SequenceRange

REPAIR = "Run `floodmark fsck --repair`."


@dataclass(frozen=True, slots=True)
class Offer:
    """A segment that cannot be committed, and the loss if it is given up."""

    segment: int
    dataset: str
    rows: int
    range: SequenceRange | None
    """The numbers that its rows have in a block that is undecided; None if it is in none."""
    problem: str


@dataclass(frozen=True, slots=True)
class Problem:
    """A fault, and how it is repaired, if that needs no user's decision. A repair returns what it did."""

    finding: Finding
    repair: Callable[[], str | None] | None = None
    offer: Offer | None = None
    """What a user may give up, so that the rest can be committed."""


def table_now(engine: Engine, dataset: Dataset) -> TableState | None:
    """The dataset's table in its current state, under its own name or as a fenced one."""
    return find_table(engine.database, engine.lake, dataset)[1]


def worth_knowing(finding: Finding) -> Finding:
    return replace(finding, wrong=False)
