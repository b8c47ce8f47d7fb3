"""A store's control database is moved from SQLite to PostgreSQL and back, with every record, and used in one place."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import select

from floodmark.control.schema import metadata
from floodmark.errors import Permanent, StoreExists
from floodmark.maintenance.move import move_control
from floodmark.store import Store, init, open_store
from floodmark.testing import ManualClock, MemoryLake, crash_at
from postgres import PostgresServer, postgres_server  # noqa: F401 - a fixture
from scenarios.destinations import Files

pytestmark = pytest.mark.postgres
DATASET, SINK = "m", "out"


@pytest.fixture
def url(postgres_server: PostgresServer) -> str:  # noqa: F811
    return postgres_server.create_schema()


class Shop:
    def __init__(self, root: Path) -> None:
        self.root, self.lake, self.clock = root, MemoryLake(), ManualClock()
        self.number = 0
        with init(root / "store", lake=self.lake, clock=self.clock) as store:
            store.add_dataset(DATASET, ["n"], schema={"n": "long", "source": "string"}, partition_by=["source"])
            store.add_sink(SINK, "blob", url=(root / "out").as_uri(), chunk_rows=3)
            self.round(store)
            store.capture(DATASET, [{"n": 1_000, "source": "a"}])

    def open(self) -> Store:
        return open_store(self.root / "store", lake=self.lake, clock=self.clock)

    def round(self, store: Store) -> None:
        self.number += 3
        store.capture(DATASET, [{"n": self.number + place, "source": "a"} for place in range(3)])
        store.flush(DATASET)
        store.export(SINK)

    def records(self) -> dict[str, list[tuple[object, ...]]]:
        """Every record, without where the tables are and which version they have."""
        with self.open() as store:
            found = store.engine.database.read(
                lambda c: {
                    name: [tuple(row) for row in c.execute(select(one))] for name, one in metadata.tables.items()
                }
            )
        found["meta"] = [row for row in found["meta"] if row[0] == "store_id"]
        return {name: sorted(rows, key=repr) for name, rows in found.items()}

    def check(self) -> None:
        with self.open() as store:
            self.round(store)
            rows = [row["n"] for batch in store.read_since(DATASET) for row in batch.table.to_pylist()]
            assert sorted(rows) == sorted({*range(3, self.number + 3), 1_000})
            assert sorted(Files(self.root, self.lake).rows()["source=a"]) == sorted(rows)
            assert store.fsck(deep=True).findings == ()
            assert store.audit(SINK, deep=True).sound


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    return Shop(tmp_path)


def test_every_record_is_at_the_new_place_and_back_again(shop: Shop, url: str):
    before = shop.records()
    cursor = None
    with shop.open() as store:
        cursor = [str(batch.cursor) for batch in store.read_since(DATASET)][-1]
    assert move_control(shop.root / "store", url).control == "postgresql"
    assert shop.records() == before
    with shop.open() as store:
        assert store.engine.database.dialect == "postgresql"
        assert list(store.read_since(DATASET, cursor)) == []
    shop.check()
    before = shop.records()
    assert move_control(shop.root / "store", "sqlite").control == "sqlite"
    assert shop.records() == before
    shop.check()
    move_control(shop.root / "store", url)  # to where it was before
    shop.check()


@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("point", ["move.fenced", "move.copied"])
def test_a_move_that_was_interrupted_is_run_again(shop: Shop, url: str, point: str, back: bool):
    """U38: in between nothing can be changed at either place."""
    if back:
        move_control(shop.root / "store", url)
    before = shop.records()
    to = "sqlite" if back else url
    with crash_at(point):
        move_control(shop.root / "store", to)
    with shop.open() as store, pytest.raises(Permanent, match="was moved, or is being moved"):
        store.flush(DATASET)
    move_control(shop.root / "store", to)
    assert shop.records() == before
    shop.check()


def test_a_process_that_still_has_the_old_one_open_fails_clearly_and_captures_go_on(shop: Shop, url: str):
    """U38"""
    with shop.open() as old:
        old.capture(DATASET, [{"n": 2_000, "source": "a"}])
        move_control(shop.root / "store", url)
        old.capture(DATASET, [{"n": 2_001, "source": "a"}])  # durable in the landing log
        for work in (lambda: old.flush(DATASET), lambda: old.seal(DATASET), lambda: old.add_dataset("more")):
            with pytest.raises(Permanent, match="was moved"):
                work()
    with shop.open() as store:
        store.flush(DATASET)
        rows = [row["n"] for batch in store.read_since(DATASET) for row in batch.table.to_pylist()]
        assert {2_000, 2_001} <= set(rows)


def test_a_place_that_is_in_use_or_another_stores_is_refused_and_the_store_goes_on(
    shop: Shop, url: str, tmp_path: Path
):
    with init(tmp_path / "other", control=url, lake=MemoryLake()) as other:
        other.add_dataset("rows", schema={"id": "long"})
    with pytest.raises(StoreExists):
        move_control(shop.root / "store", url)
    shop.check()


def test_a_server_that_cannot_be_reached_leaves_the_store_as_it_is(shop: Shop):
    with pytest.raises(Exception, match="not available"):
        move_control(shop.root / "store", "postgresql://postgres@127.0.0.1:1/nothing")
    shop.check()


def test_tables_of_projections_are_not_left_behind(shop: Shop, url: str):
    with shop.open() as store:
        store.engine.database.transact(lambda c: c.exec_driver_sql("CREATE TABLE totals (n BIGINT)"))
    with pytest.raises(Permanent, match="totals"):
        move_control(shop.root / "store", url)
    shop.check()
