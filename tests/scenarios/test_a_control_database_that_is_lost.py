"""A store whose control database is gone or damaged says so, and is made anew from lake and spool."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from floodmark import faults
from floodmark.errors import Corrupt, Permanent, StoreExists
from floodmark.lake import inventory
from floodmark.sequence import SequenceRange
from floodmark.store import Store, init, open_store, rebuild_records
from floodmark.testing import ManualClock, MemoryLake, SimulatedCrash

DECLARED = {
    "identity": [["id"], ["name", "at"]],
    "event_time": "at",
    "partition_by": ["site"],
    "schema": {"id": "long", "name": "string", "at": "timestamp", "site": "string", "more": "json"},
}


def row(id: int) -> dict[str, object]:
    return {"id": id, "name": f"n{id}", "at": f"2026-01-0{id}T00:00:00Z", "site": f"s{id % 2}", "more": {"a": [id]}}


@pytest.fixture
def full(store: Store) -> Store:
    """Rows that are committed, rows in a segment, and rows in the landing log."""
    store.add_dataset("events", **DECLARED)
    store.capture("events", [row(1), row(2)])
    store.flush("events")
    store.capture("events", [row(3)])
    store.seal("events")
    store.capture("events", [row(4)])
    store.close()
    return store


def lose(root: Path) -> None:
    for part in ("control.db", "control.db-wal", "control.db-shm"):
        (root / part).unlink(missing_ok=True)


def ids(lake: MemoryLake, table: str = "events_g1") -> list[int]:
    state = lake.load(table)
    parts = lake.scan(table, snapshot=state.head, within=SequenceRange(0, 2**62))
    return sorted(item["id"] for part in parts for item in part.to_pylist())


DAMAGE: dict[str, Callable[[Path], object]] = {
    "missing": lambda file: lose(file.parent),
    "empty": lambda file: (lose(file.parent), file.write_bytes(b"")),
    "text": lambda file: (lose(file.parent), file.write_bytes(b"not a database at all" * 100)),
    "torn": lambda file: file.write_bytes(file.read_bytes()[:100] + b"\xff" * 8000),
    "without tables": lambda file: (lose(file.parent), _empty_database(file)),
    "a directory": lambda file: (lose(file.parent), file.mkdir()),
}


def _empty_database(file: Path) -> None:
    import sqlite3

    connection = sqlite3.connect(file)
    connection.execute("CREATE TABLE other (x)")
    connection.commit()
    connection.close()


@pytest.mark.parametrize("damage", DAMAGE)
def test_opening_it_is_refused_with_the_way_out(full: Store, lake: MemoryLake, damage: str):
    DAMAGE[damage](full.path / "control.db")
    with pytest.raises(Corrupt) as caught, open_store(full.path, lake=lake) as opened:
        opened.status()
    assert "--rebuild-records" in str(caught.value)
    assert "backup" in str(caught.value)
    if damage == "missing":
        assert not (full.path / "control.db").exists(), "nothing is made by the way"


@pytest.mark.parametrize("damage", ["missing", "empty", "text", "torn", "without tables"])
def test_it_is_made_anew_from_lake_and_spool(full: Store, lake: MemoryLake, clock: ManualClock, damage: str):
    """I1, U32: with the declarations that the tables keep, every row once, and numbers above all of them."""
    before = full.settings.store_id
    taken = inventory.highest_seq(lake, lake.load("events_g1"))
    DAMAGE[damage](full.path / "control.db")
    made = rebuild_records(full.path, lake=lake, clock=clock)
    assert (made.datasets, made.undeclared, made.unclear) == (("events",), (), ())
    assert (made.kept_at is None) == (damage == "missing")
    with open_store(full.path, lake=lake, clock=clock) as again:
        (declared,) = again.datasets()
        assert declared.identity == (("id",), ("name", "at"))
        assert (declared.event_time, declared.partition_by) == ("at", ("site",))
        assert declared.schema.column("more").text == "json"
        assert again.flush("events").rows == 2
        assert ids(lake) == [1, 2, 3, 4]
        assert again.horizon("events") > taken
        again.capture("events", [row(1)])
        assert again.flush("events").duplicates == 1
        assert again.store_id == before
        assert again.fsck(deep=True).findings == ()


def test_one_that_can_be_read_is_not_made_anew(full: Store, lake: MemoryLake):
    with pytest.raises(Permanent, match="can be read"):
        rebuild_records(full.path, lake=lake)
    assert ids(lake) == [1, 2]


def test_a_table_that_keeps_no_declaration_is_named(full: Store, lake: MemoryLake, clock: ManualClock):
    """One of an older version: declared again as it was, the next flush finds its rows."""
    lake.tables["events_g1"].declaration = None
    lose(full.path)
    made = rebuild_records(full.path, lake=lake)
    assert made.undeclared == ("events",)
    with open_store(full.path, lake=lake, clock=clock) as again:
        again.add_dataset("events", **DECLARED)
        assert again.flush("events").rows == 2
    assert ids(lake) == [1, 2, 3, 4]


def test_the_current_table_is_told_from_one_that_was_retired_and_one_that_was_never_finished(
    full: Store, lake: MemoryLake, clock: ManualClock
):
    with open_store(full.path, lake=lake, clock=clock) as store:
        store.flush("events")
        store.rebuild("events")
        faults.arm("rebuild.caught_up", _die)
        with pytest.raises(SimulatedCrash):
            store.rebuild("events")
        faults.disarm_all()
    lose(full.path)
    made = rebuild_records(full.path, lake=lake, clock=clock)
    assert made.datasets == ("events",)
    with open_store(full.path, lake=lake, clock=clock) as again:
        assert again.datasets()[0].table_name == "events_g2"
        again.capture("events", [row(5)])
        assert again.flush("events").rows == 1
        assert ids(lake, "events_g2") == [1, 2, 3, 4, 5]


def _die() -> None:
    raise SimulatedCrash


def test_an_init_that_was_broken_off_is_begun_again(tmp_path: Path, lake: MemoryLake, monkeypatch: pytest.MonkeyPatch):
    """The control database comes before the settings, which make a store of the directory."""
    with monkeypatch.context() as broken:
        broken.setattr("floodmark.engine.durable_write", lambda *_, **__: _die())
        with pytest.raises(SimulatedCrash):
            init(tmp_path / "new", lake=lake)
    init(tmp_path / "new", lake=lake).close()
    with pytest.raises(StoreExists):
        init(tmp_path / "new", lake=lake)


def test_a_store_whose_settings_are_lost_is_not_made_over(full: Store, lake: MemoryLake):
    (full.path / "floodmark.toml").unlink()
    with pytest.raises(StoreExists):
        init(full.path, lake=lake)
