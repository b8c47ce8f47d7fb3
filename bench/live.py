"""Rows on their way while `floodmark run` works: from capture's return to visible, and to delivered.

Two processes capture at a steady rate; the daemon flushes every half second and delivers to a blob sink. A third
process looks at the committed rows, and this one at the objects.
"""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from bench.sample import rows
from floodmark.store import init, open_store

RATE = 1_000
WRITERS = 2
BATCH = 50
MINUTES = 5.0
SETTINGS = {"# flush_seconds = 30.0": "flush_seconds = 0.5", "# export_seconds = 30": "export_seconds = 1"}


def run(*, scale: float = 1.0) -> dict[str, Any]:
    directory = Path(tempfile.mkdtemp(prefix="floodmark-live-"))
    try:
        return measured(directory, seconds=60 * MINUTES * scale)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def measured(directory: Path, *, seconds: float) -> dict[str, Any]:
    path, out = directory / "store", directory / "out"
    with init(path) as store:
        store.add_dataset("events", identity=["part_id"], event_time="ts", partition_by=[])
        store.add_sink("archive", "blob", url=out.as_uri(), format="parquet")
        store.capture("events", rows(1))
    settings = path / "floodmark.toml"
    text = settings.read_text()
    for default, ours in SETTINGS.items():
        text = text.replace(default, ours)
    settings.write_text(text)
    with (directory / "run.log").open("w") as log:
        daemon = subprocess.Popen([sys.executable, "-m", "floodmark.cli", "-s", str(path), "run", "--json"], stdout=log)
        try:
            _wait(lambda: any(out.rglob("*.parquet")), seconds=120)
            others = [_start("reader", path, seconds)]
            others += [_start("writer", path, seconds, str(number)) for number in range(WRITERS)]
            delivered = _delivered(out, until=time.monotonic() + seconds + 10)
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
        "target": "p50 <= 1 s, p99 <= 2.5 s",
    }


def _percentiles(captured: dict[str, float], seen: dict[str, float]) -> dict[str, Any]:
    waits = sorted(seen[key] - at for key, at in captured.items() if key in seen)
    missing = len(captured) - len(waits)
    if not waits:
        return {"batches not seen": missing}
    at = {name: waits[min(len(waits) - 1, math.ceil(share * len(waits)) - 1)] for name, share in _SHARES.items()}
    return {**{name: round(value, 2) for name, value in at.items()}, "batches not seen": missing}


_SHARES = {"p50": 0.5, "p99": 0.99, "most": 1.0}


def _wait(condition: Any, *, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit("the daemon delivered nothing")
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
    returned = {}
    every = BATCH * WRITERS / RATE
    with open_store(path) as store:
        began = time.monotonic()
        for turn in range(int(seconds / every)):
            time.sleep(max(0.0, began + turn * every - time.monotonic()))
            key = f"{writer}-{turn}"
            made = rows(BATCH, first=turn * BATCH, seed=2 + int(writer))
            store.capture("events", [{**row, "source": key} for row in made])
            returned[key] = time.time()
    return returned


def look(path: Path, seconds: float) -> dict[str, float]:
    """Read what is new, again and again. When each batch was seen first."""
    found: dict[str, float] = {}
    deadline = time.monotonic() + seconds + 10
    with open_store(path) as store:
        cursor = store.cursor("events")
        while time.monotonic() < deadline:
            for batch in store.read_since("events", cursor):
                for key in batch.table["source"].to_pylist():
                    found.setdefault(key, time.time())
                cursor = batch.cursor
            time.sleep(0.05)
    return found


if __name__ == "__main__":
    part, where, length, *which = sys.argv[1:]
    told = write(Path(where), float(length), *which) if part == "writer" else look(Path(where), float(length))
    print(json.dumps(told))
