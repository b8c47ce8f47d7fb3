"""Everything that happens to a store, in a random order: every destination gets each row exactly once.

Files, a hub and an Iceberg table of another catalog are delivered to. Between every two steps new rows come. A step is
an export, a retention, a compaction, a rebuild, an expiry of all snapshots but one, a lost watermark, or a delivery
that dies between two chunks.

One order is tried on the lake in memory, and one of a quarter of the steps on real Spark, where all of them take a
minute. `make soak` tries more of all sixty, and says how many with `SIXTY_STEPS_SEEDS`.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from stores import HubThread, make_store

from floodmark.maintenance.rebuild import GRACE
from floodmark.read import view_of
from floodmark.store import Store, open_store
from floodmark.testing import ManualClock, MemoryLake, crash_at
from seeds import FIXED, SEED

FIRST_SEED = 0 if FIXED else SEED
ASKED = os.environ.get("SIXTY_STEPS_SEEDS")
SPARK_SEEDS = range(FIRST_SEED, FIRST_SEED + int(ASKED or "1"))
MEMORY_SEEDS = range(FIRST_SEED, FIRST_SEED + int(ASKED or "1"))
STEPS = {
    "export": 12,
    "retain": 8,
    "compact": 8,
    "rebuild": 6,
    "expire_all_but_one": 8,
    "lose_watermarks": 9,
    "fail_a_chunk": 9,
}
SPARK_STEPS = STEPS if ASKED else {name: times // 4 for name, times in STEPS.items()}
CHECK_EVERY = 20
KEPT_ROWS = 25
FLUSHED = 0.4
"""How often new rows are flushed at once; else with the next delivery, or by the step that comes."""
SINKS = ("files", "hub", "copy")
POINTS = ("delivery.pinned", "delivery.planned", "delivery.shipped", "delivery.acknowledged")


class Everything:
    """A store, its three destinations, and what must be in each of them."""

    def __init__(self, root: Path, spark: Any, seed: int) -> None:
        self.steps = STEPS if spark is None else SPARK_STEPS
        self.root, self.spark, self.random = root, spark, random.Random(seed)
        self.lake = MemoryLake() if spark is None else None
        self.clock = ManualClock(datetime.now(UTC))
        self.catalog = f"central_{uuid.uuid4().hex[:8]}"
        self.hub = HubThread(root / "hub")
        make_store(root / "store", spark, lake=self.lake, schema={"id": "long"}).close()
        (root / "central").mkdir()
        with (root / "store" / "floodmark.toml").open("a") as settings:
            settings.write(f'\n[catalogs.{self.catalog}]\ntype = "sql"\nwarehouse = "{(root / "central").as_uri()}"\n')
            settings.write(f'uri = "sqlite:///{root}/central/catalog.db"\n')
            # So that a compaction of small tables finds something to do, and lets go of all it may.
            settings.write("\n[upkeep]\nfiles_min = 2\nsnapshots_keep = 1\nsnapshots_age_seconds = 1\n")
        self.store = self.open()
        self.store.add_sink("files", "blob", url=(root / "files").as_uri(), chunk_rows=3, format="jsonl")
        self.store.add_sink("hub", "forward", url=self.hub.url, chunk_rows=3)
        self.store.add_sink("copy", "table", table=f"{self.catalog}.copies", chunk_rows=7)
        self.waiting: list[dict[str, Any]] = []
        """Rows that were captured and not flushed."""
        self.committed: list[dict[str, Any]] = []
        self.pruned: set[int] = set()
        self.delivered = dict.fromkeys(SINKS, 0)
        """How many rows of those each sink has for certain."""
        self.uncertain: set[str] = set()
        """Sinks whose last delivery died: part of what is new may be there."""
        self.done: Counter[str] = Counter()
        self.seconds: Counter[str] = Counter()
        self.locations: set[str] = set()

    def open(self) -> Store:
        return open_store(self.root / "store", spark=self.spark, lake=self.lake, clock=self.clock)

    def reopen(self) -> None:
        """As another process would."""
        self.store.close()
        self.store = self.open()

    def close(self) -> None:
        self.store.close()
        self.hub.stop()

    # ── the steps ────────────────────────────────────────────────────────────────────────────────────────────────

    def run(self) -> None:
        order = [name for name, times in self.steps.items() for _ in range(times)]
        self.random.shuffle(order)
        for number, name in enumerate(order, start=1):
            try:
                self.clock.advance(60)
                self._timed("new rows", self.new_rows)
                self._timed(name, getattr(self, name))
                self.done[name] += 1
                if number % CHECK_EVERY == 0 or number == len(order):
                    self._timed("check", self.check)
            except BaseException:
                print(f"step {number} of {order}")
                raise

    def _timed(self, name: str, work: Callable[[], None]) -> None:
        began = time.monotonic()
        work()
        self.seconds[name] += time.monotonic() - began

    def new_rows(self) -> None:
        first, count = len(self.committed) + len(self.waiting), self.random.randint(1, 4)
        rows = [
            {"id": id, "site": self.random.choice("ab"), "text": f"row {id} " + "x" * self.random.randint(0, 40)}
            for id in range(first, first + count)
        ]
        self.store.capture("events", rows)
        self.waiting += rows
        if self.random.random() < FLUSHED:
            self.flush()

    def flush(self) -> None:
        if self.waiting:
            assert self.store.flush("events").rows == len(self.waiting)
            self.committed += self.waiting
            self.waiting = []

    def export(self) -> None:
        for sink in self.random.sample(SINKS, self.random.randint(1, 3)):
            self.tick(sink)

    def tick(self, sink: str, *, compares: bool = False) -> None:
        """N new rows are N rows on their way; the tick after that moves nothing at all."""
        self.flush()
        new = len(self.committed) - self.delivered[sink]
        report = self.store.export(sink)
        assert (report.errors, report.blocked) == ({}, None)
        if sink not in self.uncertain and not compares:
            assert report.rows == new
        self.uncertain.discard(sink)
        self.delivered[sink] = len(self.committed)
        jobs = self.store.engine.lake.jobs
        nothing = self.store.export(sink)
        assert (nothing.rows, nothing.bytes, nothing.chunks, nothing.spark_jobs) == (0, 0, 0, 0)
        assert self.store.engine.lake.jobs == jobs

    def retain(self) -> None:
        """What a sink still needs stays; what goes is what all of them have."""
        before = self.ids()
        report = self.store.retain("events", keep_rows=KEPT_ROWS)
        gone = set(before) - set(self.ids())
        assert report.rows == len(gone) <= max(0, len(before) - KEPT_ROWS)
        if not self.uncertain:
            assert gone <= {row["id"] for row in self.committed[: min(self.delivered.values())]}
        self.pruned |= gone

    def compact(self) -> None:
        assert self.store.compact("events").sound

    def rebuild(self) -> None:
        report = self.store.rebuild("events", bucket_width=self.random.choice([1024, 4096, 1 << 20]))
        assert report.location not in self.locations
        self.locations |= {report.location, report.previous_location}
        assert report.rows == len(self.ids())
        self.clock.advance(2 * GRACE.total_seconds())  # the next compaction or rebuild drops the table of before

    def expire_all_but_one(self) -> None:
        table = view_of(self.store.engine, "events").table
        self.store.engine.lake.expire(table, keep_snapshots=1)
        state = self.store.engine.lake.load(table)
        assert len(state.lineage) == 1

    def lose_watermarks(self) -> None:
        """All that the store remembers of one sink's deliveries is gone; the destination tells."""
        sink = self.random.choice(SINKS)
        self.tick(sink)
        self.new_rows()
        instance = next(item.instance for item in self.store.sinks() if item.name == sink)
        for statement in (
            "DELETE FROM chunks WHERE intent IN (SELECT id FROM intents WHERE sink = :sink)",
            "DELETE FROM intents WHERE sink = :sink",
            "DELETE FROM watermarks WHERE sink = :sink",
        ):
            self.store.engine.database.transact(
                lambda c, statement=statement: c.exec_driver_sql(statement.replace(":sink", f"'{instance}'"))
            )
        self.flush()
        self.reopen()
        self.tick(sink, compares=sink == "files")  # there each object is compared, and settled anew

    def fail_a_chunk(self) -> None:
        """A delivery dies between two of its chunks; more rows come before the next one."""
        sink = self.random.choice(SINKS)
        self.flush()
        with crash_at(self.random.choice(POINTS), time=self.random.randint(1, 2)):
            self.store.export(sink)
        self.uncertain.add(sink)
        self.reopen()
        self.new_rows()
        if self.random.random() < 0.5:
            self.tick(sink)

    # ── what must be true ────────────────────────────────────────────────────────────────────────────────────────

    def ids(self) -> list[int]:
        return [row["id"] for batch in self.store.read_since("events") for row in batch.table.to_pylist()]

    def check(self) -> None:
        """Each destination has each row once, as it was, and each slice in order."""
        for sink in SINKS:
            self.tick(sink)
        wanted = _by_site(self.committed)
        assert _by_site(self._in_files()) == wanted
        assert _by_site(self.hub.rows()) == wanted
        assert sorted(self._in_table(), key=_id) == sorted(self.committed, key=_id)
        assert self.ids() == [row["id"] for row in self.committed if row["id"] not in self.pruned]

    def _in_files(self) -> Iterator[dict[str, Any]]:
        paths = sorted((self.root / "files").glob("events/*/*.jsonl"), key=lambda path: int(path.name.split("-")[0]))
        for path in paths:
            yield from (json.loads(line) for line in path.read_text().splitlines())

    def _in_table(self) -> list[dict[str, Any]]:
        if self.lake is not None:
            found = self.lake.targets.rows(f"{self.catalog}.copies.events")
            return [{name: row[name] for name in ("id", "site", "text")} for row in found]
        held = self.spark.table(f"`{self.catalog}`.copies.events").select("id", "site", "text").collect()
        return [row.asDict() for row in held]


def _id(row: dict[str, Any]) -> int:
    return int(row["id"])


def _by_site(rows: Any) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        found[row["site"]].append({"id": row["id"], "site": row["site"], "text": row["text"]})
    return dict(found)


@pytest.mark.parametrize("seed", MEMORY_SEEDS)
def test_in_any_order_every_destination_gets_every_row_once(tmp_path: Path, seed: int) -> None:
    every_row_once(Everything(tmp_path, None, seed))


@pytest.mark.spark
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", SPARK_SEEDS)
def test_in_any_order_every_destination_gets_every_row_once_on_spark(spark: Any, tmp_path: Path, seed: int) -> None:
    with small_jobs(spark):
        every_row_once(Everything(tmp_path, spark, seed))


SMALL_JOBS = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
}
"""For a few rows, compiling and planning a job takes longer than running it."""


@contextlib.contextmanager
def small_jobs(spark: Any) -> Iterator[None]:
    before = {name: spark.conf.get(name, None) for name in SMALL_JOBS}
    for name, value in SMALL_JOBS.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, value)


def every_row_once(everything: Everything) -> None:
    try:
        everything.run()
        assert everything.done == Counter(everything.steps)
        assert len(everything.locations) >= everything.steps["rebuild"]
        assert everything.store.fsck(deep=True).sound
        for sink in SINKS:
            assert everything.store.audit(sink, deep=True).sound
    finally:
        print({name: round(took, 1) for name, took in everything.seconds.most_common()})
        everything.close()
