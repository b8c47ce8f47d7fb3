"""A store with rows of every age and a sink, for the scenarios of retention and purge."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from sqlalchemy import select

from engines import set_flush
from floodmark.control import deliveries
from floodmark.control import removals as removal_records
from floodmark.control.deliveries import Channel
from floodmark.control.schema import forfeits, operations, removals
from floodmark.schema import SEQ
from floodmark.sequence import SequenceRange, Tally
from floodmark.store import Store, init, open_store
from floodmark.testing import ManualClock, MemoryLake, kill_store

NAME = "events"
TABLE = "events_g1"
NOW = datetime(2026, 6, 1, tzinfo=UTC)
SCHEMA = {"id": "long", "who": "string", "site": "string", "at": "timestamp"}


class Aged:
    """One store, whose processes come and go."""

    def __init__(self, root: Path, **dataset: Any) -> None:
        self.root = root
        self.lake = MemoryLake()
        self.clock = ManualClock(NOW)
        declared = {"identity": ["id"], "event_time": "at", "partition_by": ["site"], "schema": SCHEMA, **dataset}
        with init(root / "store", lake=self.lake, clock=self.clock) as store:
            store.add_dataset(NAME, **declared)
        self.store = self.open()

    def open(self) -> Store:
        store = open_store(self.root / "store", lake=self.lake, clock=self.clock)
        set_flush(store, patience_seconds=0)
        return store

    def restart(self) -> Store:
        kill_store(self.store)
        self.store = self.open()
        return self.store

    def row(self, id: int, *, days: float | None = 0, site: str = "a", who: str = "ann") -> dict[str, Any]:
        at = None if days is None else self.clock.now() - timedelta(days=days)
        return {"id": id, "who": who, "site": site, "at": at}

    def flush(self, *rows: dict[str, Any]) -> Any:
        if rows:
            self.store.capture(NAME, list(rows))
        return self.store.flush(NAME)

    def sink(self, name: str = "out", **settings: Any) -> Path:
        directory = self.root / name
        self.store.add_sink(name, "blob", **{"url": directory.as_uri(), "chunk_rows": 3, **settings})
        return directory

    # ── looking ──────────────────────────────────────────────────────────────────────────────────────────────────

    def ids(self) -> list[int]:
        state = self.lake.load(TABLE)
        if state is None or state.head is None:
            return []
        parts = self.lake.scan(TABLE, snapshot=state.head, within=SequenceRange(0, 2**62))
        return [row["id"] for part in parts for row in part.to_pylist()]

    def delivered(self, name: str = "out") -> list[int]:
        paths = sorted(
            (self.root / name).glob("events/*/*.parquet"), key=lambda p: (p.parent, int(p.stem.split("-")[0]))
        )
        return sorted(id for path in paths for id in pq.read_table(path)["id"].to_pylist())

    def removals(self) -> list[Any]:
        return self.store.engine.database.read(
            lambda c: c.execute(select(removals).order_by(removals.c.after_seq)).all()
        )

    def forfeits(self) -> list[Any]:
        return self.store.engine.database.read(
            lambda c: c.execute(select(forfeits).order_by(forfeits.c.after_seq)).all()
        )

    def operations(self) -> list[Any]:
        return self.store.engine.database.read(lambda c: c.execute(select(operations)).all())

    def instance(self, name: str = "out") -> str:
        return next(sink.instance for sink in self.store.sinks() if sink.name == name)

    def partition(self, site: str = "a") -> str:
        return f"site={site}"

    def counted(self, name: str, site: str, through: int) -> Tally:
        """What the store says that a sink has got up to a number: in the lake, and removed since."""
        channel = Channel(self.instance(name), NAME, self.partition(site))
        state = self.lake.load(TABLE)
        assert state is not None
        assert state.head is not None
        within = SequenceRange(0, through)
        there = self.lake.figures(
            TABLE, snapshot=state.head, within=within, partition_by=("site",), where={"site": site}
        )
        gone = self.store.engine.database.read(lambda c: removal_records.removed_within(c, channel, within))
        return sum((item.tally for item in there), Tally()) + gone

    def watermark(self, name: str = "out", site: str = "a") -> Any:
        channel = Channel(self.instance(name), NAME, self.partition(site))
        return self.store.engine.database.read(lambda c: deliveries.watermark(c, channel))

    def bytes_anywhere(self, text: str) -> list[str]:
        """Where a text still stands: data files of the lake, files of the store's directory."""
        found = [f"data file {id}" for id, rows in self.lake.data.items() if text in str(rows.to_pylist())]
        for path in (self.root / "store").rglob("*"):
            if path.is_file() and path.suffix in (".parquet", ".jsonl") and _holds(path, text):
                found.append(str(path))
        return found


def _holds(path: Path, text: str) -> bool:
    if path.suffix == ".parquet":
        return text in str(pq.read_table(path).to_pylist())
    return text.encode() in path.read_bytes()


def all_numbers(world: Aged) -> list[int]:
    state = world.lake.load(TABLE)
    assert state is not None
    assert state.head is not None
    parts = world.lake.scan(TABLE, snapshot=state.head, within=SequenceRange(0, 2**62))
    return [row[SEQ] for part in parts for row in part.to_pylist()]


Step = Callable[[], Any]
