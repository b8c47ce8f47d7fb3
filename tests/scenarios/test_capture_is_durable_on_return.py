"""What capture has acknowledged is on the disk: one fsync for all who wait, one file per writer, alive or dead."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from spooling import ids_of, landing_of, numbered, writers

from floodmark import faults
from floodmark.spool import landing
from floodmark.spool.landing import LandingWriter
from floodmark.store import Store
from floodmark.testing import MemoryLake


@pytest.fixture(autouse=True)
def _events(request: pytest.FixtureRequest) -> None:
    if "store" in request.fixturenames:
        request.getfixturevalue("store").add_dataset("events")


class Disk:
    """Everything that is written and synced, in order, by the file's name."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log: list[tuple[str, str]] = []
        self.synced_size: dict[str, int] = {}
        write, fsync = os.write, os.fsync

        def logged_write(descriptor: int, content: Any) -> int:
            self.log.append(("write", _name(descriptor)))
            return write(descriptor, content)

        def logged_fsync(descriptor: int) -> None:
            fsync(descriptor)
            self.log.append(("fsync", _name(descriptor)))
            self.synced_size[_name(descriptor)] = os.fstat(descriptor).st_size

        monkeypatch.setattr(os, "write", logged_write)
        monkeypatch.setattr(os, "fsync", logged_fsync)

    def of(self, name: str) -> list[str]:
        return [what for what, where in self.log if where == name]


def _name(descriptor: int) -> str:
    return Path(f"/proc/self/fd/{descriptor}").readlink().name


def test_a_line_is_synced_between_its_write_and_the_return(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """L1: when capture returns, an fsync has covered the line, and one the name of its file."""
    disk = Disk(monkeypatch)
    store.capture("events", numbered(1))
    [file] = landing_of(store)
    assert disk.of(file.name) == ["write", "fsync"]
    assert disk.synced_size[file.name] == file.stat().st_size > 0
    assert b'"rows":[[1]]' in file.read_bytes()
    assert "fsync" in disk.of("landing"), "the directory that names the file"
    assert disk.log.index(("fsync", "landing")) < disk.log.index(("write", file.name))
    disk.log.clear()
    store.capture("events", numbered(2))
    assert disk.log == [("write", file.name), ("fsync", file.name)], "no more than that for each call"
    assert disk.synced_size[file.name] == file.stat().st_size


def test_an_arrow_table_is_synced_and_registered_before_the_return(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I7: the segment's content, then its name, then its record."""
    import pyarrow as pa

    disk = Disk(monkeypatch)
    order: list[str] = []
    faults.arm("segment.written", lambda: order.extend(name for what, name in disk.log if what == "fsync"))
    store.capture("events", pa.table({"id": [1, 2]}))
    [file] = (store.path / "spool" / "events" / "segments").iterdir()
    assert order[-2:] == [file.name, "segments"]
    assert store.status().datasets[0].spool.segment_rows == 2


def test_threads_that_call_together_share_one_fsync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """L1: fifteen calls that came while the first was at the disk go with one write and one fsync."""
    writer = LandingWriter(tmp_path / "landing")
    writer.append(b"first\n")
    fsyncs: list[int] = []
    real_fsync, deadline = os.fsync, time.monotonic() + 30

    def fsync(descriptor: int) -> None:
        while not fsyncs and len(writer._group.lines) < 15:  # until everybody else has joined the next group
            assert time.monotonic() < deadline
            os.sched_yield()
        fsyncs.append(os.fstat(descriptor).st_size)
        real_fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda number: writer.append(f"{number:02}\n".encode()), range(16)))
    assert fsyncs == [len(b"first\n") + 3, len(b"first\n") + 16 * 3]
    [file] = (tmp_path / "landing").iterdir()
    assert sorted(file.read_bytes().splitlines()) == sorted([b"first", *(f"{n:02}".encode() for n in range(16))])
    writer.close()


def test_rows_of_many_threads_are_all_there(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixteen threads on one store, each row once."""
    disk = Disk(monkeypatch)
    with ThreadPoolExecutor(16) as pool:
        receipts = list(pool.map(lambda number: store.capture("events", numbered(number)), range(200)))
    assert sum(receipt.rows for receipt in receipts) == 200
    [file] = landing_of(store)
    assert len([what for what in disk.of(file.name) if what == "fsync"]) <= 200
    store.flush("events")
    assert ids_of(store) == list(range(200))


def test_a_disk_that_fails_a_group_fails_every_call_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """L3: nobody is told that a line is durable because a neighbour's error went to somebody else."""
    from floodmark.errors import OutcomeUnknown

    writer = LandingWriter(tmp_path / "landing")
    together = threading.Barrier(4)

    def fsync(_: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(landing, "sync_directory", lambda _: None)
    monkeypatch.setattr(landing, "make_directory", lambda path, **_: path.mkdir(exist_ok=True))
    monkeypatch.setattr(os, "fsync", fsync)

    def call(number: int) -> str:
        together.wait()
        try:
            writer.append(b"x\n")
        except OutcomeUnknown:
            return "unknown"
        return "acknowledged"

    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(call, range(4))) == {"unknown"}
    writer.close()


def test_many_processes_capture_at_once_each_into_its_own_file(store: Store) -> None:
    """L2: three real processes write while this one seals and commits: every row once, and no file is shared."""
    with writers(store.path, 3) as running:
        for number, writer in enumerate(running):
            writer.tell("capture each", numbered(*range(number * 100, number * 100 + 60)))
        for _ in range(5):
            store.flush("events")
        assert [writer.answer() for writer in running] == [60, 60, 60]
        store.flush("events")
        assert len(landing_of(store)) == 3, "their writers live"
    store.flush("events")
    assert landing_of(store) == []
    assert ids_of(store) == [n * 100 + i for n in range(3) for i in range(60)]


def test_a_live_writers_sealed_file_stays_and_a_dead_writers_goes(store: Store) -> None:
    """L2, L5: removing a live writer's file would send its next acknowledged line to a file without a name."""
    with writers(store.path) as [writer]:
        assert writer.ask("capture", numbered(1, 2)) == 2
        assert store.flush("events").rows == 2
        [file] = landing_of(store)
        assert store.seal("events").files_removed == 0
        assert writer.ask("capture", numbered(3)) == 1
        assert landing_of(store) == [file], "the same writer, the same file"
        writer.kill()
        report = store.seal("events")
        assert (report.rows, report.files_removed) == (1, 1)
    store.flush("events")
    assert ids_of(store) == [1, 2, 3]
    assert landing_of(store) == []


def test_a_writer_killed_right_after_its_answer_loses_nothing(store: Store) -> None:
    """L1, L2: nobody saw the file before its writer died; it is found, sealed and removed."""
    with writers(store.path) as [writer]:
        assert writer.ask("capture", numbered(*range(50))) == 50
        writer.kill()
    assert len(landing_of(store)) == 1
    store.flush("events")
    assert ids_of(store) == list(range(50))
    assert landing_of(store) == []


def test_a_writer_that_closed_its_file_goes_on_in_another(
    store: Store, reopen: Callable[[], Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file past its size is given up, so that it can be sealed to its end and removed while its writer lives."""
    monkeypatch.setattr(landing, "FILE_BYTES_MAX", 100)
    for number in range(6):
        store.capture("events", numbered(number))
    assert len(landing_of(store)) > 1
    other = reopen()
    other.flush("events")
    assert len(landing_of(store)) <= 1
    assert ids_of(other) == list(range(6))


def test_a_file_is_locked_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """L2: whoever meets `*.jsonl` without a lock may take it for a dead writer's, at any instant."""
    from floodmark.files import try_lock

    met: list[bool] = []
    real = Path.rename

    def rename(path: Path, target: Path) -> Path:
        descriptor = os.open(path, os.O_RDONLY)
        met.append(try_lock(descriptor))
        os.close(descriptor)
        assert landing.landing_files(path.parent) == []
        return real(path, target)

    monkeypatch.setattr(Path, "rename", rename)
    writer = LandingWriter(tmp_path / "landing")
    writer.append(b"x\n")
    assert met == [False]
    writer.close()


def test_a_forked_child_has_a_writer_of_its_own(store: Store, reopen: Callable[[], Store]) -> None:
    """L2: parent and child would tear each other's lines in one file; and the child does not keep the parent's
    file locked when the parent has given it up.
    """
    store.capture("events", numbered(1))
    [parents] = landing_of(store)
    said, heard = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover - another process
        code = 1
        try:
            store.capture("events", [{"id": 2, "new": "of the child"}])  # asks the control database, too
            os.write(said[1], b"!")
            os.read(heard[0], 1)
            store.capture("events", numbered(3))
            code = 0
        finally:
            os._exit(code)
    try:
        assert os.read(said[0], 1) == b"!"
        store.capture("events", numbered(4))
        assert len(landing_of(store)) == 2
        assert parents.read_bytes().count(b"\n") == 2
        store.close()
        other = reopen()
        assert other.seal("events").files_removed == 1, "the parent's: the child is alive"
        os.write(heard[1], b"!")
        assert os.waitpid(child, 0)[1] == 0
        child = 0
    finally:
        if child:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        for descriptor in (*said, *heard):
            os.close(descriptor)
    other.flush("events")
    assert ids_of(other) == [1, 2, 3, 4]
    assert landing_of(other) == []


def test_closing_waits_for_the_call_that_is_at_the_disk(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """L1: a descriptor closed under a write may by then be the number of another file: the control database's."""
    real = os.fsync
    closers: list[threading.Thread] = []

    def fsync(descriptor: int) -> None:
        if _name(descriptor).endswith(".jsonl"):
            closers.append(threading.Thread(target=store.spool.close))
            closers[0].start()
            closers[0].join(timeout=0.2)
            assert closers[0].is_alive()
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    assert store.capture("events", numbered(1)).rows == 1
    closers[0].join(timeout=30)
    assert not closers[0].is_alive()
    monkeypatch.undo()
    store.capture("events", numbered(2))
    store.flush("events")
    assert ids_of(store) == [1, 2]


def test_the_memory_lake_is_shared_as_a_disk_would_be(store: Store, lake: MemoryLake, reopen: Any) -> None:
    """What these scenarios rest on: another opener of the store sees the same rows."""
    store.capture("events", numbered(1))
    store.flush("events")
    assert ids_of(reopen()) == [1]
    assert list(lake.tables) == ["events_g1"]
