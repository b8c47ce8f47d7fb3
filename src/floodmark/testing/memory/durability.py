"""What reaches the disk of a lake in memory, and the way back to it after a power loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from floodmark.commit.protocol import Snapshot, TableState
from floodmark.errors import FilesMissing

if TYPE_CHECKING:
    from floodmark.testing.memory.lake import MemoryLake


def make_durable(lake: MemoryLake, state: TableState, *, since: int | None) -> None:
    """Cover the files that the head reaches and snapshot `since` did not; all of them if its history is unknown.

    No more than that. If a caller names a snapshot that was never synced, its files stay uncovered, as on a disk.
    """
    if state.head is None:
        return
    before = () if state.since(since) is None else lake.table(state.name).files.get(since or 0, ())
    for file in lake.files_of(state.name, state.head):
        if file in before:
            continue
        if file not in lake.data:
            raise FilesMissing(f"Data file {file} of {state.name!r} is missing.")
        lake.durable.add(file)


def rolled_back(lake: MemoryLake, table: str, *, durable: int | None, droppable: Callable[[Snapshot], bool]) -> bool:
    """Move the head back to the last snapshot that is there whole; false if one in between may not be dropped."""
    found, state = lake.tables[table], lake.load(table)
    lineage = () if state is None else state.lineage
    synced = set(found.files.get(durable or 0, ()))
    for back in range(len(lineage) + 1):
        before = lineage[back:]
        if state is None or replace(state, lineage=before).since(durable) is None:
            return False
        if not before or lake.data.keys() >= set(found.files[before[0].id]) - synced:
            found.head = before[0].id if before else None
            for snapshot in lineage[:back]:
                found.snapshots.pop(snapshot.id)
            return True
        if not droppable(before[0]):
            return False
    return False
