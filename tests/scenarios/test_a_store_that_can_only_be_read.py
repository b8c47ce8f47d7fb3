"""A store on a read-only file system, or of somebody else: it can be looked at, and what needs to write says so."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from pathlib import Path

import pytest
from sqlalchemy import text

from floodmark.control.database import Database, sqlite_url
from floodmark.engine import CONTROL_FILE
from floodmark.errors import StoreReadOnly
from floodmark.store import Store, open_store
from read_only import read_only


@pytest.fixture
def filled(store: Store) -> Store:
    """Two rows committed and delivered, one captured, one in quarantine."""
    store.add_dataset("events", schema={"id": "long"})
    store.capture("events", [{"id": 1}, {"id": 2}])
    store.flush()
    store.add_sink("files", "blob", url=store.path.with_name("out").as_uri())
    store.export()
    store.capture("events", [{"id": 3}, {"id": "no number"}])
    return store


def ids(store: Store) -> list[int]:
    return [row["id"] for batch in store.read_since("events") for row in batch.table.to_pylist()]


def test_everything_that_only_looks_works(filled, lake):
    filled.close()
    with read_only(filled.path) as place, open_store(place, lake=lake) as store:
        (status,) = store.status().datasets
        assert (status.rows, status.quarantined) == (2, 1)
        assert status.spool.landing_bytes > 0
        assert ids(store) == [1, 2]
        assert store.horizon("events") == store.cursor("events").seq == 2
        assert [sink.name for sink in store.sinks()] == ["files"]
        assert [entry.dataset for entry in store.quarantine.entries()] == ["events"]
        assert store.audit("files", deep=True).sound
        assert store.trace("events", {"id": 1}).committed
        assert store.fsck().sound


@pytest.mark.parametrize(
    "change",
    [
        lambda store: store.capture("events", [{"id": 4}]),
        lambda store: store.seal("events"),
        lambda store: store.flush(),
        lambda store: store.add_dataset("more"),
        lambda store: store.add_sink("more", "projection", function="builtins:print"),
        lambda store: store.remove_sink("files"),
        lambda store: store.retain("events", keep_rows=1),
        lambda store: store.purge("events", "id = 1"),
        lambda store: store.check_writable(),
    ],
    ids=["capture", "seal", "flush", "dataset", "sink", "remove", "retain", "purge", "check"],
)
def test_what_needs_to_write_says_so_and_changes_nothing(filled, lake, change):
    filled.close()
    with read_only(filled.path) as place, open_store(place, lake=lake) as store:
        with pytest.raises(StoreReadOnly, match="store is read-only"):
            change(store)
        assert ids(store) == [1, 2]
    with open_store(filled.path, lake=lake) as store:
        store.flush()
        assert ids(store) == [1, 2, 3]


def test_what_a_writer_commits_meanwhile_is_seen(filled, lake, tmp_path):
    with read_only(filled.path, at=tmp_path / "view") as place, open_store(place, lake=lake) as looking:
        assert ids(looking) == [1, 2]
        filled.flush()
        assert ids(looking) == [1, 2, 3]
        filled.close()
        assert ids(looking) == [1, 2, 3]
        with open_store(filled.path, lake=lake) as writer:
            writer.capture("events", [{"id": 4}])
            writer.flush()
            assert ids(looking) == [1, 2, 3, 4]


@pytest.mark.parametrize("left", [("", "-wal"), ("", "-wal", "-shm")], ids=["without its index", "with its index"])
def test_what_a_dead_writer_left_in_its_log_is_seen(filled, lake, tmp_path, left):
    """As after a power loss: the last transactions are in the write-ahead log alone."""
    crashed = tmp_path / "crashed"
    shutil.copytree(filled.path, crashed, ignore=shutil.ignore_patterns(f"{CONTROL_FILE}*"))
    for part in left:
        shutil.copy(filled.path / f"{CONTROL_FILE}{part}", crashed)
    assert (crashed / f"{CONTROL_FILE}-wal").stat().st_size > 0
    with read_only(crashed) as place, open_store(place, lake=lake) as store:
        assert ids(store) == [1, 2]
        assert [sink.name for sink in store.sinks()] == ["files"]


def test_a_read_beside_which_a_writer_came_and_went_is_made_again(filled):
    """Nobody else had the file open when the read began, so it took no lock."""
    filled.close()
    url = sqlite_url(filled.path / CONTROL_FILE)
    looking, seen = Database(url, read_only=True), []

    def work(connection):
        seen.append(connection.execute(text("SELECT count(*) FROM meta")).scalar_one())
        if len(seen) == 1:
            writer = Database(url)
            writer.transact(lambda c: c.execute(text("INSERT INTO meta VALUES ('more', '1')")))
            writer.close()
        return seen[-1]

    assert looking.read(work) == seen[0] + 1
    assert len(seen) == 2


def test_a_read_beside_a_writer_holds_its_view_by_the_lock_that_the_writer_knows(filled):
    """The writer cannot take away what is being read: it is told so, and the next checkpoint goes on."""
    file = filled.path / CONTROL_FILE
    looking = Database(sqlite_url(file), read_only=True)

    def work(connection):
        before = connection.execute(text("SELECT count(*) FROM datasets")).scalar_one()
        filled.add_dataset("more")
        with contextlib.closing(sqlite3.connect(file, timeout=0)) as writer:
            busy, _, _ = writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        return busy, before, connection.execute(text("SELECT count(*) FROM datasets")).scalar_one()

    assert looking.read(work) == (1, 1, 1)
    assert len(looking.read(lambda c: c.execute(text("SELECT name FROM datasets")).fetchall())) == 2


def test_a_store_of_an_older_version_is_left_as_it_is_and_the_way_out_is_told(filled, lake):
    filled.engine.database.transact(
        lambda c: c.execute(text("UPDATE meta SET value = '1' WHERE name = 'schema_version'"))
    )
    filled.close()
    with (
        read_only(filled.path) as place,
        pytest.raises(StoreReadOnly, match="has version 1 and must be migrated") as caught,
    ):
        open_store(place, lake=lake)
    assert "floodmark status" in (caught.value.hint or "")


def test_looking_leaves_no_file_behind(filled, lake, tmp_path):
    filled.close()
    before = {path: path.stat().st_mtime_ns for path in filled.path.rglob("*")}
    view: Path
    with read_only(filled.path, at=tmp_path / "view") as view, open_store(view, lake=lake) as store:
        store.status()
        ids(store)
    assert {path: path.stat().st_mtime_ns for path in filled.path.rglob("*")} == before
