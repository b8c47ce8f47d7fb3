"""What a provider reads becomes rows: planned units once, problems to quarantine with their places."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest

from floodmark.errors import InvalidSetting, ProviderFailed, UnknownProvider
from floodmark.providers import Declaration, Item, Provider, Unit
from floodmark.sources import iterables, load
from floodmark.store import Store
from floodmark.testing import crash_at
from scenarios.sources.histories import adds_up, stored

DECLARATION = Declaration(identity=[["id"]], schema={"id": "long"})


class Shelf:
    """Boxes of rows; reading is counted."""

    def __init__(self, boxes: dict[str, list[int]]) -> None:
        self.boxes = boxes
        self.read_boxes: list[str] = []

    def plan(self, location: str | None) -> Iterable[Unit]:
        return [Unit(f"{location}/{name}", bytes=len(content)) for name, content in sorted(self.boxes.items())]

    def read(self, unit: Unit) -> Iterator[Item]:
        name = unit.id.rpartition("/")[2]
        self.read_boxes.append(name)
        for place, id in enumerate(self.boxes[name], 1):
            if id < 0:
                yield Item.broken(f"{name}:{place}", "a negative id", str(id))
            else:
                yield Item({"id": id}, f"{name}:{place}")

    def provider(self, **options) -> Provider:
        return Provider("shelf", self.read, self.plan, DECLARATION, **options)


def test_the_dataset_is_declared_as_the_provider_suggests(store: Store) -> None:
    shelf = Shelf({"a": [1, 2, -5], "b": [2, 3]})
    report = store.backfill("rows", "cellar", provider=shelf.provider())
    assert (report.read, report.new, report.already_stored, report.quarantined) == (5, 3, 1, 1)
    assert (report.bytes, report.bytes_total) == (5, 5)
    assert adds_up(report)
    assert stored(store, "rows") == [1, 2, 3]
    assert store.quarantine.entries("rows")[0].reason == "a:3: a negative id"


def test_units_that_are_done_are_not_read_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "STEP_ROWS", 2)
    monkeypatch.setattr(iterables, "BATCH_ROWS", 2)
    shelf = Shelf({"a": [1, 2, 3, 4], "b": [5, 6], "c": [7]})
    with crash_at("backfill.stored", time=3):
        store.backfill("rows", "cellar", provider=shelf.provider())
    shelf.read_boxes.clear()
    store.backfill("rows", "cellar", provider=shelf.provider())
    assert shelf.read_boxes == ["b", "c"]
    assert stored(store, "rows") == [1, 2, 3, 4, 5, 6, 7]


def test_a_provider_that_fails_keeps_what_it_gave_and_goes_on_there(store: Store, monkeypatch) -> None:
    monkeypatch.setattr(iterables, "BATCH_ROWS", 2)
    shelf = Shelf({"a": [1, 2], "b": [3, 4, 5]})
    broken = {**shelf.boxes, "b": [3, 4, "no number"]}
    shelf.boxes, whole = broken, shelf.boxes  # comparing it with 0 fails
    with pytest.raises(ProviderFailed):
        store.backfill("rows", "cellar", provider=shelf.provider())
    shelf.boxes = whole
    assert store.backfill("rows", "cellar", provider=shelf.provider()).read == 1
    assert stored(store, "rows") == [1, 2, 3, 4, 5]


def test_one_that_repeats_itself_needs_an_identity(plain: Store) -> None:
    with pytest.raises(InvalidSetting, match="may return the same rows again"):
        plain.backfill("plain", "cellar", provider=Shelf({"a": [1]}).provider(overlapping=True))
    assert plain.backfill("plain", "cellar", provider=Shelf({"a": [1]}).provider()).new == 1


def test_one_without_a_plan_is_read_from_its_beginning_each_time(store: Store, plain: Store) -> None:
    unplanned = Provider("all", lambda _: [{"id": 1}, {"id": 2}], None, DECLARATION)
    assert store.backfill("rows", provider=unplanned).new == 2
    assert store.backfill("rows", provider=unplanned).already_stored == 2
    with pytest.raises(InvalidSetting, match="source_id"):
        plain.backfill("plain", provider=unplanned)


def test_one_that_is_not_known_or_is_given_rows_is_refused(store: Store) -> None:
    with pytest.raises(UnknownProvider):
        store.backfill("rows", "cellar", provider="nobody")
    with pytest.raises(InvalidSetting, match="reads a location"):
        store.backfill("rows", [{"id": 1}], provider=Shelf({}).provider())
