"""The lake in memory is as careless as a disk: what nobody asked it to keep is gone when the power goes."""

from __future__ import annotations

from floodmark.store import Store
from floodmark.testing import MemoryLake


def capture(store: Store, *numbers: int) -> None:
    store.capture("m", [{"n": number} for number in numbers])
    store.flush("m")


def test_a_sync_covers_what_came_since_a_snapshot_and_nothing_older(store: Store, lake: MemoryLake) -> None:
    """I7: a sync range that begins too late leaves files behind that a power cut takes."""
    store.add_dataset("m", schema={"n": "long"})
    capture(store, 1)
    first = lake.load("m_g1")
    capture(store, 2)
    second = lake.load("m_g1")
    assert first is not None
    assert second is not None
    old, new = lake.tables["m_g1"].head_files
    for since, covered in ((second.head, set()), (first.head, {new}), (None, {old, new}), (-1, {old, new})):
        lake.durable.clear()
        lake.sync(second, since=since)
        assert lake.durable == covered
