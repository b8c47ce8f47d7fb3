"""Pending rows: what is captured and not committed yet, read together with what is.

    size the landing files → read the records → copy the spool's files → load the table → leave out what flush would

The instant is the one read of the records. At it every acknowledged row is in exactly one place (I12): in the table up
to the horizon, in a segment that waits, or in a landing file behind its sealed offset. So:

- The landing files are sized first. A line that is counted then is still landed at the instant, or in a segment that is
  registered by then.
- Rows above the horizon of the instant are not read from the table, though the snapshot, which is loaded later, may
  have them. They were committed since, or by a block that is not recorded: they are read from the spool.
- The spool's files are copied before anything is read. A file is removed only after its record has changed (I7, L5), so
  where one is missing, the next read of the records does not have it: the read begins again.

What is left out is what flush would leave out: duplicates of committed rows and of earlier pending ones, rows from
before the event-time cut-off, purged rows, and lines that sealing would quarantine. A settle function is not run.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from floodmark import faults
from floodmark.commit.block import excluded_places
from floodmark.commit.protocol import Append, Base, BlockSegment
from floodmark.control import datasets
from floodmark.control import segments as segment_records
from floodmark.control.datasets import Dataset
from floodmark.control.segments import LandingRange, Segment
from floodmark.engine import Engine
from floodmark.errors import Corrupt, InvalidCursor, Retryable, SchemaConflict, reason_of
from floodmark.files import retryable_os_error
from floodmark.lake.files import only
from floodmark.read import (
    BATCH_ROWS_MAX,
    View,
    known_columns,
    row_windows,
    rows_within,
    view_of,
)
from floodmark.rows.identities import found_among, key_columns, key_rows, repeated
from floodmark.schema import CONTENT_ID, SEGMENT
from floodmark.sequence import SequenceRange
from floodmark.spool.landing import landing_files
from floodmark.spool.sealing import landed_rows, landing_directory, next_lines
from floodmark.spool.segments import event_span, write_rows

if TYPE_CHECKING:
    import pyarrow as pa

ATTEMPTS_MAX = 10
"""How often a read begins again because a flush removed a file before it was copied."""
COMPARED_ROWS_MAX = 5_000_000
"""Of so many pending rows the identities are held in this process."""
KEY_ROWS_MAX = 500_000
"""Of so many committed rows the identities are read at once."""


@dataclass(frozen=True, slots=True)
class Part:
    """Some rows of a read: all of them are committed, or none is."""

    table: pa.Table
    """The rows, without system columns."""
    pending: bool


@dataclass(frozen=True, slots=True)
class PendingView:
    """One instant of a dataset: its committed rows, and copies of what waits."""

    view: View
    """With the horizon of the instant, and also with columns that only landed lines have."""
    waiting: tuple[BlockSegment, ...]
    """In the order in which flush takes them. Rows that flush would leave out are not in them, duplicates are."""

    @property
    def rows(self) -> int:
        return sum(item.rows for item in self.waiting)

    def as_append(self) -> Append:
        """What waits, as one block on the snapshot: a lake compares it with committed rows as it does at a flush.

        The numbers are places, from 1. Nothing is ever sent.
        """
        declared = self.view.dataset
        return Append(
            table=self.view.table,
            block="pending",
            range=SequenceRange(0, self.rows),
            base=Base("", declared.generation, self.view.snapshot),
            segments=self.waiting,
            schema=declared.schema,
            identity=declared.identity,
            event_time=declared.event_time,
            event_span=_hull([item.event_span for item in self.waiting]),
            any_time=declared.identity_scope == datasets.ALL,
            by_content=declared.by_content,
        )


def refuse_cursors(*cursors: object) -> None:
    """`InvalidCursor` if a read of pending rows is given one."""
    if any(cursor is not None for cursor in cursors):
        raise InvalidCursor(
            "A read with pending rows takes no cursor: they have no sequence numbers yet.",
            hint="Read without `since` and `until`, or without `pending`.",
        )


def read_with_pending(
    engine: Engine,
    dataset: str,
    *,
    partition: str | Mapping[str, Any] | None = None,
    columns: Sequence[str] | None = None,
) -> Generator[Part]:
    """The committed rows in sequence order, then those that wait: sealed ones, then landed ones, in capture order."""
    with pending_view(engine, dataset) as seen:
        view = seen.view
        _, values = view.dataset.slice(partition)
        wanted = known_columns(view.dataset, columns)
        for window in row_windows(engine, dataset, SequenceRange(0, view.horizon)):
            for rows in rows_within(engine, view, window, None if columns is None else wanted, values):
                yield Part(view.dataset.schema.typed(rows, wanted), pending=False)
        lost = _duplicates(engine, seen)
        for rows in _waiting_rows(seen, wanted, values or {}, lost):
            yield Part(rows, pending=True)


# ── the instant ──────────────────────────────────────────────────────────────────────────────────────────────────────


@contextlib.contextmanager
def pending_view(engine: Engine, dataset: str) -> Iterator[PendingView]:
    """One instant of a dataset. The copies are removed at the end of the block."""
    engine.database.read(lambda c: datasets.get(c, dataset))  # before its name becomes a path
    with contextlib.ExitStack() as stack:
        try:
            home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="floodmark-pending-")))
            seen = _instant(engine, dataset, home)
        except OSError as error:
            raise retryable_os_error(error, doing=f"Copying the pending rows of {dataset!r}") from error
        yield seen


def _instant(engine: Engine, dataset: str, home: Path) -> PendingView:
    cause: Exception | None = None
    for attempt in range(ATTEMPTS_MAX):
        directory = home / str(attempt)
        directory.mkdir()
        try:
            declared, copies = _pinned(engine, dataset, directory)
            faults.reach("pending.copied")
            view = at_the_instant(view_of(engine, dataset), declared)
        except (FileNotFoundError, SchemaConflict) as error:  # a flush was first, or a writer with another type
            cause = error
            shutil.rmtree(directory)
            continue
        faults.reach("pending.loaded")
        # Read after the snapshot: a purge in between has removed the committed row that hid its pending duplicate.
        current = engine.database.read(lambda c: datasets.get(c, dataset))
        return PendingView(view, _placed([_without_excluded(engine, current, item) for item in copies]))
    raise Retryable(
        f"The pending rows of {dataset!r} could not be read: files of the spool were removed {ATTEMPTS_MAX} times "
        f"while they were copied ({reason_of(cause) if cause else 'unknown'}).",
        hint="Run it again. If it fails while nothing is flushed, run `floodmark fsck`.",
    ) from cause


def at_the_instant(view: View, declared: Dataset) -> View:
    """I12: a view up to the horizon of the instant, with all columns of both. What was committed since is read from the
    spool: up to the newer horizon it would be read twice.
    """
    schema = view.dataset.schema.merge(declared.schema)
    return replace(view, dataset=replace(view.dataset, schema=schema, horizon=declared.horizon))


def _pinned(engine: Engine, dataset: str, directory: Path) -> tuple[Dataset, list[BlockSegment]]:
    """The dataset at the instant, with the columns that landed lines add, and copies of all rows that wait."""
    sizes = landed_sizes(engine, dataset)
    faults.reach("pending.sized")
    declared, sealed, offsets = waiting_records(engine, dataset, [path.stem for path, _ in sizes])
    faults.reach("pending.pinned")
    # The segments of an undecided block have the lowest numbers that are still to come.
    sealed.sort(key=lambda item: (item.block is None, item.registered))
    copies = [_copied_segment(engine, item, directory) for item in sealed]
    for path, size in sizes:
        start = offsets.get(path.stem, 0)
        if start is not None and start < size:
            declared, landed = _copied_lines(engine, declared, path, directory, start=start, size=size)
            copies += landed
    return declared, copies


def landed_sizes(engine: Engine, dataset: str) -> list[tuple[Path, int]]:
    """I12: taken before the records are read. A file that is sealed and removed in between would be in neither."""
    found = []
    for path in landing_files(landing_directory(engine, dataset)):
        with contextlib.suppress(FileNotFoundError):  # sealed to its end: its rows are in segments
            found.append((path, path.stat().st_size))
    return found


def waiting_records(
    engine: Engine, dataset: str, landed: Sequence[str]
) -> tuple[Dataset, list[Segment], dict[str, int | None]]:
    """The instant: the dataset with its horizon, the segments that wait, and how far each landing file is sealed."""
    return engine.database.read(
        lambda c: (
            datasets.get(c, dataset),
            segment_records.sealed(c, dataset),
            segment_records.sealed_offsets(c, landed),
        )
    )


def _copied_segment(engine: Engine, segment: Segment, directory: Path) -> BlockSegment:
    path, copy = engine.segments.path(segment.path), directory / f"{segment.id}.parquet"
    try:
        os.link(path, copy)  # a second name is enough: the file never changes
    except FileNotFoundError:
        raise
    except OSError:  # another file system, or not allowed
        shutil.copyfile(path, copy)
    size = copy.stat().st_size
    if size != segment.bytes:
        raise _damaged(segment.id, f"its file has {size:,} bytes instead of {segment.bytes:,}")
    known = segment.event_min is not None and segment.event_max is not None
    span = (segment.event_min or 0, segment.event_max or 0) if known else None
    return BlockSegment(segment.id, str(copy), segment.rows, 0, span)


def _copied_lines(
    engine: Engine, declared: Dataset, path: Path, directory: Path, *, start: int, size: int
) -> tuple[Dataset, list[BlockSegment]]:
    """The whole lines of a landing file as segments are written: bounded parts, as sealing takes them."""
    copies: list[BlockSegment] = []
    descriptor = os.open(path, os.O_RDONLY)
    try:
        # L4: an incomplete last line is no row, or not yet.
        while content := next_lines(descriptor, start=start, size=size, writer_gone=False):
            id = segment_records.landing_segment_id(LandingRange(path.stem, start, start + len(content)))
            start += len(content)
            declared, rows = landed_rows(declared, engine.settings.spool, content)
            if rows is not None and rows.num_rows:
                copy = directory / f"{id}.parquet"
                write_rows(declared, rows, copy, id=id)
                low, high = event_span(rows, declared.event_time)
                span = None if low is None or high is None else (low, high)
                copies.append(BlockSegment(id, str(copy), rows.num_rows, 0, span))
    finally:
        os.close(descriptor)
    return declared, copies


def _without_excluded(engine: Engine, declared: Dataset, copy: BlockSegment) -> BlockSegment:
    import pyarrow as pa
    import pyarrow.parquet as pq

    gone = set(excluded_places(engine.database, Path(copy.path), declared))
    if not gone:
        return copy
    with _opened(copy) as file:
        rows = file.read()
    kept = rows.filter(pa.array([place not in gone for place in range(copy.rows)], pa.bool_()))
    path = f"{copy.path}.kept"  # not over the copy: it may be the segment's own file by another name
    pq.write_table(kept, path)
    return replace(copy, path=path, rows=kept.num_rows)


def _placed(copies: Sequence[BlockSegment]) -> tuple[BlockSegment, ...]:
    """One after the other, without those that have no row left."""
    placed: list[BlockSegment] = []
    offset = 0
    for item in copies:
        if item.rows:
            placed.append(replace(item, offset=offset))
            offset += item.rows
    return tuple(placed)


# ── the rows ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _waiting_rows(
    seen: PendingView, wanted: tuple[str, ...], values: Mapping[str, Any], lost: set[int]
) -> Iterator[pa.Table]:
    """The pending rows with these partition values, without the `lost` ones."""
    import pyarrow as pa

    dataset = seen.view.dataset
    names = tuple(dict.fromkeys([*wanted, *values]))
    for number, batch in _batches(seen, names):
        numbers = range(number, number + batch.num_rows)
        kept = pa.array([one not in lost for one in numbers], pa.bool_()) if not lost.isdisjoint(numbers) else None
        rows = only(dataset.schema.typed(batch if kept is None else batch.filter(kept), names), values)
        if rows.num_rows:
            yield rows.select(list(wanted))


def _duplicates(engine: Engine, seen: PendingView) -> set[int]:
    """The places of pending rows that are committed, or pending before: by the rule of flush, without a job."""
    import pyarrow as pa
    import pyarrow.compute as pc

    dataset = seen.view.dataset
    if not dataset.identity or not seen.rows:
        return set()
    if seen.rows > COMPARED_ROWS_MAX:
        raise Retryable(
            f"{seen.rows:,} rows of {dataset.name!r} are pending: too many to find duplicates among them here.",
            hint="Run `floodmark flush` first, or use `floodmark sql --pending`, which has no such limit.",
        )
    by_content = dataset.by_content
    columns = (*key_columns(dataset), *([CONTENT_ID] if by_content else []))
    ours = pa.concat_tables([key_rows(rows, dataset, by_content=by_content) for _, rows in _batches(seen, columns)])
    committed = (
        key_rows(rows, dataset, by_content=by_content)
        for window in row_windows(engine, dataset.name, SequenceRange(0, seen.view.horizon), rows_max=KEY_ROWS_MAX)
        for rows in rows_within(engine, seen.view, window, columns)
    )
    lost = repeated(ours, dataset, by_content=by_content)
    lost = pc.or_(lost, found_among(ours, committed, dataset, by_content=by_content))
    return {1 + place for place in pc.indices_nonzero(lost).to_pylist()}


def _batches(seen: PendingView, columns: Sequence[str]) -> Iterator[tuple[int, pa.Table]]:
    """All pending rows in order, with the columns that a file has; each batch with the place of its first row."""
    import pyarrow as pa

    for item in seen.waiting:
        number = 1 + item.offset
        with _opened(item) as file:
            present = set(file.schema_arrow.names)
            # The segment's id too: a batch without columns would not say how many rows it has.
            names = [*(name for name in columns if name in present), SEGMENT]
            for batch in file.iter_batches(BATCH_ROWS_MAX, columns=names, use_threads=True):
                yield number, pa.Table.from_batches([batch])
                number += batch.num_rows


@contextlib.contextmanager
def _opened(copy: BlockSegment) -> Iterator[Any]:
    """A copy as a Parquet file; `Corrupt` if it is not what was registered."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(copy.path)
    except (OSError, pa.ArrowException) as error:
        raise _damaged(copy.id, reason_of(error)) from error
    with file:
        if file.metadata.num_rows != copy.rows:
            raise _damaged(copy.id, f"it has {file.metadata.num_rows} rows instead of {copy.rows}")
        yield file


def _damaged(segment: int, reason: str) -> Corrupt:
    return Corrupt(
        f"Segment {segment}, which waits to be committed, cannot be read: {reason}.",
        hint="Run `floodmark fsck`. Committed rows can be read without pending ones.",
    )


def _hull(spans: Sequence[tuple[int, int] | None]) -> tuple[int, int] | None:
    known = [span for span in spans if span is not None]
    return (min(low for low, _ in known), max(high for _, high in known)) if known else None
