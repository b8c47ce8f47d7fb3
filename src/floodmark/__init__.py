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

from collections.abc import Mapping as _Mapping
from pathlib import Path as _Path
from typing import TYPE_CHECKING
from typing import Any as _Any

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
    Paused,
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
from floodmark.sequence import Cursor, RangeSet, SequenceRange

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from floodmark.providers import provider
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
    "Paused",
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
    "attach",
    "init",
    "open",
    "provider",
    "restore",
]


def __getattr__(name: str) -> _Any:
    """What takes a noticeable part of a short command, when it is asked for: `__version__`, read from the installed
    package, and `provider`.
    """
    if name == "__version__":
        from importlib.metadata import version

        return version("floodmark")
    if name == "provider":
        from floodmark.providers import provider

        return provider
    raise AttributeError(f"module 'floodmark' has no attribute {name!r}")


def init(
    path: str | _Path,
    *,
    control: str = "",
    lake: _Mapping[str, str] | None = None,
    segments: str = "",
    spark: _Mapping[str, _Any] | None = None,
) -> Store:
    """Create a new store in a directory; if there is a store already, `StoreExists`.

    Without further arguments everything is in the directory. For several hosts: `control` is the URL of a PostgreSQL
    database for the control records; `lake` has the settings of `[lake]`, such as `{"warehouse": "s3://bucket/lake"}`;
    `segments` is where segments are kept, `s3://bucket/prefix`; `spark` has the settings of `[spark]`, such as
    `{"master": "spark://host:7077"}` or `{"remote": "sc://host:15002"}`. A secret is given as `env:NAME` or
    `file:/path`, which names where it is kept.
    """
    from floodmark.store import init as make

    return make(path, control=control, lake=lake, segments=segments, spark=spark)


def attach(
    path: str | _Path,
    *,
    control: str,
    lake: _Mapping[str, str] | None = None,
    spark: _Mapping[str, _Any] | None = None,
) -> Store:
    """Make a directory on this host for a store that another host created, and open it.

    The control database says where the store's tables and segments are. `lake` gives what it does not hold: secrets,
    and addresses that differ on this host. `spark` replaces the Spark settings of the first host.
    """
    from floodmark.store import attach as join

    return join(path, control=control, lake=lake, spark=spark)


def open(path: str | _Path, *, spark: SparkSession | None = None) -> Store:
    """Open a store by its directory or its `floodmark.toml`.

    `spark` is a session of yours to work in; without it one is started when it is first needed.
    """
    from floodmark.store import open_store

    return open_store(path, spark=spark)


def restore(backup: str | _Path, path: str | _Path) -> Store:
    """Make a store of a backup (`Store.backup`) in a directory, and open it; if there is a store, `StoreExists`.

    The tables are used where they are. The old store must not be used any more: both would give the same numbers to
    different rows.
    """
    from floodmark.store import restore as put_back

    return put_back(backup, path)
