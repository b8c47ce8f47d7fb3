"""Segment files that the control database does not know: it was restored from a backup that is older than they are.

Their rows were acknowledged. A file is registered if its rows are not in the table, it is intact, and nothing will send
the same rows again (U32); flush does that, before it seals anything, and `fsck --repair` does the same. A
segment's row is there before its file, so a file without a row is not being written by any process.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from sqlalchemy import Connection, select

from floodmark.control import inspection
from floodmark.control import segments as records
from floodmark.control.datasets import Dataset
from floodmark.control.quarantine import QuarantineInput
from floodmark.control.schema import ledger, requests, sources
from floodmark.control.segments import LandingRange
from floodmark.engine import Engine
from floodmark.errors import FilesMissing, FloodmarkError, Permanent
from floodmark.lake import queries
from floodmark.lake.generations import find_table
from floodmark.rows.content import content_ids
from floodmark.rows.envelope import decode_envelope
from floodmark.rows.fit import fit
from floodmark.schema import CONTENT_ID, SEGMENT
from floodmark.spool.landing import landing_files
from floodmark.spool.sealing import landing_directory, landing_lines
from floodmark.spool.segments import (
    CAPTURED,
    SOURCE,
    SegmentFile,
    adopt_segment,
    lines_of,
    origin_of,
    read_segment_file,
    segment_files,
    segment_key,
)

if TYPE_CHECKING:
    import pyarrow as pa

IDS_AT_ONCE = 5_000
"""How many content ids one query of the lake has."""


def unregistered_files(engine: Engine, dataset: str) -> dict[str, int]:
    """The files without a row, with the ids that their names say. Files before rows, for the reason above."""
    names = segment_files(engine, dataset)
    known = engine.database.read(lambda c: inspection.known_segments(c, sorted(names.values())))
    return {name: id for name, id in sorted(names.items()) if id not in known}


def register_files(engine: Engine, dataset: Dataset) -> list[str]:
    """Register what can be registered, and report it; files that need a user's decision are left to fsck."""
    names = unregistered_files(engine, dataset.name)
    committed = committed_segments(engine, dataset) if names else None
    done: list[str | None] = []
    for name, id in names.items() if committed is not None else ():
        # Registered just now, with one whose lines come after its own: its lines are sealed, by itself.
        if engine.database.read(partial(inspection.known_segments, ids=[id])):
            continue
        if id in (committed or ()) or is_sealed_elsewhere(engine, dataset, name):
            done.append(remove_file(engine, dataset, name))
        elif comes_again(engine, dataset, name) is None:
            with contextlib.suppress(Permanent):  # damaged, or stored already: fsck reports it
                done.append(register_file(engine, dataset, name))
    return [line for line in done if line]


def is_sealed_elsewhere(engine: Engine, dataset: Dataset, name: str) -> bool:
    """U36: whether the records say that a file's lines are sealed. Another sealer was first; it has registered its own
    file, and the record of that may be folded by now.
    """
    lines = lines_of(engine, segment_key(dataset.name, name))
    if lines is None:
        return False
    offsets = engine.database.read(lambda c: records.sealed_offsets(c, [lines.file]))
    if lines.file not in offsets:
        return False
    sealed = offsets[lines.file]
    return sealed is None or sealed >= lines.end


def comes_again(engine: Engine, dataset: Dataset, name: str) -> str | None:
    """Why a file's rows may be sent again; None if they are not. With an identity that does no harm.

    The file says where its rows came from. For an older file without that note, the dataset's sources decide.
    """
    if dataset.identity:
        return None
    origin = origin_of(engine, segment_key(dataset.name, name))
    if origin == CAPTURED:
        return None
    reason = engine.database.read(lambda c: _kept_for(c, dataset))
    if reason is None and origin == SOURCE:
        reason = "Its sender or source may send the rows again"
    if reason is None:
        return None
    return f"{reason}, and without an identity the rows would be stored twice: it is not adopted automatically."


def committed_segments(engine: Engine, dataset: Dataset) -> set[int] | None:
    """The ids of all segments that have rows in the table: the table decides what is committed.

    None while files of it are missing: then it is not known.
    """
    try:
        _, state = find_table(engine.database, engine.lake, dataset)
        if state is None or state.head is None:
            return set()
        if engine.lake.files(state, check=True).missing:
            return None
    except FilesMissing:
        return None
    return queries.segments_above(engine.lake, state.name, snapshot=state.head, after=0)


def remove_file(engine: Engine, dataset: Dataset, name: str) -> str:
    engine.segments.remove([segment_key(dataset.name, name)])
    return f"The segment file {name} of {dataset.name} is removed: its rows are committed."


def register_file(engine: Engine, dataset: Dataset, name: str) -> str | None:
    """Register a file; `Permanent` says why it cannot be.

    Where the lines that it was made of are still in the landing log, it is registered with them, and those before
    it come first: the log would be sealed again from where it was sealed to, and the rows be stored twice.
    """
    names = unregistered_files(engine, dataset.name)
    if name not in names:
        return None
    places = {id: one for one, id in names.items()}
    mine = names[name]
    chain = list(landing_lines(engine, dataset.name, set(places)))
    log = next((lines.file for id, lines, _ in chain if id == mine), None)
    if log is None:
        return _register(engine, dataset, name, None, [])
    done = []
    for id, lines, quarantined in chain:
        if lines.file == log:
            done.append(_register(engine, dataset, places[id], lines, quarantined))
        if id == mine:
            break
    return " ".join(line for line in done if line) or None


def refusal_of(engine: Engine, dataset: Dataset, name: str) -> Permanent | None:
    """Why a file cannot be registered; None if it can be. Changes nothing."""
    names = unregistered_files(engine, dataset.name)
    chain = landing_lines(engine, dataset.name, set(names.values()))
    lines = next((lines for id, lines, _ in chain if id == names.get(name)), None)
    try:
        _checked(engine, dataset, name, lines)
    except Permanent as error:
        return error
    return None


def _checked(engine: Engine, dataset: Dataset, name: str, lines: LandingRange | None) -> SegmentFile:
    try:
        file = read_segment_file(engine, name, dataset)
    except ValueError as error:
        raise Permanent(
            f"The segment file {name} is damaged: {error}.", hint="Keep it; restore it from a backup."
        ) from error
    if lines is None and not dataset.identity and _is_there_already(engine, dataset, file):
        raise Permanent(
            f"Rows of the segment file {name} are in the store already, under another segment.",
            hint="Without an identity they would be stored twice: inspect it, remove it, and capture the other rows.",
        )
    return file


def _register(
    engine: Engine, dataset: Dataset, name: str, lines: LandingRange | None, quarantined: list[QuarantineInput]
) -> str | None:
    file = _checked(engine, dataset, name, lines)
    if not adopt_segment(engine, dataset, file, lines=lines, quarantined=quarantined):
        return None
    rows = file.rows.num_rows
    return f"The segment {file.id} of {dataset.name} is registered again: {rows} rows wait for a flush."


def _is_there_already(engine: Engine, dataset: Dataset, file: SegmentFile) -> bool:
    """Whether the store has a row of the same content: in the landing log, in a waiting segment, or in the lake."""
    import pyarrow.parquet as pq

    ids = frozenset(content_ids(file.rows.append_column(SEGMENT, _nulls(file.rows.num_rows)))[0].to_pylist())
    for identifiers in _unsealed_ids(engine, dataset):
        if not ids.isdisjoint(identifiers):
            return True
    for item in engine.database.read(lambda c: inspection.segments_in(c, dataset.name, state="sealed")):
        with contextlib.suppress(FileNotFoundError):
            rows = pq.read_table(engine.segments.path(item.path), columns=[CONTENT_ID])
            if not ids.isdisjoint(rows[CONTENT_ID].to_pylist()):
                return True
    _, state = find_table(engine.database, engine.lake, dataset)
    if state is None or state.head is None:
        return False
    asked = sorted(ids)
    parts = [frozenset(asked[start : start + IDS_AT_ONCE]) for start in range(0, len(asked), IDS_AT_ONCE)]
    return any(
        queries.find_rows(engine.lake, state.name, snapshot=state.head, values={CONTENT_ID: part}, rows_max=1)
        for part in parts
    )


def _unsealed_ids(engine: Engine, dataset: Dataset) -> Iterator[list[str]]:
    offsets = engine.database.read(lambda c: records.landing_offsets(c, dataset.name))
    for path in landing_files(landing_directory(engine, dataset.name)):
        with path.open("rb") as file:
            file.seek(offsets.get(path.stem, 0))
            for line in file:
                try:
                    envelope = decode_envelope(line)
                    rows = fit(dataset.schema, envelope.columns, envelope.values, rows=envelope.rows).table
                except FloodmarkError:
                    continue  # not a row: it goes to quarantine
                yield content_ids(rows.append_column(SEGMENT, _nulls(rows.num_rows)))[0].to_pylist()


def _kept_for(connection: Connection, dataset: Dataset) -> str | None:
    """Who sends again to a dataset what its records have forgotten, as far as they still say."""
    asked = (
        (ledger, "Stores that forward to this one send the rows again that its ledger no longer has"),
        (sources, "Sources of this dataset are read again from their recorded position"),
        (requests, "Clients send requests again that were not answered"),
    )
    for table, reason in asked:
        if connection.execute(select(table.c.dataset).where(table.c.dataset == dataset.name).limit(1)).first():
            return reason
    return None


def _nulls(count: int) -> pa.Array:
    """A system column: rows without user columns still count."""
    import pyarrow as pa

    return pa.nulls(count, pa.int64())
