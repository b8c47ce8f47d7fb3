"""Upkeep: compaction against Iceberg's own, ticks right after it, and metadata after very many small flushes."""

from __future__ import annotations

import itertools
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.measure import Cost, measured, median
from bench.sample import rows, table
from bench.store import SCHEMA
from floodmark.commit.flush import flush
from floodmark.control import datasets
from floodmark.lake.embedded import on_spark
from floodmark.sequence import Cursor
from floodmark.store import Store, init

NEW_ROWS = 1000
TURNS = 5
DISTINCT = 6
"""Of how many parts with different rows a table is made, again and again: making rows up takes longer than storing."""
FILES = 60
"""How many files the table has that is compacted."""


def run(*, scale: float = 1.0) -> dict[str, Any]:
    directory = Path(tempfile.mkdtemp(prefix="floodmark-bench-"))
    try:
        with init(directory / "store") as store:
            return {
                "compaction": compaction_figures(store, int(3_000_000 * scale)),
                "ticks": tick_figures(store, directory, int(1_000_000 * scale)),
                "small_flushes": small_flush_figures(store, max(20, int(2000 * scale))),
            }
    finally:
        shutil.rmtree(directory, ignore_errors=True)


# ── throughput ───────────────────────────────────────────────────────────────────────────────────────────────────────


def compaction_figures(store: Store, count: int, *, rounds: int = 3) -> dict[str, Any]:
    """The same table, compacted by us and by a plain `rewrite_data_files`, turn by turn from the same snapshot."""
    _fill(store, "joined", rows_each=max(1, count // FILES), commits=FILES)
    _settings(store, snapshots_keep=10_000, files_min=2)
    base = store.engine.lake.load("joined_g1").head
    held: dict[str, list[Cost]] = {"plain": [], "floodmark": []}
    steps = _Steps()
    ways: dict[str, Callable[[], object]] = {
        "plain": lambda: _call(store, "rewrite_data_files", "joined_g1"),
        "floodmark": lambda: steps.of(lambda: store.compact("joined", progress=steps.begin)),
    }
    files: dict[str, int] = {}
    for turn in range(rounds + 1):
        for name, way in ways.items():
            cost = measured(way)
            files[name] = sum(
                len(bucket.files) for bucket in store.engine.lake.files(store.engine.lake.load("joined_g1")).buckets
            )
            _go_back_to(store, "joined", base)
            if turn:  # the first turn warms the JVM up for both
                held[name].append(cost)
    costs = {name: median(values) for name, values in held.items()}
    return {
        "rows": FILES * (count // FILES),
        "files": FILES,
        **{
            name: {
                "rows_per_second": round(count / cost.wall_seconds),
                "cpu_seconds": round(cost.cpu_seconds, 2),
                "files_after": files[name],
            }
            for name, cost in costs.items()
        },
        "floodmark_steps": steps.last,
        "speed_ratio": round(costs["plain"].wall_seconds / costs["floodmark"].wall_seconds, 2),
        "about": "ours sorts, syncs to the disk, expires and looks for orphans; the plain one only rewrites",
    }


class _Steps:
    """How long each step of the newest compaction took, as it told them."""

    def __init__(self) -> None:
        self.last: dict[str, float] = {}
        self._name, self._since = "", 0.0

    def of(self, work: Callable[[], object]) -> None:
        self.last = {}
        self._name, self._since = "settling and choosing", time.perf_counter()
        work()
        self.begin("")

    def begin(self, told: str) -> None:
        now = time.perf_counter()
        self.last[self._name] = round(self.last.get(self._name, 0.0) + now - self._since, 3)
        name = told.partition(": ")[2]
        self._name, self._since = "joining" if "buckets" in name else name, now


def _go_back_to(store: Store, dataset: str, snapshot: int | None) -> None:
    _call(store, "set_current_snapshot", f"{dataset}_g1", f", snapshot_id => {snapshot}")
    declared = next(item for item in store.datasets() if item.name == dataset)
    store.engine.database.transact(lambda c: datasets.record_synced(c, declared, snapshot=snapshot))


# ── ticks ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def tick_figures(store: Store, directory: Path, count: int) -> dict[str, Any]:
    """A thousand rows to a sink before and after a compaction; for a sink that lags, rows of the compacted file."""
    _fill(store, "ticked", rows_each=max(NEW_ROWS, count // 20), commits=20)
    _settings(store, snapshots_keep=1, snapshots_age_seconds=0, files_min=2)
    sinks = _Sinks(store, directory)
    sinks.up_to_date("current")
    fresh_before = [sinks.fresh_tick("current") for _ in range(TURNS + 2)][2:]
    late = Cursor(store.store_id, "ticked", None, store.horizon("ticked") - NEW_ROWS)
    lagging_before = [sinks.lagging_tick(late) for _ in range(TURNS + 2)][2:]
    store.compact("ticked")
    lagging_after = [sinks.lagging_tick(late) for _ in range(TURNS + 2)][2:]
    fresh_after = [sinks.fresh_tick("current") for _ in range(TURNS)]
    return {
        "stored_rows": count,
        "new_rows": NEW_ROWS,
        "fresh": _ratio(fresh_before, fresh_after),
        "lagging": _ratio(lagging_before, lagging_after),
        "target": "at most 1.2",
    }


class _Sinks:
    def __init__(self, store: Store, directory: Path) -> None:
        self._store, self._directory, self._count = store, directory, 0

    def up_to_date(self, name: str) -> None:
        self._add(name, start="now")

    def fresh_tick(self, name: str) -> float:
        self._count += 1
        self._store.capture("ticked", rows(NEW_ROWS, first=10_000_000 + self._count * NEW_ROWS))
        self._store.flush("ticked")
        return self._timed(name)

    def lagging_tick(self, cursor: Cursor) -> float:
        """A sink of its own, which has everything but the last thousand rows up to the cursor's time."""
        self._count += 1
        name = f"late_{self._count}"
        self._add(name, start=str(cursor))
        spent = self._timed(name)
        self._store.remove_sink(name)
        return spent

    def _add(self, name: str, *, start: str) -> None:
        url = (self._directory / name).as_uri()
        self._store.add_sink(name, "blob", url=url, datasets=["ticked"], start=start)

    def _timed(self, name: str) -> float:
        begin = time.perf_counter()
        sent = self._store.export(name).rows
        if sent != NEW_ROWS:
            raise SystemExit(f"a tick sent {sent} rows instead of {NEW_ROWS}")
        return 1000 * (time.perf_counter() - begin)


def _ratio(before: list[float], after: list[float]) -> dict[str, float]:
    first, second = statistics.median(before), statistics.median(after)
    return {"before_ms": round(first, 1), "after_ms": round(second, 1), "ratio": round(second / first, 2)}


# ── very many small flushes ──────────────────────────────────────────────────────────────────────────────────────────


def small_flush_figures(store: Store, flushes: int, *, rows_each: int = 10) -> dict[str, Any]:
    """Planning time and metadata of a table of very many commits, before and after, against a table of one commit."""
    times = _fill(store, "crumbs", rows_each=rows_each, commits=flushes)
    _fill(store, "whole", rows_each=rows_each * flushes, commits=1)
    _settings(store, snapshots_keep=1, snapshots_age_seconds=0)
    before = _metadata(store, "crumbs", rows_each * flushes)
    cost = measured(lambda: store.compact("crumbs"))
    after = _metadata(store, "crumbs", rows_each * flushes)
    fresh = _metadata(store, "whole", rows_each * flushes)
    return {
        "flushes": flushes,
        "rows_each": rows_each,
        "flush_milliseconds": {
            "at_first": round(1000 * statistics.median(times[5 : 5 + flushes // 10]), 1),
            "in_the_end": round(1000 * statistics.median(times[-flushes // 10 :]), 1),
        },
        "compaction_seconds": round(cost.wall_seconds, 1),
        "before": before,
        "after": after,
        "fresh": fresh,
        "planning_ratio": round(after["planning_ms"] / fresh["planning_ms"], 2),
        "metadata_bytes_ratio": round(after["metadata_bytes"] / fresh["metadata_bytes"], 2),
        "target": "back to those of a fresh table",
    }


def _metadata(store: Store, dataset: str, count: int) -> dict[str, Any]:
    home = store.path / "lake" / "datasets" / f"{dataset}_g1" / "metadata"
    times = []
    for _ in range(5):
        begin = time.perf_counter()
        loaded = on_spark(store.engine.lake).catalog.table(f"{dataset}_g1")
        planned = list(loaded.scan(row_filter=f"_ingest_seq > {store.horizon(dataset) - count // 2}").plan_files())
        times.append(1000 * (time.perf_counter() - begin))
    return {
        "planning_ms": round(statistics.median(times), 1),
        "planned_files": len(planned),
        "metadata_files": sum(1 for path in home.iterdir() if not path.name.endswith(".crc")),
        "metadata_bytes": sum(path.stat().st_size for path in home.iterdir()),
        "newest_metadata_bytes": max(home.glob("*.json"), key=lambda path: path.stat().st_mtime_ns).stat().st_size,
        "snapshots": len(loaded.metadata.snapshots),
        "manifests": len(loaded.current_snapshot().manifests(loaded.io)),
    }


# ── tables ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _fill(store: Store, dataset: str, *, rows_each: int, commits: int) -> list[float]:
    """A dataset of so many commits, and how long each took: segments wait together, and each is a commit of its own."""
    store.add_dataset(dataset, schema=SCHEMA)
    parts = [table(rows_each, first=place * rows_each) for place in range(min(commits, DISTINCT))]
    for place in range(commits):
        store.capture(dataset, parts[place % DISTINCT])
    ends = [time.perf_counter()]

    def committed() -> bool:
        ends.append(time.perf_counter())
        return False

    before = store.settings
    store.engine.settings = replace(before, flush=replace(before.flush, segments_max=1))
    try:
        flush(store.engine, dataset, stop=committed)
    finally:
        store.engine.settings = before
    return [end - begin for begin, end in itertools.pairwise(ends)][1:]


def _settings(store: Store, **upkeep: Any) -> None:
    plain = type(store.settings.upkeep)()
    store.engine.settings = replace(store.settings, upkeep=replace(plain, **upkeep))


def _call(store: Store, procedure: str, table_name: str, arguments: str = "") -> None:
    catalog = on_spark(store.engine.lake).catalog
    store.spark.sql(
        f"CALL `{catalog.name}`.system.{procedure}(table => '{catalog.namespace}.{table_name}'{arguments})"
    ).collect()
