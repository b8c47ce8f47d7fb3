"""What is wrong in the end: every destination, compared with what was acknowledged, removed and found to be one."""

from __future__ import annotations

import contextlib
import sqlite3
from collections import Counter
from collections.abc import Iterator
from typing import Any

from floodmark.testing.oracle import Finding

from .world import World

Rows = list[dict[str, Any]]


def findings(world: World, *, sinks: tuple[str, ...]) -> list[str | Finding]:
    """Everything that is wrong."""
    lake = world.rows("edge")
    found: list[str | Finding] = list(world.wrong)
    found += world.oracle.compare("the lake", lake, excused=_gone(world, lake, sinks=sinks))
    for sink, name, rows in _destinations(world, sinks):
        before = len(found)
        excused = {*world.purges, *world.twins, *world.twins.values()}
        if name == "the table":
            excused |= world.disowned
        found += world.oracle.compare(name, rows, excused=excused)
        found += world.oracle.compare_order(name, rows, lake)
        found += _back_again(name, rows, {id for id in world.disowned if name == "the table"})
        found += _neither(world, name, rows)
        if sink and len(found) > before and world.audit(sink):
            found.append(f"the audit of {sink} finds nothing wrong")
    found += _back_again("the lake", lake, {id for id, told in world.purges.items() if told} | world.retired)
    found += _totals(world)
    return [*found, *_not_settled(world, lake)]


def _destinations(world: World, sinks: tuple[str, ...]) -> Iterator[tuple[str, str, Rows]]:
    if "archive" in sinks:
        yield "archive", "the bucket", world.bucket.rows()
    if "central" in sinks:
        yield "central", "the hub", world.rows("hub")
    if "mirror" in sinks:
        yield "mirror", "the table", world.mirrored()
    if "figures" in sinks:
        yield "figures", "the projection", world.projected()
    if not world.removing:
        yield "", "the reader", world.reader_rows


def _gone(world: World, lake: Rows, *, sinks: tuple[str, ...]) -> set[str]:
    """What need not be in the lake: what was purged, what is another row, and what retention took from it. That must
    be everywhere else.
    """
    excused = {*world.purges, *world.twins, *world.twins.values()}
    if not sinks:
        excused |= world.retired
    elif world.removing:
        excused |= set(world.oracle.acknowledged) - {row["id"] for row in lake}
    return excused


def _back_again(name: str, rows: Rows, gone: set[str]) -> list[Finding]:
    """Rows that were removed for good, and are there."""
    return [Finding("back again", name, str(row["id"])) for row in rows if row["id"] in gone]


def _totals(world: World) -> list[str]:
    """What the records count of each partition is what is there."""
    if world.counts["control databases put back"]:
        return []  # an older copy counts what it knew; what it has forgotten is found by a repair
    with contextlib.closing(sqlite3.connect(world.root / "edge" / "control.db")) as connection:
        counted = dict(connection.execute("SELECT partition_key, row_count FROM partitions").fetchall())
    there = Counter(f"site={row['site']}" for row in world.rows("edge"))
    return [
        f"the lake: {counted.get(key, 0)} rows of {key} are on record, and {there[key]} are there"
        for key in sorted(counted.keys() | there.keys())
        if counted.get(key, 0) != there[key]
    ]


def _neither(world: World, name: str, rows: Rows) -> list[Finding]:
    """Of two rows that are one, one is everywhere."""
    there = {row["id"] for row in rows} | set(world.purges)
    return [
        Finding("missing", name, f"{one}, and its twin {other},")
        for other, one in world.twins.items()
        if one not in there and other not in there
    ]


def _not_settled(world: World, lake: Rows) -> list[Finding]:
    """Of two rows that are one, the lake has the one that readers met first, and no other."""
    there = {row["id"]: row for row in lake}
    place = {row["id"]: index for index, row in enumerate(world.reader_rows)}
    found = []
    for other, one in world.twins.items():
        left = [id for id in (one, other) if id in there]
        if other in world.fickle or not {one, other}.isdisjoint(world.purges) or (world.removing and not left):
            continue
        first = min((id for id in (one, other) if id in place), key=place.__getitem__, default=None)
        removed = world.removing or {one, other} & set(world.purges)
        if len(left) > 1 or (not removed and (not left or first not in (None, left[0]))):
            found.append(
                Finding("not settled", "the lake", f"{one} and {other}", f"it has {left}; readers met {first}")
            )
        found += [Finding("not settled", "the lake", id) for id in left if there[id].get("key") != one]
    return found
