"""Any number of processes may flush one dataset at once: each row once, and no lower block behind a higher one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from worlds import DATASET, TABLE, World, dies

from floodmark import faults
from floodmark.commit.flush import reserve_block
from floodmark.commit.protocol import Append, Base
from floodmark.control import blocks as block_records
from floodmark.testing import MemoryLake

POINTS = [point for point in faults.POINTS if point.startswith("flush.")]


@pytest.fixture
def world(quick_path: Path) -> Iterator[World]:
    made = World.make(quick_path / "store")
    yield made
    made.close()


def meanwhile(point: str, action: Callable[[], object], *, time: int = 1) -> None:
    """Let another process do something while the first one stands at a point; the other one stops nowhere."""

    def step() -> None:
        with faults.disarmed():
            action()

    faults.arm(point, faults.nth_time(time, step))


def whole_flush(world: World, *, rows_before: int = 2, rows_after: int = 2) -> Callable[[], None]:
    """Another process captures, flushes everything it finds, and leaves new rows behind."""

    def work() -> None:
        other = world.open()
        if rows_before:
            world.capture(other, rows_before)
        other.flush(DATASET)
        if rows_after:
            world.capture(other, rows_after)
            other.seal(DATASET)

    return work


@pytest.mark.parametrize("time", [1, 2])
@pytest.mark.parametrize("rows_after", [0, 2], ids=["leaving nothing", "leaving rows"])
@pytest.mark.parametrize("point", POINTS)
def test_a_whole_flush_by_another_process_at_any_point_disturbs_nothing(
    world: World, point: str, rows_after: int, time: int
) -> None:
    """I2, I4, I8: whichever of the two settles which block, every row lands once and commit order is number order."""
    world.committed(1)
    first = world.open()
    world.capture(first, 3)
    meanwhile(point, whole_flush(world, rows_after=rows_after), time=time)
    first.flush(DATASET)
    faults.disarm_all()
    world.check()


@pytest.mark.parametrize("inner", POINTS)
@pytest.mark.parametrize("outer", ["flush.base_loaded", "flush.reserved", "flush.appending", "flush.appended"])
def test_the_other_process_may_die_in_the_middle_of_it(world: World, outer: str, inner: str) -> None:
    """The first one finds a block that is not its own, or its own half settled."""
    world.committed(1)
    first = world.open()
    world.capture(first, 3)

    def other_dies() -> None:
        other = world.open()
        world.capture(other, 2)
        dies(lambda: other.flush(DATASET), at=inner)

    meanwhile(outer, other_dies)
    first.flush(DATASET)
    faults.disarm_all()
    world.check()


def test_a_slow_flush_on_an_old_base_is_stamped_again_above_the_faster_one(world: World) -> None:
    """I2: its block was reserved on a base that is no longer the head: refused, void, and numbered anew."""
    slow = world.open()
    world.capture(slow, 3)
    meanwhile("flush.base_loaded", whole_flush(world, rows_before=0, rows_after=2))
    slow.flush(DATASET)
    assert [(block.state, block.after_seq, block.through_seq) for block in world.blocks(slow)] == [
        ("committed", 0, 3),
        ("void", 3, 5),
        ("committed", 5, 7),
    ]
    world.check()


class BaseAfterReserve(MemoryLake):
    """What a flush would do that looked at the table only after it had reserved its numbers: at the last moment."""

    def land_block(self, request: Append, rows: Any) -> None:
        state = self.load(request.table)
        assert state is not None
        MemoryLake.land_block(self, replace(request, base=Base(state.uuid, 1, state.head)), rows)


@pytest.mark.parametrize("lake", [MemoryLake, BaseAfterReserve])
def test_a_base_that_is_read_after_the_reservation_is_noticed(quick_path: Path, lake: type[MemoryLake]) -> None:
    """The tests above can fail: with the order of I2 turned round a lower block lands behind a higher one."""
    world = World.make(quick_path / "store", lake=lake())
    fates = iter(["hold"])
    world.lake.on_append = lambda request: next(fates, "land")
    slow = world.open()
    world.capture(slow, 3)
    meanwhile("flush.appended", whole_flush(world, rows_after=0))
    slow.flush(DATASET)
    landed = world.lake.deliver_held()
    if lake is MemoryLake:
        assert landed == [False]
        world.check()
    else:
        assert landed == [True]
        with pytest.raises(AssertionError):
            world.check()
    world.close()


def test_two_flushes_never_take_the_same_segments(world: World) -> None:
    """I8: the second settles the first one's block; it cannot reserve beside it."""
    first, second = world.open(), world.open()
    world.capture(first, 4)
    seen: list[Any] = []

    def look() -> None:
        seen.extend(world.blocks(second))
        with pytest.raises(block_records.BlockUndecided):
            reserve_block(second.engine, DATASET, without=(), segments_max=None)
        second.flush(DATASET)
        seen.extend(world.blocks(second))

    meanwhile("flush.reserved", look)
    first.flush(DATASET)
    assert [(block.state, block.after_seq, block.through_seq) for block in seen] == [
        ("reserved", 0, 4),
        ("committed", 0, 4),
    ]
    assert len(world.lake.load(TABLE).lineage) == 1
    world.check()


def test_both_report_the_rows_they_recorded_and_no_row_is_reported_twice(world: World) -> None:
    first = world.open()
    world.capture(first, 3)
    reports = []
    meanwhile("flush.appended", lambda: reports.append(world.open().flush(DATASET)))
    reports.append(first.flush(DATASET))
    assert sum(report.rows for report in reports) == 3
    world.check()


# ── what a flush reads of the records, while another one writes them ─────────────────────────────────────────────────


class Interleaved:
    """A lake at whose every call another process may do something first."""

    def __init__(self, lake: MemoryLake) -> None:
        self._lake = lake
        self.calls = 0
        self.at = 0
        self.action: Callable[[], None] | None = None

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._lake, name)
        if name not in ("load", "ensure", "append", "scan", "aggregate", "files", "sync"):
            return found

        def call(*arguments: Any, **named: Any) -> Any:
            self.calls += 1
            if self.calls == self.at and self.action is not None:
                self.action()
            return found(*arguments, **named)

        return call


@pytest.mark.parametrize("at", range(1, 16))
@pytest.mark.parametrize("fresh", [True, False], ids=["first flush of a process", "later flush"])
def test_another_process_may_commit_before_any_look_at_the_table(world: World, at: int, fresh: bool) -> None:
    """I3: what was recorded before the look and what the table shows after it are never taken for a contradiction."""
    world.committed(1)
    lake = world.lake
    between = Interleaved(lake)
    world.lake = between
    first = world.open()
    if not fresh:
        first.flush(DATASET)
    world.lake = lake
    world.capture(first, 3)
    between.calls, between.at, between.action = 0, at, whole_flush(world, rows_before=2, rows_after=1)
    first.flush(DATASET)
    world.check()
