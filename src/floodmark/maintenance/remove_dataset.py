"""Removing a dataset: its records, its tables, its spool, its quarantine. Delivered rows stay at their destinations.

1. One transaction: nothing depends on it (or the rest is given up), every record of it is deleted, and its name is
   recorded with what is left to remove. From now on there is no such dataset: nothing is captured, committed or pinned.
2. The tables are dropped, then the files are removed. Both can be repeated.
3. One transaction: nothing is left.

After a crash the same command, or the next compaction, continues with 2. The name is not used again: destinations have
rows under it, with numbers of it, and a ledger that counts them.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from sqlalchemy import Connection

from floodmark import faults
from floodmark.control import datasets, dependents, generations, quarantine, removals
from floodmark.control import segments as segment_records
from floodmark.control.dependents import Leftovers
from floodmark.delivery.destination import Finding
from floodmark.engine import Engine
from floodmark.errors import Permanent, Retryable, UnknownDataset
from floodmark.files import sync_directory, try_lock
from floodmark.maintenance.findings import Problem, worth_knowing
from floodmark.maintenance.pending_deliveries import Needed, needed_rows
from floodmark.spool.landing import landing_bytes
from floodmark.spool.segments import segment_key


@dataclass(frozen=True, slots=True)
class RemovedDataset:
    """What is or was removed with a dataset, and what depends on it."""

    dataset: str
    rows: int = 0
    """Committed rows."""
    waiting_rows: int = 0
    waiting_bytes: int = 0
    """Captured rows that are not committed: sealed rows, and bytes in landing files."""
    quarantined: int = 0
    tables: tuple[str, ...] = ()
    needed: tuple[Needed, ...] = ()
    """Sinks that have not received every row."""
    sinks: tuple[str, ...] = ()
    """Sinks whose settings name it."""
    only_sinks: tuple[str, ...] = ()
    """Of these, sinks that deliver nothing else."""
    origins: tuple[str, ...] = ()
    """Stores that forward rows to it."""
    sources: tuple[str, ...] = ()
    """Backfills and event logs that feed it."""
    removed: bool = False


def remove_dataset(engine: Engine, name: str, *, give_up: bool = False, dry_run: bool = False) -> RemovedDataset:
    """Remove a dataset; refuse while a sink needs rows of it or rows are not committed, unless they are given up."""
    left = engine.database.read(lambda c: dependents.leftovers(c, name))
    if left is None:
        engine.database.read(lambda c: datasets.get(c, name))  # unknown names are refused before they become a path
        found = _found(engine, name)
        if dry_run:
            return found
        _check_writers(engine.root / "spool" / name / "landing", name)
        left = engine.database.transact(
            lambda c: _forget(engine, c, name, give_up=give_up),
            landed=lambda c: dependents.leftovers(c, name) is not None,
        )
        faults.reach("remove.forgotten")
    else:
        if dry_run or left.empty:
            raise UnknownDataset(f"Dataset {name!r} was removed.", hint="Its name cannot be used again.")
        found = RemovedDataset(name, tables=left.tables)
    _finish(engine, name, left)
    return replace(found, removed=True)


def finish_removals(engine: Engine) -> list[str]:
    """Remove what is left of datasets whose removal was interrupted; returns their names."""
    waiting = engine.database.read(dependents.unfinished)
    for name, left in waiting.items():
        _finish(engine, name, left)
    return list(waiting)


def unfinished_removals(engine: Engine) -> Iterator[Problem]:
    """What is left of removed datasets, as fsck reports it: nothing is wrong, and it is known what to do."""
    for name, left in engine.database.read(dependents.unfinished).items():
        what = f"The removal of dataset {name} was started and not completed: tables and files of it are left."
        run = f"`floodmark dataset remove {name} --yes` completes it."

        def repair(name: str = name, left: Leftovers = left) -> str:
            _finish(engine, name, left)
            return f"The removal of dataset {name} was completed."

        yield Problem(worth_knowing(Finding("dataset-removal-unfinished", what, name, run)), repair)


def _found(engine: Engine, name: str) -> RemovedDataset:
    def work(connection: Connection) -> RemovedDataset:
        declared = datasets.get(connection, name)
        _, rows, _ = segment_records.backlog(connection, name)
        offsets = segment_records.landing_offsets(connection, name)
        numbers = {declared.generation, *(one.generation for one in generations.everyone(connection, name))}
        own = [declared.of_generation(number) for number in sorted(numbers)]
        return RemovedDataset(
            name,
            datasets.row_count(connection, name),
            rows,
            landing_bytes(engine.root / "spool" / name / "landing", sealed=offsets),
            len(quarantine.entries(connection, dataset=name)),
            tuple(table for one in own for table in (one.table_name, one.fenced_name)),
            tuple(needed_rows(connection, name)),
            *dependents.sinks_of(connection, name),
            tuple(dependents.origins_of(connection, name)),
            tuple(dependents.sources_of(connection, name)),
        )

    return engine.database.read(work)


def _forget(engine: Engine, connection: Connection, name: str, *, give_up: bool) -> Leftovers:
    """Decided in the transaction that deletes: rows that came since are seen, too."""
    declared = datasets.get(connection, name)
    if generations.unfinished(connection, name) is not None or declared.fenced:
        raise Retryable(f"Dataset {name!r} is being rebuilt.", hint=f"Run `floodmark rebuild {name}` to its end first.")
    if removals.unfinished(connection, name) is not None:
        raise Retryable(
            f"Rows of {name!r} are being removed.",
            hint="Run that `floodmark retain`, `purge` or `compact` again first.",
        )
    _, only = dependents.sinks_of(connection, name)
    if only:
        raise Permanent(
            f"Sink {only[0]!r} delivers only dataset {name!r}.",
            hint=f"Remove it first: `floodmark sink remove {only[0]}`.",
        )
    _, rows, _ = segment_records.backlog(connection, name)
    offsets = segment_records.landing_offsets(connection, name)
    size = landing_bytes(engine.root / "spool" / name / "landing", sealed=offsets)
    needed = needed_rows(connection, name)
    if not give_up and (rows or size or needed):
        waits = f"{rows:,} sealed rows and {size:,} bytes in landing files are not committed"
        lacks = f"sink {needed[0].sink!r} has not received about {needed[0].rows:,} rows" if needed else waits
        raise Permanent(
            f"Dataset {name!r} has rows that would be lost: {lacks}.",
            hint="Flush and export first, or give them up with --give-up (in Python, give_up=True).",
        )
    numbers = {declared.generation, *(one.generation for one in generations.everyone(connection, name))}
    own = [declared.of_generation(number) for number in sorted(numbers)]
    left = Leftovers(
        tuple(table for one in own for table in (one.table_name, one.fenced_name)),
        (f"spool/{name}", f"quarantine/{name}"),
    )
    dependents.leave_out(connection, name)
    dependents.forget(connection, name)
    dependents.remember(connection, name, left, now=engine.clock.now())
    return left


def _check_writers(landing: Path, name: str) -> None:
    """A live writer would go on to acknowledge rows into a file that is gone."""
    for path in landing.glob("*.jsonl") if landing.is_dir() else ():
        with contextlib.suppress(FileNotFoundError):
            descriptor = os.open(path, os.O_RDWR)
            try:
                if not try_lock(descriptor):
                    raise Retryable(
                        f"A process is capturing rows of {name!r}.", hint="Stop it, then remove the dataset again."
                    )
            finally:
                os.close(descriptor)


def _finish(engine: Engine, name: str, left: Leftovers) -> None:
    _check_writers(engine.root / "spool" / name / "landing", name)
    for table in left.tables:
        engine.lake.drop(table)
        faults.reach("remove.table_dropped")
    # In a bucket they are not below the store's directory.
    engine.segments.remove([segment_key(name, one) for one in engine.segments.names(name)])
    for place in left.directories:
        path = engine.root / place
        if path.is_dir():
            shutil.rmtree(path)
            sync_directory(path.parent)
        faults.reach("remove.files_removed")
    engine.database.transact(partial(dependents.nothing_left, name=name))
