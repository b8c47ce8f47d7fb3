"""Reads of a real table: only the files that can hold the range, and never a cached table."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from stores import make_store, rows_of

from floodmark.lake.catalog import Catalog
from floodmark.lake.spark import SparkLake
from floodmark.sequence import Cursor
from floodmark.store import Store, open_store

COMMIT_ROWS = 500


@pytest.fixture
def store(spark: Any, tmp_path: Path) -> Iterator[Store]:
    with make_store(tmp_path / "store", spark) as made:
        yield made


def commit(store: Store, number: int) -> None:
    rows = [{"id": f"{number}-{row}", "site": f"s{row % 2}"} for row in range(COMMIT_ROWS)]
    store.capture("events", pa.Table.from_pylist(rows))
    store.flush("events")


def touched(frame: Any) -> dict[str, int]:
    """Data files and bytes that Iceberg planned for a frame, from the metrics of its own scan."""
    plan = frame._jdf.queryExecution().executedPlan()
    frame.collect()
    leaves = plan.collectLeaves()
    found = {"resultDataFiles": 0, "totalDataFileSize": 0}
    for index in range(leaves.size()):
        metrics = leaves.apply(index).metrics()
        for name in found:
            metric = metrics.get(name)
            found[name] += metric.get().value() if metric.isDefined() else 0
    return found


@pytest.mark.spark
def test_a_range_read_touches_only_the_files_that_can_hold_it(store: Store) -> None:
    """A thousand rows out of ten commits or forty: the same number of files, and as many bytes."""
    costs = []
    for commits in (10, 40):
        for number in range(len(store.engine.lake.load("events_g1").lineage) if costs else 0, commits):
            commit(store, number)
        end = store.horizon("events")
        middle = Cursor(store.store_id, "events", None, end // 2)
        until = Cursor(store.store_id, "events", None, end // 2 + 1000)
        frame = store.read("events", since=middle, until=until)
        assert frame.count() == 1000
        costs.append(touched(frame))
        newest = Cursor(store.store_id, "events", None, end - 1000)
        costs.append(touched(store.read("events", since=newest)))
    early_middle, early_end, late_middle, late_end = costs
    assert early_middle["resultDataFiles"] == late_middle["resultDataFiles"] == 2
    assert early_end["resultDataFiles"] == late_end["resultDataFiles"] == 2
    assert late_middle["totalDataFileSize"] <= 1.1 * early_middle["totalDataFileSize"]
    assert late_end["totalDataFileSize"] <= 1.1 * early_end["totalDataFileSize"]
    # The same through `read_since`: every other file is taken away, and it does not notice.
    state = store.engine.lake.load("events_g1")
    newest_cursor = Cursor(store.store_id, "events", None, end - 1000)
    files = store.spark.table(store.engine.lake.catalog.spark_name("events_g1"))
    kept = {row[0] for row in files.where(f"_ingest_seq > {end - 1000}").selectExpr("input_file_name()").collect()}
    names = {Path(location).name for location in kept}
    for path in (store.path / "lake" / "datasets").rglob("*.parquet"):
        if path.name not in names:
            path.unlink()
    assert state is not None
    assert sum(batch.table.num_rows for batch in store.read_since("events", newest_cursor)) == 1000


@pytest.mark.spark
def test_a_commit_through_another_handle_is_seen_at_once(store: Store) -> None:
    """Also by frames: the session has read the table before, and no cached table hides what is new."""
    commit(store, 0)
    assert store.read("events").count() == COMMIT_ROWS
    assert len(rows_of(store)) == COMMIT_ROWS
    with open_store(store.path, spark=store.spark) as other:
        commit(other, 1)
    assert store.read("events").count() == 2 * COMMIT_ROWS
    assert len(rows_of(store)) == 2 * COMMIT_ROWS
    assert store.sql("SELECT count(*) AS n FROM events").first()["n"] == 2 * COMMIT_ROWS


@pytest.mark.spark
def test_caching_is_switched_off_also_for_a_catalog_that_the_user_configured(spark: Any, tmp_path: Path) -> None:
    given = Catalog.embedded(name="users_own", lake=tmp_path)
    given.spark_settings["cache-enabled"] = "true"
    lake = SparkLake(given, lambda: spark)
    assert lake.spark.conf.get("spark.sql.catalog.users_own.cache-enabled") == "false"


@pytest.mark.spark
def test_no_system_column_is_seen_in_frames_or_sql(store: Store) -> None:
    commit(store, 0)
    assert sorted(store.read("events").columns) == ["id", "site"]
    assert store.read("events", columns=["site"]).columns == ["site"]
    assert sorted(store.sql("SELECT * FROM events").columns) == ["id", "site"]
    for batch in store.read_since("events"):
        assert sorted(batch.table.column_names) == ["id", "site"]
