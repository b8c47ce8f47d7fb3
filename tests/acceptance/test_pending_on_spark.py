"""Rows that are not committed yet, beside those of a real table: by Spark, and without it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from stores import make_store

from floodmark import faults
from floodmark.lake.spark import SparkLake
from floodmark.store import Store, open_store
from floodmark.testing import SimulatedCrash

SCHEMA = {"id": "string", "n": "long", "at": "timestamp", "other": "string", "wide": "int"}


@pytest.fixture
def store(spark: Any, tmp_path: Path) -> Iterator[Store]:
    with make_store(tmp_path / "store", spark, identity=["id"], schema=SCHEMA, partition_by=[]) as made:
        yield made


def numbers(frame: Any) -> list[int]:
    return sorted(row["n"] for row in frame.collect())


def here(store: Store) -> list[int]:
    return sorted(row["n"] for part in store.read_with_pending("events") for row in part.table.to_pylist())


def capture_in_stages(store: Store) -> None:
    """Four rows committed; two of them again and two new ones in a segment; one again and two new ones landed."""
    store.capture("events", [{"id": f"a{n}", "n": n, "wide": 1} for n in range(4)])
    store.flush("events")
    store.capture("events", pa.table({"id": ["a2", "a3", "b4", "b5"], "n": [20, 30, 4, 5]}))
    store.capture("events", [{"id": "b5", "n": 50}, {"id": "c6", "n": 6, "wide": 2**40}])
    store.capture("events", [{"id": "c7", "n": 7, "colour": "red"}])


@pytest.mark.spark
def test_frames_and_sql_have_pending_rows_once_also_after_they_are_committed(store: Store) -> None:
    capture_in_stages(store)
    frame = store.read("events", pending=True)
    assert sorted(frame.columns) == ["at", "colour", "id", "n", "other", "wide"]
    totals = store.sql("SELECT count(*), sum(n), count(colour), sum(wide) FROM events", pending=True)
    assert [tuple(row) for row in totals.collect()] == [(8, 28, 1, 4 + 2**40)]
    assert store.sql("SELECT * FROM events").count() == 4
    assert numbers(frame) == here(store) == list(range(8))

    # A frame keeps what it saw: the segments are gone, and the same rows have numbers now.
    store.flush("events")
    assert list((store.path / "spool" / "events" / "segments").glob("*.parquet")) == []
    assert numbers(frame) == list(range(8))
    assert store.read("events", columns=["n"], pending=True).columns == ["n"]
    assert numbers(store.read("events", pending=True)) == numbers(store.read("events")) == list(range(8))


@pytest.mark.spark
def test_a_block_that_landed_and_is_not_recorded_is_seen_once(store: Store) -> None:
    capture_in_stages(store)

    def die() -> None:
        raise SimulatedCrash

    faults.arm("flush.appended", faults.nth_time(1, die))
    try:
        with pytest.raises(SimulatedCrash):
            store.flush("events")
    finally:
        faults.disarm_all()
    store.capture("events", [{"id": "a0", "n": 99}, {"id": "d8", "n": 8}])
    assert numbers(store.read("events", pending=True)) == here(store) == list(range(9))
    store.flush("events")
    assert numbers(store.read("events")) == list(range(9))


@pytest.mark.spark
@pytest.mark.parametrize(
    "declared",
    [
        {"identity": ["id"], "event_time": "at"},
        {"identity": [["id"], ["part"]], "event_time": "at", "identity_scope": "all", "identity_null": "keep"},
    ],
    ids=["content and event time", "a fallback of fractions at any time"],
)
def test_spark_and_this_process_find_the_duplicates_that_flush_finds(
    spark: Any, tmp_path: Path, declared: dict[str, Any]
) -> None:
    """B10 too: rows without an identity are compared by their content, where the dataset says so."""
    schema = {**SCHEMA, "part": "double"}
    with make_store(tmp_path / "store", spark, schema=schema, partition_by=[], **declared) as store:
        counted = itertools.count()

        def rows() -> list[dict[str, Any]]:
            keys = [("a", "x", 0.5), ("b", None, float("nan")), (None, "x", -0.0), (None, None, None)]
            times = ["2026-01-01T00:00:00Z", None]
            return [
                {"id": id, "other": other, "part": part, "at": at, "n": next(counted)}
                for id, other, part in keys
                for at in times
            ]

        store.capture("events", rows()[:5])
        store.flush("events")
        store.capture("events", rows())
        store.seal("events")
        store.capture("events", rows()[3:])
        shown = numbers(store.read("events", pending=True))
        assert shown == here(store)
        store.flush("events")
        assert numbers(store.read("events")) == shown


@pytest.mark.spark
def test_pending_rows_are_read_without_a_jvm(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    capture_in_stages(store)
    with open_store(store.path) as alone:
        lake = alone.engine.lake
        assert isinstance(lake, SparkLake)

        def no_jvm() -> Any:
            pytest.fail("Spark was started")

        lake.start = no_jvm
        assert here(alone) == list(range(8))
