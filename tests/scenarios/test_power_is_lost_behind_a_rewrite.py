"""The power goes after the table was rewritten and before the new files reached the disk: the old ones are whole."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from removing import NAME, Aged
from worlds import DATASET, World, dies

from floodmark import faults
from floodmark.testing import kill_store


@pytest.fixture
def world(quick_path: Path) -> Iterator[World]:
    made = World.make(quick_path / "store")
    yield made
    made.close()


def test_files_of_a_compaction_that_never_reached_the_disk_are_given_up_for_those_they_replaced(world: World) -> None:
    """I7: the rows were durable before the compaction, and are still in the files that it read."""
    world.committed(3)
    world.compact()
    world.lake.lose_power()

    store = world.open()
    world.capture(store, 2)
    store.flush(DATASET)

    assert sorted(world.ids_in_table()) == world.acknowledged


def test_a_compaction_on_top_of_an_undecided_block_is_given_up_with_it(world: World) -> None:
    """I7: neither the block's files nor the compaction's reached the disk; the block's segments did."""
    store = world.open()
    world.capture(store, 3)
    assert dies(lambda: store.flush(DATASET), "flush.decided")
    kill_store(store)
    world.compact()
    world.lake.lose_power()

    store = world.open()
    store.flush(DATASET)

    assert sorted(world.ids_in_table()) == world.acknowledged


def test_a_removal_whose_files_never_reached_the_disk_is_carried_out_again(quick_path: Path) -> None:
    """I7: the rows that stay were durable before, and the removal is on record as not yet done."""
    aged = Aged(quick_path)
    aged.flush(aged.row(1, days=40), aged.row(2, days=5))
    assert dies(lambda: aged.store.retain(NAME, older_than="30d"), "removal.deleted")
    aged.lake.lose_power()
    aged.restart()

    aged.store.retain(NAME, older_than="30d")

    assert aged.ids() == [2]


def test_what_is_known_to_be_on_the_disk_stays_while_something_newer_is_not(quick_path: Path) -> None:
    """U3: another engine rewrites the table a moment before old snapshots go, and syncs nothing."""
    aged = Aged(quick_path)
    aged.flush(aged.row(1, days=40), aged.row(2, days=5))
    faults.arm("upkeep.expiring", lambda: aged.lake.compact(f"{NAME}_g1"))
    aged.store.retain(NAME, older_than="30d")
    faults.disarm_all()
    aged.lake.lose_power()
    aged.restart()

    aged.store.flush(NAME)

    assert aged.ids() == [2]
