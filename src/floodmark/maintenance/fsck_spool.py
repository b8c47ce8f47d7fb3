"""The spool against the control database: segment files, landing files, and writers that died."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

from floodmark.control import inspection, losses
from floodmark.control import segments as segment_records
from floodmark.control.datasets import Dataset
from floodmark.control.segments import Segment
from floodmark.errors import FilesMissing
from floodmark.files import try_lock
from floodmark.maintenance.findings import Finding, loss_finding
from floodmark.maintenance.fsck_records import forgotten_commits
from floodmark.maintenance.give_up import offered
from floodmark.maintenance.mending import REPAIR, Problem, Workshop, worth_knowing
from floodmark.process import is_certainly_dead
from floodmark.spool.landing import landing_files
from floodmark.spool.unregistered import UnknownSegments

LANDING_ROWS_AGE = timedelta(days=30)
"""How long the row of a removed landing file is kept."""


def check_spool(workshop: Workshop, dataset: Dataset) -> Iterator[Problem]:
    unknown = workshop.recovery().unknown
    names = unknown.names(dataset.name)
    committed = unknown.committed(dataset) if names else None  # None: damage of the table is a finding of its own
    if committed is not None:
        for name, id in names.items():
            yield _orphan(unknown, dataset, name, committed=id in committed)
    yield from _waiting(workshop, dataset)
    yield from _dead_writers(workshop, dataset)
    yield from _landing(workshop, dataset)
    yield from _losses(workshop, dataset)


# ── files without rows ───────────────────────────────────────────────────────────────────────────────────────────────


def _orphan(unknown: UnknownSegments, dataset: Dataset, name: str, *, committed: bool) -> Problem:
    where = f"{dataset.name} {name}"
    if committed:
        what = f"The segment file {name} has no row; its rows are committed."
        found = worth_knowing(Finding("segment-leftover", what, where, f"The next flush removes it. {REPAIR}"))
        return Problem(found, lambda: unknown.remove(dataset, name))
    what = f"The segment file {name} has no row, and its rows are not committed."
    resent = unknown.comes_again(dataset, name)
    if resent is not None:
        run = f"{resent} Look into the file, and remove it, or capture its rows."
        return Problem(Finding("segment-orphaned", what, where, run))
    refused = unknown.refusal(dataset, name)
    if refused is not None:
        run = f"It could not be taken up: {refused}"
        return Problem(Finding("segment-orphaned", what, where, run), lambda: unknown.adopt(dataset, name))
    run = f"Was the control database restored from a backup? The next flush takes it up. {REPAIR}"
    found = worth_knowing(Finding("segment-orphaned", what, where, run))
    return Problem(found, lambda: unknown.adopt(dataset, name))


# ── rows without files ───────────────────────────────────────────────────────────────────────────────────────────────


def _waiting(workshop: Workshop, dataset: Dataset) -> Iterator[Problem]:
    found = workshop.database.read(lambda c: segment_records.sealed(c, dataset.name))
    bad = [(item, problem) for item in found if (problem := _problem(workshop, item)) is not None]
    aside = [(item, item.set_aside) for item in found if item.set_aside and item.id not in {one.id for one, _ in bad}]
    if not bad and not aside:
        return
    if bad and _has_forgotten(workshop, dataset):
        bad = []  # the forgotten commits come first: these may be among them
    for offer, (item, problem) in zip(offered(workshop, dataset.name, bad), bad, strict=True):
        what = f"Segment {item.id} ({item.rows} rows, acknowledged and not committed) {problem}: {item.path}."
        if offer.range is not None:
            what += f" It is in block {offer.range}, which is undecided: its rows could still be committed."
        run = f"Restore the file from a backup; all others are committed without it. Or {_give_up(item.id)}"
        yield Problem(Finding("segment-missing", what, f"{dataset.name} {item.path}", run), offer=offer)
    for offer, (item, problem) in zip(offered(workshop, dataset.name, aside), aside, strict=True):
        what = f"Segment {item.id} ({item.rows} rows, acknowledged and not committed) was set aside: {problem}"
        run = f"Try it again with `floodmark fsck --repair --retry {item.id}`. Or {_give_up(item.id)}"
        yield Problem(Finding("segment-set-aside", what, f"{dataset.name} {item.path}", run), offer=offer)


def _give_up(id: int) -> str:
    return f"give its rows up with `floodmark fsck --repair --give-up {id}`."


def _losses(workshop: Workshop, dataset: Dataset) -> Iterator[Problem]:
    """U33: what was given up stays on record."""
    for loss in workshop.database.read(lambda c: losses.of_dataset(c, dataset.name)):
        yield Problem(worth_knowing(loss_finding(loss)))


def _problem(workshop: Workshop, item: Segment) -> str | None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        rows = pq.read_metadata(workshop.segments.path(item.path)).num_rows
    except FileNotFoundError:
        return "has no file"
    except (OSError, pa.ArrowException):
        return "cannot be read"
    if rows != item.rows:
        return f"has {rows} rows in its file"
    return "has a file of another size" if workshop.segments.damage(item.path, item.bytes) else None


def _has_forgotten(workshop: Workshop, dataset: Dataset) -> bool:
    try:
        state = workshop.table(dataset)
    except FilesMissing:
        return False
    return state is not None and forgotten_commits(workshop, dataset, state) is not None


def _dead_writers(workshop: Workshop, dataset: Dataset) -> Iterator[Problem]:
    for id, path, owner in workshop.database.read(lambda c: segment_records.unfinished(c, dataset.name)):
        if is_certainly_dead(owner):
            what = f"Segment {id} was being written when its writer died; nobody was told that it is stored."
            run = f"The next flush clears it away. {REPAIR}"
            found = worth_knowing(Finding("writer-dead", what, f"{dataset.name} {path}", run))
            yield Problem(found, lambda: _dropped(workshop, dataset.name))


def _dropped(workshop: Workshop, dataset: str) -> str | None:
    count = workshop.segments.drop_dead_writers(dataset)
    return f"{count} unfinished segments of {dataset} are dropped." if count else None


# ── landing files ────────────────────────────────────────────────────────────────────────────────────────────────────


def _landing(workshop: Workshop, dataset: Dataset) -> Iterator[Problem]:
    directory = workshop.sealer.landing_directory(dataset.name)
    states = workshop.database.read(lambda c: inspection.landing_states(c, dataset.name))
    files = {path.stem: path for path in landing_files(directory)}
    for file, (state, sealed) in sorted(states.items()):
        where = f"{dataset.name} {file}.jsonl"
        if state == "open" and file not in files:
            what = (
                f"The landing file {file}.jsonl is gone. It was sealed to byte {sealed}; what stood behind it is lost."
            )
            run = "If you have it, put it back. If a crash came while it was being removed, nothing stood there: "
            finding = Finding("landing-missing", what, where, run + REPAIR)
            yield Problem(finding, (lambda file=file: _closed(workshop, file)) if directory.is_dir() else None)  # type: ignore[misc]
        if state == "removed" and file in files:
            what = f"The landing file {file}.jsonl is there again; all of it was sealed before it was removed."
            found = Finding("landing-returned", what, where, f"`floodmark flush {dataset.name}` removes it.")
            yield Problem(worth_knowing(found))
    for file in sorted(files.keys() - states.keys()):
        if _writer_is_gone(files[file]):
            what = f"The landing file {file}.jsonl waits to be sealed; its writer is gone."
            found = Finding(
                "landing-waits", what, f"{dataset.name} {file}.jsonl", f"Run `floodmark flush {dataset.name}`."
            )
            yield Problem(worth_knowing(found))


def _closed(workshop: Workshop, file: str) -> str:
    workshop.database.transact(lambda c: segment_records.close_landing(c, file, now=workshop.clock.now()))
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


def age_out(workshop: Workshop, dataset: str) -> str | None:
    """Forget the rows of landing files that were removed long ago."""
    there = [path.stem for path in landing_files(workshop.sealer.landing_directory(dataset))]
    before = workshop.clock.now() - LANDING_ROWS_AGE
    count = workshop.database.transact(lambda c: segment_records.forget_landing(c, dataset, before=before, there=there))
    return f"{count} rows of landing files of {dataset} that were removed long ago are forgotten." if count else None
