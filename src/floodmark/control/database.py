"""The control database: serial transactions on SQLite or PostgreSQL.

Every control transaction reads, decides and writes as if it were alone (I5): SQLite takes its one write lock
before the first read (`BEGIN IMMEDIATE`); PostgreSQL runs `SERIALIZABLE` and the whole function is run again when the
server says that two of them could not be put in an order. So a `work` function may be called several times
and must keep its effects inside the transaction.

A COMMIT whose answer is lost may have happened. The rows carry ids that we chose, so `landed` can look.

A store that this process cannot write to is opened for looking: nothing is created, migrated or written. SQLite's
write-ahead log makes that a matter of its own, see `_look_only`.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import random
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from sqlalchemy import Connection, create_engine, delete, event, insert, select, text, update
from sqlalchemy.dialects import registry
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.engine import URL, Dialect, Engine, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.pool import NullPool, Pool
from sqlalchemy.util import LRUCache

from floodmark.control.schema import counters, datasets, meta, metadata
from floodmark.errors import (
    Corrupt,
    InvalidName,
    InvalidSetting,
    OutcomeUnknown,
    Permanent,
    Retryable,
    StoreExists,
    StoreReadOnly,
    StoreTooNew,
)
from floodmark.files import create_private

T = TypeVar("T")

ATTEMPTS_MAX = 50
BUSY_SECONDS_MAX = 60.0
_OWNER = "store_id"
_SCRIPTS = Path(__file__).with_name("migrations")
_READING = "floodmark reads"
"""Noted at a connection whose next transaction only reads."""
_NOT_SERIAL = {"40001", "40P01"}
"""PostgreSQL: serialization failure, deadlock detected. Nothing of such a transaction happened."""

# Rows and credentials pass through here: an application that logs everything must not find them in its log, nor in the
# words of an error.
_SILENT: dict[str, Any] = {"hide_parameters": True, "logging_name": "floodmark"}
logging.getLogger("sqlalchemy.engine.Engine.floodmark").setLevel(logging.WARNING)

_inherited: list[Pool] = []
"""The parent's connections in a forked child: never used again, never closed."""
_compiled: LRUCache[Any, Any] = LRUCache(500)
"""Statements as text, for every store that this process opens: compiling them costs more than running them."""
_dialects: dict[str, Dialect] = {}
"""What they were compiled for: statements are only shared below one and the same object."""


class Database:
    """One control database. Safe to share between threads; not across a fork (each process opens its own)."""

    def __init__(self, url: str | URL, *, read_only: bool = False) -> None:
        self.url = make_url(url)
        self.read_only = read_only
        self._engine = engine_for(self.url, read_only=read_only)
        self._process = os.getpid()

    @property
    def dialect(self) -> str:
        return self._engine.dialect.name

    def transact(self, work: Callable[[Connection], T], *, landed: Callable[[Connection], bool] | None = None) -> T:
        """Run `work` in one serial transaction and commit it.

        `Retryable` means that nothing happened. Where the answer to COMMIT was lost, `landed` is asked in a
        new transaction: true means that it did happen and `work`'s result stands; false runs it again.
        Without `landed` the caller gets `OutcomeUnknown`.
        """
        self.check_writable()
        for attempt in range(ATTEMPTS_MAX):
            with self._connection() as connection:
                connection.info[_READING] = False  # also if a read was interrupted before its BEGIN
                transaction = connection.begin()
                try:
                    result = work(connection)
                except DBAPIError as error:
                    transaction.rollback()
                    if not is_serialization_failure(error):
                        raise
                    _back_off(attempt)
                    continue
                try:
                    transaction.commit()
                except DBAPIError as error:
                    if error.connection_invalidated:
                        if landed is None:
                            raise OutcomeUnknown("The control database's response to COMMIT was lost.") from error
                        if self._has_landed(landed, error):
                            return result
                    elif not is_serialization_failure(error):
                        raise
                    _back_off(attempt)
                    continue
                return result
        raise Retryable(f"The control database could not serialize this transaction after {ATTEMPTS_MAX} attempts.")

    def _has_landed(self, landed: Callable[[Connection], bool], lost: DBAPIError) -> bool:
        try:
            return self.read(landed)
        except Retryable as error:  # not `Retryable` to the caller: that would say that nothing happened
            raise OutcomeUnknown(
                f"The control database's response to COMMIT was lost, and it cannot be reached: {error.message}",
                hint="Run the same command again when the control database is available: it first checks what was "
                "committed.",
            ) from lost

    def check_writable(self) -> None:
        """`StoreReadOnly` where nothing can be written: for those who write elsewhere before they write here."""
        if self.read_only:
            raise StoreReadOnly(
                f"This command writes, but the store is read-only: {self.url.database} cannot be changed.",
                hint="Run it on a machine and as a user that can write to the store's directory.",
            )

    def read(self, work: Callable[[Connection], T]) -> T:
        """Run `work` on one consistent view; it must not write."""
        for attempt in range(ATTEMPTS_MAX):
            with self._connection() as connection:
                before = self._unlocked_state()
                connection.info[_READING] = True
                try:
                    with connection.begin():
                        result = work(connection)
                    if self._unlocked_state() == before:
                        return result
                except DBAPIError as error:
                    if before != self._unlocked_state():
                        continue
                    if not is_serialization_failure(error):
                        raise
            _back_off(attempt)
        raise Retryable(f"The control database could not serialize this read after {ATTEMPTS_MAX} attempts.")

    def _unlocked_state(self) -> object:
        """What changes if others write to a file that is read without locks: then this read counts for nothing."""
        if not self.read_only:
            return None
        file = Path(self.url.database or "")
        try:
            found = file.stat()
        except OSError:
            return None
        return None if _in_use(file) else (found.st_size, found.st_mtime_ns, found.st_ino)

    def forget_freed(self) -> None:
        """Let nothing of deleted values stay in the file: SQLite keeps them in free pages and in its log.

        It needs a moment without other users; where there is none, the next time will do.
        """
        if self.dialect != "sqlite":
            return
        with contextlib.suppress(DBAPIError, Retryable), self._engine.connect() as connection:
            driver = connection.connection.driver_connection
            if driver is not None:
                driver.execute("VACUUM")
                driver.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        self._engine.dispose()

    @contextlib.contextmanager
    def _connection(self) -> Iterator[Connection]:
        if self._process != os.getpid():
            # A forked child shares its parent's connections: using one would mix two conversations, and so
            # would closing one, which is what the garbage collector would do.
            _inherited.append(self._engine.pool)
            self._engine.dispose(close=False)
            self._process = os.getpid()
        try:
            with self._engine.connect() as connection:
                yield connection
        except DBAPIError as error:
            raise _translated(error) from error
        except UnicodeEncodeError as error:  # arguments that are no UTF-8 come as such texts
            raise InvalidName(
                f"{error.object[:40]!r} contains an unpaired surrogate and cannot be stored.", hint="Write it in UTF-8."
            ) from error


def postgres_url(text: str) -> URL:
    """A PostgreSQL URL with the driver that is used here; `InvalidSetting` for anything else."""
    try:
        url = make_url(text)
        usable = url.get_backend_name() == "postgresql" and bool(url.database)
    except (ArgumentError, ValueError):
        usable = False
    if not usable:
        raise InvalidSetting(
            "control.url is not the URL of a PostgreSQL database.",
            hint='Write "postgresql://user@host/database", or env:NAME or file:/path where that URL is kept.',
        )
    return url.set(drivername="postgresql+psycopg")


def sqlite_url(file: Path) -> str:
    """The URL of a SQLite file, with any characters in its path."""
    return URL.create("sqlite", database=str(file)).render_as_string(hide_password=False)


def engine_for(url: URL, *, read_only: bool) -> Engine:
    engine = _engine_of_its_own(url, read_only=read_only)
    engine.update_execution_options(compiled_cache=_compiled)
    engine.dialect = _dialects.setdefault(engine.dialect.name, engine.dialect)
    return engine


def _engine_of_its_own(url: URL, *, read_only: bool) -> Engine:
    if url.get_backend_name() == "postgresql":
        return create_engine(
            url.set(drivername="postgresql+psycopg"), isolation_level="SERIALIZABLE", pool_pre_ping=True, **_SILENT
        )
    if url.get_backend_name() != "sqlite":
        raise Permanent(
            f"A control database on {url.get_backend_name()!r} is not supported.",
            hint="Use a SQLite file or a postgresql:// URL.",
        )
    if read_only:
        # A new connection each time: whether others have the file open may have changed.
        file = Path(url.database or "")
        return create_engine(f"{_DRIVER}://", creator=lambda: _look_only(file), poolclass=NullPool, **_SILENT)
    if url.database and url.database != ":memory:":
        with contextlib.suppress(OSError):  # the connection will tell what is wrong with the place
            create_private(Path(url.database))
    waiting = {"timeout": BUSY_SECONDS_MAX, "check_same_thread": False}
    engine = create_engine(url.set(drivername=_DRIVER), connect_args=waiting, **_SILENT)

    @event.listens_for(engine, "connect")
    def configure(connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # the driver must not open transactions of its own
        cursor = connection.cursor()
        _use_write_ahead_log(cursor)
        cursor.execute("PRAGMA synchronous=FULL")  # a commit that was answered survives a power loss
        cursor.execute("PRAGMA foreign_keys=ON")
        cursor.close()

    return engine


class _Sqlite(SQLiteDialect_pysqlite):
    """Says BEGIN itself, and not by an event of the engine: with one, SQLAlchemy asks for listeners at every statement,
    which takes longer than most of them.
    """

    supports_statement_cache = True

    def do_begin(self, dbapi_connection: Any) -> None:
        # I5: the write lock comes before the first read. A deferred transaction would read, decide, and only then find
        # that another process had written in between.
        reading = dbapi_connection.info.pop(_READING, False)
        dbapi_connection.driver_connection.execute("BEGIN" if reading else "BEGIN IMMEDIATE")


_DRIVER = "sqlite+floodmark"
registry.register("sqlite.floodmark", __name__, _Sqlite.__name__)


def _in_use(file: Path) -> bool:
    """Whether SQLite's shared files exist: a process has the database open, or died with it open."""
    return all(file.with_name(f"{file.name}-{part}").exists() for part in ("shm", "wal"))


def _look_only(file: Path) -> sqlite3.Connection:
    """A connection that creates nothing. With a write-ahead log, SQLite wants two files beside the database's own.

    Both there: they are used, in agreement with whoever writes. Only a log that holds something: its writer is gone,
    and without the other file SQLite cannot read it in place, so a copy in memory is read. Neither: the file is whole.
    """
    place = quote(str(file))
    wal = file.with_name(f"{file.name}-wal")
    if _in_use(file):
        found = sqlite3.connect(f"file:{place}?mode=ro", uri=True, timeout=BUSY_SECONDS_MAX, check_same_thread=False)
    elif wal.exists() and wal.stat().st_size:
        found = sqlite3.connect(":memory:", check_same_thread=False)
        with tempfile.TemporaryDirectory(prefix="floodmark-control-") as scratch:
            for part in (file, wal):
                shutil.copyfile(part, Path(scratch) / part.name)
            with contextlib.closing(sqlite3.connect(Path(scratch) / file.name)) as copy:
                copy.backup(found)
    else:
        found = sqlite3.connect(f"file:{place}?immutable=1", uri=True, check_same_thread=False)
    found.isolation_level = None
    return found


def _use_write_ahead_log(cursor: sqlite3.Cursor) -> None:
    """Alone of all statements this one does not wait for others who do the same to a new file."""
    for attempt in range(ATTEMPTS_MAX):
        try:
            cursor.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or attempt == ATTEMPTS_MAX - 1:
                raise
            _back_off(attempt)
        else:
            return


def _back_off(attempt: int) -> None:
    """Wait a moment of random length, so that two transactions in each other's way part."""
    time.sleep(random.uniform(0, min(0.001 * 2**attempt, 0.2)))  # noqa: S311 - nothing secret


def is_serialization_failure(error: DBAPIError) -> bool:
    """Whether `transact` runs the whole function again: nothing of it has happened."""
    return getattr(error.orig, "sqlstate", None) in _NOT_SERIAL


def _translated(error: DBAPIError) -> Exception:
    """A constraint that fires is our own bug or a forged row; everything else may pass."""
    detail = str(error.orig).strip().splitlines()[0] if error.orig else str(error)
    if "floodmark: moved" in detail:
        return Permanent(
            "The control database of this store was moved, or is being moved.",
            hint="Nothing was changed. Start this process again: the settings name the new place. If `floodmark move` "
            "was interrupted, run it again.",
        )
    if type(error).__name__ == "IntegrityError" or "floodmark:" in detail:
        return Corrupt(
            f"The control database refused a change: {detail}.",
            hint="Nothing was changed. Do not change the store, and run `floodmark fsck`.",
        )
    if (getattr(error.orig, "sqlite_errorname", None) or "").startswith(("SQLITE_NOTADB", "SQLITE_CORRUPT")):
        return Corrupt(
            f"The control database is damaged: {detail}.",
            hint="Restore control.db from a backup. The next flush then finds newer commits and rows in lake and "
            "spool. Without a backup, `floodmark fsck --rebuild-records` creates a new one from lake and "
            "spool.",
        )
    return Retryable(
        f"The control database is not available: {detail}.",
        hint="Nothing was changed. Check whether it is locked or unreachable, or the disk is full, then run the "
        "same command again.",
    )


def migrate(database: Database, *, create: bool = True) -> None:
    """Bring the tables to the version this code knows. One transaction; a no-op when they are there.

    Without `create`, a database without any of them is `Corrupt`: a store's records are not made by the way.
    """
    known = len(_migrations()[0])
    if database.read_only:
        _check_version(database, known)
    elif database.read(_version) != known:  # else opening a store waits for nobody's write lock, and syncs nothing
        _migrate(database, create=create)


def _migrate(database: Database, *, create: bool) -> None:
    scripts = migration_scripts(database.dialect)

    def work(connection: Connection) -> None:
        version = _version(connection)
        if version is None:
            version = _begin(connection, create=create)
        if version > len(scripts):
            raise _too_new(version, len(scripts))
        for script in scripts[version:]:
            for statement in script:
                # Without parameters, so that no driver searches placeholders in a statement with a `%`.
                connection.exec_driver_sql(statement, execution_options={"no_parameters": True})
        connection.execute(meta.update().where(meta.c.name == "schema_version").values(value=str(len(scripts))))

    try:
        database.transact(work)
    except (Corrupt, Retryable):
        if not create:
            raise
        # PostgreSQL does not put two CREATE TABLE of one name in an order: the second fails. Then it is done.
        if database.read(_version) != len(scripts):
            raise


def _begin(connection: Connection, *, create: bool) -> int:
    """The version of a database without tables."""
    if not create:
        raise _without_tables()
    connection.execute(text("CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL)"))
    connection.execute(meta.insert().values(name="schema_version", value="0"))
    return 0


def _without_tables() -> Corrupt:
    return Corrupt(
        "The control database of this store has no tables.",
        hint="Restore control.db from a backup. The next flush then finds newer commits and rows in lake and "
        "spool. Without a backup, `floodmark fsck --rebuild-records` creates a new one from lake and spool.",
    )


def _check_version(database: Database, known: int) -> None:
    """For a read-only store: an older version cannot be migrated."""
    version = database.read(_version)
    if version is None:
        raise _without_tables()
    if version > known:
        raise _too_new(version, known)
    if version < known:
        raise StoreReadOnly(
            f"The control database has version {version} and must be migrated to version {known}, but the "
            "store is read-only.",
            hint="Run `floodmark status` once on a machine and as a user that can write to the store's directory.",
        )


def claim(database: Database, store_id: str, *, leftover: bool) -> None:
    """Record which store a new control database belongs to; `StoreExists` if it belongs to one already.

    `leftover` says that its owner may be an `init` that was interrupted before it wrote the settings: then it is taken
    over, as long as it has no dataset.
    """

    def work(connection: Connection) -> None:
        used = connection.execute(select(datasets.c.name).limit(1)).first() is not None
        if used or (not leftover and owner(connection) is not None):
            raise StoreExists(
                f"The control database {database.url.database!r} belongs to a store already.",
                hint="Use one database per store. If an interrupted `init` left it behind, create the database again.",
            )
        connection.execute(delete(meta).where(meta.c.name == _OWNER))
        connection.execute(insert(meta).values(name=_OWNER, value=store_id))

    database.transact(work)


def check_owner(database: Database, store_id: str) -> None:
    """`Corrupt` if the control database is another store's. One from before owners were recorded has none."""
    found = database.read(owner)
    if found not in (None, store_id):
        raise Corrupt(
            f"The control database {database.url.database!r} belongs to the store {found}, and this is {store_id}.",
            hint="Correct control.url or store_id in floodmark.toml, or restore the file that belongs here.",
        )


def owner(connection: Connection) -> str | None:
    """The id of the store that a control database belongs to, if it says."""
    return connection.execute(select(meta.c.value).where(meta.c.name == _OWNER)).scalar_one_or_none()


# ── a control database that is moved ─────────────────────────────────────────────────────────────────────────────────

_MOVED = "moved"


def fence(connection: Connection, place: str) -> None:
    """U38: let the database refuse every change of a record from this transaction on, whoever makes it."""
    connection.execute(insert(meta).values(name=_MOVED, value=place))
    for table in metadata.tables:
        for change in ("INSERT", "UPDATE", "DELETE"):
            connection.exec_driver_sql(_refusal(connection.dialect.name, table, change))


def release(connection: Connection) -> None:
    """Take the fence away again: the records are in use here after all."""
    if not is_fenced(connection):
        return
    on_table = connection.dialect.name == "postgresql"
    for table in metadata.tables:
        for change in ("INSERT", "UPDATE", "DELETE"):
            of = f" ON {table}" if on_table else ""
            connection.exec_driver_sql(f"DROP TRIGGER IF EXISTS {_trigger(table, change)}{of}")
    connection.execute(delete(meta).where(meta.c.name == _MOVED))


def is_fenced(connection: Connection) -> bool:
    return connection.execute(select(meta.c.value).where(meta.c.name == _MOVED)).first() is not None


def _trigger(table: str, change: str) -> str:
    return f"moved_{change.lower()}_{table}"


def _refusal(dialect: str, table: str, change: str) -> str:
    begin = f"CREATE TRIGGER {_trigger(table, change)} BEFORE {change} ON {table}"
    if dialect == "postgresql":
        return f"{begin} FOR EACH STATEMENT EXECUTE FUNCTION floodmark_refuse('moved')"
    return f"{begin} BEGIN SELECT RAISE(ABORT, 'floodmark: moved'); END"


def _too_new(version: int, known: int) -> StoreTooNew:
    return StoreTooNew(
        f"The control database has version {version}; this Floodmark supports version {known}.",
        hint="Use a newer Floodmark.",
    )


def _version(connection: Connection) -> int | None:
    if not connection.dialect.has_table(connection, "meta"):
        return None
    return int(connection.execute(select(meta.c.value).where(meta.c.name == "schema_version")).scalar_one())


@functools.cache
def _migrations() -> tuple[list[str], set[str]]:
    """The names of the migrations in their order, and those of all files."""
    names = {entry.name for entry in _SCRIPTS.iterdir() if entry.suffix == ".sql"}
    return sorted(name for name in names if name.count(".") == 1), names


def migration_scripts(dialect: str) -> list[list[str]]:
    """Every numbered migration as a list of statements: the common part, then the dialect's own."""
    common, names = _migrations()
    result = []
    for name in common:
        statements = _statements((_SCRIPTS / name).read_text())
        own = name.replace(".sql", f".{dialect}.sql")
        if own in names:
            statements += _statements((_SCRIPTS / own).read_text())
        result.append(statements)
    return result


def _statements(script: str) -> list[str]:
    """A blank line ends a statement; comment lines are skipped."""
    lines = [line for line in script.splitlines() if not line.startswith("--")]
    paragraphs = "\n".join(lines).split("\n\n")
    return [paragraph.strip() for paragraph in paragraphs if paragraph.strip()]


# ── the order of events ──────────────────────────────────────────────────────────────────────────────────────────────
# - U19 Which came first is decided by a counter of the control database and never by a clock: a clock may be set back,
#   and two machines have two. Times are recorded for users only.


_EVENT = counters.c.name == "event"
_COUNT_ON = update(counters).where(_EVENT).values(value=counters.c.value + 1)
_COUNTED = select(counters.c.value).where(_EVENT)


def next_event(connection: Connection) -> int:
    """The number of an event that happens in this transaction: higher than that of every one before it."""
    connection.execute(_COUNT_ON)
    return int(connection.execute(_COUNTED).scalar_one())
