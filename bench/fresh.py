"""Live batches: what a user waits for until new rows are committed, beside a plain append and Structured Streaming.

All of them commit the same rows to Iceberg tables of one catalog in one warm session, turn by turn. Event times overlap
what is committed, and one row in fifty was sent before.
"""

from __future__ import annotations

import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from bench.sample import rows, table
from bench.store import SCHEMA
from floodmark.lake.embedded import on_spark
from floodmark.store import Store, init, open_store

SIZES = (1_000, 10_000)
STORED = 200_000
TURNS = 20
WARM_UP = 8
COLUMNS = "part_id string, ts timestamp, source string, role string, tokens bigint, cost double, text string"
IDENTITY = {"identity": ["part_id"], "event_time": "ts"}


def run(*, scale: float = 1.0) -> dict[str, Any]:
    directory = Path(tempfile.mkdtemp(prefix="floodmark-fresh-"))
    try:
        with init(directory / "store") as store:
            found = live_batches(store, directory, turns=max(3, int(TURNS * scale)))
        return {
            "live batches": found,
            "first commit": first_commit(directory / "first", turns=max(1, int(5 * scale))),
            "commands": commands(directory / "asked", turns=max(3, int(15 * scale))),
        }
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def live_batches(store: Store, directory: Path, *, turns: int) -> dict[str, Any]:
    stored = table(STORED)
    for name, options in (("identified", IDENTITY), ("plain_rows", {})):
        store.add_dataset(name, schema=SCHEMA, **options)
        store.capture(name, stored)
        store.flush(name)
    plain = PlainAppend(store, stored)
    streaming = Streaming(store, directory / "incoming", stored)
    sent_before = stored.slice(STORED // 2, 20_000).to_pylist()
    found = {}
    try:
        for size in SIZES:
            found[f"{size:,} rows"] = _compared(store, size, turns, sent_before, plain=plain, streaming=streaming)
    finally:
        streaming.close()
    return found


def _compared(
    store: Store,
    size: int,
    turns: int,
    sent_before: list[dict[str, Any]],
    *,
    plain: PlainAppend,
    streaming: Streaming,
) -> dict[str, Any]:
    ways: dict[str, Callable[[list[dict[str, Any]]], object]] = {
        "plain append": plain.append,
        "Structured Streaming": streaming.append,
        "Floodmark": lambda batch: _committed(store, "identified", batch),
        "Floodmark without identity": lambda batch: _committed(store, "plain_rows", batch),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    jobs: dict[str, list[int]] = {name: [] for name in ways}
    warm_up = min(WARM_UP, 1 + turns)
    for turn in range(warm_up + turns):
        batch = live_batch(size, turn, sent_before)
        for name, commit in ways.items():
            started, before = time.perf_counter(), store.engine.lake.jobs
            commit(batch)
            if turn >= warm_up:
                seconds[name].append(time.perf_counter() - started)
                jobs[name].append(store.engine.lake.jobs - before)
    base, stream = (statistics.median(seconds[name]) for name in ("plain append", "Structured Streaming"))
    return {
        name: {
            "milliseconds": round(1000 * statistics.median(times)),
            "of plain append": round(statistics.median(times) / base, 2),
            "of Structured Streaming": round(statistics.median(times) / stream, 2),
            **({"jobs": statistics.median(jobs[name])} if name.startswith("Floodmark") else {}),
        }
        for name, times in seconds.items()
    }


def live_batch(size: int, turn: int, sent_before: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """New rows among the times of the stored ones; one in fifty is a stored row."""
    batch = rows(size, first=STORED // 2 + turn * size % (STORED // 2), seed=1 + turn)
    again = random.Random(turn).sample(sent_before, size // 50)
    batch[: len(again)] = [{**row, "ts": row["ts"].isoformat()} for row in again]
    return batch


def _committed(store: Store, name: str, batch: list[dict[str, Any]]) -> None:
    store.capture(name, batch)
    store.flush(name)


def parquet_file(batch: list[dict[str, Any]], path: Path) -> None:
    made = pa.Table.from_pylist(batch)
    at = made.column_names.index("ts")
    pq.write_table(made.set_column(at, "ts", made["ts"].cast(pa.timestamp("us", tz="UTC"))), path)


class PlainAppend:
    """What a user would write: a file of new rows, read and appended. No guarantee of any kind."""

    def __init__(self, store: Store, stored: pa.Table) -> None:
        self.spark = store.spark
        self.name = f"`{on_spark(store.engine.lake).catalog.name}`.plain.appended"
        self.spark.sql(f"CREATE NAMESPACE IF NOT EXISTS `{on_spark(store.engine.lake).catalog.name}`.plain")
        self.spark.sql(f"CREATE TABLE {self.name} ({COLUMNS}) USING iceberg")
        self.file = store.path.parent / "plain.parquet"
        pq.write_table(stored, self.file)
        self.spark.read.parquet(str(self.file)).writeTo(self.name).append()

    def append(self, batch: list[dict[str, Any]]) -> None:
        parquet_file(batch, self.file)
        self.spark.read.parquet(str(self.file)).writeTo(self.name).append()


class Streaming:
    """A query that runs all the time, drops what it has seen within an hour of event time, and writes to Iceberg."""

    def __init__(self, store: Store, incoming: Path, stored: pa.Table) -> None:
        incoming.mkdir()
        self.incoming, self.count = incoming, 0
        spark, catalog = store.spark, on_spark(store.engine.lake).catalog.name
        spark.sql(f"CREATE TABLE `{catalog}`.plain.streamed ({COLUMNS}) USING iceberg")
        pq.write_table(stored, incoming / "stored.parquet")
        self.query = (
            spark.readStream.schema(COLUMNS)
            .parquet(str(incoming))
            .withWatermark("ts", "1 hour")
            .dropDuplicatesWithinWatermark(["part_id"])
            .writeStream.format("iceberg")
            .outputMode("append")
            .option("checkpointLocation", str(incoming.parent / "checkpoint"))
            .trigger(processingTime="0 seconds")
            .toTable(f"`{catalog}`.plain.streamed")
        )
        self.query.processAllAvailable()

    def append(self, batch: list[dict[str, Any]]) -> None:
        self.count += 1
        hidden = self.incoming / f".{self.count}"
        parquet_file(batch, hidden)
        hidden.rename(self.incoming / f"{self.count}.parquet")
        self.query.processAllAvailable()

    def close(self) -> None:
        self.query.stop()


# ── processes of their own ───────────────────────────────────────────────────────────────────────────────────────────


PLAIN_SCRIPT = """
import sys
from pyspark.sql import SparkSession
jars, warehouse, file = sys.argv[1:]
spark = (
    SparkSession.builder.master("local[*]")
    .config("spark.jars", jars)
    .config("spark.ui.enabled", "false")
    .config("spark.sql.extensions", "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions")
    .config("spark.sql.catalog.plain", "org.apache.iceberg.spark.SparkCatalog")
    .config("spark.sql.catalog.plain.type", "hadoop")
    .config("spark.sql.catalog.plain.warehouse", warehouse)
    .getOrCreate()
)
frame = spark.read.parquet(file)
if spark.catalog.tableExists("plain.db.rows"):
    frame.writeTo("plain.db.rows").append()
else:
    frame.writeTo("plain.db.rows").create()
"""


def first_commit(directory: Path, *, turns: int) -> dict[str, Any]:
    """A process that starts, commits a thousand rows and ends: `floodmark flush`, and a plain PySpark script."""
    from floodmark.lake.jars import archive_file, ready_jars

    directory.mkdir()
    with init(directory / "store") as store:
        store.add_dataset("events", schema=SCHEMA, **IDENTITY)
    file = directory / "rows.parquet"
    parquet_file(rows(1_000), file)
    jars = ",".join(map(str, ready_jars()))
    ways = {
        "plain script": [sys.executable, "-c", PLAIN_SCRIPT, jars, str(directory / "plain"), str(file)],
        "floodmark flush": [sys.executable, "-m", "floodmark.cli", "-s", str(directory / "store"), "flush"],
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(turns + 1):
        with open_store(directory / "store") as store:
            store.capture("events", rows(1_000, first=1_000 * turn, seed=turn))
        for name, command in ways.items():
            spent = _timed(command)
            if turn:  # the first makes the tables, and brings the files into memory
                seconds[name].append(spent)
    found: dict[str, Any] = {name: {"seconds": round(statistics.median(spent), 2)} for name, spent in seconds.items()}
    return {**found, "class archive": archive_file().is_file()}


def commands(directory: Path, *, turns: int) -> dict[str, Any]:
    """Commands that need no Spark, each in a process of its own, on warm files."""
    with init(directory) as store:
        store.add_dataset("events", schema={"n": "long"})
        store.add_sink("archive", "blob", url=(directory.parent / "archive").as_uri())
    line = directory.parent / "line.jsonl"
    line.write_text('{"n": 1}\n')
    program = [str(Path(sys.executable).with_name("floodmark")), "-s", str(directory)]
    asked = {
        "status": ["status"],
        "capture": ["capture", "events", "-"],
        "quarantine list": ["quarantine", "list"],
        "sink list": ["sink", "list"],
    }
    seconds: dict[str, list[float]] = {name: [] for name in asked}
    for turn in range(turns + 2):
        for name, arguments in asked.items():
            spent = _timed([*program, *arguments], stdin=line)
            if turn >= 2:
                seconds[name].append(spent)
    return {name: {"seconds": round(statistics.median(spent), 3)} for name, spent in seconds.items()}


def _timed(command: list[str], *, stdin: Path | None = None) -> float:
    """With compiled files, as an installed package has them."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    with (stdin or Path(os.devnull)).open("rb") as given:
        started = time.perf_counter()
        subprocess.run(command, stdin=given, capture_output=True, check=True, env=environment)
        return time.perf_counter() - started
