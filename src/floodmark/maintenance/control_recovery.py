"""A control database that is lost, or damaged: what can be made again from lake and spool, and what cannot.

Every table keeps its dataset's declaration. From these a new control database is created; it is then like one that was
restored from a very old backup: the next flush records the commits that the tables show, registers the segments that
wait in the spool, and gives out numbers above all of them.

What only the control database had is lost: sinks and their positions (they query their destinations when they are
added again), tokens, the ledger of what other stores sent, the positions of sources, retention's cut-offs, the hashes
of purged identities, and the quarantine (its large payloads are still there as files).
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection

from floodmark.clock import Clock
from floodmark.control import datasets
from floodmark.control.database import Database, migrate, sqlite_url
from floodmark.control.datasets import Dataset, from_declaration
from floodmark.engine import CONTROL_FILE
from floodmark.errors import Corrupt, FilesMissing, Permanent
from floodmark.files import sync_directory, sync_file

if TYPE_CHECKING:
    from floodmark.lake.table import Lake

_MAGIC = b"SQLite format 3\x00"
_PARTS = ("", "-wal", "-shm")
_TABLE = re.compile(r"(.+)_g([1-9][0-9]*)(_fenced)?")


@dataclass(frozen=True, slots=True)
class RebuiltRecords:
    """What a new control database was made of."""

    datasets: tuple[str, ...]
    """Those whose declarations were found."""
    undeclared: tuple[str, ...]
    """Those that must be declared again, exactly as before: their tables keep no declaration."""
    unclear: tuple[str, ...]
    """Those that were being rebuilt: which of their tables is the current one is not known."""
    kept_at: str | None
    """Where the damaged control database is now; None if there was none."""


def check_present(root: Path) -> None:
    """`Corrupt` if a store's control file is not there, or is none. Called before anything opens it."""
    file = root / CONTROL_FILE
    try:
        with file.open("rb") as opened:
            begin = opened.read(len(_MAGIC))
    except FileNotFoundError:
        begin, what = b"", "is missing"
    except IsADirectoryError:
        begin, what = b"", "is a directory"
    else:
        what = "is empty" if not begin else "is not a database"
    if begin == _MAGIC:
        return
    raise Corrupt(
        f"The control database of this store {what}: {file}.",
        hint=f"Restore {CONTROL_FILE} from a backup: the next flush finds newer rows of the lake and the spool. "
        "Without a backup, `floodmark fsck --rebuild-records` creates a new one from the lake and the spool.",
    )


def rebuild_records(root: Path, lake: Lake, clock: Clock) -> RebuiltRecords:
    """Make a new control database from what the tables keep. The old one is moved aside, and never overwritten.

    `Permanent` if the control database is there and can be read: then nothing needs to be made.
    """
    if _is_sound(root):
        raise Permanent(
            "The control database can be read: it is not replaced.",
            hint="`floodmark fsck` checks it. To replace it, move it away first.",
        )
    found, undeclared, unclear = _declared(lake)
    fresh = root / f"{CONTROL_FILE}.new"
    _remove(fresh)
    made = Database(sqlite_url(fresh))
    try:
        migrate(made)
        made.transact(lambda c: _insert(c, found, lake, clock))
    finally:
        made.close()
    sync_file(fresh)
    kept = _moved_aside(root)
    fresh.rename(root / CONTROL_FILE)  # the last step: until here the store has no control database
    sync_directory(root)
    return RebuiltRecords(tuple(item.name for item in found), undeclared, unclear, kept)


def _declared(lake: Lake) -> tuple[list[Dataset], tuple[str, ...], tuple[str, ...]]:
    """The newest table of each dataset that keeps a declaration. A copy that a rebuild has not finished keeps none."""
    from floodmark.lake.moving import TablesMoved

    current: dict[str, Dataset] = {}
    seen: dict[str, list[tuple[int, bool]]] = {}
    for table in lake.table_names():
        match = _TABLE.fullmatch(table)
        if match is None:
            continue
        name, number, fenced = match[1], int(match[2]), match[3] is not None
        seen.setdefault(name, []).append((number, fenced))
        with contextlib.suppress(FilesMissing, TablesMoved):
            state = lake.load(table)
            if state is not None and state.declaration is not None and not fenced:
                declared = from_declaration(name, number, state.declaration)
                if name not in current or current[name].generation < number:
                    current[name] = declared
    unknown = sorted(seen.keys() - current.keys())
    unclear = tuple(name for name in unknown if seen[name] != [(1, False)])
    return (
        [current[name] for name in sorted(current)],
        tuple(name for name in unknown if name not in unclear),
        unclear,
    )


def _insert(connection: Connection, found: list[Dataset], lake: Lake, clock: Clock) -> None:
    from floodmark.control import generations  # opening a store needs only the check above

    names = set(lake.table_names())
    for item in found:
        datasets.insert(connection, item, now=clock.now())
        for number in range(1, item.generation):
            earlier = item.of_generation(number)
            if {earlier.table_name, earlier.fenced_name} & names:
                generations.remember_retired(connection, item.name, number, now=clock.now())


def _is_sound(root: Path) -> bool:
    try:
        check_present(root)
        database = Database(sqlite_url(root / CONTROL_FILE))
        try:
            migrate(database, create=False)
            database.read(datasets.everyone)
        finally:
            database.close()
    except Corrupt:
        return False
    return True


def _moved_aside(root: Path) -> str | None:
    if not (root / CONTROL_FILE).exists():
        _remove(root / CONTROL_FILE)
        return None
    number = next(n for n in range(1, 10_000) if not (root / f"{CONTROL_FILE}.damaged-{n}").exists())
    place = f"{CONTROL_FILE}.damaged-{number}"
    for part in _PARTS[1:]:
        with contextlib.suppress(FileNotFoundError):
            (root / f"{CONTROL_FILE}{part}").rename(root / f"{place}{part}")
    (root / CONTROL_FILE).rename(root / place)
    return place


def _remove(file: Path) -> None:
    for part in _PARTS:
        with contextlib.suppress(FileNotFoundError):
            Path(f"{file}{part}").unlink()
