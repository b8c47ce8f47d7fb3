"""Segment files: typed rows on disk, registered in the control database.

    announce (`writing`) → write + fsync → register (`sealed`)

A segment exists exactly when it is registered (I7). A file whose row never got there is debris, and a row without
its file is too: both are cleaned up by `drop_dead_writers` and `remove_leftovers`, rows first.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, select

from floodmark import faults
from floodmark.control import datasets, quarantine
from floodmark.control import segments as records
from floodmark.control.datasets import Dataset
from floodmark.control.quarantine import QuarantineInput
from floodmark.control.schema import blocks as blocks_table
from floodmark.control.schema import datasets as datasets_table
from floodmark.control.schema import segments as segments_table
from floodmark.control.segments import LandingRange, Segment, SegmentContent, SourceStep
from floodmark.control.topology import check_unmoved
from floodmark.engine import Engine
from floodmark.errors import FloodmarkError, SchemaChanged, reason_of
from floodmark.files import (
    create_private,
    retryable_os_error,
)
from floodmark.lake.overlap import DISTINCT, NAMED, TIMED
from floodmark.process import is_certainly_dead, process_identity
from floodmark.schema import CONTENT_ID, SEGMENT, Column
from floodmark.segment_store import folder

if TYPE_CHECKING:
    import pyarrow as pa

ROW_GROUP_ROWS = 128 * 1024
ROW_GROUP_BYTES = 32 << 20
"""So much of a segment is read at once at most, whatever its rows are like: a task's memory does not grow with them."""
ORIGIN = b"floodmark.origin"
"""The note in a segment's file that says whether its sender may send the rows again: `source`, or `capture`."""
SOURCE, CAPTURED = b"source", b"capture"
LINES = b"floodmark.lines"
"""The note that names the lines of a landing file that the rows come from."""
ID_MAX = 2**63 - 1
_NAME = re.compile(r"([0-9]{1,19})-[0-9A-Za-z]+\.parquet")


class _GivenUp(Exception):
    """Another process registered the segment: what `also` did in this transaction is rolled back with it."""


@dataclass(frozen=True, slots=True)
class SegmentFile:
    """A segment's file as it was read: whole, and with rows that fit the dataset."""

    name: str
    id: int
    rows: pa.Table
    """User columns."""
    prefixes: tuple[int, ...]
    """The first 64 bits of each row's content id."""
    bytes: int
    columns: tuple[Column, ...]
    """What the dataset's schema must grow by."""


@dataclass(frozen=True, slots=True)
class WrittenSegment:
    """A segment's file on the disk, announced and not yet registered."""

    id: int
    content: SegmentContent


def segment_files(engine: Engine, dataset: str) -> dict[str, int]:
    """The segment files of a dataset, with the ids that their names say. What strangers put there is not named."""
    found = {name: segment_id(name) for name in engine.segments.names(dataset)}
    return {name: id for name, id in found.items() if id is not None}


def segment_key(dataset: str, name: str) -> str:
    return f"{folder(dataset)}/{name}"


def segment_damage(engine: Engine, relative: str, size: int) -> str | None:
    """The damage of a registered segment's file, by its size; None if there is none."""
    try:
        found = engine.segments.size(relative)
    except OSError as error:
        return f"{error}."
    if found is None:
        return f"its file {relative} is missing."
    return None if found == size else f"its file {relative} has {found:,} bytes instead of {size:,}."


def add_segment(
    engine: Engine,
    dataset: Dataset,
    table: pa.Table,
    *,
    lines: LandingRange | None = None,
    quarantined: Sequence[QuarantineInput] = (),
    also: Callable[[Connection], bool] | None = None,
) -> bool:
    """Store rows as a registered segment; false if another process registered the same lines first.

    `quarantined` goes to quarantine and `also` runs in the registering transaction; `also` returning false
    gives the segment up.
    """
    origin = CAPTURED if also is None else SOURCE
    notes = {ORIGIN: origin} | ({} if lines is None else {LINES: f"{lines.file}:{lines.start}:{lines.end}".encode()})
    written = write_segment(engine, dataset, table, lines=lines, notes=notes)
    return register_segment(engine, dataset, written, lines=lines, quarantined=quarantined, also=also)


def write_segment(
    engine: Engine,
    dataset: Dataset,
    table: pa.Table,
    *,
    lines: LandingRange | None = None,
    notes: Mapping[bytes, bytes] | None = None,
) -> WrittenSegment:
    """Announce a segment and write its file, with the notes in it. It is one only when it is registered."""
    id = records.landing_segment_id(lines) if lines else records.fresh_segment_id()
    relative = segment_key(dataset.name, f"{id}-{secrets.token_hex(4)}.parquet")
    engine.database.transact(
        lambda connection: records.announce(
            connection,
            id=id,
            dataset=dataset.name,
            path=relative,
            owner=process_identity(),
            now=engine.clock.now(),
        )
    )
    faults.reach("segment.announced")
    content = _write(engine, dataset, table, id=id, relative=relative, notes=notes or {})
    faults.reach("segment.written")
    return WrittenSegment(id, content)


def register_segment(
    engine: Engine,
    dataset: Dataset,
    written: WrittenSegment,
    *,
    lines: LandingRange | None = None,
    step: SourceStep | None = None,
    quarantined: Sequence[QuarantineInput] = (),
    also: Callable[[Connection], bool] | None = None,
) -> bool:
    """The second half of `add`. What is not registered is dropped."""
    id, content = written.id, written.content

    def work(connection: Connection) -> bool:
        if also is not None and not also(connection):
            return False  # another was first, and has the source's step with it
        datasets.check_types(connection, dataset)
        check_unmoved(connection, engine.settings)  # U44
        if not records.register(connection, id=id, content=content, lines=lines, step=step):
            raise _GivenUp
        quarantine.hold(connection, dataset.name, quarantined, now=engine.clock.now())
        return True

    try:
        registered = engine.database.transact(work, landed=lambda c: _is_at(c, id=id, path=content.path))
    except SchemaChanged:
        drop_segment(engine, written)
        engine.corrected.add(dataset.name)
        raise
    except _GivenUp:
        registered = False
    if not registered:
        # The control database was restored while we wrote, and a flush registered the file automatically: it is
        # registered. What belongs to a source is not, because its position did not move.
        alone = lines is None and step is None and also is None
        if alone and engine.database.read(lambda c: _is_at(c, id=id, path=content.path)):
            return True
        drop_segment(engine, written)
        return False
    faults.reach("segment.registered")
    return True


def drop_segment(engine: Engine, written: WrittenSegment) -> None:
    """Give up a segment that was written and is not registered."""
    _drop(engine, written.id, written.content.path)


def split_segment(engine: Engine, dataset: Dataset, segment: Segment) -> bool:
    """U34: replace a waiting segment by two with half of its rows each, in its place; false if that cannot be done.

    In one transaction, and only while no block has it: the rows are in the one file or in the two, and never in both.
    """
    if _could_be_sealed_again(engine, dataset, segment):
        return False
    rows = _read_rows(engine, segment.path)
    if rows is None or rows.num_rows != segment.rows:
        return False
    notes = {ORIGIN: origin_of(engine, segment.path) or CAPTURED}
    middle = segment.rows // 2
    halves = (rows.slice(0, middle), rows.slice(middle))
    written = [write_segment(engine, dataset, half, notes=notes) for half in halves]
    faults.reach("split.written")
    parts = [(part.id, part.content) for part in written]

    def replaced(connection: Connection) -> bool:
        check_unmoved(connection, engine.settings)  # U44
        return records.split(connection, segment.id, parts)

    if not engine.database.transact(replaced, landed=lambda c: _is_at(c, id=parts[0][0], path=parts[0][1].path)):
        for part in written:
            drop_segment(engine, part)
        return False
    faults.reach("split.replaced")
    # Before a part is committed: a restored control database would find this file, and commit its rows again.
    engine.segments.remove([segment.path])
    return True


def _could_be_sealed_again(engine: Engine, dataset: Dataset, segment: Segment) -> bool:
    """Whether the lines that a segment was made of are still in the landing log, and nothing but its id tells that they
    are committed. The parts have other ids: a restored control database would seal the lines again.
    """
    if dataset.identity and dataset.identity_null != datasets.KEEP:
        return False
    file = engine.database.read(lambda c: records.landing_file_of(c, segment.id))
    return file is not None and (engine.root / "spool" / dataset.name / "landing" / f"{file}.jsonl").exists()


def _read_rows(engine: Engine, relative: str) -> pa.Table | None:
    """The user columns of a segment's file; None if it cannot be read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.read_table(engine.segments.path(relative)).drop_columns([CONTENT_ID, SEGMENT])
    except (OSError, KeyError, pa.ArrowException):
        return None


def adopt_segment(
    engine: Engine,
    dataset: Dataset,
    file: SegmentFile,
    *,
    lines: LandingRange | None = None,
    quarantined: Sequence[QuarantineInput] = (),
) -> bool:
    """Register a whole file that has no record; false if another process just did.

    It was registered once, in a time that a restored backup has forgotten: its rows were acknowledged. `lines` are
    those of a landing file that it was made of, if that is still there.
    """
    relative = segment_key(dataset.name, file.name)
    content = _content(dataset, file.rows, file.prefixes, relative=relative, size=file.bytes)

    def work(connection: Connection) -> bool:
        datasets.evolve(connection, dataset.name, file.columns)
        if _is_known(connection, file.id):
            return False
        check_unmoved(connection, engine.settings)  # U44
        now = engine.clock.now()
        records.announce(connection, id=file.id, dataset=dataset.name, path=relative, owner=process_identity(), now=now)
        if lines is not None:
            records.landing_offset(connection, file=lines.file, dataset=dataset.name)
        if not records.register(connection, id=file.id, content=content, lines=lines):
            raise _GivenUp
        quarantine.hold(connection, dataset.name, quarantined, now=now)
        return True

    try:
        return engine.database.transact(work)
    except _GivenUp:
        return False


def _drop(engine: Engine, id: int, relative: str) -> bool:
    """Row first, then file. A file that was registered in the meantime stays: its rows are needed."""
    dropped = engine.database.transact(partial(records.drop, id=id, path=relative))
    if not dropped and engine.database.read(lambda c: _is_at(c, id=id, path=relative)):
        return False
    engine.segments.remove([relative])
    return dropped


def _write(
    engine: Engine, dataset: Dataset, table: pa.Table, *, id: int, relative: str, notes: Mapping[bytes, bytes]
) -> SegmentContent:
    try:
        prefixes = write_rows(dataset, table, engine.segments.draft(relative), id=id, notes=notes)
        size = engine.segments.store(relative)
    except OSError as error:
        engine.segments.discard(relative)
        raise retryable_os_error(error, doing=f"Writing a segment of {dataset.name!r}") from error
    return _content(dataset, table, prefixes, relative=relative, size=size)


def write_rows(
    dataset: Dataset, table: pa.Table, path: Path, *, id: int, notes: Mapping[bytes, bytes] | None = None
) -> list[int]:
    """Write rows in the format of segments, not yet durable; the first 64 bits of each row's content id."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from floodmark.rows.content import content_ids

    origin = pa.repeat(pa.scalar(id, pa.int64()), table.num_rows)
    # Hashed with a system column in it: rows without user columns still count.
    identifiers, prefixes = content_ids(table.append_column(SEGMENT, origin))
    stamped = table.append_column(CONTENT_ID, identifiers).append_column(SEGMENT, origin)
    stamped = stamped.replace_schema_metadata({**certain_notes(dataset, table), **(notes or {})})
    create_private(path)
    pq.write_table(
        stamped,
        path,
        compression="lz4",  # twice the size of zstd's for half the time, of a file that is read once …
        row_group_size=_group_rows(stamped),
        use_dictionary=False,  # … so building dictionaries would cost more than they save
    )
    return prefixes


def _content(dataset: Dataset, table: pa.Table, prefixes: Sequence[int], *, relative: str, size: int) -> SegmentContent:
    from floodmark.rows.content import partition_stats

    event_min, event_max = event_span(table, dataset.event_time)
    return SegmentContent(
        path=relative,
        rows=table.num_rows,
        bytes=size,
        event_min=event_min,
        event_max=event_max,
        partitions=tuple(partition_stats(table, prefixes, dataset.partition_by)),
        unfolded_bytes=table.nbytes,
    )


def drop_dead_writers(engine: Engine, dataset: str) -> int:
    """Give up the segments whose writers died before they registered them. Rows first, then files."""
    dropped = 0
    for id, relative, owner in engine.database.read(lambda c: records.unfinished(c, dataset)):
        if is_certainly_dead(owner):
            dropped += _drop(engine, id, relative)
    return dropped


def remove_leftovers(engine: Engine, dataset: str) -> int:
    """Delete the files of segments that are committed or dropped: their process died before it could."""
    ids = segment_files(engine, dataset)
    # Another host may have committed what this one has a copy of.
    ids |= {name: id for name in engine.segments.copies(dataset) if (id := segment_id(name)) is not None}
    if not ids:
        return 0
    kept = engine.database.read(lambda c: _paths_to_keep(c, sorted(set(ids.values()))))
    gone = [key for name, id in ids.items() if id in kept and kept[id] != (key := segment_key(dataset, name))]
    engine.segments.remove(gone)
    return len(gone)


def _group_rows(table: pa.Table) -> int:
    """How many rows go into one row group: Spark reads thousands of rows at once, but never across groups."""
    return max(1, min(ROW_GROUP_ROWS, int(table.num_rows * ROW_GROUP_BYTES // max(table.nbytes, 1))))


def certain_notes(dataset: Dataset, table: pa.Table) -> dict[bytes, bytes]:
    """What flush would otherwise have to find out by a shuffle."""
    from floodmark.rows.identities import are_distinct, rows_without_identity

    notes = {}
    named = bool(dataset.identity) and not rows_without_identity(_arrays(table), dataset.identity, table.num_rows)
    if named:
        notes[NAMED] = b"1"
    # Rows that go by their content may be twice in it.
    if dataset.identity and (named or not dataset.by_content) and are_distinct(table, dataset.identity):
        notes[DISTINCT] = b"1"
    if dataset.event_time in table.column_names and table[dataset.event_time].null_count == 0:
        notes[TIMED] = b"1"
    return notes


def _arrays(table: pa.Table) -> dict[str, Any]:
    return {name: table[name] for name in table.column_names}


def without_files(engine: Engine, dataset: str, ids: Sequence[int]) -> list[int]:
    """Those of some segments whose files are gone for good, also after a loss of power."""
    there = set(segment_files(engine, dataset).values())
    engine.segments.settle(dataset)  # a file that was removed before may otherwise be back after a loss of power
    return [id for id in ids if id not in there]


def segment_id(name: str) -> int | None:
    """The id that the name of a segment's file says; None for a name that no segment has."""
    match = _NAME.fullmatch(name)
    return None if match is None or int(match[1]) > ID_MAX else int(match[1])


def read_segment_file(engine: Engine, name: str, dataset: Dataset) -> SegmentFile:
    """A segment's file, if it is whole and its rows fit the dataset; `ValueError` says what is wrong with it."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from floodmark.rows.content import content_ids
    from floodmark.rows.fit import fit_table

    id = int(name.partition("-")[0])
    try:
        path = engine.segments.path(segment_key(dataset.name, name))
        stored = pq.read_table(path)
        rows = stored.drop_columns([CONTENT_ID, SEGMENT])
        origin = pa.repeat(pa.scalar(id, pa.int64()), stored.num_rows)
        identifiers, prefixes = content_ids(rows.append_column(SEGMENT, origin))
    except (pa.ArrowException, OSError, KeyError) as error:
        raise ValueError(reason_of(error)) from error
    # The hashes were written with the rows: made again, they prove every value.
    if stored[SEGMENT].to_pylist() != origin.to_pylist() or stored[CONTENT_ID].to_pylist() != identifiers.to_pylist():
        raise ValueError("its rows differ from those that were written")
    try:
        fitted = fit_table(dataset.schema, rows)
    except FloodmarkError as error:
        raise ValueError(error.message) from error
    if fitted.misfits:
        raise ValueError(fitted.misfits[0].reason)
    changes = (*fitted.new_columns, *fitted.widened)
    return SegmentFile(path.name, id, rows, tuple(prefixes), path.stat().st_size, changes)


def stored_columns(engine: Engine, relative: str) -> list[str]:
    """The columns of a segment's file; none if it cannot be read: flush skips such a file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return list(pq.read_schema(engine.segments.path(relative)).names)
    except (OSError, pa.ArrowException):
        return []


def origin_of(engine: Engine, relative: str) -> bytes | None:
    """Whether a file's rows may be sent again, as its note says."""
    return _note(engine, relative, ORIGIN)


def lines_of(engine: Engine, relative: str) -> LandingRange | None:
    """The lines that a file's rows come from, as its note says; None if it does not."""
    match = re.fullmatch(r"([^:]+):([0-9]+):([0-9]+)", (_note(engine, relative, LINES) or b"").decode(errors="replace"))
    return None if match is None else LandingRange(match[1], int(match[2]), int(match[3]))


def _note(engine: Engine, relative: str, name: bytes) -> bytes | None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return dict(pq.read_schema(engine.segments.path(relative)).metadata or {}).get(name)
    except (OSError, pa.ArrowException):
        return None


def _is_known(connection: Connection, id: int) -> bool:
    return connection.execute(select(segments_table.c.id).where(segments_table.c.id == id)).first() is not None


def _paths_to_keep(connection: Connection, ids: list[int]) -> dict[int, str | None]:
    """For each segment the database knows: the file that must stay, or None if none has to.

    A segment of nothing but duplicates leaves no trace in the table. Its file stays until a later block is committed:
    a control database restored from before then finds either the file, or commits that it has forgotten.
    """
    kept: dict[int, str | None] = {}
    for start in range(0, len(ids), 500):
        found = connection.execute(
            select(
                segments_table.c.id,
                segments_table.c.state,
                segments_table.c.path,
                (blocks_table.c.state == "void") & (blocks_table.c.after_seq >= datasets_table.c.horizon),
            )
            .join(datasets_table, datasets_table.c.name == segments_table.c.dataset)
            .outerjoin(blocks_table, blocks_table.c.id == segments_table.c.block)
            .where(segments_table.c.id.in_(ids[start : start + 500]))
        )
        for id, state, path, untraceable in found:
            # A `writing` row's own file may be anybody's who is at work on it: its names are left alone altogether.
            if state != "writing":
                kept[id] = path if state == "sealed" or untraceable else None
    return kept


def _is_at(connection: Connection, *, id: int, path: str) -> bool:
    found = connection.execute(
        select(segments_table.c.path).where(
            segments_table.c.id == id, segments_table.c.state.in_(["sealed", "consumed"])
        )
    ).one_or_none()
    return found is not None and found.path == path


def event_span(table: Any, event_time: str | None) -> tuple[int | None, int | None]:
    """The least and greatest event time, in microseconds; of a batch without any, nothing."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if event_time is None or event_time not in table.column_names:
        return None, None
    column = table[event_time]
    column = column.cast(pa.timestamp("us", tz="UTC")) if pa.types.is_date(column.type) else column
    span = pc.min_max(column.cast(pa.int64()))
    return span["min"].as_py(), span["max"].as_py()
