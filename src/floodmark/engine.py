"""Engine: the parts of one open store, made in one place and handed to every operation.

An operation is a function of an engine: `flush(engine, dataset)`, `retain(engine, dataset)`. What needs memory between
two calls (open landing files, connected destinations) is a class of its own and has the engine for everything else.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any, cast

from floodmark import config
from floodmark.clock import Clock, SystemClock
from floodmark.config import Settings, secret
from floodmark.control import datasets
from floodmark.control.database import Database, check_owner, claim, migrate, owner, postgres_url, sqlite_url
from floodmark.control.topology import Topology, check_topology, lake_for, record_topology, recorded_topology
from floodmark.errors import Corrupt, FloodmarkError, InvalidSetting, Permanent, StoreExists, StoreMissing
from floodmark.files import durable_write, make_directory
from floodmark.rows.line_cache import LineCache
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
        self.line_cache = LineCache()
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


# ── a store's directory ──────────────────────────────────────────────────────────────────────────────────────────────


def create_store(
    path: str | Path,
    *,
    control: str,
    lake: dict[str, str] | None,
    segments: str,
    spark: Mapping[str, Any] | None,
    prepare_lake: Callable[[Path, Settings], None],
) -> Path:
    """Make the directory of a new store, with settings and control database. `StoreExists` if one is there.

    `prepare_lake` makes the catalog ready that `[lake]` names.
    """
    root = _absent(path)
    if lake and control and lake.get("type", "sql") != "rest":
        lake.setdefault("uri", control)  # the catalog of a store with a server is there, too
    store_id = str(uuid.uuid4())
    text = config.initial_text(store_id, control=control, lake=lake, segments=segments, spark=spark)
    settings = config.parsed(text)
    _make_directories(root)
    # Before the settings: a store whose settings are there and whose control database is not has lost it.
    made = control_database(root, settings)
    try:
        migrate(made)
        if settings.lake is not None:
            prepare_lake(root, settings)
        claim(made, store_id, leftover=not control)  # of a server nobody knows whose database is in use
        made.transact(lambda connection: record_topology(connection, settings))
    finally:
        made.close()
    # The settings file comes last: a directory without it is no store, so a crash before this line leaves none.
    durable_write(root / config.FILE_NAME, text.encode(), private=True)
    return root


def attach_store(path: str | Path, *, control: str, lake: Mapping[str, str], spark: Mapping[str, Any] | None) -> Path:
    """Make a directory on this host for a store that exists: its control database says where its parts are."""
    root = _absent(path)
    if not control:
        raise InvalidSetting("A store is attached by its control database.", hint="Give control=postgresql://…")
    found = control_database(root, Settings("", config.ControlSettings(control)))
    try:
        migrate(found, create=False)
        store_id, shared = found.read(lambda c: (owner(c), recorded_topology(c)))
    except Corrupt:  # it has no tables at all
        store_id, shared = None, Topology()
    finally:
        found.close()
    if store_id is None:
        raise StoreMissing("That control database belongs to no store.", hint="Create one with `floodmark init`.")
    if not shared.has_shared_lake or not shared.segments:
        what, hint = ("segments", "--segments") if shared.has_shared_lake else ("tables", "--warehouse")
        raise Permanent(
            f"The {what} of the store {store_id} are in the directory of its host: no other host can reach them.",
            hint=f"A store for several hosts has --control, --warehouse and --segments; {hint} is missing. "
            "`floodmark move` moves what is in the directory.",
        )
    text = config.initial_text(
        store_id,
        control=control,
        lake=lake_for(shared, control=control, given=lake),
        segments=shared.segments,
        spark=spark or shared.spark,
    )
    config.parsed(text)
    _make_directories(root)
    durable_write(root / config.FILE_NAME, text.encode(), private=True)
    return root


def _absent(path: str | Path) -> Path:
    """The directory of a new store; `StoreExists` if one is there."""
    root = Path(path).expanduser().absolute()
    if (root / config.FILE_NAME).exists() or _holds_datasets(root / CONTROL_FILE):
        raise StoreExists(f"There is a store at {root} already.", hint="Open it, or choose another directory.")
    return root


def _make_directories(root: Path) -> None:
    for part in ("spool", "lake", "quarantine"):
        make_directory(root / part, private=True)


def _holds_datasets(file: Path) -> bool:
    """Whether a control database without settings beside it is more than what an interrupted `init` left."""
    if not file.exists():
        return False
    found = Database(sqlite_url(file))
    try:
        migrate(found)
        return bool(found.read(datasets.everyone))
    except FloodmarkError:
        return True
    finally:
        found.close()
