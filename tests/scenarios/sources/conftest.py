"""Directories in memory: these tests sync thousands of times, and the disk has nothing to do with what they show."""

from __future__ import annotations

import functools
import pickle
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from floodmark.control import database
from floodmark.lake import embedded, staging
from floodmark.sources import files
from floodmark.sources import parallel_text as spread_module
from floodmark.store import Store

Work = Callable[[Any], Iterator[tuple[Any, ...]]]
MEMORY = Path("/dev/shm")


@pytest.fixture
def tmp_path(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    # A store that is opened again would compile every SQL statement again; connections stay each process's own.
    monkeypatch.setattr(database, "engine_for", functools.cache(database.engine_for))
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


@pytest.fixture
def spread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Text of any size is large, and cut into pieces of a few lines; its workers work here, one after the other."""

    def written(_: object, tasks: Sequence[Any], work: Work, directory: Path, *, columns: str) -> list[Path]:
        directory.mkdir()
        for number, task in enumerate(tasks):
            pq.write_table(pa.Table.from_pylist(_done(work, task, columns)), directory / f"part-{number:05}.parquet")
        return sorted(directory.iterdir())

    def gathered(_: object, tasks: Sequence[Any], work: Work, *, columns: str) -> list[dict[str, Any]]:
        return [row for task in tasks for row in _done(work, task, columns)]

    monkeypatch.setattr(staging, "written", written)
    monkeypatch.setattr(staging, "gathered", gathered)
    monkeypatch.setattr(embedded, "session_with", lambda *_: None)
    monkeypatch.setattr(files, "BLOCK_BYTES", 120)
    for name, value in (("LARGE_BYTES", 1), ("PIECE_BYTES", 150), ("GROUP_BYTES", 400)):
        monkeypatch.setattr(spread_module, name, value)


def _done(work: Work, task: Any, columns: str) -> list[dict[str, Any]]:
    """As a worker gets it and gives it: by its bytes."""
    records = [record._asdict() for record in pickle.loads(pickle.dumps(work))(pickle.loads(pickle.dumps(task)))]
    assert all([column.split()[0] for column in columns.split(",")] == list(record) for record in records)
    return records
