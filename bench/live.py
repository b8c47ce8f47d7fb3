"""Rows on their way: from the time at which their sender had its answer to visible, and to delivered.

Two processes send at a steady rate. First to a store, where `floodmark run` flushes every half second and delivers to a
blob sink; then, the same rows, as Parquet files to a Structured Streaming query that runs all the time, drops what it
has seen, and writes to Iceberg. Another process looks at the committed rows, and this one at the objects.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from bench.fresh import COLUMNS, parquet_file
from bench.sample import rows
from floodmark.lake.embedded import on_spark
from floodmark.store import init, open_store

RATE = 1_000
WRITERS = 2
BATCH = 50
MINUTES = 5.0
LATE_SECONDS = 10.0
"""So long after the last row it is still looked for."""
SETTINGS = {"FLOODMARK_RUN__FLUSH_SECONDS": "0.5", "FLOODMARK_RUN__EXPORT_SECONDS": "1"}
_SHARES = {"p50": 0.5, "p99": 0.99, "most": 1.0}


def run(*, scale: float = 1.0) -> dict[str, Any]:
    directory = Path(tempfile.mkdtemp(prefix="floodmark-live-"))
    seconds = 60 * MINUTES * scale
    try:
        return {
            "floodmark": measured(directory / "ours", seconds=seconds),
            "structured streaming": streamed(directory / "theirs", seconds=seconds),
            "target": "p50 <= 1 s, p99 <= 2.5 s",
        }
    finally:
        shutil.rmtree(directory, ignore_errors=True)


# ── floodmark run ────────────────────────────────────────────────────────────────────────────────────────────────────


def measured(directory: Path, *, seconds: float) -> dict[str, Any]:
    directory.mkdir()
    path, out = directory / "store", directory / "out"
    with init(path) as store:
        store.add_dataset("events", identity=["part_id"], event_time="ts", partition_by=[])
        store.add_sink("archive", "blob", url=out.as_uri(), format="parquet")
        store.capture("events", rows(1))
    command = [sys.executable, "-m", "floodmark.cli", "-s", str(path), "run", "--json"]
    with (directory / "run.log").open("w") as log:
        daemon = subprocess.Popen(command, stdout=log, env={**os.environ, **SETTINGS})
        try:
            _wait(lambda: any(out.rglob("*.parquet")), seconds=120)
            others = [_start("reader", path, seconds)]
            others += [_start("writer", path, seconds, str(number)) for number in range(WRITERS)]
            delivered = _delivered(out, until=time.monotonic() + seconds + LATE_SECONDS)
            told = [json.loads(other.communicate()[0]) for other in others]
        finally:
            daemon.terminate()
            daemon.wait()
        events = [json.loads(line) for line in (directory / "run.log").read_text().splitlines()]
    captured = {key: at for one in told[1:] for key, at in one.items()}
    flushes = [item["seconds"] for item in events if item["event"] == "flushed"]
    with open_store(path) as store:
        state = store.engine.lake.load("events_g1")
        files = 0 if state is None else len(store.engine.lake.files(state).files)
        snapshots = 0 if state is None else len(state.lineage)
    return {
        "rows": len(captured) * BATCH,
        "to visible": _percentiles(captured, told[0]),
        "to delivered": _percentiles(captured, delivered),
        "flushes": len(flushes),
        "flush milliseconds, median": round(1000 * sorted(flushes)[len(flushes) // 2]),
        "compactions": sum(item["event"] == "compacted" for item in events),
        "problems": [item for item in events if item["event"] == "problem"],
        "data files at the end": files,
        "snapshots at the end": snapshots,
    }


def _percentiles(captured: dict[str, float], seen: dict[str, float]) -> dict[str, Any]:
    waits = sorted(seen[key] - at for key, at in captured.items() if key in seen)
    missing = len(captured) - len(waits)
    if not waits:
        return {"batches not seen": missing}
    at = {name: waits[min(len(waits) - 1, math.ceil(share * len(waits)) - 1)] for name, share in _SHARES.items()}
    return {**{name: round(value, 2) for name, value in at.items()}, "batches not seen": missing}


def _wait(condition: Any, *, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit("nothing was delivered")
        time.sleep(0.1)


def _start(part: str, path: Path, seconds: float, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "bench.live", part, str(path), str(seconds), *more]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def _delivered(out: Path, *, until: float) -> dict[str, float]:
    known: set[Path] = set()
    found: dict[str, float] = {}
    while time.monotonic() < until:
        for path in set(out.rglob("*.parquet")) - known:
            known.add(path)
            for key in pq.read_table(path, columns=["source"])["source"].to_pylist():
                found.setdefault(key, time.time())
        time.sleep(0.05)
    return found


def write(path: Path, seconds: float, writer: str) -> dict[str, float]:
    """Capture batches at the rate; each batch's rows name it. When each capture returned."""
    with open_store(path) as store:
        return _sent(lambda made, _: store.capture("events", made), seconds, writer)


def _sent(send: Callable[[list[dict[str, Any]], str], object], seconds: float, writer: str) -> dict[str, float]:
    returned = {}
    every = BATCH * WRITERS / RATE
    began = time.monotonic()
    for turn in range(int(seconds / every)):
        time.sleep(max(0.0, began + turn * every - time.monotonic()))
        key = f"{writer}-{turn}"
        made = rows(BATCH, first=turn * BATCH, seed=2 + int(writer))
        send([{**row, "source": key} for row in made], key)
        returned[key] = time.time()
    return returned


def look(path: Path, seconds: float) -> dict[str, float]:
    """Read what is new, again and again. When each batch was seen first."""
    found: dict[str, float] = {}
    deadline = time.monotonic() + seconds + LATE_SECONDS
    with open_store(path) as store:
        cursor = store.cursor("events")
        while time.monotonic() < deadline:
            for batch in store.read_since("events", cursor):
                for key in batch.table["source"].to_pylist():
                    found.setdefault(key, time.time())
                cursor = batch.cursor
            time.sleep(0.05)
    return found


# ── Structured Streaming ─────────────────────────────────────────────────────────────────────────────────────────────


def streamed(directory: Path, *, seconds: float) -> dict[str, Any]:
    directory.mkdir()
    incoming, path = directory / "incoming", directory / "store"
    incoming.mkdir()
    init(path).close()  # for its catalog, and for a session with the same settings
    parquet_file(rows(1), incoming / "first.parquet")
    query = _start("query", path, seconds)
    try:
        _wait((directory / "ready").exists, seconds=180)
        others = [_start("table-reader", path, seconds)]
        others += [_start("file-writer", path, seconds, str(number)) for number in range(WRITERS)]
        told = [json.loads(other.communicate()[0]) for other in others]
    finally:
        query.terminate()
        query.wait()
    sent = {key: at for one in told[1:] for key, at in one.items()}
    return {"rows": len(sent) * BATCH, "to visible": _percentiles(sent, told[0])}


def stream(path: Path, seconds: float) -> dict[str, float]:
    """The query, until this process is ended."""
    with open_store(path) as store:
        catalog = on_spark(store.engine.lake).catalog.name
        store.spark.sql(f"CREATE NAMESPACE IF NOT EXISTS `{catalog}`.plain")
        store.spark.sql(f"CREATE TABLE `{catalog}`.plain.streamed ({COLUMNS}) USING iceberg")
        query = (
            store.spark.readStream.schema(COLUMNS)
            .parquet(str(path.parent / "incoming"))
            .withWatermark("ts", "1 hour")
            .dropDuplicatesWithinWatermark(["part_id"])
            .writeStream.format("iceberg")
            .outputMode("append")
            .option("checkpointLocation", str(path.parent / "checkpoint"))
            .trigger(processingTime="0 seconds")
            .toTable(f"`{catalog}`.plain.streamed")
        )
        query.processAllAvailable()
        (path.parent / "ready").touch()
        query.awaitTermination(int(seconds) + 300)
    return {}


def drop_files(path: Path, seconds: float, writer: str) -> dict[str, float]:
    """Each batch as a file, complete from its first moment on."""
    incoming = path.parent / "incoming"

    def send(made: list[dict[str, Any]], key: str) -> None:
        parquet_file(made, incoming / f".{key}")
        (incoming / f".{key}").rename(incoming / f"{key}.parquet")

    return _sent(send, seconds, writer)


def look_at_table(path: Path, seconds: float) -> dict[str, float]:
    """Read the data files that are new in the table, again and again."""
    found: dict[str, float] = {}
    known: set[str] = set()
    deadline = time.monotonic() + seconds + LATE_SECONDS
    with open_store(path) as store:
        catalog = on_spark(store.engine.lake).catalog.python
        while time.monotonic() < deadline:
            table = catalog.load_table(("plain", "streamed"))
            snapshot = table.current_snapshot()
            for manifest in [] if snapshot is None else snapshot.manifests(table.io):
                if manifest.manifest_path in known:
                    continue
                known.add(manifest.manifest_path)
                for entry in manifest.fetch_manifest_entry(table.io):
                    place = entry.data_file.file_path
                    if place not in known:
                        known.add(place)
                        for key in pq.read_table(place.removeprefix("file:"), columns=["source"])["source"].to_pylist():
                            found.setdefault(key, time.time())
            time.sleep(0.05)
    return found


PARTS: dict[str, Callable[..., dict[str, float]]] = {
    "writer": write,
    "reader": look,
    "query": stream,
    "file-writer": drop_files,
    "table-reader": look_at_table,
}

if __name__ == "__main__":
    part, where, length, *which = sys.argv[1:]
    print(json.dumps(PARTS[part](Path(where), float(length), *which)))
