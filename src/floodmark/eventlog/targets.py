"""Targets of projections: SQLite by the standard library, any SQL database by SQLAlchemy, or plain files.

Both SQL targets keep two small tables beside the projection's own: `floodmark_checkpoints` and
`floodmark_quarantine`. They are written in the transaction of the effects (E12).
"""

from __future__ import annotations

import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from floodmark.errors import InvalidSetting, Retryable, reason_of
from floodmark.eventlog.checkpoints import CheckpointFiles
from floodmark.eventlog.projections import QuarantinedEvent, Session

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection, Engine

_TABLES = (
    "CREATE TABLE IF NOT EXISTS floodmark_checkpoints (name VARCHAR(255) PRIMARY KEY, checkpoint TEXT NOT NULL)",
    """
    CREATE TABLE IF NOT EXISTS floodmark_quarantine (
        name VARCHAR(255) NOT NULL, event_id VARCHAR(36) NOT NULL, entry TEXT NOT NULL, PRIMARY KEY (name, event_id)
    )
    """,
)
_LOAD = "SELECT checkpoint FROM floodmark_checkpoints WHERE name = :name"
_INSERT = "INSERT INTO floodmark_checkpoints (name, checkpoint) VALUES (:name, :text)"
_UPDATE = "UPDATE floodmark_checkpoints SET checkpoint = :text WHERE name = :name AND checkpoint = :expected"
_QUARANTINE = "INSERT INTO floodmark_quarantine (name, event_id, entry) VALUES (:name, :event_id, :entry)"
_QUARANTINED = "SELECT entry FROM floodmark_quarantine WHERE name = :name ORDER BY event_id"
_RELEASE = "DELETE FROM floodmark_quarantine WHERE name = :name AND event_id = :event_id"


class _SqlSession(ABC):
    """What both SQL sessions share: the statements. The dialects differ in how they are executed."""

    connection: Any

    @abstractmethod
    def _execute(self, statement: str, **values: Any) -> Any: ...

    def load(self, name: str) -> str | None:
        row = self._execute(_LOAD, name=name).fetchone()
        return None if row is None else str(row[0])

    def save(self, name: str, text: str, *, expected: str | None) -> None:
        if expected is None:
            changed = self._execute(_INSERT, name=name, text=text).rowcount
        else:
            changed = self._execute(_UPDATE, name=name, text=text, expected=expected).rowcount
        if changed != 1:
            raise _overtaken(name)

    def quarantine(self, name: str, event: QuarantinedEvent) -> None:
        entry = msgspec.json.encode(event).decode()
        self._execute(_QUARANTINE, name=name, event_id=event.event_id, entry=entry)

    def quarantined(self, name: str) -> list[QuarantinedEvent]:
        rows = self._execute(_QUARANTINED, name=name).fetchall()
        return [msgspec.json.decode(row[0], type=QuarantinedEvent) for row in rows]

    def release(self, name: str, event_id: str) -> None:
        self._execute(_RELEASE, name=name, event_id=event_id)


def _overtaken(name: str) -> Retryable:
    return Retryable(
        f"Another process has advanced projection {name!r}; this batch was rolled back.",
        hint="Run it again: it continues after the other process's checkpoint.",
    )


class _SqliteSession(_SqlSession):
    def __init__(self, path: str) -> None:
        self.connection: sqlite3.Connection = sqlite3.connect(path, isolation_level=None)
        self.connection.execute("PRAGMA synchronous=FULL")
        # Immediate: two runners must not both read the checkpoint before one of them writes.
        self.connection.execute("BEGIN IMMEDIATE")
        for statement in _TABLES:
            self.connection.execute(statement)

    def _execute(self, statement: str, **values: Any) -> Any:
        return self.connection.execute(statement, values)

    def attempt(self, effect: Callable[[], None]) -> None:
        self.connection.execute("SAVEPOINT floodmark_event")
        try:
            effect()
        except BaseException:
            self.connection.execute("ROLLBACK TO floodmark_event")
            raise
        finally:
            self.connection.execute("RELEASE floodmark_event")

    def commit(self) -> None:
        self.connection.execute("COMMIT")
        self.connection.close()

    def rollback(self) -> None:
        self.connection.close()


class SqliteTarget:
    """A SQLite database; projections get a `sqlite3.Connection` and must not commit it."""

    failures: tuple[type[BaseException], ...] = (sqlite3.OperationalError,)

    def __init__(self, path: str | Path) -> None:
        self._path = str(path)

    def begin(self) -> Session:
        return _SqliteSession(self._path)


class _AlchemySession(_SqlSession):
    def __init__(self, engine: Engine) -> None:
        from sqlalchemy import text
        from sqlalchemy.exc import IntegrityError, ProgrammingError

        self._text = text
        self.connection: Connection = engine.connect()
        try:
            self._begin()
        except (IntegrityError, ProgrammingError):
            # Of two that make a table at once, PostgreSQL refuses the second, `IF NOT EXISTS` or not; when it says
            # so the first has committed, and the table is there.
            self._transaction.rollback()
            self._begin()

    def _begin(self) -> None:
        self._transaction = self.connection.begin()
        for statement in _TABLES:
            self._execute(statement)

    def save(self, name: str, text: str, *, expected: str | None) -> None:
        from sqlalchemy.exc import IntegrityError

        try:
            super().save(name, text, expected=expected)
        except IntegrityError as error:
            # Both began with no checkpoint, and the other one's is there now.
            raise _overtaken(name) from error

    def _execute(self, statement: str, **values: Any) -> Any:
        return self.connection.execute(self._text(statement), values)

    def attempt(self, effect: Callable[[], None]) -> None:
        with self.connection.begin_nested():
            effect()

    def commit(self) -> None:
        self._transaction.commit()
        self.connection.close()

    def rollback(self) -> None:
        self._transaction.rollback()
        self.connection.close()


class SqlTarget:
    """Any database that SQLAlchemy supports, by URL or engine; projections get its `Connection`."""

    def __init__(self, database: str | Engine) -> None:
        from sqlalchemy import create_engine
        from sqlalchemy.exc import ArgumentError, InterfaceError, OperationalError

        try:
            self._engine = create_engine(database) if isinstance(database, str) else database
        except (ArgumentError, ImportError, ValueError):
            raise InvalidSetting(  # the URL and the cause are not shown: they may contain a password
                "The target is not a supported database URL.",
                hint="Write sqlite:///file or postgresql+psycopg://user@host/database, and check that its driver "
                "is installed.",
            ) from None
        self.failures: tuple[type[BaseException], ...] = (OperationalError, InterfaceError)
        if self._engine.dialect.name == "sqlite":
            _take_over_transactions(self._engine)

    def begin(self) -> Session:
        try:
            return _AlchemySession(self._engine)
        except self.failures as error:
            raise Retryable(
                f"The target database is not available: {reason_of(getattr(error, 'orig', None) or error)}.",
                hint="Nothing was applied. Check the database, then run the same command again.",
            ) from error


def _take_over_transactions(engine: Engine) -> None:
    """The SQLite driver begins transactions late and breaks savepoints; begin them at once instead."""
    from sqlalchemy import event

    def on_connect(connection: Any, _record: Any) -> None:
        connection.isolation_level = None

    def on_begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    event.listen(engine, "connect", on_connect)
    event.listen(engine, "begin", on_begin)


class _FileSession:
    """Effects of any kind, checkpoints in files: an event whose checkpoint was lost is applied again."""

    def __init__(self, root: Path, connection: Any) -> None:
        self.connection = connection
        self._files = CheckpointFiles(root)
        self._saved: tuple[str, str] | None = None
        self._entries: dict[str, dict[str, QuarantinedEvent]] = {}

    def load(self, name: str) -> str | None:
        return self._files.load(name)

    def save(self, name: str, text: str, *, expected: str | None) -> None:
        if self._files.load(name) != expected:
            raise Retryable(f"Another process has advanced projection {name!r}.", hint="Run it again.")
        self._saved = (name, text)

    def attempt(self, effect: Callable[[], None]) -> None:
        effect()

    def _quarantine(self, name: str) -> dict[str, QuarantinedEvent]:
        if name not in self._entries:
            text = self._files.load(f"{name}.quarantine")
            self._entries[name] = {} if text is None else msgspec.json.decode(text, type=dict[str, QuarantinedEvent])
        return self._entries[name]

    def quarantine(self, name: str, event: QuarantinedEvent) -> None:
        self._quarantine(name)[event.event_id] = event

    def quarantined(self, name: str) -> list[QuarantinedEvent]:
        return list(self._quarantine(name).values())

    def release(self, name: str, event_id: str) -> None:
        self._quarantine(name).pop(event_id, None)

    def commit(self) -> None:
        # The quarantine first: a crash in between offers its events again, and loses none.
        for name, entries in self._entries.items():
            self._files.save(f"{name}.quarantine", msgspec.json.encode(entries).decode())
        if self._saved is not None:
            self._files.save(*self._saved)

    def rollback(self) -> None:
        self._saved = None
        self._entries = {}


class FileTarget:
    """Checkpoints in the log's own directory, for effects that no transaction covers: at least once.

    `connection` is handed to the projection as it is.
    """

    failures: tuple[type[BaseException], ...] = (OSError,)

    def __init__(self, root: str | Path, connection: Any = None) -> None:
        self._root = Path(root)
        self._connection = connection

    def begin(self) -> Session:
        return _FileSession(self._root, self._connection)
