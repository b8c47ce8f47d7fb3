"""What a check of a store finds: one form for audit and fsck, and with fsck its repair."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from floodmark.commit.protocol import TableState
from floodmark.control.datasets import Dataset
from floodmark.control.losses import Loss
from floodmark.delivery.destination import Finding
from floodmark.engine import Engine
from floodmark.files import try_lock
from floodmark.lake.generations import find_table
from floodmark.sequence import SequenceRange


def agreed(first: Sequence[Finding], second: Sequence[Finding]) -> tuple[Finding, ...]:
    """U30: what both of two looks have found.

    A store is checked while others work on it. Records and what they speak of are read one after the other, so a
    single read can mistake a delivery or a commit in progress for damage; a second read does not show it.
    """
    before = {item.key for item in first}
    return tuple(item for item in second if item.key in before)


def loss_finding(loss: Loss) -> Finding:
    """U33: a segment that a user gave up, as audit and fsck report it."""
    numbers = "" if loss.range is None else f", sequence numbers {loss.range},"
    what = f"Segment {loss.segment} was given up on {loss.at[:19]}: {loss.rows} rows{numbers} are lost: {loss.reason}"
    kept = f"What is left of its file is at {loss.kept_at}." if loss.kept_at else "Nothing was left of its file."
    return Finding("segment-given-up", what, f"{loss.dataset} {loss.segment}", kept, loss.range)


# ── what fsck can repair ─────────────────────────────────────────────────────────────────────────────────────────────


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


# ── work in progress ─────────────────────────────────────────────────────────────────────────────────────────────────
# Whether a process works on a dataset now: an undecided block is then no problem.


def flush_is_running(root: Path, dataset: str) -> bool:
    """Whether a flush of this machine holds the dataset's lock. Every flush takes it."""
    return _held(root / "spool" / dataset / "flush.lock")


def rebuild_is_running(root: Path, dataset: str) -> bool:
    """Whether a rebuild of this machine does."""
    return _held(root / "spool" / dataset / "rebuild.lock")


def _held(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDWR)
    except OSError:
        return False
    try:
        return not try_lock(descriptor)
    finally:
        os.close(descriptor)
