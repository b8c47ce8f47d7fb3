"""The destinations that the delivery scenarios run against: each can be added to a store, and says what it holds."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from sqlalchemy import text

from floodmark.store import Store
from floodmark.testing import MemoryLake
from scenarios.delivery.servers import KeyOnlyServer

DATASET = "m"
SINK = "out"


class Place(ABC):
    """A destination, seen from outside the product."""

    settings: dict[str, Any]
    kind: str

    def add(self, store: Store, **settings: Any) -> None:
        store.add_sink(SINK, self.kind, **{"chunk_rows": 3, **self.settings, **settings})

    @abstractmethod
    def rows(self) -> dict[str, list[int]]:
        """What is there: the column `n` of each partition, in the order in which a reader gets it."""

    def close(self) -> None:  # noqa: B027 - most have nothing to stop
        """Stop what was started."""


class Files(Place):
    """A blob sink on local files."""

    kind = "blob"

    def __init__(self, root: Path, lake: MemoryLake) -> None:
        self.directory = root / "out"
        self.settings = {"url": self.directory.as_uri()}

    def rows(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = defaultdict(list)
        for path in sorted(self.directory.glob("m/*/*.parquet"), key=lambda item: int(item.stem.split("-")[0])):
            found[path.parent.name] += pq.read_table(path)["n"].to_pylist()
        return dict(found)


class Keys(Place):
    """A forward sink to a server that knows keys, and nothing of ranges."""

    kind = "forward"

    def __init__(self, root: Path, lake: MemoryLake) -> None:
        self.server = KeyOnlyServer().start()
        self.settings = {"url": self.server.url, "accept": "status", "concurrency": 1}

    def rows(self) -> dict[str, list[int]]:
        assert self.server.conflicts == []
        found: dict[str, list[int]] = defaultdict(list)
        for key, rows in self.server.chunks().items():
            found[key.split("/")[2].replace("%3D", "=")] += [row["n"] for row in rows]
        return dict(found)

    def close(self) -> None:
        self.server.stop()


class Projected(Place):
    """A projection whose effect is in the control database."""

    kind = "projection"

    def __init__(self, root: Path, lake: MemoryLake) -> None:
        self.settings = {"function": "scenarios.destinations:write_down", "transactional": True}
        self.store: Store | None = None

    def add(self, store: Store, **settings: Any) -> None:
        store.engine.database.transact(
            lambda c: c.execute(text("CREATE TABLE written (place INTEGER PRIMARY KEY, slice TEXT, n BIGINT)"))
        )
        self.store = store
        super().add(store, **settings)

    def rows(self) -> dict[str, list[int]]:
        assert self.store is not None
        found: dict[str, list[int]] = defaultdict(list)
        rows = self.store.engine.database.read(
            lambda c: c.execute(text("SELECT slice, n FROM written ORDER BY place")).fetchall()
        )
        for slice, n in rows:
            found[slice].append(n)
        return dict(found)


def write_down(batch: Any, delivery: Any) -> None:
    """The projection of `Projected`."""
    for n in batch["n"].to_pylist():
        delivery.connection.execute(
            text("INSERT INTO written (slice, n) VALUES (:slice, :n)"), {"slice": delivery.partition, "n": n}
        )


class Tables(Place):
    """A table sink, whose table is compacted under it all the time."""

    kind = "table"

    def __init__(self, root: Path, lake: MemoryLake) -> None:
        self.targets = lake.targets
        self.settings = {"table": "central.copies"}
        self.targets.on_append = self._meanwhile

    def _meanwhile(self, request: Any) -> str:
        self.targets.compact(f"central.copies.{DATASET}")
        return "land"

    def rows(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = defaultdict(list)
        for row in self.targets.rows(f"central.copies.{DATASET}"):
            found[row["_origin_partition"]].append(row["n"])
        return dict(found)


PLACES: dict[str, type[Place]] = {"files": Files, "keys": Keys, "projection": Projected, "table": Tables}


def as_json(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]
