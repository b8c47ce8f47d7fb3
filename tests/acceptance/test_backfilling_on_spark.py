"""History that Spark reads: DataFrames, tables, queries; and rows that are recognised before they are stored."""

from __future__ import annotations

import gzip
import json
import signal
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from acceptance.stores import make_store, said_by, start_script
from floodmark import faults
from floodmark.errors import InvalidSetting, Retryable
from floodmark.sources import files, load, parallel_text, steps
from floodmark.store import open_store

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

    name = f"`{store.engine.lake.catalog.name}`.old.events"
    spark.sql(f"CREATE NAMESPACE `{store.engine.lake.catalog.name}`.old")
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


def test_large_texts_are_parsed_by_sparks_workers(store, tmp_path: Path, monkeypatch) -> None:
    """In pieces, beside live rows; interrupted, and gone on with; and nobody can tell from the rows."""
    for module, name, value in (
        (parallel_text, "LARGE_BYTES", 1),
        (parallel_text, "PIECE_BYTES", 12_000),
        (parallel_text, "GROUP_BYTES", 40_000),
        (files, "BLOCK_BYTES", 9_000),
        (load, "STEP_ROWS", 100),
    ):
        monkeypatch.setattr(module, name, value)
    rows = [{**row, "at": row["at"].isoformat(), "tags": {"n": row["id"]}} for row in history(0, 1000).to_pylist()]
    lines = [json.dumps(row) for row in rows[:600]]
    lines[300:300] = ["no row", json.dumps({"id": "x"})]
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "1.jsonl").write_text("\n".join(lines))
    with gzip.open(tmp_path / "old" / "2.jsonl.gz", "wt") as packed:
        packed.writelines(json.dumps(row) + "\n" for row in rows[600:800])
    csv = "".join(f"{row['id']},{row['at']},{row['text']}\n" for row in rows[800:])
    (tmp_path / "old" / "3.csv").write_text("id,at,text\nwhat?\n" + csv)

    store.capture("events", history(250, 260).to_pylist())
    faults.arm("backfill.spread", faults.nth_time(2, _interrupt))
    with pytest.raises(KeyboardInterrupt):
        store.backfill("events", tmp_path / "old")
    faults.disarm_all()
    report = store.backfill("events", tmp_path / "old")
    assert stored(store) == list(range(1000))
    assert report.units == 3
    held = [entry.reason.partition("old/")[2].split(": ")[0] for entry in store.quarantine.entries("events")]
    assert sorted(held) == ["1.jsonl:301", "1.jsonl:302", "3.csv row 1"]
    found = {row["id"]: row for b in store.read_since("events") for row in b.table.to_pylist()}
    wanted = {row["id"]: row for row in history(0, 1000).to_pylist()}
    assert all((found[id]["at"], found[id]["text"]) == (row["at"], row["text"]) for id, row in wanted.items())
    assert json.loads(found[599]["tags"]) == {"n": 599}
    assert store.backfill("events", tmp_path / "old").units_loaded_before == 3
    assert not list((store.path / "spool" / "events" / "staged").iterdir())


def _interrupt() -> None:
    raise KeyboardInterrupt


def test_what_is_committed_is_left_out_before_it_is_stored(store, tmp_path: Path, monkeypatch) -> None:
    """B2: and what Spark cannot look for is left to flush, which fails rather than guess."""
    monkeypatch.setattr(load, "STORED_ROWS_MIN", 1)
    store.capture("events", history(0, 50))
    store.flush("events")
    folder = tmp_path / "history"
    folder.mkdir()
    for number in range(2):
        pq.write_table(history(number * 50, number * 50 + 50), folder / f"{number}.parquet")
    sent: list[int] = []
    write = steps.write_segment
    monkeypatch.setattr(steps, "write_segment", lambda *a, **k: sent.append(a[2].num_rows) or write(*a, **k))
    before = store.engine.lake.jobs
    report = store.backfill("events", folder)
    assert (report.new, report.already_stored, sum(sent)) == (50, 50, 50)
    assert store.engine.lake.jobs - before == 1, "only the append: what is committed is found in the files themselves"
    assert stored(store) == list(range(100))

    for path in (store.path / "lake").rglob("*.parquet"):
        path.rename(path.with_suffix(".away"))
    with pytest.raises(Retryable):
        store.backfill("events", history(90, 110))
    for path in (store.path / "lake").rglob("*.away"):
        path.rename(path.with_suffix(".parquet"))
    store.flush("events")
    assert stored(store) == list(range(110))


def test_what_was_looked_at_once_is_not_looked_at_by_each_commit(store, tmp_path: Path, spark, monkeypatch) -> None:
    """B2: only what came since is compared. A live row of that time is found, and is one row."""
    from floodmark.lake import spark as lake_module

    for module, name, value in ((load, "STORED_ROWS_MIN", 1), (load, "STEP_ROWS", 10), (steps, "FLUSH_ROWS", 10)):
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(files, "BATCH_ROWS", 20)
    seen: list[int] = []
    real = lake_module.looked_through
    monkeypatch.setattr(lake_module, "looked_through", lambda *a: seen.append(real(*a)) or seen[-1])
    whole = history(0, 100)
    store.capture("events", whole.take(list(range(0, 100, 2))))
    store.flush("events")
    pq.write_table(whole.take(sorted(range(100), key=lambda n: n % 10)), tmp_path / "old.parquet")
    live = open_store(store.path, spark=spark)

    def capture() -> None:
        live.capture("events", whole.slice(71, 9).to_pylist())
        live.flush("events")

    faults.arm("backfill.stored", faults.nth_time(2, capture))
    report = store.backfill("events", tmp_path / "old.parquet")
    live.close()
    assert stored(store) == list(range(100))
    assert report.read == 100
    assert 50 in seen, "the fifty rows that were looked at before"


def old_table(store, content: pa.Table, name: str = "events") -> str:
    """An Iceberg table beside the store's own."""
    catalog, spark = store.engine.lake.catalog.name, store.spark
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS `{catalog}`.old")
    spark.createDataFrame(content).writeTo(f"`{catalog}`.old.{name}").using("iceberg").create()
    return f"{catalog}.old.{name}"


def test_a_process_that_is_killed_in_the_middle_is_gone_on_with(store, monkeypatch) -> None:
    """B1: SIGKILL at 60 %, with some of it committed; a table gives its rows in no order that one could rely on."""
    for module, name, value in ((load, "STEP_ROWS", 20), (steps, "FLUSH_ROWS", 20), (files, "BATCH_ROWS", 10)):
        monkeypatch.setattr(module, name, value)
    store.capture("events", history(90, 110).to_pylist())
    table = old_table(store, history(0, 100))
    killed = start_script(store.path, "killed", "backfilling_process.py", table, fault="backfill.stored:3")
    assert killed.wait(180) == -signal.SIGKILL, said_by(store.path, "killed").read_text()[-3000:]
    assert 40 <= len(stored(store)) <= 60, "some of what it read is committed, the rest of that waits"

    report = store.backfill("events", table)
    assert report.read == 40, "the rest, and nothing again"
    assert stored(store) == list(range(110))
    again = store.backfill("events", table)
    assert (again.read, again.new, again.units_loaded_before) == (0, 0, 1)
    assert stored(store) == list(range(110))
    assert list((store.path / "spool" / "events" / "staged").glob("*/*.parquet")) == []


SOURCES = {
    "a directory": lambda _, home, old: _parquet(home / "old" / "1.parquet", old).parent,
    "a list": lambda _, __, old: old.to_pylist(),
    "a table": lambda store, _, old: old_table(store, old),
}
"""Read by Spark, given by this process, and Spark's own. The scenarios rename columns of every kind of source."""


def _parquet(path: Path, old: pa.Table) -> Path:
    path.parent.mkdir(exist_ok=True)
    pq.write_table(old, path)
    return path


@pytest.mark.parametrize("kind", SOURCES)
def test_a_query_a_window_and_new_names_for_every_kind_of_source(store, tmp_path: Path, kind: str) -> None:
    old = pa.table({"n": list(range(40)), "minute": list(range(40)), "said": [f"M{n}" for n in range(40)]})
    source: Any = SOURCES[kind](store, tmp_path, old)
    at = "timestamp_micros(1767225600000000 + minute * 60000001L) AS at"
    report = store.backfill(
        "events",
        source,
        select=f"SELECT n * 2 AS key, {at}, lower(said) AS text FROM source WHERE n % 2 = 0",
        map={"key": "id"},
        since=START + timedelta(minutes=10),
        until=START + timedelta(minutes=20, microseconds=20),
    )
    assert stored(store) == [20, 24, 28, 32, 36]
    assert (report.new, report.quarantined) == (5, 0)
    rows = [row for batch in store.read_since("events") for row in batch.table.to_pylist()]
    assert {row["text"] for row in rows} == {"m10", "m12", "m14", "m16", "m18"}
