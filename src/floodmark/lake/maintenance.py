"""Keeping a table small and quick, in words that every lake shares.

Buckets and their files are described in `floodmark.compaction`. An *orphan* is a file in a table's own place that no
snapshot of it refers to: left by a commit that never came to its end, or taken back after a loss of power.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from floodmark.commit.protocol import TableState


@dataclass(frozen=True, slots=True)
class Orphan:
    """A file that nothing refers to."""

    location: str
    bytes: int


def kept_snapshots(state: TableState, *, keep_snapshots: int, since: int | None) -> list[int]:
    """The newest so many, and all that came after a base."""
    lineage = [snapshot.id for snapshot in state.lineage]
    return lineage[: max(keep_snapshots, lineage.index(since) if since in lineage else 0)]


def highest_known(state: TableState) -> int:
    """I1: how far numbers were given out, as far as the snapshots alone know it."""
    return max([state.max_seq, *(snapshot.through or 0 for snapshot in state.lineage)])


def total_bytes(orphans: Sequence[Orphan]) -> int:
    return sum(item.bytes for item in orphans)
