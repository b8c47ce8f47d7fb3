"""One writer at a time: the lock that an operation holds while it writes.

The lock is `flock` on `<root>/.lock`, the same that other tools of this format take, held for one operation
and not for as long as a log is open: readers need no lock, and several processes may take turns.

E5  A writer acts on everything that earlier writers made durable. Each operation marks the lock file while
    it runs; whoever finds the mark knows that its predecessor died half-way and looks at every file again.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from floodmark.errors import LogLocked
from floodmark.files import try_lock

_POLL_SECONDS = 0.005


class WriterLock:
    """The lock of one log directory."""

    def __init__(self, root: Path, *, wait_seconds_max: float) -> None:
        self._root = root
        self._wait_seconds_max = wait_seconds_max
        self._path = str(root / ".lock")
        self._descriptor = self._open()
        self._marked = False

    def _open(self) -> int:
        return os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)

    @contextlib.contextmanager
    def held(self) -> Iterator[bool]:
        """Hold the lock while the block runs; yields whether the last writer died half-way."""
        self._acquire()
        try:
            self._marked = os.pread(self._descriptor, 1, 0) == b"1"
            yield self._marked
            # Only on success: after an error the next writer looks at everything again.
            if self._marked:
                os.pwrite(self._descriptor, b"0", 0)
        finally:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def mark(self) -> None:
        """Say that files are about to change."""
        os.pwrite(self._descriptor, b"1", 0)
        self._marked = True

    def _acquire(self) -> None:
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
        with contextlib.suppress(FileNotFoundError):
            if os.stat(self._path).st_ino == os.fstat(self._descriptor).st_ino:  # noqa: PTH116 - in every append
                return True
        os.close(self._descriptor)
        self._descriptor = self._open()
        return try_lock(self._descriptor) and self._is_in_place()

    def close(self) -> None:
        os.close(self._descriptor)
