"""What a check of a store finds: one form for audit and fsck."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
    """False for what is worth knowing and harms nobody."""

    @property
    def key(self) -> tuple[str, str, SequenceRange | None]:
        """By what two looks at the same thing recognise it."""
        return self.kind, self.where, self.range


def agreed(first: Sequence[Finding], second: Sequence[Finding]) -> tuple[Finding, ...]:
    """U30: what both of two looks have found.

    A store is checked while others work on it. Records and what they speak of are read one after the other, so a
    single look can take a delivery or a commit under way for damage; it is gone when one looks again.
    """
    before = {item.key for item in first}
    return tuple(item for item in second if item.key in before)
