"""An event log is one more source: each event becomes one row, exactly once, whatever happens in between."""

from __future__ import annotations

import itertools
import json
import shutil
import tarfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from floodmark import faults
from floodmark.errors import SchemaConflict
from floodmark.eventlog import Event, EventLog
from floodmark.eventlog.dag import Graph
from floodmark.store import Store
from floodmark.testing import crash_at, kill_store

FIXTURES = Path(__file__).parents[1] / "fixtures" / "eventlog"


def rows_of(store: Store, dataset: str = "events") -> list[dict]:
    store.flush(dataset)
    return [row for batch in store.read_since(dataset) for row, _ in batch.pairs()]


def markers_of(store: Store) -> list[str]:
    return [row["transaction_id"] for row in rows_of(store) if row["ordinal"] is None]


def exchange(one: EventLog, other: EventLog) -> None:
    """Each gets the other's files."""
    for origin, target in itertools.permutations((one, other)):
        shutil.copytree(origin.root / "events", target.root / "events", dirs_exist_ok=True)
    one.refresh()
    other.refresh()


def decide_without_events(log: EventLog, tmp_path: Path) -> str:
    """Make a fork in the log and decide it with nothing; returns the decision, a transaction without events."""
    with EventLog.open(tmp_path / "elsewhere", sync=False) as elsewhere:
        exchange(log, elsewhere)
        log.append([Event("forked", "here")])
        elsewhere.append([Event("forked", "there")])
        exchange(log, elsewhere)
    (decision,) = log.reconcile(lambda _: []).resolved
    return decision


def linearised(rows: list[dict]) -> list[tuple]:
    """Canonical order from the rows alone: event, depth and version within the stream, as the log should have it."""
    graph = Graph()
    graph.extend({row["transaction_id"]: tuple(row["parent_transaction_ids"]) for row in rows})
    events = [row for row in rows if row["ordinal"] is not None and row["transaction_id"] in graph.depth]
    events.sort(
        key=lambda row: (
            graph.depth[row["transaction_id"]],
            row["created_at"].encode(),
            row["replica_id"],
            row["transaction_id"],
            row["ordinal"],
        )
    )
    versions: dict[str, int] = {}
    for row in events:
        versions[row["stream"]] = row["version"] = versions.get(row["stream"], 0) + 1
    return [(row["event_id"], graph.depth[row["transaction_id"]], row["version"]) for row in events]


def canonical(log: EventLog) -> list[tuple]:
    return [(event.event_id, event.depth, event.version) for event in log.canonical_events()]


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

    again = store.feed("events", log)
    assert (again.events, again.position) == (0, 1)
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


# Transactions without events


def test_a_transaction_without_events_becomes_one_marker_row_and_only_once(
    store: Store, log: EventLog, tmp_path: Path
) -> None:
    decision = decide_without_events(log, tmp_path)
    log.append([Event("a", "below the decision")])

    first, second = store.feed("events", log), store.feed("events", log)

    assert (first.events, first.markers) == (3, 1)
    assert (second.events, second.markers, second.steps) == (0, 0, 0)
    assert markers_of(store) == [decision]
    (marker,) = [row for row in rows_of(store) if row["ordinal"] is None]
    assert marker["event_id"] == decision
    assert (marker["stream"], marker["data"], marker["position"], marker["version_on_arrival"]) == (None,) * 4
    assert sorted(marker["parent_transaction_ids"]) == sorted(log.history[decision].parents)


def test_a_marker_that_arrives_long_after_its_feeding_began_is_fed_when_it_arrives(
    store: Store, log: EventLog, tmp_path: Path
) -> None:
    log.append([Event("a", 1)])
    store.feed("events", log)
    first = decide_without_events(log, tmp_path)
    store.feed("events", log)
    second = decide_without_events(log, tmp_path)

    assert store.feed("events", log).markers == 1
    assert markers_of(store) == [first, second]
    assert linearised(rows_of(store)) == canonical(log)


@pytest.mark.parametrize("time", [1, 2])
@pytest.mark.parametrize("point", [name for name in faults.POINTS if name.startswith("segment.")])
def test_a_crash_in_a_feeding_neither_loses_nor_doubles_a_marker(
    store: Store, log: EventLog, reopen, tmp_path: Path, point, time
) -> None:
    """The first time is the step of the markers, the second that of the events."""
    decision = decide_without_events(log, tmp_path)
    with crash_at(point, time=time):
        store.feed("events", log)
    kill_store(store)
    again = reopen()
    again.feed("events", log)

    report = again.flush("events")

    assert (report.rows, report.duplicates) == (3, 0)
    assert markers_of(again) == [decision]
    assert linearised(rows_of(again)) == canonical(log)


def test_two_feeders_at_once_feed_each_marker_once(store: Store, log: EventLog, reopen, tmp_path: Path) -> None:
    decision = decide_without_events(log, tmp_path)
    other = reopen()
    faults.arm("segment.written", faults.nth_time(1, lambda: other.feed("events", log)))

    store.feed("events", log)

    assert store.flush("events").duplicates == 0
    assert markers_of(store) == [decision]


def test_markers_of_a_rebuilt_numbering_are_fed_again_and_not_stored_twice(
    store: Store, log: EventLog, tmp_path: Path
) -> None:
    decision = decide_without_events(log, tmp_path)
    store.feed("events", log)
    store.flush("events")
    log.close()
    shutil.rmtree(log.root / "index")
    with EventLog.open(log.root) as rebuilt:
        assert store.feed("events", rebuilt).markers == 1

    assert markers_of(store) == [decision]


def test_the_rows_of_every_log_that_another_tool_wrote_are_in_its_order(store: Store, tmp_path: Path) -> None:
    for archive in sorted(FIXTURES.glob("*.tar.gz")):
        with tarfile.open(archive) as tar:
            tar.extractall(tmp_path / "fixtures", filter="data")
    snapshots = sorted(events.parent for events in (tmp_path / "fixtures").glob("*/*/events"))
    assert len(snapshots) > 30
    for number, snapshot in enumerate(snapshots):
        with EventLog.open(snapshot, sync=False) as log:
            store.feed(f"events{number}", log)
            assert linearised(rows_of(store, f"events{number}")) == canonical(log), snapshot


ACTIONS = ["append", "fork", "exchange", "decide", "feed"]
_numbers = itertools.count()


@given(st.lists(st.tuples(st.integers(0, 1), st.sampled_from(ACTIONS)), max_size=12))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example([(0, "fork"), (0, "decide"), (1, "decide"), (0, "exchange"), (0, "feed"), (1, "decide"), (1, "append")])
def test_whatever_the_history_its_rows_are_in_the_order_of_the_log(store: Store, tmp_path: Path, history) -> None:
    """Decisions without events are made on either side, decide one another, and have events below them."""
    number = next(_numbers)
    logs = [EventLog.open(tmp_path / f"{number}-{name}", sync=False) for name in "ab"]
    for step, (which, action) in enumerate([*history, (0, "decide"), (0, "append"), (0, "exchange"), (0, "feed")]):
        if action == "append":
            logs[which].append([Event("s", step)])
        elif action == "fork":
            exchange(*logs)
            for log in logs:
                log.append([Event("s", step)])
            exchange(*logs)
        elif action == "exchange":
            exchange(*logs)
        elif action == "decide":
            logs[which].reconcile(lambda _: [])
        else:
            store.feed(f"events{number}", logs[0])

    assert linearised(rows_of(store, f"events{number}")) == canonical(logs[0])
    for log in logs:
        log.close()


def test_a_sink_delivers_markers_like_any_other_row(store: Store, log: EventLog, tmp_path: Path) -> None:
    decision = decide_without_events(log, tmp_path)
    store.feed("events", log)
    store.flush("events")
    store.add_sink("archive", "blob", url=(tmp_path / "out").as_uri(), format="jsonl")

    store.export()

    delivered = [json.loads(line) for file in (tmp_path / "out").rglob("*.jsonl") for line in file.open()]
    assert [row["event_id"] for row in delivered if row.get("ordinal") is None] == [decision]
    assert len(delivered) == 3
