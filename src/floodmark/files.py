"""Durable files: what is acknowledged has reached the disk, name and content both.

A file is durable when its content was fsynced *and* the directory that names it was fsynced afterwards:
after a power loss a file without a synced directory entry may be gone, or have its old name.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

from floodmark.errors import Retryable

PRIVATE_FILE = 0o600
PRIVATE_DIRECTORY = 0o700
"""A store's own files hold rows and settings: only its owner may read them."""


def sync_file(path: Path) -> None:
    """Make the content of an existing file durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directory(path: Path, *, private: bool = False) -> None:
    """Create a directory and its parents, each made durable in its own parent; an existing one is not changed."""
    if path.is_dir():
        return
    make_directory(path.parent, private=private)
    with contextlib.suppress(FileExistsError):
        path.mkdir(PRIVATE_DIRECTORY if private else 0o777)
    sync_directory(path.parent)


def create_private(path: Path) -> None:
    """Create an empty file that only its owner reads, for a library that would let all read it; others stay."""
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_FILE))


def durable_write(path: Path, content: bytes, *, private: bool = False) -> None:
    """Write a whole file so that, at any instant, either none of it or all of it is there."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        if private:
            create_private(temporary)
        with temporary.open("wb" if private else "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def durable_remove(path: Path) -> None:
    """Remove a file, if it is there, and make its absence durable."""
    path.unlink(missing_ok=True)
    sync_directory(path.parent)


def try_lock(descriptor: int) -> bool:
    """Take the exclusive lock of an open file, or report that another process has it.

    The lock belongs to the open file and dies with its process, so a lock that can be taken proves
    that no writer is left.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextlib.contextmanager
def advisory_lock(path: Path, *, wait_seconds_max: float, poll_seconds: float = 0.02) -> Iterator[bool]:
    """Hold a lock file while the block runs; yields whether it was got in time.

    Advisory: it spares two processes from doing the same work at once. Safety never depends on it.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, PRIVATE_FILE)
    try:
        deadline = time.monotonic() + wait_seconds_max
        held = try_lock(descriptor)
        while not held and time.monotonic() < deadline:
            time.sleep(poll_seconds)
            held = try_lock(descriptor)
        yield held
    finally:
        os.close(descriptor)


def retryable_os_error(error: OSError, *, doing: str) -> Retryable:
    """Say which step met the operating system's error, and what is safe."""
    return Retryable(
        f"{doing} failed: {error.strerror or error}.",
        hint="Nothing acknowledged is lost; free space or fix the cause, then run the same command again.",
    )
