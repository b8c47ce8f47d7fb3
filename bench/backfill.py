"""Backfill against a plain append of the same rows, and what looking for duplicates costs as the table grows."""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from bench.measure import Cost, measured, median
from bench.sample import renewed, table
from bench.store import SCHEMA, SEGMENT_ROWS, _plain_append, _prepare_plain, _ratios, _speed
from floodmark.sources import parallel_text
from floodmark.store import Store, init

WARMING_TURNS = 6


def run(*, scale: float | None = None) -> dict[str, Any]:
    """Every figure of backfills. `scale` (or FLOODMARK_BENCH_SCALE) shrinks the row counts for a quick look."""
    scale = float(os.environ.get("FLOODMARK_BENCH_SCALE", "1")) if scale is None else scale
    directory = Path(tempfile.mkdtemp(prefix="floodmark-bench-"))
    try:
        with init(directory / "store") as store:
            return {
                "half_stored": half_stored(store, directory, int(1_000_000 * scale)),
                "large_text": large_text(store, directory, int(1_000_000 * scale)),
                "live_dedup": live_dedup(store, [int(n * scale) for n in (100_000, 1_000_000, 5_000_000)]),
            }
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def half_stored(store: Store, directory: Path, count: int, *, rounds: int = 3) -> dict[str, Any]:
    """The same Parquet files, appended plainly by Spark and backfilled into a dataset that has every other part."""
    size = max(1, min(SEGMENT_ROWS, count // 4))
    parts = [table(size, first=first) for first in range(0, count, size)]
    plain: list[Cost] = []
    ours: list[Cost] = []
    for turn in range(rounds + 1):
        name = f"backfilled_{turn}"
        folder = directory / name
        folder.mkdir()
        store.add_dataset(name, identity=["part_id"], event_time="ts", schema=SCHEMA)
        for index, part in enumerate(parts):
            pq.write_table(part, folder / f"{index}.parquet", compression="zstd")
            store.capture(name, part.take(list(range(0, part.num_rows, 2))))
        store.flush(name)
        _prepare_plain(store, 100 + turn)
        files = sorted(str(path) for path in folder.glob("*.parquet"))
        found: list[Any] = []
        costs = (
            measured(lambda files=files, turn=turn: _plain_append(store, files, 100 + turn)),
            measured(lambda name=name, folder=folder, found=found: found.append(store.backfill(name, folder))),
        )
        rows_read = sum(part.num_rows for part in parts)
        report = found[0]
        if (report.read, report.new, report.already_stored) != (rows_read, rows_read // 2, rows_read - rows_read // 2):
            raise SystemExit(f"the backfill did something else: {report}")
        if turn:  # the first turn warms the JVM up for both
            plain.append(costs[0])
            ours.append(costs[1])
    return {
        "rows": count,
        "plain_append": _speed(count, median(plain)),
        "backfill": {**_speed(count, median(ours)), **_ratios(median(plain), median(ours))},
        "target": "rows/s at least 0.6 of the plain append",
    }


def large_text(store: Store, directory: Path, count: int, *, rounds: int = 2) -> dict[str, Any]:
    """The same JSON lines, parsed by this process and by Spark's workers; both store and commit them."""
    folder = directory / "lines"
    folder.mkdir()
    like, size = table(min(SEGMENT_ROWS, count // 4)), 0
    for number in range(4):
        with (folder / f"{number}.jsonl").open("wb") as file:
            for first in range(0, count // 4, like.num_rows):
                rows = renewed(like, first=number * count + first).slice(0, count // 4 - first).to_pylist()
                size += file.write(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    held: dict[str, list[Cost]] = {"here": [], "workers": []}
    usual = parallel_text.LARGE_BYTES
    try:
        for turn in range(rounds + 1):
            for way, parallel_text.LARGE_BYTES in (("here", size + 1), ("workers", 1)):
                name = f"lines_{way}_{turn}"
                store.add_dataset(name, identity=["part_id"], event_time="ts", schema=SCHEMA)
                found: list[Any] = []
                cost = measured(lambda name=name, found=found: found.append(store.backfill(name, folder)))
                if found[0].new != 4 * (count // 4):
                    raise SystemExit(f"the backfill did something else: {found[0]}")
                if turn:  # the first turn warms the JVM up for both
                    held[way].append(cost)
    finally:
        parallel_text.LARGE_BYTES = usual
    here, workers = median(held["here"]), median(held["workers"])
    return {
        "rows": count,
        "bytes": size,
        "here": _speed(count, here),
        "workers": {**_speed(count, workers), **_ratios(here, workers)},
        "cores": os.cpu_count(),
        "about": f"workers parse from {usual >> 20} MB on, on as many cores as Spark has",
    }


def live_dedup(store: Store, sizes: list[int], *, batch: int = 10_000, turns: int = 7) -> dict[str, Any]:
    """A live batch, a tenth of it known, against ever more stored rows: what is opened must not become more."""
    name = "compared"
    store.add_dataset(name, identity=["part_id"], event_time="ts", schema=SCHEMA)
    like = table(min(SEGMENT_ROWS, sizes[-1]))
    repeated = batch // 10
    stored, found = 0, {}
    for size in sizes:
        while stored < size:
            for _ in range(4):
                part = renewed(like, first=stored).slice(0, max(0, size - stored))
                if part.num_rows:
                    store.capture(name, part)
                    stored += part.num_rows
            store.flush(name)
        times, opened = [], []
        before = renewed(like, first=stored).slice(0, repeated)
        store.capture(name, before)
        store.flush(name)
        stored += repeated
        for turn in range(turns if found else turns + WARMING_TURNS):
            new = renewed(like, first=stored).slice(0, batch - repeated)
            store.capture(name, pa.concat_tables([before.slice(before.num_rows - repeated), new]))
            store.seal(name)
            files = _untouched(store)
            begun = time.perf_counter()
            report = store.flush(name)
            if found or turn >= WARMING_TURNS:  # the JVM is still learning before
                times.append(time.perf_counter() - begun)
            opened.append(sum(1 for path in files if path.exists() and path.stat().st_atime_ns != 0))
            if (report.rows, report.duplicates) != (batch - repeated, repeated):
                raise SystemExit(f"a live batch was committed as {report}")
            before, stored = new, stored + new.num_rows
        found[f"{size:,}"] = {
            "files_stored": len(files),
            "files_opened": statistics.median(opened),
            "milliseconds": round(1000 * statistics.median(times)),
        }
    parallel_text = [item["milliseconds"] for item in found.values()]
    return {
        "rows": batch,
        "by_stored_rows": found,
        "time_ratio": round(max(parallel_text) / min(parallel_text), 2),
        "target": "flat",
    }


def _untouched(store: Store) -> list[Path]:
    """The data files there are, each as if it had never been read: the file system itself notes which are, from now."""
    files = sorted((store.path / "lake" / "datasets" / "compared_g1" / "data").rglob("*.parquet"))
    for path in files:
        os.utime(path, ns=(0, path.stat().st_mtime_ns))
    return files
