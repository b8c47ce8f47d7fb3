"""Full and failing disks: a clear error, nothing acknowledged lost, and work goes on when there is room again."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from spooling import ids_of, landing_of, numbered

from floodmark.errors import OutcomeUnknown, Retryable
from floodmark.store import Store, init
from floodmark.testing import ManualClock, MemoryLake, kill_store


def test_a_failed_write_abandons_the_file(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """L3: half a line stands there; the next line goes to another file, and nothing acknowledged suffers."""
    store.add_dataset("events")
    store.capture("events", numbered(1))
    [first] = landing_of(store)
    real = os.write

    def torn(descriptor: int, content: Any) -> int:
        monkeypatch.setattr(os, "write", refused)
        return real(descriptor, content[:10])

    def refused(descriptor: int, content: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", torn)
    with pytest.raises(OutcomeUnknown, match="No space left") as caught:
        store.capture("events", numbered(2))
    assert caught.value.hint
    monkeypatch.setattr(os, "write", real)
    store.capture("events", numbered(3))
    assert len(landing_of(store)) == 2
    assert not first.read_bytes().endswith(b"\n")
    report = store.flush("events")
    assert ids_of(store) == [1, 3]
    assert report.quarantined == 1
    assert first not in landing_of(store)


def test_a_failed_fsync_abandons_the_file(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """L3: a later fsync of the same file would succeed and prove nothing: the pages may be gone."""
    store.add_dataset("events")
    store.capture("events", numbered(1))
    [first] = landing_of(store)
    real = os.fsync

    def fsync(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(OutcomeUnknown, match="Input/output error"):
        store.capture("events", numbered(2))
    monkeypatch.setattr(os, "fsync", real)
    size = first.stat().st_size
    store.capture("events", numbered(3))
    assert first.stat().st_size == size, "never touched again"
    assert len(landing_of(store)) == 2
    store.flush("events")
    assert set(ids_of(store)) - {2} == {1, 3}
    assert len(ids_of(store)) == len(set(ids_of(store)))


def test_an_interrupt_in_the_middle_of_a_line_does_not_spoil_the_next(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L3: also when it was no error of the disk that stopped the write half way."""
    store.add_dataset("events")
    store.capture("events", numbered(1))
    real = os.write

    def interrupted(descriptor: int, content: Any) -> int:
        real(descriptor, content[:10])
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        store.capture("events", numbered(2))
    monkeypatch.setattr(os, "write", real)
    assert store.capture("events", numbered(3)).rows == 1
    store.flush("events")
    assert ids_of(store) == [1, 3]


def test_a_file_that_cannot_be_made_is_an_error_and_the_next_call_makes_one(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.add_dataset("events")
    real = Path.rename

    def rename(path: Path, target: Path) -> Path:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    before = _open_descriptors()
    monkeypatch.setattr(Path, "rename", rename)
    for _ in range(3):
        with pytest.raises(OutcomeUnknown):
            store.capture("events", numbered(1))
    assert _open_descriptors() <= before + 1, "and leaves no descriptor open"
    monkeypatch.setattr(Path, "rename", real)
    store.capture("events", numbered(2))
    store.flush("events")
    assert ids_of(store) == [2]


def _open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of two megabytes."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path) -> None:
    """Take all the room there is."""
    with (folder / "ballast").open("ab", buffering=0) as ballast:
        for size in (4096, 1):
            try:
                while True:
                    ballast.write(b"x" * size)
            except OSError as error:
                assert error.errno == errno.ENOSPC  # noqa: PT017 - what ends the loop is what is checked


def clear(folder: Path) -> None:
    (folder / "ballast").unlink()


@pytest.fixture
def cramped(small_disk: Path, clock: ManualClock) -> Iterator[Store]:
    """A store on the small disk, with one dataset."""
    with init(small_disk / "store", lake=MemoryLake(), clock=clock) as made:
        made.add_dataset("events", schema={"id": "long", "text": "string"})
        yield made


def lines(start: int, count: int = 1) -> list[dict[str, Any]]:
    return [{"id": id, "text": f"{id:05}" * 200} for id in range(start, start + count)]


def test_a_disk_that_is_full_during_capture(cramped: Store, small_disk: Path) -> None:
    """L3: every row that was acknowledged before, and every one after there is room again, and none twice."""
    acknowledged: list[int] = []
    unclear: list[int] = []
    words: list[str] = []
    for id in range(4000):
        try:
            cramped.capture("events", lines(id))
        except OutcomeUnknown as error:
            unclear.append(id)
            words.append(error.message)
            if len(unclear) == 3:
                break
        else:
            acknowledged.append(id)
    assert len(unclear) == 3
    assert all("No space left" in word for word in words)
    assert len(acknowledged) > 100
    kept = next(path for path in landing_of(cramped) if path.stat().st_size)
    # Room returns, as much as a flush needs to work: the disk grows.
    subprocess.run(["mount", "-o", "remount,size=8m", str(small_disk)], check=True)
    cramped.capture("events", lines(5000))
    cramped.flush("events")
    found = ids_of(cramped)
    assert set(found) - set(unclear) == {*acknowledged, 5000}
    assert len(found) == len(set(found))
    assert kept not in landing_of(cramped)


def test_a_disk_that_is_full_during_sealing(cramped: Store, small_disk: Path) -> None:
    """I6: nothing is half-sealed; the same command works when there is room again."""
    for start in range(0, 100, 10):
        cramped.capture("events", lines(start, 10))
    fill(small_disk)
    for _ in range(2):
        with pytest.raises(Retryable) as caught:
            cramped.seal("events")
        assert caught.value.hint
    assert cramped.status().datasets[0].spool.segments == 0
    clear(small_disk)
    cramped.flush("events")
    assert ids_of(cramped) == list(range(100))


def test_a_segment_that_does_not_fit_on_the_disk_is_not_registered(
    cramped: Store, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I6, I7: the disk is full exactly when the segment's file is written."""
    from floodmark import faults

    cramped.capture("events", lines(0, 100))
    faults.arm("segment.announced", lambda: fill(small_disk))
    with pytest.raises(Retryable, match="Writing a segment"):
        cramped.seal("events")
    faults.disarm_all()
    clear(small_disk)
    assert cramped.status().datasets[0].spool.segments == 0
    cramped.flush("events")
    assert ids_of(cramped) == list(range(100))


def test_a_disk_that_is_full_when_a_segment_is_registered(cramped: Store, small_disk: Path) -> None:
    """I6: the control transaction fails as a whole, offset and segment together."""
    from floodmark import faults

    cramped.capture("events", lines(0, 20))
    # The last room of SQLite's log is used up as well, so that it is the registration that meets the end.
    faults.arm("segment.written", lambda: (fill(small_disk), use_up_the_log(cramped)))
    with pytest.raises(Retryable, match=r"full|I/O"):
        cramped.seal("events")
    faults.disarm_all()
    assert cramped.status().datasets[0].spool.segments == 0
    clear(small_disk)
    cramped.flush("events")
    assert ids_of(cramped) == list(range(20))


def use_up_the_log(store: Store) -> None:
    for number in range(200):
        try:
            store.add_dataset(f"more{number}", schema={f"c{n}": "string" for n in range(300)})
        except Retryable:
            return
    pytest.fail("the disk was not full")


def test_a_store_that_died_on_a_full_disk_opens_again(
    small_disk: Path, clock: ManualClock, reopen_at: Callable[[Path, MemoryLake], Store]
) -> None:
    """What was acknowledged survives the death of the process on a disk without a byte left."""
    lake = MemoryLake()
    store = init(small_disk / "store", lake=lake, clock=clock)
    store.add_dataset("events", schema={"id": "long", "text": "string"})
    store.capture("events", numbered(1, 2))
    fill(small_disk)
    with pytest.raises(OutcomeUnknown):
        store.capture("events", [{"id": 3, "text": "x" * 50_000}])
    kill_store(store)
    clear(small_disk)
    again = reopen_at(small_disk / "store", lake)
    again.flush("events")
    assert ids_of(again)[:2] == [1, 2]


@pytest.fixture
def reopen_at(clock: ManualClock) -> Iterator[Callable[[Path, MemoryLake], Store]]:
    from floodmark.store import open_store

    opened: list[Store] = []

    def again(path: Path, lake: MemoryLake) -> Store:
        opened.append(open_store(path, lake=lake, clock=clock))
        return opened[-1]

    yield again
    for item in opened:
        item.close()
