"""How large the control database is after 1,000, 10,000 and 100,000 commits and deliveries, with and without folding.

Every commit and delivery is recorded by the product's own functions, one second apart on a manual clock; lake and
destination do not take part, and many are recorded in one transaction. Folding runs after every 1,000 commits.
"""

from __future__ import annotations

import sqlite3
import tempfile
import time
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, func, select

from floodmark.commit.protocol import Base, PartitionRows, PartitionStats
from floodmark.config import Settings
from floodmark.control import blocks, chunks, datasets, deliveries, segments, sinks
from floodmark.control.blocks import BatchLimits
from floodmark.control.database import Database, migrate, sqlite_url
from floodmark.control.datasets import Dataset
from floodmark.control.deliveries import Channel
from floodmark.control.schema import metadata
from floodmark.control.segments import SegmentContent
from floodmark.control.sinks import Sink
from floodmark.engine import Engine
from floodmark.maintenance.fold import fold_dataset
from floodmark.schema import Schema
from floodmark.sequence import Tally
from floodmark.testing import ManualClock, MemoryLake

ROWS = 10
FOLD_EVERY = 1_000
AT_ONCE = 50
SINK = "sink"


def run(scale: float = 1.0) -> dict[str, Any]:
    counts = [int(count * scale) for count in (1_000, 10_000, 100_000)]
    return {
        "folded": _grown(counts, folding=True),
        "not folded": _grown([count for count in counts if count <= 10_000 * scale], folding=False),
    }


def _grown(counts: list[int], *, folding: bool) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="floodmark-bench-", dir=_memory()) as folder:
        engine = _engine(Path(folder))
        begin = time.perf_counter()
        fold_seconds = 0.0
        for number in range(AT_ONCE, counts[-1] + 1, AT_ONCE):
            _some(engine, range(number - AT_ONCE + 1, number + 1))
            if folding and number % FOLD_EVERY == 0:
                before = time.perf_counter()
                fold_dataset(engine, "d")
                fold_seconds += time.perf_counter() - before
            if number in counts:
                found[f"{number:,} commits and deliveries"] = _size(engine, Path(folder)) | {
                    "seconds": round(time.perf_counter() - begin, 1),
                    "of which folding": round(fold_seconds, 1),
                }
        engine.database.close()
    return found


def _memory() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def _engine(root: Path) -> Engine:
    database = Database(sqlite_url(root / "control.db"))
    migrate(database)
    clock = ManualClock()
    declared = Dataset(name="d", identity=(), event_time=None, partition_by=(), schema=Schema())
    database.transact(lambda c: datasets.insert(c, declared, now=clock.now()))
    sink = Sink(instance=SINK, name=SINK, kind="blob", settings={}, state="active")
    database.transact(lambda c: sinks.insert(c, sink, now=clock.now()))
    (root / "spool" / "d" / "segments").mkdir(parents=True)
    return Engine(root, Settings("store"), database, MemoryLake(), clock)


def _some(engine: Engine, numbers: range) -> None:
    def work(connection: Connection) -> None:
        for number in numbers:
            _one(connection, number, engine.clock.now())
            engine.clock.advance(1)  # type: ignore[attr-defined]

    engine.database.transact(work)


def _one(connection: Connection, number: int, now: datetime) -> None:
    """A segment is sealed, committed as a block of its own, and delivered as one chunk."""
    path = f"spool/d/segments/{number}-x.parquet"
    tally = Tally(ROWS, number)
    parts = (PartitionRows("", tally, 0, ROWS - 1),)

    segments.announce(connection, id=number, dataset="d", path=path, owner="bench", now=now)
    content = SegmentContent(path, ROWS, 1_000, None, None, parts, 1_000)
    segments.register(connection, id=number, content=content)
    base, id = Base("table", 1, number - 1), f"{number:032x}"
    made = blocks.reserve(connection, id=id, dataset="d", base=base, seen_through=0, limits=BatchLimits(), now=now)
    assert made is not None
    span = made.block.range
    stats = [PartitionStats("", tally, span.after + 1, span.through)]
    blocks.record(connection, made.block, snapshot=number, synced_snapshot=number, rows=ROWS, stats=stats, now=now)
    intent = deliveries.pin(
        connection,
        Channel(SINK, "d", ""),
        id=f"i{number:031x}",
        horizon=span.through,
        settings={"chunk_rows": 100_000, "columns": ["a", "b", "c"], "format": "parquet", "where": None},
        start=0,
        rows_max=10_000_000,
        now=now,
    )
    assert intent is not None
    chunks.plan(connection, intent, [intent.range])
    chunks.acknowledge(connection, intent, intent.range, tally, now=now)


def _size(engine: Engine, root: Path) -> dict[str, Any]:
    tables = metadata.sorted_tables

    def rows(connection: Connection) -> dict[str, int]:
        counted = {one.name: connection.execute(select(func.count()).select_from(one)).scalar_one() for one in tables}
        return {name: count for name, count in counted.items() if count > 1}

    found = engine.database.read(rows)
    with closing(
        sqlite3.connect(root / "control.db")
    ) as connection:  # what is in the log only is not counted otherwise
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return {"file bytes": (root / "control.db").stat().st_size, "rows": sum(found.values()), **found}
