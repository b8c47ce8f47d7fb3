"""A forward sink with a filter, or one that came later, has lost its records after rows were removed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from floodmark.store import Store
from floodmark.testing import MemoryLake
from scenarios.destinations import DATASET, SINK
from scenarios.hubs import HubPlace, forget_deliveries


@pytest.fixture
def place(tmp_path: Path, lake: MemoryLake, store: Store) -> Iterator[HubPlace]:
    store.add_dataset(DATASET, schema={"n": "long"}, partition_by=["source"])
    made = HubPlace(tmp_path, lake)
    yield made
    made.close()


def capture(store: Store, *numbers: int) -> None:
    store.capture(DATASET, [{"n": n, "source": "a"} for n in numbers])
    store.flush(DATASET)


def goes_on(store: Store, reopen, place: HubPlace, *numbers: int) -> None:
    """Without its records the sink asks the hub, and goes on with what is new."""
    forget_deliveries(store)
    again = reopen()
    capture(again, 100)
    report = again.export(SINK)
    assert (report.blocked, report.errors) == (None, {})
    assert place.rows() == {"source=a": [*numbers, 100]}


@pytest.mark.parametrize("where", ["n % 2 = 0", "n > 90", "n < 3"])
def test_rows_that_its_filter_kept_back_are_not_counted_as_removed(
    store: Store, place: HubPlace, reopen, where: str
) -> None:
    """U12: of the rows that went, those count that the hub has."""
    place.add(store, where=where)
    capture(store, *range(6), 98, 99)
    store.export(SINK)
    assert store.retain(DATASET, keep_rows=2).rows == 6
    held = [n for n in (*range(6), 98, 99) if eval(where.replace(" = ", " == "), {"n": n})]
    forget_deliveries(store)
    again = reopen()
    report = again.export(SINK)
    assert (report.blocked, report.errors) == (None, {})
    assert place.rows() == ({"source=a": held} if held else {})
    assert again.watermark(SINK, DATASET) == 8


def test_what_a_purge_and_a_settled_range_took_is_counted_by_every_filter(
    store: Store, place: HubPlace, reopen
) -> None:
    place.add(store, where="n % 2 = 0")
    other = {"url": place.settings["url"], "origin": "second"}
    store.add_sink("odd", "forward", where="n % 2 = 1", concurrency=1, chunk_rows=3, **other)
    capture(store, *range(8))
    store.export(SINK)
    store.export("odd")
    store.purge(DATASET, "n IN (1, 2, 3)")
    forget_deliveries(store)
    again = reopen()
    for name in (SINK, "odd"):
        report = again.export(name)
        assert (report.blocked, report.errors) == (None, {})


def test_what_went_before_there_was_a_sink_is_not_counted_for_it(store: Store, place: HubPlace, reopen) -> None:
    """U19"""
    capture(store, *range(6))
    store.retain(DATASET, keep_rows=2)
    place.add(store)
    store.export(SINK)
    goes_on(store, reopen, place, 4, 5)


def test_what_an_earlier_sink_to_the_same_hub_delivered_is_counted(store: Store, place: HubPlace, reopen) -> None:
    """U19: the sink was removed and added again, and the hub knows the store, not the sink."""
    place.add(store)
    capture(store, *range(6))
    store.export(SINK)
    store.retain(DATASET, keep_rows=2)
    store.remove_sink(SINK)
    place.add(store)
    goes_on(store, reopen, place, *range(6))
