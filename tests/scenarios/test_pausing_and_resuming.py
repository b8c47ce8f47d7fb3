"""A paused dataset is captured and not committed, a paused sink gets nothing. Resumed, both continue."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from floodmark import faults
from floodmark.errors import Paused
from floodmark.store import Store, init
from floodmark.testing import ManualClock, MemoryLake, crash_at
from scenarios.destinations import DATASET, SINK, Files


@pytest.fixture
def lake() -> MemoryLake:
    return MemoryLake()


@pytest.fixture
def store(quick_path: Path, lake: MemoryLake) -> Iterator[Store]:
    with init(quick_path / "store", lake=lake, clock=ManualClock()) as made:
        made.add_dataset(DATASET, partition_by=["source"])
        made.add_dataset("other")
        yield made


@pytest.fixture
def files(store: Store, quick_path: Path, lake: MemoryLake) -> Files:
    made = Files(quick_path, lake)
    made.add(store)
    return made


def capture(store: Store, *numbers: int) -> None:
    store.capture(DATASET, [{"source": "a", "n": n} for n in numbers])


def test_a_paused_dataset_takes_rows_and_commits_none_until_it_is_resumed(store: Store, files: Files) -> None:
    capture(store, 1)
    store.flush()
    store.pause_dataset(DATASET)
    capture(store, 2)
    store.capture("other", [{"n": 1}])
    assert store.flush().rows == 1, "the other dataset is flushed"
    with pytest.raises(Paused, match="dataset resume"):
        store.flush(DATASET)
    assert store.export().rows == 1, "and only the other one is delivered"
    found = {item.name: item for item in store.status().datasets}
    assert found[DATASET].paused_since is not None
    assert found["other"].paused_since is None
    assert found[DATASET].problem is None, "a pause is no problem"
    store.resume_dataset(DATASET)
    assert store.flush().rows == 1
    store.export()
    assert files.rows()["source=a"] == [1, 2]


def test_a_flush_that_runs_while_its_dataset_is_paused_ends_after_its_block(store: Store) -> None:
    faults.arm("flush.recorded", lambda: store.pause_dataset(DATASET))
    capture(store, 1)
    store.flush(DATASET)
    capture(store, 2)
    with pytest.raises(Paused):
        store.flush(DATASET)
    faults.disarm_all()
    store.resume_dataset(DATASET)
    assert store.flush(DATASET).rows == 1


def test_a_paused_sink_gets_nothing_and_continues_without_a_gap(store: Store, files: Files) -> None:
    capture(store, 1)
    store.flush()
    store.export()
    store.pause_sink(SINK)
    capture(store, 2, 3)
    store.flush()
    assert store.export().rows == 0
    with pytest.raises(Paused, match="sink resume"):
        store.export(SINK)
    assert store.status().sinks[0].state == "paused"
    assert store.status().sinks[0].lag == 2
    store.resume_sink(SINK)
    assert store.status().sinks[0].state == "active"
    assert store.export(SINK).rows == 2
    assert files.rows()["source=a"] == [1, 2, 3]


@pytest.mark.parametrize("what", ["sink", "dataset"])
def test_nothing_is_pinned_by_an_exporter_that_began_before_the_pause(store: Store, files: Files, what: str) -> None:
    """The tick has read that the sink is active; the pause comes before it pins."""
    capture(store, 1)
    store.flush()
    pause = (lambda: store.pause_sink(SINK)) if what == "sink" else (lambda: store.pause_dataset(DATASET))
    faults.arm("delivery.pinning", pause)
    assert store.export(SINK).rows == 0
    assert files.rows() == {}


def test_a_range_that_was_pinned_before_the_pause_is_delivered_once_after_it(store: Store, files: Files) -> None:
    capture(store, 1, 2)
    store.flush()
    with crash_at("delivery.shipped"):
        store.export(SINK)
    store.pause_sink(SINK)
    capture(store, 3)
    store.flush()
    assert store.export().rows == 0
    store.resume_sink(SINK)
    store.export(SINK)
    assert files.rows()["source=a"] == [1, 2, 3]


def test_retention_keeps_what_a_paused_sink_has_still_to_get(store: Store, files: Files) -> None:
    store.pause_sink(SINK)
    capture(store, 1)
    store.flush()
    report = store.retain(DATASET, keep_rows=1, dry_run=True)
    assert report.rows == 0


def test_pausing_twice_keeps_the_time_and_resuming_what_runs_changes_nothing(store: Store) -> None:
    store.pause_dataset(DATASET)
    first = next(item for item in store.datasets() if item.name == DATASET).paused_at
    store.engine.clock.advance(60)  # type: ignore[attr-defined]
    store.pause_dataset(DATASET)
    assert next(item for item in store.datasets() if item.name == DATASET).paused_at == first
    store.resume_dataset("other")
