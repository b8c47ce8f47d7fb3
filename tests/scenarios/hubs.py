"""A hub for the delivery scenarios: a real server on a real port, its store on a memory lake, in a thread."""

from __future__ import annotations

import shutil
import socket
import threading
from collections import defaultdict
from pathlib import Path
from typing import Any

import uvicorn

from floodmark.hub.app import Hub, build_app
from floodmark.hub.settings import HubSettings
from floodmark.store import Store, init, open_store
from floodmark.testing import MemoryLake, kill_store
from scenarios.destinations import DATASET, PLACES, Place
from waiting import wait_until


class HubPlace(Place):
    """A forward sink to another store's hub. The hub can be backed up and restored."""

    kind = "forward"

    def __init__(self, root: Path, lake: MemoryLake) -> None:
        self.root = root / "hub"
        self.lake = MemoryLake()
        with init(self.root, lake=self.lake) as store:
            store.add_dataset(DATASET, partition_by=["source"])
        self.port = free_port()
        self.settings = {"url": f"http://127.0.0.1:{self.port}", "concurrency": 1}
        self.start()

    def start(self) -> None:
        self.store = open_store(self.root, lake=self.lake)
        self.hub = Hub(self.store.engine, self.store.spool, HubSettings())
        config = uvicorn.Config(build_app(self.hub), host="127.0.0.1", port=self.port, log_config=None, ws="none")
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run, daemon=True)
        self.thread.start()
        wait_until(lambda: self.server.started)

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join()
        self.hub.close()
        kill_store(self.store)

    def close(self) -> None:
        self.stop()

    def back_up(self, to: Path) -> None:
        self.stop()
        shutil.copytree(self.root, to)
        self.start()

    def restore(self, backup: Path) -> None:
        self.stop()
        shutil.rmtree(self.root)
        shutil.copytree(backup, self.root)
        self.start()

    def rows(self) -> dict[str, list[int]]:
        self.store.flush(DATASET)
        found: dict[str, list[int]] = defaultdict(list)
        for batch in self.store.read_since(DATASET):
            for row in batch.table.to_pylist():
                found[f"source={row['source']}"].append(row["n"])
        return dict(found)

    def ledger(self) -> list[Any]:
        return self.store.engine.database.read(
            lambda c: c.exec_driver_sql("SELECT partition_key, through_seq, row_count FROM ledger").fetchall()
        )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def forget_deliveries(store: Store) -> None:
    for table in ("chunks", "intents", "watermarks"):
        store.engine.database.transact(lambda c, table=table: c.exec_driver_sql(f"DELETE FROM {table}"))


PLACES["hub"] = HubPlace
