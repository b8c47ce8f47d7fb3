"""Acknowledged rows in segments that a restored control database does not know are taken up by the next flush."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from worlds import DATASET, World, dies

from floodmark.testing import kill_store


@pytest.fixture
def world(quick_path: Path) -> Iterator[World]:
    made = World.make(quick_path / "store")
    yield made
    made.close()


def back_up(world: World) -> Callable[[], None]:
    """Copy the control database; what is returned puts the copy back."""
    world.close()
    with world.open() as store:
        store.flush(DATASET)
    world.opened.clear()
    copy = world.root.parent / "control.copy"
    shutil.copy(world.root / "control.db", copy)

    def restore() -> None:
        world.close()
        for name in ("control.db", "control.db-wal", "control.db-shm"):
            (world.root / name).unlink(missing_ok=True)
        shutil.copy(copy, world.root / "control.db")

    return restore


def test_captured_tables_are_taken_up_by_the_next_flush(world: World):
    """U32: nobody has to run fsck."""
    world.committed(2)
    restore = back_up(world)
    world.capture(world.open(), 3, arrow=True)
    restore()
    assert world.open().flush(DATASET).rows == 3
    world.check()


def test_sealed_lines_are_taken_up_with_their_segment_and_not_sealed_again(world: World):
    """U32: in whichever pieces they were sealed."""
    restore = back_up(world)
    store = world.open()
    for _ in range(3):
        world.capture(store, 2)
        store.seal(DATASET)
    world.capture(store, 1)
    restore()
    world.check()


def test_what_is_committed_is_not_taken_up(world: World):
    """U32: the table knows its segments."""
    world.committed(2)
    restore = back_up(world)
    store = world.open()
    world.capture(store, 3, arrow=True)
    assert dies(lambda: store.flush(DATASET), at="flush.recorded")
    world.capture(world.open(), 2, arrow=True)
    restore()
    assert world.open().flush(DATASET).rows == 2
    world.check(restored=True)


def test_a_segment_that_somebody_is_writing_is_not_touched(world: World):
    """U32: its row is there before its file."""
    store = world.open()
    assert dies(lambda: world.capture(store, 2, arrow=True), at="segment.written")
    assert len(world.segment_files()) == 1
    assert world.open().flush(DATASET).rows == 0
    assert len(world.segment_files()) == 1, "its writer lives: it is this process"


def test_a_writer_whose_file_was_taken_up_under_its_hands_is_told_that_it_is_stored(world: World):
    """U32: the database was restored between its announcement and its registration."""
    restore = back_up(world)
    from floodmark import faults

    store = world.open()

    def meanwhile() -> None:
        faults.disarm_all()
        store.engine.database.close()
        opened, world.opened = world.opened, []
        restore()
        world.opened = opened
        other = world.open()
        other.flush(DATASET)
        kill_store(other)

    faults.arm("segment.written", meanwhile)
    world.capture(store, 2, arrow=True)
    world.check()


def test_a_torn_file_is_left_where_it_is(world: World):
    """U32: what cannot be read is for somebody to look at, and holds nobody up."""
    restore = back_up(world)
    world.capture(world.open(), 2, arrow=True)
    torn = world.segment_files()[0]
    torn.write_bytes(torn.read_bytes()[:-30])
    lost = world.acknowledged[-2:]
    restore()
    world.capture(world.open(), 2, arrow=True)
    assert world.open().flush(DATASET).rows == 2
    assert torn.exists()
    report = world.open().fsck()
    assert [item.kind for item in report.findings if item.wrong] == ["segment-orphaned"]
    torn.unlink()
    world.check(gone=tuple(lost))
