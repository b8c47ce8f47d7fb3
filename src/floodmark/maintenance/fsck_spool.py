"""The spool against the control database: segment files, landing files, and writers that died."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path

from floodmark.control import inspection, losses
from floodmark.control import segments as segment_records
from floodmark.control.datasets import Dataset
from floodmark.control.segments import Segment
from floodmark.delivery.destination import Finding
from floodmark.engine import Engine
from floodmark.errors import FilesMissing
from floodmark.files import try_lock
from floodmark.maintenance.findings import REPAIR, Problem, loss_finding, table_now, worth_knowing
from floodmark.maintenance.fsck_records import forgotten_commits
from floodmark.maintenance.give_up import offered
from floodmark.process import is_certainly_dead
from floodmark.spool.landing import landing_files
from floodmark.spool.sealing import landing_directory
from floodmark.spool.segments import drop_dead_writers, segment_damage
from floodmark.spool.unregistered import (
    comes_again,
    committed_segments,
    refusal_of,
    register_file,
    remove_file,
    unregistered_files,
)

LANDING_ROWS_AGE = timedelta(days=30)
"""How long the row of a removed landing file is kept."""


def check_spool(engine: Engine, dataset: Dataset) -> Iterator[Problem]:
    names = unregistered_files(engine, dataset.name)
    committed = (
        committed_segments(engine, dataset) if names else None
    )  # None: damage of the table is a finding of its own
    if committed is not None:
        for name, id in names.items():
            yield _orphan(engine, dataset, name, committed=id in committed)
    yield from _waiting(engine, dataset)
    yield from _dead_writers(engine, dataset)
    yield from _landing(engine, dataset)
    yield from _losses(engine, dataset)


# ── files without rows ───────────────────────────────────────────────────────────────────────────────────────────────


def _orphan(engine: Engine, dataset: Dataset, name: str, *, committed: bool) -> Problem:
    where = f"{dataset.name} {name}"
    if committed:
        what = f"The segment file {name} has no record; its rows are committed."
        found = worth_knowing(Finding("segment-leftover", what, where, f"The next flush removes it. {REPAIR}"))
        return Problem(found, lambda: remove_file(engine, dataset, name))
    what = f"The segment file {name} has no record, and its rows are not committed."
    resent = comes_again(engine, dataset, name)
    if resent is not None:
        run = f"{resent} Inspect the file, and remove it or capture its rows."
        return Problem(Finding("segment-orphaned", what, where, run))
    refused = refusal_of(engine, dataset, name)
    if refused is not None:
        run = f"It could not be registered: {refused}"
        return Problem(Finding("segment-orphaned", what, where, run), lambda: register_file(engine, dataset, name))
    run = f"Was the control database restored from a backup? The next flush registers it. {REPAIR}"
    found = worth_knowing(Finding("segment-orphaned", what, where, run))
    return Problem(found, lambda: register_file(engine, dataset, name))


# ── rows without files ───────────────────────────────────────────────────────────────────────────────────────────────


def _waiting(engine: Engine, dataset: Dataset) -> Iterator[Problem]:
    found = engine.database.read(lambda c: segment_records.sealed(c, dataset.name))
    bad = [(item, problem) for item in found if (problem := _problem(engine, item)) is not None]
    aside = [(item, item.set_aside) for item in found if item.set_aside and item.id not in {one.id for one, _ in bad}]
    if not bad and not aside:
        return
    if bad and _has_forgotten(engine, dataset):
        bad = []  # the forgotten commits come first: these may be among them
    for offer, (item, problem) in zip(offered(engine, dataset.name, bad), bad, strict=True):
        what = f"Segment {item.id} ({item.rows} rows, acknowledged and not committed) {problem}: {item.path}."
        if offer.range is not None:
            what += f" It is in block {offer.range}, which is undecided: its rows could still be committed."
        run = f"Restore the file from a backup; all other segments are committed without it. Or {_give_up(item.id)}"
        yield Problem(Finding("segment-missing", what, f"{dataset.name} {item.path}", run), offer=offer)
    for offer, (item, problem) in zip(offered(engine, dataset.name, aside), aside, strict=True):
        what = f"Segment {item.id} ({item.rows} rows, acknowledged and not committed) was set aside: {problem}"
        run = f"Try it again with `floodmark fsck --repair --retry {item.id}`. Or {_give_up(item.id)}"
        yield Problem(Finding("segment-set-aside", what, f"{dataset.name} {item.path}", run), offer=offer)


def _give_up(id: int) -> str:
    return f"give its rows up with `floodmark fsck --repair --give-up {id}`."


def _losses(engine: Engine, dataset: Dataset) -> Iterator[Problem]:
    """U33: what was given up stays on record."""
    for loss in engine.database.read(lambda c: losses.of_dataset(c, dataset.name)):
        yield Problem(worth_knowing(loss_finding(loss)))


def _problem(engine: Engine, item: Segment) -> str | None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        rows = pq.read_metadata(engine.segments.path(item.path)).num_rows
    except FileNotFoundError:
        return "has no file"
    except (OSError, pa.ArrowException):
        return "cannot be read"
    if rows != item.rows:
        return f"has {rows} rows in its file"
    return "has a file of another size" if segment_damage(engine, item.path, item.bytes) else None


def _has_forgotten(engine: Engine, dataset: Dataset) -> bool:
    try:
        state = table_now(engine, dataset)
    except FilesMissing:
        return False
    return state is not None and forgotten_commits(engine, dataset, state) is not None


def _dead_writers(engine: Engine, dataset: Dataset) -> Iterator[Problem]:
    for id, path, owner in engine.database.read(lambda c: segment_records.unfinished(c, dataset.name)):
        if is_certainly_dead(owner):
            what = f"Segment {id} was being written when its writer stopped; its rows were never acknowledged."
            run = f"The next flush removes it. {REPAIR}"
            found = worth_knowing(Finding("writer-dead", what, f"{dataset.name} {path}", run))
            yield Problem(found, lambda: _dropped(engine, dataset.name))


def _dropped(engine: Engine, dataset: str) -> str | None:
    count = drop_dead_writers(engine, dataset)
    return f"{count} unfinished segments of {dataset} are dropped." if count else None


# ── landing files ────────────────────────────────────────────────────────────────────────────────────────────────────


def _landing(engine: Engine, dataset: Dataset) -> Iterator[Problem]:
    directory = landing_directory(engine, dataset.name)
    states = engine.database.read(lambda c: inspection.landing_states(c, dataset.name))
    files = {path.stem: path for path in landing_files(directory)}
    several_hosts = engine.segments.bucket is not None
    for file, (state, sealed) in sorted(states.items()):
        where = f"{dataset.name} {file}.jsonl"
        # Of a store of several hosts a landing file that is not here may be on another: recorded as removed, its rows
        # would never be sealed there.
        if state == "open" and file not in files and not several_hosts:
            what = (
                f"The landing file {file}.jsonl is missing. It was sealed to byte {sealed}; later rows of it are lost."
            )
            run = "If you have the file, restore it. If a crash interrupted its removal, it had no later rows: "
            finding = Finding("landing-missing", what, where, run + REPAIR)
            yield Problem(finding, partial(_closed, engine, file) if directory.is_dir() else None)
        if state == "removed" and file in files:
            what = f"The landing file {file}.jsonl exists again; all of it was sealed before it was removed."
            found = Finding("landing-returned", what, where, f"`floodmark flush {dataset.name}` removes it.")
            yield Problem(worth_knowing(found))
    for file in sorted(files.keys() - states.keys()):
        if _writer_is_gone(files[file]):
            what = f"The landing file {file}.jsonl waits to be sealed; its writer has stopped."
            found = Finding(
                "landing-waits", what, f"{dataset.name} {file}.jsonl", f"Run `floodmark flush {dataset.name}`."
            )
            yield Problem(worth_knowing(found))


def _closed(engine: Engine, file: str) -> str:
    engine.database.transact(lambda c: segment_records.close_landing(c, file, now=engine.clock.now()))
    return f"The landing file {file}.jsonl is recorded as removed."


def _writer_is_gone(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        return try_lock(descriptor)
    finally:
        os.close(descriptor)


def age_out(engine: Engine, dataset: str) -> str | None:
    """Forget the rows of landing files that were removed long ago."""
    there = [path.stem for path in landing_files(landing_directory(engine, dataset))]
    before = engine.clock.now() - LANDING_ROWS_AGE
    count = engine.database.transact(lambda c: segment_records.forget_landing(c, dataset, before=before, there=there))
    return f"{count} old records of removed landing files of {dataset} are deleted." if count else None
