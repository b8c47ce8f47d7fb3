"""Whether a daemon runs on a store: a file that it locks for life.

Two of them on one store harm nothing: everything they do is safe beside another process. But they do the same work
twice, and nobody wants that without knowing. A lock dies with its process, so there is no stale one to remove.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from floodmark.errors import Retryable
from floodmark.files import PRIVATE_FILE, try_lock

FILE_NAME = "run.lock"


class AlreadyRunning(Retryable):
    """A daemon is at work on the store."""


@contextlib.contextmanager
def present(root: Path, *, beside: bool) -> Iterator[bool]:
    """Be the daemon of a store while the block runs; yields whether another one is there as well.

    `AlreadyRunning` if there is another one, unless `beside` it is what was asked for.
    """
    descriptor = os.open(root / FILE_NAME, os.O_RDWR | os.O_CREAT, PRIVATE_FILE)
    try:
        first = try_lock(descriptor)
        if first:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        elif not beside:
            number = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
            raise AlreadyRunning(
                f"`floodmark run` is at work on {root} already" + (f" (process {number})." if number else "."),
                hint="Stop that one first, or give --beside: it is safe, they only do the same work twice.",
            )
        yield not first
    finally:
        os.close(descriptor)
