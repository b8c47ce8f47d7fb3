"""Stores on a real Spark session, and real processes beside it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import uvicorn

from floodmark.hub.app import Hub, build_app
from floodmark.hub.settings import HubSettings
from floodmark.store import Store, init, open_store
from floodmark.testing import MemoryLake, kill_store
from waiting import wait_until

HERE = Path(__file__).parent
SMALL_JVM = """
[flush]
patience_seconds = 1

[spark]
master = "local[1]"
driver_memory = "600m"
settings = { "spark.sql.shuffle.partitions" = "1", "spark.default.parallelism" = "1" }
"""


def make_store(root: Path, spark: Any, *, lake: Any = None, **dataset: Any) -> Store:
    """A store whose other processes start small JVMs; this process uses the run's one session."""
    with init(root, lake=lake) as store:
        store.add_dataset("events", **{"partition_by": ["site"], **dataset})
    settings = root / "floodmark.toml"
    identity = next(line for line in settings.read_text().splitlines() if line.startswith("store_id"))
    settings.write_text(f"{identity}\n{SMALL_JVM}")
    return open_store(root, spark=spark, lake=lake)


def start_process(
    root: Path, name: str, *, rounds: int, rows: int, sinks: tuple[str, ...] = (), fault: str | None = None
) -> subprocess.Popen[bytes]:
    return start_script(root, name, "flushing_process.py", name, str(rounds), str(rows), *sinks, fault=fault)


def start_script(
    root: Path, name: str, script: str, *arguments: str, fault: str | None = None, listens: bool = False
) -> subprocess.Popen[bytes]:
    """A script of this directory on a store, in a process of its own that dies at the fault point."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_GATEWAY")}
    environment.pop("FLOODMARK_FAULT", None)
    if fault is not None:
        environment["FLOODMARK_FAULT"] = fault
    with said_by(root, name).open("w") as said:  # a file: a full pipe would hold the process up
        return subprocess.Popen(
            [sys.executable, str(HERE / script), str(root), *arguments],
            env=environment,
            stdin=subprocess.PIPE if listens else subprocess.DEVNULL,
            stdout=said,
            stderr=said,
        )


def said_by(root: Path, name: str) -> Path:
    return root.parent / f"{name}.log"


def rows_of(store: Store) -> list[str]:
    return [row["id"] for batch in store.read_since("events") for row in batch.table.to_pylist()]


def check_history(store: Store) -> list[Any]:
    """Snapshots are appends and compactions; the order of commits is the order of numbers; all is decided."""
    from sqlalchemy import select

    from floodmark.control.schema import blocks

    state = store.engine.lake.load("events_g1")
    assert state is not None
    lineage = list(reversed(state.lineage))
    assert {snapshot.operation for snapshot in lineage} <= {"append", "replace"}
    appends = [snapshot for snapshot in lineage if snapshot.operation == "append"]
    ends = [snapshot.through for snapshot in appends]
    assert ends == sorted(set(ends)), "a lower block landed behind a higher one"
    own = select(blocks).where(blocks.c.dataset == "events").order_by(blocks.c.after_seq)
    recorded = store.engine.database.read(lambda c: c.execute(own).fetchall())
    assert [block.id for block in recorded if block.state == "committed"] == [snapshot.block for snapshot in appends]
    assert [block.id for block in recorded if block.state == "reserved"] == []
    assert store.horizon("events") == ends[-1]
    assert list((store.path / "spool" / "events" / "segments").glob("*.parquet")) == []
    return recorded


class HubThread:
    """A real hub on a real port; its own store's lake is in memory."""

    def __init__(self, root: Path) -> None:
        with init(root, lake=MemoryLake()) as store:
            store.add_dataset("events", partition_by=["site"])
        self.store: Store = open_store(root, lake=MemoryLake())
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        self.url = f"http://127.0.0.1:{port}"
        self._hub = Hub(self.store.engine, self.store.spool, HubSettings())
        config = uvicorn.Config(build_app(self._hub), host="127.0.0.1", port=port, log_config=None, ws="none")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        wait_until(lambda: self._server.started)

    def rows(self) -> list[dict[str, Any]]:
        self.store.flush("events")
        return [row for batch in self.store.read_since("events") for row in batch.table.to_pylist()]

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join()
        self._hub.close()
        kill_store(self.store)
