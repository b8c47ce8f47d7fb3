"""Directories in memory: these tests sync thousands of times, and the disk has nothing to do with what they show."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from floodmark.control import database
from floodmark.store import Store

MEMORY = Path("/dev/shm")


@pytest.fixture
def tmp_path(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    # A store that is opened again would compile every SQL statement again; connections stay each process's own.
    monkeypatch.setattr(database, "_engine", functools.cache(database._engine))
    with tempfile.TemporaryDirectory(prefix="floodmark-", dir=MEMORY if MEMORY.is_dir() else None) as directory:
        yield Path(directory)


@pytest.fixture
def messages(store: Store) -> Store:
    """A store with a dataset that has an identity and an event time."""
    store.add_dataset("messages", ["id"], event_time="at", schema={"id": "long"})
    return store


@pytest.fixture
def plain(store: Store) -> Store:
    """A store with a dataset whose rows have no identity."""
    store.add_dataset("plain", schema={"id": "long"})
    return store
