"""What a writer is promised, and what a reader sees."""

import shutil
import subprocess
import sys

import pytest

from floodmark.errors import (
    InvalidCursor,
    LogClosed,
    LogLocked,
    LogMissing,
    LogReadOnly,
    Permanent,
    Retryable,
    UnserialisableValue,
    VersionConflict,
)
from floodmark.eventlog import Event, EventLog


def test_an_appended_event_is_read_back_with_all_its_coordinates(replica):
    a = replica()
    appended = a.log.append([Event("account-1", {"amount": 5}, type="Deposited", metadata={"by": "me"})])
    (event,) = a.log.read_stream("account-1")
    assert (event.stream, event.data, event.type, event.metadata) == (
        "account-1",
        {"amount": 5},
        "Deposited",
        {"by": "me"},
    )
    assert (event.transaction_id, event.event_id) == (appended.transaction_id, appended.event_ids[0])
    assert (event.version, event.seq, str(event.position)) == (1, 1, "00000000-0000-0001-0000-000000000000")
    assert event.replica_id == a.log.replica_id


def test_a_version_conflict_names_the_stream_and_writes_nothing(replica):
    a = replica()
    a.append("one", "two")
    files = sorted((a.path / "events").iterdir())
    with pytest.raises(VersionConflict, match=r"'s' is at version 2, expected 1") as raised:
        a.append("three", expected={"s": 1})
    assert (raised.value.stream, raised.value.expected, raised.value.actual) == ("s", 1, 2)
    assert sorted((a.path / "events").iterdir()) == files
    assert list((a.path / "tmp").iterdir()) == []
    a.append("three", expected={"s": 2})
    assert a.texts() == ["one", "two", "three"]


def test_a_stream_that_was_only_read_is_checked_too(replica):
    a = replica()
    a.append("limit", stream="settings")
    with pytest.raises(VersionConflict, match="'settings'"):
        a.append("spent", expected={"settings": 0, "s": 0})
    a.append("spent", expected={"settings": 1, "s": 0})


def test_one_transaction_over_several_streams_is_all_or_nothing(replica):
    a = replica()
    events = [Event("x", {"n": 1}), Event("y", {"n": 2}), Event("x", {"n": 3})]
    with pytest.raises(VersionConflict):
        a.log.append(events, {"x": 0, "y": 9})
    assert dict(a.log.streams()) == {}
    appended = a.log.append(events, {"x": 0, "y": 0})
    assert dict(appended.versions) == {"x": 2, "y": 1}
    assert [e.version for e in a.log.read_stream("x")] == [1, 2]


@pytest.mark.parametrize("data", [{"n": float("nan")}, {"n": float("inf")}, {"n": object()}, {1: "x"}, {"n": 1 << 64}])
def test_data_that_json_cannot_hold_is_refused_and_nothing_is_written(replica, data):
    a = replica()
    with pytest.raises(UnserialisableValue, match="'s'"):
        a.log.append([Event("s", {"null": None, **data} if "n" in data else data)])
    assert a.log.heads == ()


def test_nothing_to_append_and_events_without_a_stream_are_refused(replica):
    a = replica()
    with pytest.raises(Permanent, match="nothing to append"):
        a.log.append([])
    for event in (Event("", {}), Event("\ud800", {}), Event("s", {}, type=""), Event(7, {})):
        with pytest.raises(Permanent, match=r"An event's .* must be text"):
            a.log.append([event])
    with pytest.raises(Permanent, match="metadata"):
        a.log.append([Event("s", {}, metadata=None)])
    with pytest.raises(Permanent, match=r"An event's .* must be text"):
        a.log.append([Event("s", {})], {"\ud800": 0})
    assert a.log.heads == ()


def test_filters_come_before_the_limit(replica):
    a = replica()
    for n in range(20):
        a.log.append([Event(f"noise/{n}", {}), Event(f"account/{n}/eu", {}, type="Opened")])
    assert [e.stream for e in a.log.read_events(limit=2, prefix="account/")] == ["account/0/eu", "account/1/eu"]
    assert [e.seq for e in a.log.read_events(limit=2, type="Opened", after=10)] == [12, 14]
    assert len(a.log.read_events(pattern="account*eu")) == 20, "a star crosses the slash"
    assert len(a.log.read_events(pattern="[!a]*")) == 20


def test_reading_on_from_a_position_gives_the_rest(replica):
    a = replica()
    a.append("one", "two", "three")
    first, *rest = a.log.read_events()
    assert a.log.read_events(after=first.position) == rest
    assert a.log.read_events(after=str(first.position)) == rest
    assert a.log.read_events(after=f"1@{a.log.identity}") == rest
    with pytest.raises(InvalidCursor):
        a.log.read_events(after="1@another-numbering")
    with pytest.raises(InvalidCursor):
        a.log.read_events(after=a.log.heads[0])


def test_two_handles_take_turns_and_build_one_chain(replica, clock):
    a = replica()
    with EventLog.open(a.path, sync=False, clock=clock) as other:
        a.append("one")
        other.append([Event("s", {"text": "two"})], {"s": 1})
        a.append("three", expected={"s": 2})
        other.refresh()
        assert [e.data["text"] for e in other.read_stream("s")] == ["one", "two", "three"]
        assert len(other.heads) == 1
        assert [e.seq for e in other.read_events()] == [1, 2, 3]


def test_a_writer_that_another_tool_keeps_out_says_so(replica):
    import fcntl

    a = replica()
    with (a.path / ".lock").open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(LogLocked, match="Another process"):
            a.append("one")
    a.append("one")


def test_a_read_only_log_writes_nothing(replica, tmp_path):
    a = replica()
    a.append("one")
    with pytest.raises(LogMissing):
        EventLog.open(tmp_path / "nowhere", read_only=True)
    assert not (tmp_path / "nowhere").exists()
    before = sorted((p, p.stat().st_mtime_ns) for p in a.path.rglob("*"))
    log = EventLog.open(a.path, read_only=True)
    assert [e.data["text"] for e in log.read_events()] == ["one"]
    log.status()
    log.fsck()
    with pytest.raises(LogReadOnly):
        log.append([Event("s", {})])
    with pytest.raises(LogReadOnly):
        log.reconcile(lambda _: [])
    assert sorted((p, p.stat().st_mtime_ns) for p in a.path.rglob("*")) == before


def test_a_read_only_log_shows_what_nobody_has_numbered_without_inventing_positions(replica, tmp_path):
    a = replica()
    a.append("one", "two")
    (tmp_path / "clone").mkdir()
    shutil.copytree(a.path / "events", tmp_path / "clone" / "events")
    log = EventLog.open(tmp_path / "clone", read_only=True)
    assert [(e.data["text"], e.version, e.seq, e.position) for e in log.read_events()] == [
        ("one", 1, None, None),
        ("two", 2, None, None),
    ]
    assert log.status().not_ingested == 2


def test_a_place_that_can_hold_no_log_is_an_error_that_names_it(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(Retryable, match=r"Opening the event log .*file/log"):
        EventLog.open(tmp_path / "file" / "log")


def test_a_closed_log_says_that_it_is_closed(replica):
    a = replica()
    a.log.close()
    with pytest.raises(LogClosed):
        a.append("one")
    a.reopen()
    a.append("one")


def test_importing_the_event_log_needs_no_spark_arrow_or_sqlalchemy():
    code = (
        "import sys, floodmark.eventlog; print([m for m in ('pyspark', 'pyarrow', 'sqlalchemy') if m in sys.modules])"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    )


def test_identifiers_increase_also_when_the_clock_stands_still():
    from datetime import UTC, datetime

    from floodmark.eventlog.identifiers import new_identifier, timestamp

    now = datetime(2026, 1, 1, tzinfo=UTC)
    made = [new_identifier(now) for _ in range(1000)]
    assert made == sorted(set(made))
    assert all(text[14] == "7" and text[19] in "89ab" for text in made)
    assert timestamp(now) == "2026-01-01T00:00:00+00:00"
    assert timestamp(now.replace(microsecond=120_000)) == "2026-01-01T00:00:00.120+00:00"
    assert timestamp(now.replace(microsecond=120_001)) == "2026-01-01T00:00:00.120001+00:00"
