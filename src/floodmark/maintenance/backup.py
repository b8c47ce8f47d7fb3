"""Backup: a copy of what only this store has, while everything runs; and a store made of it again.

    seal → control database (one consistent state) → sealed segments → quarantine → settings → backup.json

The lake is not copied: its tables are large, immutable and have copies and snapshots of their own. A backup names the
place. So a restored store is one whose control database is older than its lake and, where it is put back beside its old
spool, than its spool. Recovery is made for that: the next flush records the commits that the tables show, registers
segments that the records do not know, and does not commit again what is committed.

Invariants
- U37 A backup holds rows in segments only, sealed before the records are copied, and the files are copied after them: a
  segment that is committed meanwhile is in the lake. Landing files are not copied: their lines may be sealed together
  with later ones, and a shorter copy would be committed a second time. It counts only with its `backup.json`, which is
  written last.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import Connection

from floodmark import config, faults
from floodmark.commit.recovery import recover
from floodmark.control import datasets
from floodmark.control import segments as segment_records
from floodmark.control.database import Database, migrate, owner, sqlite_url
from floodmark.control.topology import record_topology
from floodmark.engine import CONTROL_FILE, Engine, control_database
from floodmark.errors import FloodmarkError, Permanent, StoreExists
from floodmark.files import PRIVATE_FILE, create_private, durable_write, make_directory, sync_directory, sync_file
from floodmark.spool.sealing import seal

MANIFEST = "backup.json"
VERSION = 1


@dataclass(frozen=True, slots=True)
class BackupReport:
    """What a backup has."""

    path: str
    store_id: str
    made_at: str
    control: bool
    """Whether the control database is in it. One on a server is backed up by the server's own tools, before this."""
    segments: int
    bytes: int
    lake: str
    """Where the tables are. They are not in the backup."""
    segments_at: str
    """Where segments are, if not in the store's directory: then they are not in the backup either."""


def backup(engine: Engine, destination: str | Path) -> BackupReport:
    """Copy the store's control database, spool, quarantine and settings to a new directory."""
    target = Path(destination).expanduser().absolute()
    _check_place(engine.root, target)
    make_directory(target, private=True)
    made_at = engine.clock.now().isoformat()
    names = [item.name for item in engine.database.read(datasets.everyone)]
    for name in names:
        recover(engine, name)
        seal(engine, name)
    faults.reach("backup.sealed")
    has_control = engine.database.dialect == "sqlite"
    if has_control:
        _copy_database(engine.root / CONTROL_FILE, target / CONTROL_FILE)
    faults.reach("backup.records_copied")
    sealed = [path for name in names for path in _sealed(engine, name)]
    segments = _copied(sealed, engine.root, target)
    faults.reach("backup.segments_copied")
    rest = [path for path in (engine.root / "quarantine").rglob("*") if path.is_file()]
    size = segments[1] + _copied([*rest, engine.root / config.FILE_NAME], engine.root, target)[1]
    report = BackupReport(
        str(target),
        engine.store_id,
        made_at,
        has_control,
        segments[0],
        size + ((target / CONTROL_FILE).stat().st_size if has_control else 0),
        lake_place(engine.root, engine.settings),
        engine.settings.spool.segments,
    )
    manifest = {
        "version": VERSION,
        "store": report.store_id,
        "made_at": made_at,
        "root": str(engine.root),
        "control": has_control,
        "lake": report.lake,
    }
    durable_write(target / MANIFEST, json.dumps(manifest, indent=1).encode(), private=True)
    return report


def restore(source: str | Path, directory: str | Path) -> Path:
    """Make a store's directory of a backup. What lies in its spool already stays; settings come last."""
    backup_at, root = Path(source).expanduser().absolute(), Path(directory).expanduser().absolute()
    manifest = _manifest(backup_at)
    if (root / config.FILE_NAME).exists() or (root / CONTROL_FILE).exists():
        raise StoreExists(
            f"There is a store, or a control database, at {root} already.",
            hint=f"Move {config.FILE_NAME} and {CONTROL_FILE} away first: a restore replaces nothing.",
        )
    text = (backup_at / config.FILE_NAME).read_text(encoding="utf-8")
    settings = config.parsed(text)
    if settings.lake is None and Path(manifest["root"]) != root:
        text = _with_lake(text, Path(manifest["root"]) / "lake")
        settings = config.parsed(text)
    for part in ("spool", "lake", "quarantine"):
        make_directory(root / part, private=True)
    inside = [path for part in ("spool", "quarantine") for path in (backup_at / part).rglob("*") if path.is_file()]
    _copied([path for path in inside if not (root / path.relative_to(backup_at)).exists()], backup_at, root)
    faults.reach("restore.spool_copied")
    if manifest["control"]:
        _put_records_back(backup_at / CONTROL_FILE, root, settings)
    else:
        _check_server(root, settings)
    faults.reach("restore.records_copied")
    durable_write(root / config.FILE_NAME, text.encode(), private=True)
    return root


def lake_place(root: Path, settings: config.Settings) -> str:
    """Where a store's tables are, in words without a secret."""
    if settings.lake is None:
        return str(root / "lake")
    return settings.lake.warehouse or f"the {settings.lake.type} catalog of [lake]"


# ── copying ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _check_place(root: Path, target: Path) -> None:
    if target.is_relative_to(root):
        raise Permanent(
            f"{target} is inside the store.", hint="Write the backup to another directory, or another disk."
        )
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise Permanent(f"{target} exists and is not empty.", hint="Give each backup a directory of its own.")


def _copy_database(source: Path, target: Path) -> None:
    """One consistent state, while others write: SQLite's own way to copy a database in use."""
    partial = target.with_name(f"{target.name}.part")
    create_private(partial)
    own = sqlite3.connect(f"file:{quote(str(source))}?mode=ro", uri=True, timeout=60)
    with contextlib.closing(own), contextlib.closing(sqlite3.connect(partial)) as copy:
        own.backup(copy)
        copy.execute("PRAGMA journal_mode=DELETE")  # one file, without a log beside it
    sync_file(partial)
    partial.rename(target)
    sync_directory(target.parent)


def _sealed(engine: Engine, dataset: str) -> list[Path]:
    paths = engine.database.read(lambda c: segment_records.sealed_paths(c, dataset)).values()
    return [engine.root / path for path in paths if not engine.settings.spool.segments]


def _copied(paths: Iterable[Path], base: Path, target: Path) -> tuple[int, int]:
    """Copy files to the same places below another directory; how many, and their bytes. Some may vanish meanwhile."""
    count = size = 0
    places: set[Path] = set()
    for path in paths:
        to = target / path.relative_to(base)
        make_directory(to.parent, private=True)
        partial = to.with_name(f".{to.name}.part")
        try:
            shutil.copyfile(path, partial)
        except FileNotFoundError:  # sealed and removed, or committed: its rows are at a place that is copied later
            partial.unlink(missing_ok=True)
            continue
        partial.chmod(PRIVATE_FILE)
        sync_file(partial)
        partial.replace(to)
        places.add(to.parent)
        count, size = count + 1, size + to.stat().st_size
    for place in places:
        sync_directory(place)
    return count, size


# ── restoring ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _manifest(backup_at: Path) -> dict[str, Any]:
    try:
        manifest: dict[str, Any] = json.loads((backup_at / MANIFEST).read_text(encoding="utf-8"))
        known = manifest["version"] == VERSION
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Permanent(
            f"{backup_at} is not a complete backup: its {MANIFEST} is missing or damaged.",
            hint="An interrupted `floodmark backup` leaves none. Use another backup.",
        ) from error
    if not known:
        raise Permanent(f"The backup has version {manifest['version']}.", hint="Use a newer Floodmark.")
    return manifest


def _with_lake(text: str, lake: Path) -> str:
    """Settings for another directory: the tables stay where they are."""
    if not (lake / "catalog.db").exists():
        raise Permanent(
            f"The tables of this store were in {lake}, and are not there.",
            hint="Restore that directory first, at the same place: its tables refer to their files by absolute paths.",
        )
    described = {
        "type": "sql",
        "uri": f"sqlite:///{lake / 'catalog.db'}",
        "warehouse": lake.as_uri(),
        "namespace": config.LAKE_NAMESPACE,
    }
    lines = [f"{key} = {config.toml_value(value)}" for key, value in described.items()]
    return "\n".join([text.rstrip("\n"), "", "[lake]", *lines, ""])


def _put_records_back(source: Path, root: Path, settings: config.Settings) -> None:
    target = root / CONTROL_FILE
    for part in ("-wal", "-shm"):  # of a database that is gone: its log would be taken for this one's
        target.with_name(target.name + part).unlink(missing_ok=True)
    partial = target.with_name(f".{target.name}.part")
    partial.unlink(missing_ok=True)
    create_private(partial)
    shutil.copyfile(source, partial)
    database = Database(sqlite_url(partial))
    try:
        migrate(database, create=False)
        database.transact(lambda connection: _as_it_is_now(connection, root, settings))
    finally:
        database.close()
    sync_file(partial)
    partial.replace(target)
    sync_directory(root)


def _as_it_is_now(connection: Connection, root: Path, settings: config.Settings) -> None:
    """Records for another place and time: where the tables are, and which landing files there are no more."""
    record_topology(connection, settings)
    for item in datasets.everyone(connection):
        for file in segment_records.landing_offsets(connection, item.name):
            if not (root / "spool" / item.name / "landing" / f"{file}.jsonl").exists():
                segment_records.close_landing(connection, file)  # U37: what was acknowledged is in segments


def _check_server(root: Path, settings: config.Settings) -> None:
    """The records on a server are there, and are told where the tables are now."""
    database = control_database(root, settings)
    try:
        found = database.read(owner)
        if found == settings.store_id:
            database.transact(lambda connection: record_topology(connection, settings))
            return
        problem = "the one that the settings name is another store's."
    except FloodmarkError as error:
        problem = error.message
    finally:
        database.close()
    raise Permanent(
        f"The control database of this store is not there: {problem}",
        hint="Restore it first with PostgreSQL's own tools, for example pg_restore.",
    )
