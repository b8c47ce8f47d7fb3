"""Directories in memory: these tests sync thousands of times, and the disk has nothing to do with what they show."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

MEMORY = Path("/dev/shm")


@pytest.fixture
def quick_path(tmp_path: Path) -> Iterator[Path]:
    if not MEMORY.is_dir():
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="floodmark-", dir=MEMORY) as directory:
        yield Path(directory)
