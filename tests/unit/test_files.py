"""Durable files: what was said to be there is there after a power loss, name and content both."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from floodmark.files import advisory_lock, durable_remove, durable_write, make_directory, retryable_os_error, try_lock


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of what is synced and renamed, in order."""
    log: list[str] = []
    fsync, rename = os.fsync, Path.rename

    def logged_fsync(descriptor: int) -> None:
        log.append(f"fsync {Path(f'/proc/self/fd/{descriptor}').readlink().name}")
        fsync(descriptor)

    def logged_rename(path: Path, target: Path) -> Path:
        log.append(f"rename to {target.name}")
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", logged_fsync)
    monkeypatch.setattr(Path, "rename", logged_rename)
    return log


def test_a_file_is_synced_before_it_gets_its_name_and_the_name_after(tmp_path: Path, synced: list[str]) -> None:
    (tmp_path / "d").mkdir()
    durable_write(tmp_path / "d" / "f", b"content")
    content, rename, name = synced
    assert content.startswith("fsync ")
    assert (rename, name) == ("rename to f", "fsync d")
    assert (tmp_path / "d" / "f").read_bytes() == b"content"
    assert [path.name for path in (tmp_path / "d").iterdir()] == ["f"]


def test_a_write_that_fails_leaves_the_old_file_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "f"
    durable_write(file, b"old")

    def fsync(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(OSError, match="No space"):
        durable_write(file, b"new")
    assert file.read_bytes() == b"old"


def test_a_directory_is_synced_in_its_parent_and_so_are_the_parents(tmp_path: Path, synced: list[str]) -> None:
    make_directory(tmp_path / "a" / "b")
    assert synced == [f"fsync {tmp_path.name}", "fsync a"]
    make_directory(tmp_path / "a" / "b")
    assert len(synced) == 2, "what is there is not synced again"


def test_two_may_make_a_directory_at_once(tmp_path: Path) -> None:
    together = threading.Barrier(4)
    failed: list[BaseException] = []

    def make() -> None:
        together.wait()
        try:
            make_directory(tmp_path / "a" / "b" / "c")
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=make) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []


def test_a_removal_is_durable_and_repeatable(tmp_path: Path, synced: list[str]) -> None:
    file = tmp_path / "f"
    file.write_bytes(b"")
    durable_remove(file)
    durable_remove(file)
    assert not file.exists()
    assert synced == [f"fsync {tmp_path.name}"] * 2


def test_a_lock_belongs_to_the_open_file(tmp_path: Path) -> None:
    """Also within one process; and it goes with the descriptor, whatever else happens."""
    descriptors = [os.open(tmp_path / "f", os.O_RDWR | os.O_CREAT) for _ in range(2)]
    assert try_lock(descriptors[0])
    assert try_lock(descriptors[0]), "one's own lock is no obstacle"
    assert not try_lock(descriptors[1])
    os.close(descriptors[0])
    assert try_lock(descriptors[1])
    os.close(descriptors[1])


def test_an_advisory_lock_is_waited_for_and_then_done_without(tmp_path: Path) -> None:
    with advisory_lock(tmp_path / "l", wait_seconds_max=0) as first:
        assert first
        with advisory_lock(tmp_path / "l", wait_seconds_max=0.01, poll_seconds=0.001) as second:
            assert not second
    with advisory_lock(tmp_path / "l", wait_seconds_max=0) as again:
        assert again


def test_an_advisory_lock_goes_to_the_next_when_it_is_free(tmp_path: Path) -> None:
    taken, got = threading.Event(), []

    def wait() -> None:
        taken.set()
        with advisory_lock(tmp_path / "l", wait_seconds_max=30, poll_seconds=0.001) as held:
            got.append(held)

    thread = threading.Thread(target=wait)
    with advisory_lock(tmp_path / "l", wait_seconds_max=0):
        thread.start()
        assert taken.wait(30)
        assert got == []
    thread.join(30)
    assert got == [True]


@pytest.mark.parametrize(("error", "words"), [(OSError(28, "No space"), "No space"), (OSError("odd"), "odd")])
def test_an_error_of_the_system_names_the_step_and_what_is_safe(error: Any, words: str) -> None:
    told = retryable_os_error(error, doing="Writing a segment")
    assert told.message == f"Writing a segment failed: {words}."
    assert "Nothing acknowledged is lost" in (told.hint or "")
