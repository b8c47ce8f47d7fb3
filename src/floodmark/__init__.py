"""Floodmark: every row delivered exactly once, at a cost that follows the new rows.

import floodmark

store = floodmark.init("path/to/store")
store.add_dataset("messages", identity=["part_id"], event_time="ts")
store.capture("messages", [{"part_id": "a", "ts": "2026-01-01T00:00:00Z", "text": "hello"}])
store.flush("messages")
for batch in store.read_since("messages"):
    ...
"""

from __future__ import annotations

from pathlib import Path as _Path
from typing import TYPE_CHECKING

from floodmark.errors import (
    CommitConflict,
    Corrupt,
    DatasetExists,
    DivergedHistory,
    EnvironmentProblem,
    FilesMissing,
    FloodmarkError,
    InvalidCursor,
    InvalidName,
    InvalidSetting,
    LedgerBehind,
    OutcomeUnknown,
    Permanent,
    ProviderFailed,
    ReplicaIdentityConflict,
    Retryable,
    SchemaConflict,
    SpoolFull,
    StoreExists,
    StoreMissing,
    StoreReadOnly,
    StoreTooNew,
    UnknownDataset,
    UnknownProvider,
    UnknownQuarantineEntry,
    UnknownSink,
    UnserialisableValue,
    VersionConflict,
)
from floodmark.providers import provider
from floodmark.sequence import Cursor, RangeSet, SequenceRange

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from floodmark.store import Store

__all__ = [
    "CommitConflict",
    "Corrupt",
    "Cursor",
    "DatasetExists",
    "DivergedHistory",
    "EnvironmentProblem",
    "FilesMissing",
    "FloodmarkError",
    "InvalidCursor",
    "InvalidName",
    "InvalidSetting",
    "LedgerBehind",
    "OutcomeUnknown",
    "Permanent",
    "ProviderFailed",
    "RangeSet",
    "ReplicaIdentityConflict",
    "Retryable",
    "SchemaConflict",
    "SequenceRange",
    "SpoolFull",
    "StoreExists",
    "StoreMissing",
    "StoreReadOnly",
    "StoreTooNew",
    "UnknownDataset",
    "UnknownProvider",
    "UnknownQuarantineEntry",
    "UnknownSink",
    "UnserialisableValue",
    "VersionConflict",
    "init",
    "open",
    "provider",
]


def __getattr__(name: str) -> str:
    """`__version__`, read from the installed package when it is asked for: that takes longer than a short command."""
    if name == "__version__":
        from importlib.metadata import version

        return version("floodmark")
    raise AttributeError(f"module 'floodmark' has no attribute {name!r}")


def init(path: str | _Path, *, control: str = "") -> Store:
    """Create a new store in a directory; if there is a store already, `StoreExists`.

    `control` is the URL of a PostgreSQL database for the control records, or `env:NAME` or `file:/path` where that URL
    is kept. Without it they are in a SQLite file in the directory.
    """
    from floodmark.store import init as make

    return make(path, control=control)


def open(path: str | _Path, *, spark: SparkSession | None = None) -> Store:
    """Open a store by its directory or its `floodmark.toml`.

    `spark` is a session of yours to work in; without it one is started when it is first needed.
    """
    from floodmark.store import open_store

    return open_store(path, spark=spark)
