"""Two exporters, of which one looked at the table before rows were committed that the other one has in hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from floodmark import faults
from floodmark.delivery.channel import ChannelRun, Comparison
from floodmark.store import Store
from floodmark.testing import MemoryLake, crash_at, kill_store
from scenarios import hubs  # noqa: F401 - one more place
from scenarios.destinations import DATASET, PLACES, SINK, Place


def capture(store: Store, *numbers: int) -> None:
    store.capture(DATASET, [{"n": number, "source": "a"} for number in numbers])
    store.flush(DATASET)


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, tmp_path: Path, lake: MemoryLake, store: Store) -> Iterator[Place]:
    store.add_dataset(DATASET, schema={"n": "long"}, partition_by=["source"])
    made = PLACES[request.param](tmp_path, lake)
    made.add(store)
    yield made
    made.close()


def before(step: str, monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], None]) -> None:
    """Let something happen once, right before a channel's step."""
    owner = Comparison if step == "ask" else ChannelRun
    real = getattr(owner, step)
    left = [meanwhile]

    def then(self: ChannelRun | Comparison, *arguments: Any) -> Any:
        if left:
            left.pop()()
        return real(self, *arguments)

    monkeypatch.setattr(owner, step, then)


@pytest.mark.parametrize("dies_at", ["delivery.pinned", "delivery.planned", "delivery.shipped"])
def test_an_intent_that_was_pinned_after_a_later_look_is_fulfilled_with_all_its_rows(
    store: Store, place: Place, reopen, monkeypatch: pytest.MonkeyPatch, dies_at: str
) -> None:
    """D7: the older look has no rows for the newer chunks, and must not settle them as empty."""
    capture(store, 1, 2)

    def another_exporter() -> None:
        other = reopen()
        capture(other, 3, 4, 5, 6)
        with crash_at(dies_at):
            other.export(SINK)
        kill_store(other)

    before("_pin", monkeypatch, another_exporter)
    store.export(SINK)
    store.export(SINK)

    assert place.rows() == {"source=a": [1, 2, 3, 4, 5, 6]}


@pytest.mark.parametrize("step", ["ask", "_pin", "_fulfil"])
def test_what_another_exporter_has_delivered_since_is_no_parted_history(
    store: Store, place: Place, reopen, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """D7: the destination has more than this tick saw, and the store has it too."""
    capture(store, 1, 2)

    def another_exporter() -> None:
        other = reopen()
        other.export(SINK)
        capture(other, 3, 4, 5, 6)
        other.export(SINK)
        kill_store(other)

    before(step, monkeypatch, another_exporter)
    report = store.export(SINK)

    assert report.blocked is None
    assert report.errors == {}
    assert store.export(SINK).rows == 0
    assert place.rows() == {"source=a": [1, 2, 3, 4, 5, 6]}


@pytest.mark.parametrize("dies_at", ["delivery.pinned", "delivery.planned", "delivery.shipped"])
def test_a_row_that_was_purged_since_the_look_does_not_leave_with_anothers_intent(
    store: Store, place: Place, reopen, monkeypatch: pytest.MonkeyPatch, dies_at: str
) -> None:
    """U14: the older look still has the row, and the snapshot that it looks at is still there."""
    capture(store, 1, 2)

    def purge_and_another_exporter() -> None:
        other = reopen()
        with crash_at("removal.recorded"):
            other.purge(DATASET, "n = 1")
        with crash_at(dies_at):
            other.export(SINK)
        kill_store(other)

    before("_pin", monkeypatch, purge_and_another_exporter)
    store.export(SINK)
    report = store.export(SINK)

    assert report.blocked is None
    assert place.rows() == {"source=a": [2]}


def test_a_watermark_that_moved_just_before_a_range_is_pinned_is_the_one_that_counts(
    store: Store, place: Place, reopen
) -> None:
    """D1: read before the transaction that pins, two exporters would pin ranges that overlap."""
    capture(store, 1, 2)
    store.export(SINK)
    capture(store, 3, 4)

    def another_exporter() -> None:
        faults.disarm_all()
        other = reopen()
        capture(other, 5, 6, 7, 8)
        other.export(SINK)
        kill_store(other)

    faults.arm("delivery.pinning", another_exporter)
    report = store.export(SINK)

    assert report.blocked is None
    assert report.errors == {}
    assert place.rows() == {"source=a": [1, 2, 3, 4, 5, 6, 7, 8]}
    assert store.export(SINK).rows == 0
    assert place.rows() == {"source=a": [1, 2, 3, 4, 5, 6, 7, 8]}
