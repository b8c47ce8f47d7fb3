"""A sink's filter, format and sizes are changed between a delivery that failed and its retry."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

from floodmark import wire
from floodmark.errors import InvalidSetting
from floodmark.store import Store
from floodmark.testing import MemoryLake, crash_at, kill_store
from scenarios.destinations import DATASET, SINK, Files, as_json
from scenarios.hubs import HubPlace

POINTS = ["delivery.pinned", "delivery.planned", "delivery.shipped", "delivery.acknowledged"]


def capture(store: Store, *numbers: int) -> None:
    store.capture(DATASET, [{"n": number, "source": "a"} for number in numbers])
    store.flush(DATASET)


@pytest.fixture(autouse=True)
def dataset(store: Store) -> None:
    store.add_dataset(DATASET, schema={"n": "long"}, partition_by=["source"])


@pytest.mark.parametrize("time", [1, 2])
@pytest.mark.parametrize("point", POINTS)
def test_a_pinned_range_goes_to_files_under_the_filter_and_the_format_it_was_pinned_with(
    store: Store, tmp_path: Path, lake: MemoryLake, reopen, point: str, time: int
) -> None:
    """D1: half of a range under another filter would be a hole, or rows that nobody asked for."""
    place = Files(tmp_path, lake)
    place.add(store, format="jsonl", where="n % 2 = 0")
    capture(store, *range(12))
    with crash_at(point, time=time):
        store.export(SINK)
    kill_store(store)

    again = reopen()
    again.change_sink(SINK, format="parquet", where="n % 2 = 1", chunk_rows=2)
    capture(again, *range(12, 18))
    assert again.export(SINK).errors == {}

    lines: dict[str, list[int]] = defaultdict(list)
    objects = sorted(place.directory.glob("m/*/*.jsonl"), key=lambda path: int(path.stem.split("-")[0]))
    for path in objects:
        lines[path.parent.name] += [row["n"] for row in as_json(path)]
    assert lines == {"source=a": [0, 2, 4, 6, 8, 10]}
    assert place.rows() == {"source=a": [13, 15, 17]}
    assert again.export(SINK).rows == 0
    assert again.audit(SINK).sound


@pytest.mark.parametrize("time", [1, 2])
@pytest.mark.parametrize("point", POINTS)
def test_a_hub_gets_every_row_of_the_filter_once_when_sizes_and_its_formats_change_before_the_retry(
    store: Store, tmp_path: Path, lake: MemoryLake, reopen, monkeypatch: pytest.MonkeyPatch, point: str, time: int
) -> None:
    """D1, H2: what a hub has got of a range it does not get again, whatever it is sent as."""
    place = HubPlace(tmp_path, lake)
    try:
        place.add(store, where="n % 2 = 0")
        capture(store, *range(12))
        with crash_at(point, time=time):
            store.export(SINK)
        kill_store(store)

        again = reopen()
        with pytest.raises(InvalidSetting, match="'where' of sink 'out' cannot be changed"):
            again.change_sink(SINK, where="n % 2 = 1")
        again.change_sink(SINK, chunk_rows=2, chunk_bytes=50)
        monkeypatch.setattr(wire, "MEDIA", (wire.LINES,))  # the hub was put back to a version that reads lines only
        capture(again, *range(12, 18))
        report = again.export(SINK)

        assert report.errors == {}
        assert place.rows() == {"source=a": [0, 2, 4, 6, 8, 10, 12, 14, 16]}
        assert again.export(SINK).rows == 0
        assert again.audit(SINK).sound
    finally:
        place.close()
