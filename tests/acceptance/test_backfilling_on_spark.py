"""History that Spark reads: DataFrames, tables, queries; and rows that are recognised before they are stored."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from acceptance.stores import make_store
from floodmark.backfill import known
from floodmark.errors import InvalidSetting, Retryable

pytestmark = pytest.mark.spark
START = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def store(tmp_path: Path, spark):
    with make_store(
        tmp_path / "store", spark, identity=["id"], event_time="at", partition_by=[], schema={"id": "long"}
    ) as made:
        yield made


def history(first: int, last: int) -> pa.Table:
    ids = list(range(first, last))
    at = [START + timedelta(minutes=id, microseconds=id) for id in ids]
    return pa.table({"id": ids, "at": pa.array(at, pa.timestamp("us", tz="UTC")), "text": [f"m{id}" for id in ids]})


def stored(store) -> list[int]:
    return sorted(row["id"] for batch in store.read_since("events") for row in batch.table.to_pylist())


def test_frames_tables_and_queries_beside_live_rows(store, tmp_path: Path, spark) -> None:
    """One history in four forms: each row is there once, with its time to the microsecond."""
    store.capture("events", history(0, 10).to_pylist())
    frame = store.backfill("events", spark.createDataFrame(history(5, 40)))
    assert (frame.read, frame.new, frame.already_spooled) == (35, 30, 5)

    name = f"`{store._lake.catalog.name}`.old.events"
    spark.sql(f"CREATE NAMESPACE `{store._lake.catalog.name}`.old")
    spark.createDataFrame(history(30, 80)).writeTo(name).using("iceberg").create()
    plain = name.replace("`", "")
    table = store.backfill("events", plain, since=START + timedelta(minutes=35))
    assert (table.read, table.new, table.already_stored) == (45, 40, 5)
    assert store.backfill("events", plain, since=START + timedelta(minutes=35)).units_loaded_before == 1

    (tmp_path / "old.csv").write_text("key,minute,said\n" + "".join(f"{n},{n},M{n}\n" for n in range(80, 100)))
    at = "timestamp_micros(1767225600000000 + minute * 60000001L) AS at"
    query = f"SELECT key, {at}, lower(said) AS text FROM source"
    asked = store.backfill("events", tmp_path / "old.csv", select=query, map={"key": "id"})
    assert (asked.read, asked.new) == (20, 20)
    with pytest.raises(InvalidSetting, match="cannot be used"):
        store.backfill("events", tmp_path / "old.csv", select="SELECT nothing FROM source")

    assert stored(store) == list(range(100))
    wanted = {row["id"]: (row["at"], row["text"]) for row in history(0, 100).to_pylist()}
    found = {row["id"]: (row["at"], row["text"]) for b in store.read_since("events") for row in b.table.to_pylist()}
    assert found == wanted


def test_what_is_committed_is_left_out_before_it_is_stored(store, tmp_path: Path, monkeypatch) -> None:
    """B2: and what Spark cannot look for is left to flush, which fails rather than guess."""
    monkeypatch.setattr(known, "STORED_ROWS_MIN", 1)
    store.capture("events", history(0, 50))
    store.flush("events")
    folder = tmp_path / "history"
    folder.mkdir()
    for number in range(2):
        pq.write_table(history(number * 50, number * 50 + 50), folder / f"{number}.parquet")
    sent: list[int] = []
    add = type(store._segments).add
    monkeypatch.setattr(type(store._segments), "add", lambda *a, **k: sent.append(a[2].num_rows) or add(*a, **k))
    before = store._lake.jobs
    report = store.backfill("events", folder)
    assert (report.new, report.already_stored, sum(sent)) == (50, 50, 50)
    assert store._lake.jobs - before == 1, "only the append: what is committed is found in the files themselves"
    assert stored(store) == list(range(100))

    for path in (store.path / "lake").rglob("*.parquet"):
        path.rename(path.with_suffix(".away"))
    with pytest.raises(Retryable):
        store.backfill("events", history(90, 110))
    for path in (store.path / "lake").rglob("*.away"):
        path.rename(path.with_suffix(".parquet"))
    store.flush("events")
    assert stored(store) == list(range(110))
