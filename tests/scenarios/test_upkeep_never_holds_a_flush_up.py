"""Whatever upkeep asks of the lake, a flush that begins meanwhile goes through: the flush lock is free."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from removing import NAME, Aged

from floodmark.files import advisory_lock
from floodmark.maintenance import upkeep
from floodmark.store import Store
from floodmark.testing import MemoryLake

SLOW = ("aggregate", "scan", "remove", "expire", "rewrite", "resettle", "orphans", "sync", "files")
"""What takes long on Spark, or on a disk."""


def unchanged(rows: pa.Table) -> pa.Table:
    return rows


def upper(rows: pa.Table) -> pa.Table:
    """Another answer for rows that were committed as they came."""
    names = [who if who == "late" else who.upper() for who in rows["who"].to_pylist()]
    return rows.set_column(rows.column_names.index("who"), "who", pa.array(names, pa.string()))


class Interrupted:
    """A flush by another process at every slow call that upkeep makes."""

    def __init__(self, world: Aged, monkeypatch: pytest.MonkeyPatch) -> None:
        self.world = world
        self.other = world.open()
        self.flushed: list[int] = []
        self.waited: list[str] = []
        self.called: set[str] = set()
        self._inside = False
        for name in SLOW:
            monkeypatch.setattr(MemoryLake, name, self._with_a_flush(name, getattr(MemoryLake, name)))

    def _with_a_flush(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(lake: MemoryLake, *args: Any, **kwargs: Any) -> Any:
            if self._inside:
                return real(lake, *args, **kwargs)
            self.called.add(name)
            with self._another_process():
                self._flush(name)
            return real(lake, *args, **kwargs)

        return call

    @contextmanager
    def _another_process(self):
        self._inside = True
        try:
            yield
        finally:
            self._inside = False

    def _flush(self, name: str) -> None:
        lock = self.world.root / "store" / "spool" / NAME / "flush.lock"
        with advisory_lock(lock, wait_seconds_max=0) as free:
            if not free:
                self.waited.append(name)
        id = 1000 + len(self.flushed)
        self.other.capture(NAME, [self.world.row(id, who="late")])
        assert self.other.flush(NAME).rows == 1
        self.flushed.append(id)


def retain_by_age(store: Store) -> None:
    assert store.retain(NAME, older_than="30d").rows == 3


def retain_rows(store: Store) -> None:
    assert store.retain(NAME, keep_rows=2).rows


def purge(store: Store) -> None:
    assert store.purge(NAME, "id = 1").rows == 1


def compact(store: Store) -> None:
    (report,) = store.compact(NAME).datasets
    assert report.compacted
    assert not report.problems


def task(name: str, store: Store) -> None:
    assert upkeep.tend(store.engine, name, NAME).problem is None


@pytest.mark.parametrize(
    ("work", "asks"),
    [
        (retain_by_age, {"aggregate", "remove", "expire"}),
        (retain_rows, {"scan", "aggregate", "remove", "expire"}),
        (purge, {"aggregate", "remove", "expire"}),
        (compact, {"resettle", "rewrite", "expire", "orphans"}),
        (partial(task, upkeep.EXPIRE), {"expire"}),
        (partial(task, upkeep.ORPHANS), {"orphans"}),
        (partial(task, upkeep.FOLD), set()),
    ],
    ids=["retain by age", "retain a number of rows", "purge", "compact", "expire", "orphans", "fold"],
)
def test_a_flush_goes_through_at_every_step_of_upkeep(
    quick_path: Path, monkeypatch: pytest.MonkeyPatch, work: Callable[[Store], None], asks: set[str]
) -> None:
    world = Aged(quick_path, settle=f"{__name__}:unchanged")
    for id in range(15):
        world.flush(world.row(id, days=40 if id < 3 else 1))
    settings = replace(world.store.settings.upkeep, snapshots_max=1, snapshots_keep=1, snapshots_age_seconds=0)
    world.store.engine.settings = replace(world.store.settings, upkeep=replace(settings, files_min=2))
    beside = Interrupted(world, monkeypatch)
    work(world.store)
    monkeypatch.undo()
    assert beside.called >= asks
    assert beside.waited == []
    assert set(beside.flushed) <= set(world.ids())
    assert [item.what for item in world.store.fsck(deep=True).findings if item.wrong] == []


def test_only_a_settle_function_with_other_answers_makes_flushes_wait(
    quick_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B7: its commit lands only if nothing was appended since. So it looks first, and keeps them waiting then."""
    world = Aged(quick_path, settle=f"{__name__}:unchanged")
    for id in range(3):
        world.flush(world.row(id))
    world.store.change_dataset(NAME, settle=f"{__name__}:upper")
    beside = Interrupted(world, monkeypatch)
    world.store.compact(NAME)
    monkeypatch.undo()
    assert beside.waited[:1] == ["resettle"], "the second time it is asked"
    assert set(beside.flushed) <= set(world.ids()), "and one that does not wait, as from another machine, is not undone"
    assert [item.what for item in world.store.fsck(deep=True).findings if item.wrong] == []
