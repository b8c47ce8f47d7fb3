"""Directories in memory: these tests sync thousands of times, and the disk has nothing to do with what they show."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from rebuilding import Rebuilding

from floodmark.control import database
from floodmark.maintenance import rebuild

MEMORY = Path("/dev/shm")


@pytest.fixture
def quick_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    # A store that is opened again would compile every SQL statement again; connections stay each process's own.
    monkeypatch.setattr(database, "engine_for", functools.cache(database.engine_for))
    if not MEMORY.is_dir():
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="floodmark-", dir=MEMORY) as directory:
        yield Path(directory)


@pytest.fixture
def small_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rebuild of a few rows takes several copies."""
    monkeypatch.setattr(rebuild, "COPY_ROWS_MAX", 3)


@pytest.fixture
def rebuilding(quick_path: Path, small_copies: None) -> Iterator[Rebuilding]:
    """A world that is about to be rebuilt."""
    made = Rebuilding.make(quick_path / "store")
    yield made
    made.close()
