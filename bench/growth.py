"""A live batch beside ever more stored rows: its time, its jobs and the files it opens must not grow."""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.fresh import IDENTITY
from bench.sample import renewed, rows, table
from bench.store import SCHEMA
from floodmark.store import Store, init

SIZES = (100_000, 1_000_000, 5_000_000, 20_000_000)
WARM_UP = 25
"""The JVM is as warm for the first size as for the others."""
TURNS = 12


def run(*, scale: float = 1.0) -> dict[str, Any]:
    directory = Path(tempfile.mkdtemp(prefix="floodmark-growth-"))
    try:
        with init(directory / "store") as store:
            return with_more_stored(store, [int(n * scale) for n in SIZES])
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def with_more_stored(store: Store, sizes: list[int]) -> dict[str, Any]:
    store.add_dataset("growing", schema=SCHEMA, **IDENTITY)
    part = table(250_000)
    stored, found = 0, {}
    for size in sizes:
        while stored < size:
            step = min(part.num_rows, size - stored)
            store.capture("growing", renewed(part.slice(0, step), first=stored))
            stored += step
        store.flush("growing")
        times, jobs, opened = [], [], []
        for turn in range(TURNS if found else WARM_UP + TURNS):
            batch = rows(1_000, first=stored - 100_000 + 1_000 * turn, seed=7)
            files = _untouched(store)
            before, started = store.engine.lake.jobs, time.perf_counter()
            store.capture("growing", batch)
            store.flush("growing")
            times.append(time.perf_counter() - started)
            jobs.append(store.engine.lake.jobs - before)
            opened.append(sum(1 for path in files if path.exists() and path.stat().st_atime_ns != 0))
        found[f"{size:,}"] = {
            "stored": size,
            "milliseconds": round(1000 * statistics.median(times[-TURNS:])),
            "jobs": max(jobs),
            "files": len(files),
            "files opened": statistics.median(opened[-TURNS:]),
        }
    all_times = [item["milliseconds"] for item in found.values()]
    return {"by stored rows": found, "time ratio": round(max(all_times) / min(all_times), 2), "target": "<= 1.2"}


def _untouched(store: Store) -> list[Path]:
    """The data files there are, each as if it had never been read: the file system itself notes which are, from now."""
    files = sorted((store.path / "lake" / "datasets" / "growing_g1" / "data").rglob("*.parquet"))
    for path in files:
        os.utime(path, ns=(0, path.stat().st_mtime_ns))
    return files
