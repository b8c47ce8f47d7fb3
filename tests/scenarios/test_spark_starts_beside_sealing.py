"""A session takes seconds to start: it starts as soon as there is something to commit, and never for nothing."""

from __future__ import annotations

from floodmark.store import Store
from floodmark.testing import MemoryLake, crash_at


def test_a_flush_announces_its_rows_before_it_seals_them(store: Store, lake: MemoryLake) -> None:
    store.add_dataset("events")
    store.capture("events", [{"id": 1}])
    with crash_at("segment.announced"):
        store.flush("events")
    assert lake.prepared


def test_sealed_rows_are_announced_too(store: Store, lake: MemoryLake) -> None:
    store.add_dataset("events")
    store.capture("events", [{"id": 1}])
    store.seal("events")
    assert not lake.prepared
    store.flush("events")
    assert lake.prepared


def test_a_flush_without_rows_announces_nothing(store: Store, lake: MemoryLake) -> None:
    store.add_dataset("events")
    store.flush("events")
    assert not lake.prepared
