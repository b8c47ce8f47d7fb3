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

from importlib.metadata import version as _version
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

__version__ = _version("floodmark")


def init(path: str | _Path) -> Store:
    """Make a new embedded store (SQLite and a local lake) in a directory; an existing one is refused."""
    from floodmark.store import init as make

    return make(path)


def open(path: str | _Path, *, spark: SparkSession | None = None) -> Store:
    """Open a store by its directory or its `floodmark.toml`.

    `spark` is a session of yours to work in; without it one is started when it is first needed.
    """
    from floodmark.store import open_store

    return open_store(path, spark=spark)
