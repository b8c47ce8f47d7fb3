"""Whether a process works on a dataset now: an undecided block is then no problem."""

from __future__ import annotations

import os
from pathlib import Path

from floodmark.files import try_lock


def flush_at_work(root: Path, dataset: str) -> bool:
    """Whether a flush of this machine holds the dataset's lock. Every flush takes it."""
    return _held(root / "spool" / dataset / "flush.lock")


def rebuild_at_work(root: Path, dataset: str) -> bool:
    """Whether a rebuild of this machine does."""
    return _held(root / "spool" / dataset / "rebuild.lock")


def _held(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDWR)
    except OSError:
        return False
    try:
        return not try_lock(descriptor)
    finally:
        os.close(descriptor)
