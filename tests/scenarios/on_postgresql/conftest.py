"""The crash suites once more, with the control records of every store in PostgreSQL."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from floodmark.config import Settings
from floodmark.control.database import Database
from floodmark.store import Store, init
from floodmark.testing import ManualClock, MemoryLake
from tables import Schemas, postgres_schemas, postgres_server  # noqa: F401 - fixtures


@pytest.fixture(autouse=True)
def _control_records_are_on_a_server(
    postgres_schemas: Schemas,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[None]:
    """A schema for each store: its settings say nothing of it, everything else is as it is with `[control] url`."""
    urls: dict[Path, str] = {}
    lent = contextlib.ExitStack()

    def control_database(root: Path, _settings: Settings) -> Database:
        if root not in urls:
            urls[root] = lent.enter_context(postgres_schemas.lend())
        return Database(urls[root])

    monkeypatch.setattr("floodmark.engine.control_database", control_database)
    monkeypatch.setattr("floodmark.maintenance.control_recovery.check_present", lambda _root: None)
    yield
    lent.close()


@pytest.fixture
def store(tmp_path: Path, lake: MemoryLake, clock: ManualClock) -> Iterator[Store]:
    """A copy of one would be without its records."""
    with init(tmp_path / "store", lake=lake, clock=clock) as made:
        yield made
