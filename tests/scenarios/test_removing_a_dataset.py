"""A removed dataset leaves nothing behind in the store; what depends on it is named first; a crash continues."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from floodmark.control.schema import metadata
from floodmark.errors import DatasetExists, Permanent, Retryable, UnknownDataset
from floodmark.store import Store, init, open_store
from floodmark.testing import MemoryLake, crash_at, kill_store

NAME = "gone"
POINTS = ["remove.forgotten", "remove.table_dropped", "remove.files_removed"]


@pytest.fixture
def lake() -> MemoryLake:
    return MemoryLake()


@pytest.fixture
def store(quick_path: Path, lake: MemoryLake) -> Iterator[Store]:
    """Two datasets with everything that a dataset may have, both delivered."""
    with init(quick_path / "store", lake=lake) as made:
        for name in (NAME, "kept"):
            made.add_dataset(name, identity=["n"], schema={"n": "long"}, partition_by=["source"])
        made.add_sink("files", "blob", url=(quick_path / "out").as_uri())
        for name in (NAME, "kept"):
            rows: list[dict[str, Any]] = [{"source": "a", "n": n} for n in range(5)]
            made.capture(name, [*rows, {"source": "a", "n": "no number"}])
            made.backfill(name, [{"source": "b", "n": 10}], source_id="history")
            made.flush()
        made.export()
        made.retain(NAME, keep_rows=2)
        made.spool.close()
        yield made


def records(store: Store, dataset: str) -> dict[str, int]:
    """How many records of every table, also of those that are added after this test, name a dataset."""

    def work(connection: Any) -> dict[str, int]:
        found = {}
        for table in metadata.sorted_tables:
            column = table.c.get("dataset", table.c.name if table.name == "datasets" else None)
            if column is not None:
                found[table.name] = len(connection.execute(select(column).where(column == dataset)).all())
        return {name: count for name, count in found.items() if count}

    return store.engine.database.read(work)


def parts(store: Store) -> dict[str, int]:
    """Tables without a dataset of their own."""
    names = ("chunks", "block_partitions", "segment_partitions")
    return {
        name: store.engine.database.read(
            lambda c, name=name: len(c.exec_driver_sql(f"SELECT 1 FROM {name}").fetchall())
        )
        for name in names
    }


def test_nothing_of_it_is_left_and_the_others_are_as_they_were(
    store: Store, lake: MemoryLake, quick_path: Path
) -> None:
    before, there = records(store, "kept"), sorted(path for path in (quick_path / "out").rglob("*.parquet"))
    alone = parts(store)
    assert records(store, NAME)
    report = store.remove_dataset(NAME)
    assert report.removed
    assert records(store, NAME) == {}
    assert records(store, "kept") == before
    assert all(0 < parts(store)[name] < alone[name] for name in alone), alone
    assert not [table for table in lake.tables if table.startswith(f"{NAME}_")]
    assert not (store.path / "spool" / NAME).exists()
    assert not (store.path / "quarantine" / NAME).exists()
    assert sorted(path for path in (quick_path / "out").rglob("*.parquet")) == there, "delivered rows stay"
    with pytest.raises(UnknownDataset):
        store.capture(NAME, [{"source": "a", "n": 1}])
    store.capture("kept", [{"source": "a", "n": 77}])
    assert store.flush().rows == 1
    assert store.export().rows == 1
    assert store.audit("files", deep=True).sound
    assert store.fsck(deep=True).sound


def test_a_dry_run_names_everything_and_changes_nothing(store: Store) -> None:
    before = records(store, NAME)
    store.capture(NAME, [{"source": "a", "n": 100}])
    report = store.remove_dataset(NAME, dry_run=True)
    assert (report.rows, report.quarantined, report.removed) == (2, 1, False)
    assert report.waiting_bytes > 0
    assert report.tables
    assert {**records(store, NAME), "landing": 0} == {**before, "landing": 0}


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("who", ["the same command", "a compaction", "fsck"])
def test_a_crash_at_any_step_is_continued(store: Store, lake: MemoryLake, point: str, who: str) -> None:
    with crash_at(point):
        store.remove_dataset(NAME)
    kill_store(store)
    with open_store(store.path, lake=lake) as again:
        assert records(again, NAME) == {}
        with pytest.raises(UnknownDataset):
            again.flush(NAME)
        report = again.fsck()
        assert (report.sound, [item.kind for item in report.findings]) == (True, ["dataset-removal-unfinished"])
        if who == "the same command":
            assert again.remove_dataset(NAME).removed
        elif who == "fsck":
            assert again.fsck(repair=True).findings == ()
        else:
            assert again.compact().sound
        assert not [table for table in lake.tables if table.startswith(f"{NAME}_")]
        assert not (again.path / "spool" / NAME).exists()
        with pytest.raises(UnknownDataset, match="was removed"):
            again.remove_dataset(NAME)


def test_rows_that_no_sink_has_yet_are_not_lost_unless_they_are_given_up(store: Store) -> None:
    store.capture(NAME, [{"source": "a", "n": 100}])
    store.spool.close()
    with pytest.raises(Permanent, match="not committed") as caught:
        store.remove_dataset(NAME)
    assert "--give-up" in (caught.value.hint or "")
    store.flush()
    with pytest.raises(Permanent, match="'files' has not received about 1 rows"):
        store.remove_dataset(NAME)
    assert store.remove_dataset(NAME, dry_run=True).needed[0].sink == "files"
    assert store.remove_dataset(NAME, give_up=True).removed


def test_a_sink_that_delivers_nothing_else_is_removed_first(store: Store, quick_path: Path) -> None:
    store.add_sink("only", "blob", url=(quick_path / "only").as_uri(), datasets=[NAME])
    store.add_sink("both", "blob", url=(quick_path / "both").as_uri(), datasets=[NAME, "kept"], start="now")
    store.export()
    report = store.remove_dataset(NAME, dry_run=True)
    assert (set(report.sinks), report.only_sinks) == ({"only", "both"}, ("only",))
    with pytest.raises(Permanent, match="delivers only dataset"):
        store.remove_dataset(NAME, give_up=True)
    store.remove_sink("only")
    store.remove_dataset(NAME)
    assert next(item for item in store.sinks() if item.name == "both").settings["datasets"] == ["kept"]
    assert not next(item for item in store.status().sinks if item.name == "both").warnings


def test_a_process_that_captures_is_stopped_first(store: Store, lake: MemoryLake) -> None:
    """Its next row would be acknowledged into a file that is gone."""
    with open_store(store.path, lake=lake) as writer:
        writer.capture(NAME, [{"source": "a", "n": 100}])
        with pytest.raises(Retryable, match="capturing"):
            store.remove_dataset(NAME, give_up=True)
    assert store.remove_dataset(NAME, give_up=True).removed


def test_a_process_that_knew_the_dataset_stores_nothing_for_it_afterwards(store: Store, lake: MemoryLake) -> None:
    with open_store(store.path, lake=lake) as other:
        other.capture("kept", [{"source": "a", "n": 7}])
        other.spool.check_room(NAME)
        other.capture(NAME, [])
        store.remove_dataset(NAME, give_up=True)
        with pytest.raises(UnknownDataset):
            other.capture(NAME, [{"source": "a", "n": 8}])
    assert not (store.path / "spool" / NAME).exists()


def test_its_name_is_not_used_again(store: Store) -> None:
    store.remove_dataset(NAME)
    with pytest.raises(DatasetExists, match="was removed"):
        store.add_dataset(NAME)


def test_it_waits_for_a_rebuild_and_for_a_removal_of_rows(store: Store, lake: MemoryLake) -> None:
    with crash_at("rebuild.copied"):
        store.rebuild(NAME)
    with pytest.raises(Retryable, match="being rebuilt"):
        store.remove_dataset(NAME)
    store.rebuild(NAME)
    with crash_at("removal.planned"):
        store.purge(NAME, "n >= 0")
    with pytest.raises(Retryable, match="being removed"):
        store.remove_dataset(NAME)
    store.purge(NAME, "n >= 0")
    assert store.remove_dataset(NAME).removed
    assert not [table for table in lake.tables if table.startswith(f"{NAME}_")], "tables of all generations"
