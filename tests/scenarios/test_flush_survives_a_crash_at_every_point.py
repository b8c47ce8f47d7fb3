"""A process may die at any point of sealing and flushing: whoever comes next finishes, and every row is there once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from worlds import AS_BEFORE, DATASET, TABLE, World, die, dies

from floodmark import faults
from floodmark.process import process_identity
from floodmark.store import Store
from floodmark.testing import SimulatedCrash, kill_store

POINTS = [point for point in faults.POINTS if point.startswith(("flush.", "segment.", "seal."))]
"""All of them, so that a new point is crashed at from the day it is declared."""
STATES = [point for point in POINTS if point not in AS_BEFORE]


@pytest.fixture(autouse=True)
def _processes_die(monkeypatch: pytest.MonkeyPatch) -> None:
    """The "processes" here share one: let each see the segments that another one was writing as a dead one's."""
    host, boot, pid, _ = process_identity().split("/")
    monkeypatch.setattr("floodmark.spool.segments.process_identity", lambda: f"{host}/{boot}/{pid}/before")


@pytest.fixture
def world(quick_path: Path) -> Iterator[World]:
    made = World.make(quick_path / "store")
    yield made
    made.close()


def _expire_before_the_undecided_base(world: World) -> None:
    """Snapshots go, but never the base of an undecided block and what came after it."""
    with world.open() as store:
        undecided = [block.base_snapshot for block in world.blocks(store) if block.state == "reserved"]
    state = world.lake.load(TABLE)
    if state is None or state.head is None or undecided == [None]:
        return
    ids = [snapshot.id for snapshot in state.lineage]
    world.lake.expire(TABLE, keep_snapshots=ids.index(undecided[0]) + 1 if undecided else 1)


BETWEEN = {
    "nothing": lambda world: None,
    "new captures": lambda world: world.capture(world.open()),
    "a compaction and captures": lambda world: (world.compact(), world.capture(world.open(), arrow=True)),
    "an expiry of what came before": _expire_before_the_undecided_base,
}


def waiting(world: World) -> None:
    """Rows from a dead writer's landing file, and rows that came as a table."""
    writer = world.open()
    world.capture(writer, 3)
    world.capture(writer, 2, arrow=True)
    kill_store(writer)


def flush(world: World) -> Callable[[], object]:
    return lambda: world.open().flush(DATASET)


def flush_that_loses_a_race(world: World) -> Callable[[], object]:
    """Another process commits between this one's look at the table and its reservation."""

    def race() -> None:
        other = world.open()
        other.flush(DATASET)
        world.capture(other, 2)
        other.seal(DATASET)

    def work() -> None:
        faults.arm("flush.base_loaded", _once(race))
        world.open().flush(DATASET)

    return work


def _once(action: Callable[[], None]) -> Callable[[], None]:
    def step() -> None:
        with faults.disarmed():  # the other process lives
            action()

    return faults.nth_time(1, step)


def the_way_past(point: str) -> Callable[[World], Callable[[], object]]:
    return flush_that_loses_a_race if point == "flush.released" else flush


@pytest.mark.parametrize("between", BETWEEN)
@pytest.mark.parametrize("point", POINTS)
def test_whoever_comes_next_finishes_what_a_dead_flush_began(world: World, point: str, between: str) -> None:
    """I4, I7, I8: at every point, whatever happens before the recovery, every acknowledged row is there once."""
    world.committed(2)
    waiting(world)
    assert dies(the_way_past(point)(world), at=point), f"{point} was never reached"
    world.close()
    BETWEEN[between](world)
    world.check()


@pytest.mark.parametrize("point", POINTS)
def test_the_first_commit_of_a_dataset_is_finished_too(world: World, point: str) -> None:
    """There is no base yet: the table may not even exist."""
    waiting(world)
    assert dies(the_way_past(point)(world), at=point)
    world.check()


@pytest.mark.parametrize("second", STATES)
@pytest.mark.parametrize("first", STATES)
def test_a_recovery_may_die_at_every_point_too(world: World, first: str, second: str) -> None:
    """All pairs: a crash, then a crash at any point of the recovery from it, with captures and a compaction between."""
    world.committed(2)
    waiting(world)
    assert dies(the_way_past(first)(world), at=first)
    world.close()
    world.capture(world.open(), 1)
    dies(flush(world), at=second)
    world.close()
    world.compact()
    world.capture(world.open(), 1, arrow=True)
    world.check()


@pytest.mark.parametrize("point", POINTS)
def test_a_process_that_dies_at_the_same_point_again_and_again_gets_through_in_the_end(
    world: World, point: str
) -> None:
    waiting(world)
    for _ in range(4):
        dies(flush(world), at=point)
        world.close()
    world.check()


@pytest.mark.parametrize("point", [point for point in POINTS if point.startswith("segment.")])
def test_a_table_whose_capture_died_is_there_wholly_or_not_at_all(world: World, point: str) -> None:
    store = world.open()
    assert dies(lambda: world.capture(store, 4, arrow=True), at=point)  # never acknowledged
    world.close()
    world.capture(world.open(), 1)
    if point == "segment.registered":  # stored, only the answer is missing
        world.acknowledged += range(4)
    world.check()


@pytest.mark.parametrize("point", POINTS)
def test_nothing_but_a_crash_stops_a_flush(world: World, point: str) -> None:
    """An ordinary error at a point is no verdict either: it comes out, and the next flush finishes."""
    waiting(world)

    def fail() -> None:
        raise OSError("no space left on device")

    work = the_way_past(point)(world)
    faults.arm(point, faults.nth_time(1, fail))
    with pytest.raises(OSError, match="no space"):
        work()
    faults.disarm_all()
    world.check()


def test_the_check_notices_a_row_that_is_there_twice(world: World) -> None:
    """The tests above can fail: a commit that is repeated after the crash, as it would be without a verdict."""
    waiting(world)
    assert dies(flush(world), at="flush.appended")
    with world.open() as store:
        _forget_the_block(store)
    with pytest.raises(AssertionError):
        world.check()


def _forget_the_block(store: Store) -> None:
    from sqlalchemy import text

    def work(connection: object) -> None:
        connection.execute(text("UPDATE segments SET block = NULL, block_offset = NULL"))
        connection.execute(text("UPDATE blocks SET state = 'void'"))
        connection.execute(text("UPDATE datasets SET horizon = (SELECT max(through_seq) FROM blocks)"))

    store.engine.database.transact(work)


def test_a_simulated_crash_is_caught_by_nothing_in_between(world: World) -> None:
    waiting(world)
    faults.arm("flush.appending", die)
    with pytest.raises(SimulatedCrash):
        world.open().flush(DATASET)
