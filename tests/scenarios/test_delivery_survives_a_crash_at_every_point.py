"""Whatever kind of sink, at whichever step it dies, and whatever happens before the retry: each row once, in order."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from floodmark import faults
from floodmark.store import Store
from floodmark.testing import MemoryLake, crash_at, kill_store
from scenarios import hubs  # noqa: F401 - one more place
from scenarios.destinations import DATASET, PLACES, SINK, Place

POINTS = ["delivery.pinning", "delivery.pinned", "delivery.planned", "delivery.shipped", "delivery.acknowledged"]


def capture(store: Store, *numbers: int, source: str = "a") -> None:
    store.capture(DATASET, [{"n": number, "source": source} for number in numbers])
    store.flush(DATASET)


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, tmp_path: Path, lake: MemoryLake, store: Store) -> Iterator[Place]:
    store.add_dataset(DATASET, schema={"n": "long"}, partition_by=["source"])
    made = PLACES[request.param](tmp_path, lake)
    made.add(store)
    yield made
    made.close()


@pytest.mark.parametrize(("time", "between"), [(1, "everything"), (2, "nothing"), (3, "everything")])
@pytest.mark.parametrize("point", POINTS)
def test_a_crash_at_any_point_neither_loses_nor_doubles_a_row(
    store: Store, lake: MemoryLake, place: Place, reopen, point: str, time: int, between: str
) -> None:
    """D1, D2, D3: new rows, a new column, a compaction, other settings and a second exporter come in between."""
    capture(store, *range(8))
    capture(store, 100, 101, source="b")
    with crash_at(point, time=time):
        store.export(SINK)
    kill_store(store)
    again = reopen()
    expected = {"source=a": list(range(8)), "source=b": [100, 101]}
    if between == "everything":
        again.capture(DATASET, [{"n": 8, "source": "a"}, {"n": 9, "source": "a", "late": "column"}])
        again.flush(DATASET)
        expected["source=a"] += [8, 9]
        lake.compact("m_g1")
        again.change_sink(SINK, chunk_rows=5)
        reopen().export(SINK)

    again.export(SINK)

    assert place.rows() == expected
    assert again.export(SINK).rows == 0
    assert place.rows() == expected
    lag = again.horizon(DATASET) - again.watermark(SINK, DATASET, partition={"source": "a"})
    assert lag == 0 if between == "everything" else lag >= 0


@pytest.mark.parametrize("point", POINTS)
def test_a_second_exporter_in_the_middle_of_a_tick_changes_nothing(
    store: Store, place: Place, reopen, point: str
) -> None:
    """D4: at most one open intent; whoever settles a chunk second changes nothing."""
    capture(store, *range(10))
    other = reopen()
    if place.kind == "projection" and point == "delivery.shipped":
        pytest.skip("inside the transaction of the first: the second waits for it")
    faults.arm(point, faults.nth_time(1, lambda: other.export(SINK)))

    store.export(SINK)

    assert place.rows() == {"source=a": list(range(10))}


def test_snapshots_may_expire_and_files_be_rewritten_and_deleted_between_two_ticks(
    store: Store, lake: MemoryLake, place: Place
) -> None:
    """Progress is a number of our own: it lives in no snapshot, and reads go straight through other commits."""
    capture(store, 1, 2, 3)
    store.export(SINK)
    lake.compact("m_g1")
    lake.expire("m_g1", keep=1)
    capture(store, 4)
    lake.compact("m_g1")
    lake.expire("m_g1", keep=1)

    assert store.export(SINK).rows == 1
    assert place.rows() == {"source=a": [1, 2, 3, 4]}
