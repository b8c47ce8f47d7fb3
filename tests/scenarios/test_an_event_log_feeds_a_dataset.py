"""An event log is one more source: each event becomes one row, exactly once, whatever happens in between."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from floodmark import faults
from floodmark.errors import SchemaConflict
from floodmark.eventlog import Event, EventLog
from floodmark.store import Store
from floodmark.testing import crash_at, kill_store


def rows_of(store: Store) -> list[dict]:
    store.flush("events")
    return [row for batch in store.read_since("events") for row, _ in batch.pairs()]


def event_ids(log: EventLog) -> list[str]:
    return [event.event_id for event in log.read_events()]


@pytest.fixture
def log(tmp_path: Path):
    with EventLog.open(tmp_path / "log") as opened:
        yield opened


def test_each_event_becomes_one_row_in_the_order_of_arrival(store: Store, log: EventLog) -> None:
    log.append([Event("account-1", {"n": 1}), Event("account-2", {"n": 2})])
    store.feed("events", log)
    log.append([Event("account-1", {"n": 3})])
    report = store.feed("events", log)

    rows = rows_of(store)

    assert report.events == 1
    assert [row["event_id"] for row in rows] == event_ids(log)
    assert [(row["stream"], row["version_on_arrival"], row["data"]) for row in rows] == [
        ("account-1", 1, '{"n":1}'),
        ("account-2", 1, '{"n":2}'),
        ("account-1", 2, '{"n":3}'),
    ]
    assert [row["position"] for row in rows] == [1, 2, 3]


def test_feeding_again_brings_nothing(store: Store, log: EventLog) -> None:
    log.append([Event("a", 1)])
    store.feed("events", log)

    assert store.feed("events", log).events == 0
    assert len(rows_of(store)) == 1


@pytest.mark.parametrize("point", [name for name in faults.POINTS if name.startswith("segment.")])
def test_a_crash_in_a_feeding_neither_loses_nor_doubles_an_event(store: Store, log: EventLog, reopen, point) -> None:
    log.append([Event("a", number) for number in range(3)])
    with crash_at(point):
        store.feed("events", log)
    kill_store(store)
    log.append([Event("b", 9)])

    again = reopen()
    again.feed("events", log)

    assert [row["event_id"] for row in rows_of(again)] == event_ids(log)


def test_two_feeders_at_once_register_each_step_once(store: Store, log: EventLog, reopen) -> None:
    log.append([Event("a", number) for number in range(5)])
    other = reopen()
    faults.arm("segment.written", faults.nth_time(1, lambda: other.feed("events", log)))

    store.feed("events", log)

    report = store.flush("events")
    assert (report.rows, report.duplicates) == (5, 0)


def test_a_merge_of_another_history_arrives_as_new_rows(store: Store, tmp_path: Path, log: EventLog) -> None:
    log.append([Event("a", "here")])
    store.feed("events", log)
    shutil.copytree(tmp_path / "log" / "events", tmp_path / "other" / "events")
    with EventLog.open(tmp_path / "other") as other:
        other.append([Event("a", "there"), Event("b", "there")])
    for file in (tmp_path / "other" / "events").iterdir():
        shutil.copy(file, tmp_path / "log" / "events" / file.name)

    assert store.feed("events", log).events == 2
    assert sorted(row["event_id"] for row in rows_of(store)) == sorted(event_ids(log))


def test_a_rebuilt_numbering_is_read_again_and_no_event_is_stored_twice(store: Store, tmp_path: Path) -> None:
    with EventLog.open(tmp_path / "log") as log:
        log.append([Event("a", number) for number in range(4)])
        store.feed("events", log)
    store.flush("events")
    shutil.rmtree(tmp_path / "log" / "index")
    with EventLog.open(tmp_path / "log") as log:
        log.append([Event("a", "new")])
        store.feed("events", log)
        report = store.flush("events")

        assert (report.rows, report.duplicates) == (1, 4)
        assert sorted(row["event_id"] for row in rows_of(store)) == sorted(event_ids(log))


def test_an_event_that_no_column_can_hold_is_quarantined_and_holds_nobody_up(store: Store, log: EventLog) -> None:
    deep: object = 1
    for _ in range(150):
        deep = [deep]
    log.append([Event("a", "before"), Event("a", deep), Event("a", "after")])

    store.feed("events", log)

    assert [row["data"] for row in rows_of(store)] == ['"before"', '"after"']
    (entry,) = store.quarantine.entries("events")
    assert "'data'" in entry.reason


def test_a_dataset_that_was_declared_for_something_else_is_refused(store: Store, log: EventLog) -> None:
    store.add_dataset("events", schema={"text": "string"})
    log.append([Event("a", 1)])

    with pytest.raises(SchemaConflict, match="not declared for events"):
        store.feed("events", log)
