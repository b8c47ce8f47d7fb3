"""A control database restored from an older copy: what was committed meanwhile is recognised, not flushed again."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from spooling import ids_of, landing_of, numbered

from floodmark.errors import FilesMissing
from floodmark.store import Store
from floodmark.testing import MemoryLake, crash_at

FILES = ("control.db", "control.db-wal", "control.db-shm")


class Backup:
    """A copy of the control database, taken while nobody has it open."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._copy = root.parent / "backup"
        shutil.rmtree(self._copy, ignore_errors=True)
        self._copy.mkdir()
        for name in FILES:
            if (root / name).exists():
                shutil.copy2(root / name, self._copy / name)

    def restore(self) -> None:
        for name in FILES:
            (self._root / name).unlink(missing_ok=True)
            if (self._copy / name).exists():
                shutil.copy2(self._copy / name, self._root / name)


@pytest.fixture
def world(store: Store, reopen: Callable[[], Store]) -> tuple[Store, Callable[[], Any]]:
    """A live writer, and a way to be somebody who flushes and leaves."""
    store.close()

    @contextmanager
    def visit() -> Iterator[Store]:
        opened = reopen()
        yield opened
        opened.close()
        writer.engine.database.close()  # its landing file stays open and locked; its connections do not

    writer = reopen()
    return writer, visit


World = tuple[Store, Callable[[], Any]]


def test_what_was_flushed_after_the_backup_is_not_flushed_again(world: World) -> None:
    """I1, I3: lines that were unsealed at the backup, a segment that waited then, and rows that came later."""
    writer, visit = world
    with visit() as store:
        store.add_dataset("events", schema={"id": "long"})
        writer.capture("events", numbered(1))
        store.flush("events")
        store.capture("events", pa.table({"id": [2]}))  # a segment that waits
        writer.capture("events", numbered(3))
    backup = Backup(writer.path)
    with visit() as store:
        store.flush("events")
        writer.capture("events", numbered(4))
        store.flush("events")
        horizon, expected = store.horizon("events"), ids_of(store)
        assert expected == [1, 2, 3, 4]
    backup.restore()
    with visit() as store:
        assert store.horizon("events") < horizon
        writer.capture("events", numbered(5))
        store.flush("events")
        assert ids_of(store) == [1, 2, 3, 4, 5]
        assert store.horizon("events") > horizon, "and no number was given twice"
        figures = store.status().datasets[0]
        assert figures.rows == 5
        assert figures.spool.segments == 0
    with visit() as store:
        assert store.flush("events").rows == 0


def test_the_allocator_does_not_go_back_with_the_control_database(world: World, lake: MemoryLake) -> None:
    """I1: also where the newest rows are deleted by now, and only the table's property knows of their numbers."""
    from floodmark.sequence import SequenceRange

    writer, visit = world
    with visit() as store:
        store.add_dataset("events", schema={"id": "long"})
    backup = Backup(writer.path)
    with visit() as store:
        writer.capture("events", numbered(1, 2, 3))
        store.flush("events")
        lake.delete("events_g1", SequenceRange(1, 3))
    backup.restore()
    with visit() as store:
        store.capture("events", pa.table({"id": [4]}))
        report = store.flush("events")
        assert report.block is not None
        assert report.block.after >= 3


@pytest.fixture
def cut_off(world: World, lake: MemoryLake) -> World:
    """An append whose files the power took, and behind it a control database that never heard of its block."""
    writer, visit = world
    with visit() as store:
        store.add_dataset("events", schema={"id": "long"})
        writer.capture("events", numbered(1))
        store.flush("events")
        store.capture("events", pa.table({"id": [2]}))
        writer.capture("events", numbered(3))
    backup = Backup(writer.path)
    with visit() as store, crash_at("flush.decided"):
        store.flush("events")
    lake.lose_power()
    backup.restore()
    return world


def test_an_append_that_was_forgotten_and_lost_is_taken_back_and_its_segments_are_flushed(cut_off: World) -> None:
    """U4: it was under way, so they are all there. Its numbers are not given again."""
    writer, visit = cut_off
    with visit() as store:
        report = store.flush("events")
        assert ids_of(store) == [1, 2, 3]
        assert report.block is not None
        assert report.block.after >= 3
    writer.capture("events", numbered(4))
    with visit() as store:
        store.flush("events")
        assert ids_of(store) == [1, 2, 3, 4]


def test_a_repair_goes_from_what_was_lost_to_what_was_forgotten(cut_off: World) -> None:
    """U32: only when the table is whole again it can be told which segments of nobody's are committed."""
    writer, visit = cut_off
    writer.capture("events", pa.table({"id": [4]}))
    with visit() as store:
        assert {item.kind for item in store.fsck().findings} >= {"file-missing"}
        assert store.fsck(repair=True).sound
        store.flush("events")
        assert ids_of(store) == [1, 2, 3, 4]


def test_an_append_that_was_forgotten_and_lost_is_damage_once_a_segment_of_it_is_gone(
    cut_off: World, lake: MemoryLake
) -> None:
    """U4: a segment goes only behind its rows, so they were on the disk. What is left of them is not touched."""
    writer, visit = cut_off
    gone = next((writer.path / "spool" / "events" / "segments").glob("*.parquet"))
    gone.rename(gone.with_suffix(".away"))
    head = lake.tables["events_g1"].head
    with visit() as store, pytest.raises(FilesMissing):
        store.flush("events")
    assert lake.tables["events_g1"].head == head
    gone.with_suffix(".away").rename(gone)
    with visit() as store:
        store.flush("events")
        assert ids_of(store) == [1, 2, 3]


def test_a_dataset_that_had_no_rows_at_the_backup_is_found_beside_one_that_had(world: World) -> None:
    """I1: each dataset's forgotten commits are entered with their own numbers."""
    writer, visit = world
    with visit() as store:
        for name in ("events", "orders"):
            store.add_dataset(name, schema={"id": "long"})
        writer.capture("events", numbered(1, 2))
        store.flush("events")
    backup = Backup(writer.path)
    with visit() as store:
        writer.capture("orders", numbered(3))
        store.flush("orders")
    backup.restore()
    with visit() as store:
        store.flush()
        assert ids_of(store, "orders") == [3]
        assert ids_of(store, "events") == [1, 2]


def test_lines_after_a_line_that_was_no_row_are_recognised_too(world: World) -> None:
    """I6: a sealed stretch of lines that became no segment lies between the backup and the committed lines."""
    writer, visit = world
    with visit() as store:
        store.add_dataset("events", schema={"id": "long"})
        writer.capture("events", numbered(1))
        store.flush("events")
    backup = Backup(writer.path)
    with visit() as store:
        [file] = landing_of(writer)
        with file.open("ab") as lines:
            lines.write(b"garbage\n")
        store.seal("events")
        writer.capture("events", numbered(2))
        store.flush("events")
        assert ids_of(store) == [1, 2]
    backup.restore()
    with visit() as store:
        store.flush("events")
        assert ids_of(store) == [1, 2]
        assert len(store.quarantine.entries("events")) == 1, "it was forgotten with the database, and is found again"


def test_a_waiting_segment_of_nothing_but_duplicates_stands_in_nobodys_way(world: World) -> None:
    """I7: its file went with the block that found nothing in it; the restored database still expects it."""
    writer, visit = world
    with visit() as store:
        store.add_dataset("events", ["id"], schema={"id": "long"})
        writer.capture("events", numbered(1))
        store.flush("events")
        store.capture("events", pa.table({"id": [1]}))
    backup = Backup(writer.path)
    with visit() as store:
        assert store.flush("events").duplicates == 1
    backup.restore()
    with visit() as store:
        writer.capture("events", numbered(2))
        store.flush("events")
        assert ids_of(store) == [1, 2]
