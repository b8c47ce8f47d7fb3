"""The store: capture, flush, reads and memory, against what plain Spark does with the same files."""

from __future__ import annotations

import shutil
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Self

import orjson

from bench.measure import Cost, jvm_resident_bytes, measured, median
from bench.sample import rows, table
from floodmark.lake.embedded import on_spark
from floodmark.schema import CONTENT_ID, SEGMENT
from floodmark.store import Store, init

USER_COLUMNS = ("part_id", "ts", "source", "role", "tokens", "cost", "text")
SCHEMA = {
    "part_id": "string",
    "ts": "timestamp",
    "source": "string",
    "role": "string",
    "tokens": "long",
    "cost": "double",
    "text": "string",
}
SEGMENT_ROWS = 250_000
WARMING_READS = 7
"""The first reads of a process load what the others find loaded: they do not count."""


def run(*, scale: float = 1.0) -> dict[str, Any]:
    """Every figure of the store. `scale` shrinks the row counts for a quick look."""
    figures: dict[str, Any] = {}
    directory = Path(tempfile.mkdtemp(prefix="floodmark-bench-"))
    try:
        with init(directory / "store") as store:
            figures["capture"] = capture_figures(store, scale=scale)
            figures["flush"] = flush_figures(store, int(1_000_000 * scale))
            figures["read"] = read_figures(store, [int(n * scale) for n in (100_000, 1_000_000, 5_000_000)])
            figures["memory"] = memory_figures(store, [int(n * scale) for n in (500_000, 5_000_000)])
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return figures


# ── capture ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def capture_figures(store: Store, *, scale: float) -> dict[str, Any]:
    store.add_dataset("captured", schema=SCHEMA)
    calls = max(20, int(200 * scale))
    batches = [rows(1000, first=index * 1000) for index in range(calls)]
    size = len(orjson.dumps(batches[0][0]))
    cost = measured(lambda: [store.capture("captured", batch) for batch in batches])
    return {
        "row_bytes_json": size,
        "rows_per_call_1000": {"rows_per_second": round(calls * 1000 / cost.wall_seconds), "target": ">= 100,000"},
        "rows_per_call_1_threads_16": _single_rows(store, calls=max(100, int(500 * scale))),
    }


def _single_rows(store: Store, *, calls: int) -> dict[str, Any]:
    one = rows(1)

    def writer() -> None:
        for _ in range(calls):
            store.capture("captured", one)

    threads = [threading.Thread(target=writer) for _ in range(16)]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {"rows_per_second": round(16 * calls / (time.perf_counter() - start))}


# ── flush ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def flush_figures(store: Store, count: int, *, rounds: int = 4) -> dict[str, Any]:
    """The same segments, appended plainly by Spark and flushed with every guarantee, turn by turn."""
    parts = [table(min(SEGMENT_ROWS, count), first=first) for first in range(0, count, SEGMENT_ROWS)]
    plain: list[Cost] = []
    stamped: list[Cost] = []
    identified: list[Cost] = []
    for turn in range(rounds + 2):
        ours, theirs = f"flushed_{turn}", f"identified_{turn}"
        store.add_dataset(ours, schema=SCHEMA)
        store.add_dataset(theirs, identity=["part_id"], event_time="ts", schema=SCHEMA)
        for name in (ours, theirs):
            store.capture(name, rows(1, seed=99))
            store.flush(name)  # the table exists before the clock starts, as the plain one does
            for part in parts:
                store.capture(name, part)
        _prepare_plain(store, turn)
        files = sorted(str(path) for path in (store.path / "spool" / ours / "segments").glob("*.parquet"))
        costs = (
            measured(lambda files=files, turn=turn: _plain_append(store, files, turn)),
            measured(lambda name=ours: store.flush(name)),
            measured(lambda name=theirs: store.flush(name)),
        )
        if turn >= 2:  # the first two turns warm the JVM up for all three
            for held, cost in zip((plain, stamped, identified), costs, strict=True):
                held.append(cost)
    return {
        "rows": count,
        "plain_append": _speed(count, median(plain)),
        "flush": {**_speed(count, median(stamped)), **_ratios(median(plain), median(stamped))},
        "flush_with_identity": {**_speed(count, median(identified)), **_ratios(median(plain), median(identified))},
        "target": "rows/s at least 0.8 and CPU at most 1.2 of the plain append",
    }


def _plain_append(store: Store, files: list[str], turn: int) -> None:
    """What a user would write: read the files, append them, no guarantee of any kind."""
    spark = store.spark
    name = f"`{on_spark(store.engine.lake).catalog.name}`.plain.turn_{turn}"
    frame = spark.read.parquet(*files).drop(CONTENT_ID, SEGMENT)
    frame.writeTo(name).append()


def _prepare_plain(store: Store, turn: int) -> None:
    columns = "part_id string, ts timestamp, source string, role string, tokens bigint, cost double, text string"
    catalog = on_spark(store.engine.lake).catalog.name
    store.spark.sql(f"CREATE NAMESPACE IF NOT EXISTS `{catalog}`.plain")
    store.spark.sql(f"CREATE TABLE IF NOT EXISTS `{catalog}`.plain.turn_{turn} ({columns}) USING iceberg")


def _speed(count: int, cost: Cost) -> dict[str, Any]:
    return {
        "rows_per_second": round(count / cost.wall_seconds),
        "wall_seconds": round(cost.wall_seconds, 2),
        "cpu_seconds": round(cost.cpu_seconds, 2),
    }


def _ratios(plain: Cost, ours: Cost) -> dict[str, float]:
    return {
        "speed_ratio": round(plain.wall_seconds / ours.wall_seconds, 2),
        "cpu_ratio": round(ours.cpu_seconds / plain.cpu_seconds, 2),
    }


# ── reads ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def read_figures(store: Store, sizes: list[int]) -> dict[str, Any]:
    """A thousand new rows out of ever more stored ones: what is touched must not grow."""
    store.add_dataset("read", schema=SCHEMA)
    stored, found = 0, {}
    for size in sizes:
        while stored < size:
            step = min(SEGMENT_ROWS, size - stored)
            store.capture("read", table(step, first=stored))
            stored += step
        store.flush("read")
        cursor = store.cursor("read")
        store.capture("read", rows(1000, first=stored))
        store.flush("read")
        stored += 1000
        if not found:
            for _ in range(WARMING_READS):
                _timed_read(store, cursor)
        times = [_timed_read(store, cursor) for _ in range(7)]
        found[f"{size:,}"] = {**_touched(store, cursor), "milliseconds": round(1000 * statistics.median(times), 1)}
    smallest = min(item["milliseconds"] for item in found.values())
    slowest = max(item["milliseconds"] for item in found.values())
    return {"new_rows": 1000, "by_stored_rows": found, "time_ratio": round(slowest / smallest, 2), "target": "<= 1.3"}


def _timed_read(store: Store, cursor: Any) -> float:
    start = time.perf_counter()
    count = sum(batch.table.num_rows for batch in store.read_since("read", cursor))
    if count != 1000:
        raise SystemExit(f"read {count} rows instead of 1000")
    return time.perf_counter() - start


def _touched(store: Store, cursor: Any) -> dict[str, int]:
    """The files that Iceberg plans for the range, and their bytes, counted by another engine than the one timed."""
    dataset = next(item for item in store.datasets() if item.name == "read")
    loaded = on_spark(store.engine.lake).catalog.table(dataset.table_name)
    planned = list(loaded.scan(row_filter=f"_ingest_seq > {cursor.seq}").plan_files())
    return {
        "files": len(planned),
        "bytes": sum(task.file.file_size_in_bytes for task in planned),
        "manifests": len(loaded.current_snapshot().manifests(loaded.io)),
    }


# ── memory ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def memory_figures(store: Store, sizes: list[int]) -> dict[str, Any]:
    """The JVM's resident memory after flushing few and many rows. The heap's limit is the same for both."""
    found = {}
    for size in sizes:
        name = f"memory_{size}"
        store.add_dataset(name, schema=SCHEMA)
        for first in range(0, size, SEGMENT_ROWS):
            store.capture(name, table(min(SEGMENT_ROWS, size - first), first=first))
        peak = _Peak()
        with peak:
            report = store.flush(name)
        found[f"{size:,}"] = {
            "rows": report.rows,
            "blocks": report.blocks,
            "jvm_peak_mib": peak.bytes >> 20,
            "heap_limit": store.settings.spark.driver_memory,
        }
    return found


class _Peak:
    """Watches the JVM's resident memory while the block runs."""

    def __enter__(self) -> Self:
        self.bytes = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(0.1):
            self.bytes = max(self.bytes, jvm_resident_bytes())
