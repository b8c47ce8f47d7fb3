"""The control database is put back from a copy while an append that it then knows nothing of is still under way."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from worlds import DATASET, TABLE, World, interrupted

from floodmark.testing import kill_store

FILES = ("control.db", "control.db-wal", "control.db-shm")


@pytest.fixture
def world(quick_path: Path) -> Iterator[World]:
    made = World.make(quick_path / "store")
    yield made
    made.close()


def copy(origin: Path, target: Path) -> None:
    target.mkdir(exist_ok=True)
    for name in FILES:
        (target / name).unlink(missing_ok=True)
        if (origin / name).exists():
            shutil.copy2(origin / name, target / name)


def test_a_block_is_not_taken_for_landed_because_a_forgotten_one_had_its_numbers(world: World, tmp_path: Path) -> None:
    """I4: the restored counter gives the numbers again that a late request carries; one row of it is in the table, and
    the new block's other rows are not.
    """
    store = world.open()
    world.capture(store, 1, arrow=True)
    kill_store(store)
    copy(world.root, tmp_path / "backup")

    fates = iter(["hold"])
    world.lake.on_append = lambda request: next(fates, "drop")
    store = world.open()
    with pytest.raises(Exception, match="failed"):
        store.flush(DATASET)
    kill_store(store)
    copy(tmp_path / "backup", world.root)

    world.lake.on_append = None
    store = world.open()
    world.capture(store, 2, arrow=True)
    with interrupted(flush__base_loaded=world.lake.deliver_held):
        store.flush(DATASET)

    world.check(restored=True)


def test_numbers_that_no_row_has_are_not_given_again_after_a_restore(quick_path: Path, tmp_path: Path) -> None:
    """I1: a block ended in duplicates; its snapshot expired; the counter went back. A cursor stands behind the numbers
    that come next, and their rows would never be read.
    """
    world = World.make(quick_path / "store", identity=["id"])
    copy(world.root, tmp_path / "backup")
    store = world.open()
    store.capture(DATASET, [{"id": 1, "site": "a"}, {"id": 1, "site": "a"}, {"id": 1, "site": "a"}])
    store.flush(DATASET)
    cursor = [str(batch.cursor) for batch in store.read_since(DATASET)][-1]
    kill_store(store)
    world.compact()
    world.lake.expire(TABLE)
    copy(tmp_path / "backup", world.root)

    store = world.open()
    for id in (2, 3, 4):
        store.capture(DATASET, [{"id": id, "site": "a"}])
        store.flush(DATASET)

    read = [row["id"] for batch in store.read_since(DATASET, since=cursor) for row in batch.table.to_pylist()]
    world.close()
    assert read == [2, 3, 4]
