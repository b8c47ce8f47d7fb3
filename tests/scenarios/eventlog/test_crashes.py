"""A process dies at every fault point; whatever was acknowledged is there, once, and work goes on."""

import os
import sqlite3
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from replicas import Replica, SteppedClock

from floodmark import faults
from floodmark.eventlog import Event, EventLog, Runner, SqliteTarget, SqlTarget, projection

EXERCISED = {
    "eventlog.staged": 1,
    "eventlog.renamed": 2,
    "eventlog.committed": 2,
    "eventlog.ingested": 2,
    "eventlog.index_staged": 2,
    "eventlog.identity_made": 0,
    "eventlog.applied": 2,
    "eventlog.checkpointed": 2,
}
WORK = """
    import sys
    from floodmark.eventlog import Event, EventLog, Runner, SqliteTarget, projection

    @projection("p", setup=lambda c: c.execute("CREATE TABLE IF NOT EXISTS seen (text TEXT)"))
    def follow(event, connection):
        connection.execute("INSERT INTO seen VALUES (?)", [event.data["text"]])

    log = EventLog.open(sys.argv[1])
    for text in ("one", "two"):
        log.append([Event("s", {"text": text})])
        print(text, flush=True)
        Runner(log, follow, SqliteTarget(sys.argv[2])).run()
        log.close()
        log = EventLog.open(sys.argv[1])
    log.close()
"""


def do_work(tmp_path, fault=None):
    environment = {**os.environ, "FLOODMARK_FAULT": fault} if fault else None
    command = [sys.executable, "-c", textwrap.dedent(WORK), str(tmp_path / "log"), str(tmp_path / "p.db")]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


@pytest.mark.parametrize("point", EXERCISED)
def test_a_killed_process_leaves_all_that_it_acknowledged_and_nothing_twice(tmp_path, point):
    count = 1 if point == "eventlog.identity_made" else 2
    died = do_work(tmp_path, f"{point}:{count}")
    assert died.returncode == -9, died.stderr
    acknowledged = died.stdout.split()
    log = EventLog.open(tmp_path / "log")
    texts = [e.data["text"] for e in log.read_stream("s")]
    assert texts[: len(acknowledged)] == acknowledged
    assert len(texts) == EXERCISED[point]
    assert [e.seq for e in log.read_events()] == list(range(1, len(texts) + 1))
    assert log.status().is_clean
    assert log.fsck().ok
    assert list((tmp_path / "log" / "tmp").iterdir()) == []
    log.close()
    assert do_work(tmp_path).returncode == 0
    log = EventLog.open(tmp_path / "log")
    assert len(log.heads) == 1
    assert log.status().is_clean
    with sqlite3.connect(tmp_path / "p.db") as database:
        seen = [text for (text,) in database.execute("SELECT text FROM seen")]
    assert seen == [e.data["text"] for e in log.read_stream("s")], "each event took effect exactly once"


class Crash(BaseException):
    pass


def crash():
    raise Crash


@pytest.mark.parametrize("point", ["eventlog.staged", "eventlog.renamed", "eventlog.committed", "eventlog.ingested"])
def test_another_handle_that_was_open_all_along_goes_on_from_what_the_dead_one_left(replica, point):
    a = replica()
    other = Replica(a.path, a.clock)
    a.append("one")
    other.log.refresh()
    faults.arm(point, crash)
    with pytest.raises(Crash):
        a.append("two")
    faults.disarm_all()
    other.append("three")
    expected = ["one", "three"] if point == "eventlog.staged" else ["one", "two", "three"]
    assert other.texts() == expected
    assert len(other.log.heads) == 1, "the chain of one replica stays a chain"
    assert other.log.status().is_clean
    assert [e.seq for e in other.log.read_events()] == list(range(1, len(expected) + 1))
    other.log.close()


@pytest.mark.parametrize("target", [SqliteTarget, lambda path: SqlTarget(f"sqlite:///{path}")])
@pytest.mark.parametrize("mode", ["live", "rebuild"])
@pytest.mark.parametrize("point", ["eventlog.applied", "eventlog.checkpointed"])
def test_a_projection_that_dies_in_any_batch_applies_each_event_once(tmp_path, target, mode, point):
    log = EventLog.open(tmp_path / "log", sync=False, clock=SteppedClock())
    for n in range(20):
        log.append([Event("s", {"n": n})])

    def insert(event, connection):
        execute = getattr(connection, "exec_driver_sql", connection.execute)
        execute(f"INSERT INTO seen VALUES ({event.data['n']})")

    follow = projection(
        "p",
        mode=mode,
        setup=lambda c: getattr(c, "exec_driver_sql", c.execute)("CREATE TABLE IF NOT EXISTS seen (n INTEGER)"),
        reset=lambda c: getattr(c, "exec_driver_sql", c.execute)("DELETE FROM seen"),
    )(insert)
    for batch in range(1, 6):
        faults.arm(point, faults.nth_time(batch, crash))
        with pytest.raises(Crash):
            Runner(log, follow, target(tmp_path / "p.db"), batch_events=1).run()
        faults.disarm_all()
    Runner(log, follow, target(tmp_path / "p.db"), batch_events=2).run()
    with sqlite3.connect(tmp_path / "p.db") as database:
        assert [n for (n,) in database.execute("SELECT n FROM seen")] == list(range(20))


def test_an_append_is_acknowledged_only_after_content_and_name_are_synced(tmp_path, monkeypatch, real_fsync):
    log = EventLog.open(tmp_path / "log", clock=SteppedClock())
    log.append([Event("s", {})])
    steps = []
    fsync, rename = os.fsync, os.rename

    def spy_fsync(descriptor):
        steps.append(
            "sync " + os.path.relpath(Path(f"/proc/self/fd/{descriptor}").readlink(), tmp_path / "log").split("/")[0]
        )
        fsync(descriptor)

    def spy_rename(source, target):
        steps.append("rename")
        rename(source, target)

    monkeypatch.setattr("os.fsync", spy_fsync)
    monkeypatch.setattr("os.rename", spy_rename)
    log.append([Event("s", {})])
    assert steps == ["sync tmp", "rename", "sync events"]
    log.read_events()
    assert steps[3:] == ["sync index"], "a position is handed out after its line is durable"


def test_a_power_cut_that_takes_unsynced_ingestion_lines_takes_no_position_that_anybody_holds(replica, tmp_path):
    a = replica()
    a.append("one")
    held = a.log.read_events()[-1].position
    path = a.path / "index" / "ingestion.log"
    durable = path.read_bytes()
    a.append("two")
    a.append("three")
    path.write_bytes(durable)  # the lines of two and three were never synced
    (a.path / "index" / "ingestion.identity").unlink()
    a.log = None
    a.reopen()
    assert [e.data["text"] for e in a.log.read_events(after=held)] == ["two", "three"]


def test_a_name_that_may_not_survive_is_reported_as_unknown(replica, monkeypatch):
    from floodmark.errors import OutcomeUnknown

    a = replica()
    a.log = EventLog.open(a.path, clock=a.clock)

    def failing(_):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr("floodmark.eventlog.directory.EventsDirectory._sync_names", failing)
        with pytest.raises(OutcomeUnknown, match="may not be durable"):
            a.append("one")
    a.append("two")
    assert a.texts() == ["one", "two"]


def test_a_full_disk_before_the_rename_leaves_nothing(replica, monkeypatch):
    from floodmark.errors import Retryable

    a = replica()

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("floodmark.eventlog.directory._write_file", full)
        with pytest.raises(Retryable, match="No space left"):
            a.append("one")
    assert a.log.heads == ()
    a.append("one")
    assert a.texts() == ["one"]


def stand_still(monkeypatch):
    """A file system whose clock is so coarse that the directory's time never tells of a change."""
    monkeypatch.setattr("floodmark.eventlog.directory.EventsDirectory.stamp", lambda _: (1, 1))
    monkeypatch.setattr("floodmark.eventlog.directory.EventsDirectory.held_stamp", lambda _: (1, 1))


def test_the_mark_of_a_dead_writer_is_found_every_time_also_within_one_tick_of_the_clock(replica, monkeypatch):
    """E5: the one who looked takes the mark away, so that the next death of the same handle leaves it again."""
    a = replica()
    other = Replica(a.path, a.clock)
    stand_still(monkeypatch)
    expected = []
    for turn in range(3):
        faults.arm("eventlog.renamed", crash)
        with pytest.raises(Crash):
            a.append(f"half {turn}")
        faults.disarm_all()
        other.append(f"whole {turn}")
        expected += [f"half {turn}", f"whole {turn}"]
        assert other.texts() == expected
        assert len(other.log.heads) == 1
    other.log.close()


def test_a_handle_whose_own_operation_failed_half_way_looks_again(replica, monkeypatch):
    a = replica()
    stand_still(monkeypatch)
    a.append("one")
    faults.arm("eventlog.renamed", crash)
    with pytest.raises(Crash):
        a.append("two")
    faults.disarm_all()
    a.append("three")
    assert a.texts() == ["one", "two", "three"]
    assert len(a.log.heads) == 1


def test_a_handle_that_writes_alone_marks_the_lock_file_once(replica, monkeypatch):
    a = replica()
    marks = []
    pwrite = os.pwrite
    monkeypatch.setattr("os.pwrite", lambda *given: marks.append(given[1]) or pwrite(*given))
    for number in range(5):
        a.append(f"{number}")
    assert len(marks) == 1
    a.log.close()
    assert marks[1:] == [b"0"], "whoever closes has finished"


def test_a_conflict_over_a_version_makes_nobody_look_again(replica, monkeypatch):
    from floodmark.errors import VersionConflict

    a = replica()
    a.append("one")
    with pytest.raises(VersionConflict):
        a.append("two", expected={"s": 0})
    monkeypatch.setattr("floodmark.eventlog.writer.Writer._catch_up", lambda _: pytest.fail("looked again"))
    a.append("two", expected={"s": 1})
    assert a.texts() == ["one", "two"]
