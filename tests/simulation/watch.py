"""What must hold of every commit to a table of the edge, looked at in the instant in which it lands.

In the end a row may be there again that was gone for a while, and a changed value may have been changed back. So rows
are compared at every commit, whoever made it and however late it arrived.
"""

from __future__ import annotations

import contextlib
import sqlite3
from typing import TYPE_CHECKING, Any

from floodmark.schema import SEQ
from floodmark.testing.memory.tables import MemoryTable

if TYPE_CHECKING:
    from floodmark.testing.memory.lake import MemoryLake

    from .world import World

Rows = dict[int, dict[str, Any]]

_PINNED = """
    SELECT sinks.name, intents.partition_key, MAX(intents.after_seq, COALESCE(watermarks.seq, 0)), intents.through_seq
    FROM intents
    JOIN sinks ON sinks.instance = intents.sink
    LEFT JOIN watermarks ON watermarks.sink = intents.sink AND watermarks.dataset = intents.dataset
        AND watermarks.partition_key = intents.partition_key
    WHERE intents.state = 'open'
"""


def look_at_commit(world: World, lake: MemoryLake, table: MemoryTable, files: tuple[int, ...]) -> None:
    """A commit is about to make these files the table's."""
    if lake.tables.get(world.table("edge")) is not table:
        return  # a copy that nobody reads yet, or the table of an older generation
    before, after = _rows(lake, table.head_files), _rows(lake, files)
    world.wrong += _lost(world, before, after)
    world.wrong += _changed_on_their_way(world, before, after)


def _lost(world: World, before: Rows, after: Rows) -> list[str]:
    """A row goes because somebody wanted that, because it is old, or because another one is the same."""
    keys = {row.get("key") for row in after.values()}
    found = []
    for seq in sorted(before.keys() - after.keys()):
        row = before[seq]
        heirs = {row.get("key"), world.twins.get(str(row.get("key")))} - {None}
        # Retention takes the oldest rows of a partition: nothing older of it stays.
        old = world.removing and not any(seq > other and row["site"] == after[other]["site"] for other in after)
        if row["id"] not in world.purges and not heirs & keys and not old:
            found.append(f"the lake: row {row['id']} (number {seq}) is lost by a commit")
    return found


def _changed_on_their_way(world: World, before: Rows, after: Rows) -> list[str]:
    """What a sink has pinned leaves with the values that it had then, however often it is sent."""
    found = []
    for sink, partition, start, end in _pinned(world):
        for seq in sorted(before):
            row = before[seq]
            if start < seq <= end and f"site={row['site']}" == partition and after.get(seq) != row:
                how = "changed" if seq in after else "removed"
                found.append(f"the lake: row {row['id']} (number {seq}) is {how} on its way to {sink}")
    return found


def _pinned(world: World) -> list[tuple[str, str, int, int]]:
    with contextlib.closing(sqlite3.connect(world.root / "edge" / "control.db")) as connection:
        return connection.execute(_PINNED).fetchall()


def _rows(lake: MemoryLake, files: tuple[int, ...]) -> Rows:
    # Files that a power cut has taken are somebody else's matter.
    return {row[SEQ]: row for file in files if file in lake.data for row in lake.data[file].to_pylist()}
