"""Rows that are on their way to a sink, of whatever kind, while a settle function learns more about them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from floodmark.store import Store
from floodmark.testing import MemoryLake, crash_at, kill_store
from scenarios import hubs  # noqa: F401 - one more place
from scenarios.destinations import DATASET, PLACES, SINK, Place

known: dict[str, str] = {}


def settle(rows: pa.Table) -> pa.Table:
    names = pa.array([known.get(name, name) for name in rows["name"].to_pylist()], pa.string())
    return rows.set_column(rows.column_names.index("name"), "name", names)


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, tmp_path: Path, lake: MemoryLake, store: Store) -> Iterator[Place]:
    known.clear()
    columns = {"n": "long", "name": "string"}
    store.add_dataset(DATASET, identity=["name"], schema=columns, partition_by=["source"], settle=f"{__name__}:settle")
    made = PLACES[request.param](tmp_path, lake)
    made.add(store)
    yield made
    made.close()


@pytest.mark.parametrize("learnt", [{"name 2": "another"}, {"name 2": "name 5"}, {"name 5": "name 2"}])
@pytest.mark.parametrize("point", ["delivery.planned", "delivery.shipped"])
def test_it_is_sent_again_as_it_was_and_settled_afterwards(
    store: Store, place: Place, reopen, point: str, learnt: dict[str, str]
) -> None:
    """B9"""
    store.capture(DATASET, [{"n": n, "name": f"name {n}", "source": "a"} for n in range(1, 7)])
    store.flush(DATASET)
    with crash_at(point):
        store.export(SINK)
    kill_store(store)
    known.update(learnt)
    again = reopen()
    again.compact(DATASET)
    report = again.export(SINK)
    assert (report.blocked, report.errors) == (None, {})
    assert place.rows() == {"source=a": [1, 2, 3, 4, 5, 6]}
    again.compact(DATASET)
    names = [row["name"] for batch in again.read_since(DATASET) for row in batch.table.to_pylist()]
    assert sorted(names) == sorted({known.get(f"name {n}", f"name {n}") for n in range(1, 7)})
