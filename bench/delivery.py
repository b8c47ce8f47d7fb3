"""Delivery: ticks, a first export and forwarding, side by side with what users would pick instead.

Beside us stand Spark Structured Streaming (Iceberg source, AvailableNow, Parquet sink) and dlt (filesystem destination,
incremental cursor on the sequence number). All three read the same table in the same process, turn by turn.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.measure import Cost, measured, median
from bench.sample import rows, table
from bench.store import SCHEMA, SEGMENT_ROWS, USER_COLUMNS
from floodmark.lake.embedded import on_spark
from floodmark.store import Store, init

NEW_ROWS = 1000
TURNS = 5
NO_NEW_TICKS = 50
FORWARD_CHUNKS = (5_000, 10_000)
"""Rows in a chunk: the default, and twice that."""


def run(*, scale: float = 1.0) -> dict[str, Any]:
    directory = Path(tempfile.mkdtemp(prefix="floodmark-bench-"))
    try:
        with init(directory / "store") as store:
            bench = _Bench(store, directory)
            sizes = [int(n * scale) for n in (100_000, 1_000_000, 5_000_000)]
            figures: dict[str, Any] = {"ticks": {}, "target": TARGETS}
            for size in sizes:
                bench.grow_to(size)
                figures["ticks"][f"{size:,}"] = {**bench.ticks(), "stored": size}
                if size == sizes[1]:
                    figures["first_export"] = bench.first_export(size)
            figures["flat"] = _flatness(figures["ticks"])
        figures["forward"] = forward_figures(directory, int(1_000_000 * scale))
        return figures
    finally:
        shutil.rmtree(directory, ignore_errors=True)


TARGETS = {
    "no_new": "under 5 ms and flat",
    "new_rows": "flat, and at most half of Structured Streaming's",
    "first_export": "at least 1.3 of a plain df.write.parquet, at least 0.8 through Iceberg's reader",
    "forward": "at least 100,000 rows/s",
}


@dataclass
class _Bench:
    """One growing table, and three ways to keep a directory of Parquet files up to date with it."""

    store: Store
    directory: Path
    stored: int = 0
    _dlt: Any = None
    _ways: dict[str, Callable[[], int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.store.add_dataset("rows", schema=SCHEMA)
        self.store.add_sink("files", "blob", url=(self.directory / "files").as_uri())
        self._ways = {
            "floodmark": lambda: self.store.export("files").rows,
            "structured_streaming": lambda: self.stream("stream"),
            "dlt": lambda: self.load("dlt"),
        }

    def grow_to(self, size: int) -> None:
        while self.stored < size:
            step = min(SEGMENT_ROWS, size - self.stored)
            self.store.capture("rows", table(step, first=self.stored))
            self.stored += step
        self.store.flush("rows")
        for way in self._ways.values():
            way()

    def ticks(self) -> dict[str, Any]:
        """A tick without anything new, and one with a thousand new rows, each way in turn."""
        found: dict[str, dict[str, Any]] = {name: {"no_new_ms": [], "new_rows_ms": []} for name in self._ways}
        for turn in range(TURNS + 1):
            self.store.capture("rows", rows(NEW_ROWS, first=self.stored))
            self.stored += NEW_ROWS
            self.store.flush("rows")
            for name, way in self._ways.items():
                spent = _milliseconds(way)
                if turn:  # the first turn warms all three up
                    found[name]["new_rows_ms"].append(spent)
            repeats = {"floodmark": NO_NEW_TICKS}
            for name, way in self._ways.items():
                found[name]["no_new_ms"] += [_milliseconds(way) for _ in range(repeats.get(name, 1))]
        jobs = self.store.export("files").spark_jobs
        result = {
            name: {key: round(statistics.median(values), 1) for key, values in item.items()}
            for name, item in found.items()
        }
        result["floodmark"]["no_new_spark_jobs"] = jobs
        streaming = result["structured_streaming"]["new_rows_ms"]
        result["new_rows_against_streaming"] = round(result["floodmark"]["new_rows_ms"] / streaming, 2)
        return result

    def first_export(self, size: int) -> dict[str, Any]:
        """All rows to fresh places, each way in turn; ours ordered, of exact ranges, and on the disk."""
        held = {name: [] for name in ("plain_write", "direct", "icebergs_reader", "structured_streaming", "dlt")}
        for turn in range(4):
            ways: dict[str, Callable[[], object]] = {
                "plain_write": lambda turn=turn: self.plain_write(f"plain_{turn}"),
                "direct": lambda turn=turn: self.export_anew(f"direct_{turn}", direct=True),
                "icebergs_reader": lambda turn=turn: self.export_anew(f"reader_{turn}", direct=False),
                "structured_streaming": lambda turn=turn: self.stream(f"stream_{turn}"),
                "dlt": lambda turn=turn: self.load(f"dlt_{turn}"),
            }
            for name, way in ways.items():
                cost = measured(way)
                if turn:
                    held[name].append(cost)
        costs: dict[str, Cost] = {name: median(values) for name, values in held.items()}
        plain = costs["plain_write"].wall_seconds
        return {
            name: {
                "rows_per_second": round(self.stored / cost.wall_seconds),
                "cpu_seconds": round(cost.cpu_seconds, 2),
                "of_plain_write": round(plain / cost.wall_seconds, 2),
            }
            for name, cost in costs.items()
        } | {"rows": self.stored, "asked_for": size}

    # ── the ways ─────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def _table(self) -> str:
        (dataset,) = self.store.datasets()
        return on_spark(self.store.engine.lake).catalog.spark_name(dataset.table_name)

    def plain_write(self, name: str) -> None:
        frame = self.store.spark.table(self._table).select(*USER_COLUMNS)
        frame.write.option("compression", "zstd").parquet(str(self.directory / name))

    def export_anew(self, name: str, *, direct: bool) -> None:
        self.store.add_sink(name, "blob", url=(self.directory / name).as_uri())
        on_spark(self.store.engine.lake).direct = direct
        report = self.store.export(name)
        on_spark(self.store.engine.lake).direct = True
        self.store.remove_sink(name)
        if report.rows != self.stored:
            raise SystemExit(f"exported {report.rows} rows instead of {self.stored}: {report.errors}")

    def stream(self, name: str) -> int:
        frame = self.store.spark.readStream.format("iceberg").load(self._table.replace("`", ""))
        query = (
            frame.select(*USER_COLUMNS)
            .writeStream.format("parquet")
            .option("checkpointLocation", str(self.directory / f"{name}-checkpoint"))
            .option("path", str(self.directory / name))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return 0

    def load(self, name: str) -> int:
        import dlt
        from dlt.destinations import filesystem

        os.environ["RUNTIME__DLTHUB_TELEMETRY"] = "false"
        os.environ["RUNTIME__LOG_LEVEL"] = "ERROR"
        (dataset,) = self.store.datasets()
        catalog = on_spark(self.store.engine.lake).catalog

        @dlt.resource(name="rows", write_disposition="append")
        def source(seq: Any = dlt.sources.incremental("_ingest_seq", initial_value=0)) -> Iterator[Any]:  # noqa: B008 - as dlt wants it
            loaded = catalog.table(dataset.table_name)
            scan = loaded.scan(
                row_filter=f"_ingest_seq > {seq.last_value}", selected_fields=(*USER_COLUMNS, "_ingest_seq")
            )
            yield from scan.to_arrow_batch_reader()

        pipeline = dlt.pipeline(
            name.replace("-", "_"),
            pipelines_dir=str(self.directory / "dlt-state"),
            destination=filesystem(bucket_url=str(self.directory / name)),
            dataset_name="copied",
        )
        pipeline.run(source(), loader_file_format="parquet")
        return 0


def _milliseconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return 1000 * (time.perf_counter() - start)


def _flatness(ticks: dict[str, Any]) -> dict[str, float]:
    """The slowest size against the fastest."""
    return {
        key: round(
            max(item["floodmark"][key] for item in ticks.values())
            / min(item["floodmark"][key] for item in ticks.values()),
            2,
        )
        for key in ("no_new_ms", "new_rows_ms")
    }


# ── forwarding ───────────────────────────────────────────────────────────────────────────────────────────────────────


def forward_figures(directory: Path, count: int) -> dict[str, Any]:
    """A store forwards to a hub in another process on loopback; a chunk counts when the hub has it on its disk."""
    with init(directory / "hub") as hub:
        hub.add_dataset("rows", schema=SCHEMA)
    figures: dict[str, Any] = {"rows": count}
    with init(directory / "sender") as sender, hub_process(directory / "hub") as url:
        sender.add_dataset("rows", schema=SCHEMA)
        for first in range(0, count, SEGMENT_ROWS):
            sender.capture("rows", table(min(SEGMENT_ROWS, count - first), first=first))
        sender.flush("rows")
        for chunk_rows in FORWARD_CHUNKS:
            # Under an origin of its own each time: the hub takes everything anew.
            name = f"chunks_of_{chunk_rows}"
            sender.add_sink(name, "forward", url=url, chunk_rows=chunk_rows, origin=name)
            cost = measured(lambda name=name: sender.export(name))
            figures[name] = {
                "rows_per_second": round(count / cost.wall_seconds),
                "sender_cpu_seconds": round(cost.cpu_seconds, 2),
                "rows_in_the_hubs_ledger": _arrived(url, name),
            }
            sender.remove_sink(name)
    return figures


def _arrived(url: str, origin: str) -> int:
    with urllib.request.urlopen(f"{url}/v1/ledger/{origin}", timeout=10) as answer:
        return sum(channel["rows"] for channel in json.load(answer)["channels"])


@contextlib.contextmanager
def hub_process(path: Path, *options: str, workers: int = 1) -> Iterator[str]:
    """A real hub on a free port of this machine, until the block ends."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [str(Path(sys.executable).with_name("floodmark")), "-s", str(path), "hub"]
    listen = ["--port", str(port), "--workers", str(workers)]
    process = subprocess.Popen([*command, *listen, *options], stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(200):
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/healthz", timeout=1):
                break
            time.sleep(0.1)
        yield url
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=30)
