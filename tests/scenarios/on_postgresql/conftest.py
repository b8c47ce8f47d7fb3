"""The crash suites once more, with the control records of every store in PostgreSQL."""

from __future__ import annotations

from pathlib import Path

import pytest

from floodmark.config import Settings
from floodmark.control.database import Database, migrate
from postgres import PostgresServer, postgres_server  # noqa: F401 - a fixture


@pytest.fixture(autouse=True)
def _control_records_are_on_a_server(
    postgres_server: PostgresServer,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A schema for each store: its settings say nothing of it, everything else is as it is with `[control] url`."""
    urls: dict[Path, str] = {}

    def control_database(root: Path, _settings: Settings) -> Database:
        if root not in urls:
            urls[root] = postgres_server.create_schema()
        return Database(urls[root])

    monkeypatch.setattr("floodmark.engine.control_database", control_database)
    monkeypatch.setattr("floodmark.store.control_database", control_database)
    monkeypatch.setattr("floodmark.maintenance.control_recovery.check_present", lambda _root: None)
    monkeypatch.setattr("floodmark.store.migrate", migrate)
