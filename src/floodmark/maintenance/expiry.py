"""Old snapshots go, with the files that only they reach: for compaction, retention and purge alike.

- U2 New files are on the disk before old ones go: a rewrite is synced, then recorded as synced, then snapshots expire.
- U3 A snapshot that is still needed stays: the base of an undecided block, or of an operation that is not yet recorded
  as made, and all that came after it, by which its verdict is found; and the last snapshot that is known to be on the
  disk with all that came after it: others rewrite files too, and do not sync them. How far numbers were given out is
  written into the table first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from floodmark import faults
from floodmark.commit.protocol import TableState
from floodmark.control import blocks, datasets, removals
from floodmark.control.datasets import Dataset
from floodmark.engine import Engine


@dataclass(frozen=True, slots=True)
class SnapshotRule:
    """How long snapshots are kept for current readers, and for time travel."""

    keep: int = 1
    """Never fewer than this many."""
    age: timedelta = timedelta(0)
    """Not those that are younger …"""
    most: int = 1
    """… but never more than this many: each makes every commit a little larger."""

    def kept(self, state: TableState, *, now: datetime) -> int:
        young = sum(1 for snapshot in state.lineage if snapshot.at is not None and snapshot.at > now - self.age)
        return max(self.keep, min(young, self.most), 1)


def make_durable(engine: Engine, declared: Dataset) -> TableState | None:
    """U2: Hadoop's local file system does not fsync."""
    state = engine.lake.load(declared.table_name)
    if state is None or state.head is None:
        return state
    now = engine.database.read(lambda c: datasets.get(c, declared.name))
    engine.lake.sync(state, since=now.synced_snapshot)
    engine.database.transact(lambda c: datasets.record_synced(c, declared, snapshot=state.head))
    faults.reach("upkeep.synced")
    return state


def expire_snapshots(engine: Engine, dataset: str, tables: list[str], rule: SnapshotRule = SnapshotRule()) -> int:  # noqa: B008 - frozen
    """How many snapshots were expired. What an undecided block needs stays: decide it first (I8)."""
    faults.reach("upkeep.expiring")
    declared, undecided, operation = engine.database.read(
        lambda c: (datasets.get(c, dataset), blocks.undecided(c, dataset), removals.unfinished(c, dataset))
    )
    bases = [] if undecided is None else [undecided.base.snapshot]
    if operation is not None and operation.state == "planned" and operation.base is not None:
        bases.append(operation.base)
    gone = 0
    for table in tables:
        state = engine.lake.load(table)
        if state is not None and state.head is not None:
            keep = max(rule.kept(state, now=engine.clock.now()), needed(state, bases, declared.synced_snapshot))
            gone += engine.lake.expire(table, keep_snapshots=keep)
    return gone


def needed(state: TableState, bases: Sequence[int | None], synced: int | None) -> int:
    """U3: how many of the newest snapshots must stay, whatever the rule says. `bases`: of what is not decided."""
    unsynced = state.since(synced)
    # The synced one itself, too: if a power loss destroys a newer one's files, only its own are left.
    keep = 0 if synced is None or unsynced is None else len(unsynced) + 1
    for base in bases:
        after_base = state.since(base)
        keep = max(keep, 0 if after_base is None else len(after_base) + 1)
    return keep
