"""A lake in memory: the same contract as the real one, without a JVM, and with a hand on everything that can go wrong.

It is public (`floodmark.testing`) so that applications can test against it. Tests hold a request back
and let it land after its client has given up, lose answers, compact, delete, expire and recreate tables.
"""

from __future__ import annotations

import itertools
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from floodmark.clock import Clock, SystemClock
from floodmark.commit import Append, PartitionFigures, Snapshot, TableState
from floodmark.compaction import Bucket
from floodmark.errors import FilesMissing, Retryable
from floodmark.lake.filters import kept_by_sqlite
from floodmark.lake.generations import Copy
from floodmark.lake.inspection import FileReport, StoredRow
from floodmark.lake.maintenance import Orphan, highest_known, kept_snapshots
from floodmark.lake.memory_generations import copied, land_copy, outside, renamed, tallies_of
from floodmark.lake.memory_inspection import find_in_memory, inspect_memory
from floodmark.lake.memory_maintenance import buckets_in_memory, by_bucket, orphans_in_memory, rewritten
from floodmark.lake.memory_removals import doomed_numbers, figures_between, only, without
from floodmark.lake.memory_settling import resettle_in_memory
from floodmark.lake.memory_targets import MemoryTarget, MemoryTargets
from floodmark.lake.settling import problem_of, settled_table
from floodmark.lake.stored import FileKeys, stored_in_memory
from floodmark.lake.table import PLAIN, AppendRefused, Work
from floodmark.lake.targets import TargetName
from floodmark.lake.tasks import RangeWork
from floodmark.layout import Layout
from floodmark.removal import Selection
from floodmark.schema import CONTENT_ID, SEGMENT, SEQ, Schema, partition_key
from floodmark.sequence import SequenceRange, Tally
from floodmark.settlement import Resettled, Resettling


class AnswerLost(Exception):
    """What a client sees when the answer never came: the request may have landed."""


@dataclass(slots=True)
class _Table:
    uuid: str
    schema: Schema
    snapshots: dict[int, Snapshot] = field(default_factory=dict)
    files: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """For each snapshot the data files it reaches."""
    head: int | None = None
    max_seq: int = 0
    layout: Layout = field(default_factory=Layout)
    location: str = ""
    manifests: int = 0
    """How many lists of files a reader of the head would have to go through."""


@dataclass(slots=True)
class MemoryLake:
    """Tables as lists of immutable files, with snapshots. Share one between stores as they would share a disk."""

    tables: dict[str, _Table] = field(default_factory=dict)
    data: dict[int, pa.Table] = field(default_factory=dict)
    durable: set[int] = field(default_factory=set)
    """The files that a `sync` has covered: what is left after a power loss."""
    held: list[tuple[Append, pa.Table]] = field(default_factory=list)
    """Requests that are under way and have not arrived. Their files are written: they need no segment any more."""
    on_append: Callable[[Append], str] | None = None
    """Decides what becomes of a request: `land`, `lose_answer` (lands, client sees an error), `hold`, `drop`."""
    held_copies: list[tuple[Copy, pa.Table]] = field(default_factory=list)
    on_copy: Callable[[Copy], str] | None = None
    """The same for a rebuild's copies."""
    on_rewrite: Callable[[SequenceRange], None] | None = None
    """Called before a range's files are rewritten: it may raise."""
    clock: Clock = field(default_factory=SystemClock)
    """Says when commits and files were made."""
    born: dict[int, datetime] = field(default_factory=dict)
    """When each file was made."""
    tasks: int = 2
    """Into how many tasks the ranges of `each_range` are dealt: a range that fails stops its own task only."""
    targets: MemoryTargets = field(default_factory=MemoryTargets)
    """Other people's catalogs: what table sinks deliver to."""
    jobs: int = 0
    """Always 0: there is no engine."""
    rows_read: int = 0
    files_read: int = 0
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    _lock: threading.RLock = field(default_factory=threading.RLock)

    # ── the contract ─────────────────────────────────────────────────────────────────────────────────────────────

    def load(self, table: str) -> TableState | None:
        with self._lock:
            found = self.tables.get(table)
            if found is None:
                return None
            return TableState(
                name=table,
                uuid=found.uuid,
                lineage=tuple(self._lineage(found)),
                columns=tuple((column.name, column.type) for column in found.schema.columns),
                max_seq=found.max_seq,
            )

    def ensure(self, table: str, schema: Schema, *, layout: Layout = PLAIN, create: bool = True) -> None:
        with self._lock:
            if table not in self.tables:
                if not create:
                    return
                home = f"{layout.warehouse or 'memory:'}/{table}"
                self.tables[table] = _Table(uuid=str(uuid.uuid4()), schema=schema, layout=layout, location=home)
            found = self.tables[table]
            found.schema = found.schema.merge(schema.columns)

    def append(self, request: Append) -> bool:
        rows = self._stamped(request)
        if rows.num_rows == 0:
            return False
        fate = self.on_append(request) if self.on_append else "land"
        if fate == "hold":
            self.held.append((request, rows))
        if fate in ("hold", "drop"):
            raise AnswerLost(f"no answer to the append of {request.range}")
        self._swap(request, rows)
        if fate == "lose_answer":
            raise AnswerLost(f"no answer to the append of {request.range}")
        return True

    def has_rows(self, table: str, *, snapshot: int, within: SequenceRange) -> bool:
        return any(part.num_rows for part in self._parts(table, snapshot, within))

    def figures(
        self,
        table: str,
        *,
        snapshot: int,
        within: SequenceRange,
        partition_by: tuple[str, ...],
        where: dict[str, Any] | None = None,
        keep: str | None = None,
    ) -> list[PartitionFigures]:
        result: dict[str, PartitionFigures] = {}
        for part in self.scan(table, snapshot=snapshot, within=within, where=where, keep=keep):
            for row in part.to_pylist():
                key = partition_key(partition_by, [row.get(name) for name in partition_by])
                new = PartitionFigures(key, Tally(1, int(row[CONTENT_ID][:16], 16)), row[SEQ], row[SEQ])
                old = result.get(key, replace(new, tally=Tally()))
                result[key] = PartitionFigures(
                    key, old.tally + new.tally, min(old.first_seq, new.first_seq), max(old.last_seq, new.last_seq)
                )
        return [result[key] for key in sorted(result)]

    def highest_seq(self, state: TableState) -> int:
        known = next((snapshot.through for snapshot in state.lineage if snapshot.through is not None), None)
        if known is None and state.head is not None:
            parts = self._parts(state.name, state.head, SequenceRange(0, 2**63 - 2))
            known = max((pc.max(part[SEQ]).as_py() for part in parts if part.num_rows), default=0)
        return max(known or 0, state.max_seq)

    def segments_above(self, table: str, *, snapshot: int, after: int) -> set[int]:
        parts = self._parts(table, snapshot, SequenceRange(after, 2**63 - 2))
        return {value for part in parts for value in part[SEGMENT].to_pylist()}

    def segment_rows(self, table: str, *, snapshot: int, within: SequenceRange) -> dict[int, int]:
        parts = self._parts(table, snapshot, within)
        return dict(Counter(value for part in parts for value in part[SEGMENT].to_pylist()))

    def resettle(self, request: Resettling) -> Resettled:
        rows = self._selected(request.table, request.snapshot, SequenceRange(0, request.horizon), None, None)

        def put(settled: pa.Table) -> None:
            with self._lock:
                state, found = self.load(request.table), self.tables[request.table]
                since = state.since(request.snapshot) if state else None
                if since is None or any(snapshot.brought_rows for snapshot in since):
                    raise Retryable("Rows were appended meanwhile.")
                files = (self.store(settled),) if settled.num_rows else ()
                self._commit(
                    found, operation="overwrite", files=files, added_rows=0, added_files=len(files), settled=True
                )

        return resettle_in_memory(request, rows, keys_of=lambda table: list(_keys(request, table)), put=put)

    def stored_rows(self, table: str, *, snapshot: int, keys: FileKeys) -> dict[Path, bytes]:
        committed = self._parts(table, snapshot, SequenceRange(0, 2**63 - 2))
        seen = {key for part in committed for key in _keys(keys, part)}
        return stored_in_memory(seen, keys, lambda rows: _keys(keys, rows))

    def sync(self, state: TableState, *, since: int | None) -> None:  # noqa: ARG002 - all of it is cheap here
        with self._lock:
            if state.head is None:
                return
            for file in self.files_of(state.name, state.head):
                if file not in self.data:
                    raise FilesMissing(f"Data file {file} of {state.name!r} is missing.")
                self.durable.add(file)

    def go_back(self, table: str, *, durable: int | None, droppable: Callable[[Snapshot], bool]) -> bool:
        with self._lock:
            found, state = self.tables[table], self.load(table)
            lineage = () if state is None else state.lineage
            synced = set(found.files.get(durable or 0, ()))
            for back in range(len(lineage) + 1):
                before = lineage[back:]
                if state is None or replace(state, lineage=before).since(durable) is None:
                    return False
                if not before or self.data.keys() >= set(found.files[before[0].id]) - synced:
                    found.head = before[0].id if before else None
                    for snapshot in lineage[:back]:
                        found.snapshots.pop(snapshot.id)
                    return True
                if not droppable(before[0]):
                    return False
            return False

    def scan(
        self,
        table: str,
        *,
        snapshot: int,
        within: SequenceRange,
        columns: tuple[str, ...] | None = None,
        where: dict[str, Any] | None = None,
        keep: str | None = None,
    ) -> Iterator[pa.Table]:
        rows = self._selected(table, snapshot, within, where, keep)
        if rows.num_rows:
            yield rows if columns is None else rows.select([*columns, SEQ])

    def check_filter(self, table: str, expression: str) -> None:
        found = self.tables.get(table)
        if found is not None:
            kept_by_sqlite(found.schema.arrow().empty_table(), expression, found.schema.names)

    def each_range(
        self,
        table: str,
        *,
        snapshot: int,
        ranges: Sequence[SequenceRange],
        columns: tuple[str, ...],
        schema: Schema,
        work: Work,
        where: dict[str, Any] | None = None,
        keep: str | None = None,
    ) -> Iterator[tuple[SequenceRange, Tally, dict[str, Any]]]:
        job = RangeWork(tuple(ranges), columns, schema, work)
        outcomes = [
            outcome
            for places in job.dealt([1] * len(ranges), tasks=self.tasks)
            for outcome in job.each(places, lambda within: self._selected(table, snapshot, within, where, keep, schema))
        ]
        yield from job.told(outcomes)

    def find_rows(
        self, table: str, *, snapshot: int, where: Mapping[str, Any], columns: tuple[str, ...] = (), rows_max: int = 100
    ) -> list[StoredRow]:
        return find_in_memory(self, table, snapshot=snapshot, where=where, columns=columns, rows_max=rows_max)

    def inspect_files(self, state: TableState) -> FileReport:
        return inspect_memory(self, state)

    def doomed(
        self,
        table: str,
        *,
        snapshot: int,
        selection: Selection,
        schema: Schema,
        partition_by: tuple[str, ...],
        cuts: Sequence[int] = (),
    ) -> list[tuple[SequenceRange, PartitionFigures]]:
        rows = self._selected(table, snapshot, SequenceRange(0, selection.through), None, None)
        gone = doomed_numbers(rows, selection, schema=schema, partition_by=partition_by)
        return figures_between(only(rows, gone), cuts, through=selection.through, partition_by=partition_by)

    def remove(self, table: str, *, selection: Selection, schema: Schema, partition_by: tuple[str, ...]) -> None:
        with self._lock:
            found = self._table(table)
            kept, rewritten = [], 0
            for file in found.files.get(found.head or 0, ()):
                part = self.data[file]
                left = without(part, doomed_numbers(part, selection, schema=schema, partition_by=partition_by))
                if left.num_rows == part.num_rows:
                    kept.append(file)
                elif left.num_rows:
                    kept.append(self.store(left))
                    rewritten += 1
            if tuple(kept) != found.files.get(found.head or 0, ()):
                operation = "overwrite" if rewritten else "delete"
                self._commit(found, operation=operation, files=tuple(kept), added_rows=0, added_files=rewritten)

    def raise_max_seq(self, table: str, seq: int) -> None:
        with self._lock:
            self._table(table).max_seq = max(self.tables[table].max_seq, seq)

    def expire(self, table: str, *, keep: int = 1, since: int | None = None) -> int:
        with self._lock:
            found, state = self._table(table), self.load(table)
            if state is None:
                return 0
            kept = kept_snapshots(state, keep=keep, since=since)
            found.max_seq = highest_known(state)  # I1: what the old ones alone know stays
            gone = [id for id in found.snapshots if id not in kept]
            found.snapshots = {id: snapshot for id, snapshot in found.snapshots.items() if id in kept}
            reached = {file for table in self.tables.values() for id in table.snapshots for file in table.files[id]}
            for file in {file for id in gone for file in found.files[id]} - reached:
                self.data.pop(file, None)
            return len(gone)

    def buckets(self, state: TableState) -> list[Bucket]:
        with self._lock:
            return buckets_in_memory(self, state)

    def rewrite(
        self,
        table: str,
        *,
        within: SequenceRange,
        file_bytes: int,
        one_file: bool = False,  # noqa: ARG002 - no matter here
    ) -> None:
        if self.on_rewrite is not None:
            self.on_rewrite(within)
        with self._lock:
            found, state = self._table(table), self.load(table)
            files = None if state is None else rewritten(self, state, within, file_bytes=file_bytes)
            if files is not None:
                self._commit(found, operation="replace", files=files, added_rows=0)

    def manifests(self, state: TableState) -> int:
        if state.head is not None:
            self.files_of(state.name, state.head)
        return self.tables[state.name].manifests

    def rewrite_manifests(self, table: str) -> None:
        with self._lock:
            found = self.tables[table]
            if found.head is not None:
                self._commit(found, operation="replace", files=found.files[found.head], added_rows=0, added_files=0)
                found.manifests = 1

    def orphans(self, table: str, *, before: datetime) -> list[Orphan]:  # noqa: ARG002 - one place for all tables
        with self._lock:
            return orphans_in_memory(self, before=before)

    def remove_orphans(self, orphans: Sequence[Orphan]) -> None:
        with self._lock:
            for item in orphans:
                self.data.pop(int(item.location.removeprefix("memory:")), None)

    def stored_bytes(self, table: str) -> int:
        with self._lock:
            found = self.tables.get(table)
            files = {file for id in found.snapshots for file in found.files[id]} if found else set()
            return sum(self.data[file].nbytes for file in files if file in self.data)

    def matching(self, rows: pa.Table, condition: str, *, schema: Schema) -> list[int]:
        placed = rows.append_column(SEQ, pa.array(range(rows.num_rows), pa.int64()))
        return [int(place) for place in kept_by_sqlite(placed, condition, schema.names)[SEQ].to_pylist()]

    def copy(self, request: Copy) -> None:
        rows = copied(self, request)
        fate = self.on_copy(request) if self.on_copy else "land"
        if fate == "hold":
            self.held_copies.append((request, rows))
        if fate in ("hold", "drop"):
            raise AnswerLost(f"no answer to the copy of {request.within}")
        with self._lock:
            land_copy(self, request, rows)
        if fate == "lose_answer":
            raise AnswerLost(f"no answer to the copy of {request.within}")

    def clear(self, table: str, within: SequenceRange) -> None:
        with self._lock:
            found, kept = self._table(table), []
            for file in found.files.get(found.head or 0, ()):
                left = outside(self.data[file], within)
                if left.num_rows:
                    kept.append(file if left.num_rows == self.data[file].num_rows else self.store(left))
            self._commit(found, operation="delete", files=tuple(kept), added_rows=0, added_files=0)

    def tallies(
        self,
        table: str,
        *,
        snapshot: int,
        within: SequenceRange,
        width: int,
        schema: Schema,  # noqa: ARG002 - a value that is not there is null here
    ) -> dict[int, Tally]:
        return tallies_of(self.rows_of(table, snapshot, within), width=width)

    def rename(self, table: str, to: str) -> bool:
        with self._lock:
            return renamed(self, table, to)

    def drop(self, table: str) -> None:
        with self._lock:
            if table in self.tables:
                self.expire(table, keep=0)
                del self.tables[table]

    def location(self, table: str) -> str | None:
        with self._lock:
            return self.tables[table].location if table in self.tables else None

    def rows_of(self, table: str, snapshot: int, within: SequenceRange) -> pa.Table:
        """The rows of a range with all their columns, in order."""
        return self._selected(table, snapshot, within, None, None)

    def add_file(self, table: str, rows: pa.Table, *, through: int) -> None:
        """Append rows that have their numbers."""
        found = self.tables[table]
        new = [self.store(part) for part in by_bucket(rows, self.width_of(table))]
        files = (*found.files.get(found.head or 0, ()), *new)
        self._commit(found, operation="append", files=files, added_rows=rows.num_rows, through=through)

    def target(self, name: TargetName) -> MemoryTarget:
        return MemoryTarget(name, self.targets, self)

    # ── what happens beside appends ──────────────────────────────────────────────────────────────────────────────

    def deliver_held(self) -> list[bool]:
        """Let the requests under way arrive; for each, whether it landed."""
        requests, self.held = self.held, []
        landed = []
        for request, rows in requests:
            try:
                self._swap(request, rows)
                landed.append(True)
            except AppendRefused:
                landed.append(False)
        return landed

    def deliver_held_copies(self) -> list[bool]:
        """Let the copies under way arrive; for each, whether it landed."""
        requests, self.held_copies = self.held_copies, []
        landed = []
        for request, rows in requests:
            try:
                with self._lock:
                    land_copy(self, request, rows)
                landed.append(True)
            except AppendRefused:
                landed.append(False)
        return landed

    def compact(self, table: str) -> None:
        """Rewrite all files of a table into one, in sequence order."""
        with self._lock:
            found = self.tables[table]
            if found.head is None or not found.files[found.head]:
                return
            parts = [self.data[file] for file in found.files[found.head]]
            merged = _in_order(parts)
            self._commit(found, operation="replace", files=(self.store(merged),), added_rows=merged.num_rows)

    def delete(self, table: str, within: SequenceRange) -> None:
        """Delete the rows of a range, as a merge-on-read delete would."""
        with self._lock:
            found = self.tables[table]
            found.max_seq = max(found.max_seq, within.through)
            kept = []
            for file in found.files.get(found.head or 0, ()):
                part = self.data[file]
                outside = part.filter(
                    pc.or_(pc.less_equal(part[SEQ], within.after), pc.greater(part[SEQ], within.through))
                )
                if outside.num_rows:
                    kept.append(file if outside.num_rows == part.num_rows else self.store(outside))
            self._commit(found, operation="delete", files=tuple(kept), added_rows=0, added_files=0)

    def recreate(self, table: str) -> None:
        """Drop a table and create an empty one of the same name."""
        with self._lock:
            old = self.tables[table]
            self.tables[table] = _Table(str(uuid.uuid4()), old.schema, layout=old.layout, location=old.location)

    def lose_power(self) -> None:
        """Forget every file that no `sync` has covered."""
        self.data = {file: part for file, part in self.data.items() if file in self.durable}

    def files_of(self, table: str, snapshot: int) -> tuple[int, ...]:
        """The data files that a snapshot reaches; `Retryable` if it has expired."""
        if snapshot not in self._table(table).snapshots:
            raise Retryable(f"A snapshot of {table!r} expired while it was read.", hint="Do it again.")
        return self.tables[table].files[snapshot]

    def width_of(self, table: str) -> int:
        """How many numbers share files."""
        return self._table(table).layout.bucket_width

    # ── inside ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _lineage(self, table: _Table) -> Iterator[Snapshot]:
        id = table.head
        while id is not None and id in table.snapshots:
            yield table.snapshots[id]
            id = table.snapshots[id].parent

    def _table(self, table: str) -> _Table:
        if table not in self.tables:
            raise Retryable(f"There is no table {table!r} any more.", hint="Do it again.")
        return self.tables[table]

    def _parts(self, table: str, snapshot: int, within: SequenceRange) -> Iterator[pa.Table]:
        with self._lock:
            files = [self.data.get(file) for file in self.files_of(table, snapshot)]
        for part in files:
            if part is None:
                raise FilesMissing(f"A data file of {table!r} is missing.")
            span = pc.min_max(part[SEQ])
            if span["max"].as_py() <= within.after or span["min"].as_py() > within.through:
                continue
            self.files_read += 1
            self.rows_read += part.num_rows
            yield part.filter(pc.and_(pc.greater(part[SEQ], within.after), pc.less_equal(part[SEQ], within.through)))

    def _selected(
        self,
        table: str,
        snapshot: int,
        within: SequenceRange,
        where: dict[str, Any] | None,
        keep: str | None,
        schema: Schema | None = None,
    ) -> pa.Table:
        """The rows of a range that the conditions let through, in order."""
        rows = _in_order(list(self._parts(table, snapshot, within)) or [_NO_ROWS])
        for name, value in (where or {}).items():
            held = rows[name] if name in rows.column_names else pa.nulls(rows.num_rows, pa.scalar(value).type)
            rows = rows.filter(pc.is_null(held) if value is None else pc.equal(held, pa.scalar(value, held.type)))
        if keep is not None:
            columns = {*self._table(table).schema.names, *(schema.names if schema else ())}
            rows = kept_by_sqlite(rows, keep, columns)
        return rows

    def _stamped(self, request: Append) -> pa.Table:
        """The rows of a block with their numbers, without those that are duplicates at the base."""
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
        rows = without(pa.concat_tables(parts, promote_options="permissive"), self._left_out(request, parts))
        rows = self._without_duplicates(request, rows)
        if request.settle is None or rows.num_rows == 0:
            return rows
        try:
            settled = settled_table(request, rows)
        except Exception as error:  # noqa: BLE001 - B6: whatever it was, it has changed nothing
            request.settlement.problem = problem_of(request.settle, error)
            return rows
        request.settlement.dropped = rows.num_rows - settled.num_rows
        return self._without_duplicates(request, settled)

    def _left_out(self, request: Append, parts: list[pa.Table]) -> set[int]:
        """Rows from before the cut-off, and rows that were purged."""
        old = Selection(request.range.through, event_time=request.event_time, before=request.event_cutoff)
        if request.event_cutoff is None:
            return set(request.purged)
        found = (doomed_numbers(part, old, schema=request.schema, partition_by=()) for part in parts)
        return set(request.purged).union(*found)

    def _without_duplicates(self, request: Append, rows: pa.Table) -> pa.Table:
        if not request.identity:
            return rows
        seen: set[tuple[Any, ...] | None] = set()
        state = self.load(request.table)
        snapshot = None if state is None else state.standing_for(request.base.snapshot)
        if snapshot is not None:
            committed = self._parts(request.table, snapshot, SequenceRange(0, 2**63 - 2))
            try:
                seen = {key for part in committed for key in _keys(request, part) if key is not None}
            except FilesMissing as error:
                raise Retryable(f"Duplicates cannot be looked for: {error}") from error
        kept = []
        for index, key in enumerate(_keys(request, rows)):
            if key is None or key not in seen:
                kept.append(index)
                seen.add(key)
        return rows.take(pa.array(kept, pa.int64()))

    def _swap(self, request: Append, rows: pa.Table) -> None:
        """The compare-and-swap: refused if anything was appended since the base."""
        with self._lock:
            table = self.tables.get(request.table)
            if table is None or (request.base.snapshot is None and table.uuid != request.base.table_uuid):
                raise AppendRefused("the table is another one")
            state = self.load(request.table)
            since = state.since(request.base.snapshot) if state else None
            if since is None or any(snapshot.brought_rows for snapshot in since):
                raise AppendRefused("found conflicting files")
            new = [self.store(part) for part in by_bucket(rows, self.width_of(request.table))]
            files = (*table.files.get(table.head or 0, ()), *new)
            self._commit(
                table,
                operation="append",
                files=files,
                added_files=len(new),
                added_rows=rows.num_rows,
                block=request.block,
                through=request.range.through,
                dropped=request.settlement.dropped,
            )

    def store(self, rows: pa.Table) -> int:
        """Write a file that nothing refers to yet."""
        file = next(self._numbers)
        self.data[file] = rows
        self.born[file] = self.clock.now()
        return file

    def _commit(
        self,
        table: _Table,
        *,
        operation: str,
        files: tuple[int, ...],
        added_rows: int,
        added_files: int = 1,
        block: str | None = None,
        through: int | None = None,
        dropped: int = 0,
        settled: bool = False,
    ) -> None:
        id = next(self._numbers)
        table.snapshots[id] = Snapshot(
            id=id,
            parent=table.head,
            operation=operation,
            added_files=added_files,
            added_rows=added_rows,
            block=block,
            through=through,
            dropped=dropped,
            settled=settled,
            at=self.clock.now(),
        )
        table.files[id] = files
        table.head = id
        table.manifests += 1


_NO_ROWS = pa.table({SEQ: pa.array([], pa.int64())})


def _in_order(parts: list[pa.Table]) -> pa.Table:
    """Files of different ages as one table: columns that came later are null before, narrower types are widened."""
    return pa.concat_tables(parts, promote_options="permissive").sort_by(SEQ)


def _keys(request: Append | FileKeys | Resettling, rows: pa.Table) -> Iterator[tuple[Any, ...] | None]:
    """The deduplication key of each row: the first identity that is complete, with the event time."""
    for row in rows.to_pylist():
        when = row.get(request.event_time) if request.event_time else None
        for rank, identity in enumerate(request.identity):
            values = tuple(row.get(name) for name in identity)
            if None not in values:
                yield (rank, values, when)
                break
        else:
            yield None
