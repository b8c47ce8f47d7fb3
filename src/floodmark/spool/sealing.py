"""Sealing: landing lines become a typed, registered segment. The only parser of what was captured.

For each landing file, from the offset where the last sealing stopped:

    read whole lines → parse → fit → write the segment → register it and move the offset (one transaction)

Lines that this process wrote itself are read, and not parsed again, where what the parser makes of them is known
(`rows.line_cache`).

Invariants
- I6 The offset moves only from where the lines begin: of two sealers at work on the same lines one registers,
  the other throws its file away.
- L4 An incomplete last line is not a row. While its writer lives it may be completed; of a dead writer it was never
  acknowledged, and goes to quarantine, so that it is not lost silently.
- L5 A landing file is removed only when its lock could be taken (its writer closed it or died) and every byte of it is
  sealed: a live writer's next line would go to a file without a name.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from floodmark import faults
from floodmark.config import SpoolSettings
from floodmark.control import datasets
from floodmark.control import segments as records
from floodmark.control.datasets import Dataset
from floodmark.control.quarantine import QuarantineInput
from floodmark.control.segments import LandingRange
from floodmark.engine import Engine
from floodmark.errors import InvalidName, SchemaConflict, UnserialisableValue
from floodmark.files import durable_remove, try_lock
from floodmark.rows.envelope import Envelope, MalformedEnvelope, decode_envelope, encode_envelope
from floodmark.rows.fit import fit, reasons_by_row
from floodmark.rows.line_cache import CachedLine
from floodmark.rows.plain import Demands
from floodmark.schema import Schema
from floodmark.spool.ingest import fit_and_evolve, store
from floodmark.spool.landing import landing_files
from floodmark.spool.quarantine import keep_payload

if TYPE_CHECKING:
    import pyarrow as pa

SEAL_BYTES_MAX = 64 << 20
"""How many landing bytes one segment takes; a longer line is taken whole."""
SEAL_TRIES_MAX = 3
"""How often the same lines are tried when neither this sealer nor another gets them registered."""


@dataclass(slots=True)
class SealReport:
    """What one sealing did."""

    segments: int = 0
    rows: int = 0
    quarantined: int = 0
    files_removed: int = 0


@dataclass(frozen=True, slots=True)
class _Known:
    """A line that this process wrote, and its rows as they were fitted then."""

    offset: int
    line: bytes
    fitted: CachedLine


@dataclass(slots=True)
class _Run:
    """Neighbouring envelopes with the same columns, fitted together."""

    columns: list[str]
    values: list[list[Any]]
    origins: list[tuple[int, int]] = field(default_factory=list)
    """For each row the offset of its line and its place in it."""


def landing_directory(engine: Engine, dataset: str) -> Path:
    return engine.root / "spool" / dataset / "landing"


def seal(engine: Engine, dataset: str) -> SealReport:
    """Seal everything that is acknowledged at this moment."""
    report = SealReport()
    engine.database.read(lambda c: datasets.get(c, dataset))  # before its name becomes a path
    engine.line_cache.expect(dataset)
    for path in landing_files(landing_directory(engine, dataset)):
        _seal_file(engine, dataset, path, report)
    return report


def _seal_file(engine: Engine, dataset: str, path: Path, report: SealReport) -> None:
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return  # another sealer removed it
    try:
        writer_gone = is_writer_gone(descriptor)
        size = os.fstat(descriptor).st_size
        offset = _offset(engine, dataset, path)
        tries = 0
        while offset is not None and offset < size and tries < SEAL_TRIES_MAX:
            content = next_lines(descriptor, start=offset, size=size, writer_gone=writer_gone)
            if not content:
                break  # but for a line that its writer may still complete
            _seal_lines(engine, dataset, LandingRange(path.stem, offset, offset + len(content)), content, report)
            # Where the records say, not where these lines ended: another sealer may have been first, and with fewer
            # of them. Taking our own end for sealed would remove the file with the rest of them in it.
            before, offset = offset, _offset(engine, dataset, path)
            tries = tries + 1 if offset == before else 0
        if offset is None:
            # Its row says removed: a crash came between the unlink and its way to the disk.
            durable_remove(path)
        elif writer_gone and offset >= size:  # above it: a power loss came before unsynced, sealed lines were written
            _remove(engine, path, report)
    finally:
        os.close(descriptor)


def _offset(engine: Engine, dataset: str, path: Path) -> int | None:
    return engine.database.transact(lambda c: records.landing_offset(c, file=path.stem, dataset=dataset))


def _remove(engine: Engine, path: Path, report: SealReport) -> None:
    """L5. The record changes first: a file that still exists is removed by the next seal. One that is
    gone while its row says that it is open is damage, and nothing else.
    """
    faults.reach("seal.landing_finished")
    engine.database.transact(lambda c: records.close_landing(c, path.stem, now=engine.clock.now()))
    faults.reach("seal.landing_removed")
    durable_remove(path)
    report.files_removed += 1


def is_writer_gone(descriptor: int) -> bool:
    """L2: a writer holds its file's lock until it closes the file or dies."""
    return try_lock(descriptor)


def _seal_lines(engine: Engine, dataset: str, lines: LandingRange, content: bytes, report: SealReport) -> None:
    declared, table, quarantined = _parse(engine, dataset, lines, content)
    if store(engine, declared, table, lines=lines, quarantined=quarantined):
        rows = 0 if table is None else table.num_rows
        report.segments += rows > 0
        report.rows += rows
        report.quarantined += len(quarantined)


def _parse(
    engine: Engine, dataset: str, lines: LandingRange, content: bytes
) -> tuple[Dataset, pa.Table | None, list[QuarantineInput]]:
    """Fit the lines to the dataset's schema, which gets their new columns."""
    quarantined: list[QuarantineInput] = []

    def hold(offset: int, reason: str, line: bytes) -> None:
        quarantined.append(_quarantined(engine, dataset, lines.file, offset, 0, reason=reason, payload=line))

    runs = list(_runs(content, start=lines.start, malformed=hold, known=partial(engine.line_cache.take, lines.file)))
    known = engine.database.read(lambda c: datasets.get(c, dataset))
    declared, fitted = fit_and_evolve(engine, known, lambda it: _fit_runs(engine, it, lines, runs, content))
    return declared, joined(fitted.tables, declared.schema), quarantined + fitted.misfits


@dataclass(frozen=True, slots=True)
class _FittedRuns:
    """Several runs of lines, fitted one after the other: each to the schema that the ones before it grew."""

    schema: Schema
    tables: list[pa.Table]
    misfits: list[QuarantineInput]


def _fit_runs(
    engine: Engine, declared: Dataset, lines: LandingRange, runs: list[_Run | _Known], content: bytes
) -> _FittedRuns:
    dataset, schema, demands = declared.name, declared.schema, declared.demands(engine.settings.spool)
    tables: list[pa.Table] = []
    quarantined: list[QuarantineInput] = []
    for item in runs:
        if isinstance(item, _Known) and is_still_so(item.fitted, schema, demands):
            tables.append(item.fitted.table)
            continue
        run = item if isinstance(item, _Run) else _run_of(item)
        try:
            fitted = fit(schema, run.columns, run.values, rows=len(run.origins), demands=demands)
        except (InvalidName, SchemaConflict) as error:  # a name that no column can have, or one too many
            reasons = dict.fromkeys(range(len(run.origins)), error.message)
        else:
            schema = fitted.schema
            tables.append(fitted.table)
            reasons = reasons_by_row(fitted.misfits)
        for index, reason in reasons.items():
            offset, row = run.origins[index]
            try:
                payload = encode_envelope(run.columns, [[column[index]] for column in run.values], rows=1)
            except UnserialisableValue:  # a line that capture never wrote nests deeper than we write: kept unchanged
                payload = next(_lines(content[offset - lines.start :]))
            quarantined.append(_quarantined(engine, dataset, lines.file, offset, row, reason=reason, payload=payload))
    return _FittedRuns(schema, tables, quarantined)


def is_still_so(fitted: CachedLine, schema: Schema, demands: Demands) -> bool:
    """Whether rows that were fitted earlier would be fitted in the same way now."""
    return fitted.schema == schema and fitted.demands == demands


def _run_of(known: _Known) -> _Run:
    """The line, parsed after all."""
    found = _envelope(known.line)
    return _Run(found.columns, list(map(list, found.values)), [(known.offset, row) for row in range(found.rows)])


def landed_rows(declared: Dataset, limits: SpoolSettings, content: bytes) -> tuple[Dataset, pa.Table | None]:
    """The rows of some lines, and the dataset with the columns that they add. Nothing is stored or recorded: what
    sealing would quarantine is left out.
    """
    schema, demands = declared.schema, declared.demands(limits)
    tables: list[pa.Table] = []
    for run in _runs(content, start=0, malformed=lambda *_: None):
        if isinstance(run, _Known):
            continue  # there is none: nothing is known here
        try:
            fitted = fit(schema, run.columns, run.values, rows=len(run.origins), demands=demands)
        except (InvalidName, SchemaConflict):
            continue
        schema = fitted.schema
        tables.append(fitted.table)
    return replace(declared, schema=schema), joined(tables, schema)


def _runs(
    content: bytes,
    *,
    start: int,
    malformed: Callable[[int, str, bytes], None],
    known: Callable[[int, bytes], CachedLine | None] = lambda *_: None,
) -> Iterator[_Run | _Known]:
    """The envelopes, neighbours with equal columns taken together: one fit instead of thousands.

    `malformed` is called with the offset of each line that is no envelope, the reason, and the line. `known` has the
    rows of lines that need not be parsed.
    """
    run: _Run | None = None
    offset = start
    for line in _lines(content):
        fitted = known(offset, line)
        if fitted is not None:
            if run is not None:
                yield run
                run = None
            yield _Known(offset, line, fitted)
            offset += len(line)
            continue
        try:
            envelope = _envelope(line)
        except MalformedEnvelope as error:
            malformed(offset, error.message, line)
        else:
            if run is not None and run.columns != envelope.columns:
                yield run
                run = None
            if run is None:
                run = _Run(envelope.columns, [[] for _ in envelope.columns])
            for gathered, values in zip(run.values, envelope.values, strict=True):
                gathered.extend(values)
            run.origins.extend((offset, row) for row in range(envelope.rows))
        offset += len(line)
    if run is not None:
        yield run


def landing_lines(
    engine: Engine, dataset: str, ids: set[int]
) -> Iterator[tuple[int, LandingRange, list[QuarantineInput]]]:
    """The lines that segments were made of, with what among them was no row, as far as they are still there.

    A segment's id is a function of its lines. Lines that are no rows became no segment where they were sealed
    alone, so the next segment may begin after them.
    """
    offsets = engine.database.read(lambda c: records.landing_offsets(c, dataset))
    for path in landing_files(landing_directory(engine, dataset)):
        begin = offset = offsets.get(path.stem, 0)
        starts: list[int] = [begin]
        quarantined: list[QuarantineInput] = []
        with path.open("rb") as file:
            file.seek(begin)
            for line in file:
                bad = _quarantined_line(engine, dataset, path.stem, offset, line)
                offset += len(line)
                found = {records.landing_segment_id(LandingRange(path.stem, start, offset)) for start in starts}
                if ours := found & ids:
                    yield ours.pop(), LandingRange(path.stem, begin, offset), quarantined
                    begin, starts, quarantined = offset, [offset], []
                elif bad is not None:
                    quarantined.append(bad)
                    starts.append(offset)


def _quarantined_line(engine: Engine, dataset: str, file: str, offset: int, line: bytes) -> QuarantineInput | None:
    """A line that is no envelope, as it goes to quarantine; None if it is one."""
    try:
        _envelope(line)
    except MalformedEnvelope as error:
        return _quarantined(engine, dataset, file, offset, 0, reason=error.message, payload=line)
    return None


def _quarantined(
    engine: Engine, dataset: str, file: str, offset: int, row: int, *, reason: str, payload: bytes
) -> QuarantineInput:
    text, path = keep_payload(engine.root, dataset, name=f"{file}-{offset}-{row}", payload=payload)
    return QuarantineInput(
        reason=reason,
        payload=text,
        payload_path=path,
        landing_file=file,
        landing_offset=offset,
        landing_row=row,
    )


def next_lines(descriptor: int, *, start: int, size: int, writer_gone: bool) -> bytes:
    """L4: whole lines, as long as there are any. What is left then is a torn line if its writer is gone."""
    whole = _whole_lines(descriptor, start=start, size=size)
    return whole or (os.pread(descriptor, size - start, start) if writer_gone else b"")


def _whole_lines(descriptor: int, *, start: int, size: int) -> bytes:
    """Whole lines from an offset: up to the bound, or one line that is longer than it."""
    length = min(SEAL_BYTES_MAX, size - start)
    while True:
        content = os.pread(descriptor, length, start)
        end = content.rfind(b"\n") + 1
        if end or length >= size - start:
            return content[:end]
        length = min(length * 2, size - start)


def _envelope(line: bytes) -> Envelope:
    if not line.endswith(b"\n"):
        raise MalformedEnvelope("its writer stopped before the line was complete; it was never acknowledged")
    return decode_envelope(line)


def _lines(content: bytes) -> Iterator[bytes]:
    """Split at line feeds only (`splitlines` would also split at a stray carriage return)."""
    start = 0
    while start < len(content):
        end = content.find(b"\n", start) + 1 or len(content)
        yield content[start:end]
        start = end


def joined(tables: list[pa.Table], schema: Schema) -> pa.Table | None:
    """One table of all fitting rows, in the types of the grown schema."""
    import pyarrow as pa

    if not tables:
        return None
    wanted = schema.arrow([name for name in schema.names if any(name in table.column_names for table in tables)])
    rows = sum(table.num_rows for table in tables)
    if not wanted.names:
        return pa.table({"rows": pa.nulls(rows)}).select([])
    # Every table gets every column: a table of no columns would forget how many rows it has.
    aligned = [
        pa.Table.from_arrays(
            [
                table[field.name].cast(field.type)
                if field.name in table.column_names
                else pa.nulls(table.num_rows, field.type)
                for field in wanted
            ],
            schema=wanted,
        )
        for table in tables
    ]
    return pa.concat_tables(aligned).combine_chunks()
