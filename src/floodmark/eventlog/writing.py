"""One writer at a time: the lock that an operation holds while it writes.

The lock is `flock` on `<root>/.lock`, the same that other tools of this format take, held for one operation
and not for as long as a log is open: readers need no lock, and several processes may take turns.

E5  A writer acts on everything that earlier writers made durable. Before a handle changes files it leaves its
    own mark in the lock file; whoever finds the mark of another cannot tell whether that one finished, looks at
    every file again, and takes the mark away.

A mark stays when its operation ends. A handle that finds its own knows that nobody has been there since, so
one that writes alone marks once and not with every append.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import time
from pathlib import Path
from types import TracebackType

from floodmark.errors import LogLocked
from floodmark.files import try_lock

_POLL_SECONDS = 0.005
# The first byte says whether there is a mark at all, what follows says whose.
_MARKED, _UNMARKED = b"1", b"0"


class WriterLock:
    """The lock of one log directory: `with lock as died:`, where `died` says that all must be looked at again."""

    def __init__(self, root: Path, *, wait_seconds_max: float) -> None:
        self._root = root
        self._wait_seconds_max = wait_seconds_max
        self._path = str(root / ".lock")
        self._mine = _MARKED + secrets.token_hex(8).encode()
        self._found = b""
        self._changing = False
        self._failed = False
        self._open()

    def _open(self) -> None:
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._inode = os.fstat(self._descriptor).st_ino

    def __enter__(self) -> bool:
        """Take the lock; says whether an operation, of another or of this handle, may have ended half-way."""
        self._acquire()
        self._changing = False
        self._found = os.pread(self._descriptor, len(self._mine), 0)
        return self._failed or (self._found != self._mine and self._found.startswith(_MARKED))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._failed = False
                if self._found != self._mine and self._found.startswith(_MARKED):
                    self._write(_UNMARKED)
            elif self._changing:
                # The mark is our own and would tell this handle nothing.
                self._failed = True
        finally:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def mark(self) -> None:
        """Say that files are about to change; only under the lock."""
        self._changing = True
        if self._found != self._mine:
            self._write(self._mine)

    def unmark(self) -> None:
        """Say that everything this handle changed is finished; only under the lock."""
        if self._found == self._mine:
            self._write(_UNMARKED)

    def _write(self, mark: bytes) -> None:
        os.pwrite(self._descriptor, mark, 0)
        self._found = mark

    def _acquire(self) -> None:
        if try_lock(self._descriptor) and self._is_in_place():
            return
        deadline = time.monotonic() + self._wait_seconds_max
        while not (try_lock(self._descriptor) and self._is_in_place()):
            if time.monotonic() >= deadline:
                raise LogLocked(
                    f"The event log {self._root} is being written by another process.",
                    hint="Wait for it and run the same command again, or open the log read-only.",
                )
            time.sleep(_POLL_SECONDS)

    def _is_in_place(self) -> bool:
        """Whether the file we hold is still the one that others will lock; `git clean` may have removed it."""
        try:
            if os.stat(self._path).st_ino == self._inode:  # noqa: PTH116 - in every append
                return True
        except FileNotFoundError:
            pass
        os.close(self._descriptor)
        self._open()
        return try_lock(self._descriptor) and self._is_in_place()

    def close(self) -> None:
        os.close(self._descriptor)
