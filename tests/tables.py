"""Control databases that have their tables already: to run all migrations for each would be most of a short test.

The contract of the control database runs them, and so does every process that a test starts.
"""

from __future__ import annotations

import contextlib
import functools
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, insert, select

from floodmark.control.database import Database, migrate, sqlite_url
from floodmark.control.schema import metadata
from floodmark.errors import Retryable
from postgres import PostgresServer, postgres_server  # noqa: F401 - a fixture


def lay_out(database: Database) -> None:
    """Copy the tables into a new SQLite file. One that has something in it stays as it is."""
    file = Path(database.url.database or "")
    if database.dialect == "sqlite" and file.stat().st_size == 0:
        file.write_bytes(_tables())


@functools.cache
def _tables() -> bytes:
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "control.db"
        made = Database(sqlite_url(file))
        migrate(made)
        made.close()
        return file.read_bytes()


@dataclass(frozen=True)
class New:
    """What new tables are like."""

    shape: tuple[int, ...]
    """How many tables, columns, constraints and triggers there are."""
    rows: dict[str, list[dict[str, Any]]]


@dataclass
class Schemas:
    """Schemas of a PostgreSQL server that serve one test after the other."""

    server: PostgresServer
    spare: list[str] = field(default_factory=list)
    new: New | None = None

    @contextlib.contextmanager
    def lend(self) -> Iterator[str]:
        """The URL of one with the tables, as they are when they are new."""
        url = self.spare.pop() if self.spare else self._made()
        yield url
        assert self.new is not None
        if _cleared(url, self.new):
            self.spare.append(url)

    def _made(self) -> str:
        url = self.server.create_schema()
        made = Database(url)
        migrate(made)
        self.new = made.read(_look)
        made.close()
        return url


@pytest.fixture(scope="session")
def postgres_schemas(postgres_server: PostgresServer) -> Schemas:  # noqa: F811
    return Schemas(postgres_server)


def _look(connection: Connection) -> New:
    found = {name: connection.execute(select(table)).mappings().all() for name, table in metadata.tables.items()}
    return New(_shape(connection), {name: list(map(dict, rows)) for name, rows in found.items() if rows})


def _shape(connection: Connection) -> tuple[int, ...]:
    tables = "(SELECT oid FROM pg_class WHERE relnamespace = current_schema()::regnamespace)"
    return tuple(
        connection.exec_driver_sql(
            "SELECT (SELECT count(*) FROM pg_class WHERE relnamespace = current_schema()::regnamespace), "
            f"(SELECT count(*) FROM pg_attribute WHERE NOT attisdropped AND attrelid IN {tables}), "
            f"(SELECT count(*) FROM pg_constraint WHERE conrelid IN {tables}), "
            f"(SELECT count(*) FROM pg_trigger WHERE tgrelid IN {tables})"
        ).one()
    )


def _cleared(url: str, new: New) -> bool:
    """Make the tables what they were. False for a schema that a test has left a lock in, or other tables."""

    def work(connection: Connection) -> bool:
        connection.exec_driver_sql("SET LOCAL lock_timeout = '1s'")
        connection.exec_driver_sql("SET LOCAL session_replication_role = replica")  # no trigger and no reference asks
        if _shape(connection) != new.shape:
            return False
        connection.exec_driver_sql("; ".join(f"DELETE FROM {name}" for name in metadata.tables))
        for name, rows in new.rows.items():
            connection.execute(insert(metadata.tables[name]), rows)
        return True

    database = Database(url)
    try:
        return database.transact(work)
    except Retryable:
        return False
    finally:
        database.close()
