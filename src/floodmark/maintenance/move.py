"""Moving the control database: from SQLite to PostgreSQL, and back.

    tables at the new place → fence the old one → copy everything in one transaction → compare → switch the settings

Captures into the landing log continue meanwhile. Everything else fails with `Permanent` from the fence to the switch,
and what still has the old database open fails from then on. A move that was interrupted is run again.

Invariants
- U38 The old control database refuses every change before the first record is copied, by itself: a process that has it
  open would otherwise reserve numbers or acknowledge rows that the copy does not have.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection, Table, func, inspect, select

from floodmark import config, faults
from floodmark.control.database import (
    Database,
    check_owner,
    fence,
    is_fenced,
    migrate,
    owner,
    postgres_url,
    release,
    sqlite_url,
)
from floodmark.control.schema import metadata
from floodmark.control.topology import record_topology
from floodmark.engine import CONTROL_FILE, control_database
from floodmark.errors import Corrupt, FloodmarkError, InvalidSetting, Permanent, StoreExists
from floodmark.files import create_private, durable_write, sync_directory, sync_file

EMBEDDED = "sqlite"
"""The place in the store's directory."""
ROWS_AT_ONCE = 500
_PARENTS = ("meta", "counters", "datasets", "sinks", "blocks", "segments", "intents", "operations")
"""Other tables refer to these."""
_CATALOG = re.compile(r"iceberg_\w+")


@dataclass(frozen=True, slots=True)
class MoveReport:
    """What was moved."""

    control: str
    """`sqlite` or `postgresql`."""
    records: int


def has_moved(directory: str | Path, to: str) -> bool:
    """Whether the settings already name that place."""
    return config.load(config.settings_file(Path(directory))).control.url == ("" if to == EMBEDDED else to)


def move_control(directory: str | Path, to: str) -> MoveReport:
    """Move a store's control database to a PostgreSQL URL (or `env:NAME`, `file:/path`), or to `sqlite`."""
    file = config.settings_file(Path(directory))
    root, text = file.parent, file.read_text(encoding="utf-8")
    settings = config.load(file)
    changed_text = with_value(text, "control", "url", "" if to == EMBEDDED else to)
    changed = config.parsed(changed_text)
    if has_moved(directory, to):
        raise InvalidSetting("The control database is there already.", hint="Name the place to move it to.")
    old = control_database(root, settings)
    new = _target(root, changed)
    try:
        _check_tables(old)
        begun = old.read(is_fenced)
        if not begun:
            migrate(old, create=False)
            check_owner(old, settings.store_id)
        migrate(new)
        _check_free(new, settings.store_id, begun=begun)
        records = _moved(old, new, changed)
    finally:
        old.close()
        new.close()
    faults.reach("move.copied")
    if to == EMBEDDED:
        _put_in_place(root)
    durable_write(file, changed_text.encode(), private=True)
    return MoveReport(EMBEDDED if to == EMBEDDED else "postgresql", records)


def _moved(old: Database, new: Database, changed: config.Settings) -> int:
    place = "sqlite" if not changed.control.url else "postgresql"
    if not old.read(is_fenced):
        old.transact(lambda connection: fence(connection, place))
    faults.reach("move.fenced")
    try:
        # One transaction each: what is read is one state, and what is written is there as a whole or not at all.
        return old.read(lambda source: new.transact(lambda target: _copied(source, target, changed)))
    except FloodmarkError:
        old.transact(release)  # nothing has changed: the store goes on where it is
        raise


def _copied(source: Connection, target: Connection, changed: config.Settings) -> int:
    records = 0
    tables = _in_order()
    for table in reversed(tables):
        target.execute(
            table.delete().where(table.c.name != "schema_version") if table.name == "meta" else table.delete()
        )
    for table in tables:
        for rows in _batches(source, table):
            target.execute(table.insert(), rows)
            records += len(rows)
    for table in tables:
        here, there = (c.execute(select(func.count()).select_from(table)).scalar_one() for c in (source, target))
        if here - (table.name == "meta") != there:  # the mark of the fence stays behind
            raise Corrupt(f"{here} records of {table.name} were read, and {there} are at the new place.")
    record_topology(target, changed)
    return records


def _in_order() -> list[Table]:
    parents = [metadata.tables[name] for name in _PARENTS]
    return [*parents, *(table for table in metadata.sorted_tables if table not in parents)]


def _batches(source: Connection, table: Table) -> Iterator[list[dict[str, object]]]:
    found = source.execute(select(table))
    while rows := found.fetchmany(ROWS_AT_ONCE):
        every = [dict(row._mapping) for row in rows]  # noqa: SLF001 - SQLAlchemy's public name for it
        if table.name == "meta":
            every = [row for row in every if row["name"] not in ("schema_version", "moved")]
        if every:
            yield every


# ── the places ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _target(root: Path, changed: config.Settings) -> Database:
    if changed.control.url:
        return Database(postgres_url(config.secret(changed.control.url, key="control.url")))
    part = root / f".{CONTROL_FILE}.part"
    part.unlink(missing_ok=True)
    create_private(part)
    return Database(sqlite_url(part))


def _check_tables(old: Database) -> None:
    """Tables that are not ours would stay behind: projections may have some here."""
    known = set(metadata.tables)
    names = old.read(lambda connection: inspect(connection).get_table_names())
    others = sorted(name for name in names if name not in known and not _CATALOG.fullmatch(name))
    if others:
        raise Permanent(
            f"The control database also has other tables: {', '.join(others[:5])}.",
            hint="They belong to projections. Move or drop them first: only the store's own tables are moved.",
        )


def _check_free(new: Database, store_id: str, *, begun: bool) -> None:
    """What is there was moved away from there, or copied by a move that was interrupted; or nothing is."""
    found = new.read(owner)
    if found not in (None, store_id):
        raise StoreExists("That control database belongs to another store.", hint="Use one database per store.")
    used = new.read(lambda c: c.execute(select(func.count()).select_from(metadata.tables["blocks"])).scalar_one())
    if used and not begun and not new.read(is_fenced):
        raise StoreExists(
            "That database already has the records of a store, and may be in use.",
            hint="Use an empty database or schema.",
        )
    new.transact(release)


def _put_in_place(root: Path) -> None:
    """The new file takes the name of the one that was moved away before."""
    part, target = root / f".{CONTROL_FILE}.part", root / CONTROL_FILE
    for end in ("-wal", "-shm"):
        target.with_name(target.name + end).unlink(missing_ok=True)
    sync_file(part)
    part.replace(target)
    sync_directory(root)


def with_value(text: str, section: str, key: str, value: str) -> str:
    """The settings file with another value, or without one; everything else in it stays."""
    line = f"{key} = {config.toml_value(value)}" if value else f'# {key} = ""'
    changed, count = re.subn(
        rf"(?ms)^(\[{section}\]\s*?\n(?:(?!^\[).)*?)^(?:#\s*)?{key}\s*=[^\n]*$", lambda m: m[1] + line, text, count=1
    )
    if not count:
        changed, count = re.subn(rf"(?m)^\[{section}\][^\n]*$", lambda m: f"{m[0]}\n{line}", text, count=1)
    if not count:
        changed = f"{text.rstrip()}\n\n[{section}]\n{line}\n"
    if getattr(getattr(config.parsed(changed), section), key) != value:
        raise Permanent(
            f"{section}.{key} in {config.FILE_NAME} could not be replaced.",
            hint=f"Write it on a line of its own in the section [{section}], and run the move again.",
        )
    return changed
