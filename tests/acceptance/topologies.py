"""A store of which only the landing log is on its host, with a sink of each kind, and the oracle that knows its rows.

Where its catalog is and what its Spark runs on is said by whoever makes it: the steps and the proofs are the same.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from store_process import (
    StoreProcess,
    always_in_tasks,
    die_at,
    expire_all_but_one,
    forget_deliveries,
    rows_by_spark,
    rows_read,
)
from stores import HubThread

from floodmark import faults
from floodmark.lake.catalogs import configured
from floodmark.store import Store, init, open_store
from floodmark.testing.oracle import Oracle
from postgres import PostgresServer
from s3 import SECRET, S3Server
from seeds import SEED

SITES = ("north", "south")
SINKS = ("files", "hub", "copy")
STEPS = ("export", "compact", "backfill", "expire", "retain")
"""What happens to a store, each once; a killed driver and lost watermarks have tests of their own."""
ASKED = int(os.environ.get("TOPOLOGY_STEPS", "0"))
"""So many steps of all kinds in any order, instead of these: `make soak` says how many."""
in_soak_only = pytest.mark.skipif(not ASKED, reason="part of make soak, for its time")
POINTS = tuple(point for point in faults.POINTS if point.startswith(("flush.", "delivery.", "table.", "compact.")))


def s3_properties(server: S3Server) -> dict[str, str]:
    return {
        "s3.endpoint": server.endpoint,
        "s3.region": "us-east-1",
        "s3.path-style-access": "true",
        "s3.access-key-id": "AKIDEXAMPLE",
        "s3.secret-access-key": SECRET,
    }


class Elsewhere:
    """The store, its destinations, and what must be in each of them."""

    def __init__(
        self,
        root: Path,
        *,
        postgres: PostgresServer,
        s3: S3Server,
        spark: Mapping[str, Any],
        lake: Mapping[str, str] | None = None,
        prepared: Callable[[Store], None] = always_in_tasks,
    ) -> None:
        """`lake` says where the catalog is; without it, it is in the control database. Every process that opens the
        store begins with `prepared`.
        """
        self._prepared = prepared
        self.root, self.s3, self.oracle = root / "store", s3, Oracle()
        self.bucket = s3.create_bucket()
        self.hub = HubThread(root / "hub")
        place = {**s3_properties(s3), **(lake or {"warehouse": f"s3://{self.bucket}/lake"})}
        init(
            self.root,
            control=postgres.create_schema(),
            lake=place,
            segments=f"s3://{self.bucket}/segments",
            spark=spark,
        ).close()
        central = {**s3_properties(s3), "warehouse": f"s3://{self.bucket}/central", "uri": postgres.create_schema()}
        with (self.root / "floodmark.toml").open("a") as settings:
            settings.write('\n[catalogs.central]\ntype = "sql"\n')
            settings.writelines(f"{json.dumps(key)} = {json.dumps(value)}\n" for key, value in central.items())
        with open_store(self.root) as store:
            store.add_dataset("events", ["id"], partition_by=["site"])
            store.add_sink("files", "blob", format="jsonl", chunk_rows=2, **s3.settings(f"s3://{self.bucket}/files"))
            store.add_sink("hub", "forward", url=self.hub.url, chunk_rows=4)
            store.add_sink("copy", "table", table="central.copies")
        self.pruned: set[str] = set()
        """Rows that the lake no longer has."""
        self.process = self.opened()

    def opened(self) -> StoreProcess:
        process = StoreProcess(self.root)
        process.do(self._prepared)
        return process

    def reopen(self) -> None:
        """Kill the process, and go on with another."""
        self.process.stop()
        self.process = self.opened()

    def close(self) -> None:
        self.process.stop()
        self.hub.stop()

    # ── steps ────────────────────────────────────────────────────────────────────────────────────────────────────

    def capture(self, count: int) -> list[dict[str, Any]]:
        rows = self.oracle.rows(count, partitions=SITES)
        self.process.call("capture", "events", rows)
        self.oracle.acknowledge(rows)
        return rows

    def flush(self) -> int:
        return int(self.process.call("flush", "events").rows)

    def export(self, *sinks: str) -> dict[str, int]:
        reports = {sink: self.process.call("export", sink) for sink in sinks or SINKS}
        assert {sink: (one.errors, one.blocked) for sink, one in reports.items() if one.errors or one.blocked} == {}
        return {sink: one.rows for sink, one in reports.items()}

    def run(self) -> None:
        """One step after another; before each of them new rows come."""
        chance = random.Random(SEED)
        steps = chance.choices([*STEPS, "lose_watermarks", "die"], k=ASKED) if ASKED else STEPS
        print(f"steps: {steps}")
        self.capture(2)
        self.flush()
        for step in steps:
            self.capture(4)
            if step == "die":
                self.die(chance.choice(POINTS))
            else:
                getattr(self, step)()
            if step == "lose_watermarks":
                self.reopen()

    def die(self, point: str) -> None:
        """The process is killed where it reaches a point, if it does."""
        self.process.do(die_at, point)
        with contextlib.suppress(EOFError, ConnectionError):
            for method, argument in (("flush", "events"), *(("export", sink) for sink in SINKS), ("compact", "events")):
                self.process.call(method, argument)
        self.reopen()

    def compact(self) -> None:
        assert self.process.call("compact", "events").sound

    def expire(self) -> None:
        """No snapshot but the newest is left."""
        self.process.do(expire_all_but_one, "events")

    def retain(self) -> None:
        """Old rows go, those that every sink has."""
        self.flush()
        before = self._in_lake()
        self.process.call("retain", "events", keep_rows=6)
        self.pruned |= before - self._in_lake()

    def backfill(self) -> None:
        """New rows come as history, beside rows that are there already."""
        self.flush()
        rows = self.oracle.rows(3, partitions=SITES)
        known = [self.oracle.attempted[id] for id in sorted(self._in_lake())]
        assert self.process.call("backfill", "events", [*known, *rows]).new == len(rows)
        self.oracle.acknowledge(rows)

    def lose_watermarks(self) -> None:
        """All that the store knows of its deliveries is gone. Once it is opened again, the destinations tell."""
        self.flush()
        self.export()
        for sink in SINKS:
            self.process.do(forget_deliveries, sink)

    def _in_lake(self) -> set[str]:
        return {row["id"] for row in self.process.do(rows_read, "events")}

    # ── proofs ───────────────────────────────────────────────────────────────────────────────────────────────────

    def check(self, *, deep: bool = False) -> None:
        """Every destination has every row once, nothing is left to do, and the store finds that itself."""
        self.flush()
        self.export()
        assert self.export() == dict.fromkeys(SINKS, 0)
        found = self.process.do(rows_by_spark, "events")
        assert self.oracle.compare("lake, by Spark", found, excused=self.pruned) == []
        self.check_rows(*SINKS)
        for sink in SINKS:
            assert self.process.call("audit", sink, deep=deep).sound, sink
        assert self.process.call("fsck").sound
        assert not [key for key in self.s3.keys(self.bucket) if key.startswith("segments/")]

    def check_rows(self, *sinks: str) -> None:
        """The lake and some destinations have every row once, and in order; read without Spark."""
        held = {"files": self.in_files, "hub": self.hub.rows, "copy": self.in_table}
        lake = self.process.do(rows_read, "events")
        findings = self.oracle.compare("lake", lake, excused=self.pruned)
        for sink in sinks:
            found = held[sink]()
            findings += self.oracle.compare(sink, found)
            findings += [] if sink == "copy" else self.oracle.compare_order(sink, found, lake)
        assert findings == []

    def in_files(self) -> list[dict[str, Any]]:
        """By the names and the content of the objects, in order of their numbers."""
        keys = [key for key in self.s3.keys(self.bucket) if key.startswith("files/") and key.endswith(".jsonl")]
        keys.sort(key=lambda key: int(key.rpartition("/")[2].split("-")[0]))
        lines = [line for key in keys for line in self.s3.get(f"{self.bucket}/{key}").splitlines()]
        return [json.loads(line) for line in lines]

    def in_table(self) -> list[dict[str, Any]]:
        from floodmark.config import load

        described = load(self.root / "floodmark.toml").catalogs["central"]
        table = configured("central", described, namespace="copies").table("events")
        assert table is not None
        return table.scan(selected_fields=("id", "site", "text", "proof")).to_arrow().to_pylist()
