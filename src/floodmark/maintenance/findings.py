"""What a check of a store finds: one form for audit and fsck."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from floodmark.control.losses import Loss
from floodmark.sequence import SequenceRange


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it should be."""

    kind: str
    """A short name that does not change: `object-missing`, `allocator-behind`, …"""
    what: str
    """What is wrong, in a sentence."""
    where: str
    """The dataset, the partition, the place."""
    run: str
    """What to do about it."""
    range: SequenceRange | None = None
    wrong: bool = True
    """False for a note: worth knowing, and harmless."""

    @property
    def key(self) -> tuple[str, str, SequenceRange | None]:
        """The key by which two reads recognise the same finding."""
        return self.kind, self.where, self.range


def agreed(first: Sequence[Finding], second: Sequence[Finding]) -> tuple[Finding, ...]:
    """U30: what both of two looks have found.

    A store is checked while others work on it. Records and what they speak of are read one after the other, so a
    single read can mistake a delivery or a commit in progress for damage; a second read does not show it.
    """
    before = {item.key for item in first}
    return tuple(item for item in second if item.key in before)


def loss_finding(loss: Loss) -> Finding:
    """U33: a segment that a user gave up, as audit and fsck report it."""
    numbers = "" if loss.range is None else f", numbers {loss.range},"
    what = f"Segment {loss.segment} was given up on {loss.at[:19]}: {loss.rows} rows{numbers} are lost: {loss.reason}"
    kept = f"What is left of its file is at {loss.kept_at}." if loss.kept_at else "Nothing was left of its file."
    return Finding("segment-given-up", what, f"{loss.dataset} {loss.segment}", kept, loss.range)
