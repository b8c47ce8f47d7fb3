"""Tables in memory: immutable files, and the snapshots that reach them.

As in a real table nothing is ever changed in place: a commit is a new list of files, and the head moves to it. Whoever
commits holds the lock, from the look at the head that it decides on.
"""

from __future__ import annotations

import hashlib
import itertools
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from floodmark.clock import Clock, SystemClock
from floodmark.commit.protocol import Append, Snapshot
from floodmark.errors import FilesMissing, Retryable
from floodmark.lake.queries import FILE, Checksum, Group
from floodmark.lake.stored import FileKeys
from floodmark.lake.table import AppendRefused
from floodmark.layout import Layout
from floodmark.removal import Selection, Spared
from floodmark.schema import CONTENT_ID, SEQ, Schema, partition_key
from floodmark.sequence import SequenceRange, Tally
from floodmark.settlement import Resettling
from floodmark.testing.memory.conditions import kept_by_sqlite


@dataclass(slots=True)
class MemoryTable:
    """One table. Its files are known by their numbers."""

    uuid: str
    schema: Schema
    snapshots: dict[int, Snapshot] = field(default_factory=dict)
    files: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """For each snapshot the data files it reaches."""
    head: int | None = None
    max_seq: int = 0
    layout: Layout = field(default_factory=Layout)
    location: str = ""
    declaration: str | None = None
    manifests: int = 0
    """How many lists of files a reader of the head would have to go through."""

    @property
    def head_files(self) -> tuple[int, ...]:
        return self.files.get(self.head or 0, ())

    def lineage(self) -> Iterator[Snapshot]:
        """The head and what came before it, as far as it has not expired."""
        id = self.head
        while id is not None and id in self.snapshots:
            yield self.snapshots[id]
            id = self.snapshots[id].parent


Table = TypeVar("Table", bound=MemoryTable)


@dataclass(slots=True)
class MemoryTables(Generic[Table]):
    """Tables, and the disk that their files are on."""

    tables: dict[str, Table] = field(default_factory=dict)
    data: dict[int, pa.Table] = field(default_factory=dict)
    durable: set[int] = field(default_factory=set)
    """The files that a `sync` has covered: what is left after a power loss."""
    born: dict[int, datetime] = field(default_factory=dict)
    """When each file was made."""
    clock: Clock = field(default_factory=SystemClock)
    """Says when commits and files were made."""
    rows_read: int = 0
    files_read: int = 0
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    """The names of files and snapshots to come."""
    lock: threading.RLock = field(default_factory=threading.RLock)

    # ── looking ──────────────────────────────────────────────────────────────────────────────────────────────────

    def table(self, name: str) -> Table:
        """A table; `Retryable` if it is gone."""
        if name not in self.tables:
            raise Retryable(f"There is no table {name!r} any more.", hint="Do it again.")
        return self.tables[name]

    def width_of(self, table: str) -> int:
        """How many numbers share files."""
        return self.table(table).layout.bucket_width

    def files_of(self, table: str, snapshot: int) -> tuple[int, ...]:
        """The data files that a snapshot reaches; `Retryable` if it has expired."""
        if snapshot not in self.table(table).snapshots:
            raise Retryable(f"A snapshot of {table!r} expired while it was read.", hint="Do it again.")
        return self.tables[table].files[snapshot]

    def reached(self) -> set[int]:
        """The files that a snapshot of any table reaches."""
        return {file for table in self.tables.values() for id in table.snapshots for file in table.files[id]}

    def read(self, file: int) -> pa.Table:
        """The rows of a file."""
        if file not in self.data:
            raise FilesMissing(f"Data file {file} is missing.")
        return self.data[file]

    def parts(self, table: str, snapshot: int, within: SequenceRange, *, named: bool = False) -> Iterator[pa.Table]:
        """The rows of a range, file by file as they lie there, `named` with the file. What is read is counted."""
        with self.lock:
            files = [(file, self.data.get(file)) for file in self.files_of(table, snapshot)]
        for file, part in files:
            if part is None:
                raise FilesMissing(f"A data file of {table!r} is missing.")
            span = pc.min_max(part[SEQ])
            if span["max"].as_py() <= within.after or span["min"].as_py() > within.through:
                continue
            self.files_read += 1
            self.rows_read += part.num_rows
            rows = inside(part, within)
            yield rows.append_column(FILE, pa.array([f"memory:{file}"] * rows.num_rows)) if named else rows

    # ── writing ──────────────────────────────────────────────────────────────────────────────────────────────────

    def store(self, rows: pa.Table) -> int:
        """Write a file that nothing refers to yet."""
        file = next(self.numbers)
        self.data[file] = rows
        self.born[file] = self.clock.now()
        return file

    def store_by_bucket(self, table: str, rows: pa.Table) -> tuple[int, ...]:
        """Write rows as an append does: a file for each bucket."""
        if rows.num_rows == 0:
            return ()
        places = pc.divide(rows[SEQ], self.width_of(table))
        parts = [rows.filter(pc.equal(places, place)) for place in sorted(set(places.to_pylist()))]
        return tuple(self.store(part) for part in parts)

    def pruned(self, table: MemoryTable, left: Callable[[pa.Table], pa.Table]) -> tuple[tuple[int, ...], int]:
        """The head's files with what is `left` of each, and how many of them were written anew for that."""
        kept, written = [], 0
        for file in table.head_files:
            part = self.data[file]
            rest = left(part)
            if rest.num_rows == part.num_rows:
                kept.append(file)
            elif rest.num_rows:
                kept.append(self.store(rest))
                written += 1
        return tuple(kept), written

    def commit(
        self,
        table: MemoryTable,
        *,
        operation: str,
        files: tuple[int, ...],
        added_rows: int,
        added_files: int = 1,
        block: str | None = None,
        through: int | None = None,
        dropped: int = 0,
        settled: bool = False,
        change: str | None = None,
        segments: frozenset[int] = frozenset(),
        barrier: str | None = None,
    ) -> Snapshot:
        """Make these files the table's."""
        id = next(self.numbers)
        made = table.snapshots[id] = Snapshot(
            id=id,
            parent=table.head,
            operation=operation,
            added_files=added_files,
            added_rows=added_rows,
            block=block,
            through=through,
            dropped=dropped,
            settled=settled,
            change=change,
            segments=segments,
            barrier=barrier,
            at=self.clock.now(),
        )
        table.files[id] = files
        table.head = id
        table.manifests += 1
        return made

    def lose_power(self) -> None:
        """Forget every file that no `sync` has covered."""
        self.data = {file: part for file, part in self.data.items() if file in self.durable}


# ── requests ─────────────────────────────────────────────────────────────────────────────────────────────────────────
# A test says what becomes of each, as a network would:
#
# land          it arrives, and so does its answer
# lose_answer   it arrives, and its client sees an error
# hold          it is under way; it arrives when its client has given up, if it is let
# drop          it never arrives


Request = TypeVar("Request")


class AnswerLost(Exception):
    """What a client sees when the answer never came: the request may have landed."""


def send(
    fate: str,
    what: str,
    *,
    land: Callable[[], None],
    hold: Callable[[], None],
    lost: type[AnswerLost] = AnswerLost,
) -> None:
    """Let a request meet its fate; `AnswerLost` if its client hears nothing."""
    if fate == "hold":
        hold()
    if fate in ("hold", "drop"):
        raise lost(f"no answer to {what}")
    land()
    if fate == "lose_answer":
        raise lost(f"no answer to {what}")


def arrive(held: Iterable[tuple[Request, pa.Table]], land: Callable[[Request, pa.Table], None]) -> list[bool]:
    """Let the requests under way arrive; for each, whether it landed."""
    landed = []
    for request, rows in held:
        try:
            land(request, rows)
            landed.append(True)
        except AppendRefused:
            landed.append(False)
    return landed


# ── rows ─────────────────────────────────────────────────────────────────────────────────────────────────────────────
# Rows in memory: read, selected, counted, stamped and compared. Arrow tables in, Arrow tables out.


Key = tuple[Any, ...] | None
_NO_ROWS = pa.table({SEQ: pa.array([], pa.int64())})


def in_order(parts: Iterable[pa.Table]) -> pa.Table:
    """Files of different ages as one table: columns that came later are null before, narrower types are widened."""
    return pa.concat_tables(list(parts) or [_NO_ROWS], promote_options="permissive").sort_by(SEQ)


def inside(rows: pa.Table, within: SequenceRange) -> pa.Table:
    return rows.filter(pc.and_(pc.greater(rows[SEQ], within.after), pc.less_equal(rows[SEQ], within.through)))


def with_values(rows: pa.Table, values: Mapping[str, Any]) -> pa.Table:
    """The rows with these column values; a frozenset stands for any of its own."""
    for name, value in values.items():
        if name not in rows.column_names:
            rows = rows if value is None else rows.slice(0, 0)
        elif isinstance(value, frozenset):
            rows = rows.filter(pc.is_in(rows[name], pa.array(sorted(value), rows[name].type)))
        elif value is None:
            rows = rows.filter(pc.is_null(rows[name]))
        else:
            rows = rows.filter(pc.equal(rows[name], pa.scalar(value, rows[name].type)))
    return rows


def without(rows: pa.Table, numbers: Iterable[int]) -> pa.Table:
    return rows.filter(pc.invert(_numbered(rows, numbers)))


def only(rows: pa.Table, numbers: Iterable[int]) -> pa.Table:
    return rows.filter(_numbered(rows, numbers))


def _numbered(rows: pa.Table, numbers: Iterable[int]) -> Any:
    return pc.is_in(rows[SEQ], pa.array(sorted(numbers), pa.int64()))


# ── the rows that a selection names ──────────────────────────────────────────────────────────────────────────────────


def selected_numbers(
    rows: pa.Table, selection: Selection, *, columns: Iterable[str], partition_by: Sequence[str]
) -> set[int]:
    """The sequence numbers of the rows that a selection names; `columns` are those that its condition may use."""
    rows = inside(rows, selection.range)
    if selection.before is not None:
        rows = _before(rows, selection.event_time or "", selection.before)
    if selection.numbers is not None:
        rows = only(rows, selection.numbers)
    rows = without(rows, selection.without)
    if selection.where is not None:
        rows = kept_by_sqlite(rows, selection.where, set(columns))
    return set(rows[SEQ].to_pylist()) - spared_numbers(rows, selection.spared, partition_by)


def spared_numbers(rows: pa.Table, spared: Sequence[Spared], partition_by: Sequence[str]) -> set[int]:
    """The sequence numbers of rows that stay, whatever else is said of them."""
    ranges = {item.partition: item.ranges for item in spared}
    return {
        row[SEQ]
        for row in (rows.to_pylist() if ranges else ())
        if any(
            row[SEQ] in one for one in ranges.get(partition_key(partition_by, [row.get(n) for n in partition_by]), ())
        )
    }


def _before(rows: pa.Table, event_time: str, cutoff: int) -> pa.Table:
    if event_time not in rows.column_names:
        return rows.slice(0, 0)
    times = rows[event_time]
    times = times.cast(pa.timestamp("us", tz="UTC")) if pa.types.is_date(times.type) else times
    return rows.filter(pc.fill_null(pc.less(times.cast(pa.int64()), cutoff), fill_value=False))


def grouped(
    rows: pa.Table, *, by: Sequence[str], cuts: Sequence[int], width: int | None, checksum: Checksum
) -> list[Group]:
    """Rows counted apart, as the contract has it."""
    found: dict[tuple[Any, ...], Group] = {}
    for row in rows.to_pylist():
        seq = row[SEQ]
        place = bisect_left(cuts, seq) if width is None else seq // width
        key = tuple(row.get(name) for name in by)
        old = found.get((place, *key), Group(key, place, Tally(), seq, seq))
        tally = old.tally + Tally(1, _checksum(row, checksum))
        found[place, *key] = Group(key, place, tally, min(old.first_seq, seq), max(old.last_seq, seq))
    return list(found.values())


def _checksum(row: dict[str, Any], kind: Checksum) -> int:
    match kind:
        case Checksum.NONE:
            return 0
        case Checksum.CONTENT:
            return int(row[CONTENT_ID][:16], 16)
        case Checksum.ROW:  # a value that is not there is null
            whole = repr(sorted((name, value) for name, value in row.items() if value is not None))
            return int.from_bytes(hashlib.blake2b(whole.encode(), digest_size=8).digest())


# ── what an append brings ────────────────────────────────────────────────────────────────────────────────────────────


def stamped(request: Append) -> pa.Table:
    """The rows of a block with their numbers, without those from before the cut-off and those that were purged."""
    parts = []
    for segment in request.segments:
        try:
            with pq.ParquetFile(segment.path) as file:
                part = file.read(use_threads=False)
        except FileNotFoundError as error:
            raise Retryable(f"Segment {segment.id} cannot be read: {error}.") from error
        if part.num_rows != segment.rows:
            raise Retryable(f"Segment {segment.id} has {part.num_rows} rows, not {segment.rows}.")
        start = request.range.after + 1 + segment.offset
        parts.append(part.append_column(SEQ, pa.array(range(start, start + segment.rows), pa.int64())))
    gone = set(request.purged)
    if request.event_cutoff is not None:
        old = Selection(request.range.through, event_time=request.event_time, before=request.event_cutoff)
        gone |= {seq for part in parts for seq in selected_numbers(part, old, columns=(), partition_by=())}
    return without(pa.concat_tables(parts, promote_options="permissive"), gone)


def keys_of(request: Append | FileKeys | Resettling, rows: pa.Table) -> Iterator[Key]:
    """The deduplication key of each row: the first identity that is complete, with the event time."""
    for row in rows.to_pylist():
        when = row.get(request.key_time) if request.key_time else None
        for rank, identity in enumerate(request.identity):
            values = tuple(row.get(name) for name in identity)
            if None not in values:
                yield (rank, values, when)
                break
        else:
            yield (len(request.identity), (row[CONTENT_ID],), when) if request.by_content else None  # B10


def first_of_each(request: Append, rows: pa.Table, seen: set[Key]) -> pa.Table:
    """The rows whose keys were not seen before, not even in another of these rows."""
    kept = []
    for index, key in enumerate(keys_of(request, rows)):
        if key is None or key not in seen:
            kept.append(index)
            seen.add(key)
    return rows.take(pa.array(kept, pa.int64()))
