"""Engine: the parts of one open store, made in one place and handed to every operation.

An operation is a function of an engine: `flush(engine, dataset)`, `retain(engine, dataset)`. What needs memory between
two calls (open landing files, connected destinations) is a class of its own and has the engine for everything else.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, cast

from floodmark.clock import Clock, SystemClock
from floodmark.config import Settings, secret
from floodmark.control.database import Database, check_owner, migrate, postgres_url, sqlite_url
from floodmark.control.topology import check_topology
from floodmark.rows.fitted import FittedLines
from floodmark.segment_store import SegmentStore, segment_store

if TYPE_CHECKING:
    from floodmark.lake.table import Lake

CONTROL_FILE = "control.db"


@dataclass(slots=True)
class RecoveryProgress:
    """What this process has recovered already; see `commit.recovery`."""

    numbers_raised: bool = False
    datasets: set[str] = field(default_factory=set)


class Engine:
    """Directory, settings, control database, lake and clock of one open store. Threads may share it.

    A lake may be given as a function that opens it: then that is done when the lake is first used, and a command that
    only reads the records never imports it.
    """

    def __init__(
        self,
        root: Path,
        settings: Settings,
        database: Database,
        lake: Lake | Callable[[], Lake],
        clock: Clock | None = None,
    ) -> None:
        self.root = root
        self.settings = settings
        self.database = database
        self.clock = clock or SystemClock()
        self.segments: SegmentStore = segment_store(root, settings)
        """The files of the segments."""
        self.recovered = RecoveryProgress()
        self.corrected: set[str] = set()
        """Datasets whose columns got other types: what this process remembers of their schemas is wrong (U42)."""
        self.fitted = FittedLines()
        """What this process captured and has not sealed yet, as it was fitted."""
        self.announced = False
        """Whether the lake knows that this process commits rows: what it needs for that starts early."""
        self._lake = lake
        self._opening = threading.Lock()

    @property
    def lake(self) -> Lake:
        """The tables with the committed rows."""
        if isinstance(self._lake, FunctionType):
            with self._opening:
                if isinstance(self._lake, FunctionType):  # another thread may have opened it meanwhile
                    self._lake = self._lake()
        return cast("Lake", self._lake)

    @lake.setter
    def lake(self, lake: Lake) -> None:
        self._lake = lake
        self._opening = threading.Lock()

    @property
    def store_id(self) -> str:
        """The store's permanent identity."""
        return self.settings.store_id


def open_engine(
    root: Path, settings: Settings, lake: Lake | Callable[[], Lake], *, clock: Clock | None = None
) -> Engine:
    """The parts of a store whose control database exists."""
    database = control_database(root, settings)
    migrate(database, create=False)
    check_owner(database, settings.store_id)
    database.read(lambda connection: check_topology(connection, settings))
    return Engine(root, settings, database, lake, clock)


def control_database(root: Path, settings: Settings) -> Database:
    """The database that `[control] url` names; without it, the file in the store's directory."""
    if not settings.control.url:
        return Database(sqlite_url(root / CONTROL_FILE), read_only=not _is_writable(root))
    return Database(postgres_url(secret(settings.control.url, key="control.url")))


def _is_writable(root: Path) -> bool:
    """Whether this process may change the store; if not, it may still read it."""
    control = root / CONTROL_FILE
    return os.access(root, os.W_OK) and (os.access(control, os.W_OK) or not control.exists())
