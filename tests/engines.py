"""Engines for tests: settings that are changed in an open store, and an engine of given parts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from floodmark.clock import Clock
from floodmark.config import Settings
from floodmark.control.database import Database
from floodmark.engine import Engine
from floodmark.lake.table import Lake
from floodmark.store import Store


def set_flush(store: Store, **changes: Any) -> None:
    """Change `[flush]` settings of a store that is open."""
    settings = store.engine.settings
    store.engine.settings = replace(settings, flush=replace(settings.flush, **changes))


def set_spool(store: Store, **changes: Any) -> None:
    """Change `[spool]` settings of a store that is open."""
    settings = store.engine.settings
    store.engine.settings = replace(settings, spool=replace(settings.spool, **changes))


def engine_of(database: Database, lake: Lake, clock: Clock, *, store_id: str, root: Path = Path("/nowhere")) -> Engine:
    """An engine for a part that uses nothing else of a store."""
    return Engine(root, Settings(store_id), database, lake, clock)
