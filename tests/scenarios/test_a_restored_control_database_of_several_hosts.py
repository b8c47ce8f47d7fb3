"""The control database of a store with several hosts is restored from a backup: no row of any host's log is stored
again, whichever host comes first.
"""

from __future__ import annotations

import shutil
from datetime import timedelta
from pathlib import Path

import pytest

from engines import set_flush
from floodmark.commit import recovery
from floodmark.engine import CONTROL_FILE
from floodmark.maintenance.fold import Kept, fold_dataset
from floodmark.store import Store, init, open_store
from floodmark.testing import MemoryLake, kill_store


class Hosts:
    """Two hosts of one store: records, tables and segments are the same, each has its own landing logs."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.lake = MemoryLake()
        init(root / "a", lake=self.lake).close()
        segments = root / "a" / "spool" / "rows" / "segments"
        segments.mkdir(parents=True)
        (root / "b" / "spool" / "rows").mkdir(parents=True)
        (root / "b" / "spool" / "rows" / "segments").symlink_to(segments)
        (root / "b" / CONTROL_FILE).symlink_to(root / "a" / CONTROL_FILE)
        shutil.copy(root / "a" / "floodmark.toml", root / "b" / "floodmark.toml")
        self.stores = {name: self.open(name) for name in "ab"}
        self.stores["a"].add_dataset("rows", schema={"n": "long"})

    def open(self, name: str) -> Store:
        store = open_store(self.root / name, lake=self.lake)
        set_flush(store, patience_seconds=0)
        return store

    def commit(self, name: str, *numbers: int) -> None:
        self.stores[name].capture("rows", [{"n": n} for n in numbers])
        self.stores[name].flush("rows")

    def back_up(self) -> None:
        self.stop()
        shutil.copy(self.root / "a" / CONTROL_FILE, self.root / "backup.db")
        self.stores = {name: self.open(name) for name in "ab"}

    def restore(self) -> None:
        self.stop()
        for path in self.root.glob(f"a/{CONTROL_FILE}-*"):
            path.unlink()
        shutil.copy(self.root / "backup.db", self.root / "a" / CONTROL_FILE)
        self.stores = {name: self.open(name) for name in "ab"}

    def stop(self) -> None:
        for store in self.stores.values():
            kill_store(store)

    def rows(self) -> list[int]:
        batches = list(self.stores["a"].read_since("rows"))
        found = [row for batch in batches for row in batch.table.to_pylist()]
        return sorted(row["n"] for row in found)


@pytest.fixture
def hosts(quick_path: Path):
    made = Hosts(quick_path)
    yield made
    made.stop()


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_each_host_finds_its_own_lines_among_the_commits_that_were_forgotten(hosts: Hosts, order: str) -> None:
    """I7: the first host records the forgotten commits; the other one's lines are in them, and it has to see that."""
    hosts.commit("a", 1, 2)
    hosts.commit("b", 11, 12)
    hosts.back_up()
    hosts.commit("a", 3)
    hosts.commit("b", 13)
    hosts.commit("b", 14)
    hosts.restore()
    for name in order:
        hosts.commit(name, 20 + order.index(name))
    assert hosts.rows() == [1, 2, 3, 11, 12, 13, 14, 20, 21]
    for name in order:
        hosts.stores[name].flush("rows")
    assert len(hosts.rows()) == 9


def test_a_host_that_comes_back_late_still_finds_them(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    """U35: the record of what was found is not folded, however many commits come after it; and it is asked once."""
    hosts.commit("b", 11)
    hosts.back_up()
    hosts.commit("b", 12)
    hosts.restore()
    for n in range(8):
        hosts.commit("a", n)
    fold_dataset(hosts.stores["a"].engine, "rows", kept=Kept(blocks=1, segments_age=timedelta(0)))
    hosts.commit("b", 13)
    assert hosts.rows() == [*range(8), 11, 12, 13]
    monkeypatch.setattr(recovery, "landing_lines", None)
    hosts.stop()
    hosts.stores = {"b": hosts.open("b")}
    hosts.commit("b", 14)
