"""A backup is made while everything runs. A restored store has lost nothing of before it, doubles nothing, and finds
what came later where it lies.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from floodmark import faults
from floodmark.errors import Permanent, StoreExists
from floodmark.store import Store, init, open_store, restore
from floodmark.testing import ManualClock, MemoryLake, crash_at, kill_store
from postgres import PostgresServer, postgres_server  # noqa: F401 - a fixture
from scenarios.destinations import Files

DATASET, SINK = "m", "out"
POINTS = ["backup.sealed", "backup.records_copied", "backup.segments_copied"]
KINDS = ("capture", "capture arrow", "seal", "flush", "export", "close")


class Shop:
    """A store with one sink, and what was acknowledged to its producers."""

    def __init__(self, root: Path, **dataset: Any) -> None:
        self.root, self.lake, self.clock = root, MemoryLake(), ManualClock()
        self.numbers = itertools.count(1)
        self.acknowledged: list[int] = []
        self.store = init(root / "store", lake=self.lake, clock=self.clock)
        self.store.add_dataset(DATASET, **{"schema": {"n": "long", "source": "string"}, **dataset})
        self.store.add_sink(SINK, "blob", url=(root / "out").as_uri(), chunk_rows=3)
        (root / "store" / "lake" / "catalog.db").touch()  # where the tables of a store on Spark are

    def do(self, what: str) -> None:
        if what.startswith("capture"):
            rows = [{"n": n, "source": "a"} for n in itertools.islice(self.numbers, 2)]
            self.store.capture(DATASET, pa.Table.from_pylist(rows) if what == "capture arrow" else rows)
            self.acknowledged += [row["n"] for row in rows]
        elif what == "seal":
            self.store.seal(DATASET)
        elif what == "flush":
            self.store.flush(DATASET)
        elif what == "export":
            self.store.export(SINK)
        else:
            self.again()

    def again(self) -> Store:
        self.store.close()
        self.store = open_store(self.root / "store", lake=self.lake, clock=self.clock)
        return self.store

    def some_of_everything(self) -> None:
        """Rows in the lake and at the sink, in segments, and in the landing log."""
        for what in ("capture", "capture arrow", "flush", "export", "capture arrow", "capture", "seal", "capture"):
            self.do(what)

    def lose_records(self) -> None:
        """Settings and control database are gone; spool and lake are there."""
        kill_store(self.store)
        for name in ("floodmark.toml", "control.db", "control.db-wal", "control.db-shm"):
            (self.root / "store" / name).unlink(missing_ok=True)

    def lose_host(self) -> None:
        """Only the lake is left."""
        self.lose_records()
        shutil.rmtree(self.root / "store" / "spool")
        shutil.rmtree(self.root / "store" / "quarantine")

    def restored(self, directory: Path | None = None) -> None:
        self.store = restore(self.root / "backup", directory or self.root / "store", lake=self.lake, clock=self.clock)

    def check(self, wanted: list[int]) -> None:
        self.store.flush(DATASET)
        self.store.export(SINK)
        rows = [row["n"] for batch in self.store.read_since(DATASET) for row in batch.table.to_pylist()]
        assert sorted(rows) == sorted(wanted)
        assert sorted(n for part in Files(self.root, self.lake).rows().values() for n in part) == sorted(wanted)
        assert [one for one in self.store.fsck(deep=True).findings if one.wrong] == []
        assert self.store.audit(SINK, deep=True).sound


@pytest.fixture(params=[{}, {"identity": ["n"]}], ids=["without identity", "with identity"])
def shop(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Shop]:
    made = Shop(tmp_path, **request.param)
    yield made
    made.store.close()


def test_a_restored_store_has_every_row_that_was_acknowledged_before_the_backup(shop: Shop, tmp_path: Path):
    """U37: only the lake is left of the old host."""
    shop.some_of_everything()
    report = shop.store.backup(tmp_path / "backup")
    assert (report.control, report.segments) == (True, 3)
    assert report.lake == str(tmp_path / "store" / "lake")
    shop.lose_host()
    shop.restored()
    shop.check(shop.acknowledged)


def test_rows_of_after_the_backup_are_found_in_the_lake(shop: Shop, tmp_path: Path):
    shop.some_of_everything()
    shop.store.backup(tmp_path / "backup")
    for what in ("capture", "flush", "export", "capture arrow", "flush"):
        shop.do(what)
    shop.lose_host()
    shop.restored()
    shop.check(shop.acknowledged)


def test_rows_of_after_the_backup_are_found_in_the_spool_that_is_still_there(shop: Shop, tmp_path: Path):
    shop.some_of_everything()
    shop.store.backup(tmp_path / "backup")
    for what in ("capture", "flush", "export", "capture arrow", "capture", "seal", "capture"):
        shop.do(what)
    shop.lose_records()
    shop.restored()
    shop.check(shop.acknowledged)


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("what", KINDS)
def test_whatever_happens_while_a_backup_is_made_nothing_of_before_it_is_lost_and_nothing_is_doubled(
    shop: Shop, tmp_path: Path, point: str, what: str
):
    """U37: rows move on from each place before, between and after its copy."""
    shop.some_of_everything()
    before = list(shop.acknowledged)
    faults.arm(point, faults.nth_time(1, lambda: shop.do(what)))
    shop.store.backup(tmp_path / "backup")
    faults.disarm_all()
    shop.lose_host()
    shop.restored()
    shop.store.flush(DATASET)
    rows = [row["n"] for batch in shop.store.read_since(DATASET) for row in batch.table.to_pylist()]
    assert len(rows) == len(set(rows))
    assert set(before) <= set(rows) <= set(shop.acknowledged)
    shop.check(rows)


@pytest.mark.parametrize("point", POINTS)
def test_a_backup_that_was_interrupted_is_refused(shop: Shop, tmp_path: Path, point: str):
    shop.some_of_everything()
    with crash_at(point):
        shop.store.backup(tmp_path / "backup")
    with pytest.raises(Permanent, match="not a complete backup"):
        restore(tmp_path / "backup", tmp_path / "other", lake=shop.lake)
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("point", ["restore.spool_copied", "restore.records_copied"])
def test_a_restore_that_was_interrupted_left_no_store_and_is_run_again(shop: Shop, tmp_path: Path, point: str):
    shop.some_of_everything()
    shop.store.backup(tmp_path / "backup")
    shop.lose_host()
    with crash_at(point):
        shop.restored()
    assert not (tmp_path / "store" / "floodmark.toml").exists()
    (tmp_path / "store" / "control.db").unlink(missing_ok=True)
    shop.restored()
    shop.check(shop.acknowledged)


def test_a_store_that_is_restored_elsewhere_uses_the_tables_where_they_are(shop: Shop, tmp_path: Path):
    shop.some_of_everything()
    shop.store.backup(tmp_path / "backup")
    kill_store(shop.store)
    shop.restored(tmp_path / "elsewhere")
    lake = shop.store.settings.lake
    assert lake is not None
    assert lake.uri == f"sqlite:///{tmp_path / 'store' / 'lake' / 'catalog.db'}"
    shop.check(shop.acknowledged)


def test_a_store_whose_tables_are_gone_is_not_restored_elsewhere(shop: Shop, tmp_path: Path):
    shop.store.backup(tmp_path / "backup")
    (tmp_path / "store" / "lake" / "catalog.db").unlink()
    with pytest.raises(Permanent, match="are not there"):
        restore(tmp_path / "backup", tmp_path / "elsewhere", lake=shop.lake)


def test_a_store_is_not_replaced_and_a_backup_is_not_written_over(shop: Shop, tmp_path: Path):
    shop.store.backup(tmp_path / "backup")
    with pytest.raises(StoreExists):
        restore(tmp_path / "backup", tmp_path / "store", lake=shop.lake)
    with pytest.raises(Permanent, match="not empty"):
        shop.store.backup(tmp_path / "backup")
    with pytest.raises(Permanent, match="inside the store"):
        shop.store.backup(tmp_path / "store" / "backup")


def test_everything_in_a_backup_is_private(shop: Shop, tmp_path: Path):
    shop.some_of_everything()
    shop.store.backup(tmp_path / "backup")
    assert [path for path in (tmp_path / "backup").rglob("*") if path.stat().st_mode & 0o077] == []


@pytest.mark.postgres
def test_a_host_of_a_store_on_postgresql_is_restored_beside_its_database(
    tmp_path: Path,
    postgres_server: PostgresServer,  # noqa: F811
):
    """The database is the server's own: what it has is there, and the spool of the host comes back."""
    lake, url = MemoryLake(), postgres_server.create_schema()
    with init(tmp_path / "store", control=url, lake=lake) as store:
        store.add_dataset(DATASET, schema={"n": "long"})
        store.capture(DATASET, [{"n": 1}])
        report = store.backup(tmp_path / "backup")
        assert not report.control
        kill_store(store)
    (tmp_path / "store" / "lake" / "catalog.db").touch()
    with restore(tmp_path / "backup", tmp_path / "again", lake=lake) as store:
        store.flush(DATASET)
        assert [row["n"] for batch in store.read_since(DATASET) for row in batch.table.to_pylist()] == [1]
    settings = tmp_path / "backup" / "floodmark.toml"
    settings.write_text(settings.read_text().replace(url, postgres_server.create_schema()))
    with pytest.raises(Permanent, match="control database"):
        restore(tmp_path / "backup", tmp_path / "third", lake=lake)
