"""What is wrong with one dataset stops nothing of another, and is named where somebody looks."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from floodmark.errors import Corrupt, FilesMissing
from floodmark.lake import inventory
from floodmark.schema import SEQ
from floodmark.sequence import SequenceRange
from floodmark.store import Store
from floodmark.testing import ManualClock, MemoryLake

Reopen = Callable[[], Store]
BAD, GOOD = "bad", "good"


@pytest.fixture
def two(store: Store) -> Store:
    """A store with two datasets, both with committed rows."""
    for name in (BAD, GOOD):
        store.add_dataset(name, schema={"n": "long"})
        store.capture(name, [{"n": 1}])
        store.flush(name)
    return store


def lose_data(lake: MemoryLake, dataset: str = BAD) -> None:
    """A file of the newest commit is gone, and the records do not know it to be on the disk."""
    table = lake.tables[f"{dataset}_g1"]
    del lake.data[table.files[table.head or 0][0]]


def damaged(store: Store, lake: MemoryLake) -> None:
    store.capture(BAD, [{"n": 2}])
    store.flush(BAD)
    lose_data(lake)
    store.engine.database.transact(lambda c: c.exec_driver_sql("UPDATE datasets SET synced_snapshot = NULL"))


def rows(store: Store, lake: MemoryLake, dataset: str) -> list[int]:
    state = lake.load(f"{dataset}_g1")
    parts = lake.scan(state.name, snapshot=state.head, within=SequenceRange(0, 2**62))
    return [row["n"] for part in parts for row in part.to_pylist()]


def test_a_dataset_whose_files_are_lost_stops_no_flush_of_another(two: Store, lake: MemoryLake, reopen: Reopen):
    """I10: in a new process, where recovery looks at everything for the first time."""
    damaged(two, lake)
    again = reopen()
    again.capture(BAD, [{"n": 3}])
    again.capture(GOOD, [{"n": 2}])
    assert again.flush(GOOD).rows == 1
    with pytest.raises(Corrupt):
        again.flush(BAD)
    again.capture(GOOD, [{"n": 3}])
    report = again.flush()
    assert report.rows == 1
    assert len(report.problems) == 1
    assert "is missing" in report.problems[0]
    assert rows(again, lake, GOOD) == [1, 2, 3]


def test_it_is_named_in_status_until_it_gets_through(two: Store, lake: MemoryLake, reopen: Reopen, clock: ManualClock):
    """I10: also in another process."""
    kept = dict(lake.data)
    damaged(two, lake)
    began = clock.now()
    with pytest.raises(Corrupt):
        reopen().flush(BAD)
    clock.advance(60)
    with pytest.raises(Corrupt):
        reopen().flush(BAD)
    bad, good = reopen().status().datasets
    assert "is missing" in bad.problem
    assert bad.problem_since == began
    assert good.problem is None
    lake.data.update(kept)
    for file, part in kept.items():
        lake.data[file] = part
    lake.tables[f"{BAD}_g1"].files = {
        id: tuple(file for file in files if file in lake.data) for id, files in lake.tables[f"{BAD}_g1"].files.items()
    }
    reopen().flush(BAD)
    assert [item.problem for item in reopen().status().datasets] == [None, None]


def test_an_export_delivers_the_other_datasets_and_names_the_damaged_one(
    two: Store, lake: MemoryLake, reopen: Reopen, tmp_path: Path
):
    """I10"""
    two.add_sink("out", "blob", url=(tmp_path / "out").as_uri())
    lake.unreadable.add(f"{BAD}_g1")
    again = reopen()
    report = again.export("out")
    assert report.rows == 1
    assert [dataset for dataset, _ in report.errors] == [BAD]
    assert list(report.damaged) == [BAD]
    assert report.blocked is None
    assert list((tmp_path / "out" / GOOD).rglob("*.*"))
    with pytest.raises(FilesMissing):
        again.flush(BAD)
    later = reopen().export("out")
    assert "cannot be read" in later.damaged[BAD]


def test_numbers_are_given_above_a_table_that_cannot_be_read(
    two: Store, lake: MemoryLake, reopen: Reopen, tmp_path: Path
):
    """I1, I10: its rows keep their numbers to themselves, also if the control database is older than they are."""
    two.close()
    shutil.copy(tmp_path / "store" / "control.db", tmp_path / "backup.db")
    later = reopen()
    later.capture(BAD, [{"n": number} for number in range(2, 20)])
    later.flush(BAD)
    later.close()
    taken = inventory.highest_seq(lake, lake.load(f"{BAD}_g1"))
    for part in ("control.db", "control.db-wal", "control.db-shm"):
        (tmp_path / "store" / part).unlink(missing_ok=True)
    shutil.copy(tmp_path / "backup.db", tmp_path / "store" / "control.db")
    lake.unreadable.add(f"{BAD}_g1")
    again = reopen()
    again.capture(GOOD, [{"n": 2}])
    again.flush(GOOD)
    state = lake.load(f"{GOOD}_g1")
    numbers = [
        row[SEQ]
        for part in lake.scan(state.name, snapshot=state.head, within=SequenceRange(2, 2**62))
        for row in part.to_pylist()
    ]
    assert min(numbers) > taken


def test_where_nothing_says_which_numbers_are_taken_none_is_given(two: Store, lake: MemoryLake, reopen: Reopen):
    """I1, I10: the error names the dataset that is in the way."""
    lake.unreadable.add(f"{BAD}_g1")
    lake.vanished.add(f"{BAD}_g1")
    again = reopen()
    again.capture(GOOD, [{"n": 2}])
    with pytest.raises(Corrupt, match="cannot get sequence numbers") as caught:
        again.flush(GOOD)
    assert repr(BAD) in caught.value.hint
    lake.vanished.clear()
    assert again.flush(GOOD).rows == 1


def test_a_dataset_that_was_repaired_is_taken_up_by_the_same_process(two: Store, lake: MemoryLake, reopen: Reopen):
    """I10: what failed is tried again with the next operation."""
    lake.unreadable.add(f"{BAD}_g1")
    again = reopen()
    again.capture(BAD, [{"n": 2}])
    with pytest.raises(FilesMissing):
        again.flush(BAD)
    with pytest.raises(FilesMissing):
        again.seal(BAD)
    lake.unreadable.clear()
    assert again.flush(BAD).rows == 1
    assert again.status().datasets[0].problem is None


def test_the_others_are_compacted_and_pruned(two: Store, lake: MemoryLake, reopen: Reopen):
    """I10"""
    lake.unreadable.add(f"{BAD}_g1")
    again = reopen()
    report = again.compact()
    assert [item.dataset for item in report.datasets if item.problems] == [BAD]
    assert again.retain(GOOD, keep_rows=1).rows == 0
