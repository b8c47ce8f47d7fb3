"""A sink that is rewound begins again, and no destination that can tell has a row twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import scenarios.hubs  # noqa: F401 - one more place
from floodmark import faults
from floodmark.errors import Permanent
from floodmark.sequence import Cursor
from floodmark.store import Store, init, open_store
from floodmark.testing import MemoryLake, crash_at, kill_store
from scenarios.destinations import DATASET, PLACES, SINK, Files, Place


@pytest.fixture
def lake() -> MemoryLake:
    return MemoryLake()


@pytest.fixture
def store(quick_path: Path, lake: MemoryLake) -> Iterator[Store]:
    with init(quick_path / "store", lake=lake) as made:
        made.add_dataset(DATASET, partition_by=["source"])
        yield made


@pytest.fixture
def at(quick_path: Path, lake: MemoryLake) -> Iterator[Callable[[str], Place]]:
    made: list[Place] = []

    def make(name: str) -> Place:
        made.append(PLACES[name](quick_path, lake))
        return made[-1]

    yield make
    for place in made:
        place.close()


def commit(store: Store, *numbers: int, source: str = "a") -> Cursor:
    store.capture(DATASET, [{"source": source, "n": n} for n in numbers])
    store.flush()
    return store.cursor(DATASET)


def delivered(store: Store, place: Place) -> Cursor:
    """Ten rows in two partitions, all delivered; the cursor after the first five of them."""
    place.add(store)
    commit(store, 1, 2, 3)
    cursor = commit(store, 11, 12, source="b")
    commit(store, 4, 5, 6, 7, 8)
    store.export(SINK)
    assert place.rows() == EVERYTHING
    return cursor


EVERYTHING = {"source=a": [1, 2, 3, 4, 5, 6, 7, 8], "source=b": [11, 12]}


@pytest.mark.parametrize("place", ["files", "hub", "table"])
@pytest.mark.parametrize("cursor", [True, False], ids=["to a cursor", "to the beginning"])
def test_a_destination_that_can_tell_has_every_row_once(
    store: Store, at: Callable[[str], Place], place: str, cursor: bool
) -> None:
    there = at(place)
    middle = delivered(store, there)
    store.rewind_sink(SINK, to=[middle] if cursor else [])
    store.export(SINK)
    assert there.rows() == EVERYTHING
    commit(store, 9)
    commit(store, 13, source="b")
    store.export(SINK)
    assert there.rows() == {"source=a": [*EVERYTHING["source=a"], 9], "source=b": [11, 12, 13]}
    assert store.audit(SINK, deep=place == "files").sound


def test_an_object_that_was_lost_is_written_again_and_no_other(store: Store, at: Callable[[str], Any]) -> None:
    files = at("files")
    delivered(store, files)
    objects = sorted(files.directory.glob("m/*/*.parquet"))
    lost = objects[1]
    before = {path: path.stat().st_mtime_ns for path in objects if path != lost}
    content = lost.read_bytes()
    lost.unlink()
    store.rewind_sink(SINK)
    store.export(SINK)
    assert files.rows() == EVERYTHING
    assert lost.read_bytes() == content
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_a_cursor_inside_an_object_is_moved_to_its_beginning(store: Store, at: Callable[[str], Any]) -> None:
    files = at("files")
    files.add(store)
    commit(store, 1, 2, 3)
    store.export(SINK)
    inside = Cursor(store.store_id, DATASET, None, 2)
    report = store.rewind_sink(SINK, to=[inside], dry_run=True)
    assert [(one.watermark, one.position) for one in report.channels] == [(3, 0)]
    store.rewind_sink(SINK, to=[str(inside)])
    store.export(SINK)
    assert files.rows() == {"source=a": [1, 2, 3]}
    assert store.audit(SINK).sound


@pytest.mark.parametrize("place", ["keys", "projection"])
def test_a_destination_that_cannot_tell_is_refused_unless_it_is_meant(
    store: Store, at: Callable[[str], Place], place: str
) -> None:
    there = at(place)
    middle = delivered(store, there)
    with pytest.raises(Permanent, match="a second time") as caught:
        store.rewind_sink(SINK, to=[middle])
    assert "--resend" in (caught.value.hint or "")
    assert store.export(SINK).rows == 0


def test_a_projection_is_called_again_with_exactly_what_comes_after_the_cursor(
    store: Store, at: Callable[[str], Place]
) -> None:
    there = at("projection")
    middle = delivered(store, there)
    store.rewind_sink(SINK, to=[middle], resend=True)
    assert store.export(SINK).rows == 5
    assert there.rows() == {"source=a": [1, 2, 3, 4, 5, 6, 7, 8, 4, 5, 6, 7, 8], "source=b": [11, 12]}


def test_a_cursor_after_the_watermark_is_refused(store: Store, at: Callable[[str], Place]) -> None:
    at("files").add(store)
    cursor = commit(store, 1)
    with pytest.raises(Permanent, match="rewound, never advanced"):
        store.rewind_sink(SINK, to=[cursor])


def test_other_datasets_of_the_sink_go_on_as_they_are(store: Store, at: Callable[[str], Any]) -> None:
    there = at("projection")
    store.add_dataset("other", partition_by=["source"])
    middle = delivered(store, there)
    store.capture("other", [{"source": "x", "n": 100}])
    store.flush()
    store.export(SINK)
    store.rewind_sink(SINK, to=[middle], resend=True)
    assert store.watermark(SINK, "other") > 0
    store.export(SINK)
    assert there.rows()["source=x"] == [100]


def test_a_range_in_progress_is_delivered_before_files_are_rewound(store: Store, at: Callable[[str], Any]) -> None:
    files = at("files")
    files.add(store)
    commit(store, 1, 2)
    with crash_at("delivery.planned"):
        store.export(SINK)
    with pytest.raises(Permanent, match="in progress"):
        store.rewind_sink(SINK)
    store.export(SINK)
    store.rewind_sink(SINK)
    store.export(SINK)
    assert files.rows() == {"source=a": [1, 2]}


def test_an_exporter_of_before_pins_nothing_for_a_sink_that_was_rewound(store: Store, at: Callable[[str], Any]) -> None:
    """It has read the sink, and the sink is another one when it pins."""
    files = at("files")
    delivered(store, files)
    commit(store, 9, 10)

    def meanwhile() -> None:
        faults.disarm_all()
        store.rewind_sink(SINK)

    faults.arm("delivery.pinning", meanwhile)
    assert store.export(SINK).rows == 0
    store.export(SINK)
    assert files.rows() == {**EVERYTHING, "source=a": [*EVERYTHING["source=a"], 9, 10]}


def test_what_a_transactional_projection_still_does_for_the_old_sink_counts_for_nobody(
    store: Store, at: Callable[[str], Any]
) -> None:
    there = at("projection")
    there.add(store)
    commit(store, 1, 2)

    def meanwhile() -> None:
        faults.disarm_all()
        store.rewind_sink(SINK, resend=True)

    faults.arm("delivery.planned", meanwhile)
    store.export(SINK)
    store.export(SINK)
    assert there.rows() == {"source=a": [1, 2]}


def test_a_rewinding_whose_process_dies_is_done_or_not_begun(
    store: Store, at: Callable[[str], Any], lake: MemoryLake
) -> None:
    files = at("files")
    delivered(store, files)
    with crash_at("rewind.recorded"):
        store.rewind_sink(SINK)
    kill_store(store)
    again = open_store(store.path, lake=lake)
    again.export(SINK)
    assert files.rows() == EVERYTHING
    assert again.audit(SINK, deep=True).sound
    again.close()


def test_rows_that_retention_removed_do_not_stop_a_rewound_sink(store: Store, at: Callable[[str], Any]) -> None:
    files = at("files")
    delivered(store, files)
    store.retain(DATASET, keep_rows=2)
    store.rewind_sink(SINK)
    store.export(SINK)
    assert files.rows() == EVERYTHING
    assert store.status().sinks[0].state == "active"


def test_a_rewound_sink_keeps_its_place_its_pause_and_its_settings(store: Store, at: Callable[[str], Any]) -> None:
    files: Files = at("files")
    delivered(store, files)
    store.pause_sink(SINK)
    store.rewind_sink(SINK)
    assert store.status().sinks[0].state == "paused"
    store.resume_sink(SINK)
    store.rewind_sink(SINK)
    store.export(SINK)
    assert store.export(SINK).rows == 0
    assert files.rows() == EVERYTHING
