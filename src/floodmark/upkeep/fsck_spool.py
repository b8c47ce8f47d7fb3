"""The spool against the control database: segment files, landing files, and writers that died."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, select

from floodmark.control import inspection
from floodmark.control import segments as segment_records
from floodmark.control.datasets import Dataset
from floodmark.control.inspection import SegmentRecord
from floodmark.control.quarantine import Held
from floodmark.control.schema import ledger, requests, sources
from floodmark.control.segments import LandingRange
from floodmark.errors import FilesMissing, FloodmarkError, Permanent
from floodmark.files import durable_remove, try_lock
from floodmark.process import is_certainly_dead
from floodmark.rows import content_ids, decode_envelope, fit
from floodmark.schema import CONTENT_ID, SEGMENT
from floodmark.spool.landing import landing_files
from floodmark.spool.segments import SegmentFile, read_segment_file, segment_names
from floodmark.upkeep.findings import Finding
from floodmark.upkeep.fsck_lake import forgotten_commits
from floodmark.upkeep.mending import REPAIR, Problem, Workshop, worth_knowing

if TYPE_CHECKING:
    import pyarrow as pa

IDS_AT_ONCE = 5_000
"""How many content ids the lake is asked for in one look."""
LANDING_ROWS_AGE = timedelta(days=30)
"""How long the row of a removed landing file is kept."""


def check_spool(workshop: Workshop, dataset: Dataset) -> Iterator[Problem]:
    # Files before rows: a segment's row is there before its file, so a file without one is nobody's work under way.
    names = segment_names(workshop.segments.directory(dataset.name))
    known = workshop.database.read(lambda c: inspection.known_segments(c, sorted(names.values())))
    unknown = [name for name, id in sorted(names.items()) if id not in known]
    committed = _committed_segments(workshop, dataset) if unknown else set()
    if committed is not None:
        for name in unknown:
            yield _orphan(workshop, dataset, name, committed=names[name] in committed)
    yield from _waiting(workshop, dataset)
    yield from _dead_writers(workshop, dataset)
    yield from _landing(workshop, dataset)


def _committed_segments(workshop: Workshop, dataset: Dataset) -> set[int] | None:
    """The ids of all segments that have rows in the table: the table decides what is committed.

    None while files of it are missing: that is a finding of its own, and comes first.
    """
    try:
        state = workshop.table(dataset)
        if state is None or state.head is None:
            return set()
        if workshop.lake.inspect_files(state).missing:
            return None
    except FilesMissing:
        return None
    return workshop.lake.segments_above(state.name, snapshot=state.head, after=0)


# ── files without rows ───────────────────────────────────────────────────────────────────────────────────────────────


def _orphan(workshop: Workshop, dataset: Dataset, name: str, *, committed: bool) -> Problem:
    path = workshop.segments.directory(dataset.name) / name
    where = f"{dataset.name} {name}"
    if committed:
        what = f"The segment file {name} has no row; its rows are committed."

        def remove() -> str:
            durable_remove(path)
            return f"The segment file {name} of {dataset.name} is removed: its rows are committed."

        return Problem(worth_knowing(Finding("segment-leftover", what, where, REPAIR)), remove)
    what = f"The segment file {name} has no row, and its rows are not committed."
    resent = workshop.database.read(lambda c: _comes_again(c, dataset))
    if resent is not None:
        run = f"{resent} Look into the file, and remove it, or capture its rows."
        return Problem(Finding("segment-orphaned", what, where, run))
    run = f"Was the control database restored from a backup? {REPAIR}"
    return Problem(Finding("segment-orphaned", what, where, run), lambda: _adopted(workshop, dataset, path))


def _comes_again(connection: Connection, dataset: Dataset) -> str | None:
    """Why an unknown segment's rows may be on their way again. With an identity that would do no harm."""
    if dataset.identity:
        return None
    asked = (
        (ledger, "Stores that forward to this one send again what its ledger has forgotten"),
        (sources, "Sources of this dataset are read again from where their position stands"),
        (requests, "Clients send requests again that were not answered"),
    )
    for table, reason in asked:
        if connection.execute(select(table.c.dataset).where(table.c.dataset == dataset.name).limit(1)).first():
            return f"{reason}, and without an identity the rows would be stored twice: it is not adopted by itself."
    return None


def _adopted(workshop: Workshop, dataset: Dataset, path: Path) -> str | None:
    """U32: its rows were acknowledged once, in a time that the control database has forgotten.

    Where the lines that it was made of still stand in the landing log, it is registered with them, and those before it
    come first: the log would be sealed again from where it was sealed to, and the rows be stored twice.
    """
    names = segment_names(path.parent)
    known = workshop.database.read(lambda c: inspection.known_segments(c, sorted(names.values())))
    if names.get(path.name) is None or names[path.name] in known:
        return None
    places = {id: path.parent / name for name, id in names.items() if id not in known}
    mine = names[path.name]
    chain = list(workshop.sealer.lines_of(dataset.name, set(places)))
    log = next((lines.file for id, lines, _ in chain if id == mine), None)
    if log is None:
        return _registered(workshop, dataset, path, None, [])
    done = []
    for id, lines, held in chain:
        if lines.file == log:
            done.append(_registered(workshop, dataset, places[id], lines, held))
        if id == mine:
            break
    return " ".join(line for line in done if line) or None


def _registered(
    workshop: Workshop, dataset: Dataset, path: Path, lines: LandingRange | None, held: list[Held]
) -> str | None:
    try:
        file = read_segment_file(path, dataset)
    except ValueError as error:
        raise Permanent(
            f"The segment file {path.name} is not whole: {error}.", hint="Keep it; restore it from a backup."
        ) from error
    if lines is None and not dataset.identity and _is_there_already(workshop, dataset, file):
        raise Permanent(
            f"Rows of the segment file {path.name} are in the store already, under another segment.",
            hint="Without an identity they would be stored twice: look into it, remove it, capture what is missing.",
        )
    if not workshop.segments.adopt(dataset, file, lines=lines, held=held):
        return None
    return f"The segment {file.id} of {dataset.name} is registered again: {file.rows.num_rows} rows wait for a flush."


def _is_there_already(workshop: Workshop, dataset: Dataset, file: SegmentFile) -> bool:
    """Whether the store has a row of the same content: in the landing log, in a segment that waits, or in the lake."""
    import pyarrow.parquet as pq

    ids = frozenset(content_ids(file.rows.append_column(SEGMENT, _nulls(file.rows.num_rows)))[0].to_pylist())
    for identifiers in _unsealed_ids(workshop, dataset):
        if not ids.isdisjoint(identifiers):
            return True
    for item in workshop.database.read(lambda c: inspection.segments_in(c, dataset.name, state="sealed")):
        path = workshop.segments.path(item.path)
        if path.exists() and not ids.isdisjoint(pq.read_table(path, columns=[CONTENT_ID])[CONTENT_ID].to_pylist()):
            return True
    state = workshop.table(dataset)
    if state is None or state.head is None:
        return False
    asked = sorted(ids)
    parts = [frozenset(asked[start : start + IDS_AT_ONCE]) for start in range(0, len(asked), IDS_AT_ONCE)]
    return any(
        workshop.lake.find_rows(state.name, snapshot=state.head, where={CONTENT_ID: part}, rows_max=1) for part in parts
    )


def _unsealed_ids(workshop: Workshop, dataset: Dataset) -> Iterator[list[str]]:
    offsets = workshop.database.read(lambda c: segment_records.landing_offsets(c, dataset.name))
    for path in landing_files(workshop.sealer.landing_directory(dataset.name)):
        with path.open("rb") as file:
            file.seek(offsets.get(path.stem, 0))
            for line in file:
                try:
                    envelope = decode_envelope(line)
                    rows = fit(dataset.schema, envelope.columns, envelope.values, rows=envelope.rows).table
                except FloodmarkError:
                    continue  # not a row: it goes to quarantine
                yield content_ids(rows.append_column(SEGMENT, _nulls(rows.num_rows)))[0].to_pylist()


def _nulls(count: int) -> pa.Array:
    """A system column: rows that have no column of their own are still so many."""
    import pyarrow as pa

    return pa.nulls(count, pa.int64())


# ── rows without files ───────────────────────────────────────────────────────────────────────────────────────────────


def _waiting(workshop: Workshop, dataset: Dataset) -> Iterator[Problem]:
    found = workshop.database.read(lambda c: inspection.segments_in(c, dataset.name, state="sealed"))
    bad = [(item, problem) for item in found if (problem := _problem(workshop, item)) is not None]
    if not bad or _has_forgotten(workshop, dataset):
        return  # the forgotten commits come first: these may be among them
    for item, problem in bad:
        what = f"Segment {item.id} ({item.rows} rows, acknowledged and not committed) {problem}: {item.path}."
        run = "Restore the file from a backup. Until then no flush of this dataset gets past it."
        yield Problem(Finding("segment-missing", what, f"{dataset.name} {item.path}", run))


def _problem(workshop: Workshop, item: SegmentRecord) -> str | None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        rows = pq.read_metadata(workshop.segments.path(item.path)).num_rows
    except FileNotFoundError:
        return "has no file"
    except (OSError, pa.ArrowException):
        return "cannot be read"
    return None if rows == item.rows else f"has {rows} rows in its file"


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
