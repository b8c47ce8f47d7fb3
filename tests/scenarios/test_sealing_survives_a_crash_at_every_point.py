"""Capture and sealing, stopped at every instant that has a name: every acknowledged row once, whoever comes next."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from spooling import contents, ids_of, landing_of, numbered

from floodmark import faults
from floodmark.spool.segments import drop_dead_writers, remove_leftovers
from floodmark.store import Store
from floodmark.testing import SimulatedCrash, crash_at, kill_store

POINTS = [point for point in faults.POINTS if point.partition(".")[0] in {"capture", "segment", "seal"}]


@pytest.fixture(autouse=True)
def _events(store: Store) -> None:
    store.add_dataset("events", schema={"id": "long"})


def test_every_point_of_capture_and_sealing_is_tried() -> None:
    """A new point is crashed at below without a new test; one of a new part of the system needs a test of its own."""
    assert len(POINTS) >= 7
    parts = {point.partition(".")[0] for point in faults.POINTS}
    assert {"capture", "segment", "seal", "flush"} <= parts


@pytest.mark.parametrize("time", [1, 2])
@pytest.mark.parametrize("point", POINTS)
def test_a_process_that_dies_there_loses_and_doubles_nothing(
    store: Store, reopen: Callable[[], Store], point: str, time: int
) -> None:
    """I6, I7, L1, L4, L5: two writers, one dead already, a bad row among the good; then the sealer dies."""
    first = reopen()
    first.capture("events", [*numbered(1, 2), {"id": "bad"}])
    first.capture("events", numbered(3))
    kill_store(first)
    acknowledged, unclear = {1, 2, 3}, set()
    store.capture("events", numbered(4))
    acknowledged.add(4)
    reached = False
    faults.arm(point, faults.nth_time(time, _die))
    try:
        unclear.add(5)
        store.capture("events", numbered(5))
        acknowledged.add(5)
        unclear.add(6)
        store.capture("events", pa.table({"id": [6]}))
        acknowledged.add(6)
        store.seal("events")
    except SimulatedCrash:
        reached = True
    finally:
        faults.disarm_all()
    assert reached or time == 2, f"{point} was never reached"
    kill_store(store)

    other = reopen()
    other.capture("events", numbered(7))
    acknowledged.add(7)
    other.flush("events")
    found = ids_of(other)
    assert len(found) == len(set(found))
    assert acknowledged <= set(found) <= acknowledged | unclear
    assert len(other.quarantine.entries("events")) == 1
    kill_store(other)
    last = reopen()
    assert last.flush("events").rows == 0
    assert ids_of(last) == found
    assert landing_of(last) == []


def _die() -> None:
    raise SimulatedCrash


@pytest.mark.parametrize("second", POINTS)
@pytest.mark.parametrize("point", [point for point in POINTS if not point.startswith("capture")])
def test_the_one_who_cleans_up_may_die_too(store: Store, reopen: Callable[[], Store], point: str, second: str) -> None:
    """I6, I7: a second death, at any other point, on the way back from the first."""
    store.capture("events", numbered(1, 2))
    kill_store(store)
    for place in (point, second):
        other = reopen()
        with crash_at(place):
            other.seal("events")
        kill_store(other)
    last = reopen()
    last.flush("events")
    assert ids_of(last) == [1, 2]
    assert landing_of(last) == []


@pytest.mark.parametrize("point", [point for point in POINTS if point.startswith("segment")])
def test_what_a_dead_sealer_left_is_cleared_away(store: Store, reopen: Callable[[], Store], point: str) -> None:
    """I7: no file stays for ever: neither one without a record nor one whose rows are committed."""
    store.capture("events", numbered(1, 2))
    with crash_at(point):
        store.seal("events")
    kill_store(store)
    # Its process is gone: say so, as the record's owner is this very process.
    last = reopen()
    _bury(last)
    last.flush("events")
    assert ids_of(last) == [1, 2]
    kill_store(last)
    reopen().flush("events")
    assert [name for name in contents(last.path / "spool") if not name.endswith("flush.lock")] == []


def _bury(store: Store) -> None:
    from sqlalchemy import update

    from floodmark.control.schema import segments
    from floodmark.process import process_identity

    host, boot, pid, _ = process_identity().split("/")
    store.engine.database.transact(lambda c: c.execute(update(segments).values(owner=f"{host}/{boot}/{pid}/0")))


def test_the_segment_of_a_live_writer_is_left_alone(store: Store, reopen: Callable[[], Store]) -> None:
    """I7: `writing` and alive is nobody's debris, however long it takes."""
    store.capture("events", numbered(1))
    seen: list[Any] = []

    def look() -> None:
        other = reopen()
        seen.append(drop_dead_writers(other.engine, "events"))
        seen.append(remove_leftovers(other.engine, "events"))

    faults.arm("segment.written", faults.nth_time(1, look))
    store.seal("events")
    assert seen == [0, 0]
    store.flush("events")
    assert ids_of(store) == [1]


def test_a_segment_that_was_dropped_under_its_writer_is_written_again(store: Store) -> None:
    """I6: somebody took the writer for dead. The lines are still there, and no offset has moved over them."""
    from sqlalchemy import update

    from floodmark.control.schema import segments

    store.capture("events", numbered(1, 2))

    def drop() -> None:
        store.engine.database.transact(lambda c: c.execute(update(segments).values(state="dropped")))

    faults.arm("segment.written", faults.nth_time(1, drop))
    assert store.seal("events").rows == 2
    store.flush("events")
    assert ids_of(store) == [1, 2]


def test_lines_that_a_power_loss_took_after_they_were_sealed_are_not_missed(
    store: Store, reopen: Callable[[], Store]
) -> None:
    """I7: a sealer may see a line before its writer has synced it. The segment is durable; the file may be shorter."""
    store.capture("events", numbered(1))
    store.capture("events", numbered(2))
    store.seal("events")
    [file] = landing_of(store)
    kill_store(store)
    with file.open("r+b") as lines:
        lines.truncate(len(lines.readline()))
    other = reopen()
    other.flush("events")
    assert ids_of(other) == [1, 2]
    assert landing_of(other) == []
