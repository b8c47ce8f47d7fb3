"""A lake in memory: the same contract as the real one, without a JVM, and with a hand on everything that can go wrong.

It is public (`floodmark.testing`) so that applications can test against it. Tests hold a request back
and let it land after its client has given up, lose answers, compact, delete, expire and recreate tables.

Here are the contract, with the lock that makes each of its steps one, and the hands of tests. Below it are files and
snapshots (`tables`), rows (`rows`), and what becomes of a request (`requests`).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple, cast

import pyarrow as pa
import pyarrow.compute as pc

from floodmark.commit.protocol import Append, Barrier, Snapshot, TableState, named_segments
from floodmark.errors import FilesMissing, Retryable
from floodmark.lake.inventory import Orphan, TableFile, TableFiles, bucket_range, highest_known, kept_snapshots
from floodmark.lake.moving import unmoved
from floodmark.lake.queries import ALL_NUMBERS, FILE, Checksum, Group
from floodmark.lake.settling import problem_of, settled_table
from floodmark.lake.stored import FileKeys, bitmap_of, keys_in
from floodmark.lake.table import NO_COLUMNS, PLAIN, AppendRefused, Copy, Work
from floodmark.lake.targets import TargetName
from floodmark.lake.tasks import RangeWork
from floodmark.layout import Layout
from floodmark.removal import Selection
from floodmark.schema import SEQ, PartitionValues, Schema
from floodmark.sequence import SequenceRange, Tally
from floodmark.settlement import Resettled, Resettling, collapse
from floodmark.testing.memory.conditions import kept_by_sqlite
from floodmark.testing.memory.tables import (
    Key,
    MemoryTable,
    MemoryTables,
    arrive,
    first_of_each,
    grouped,
    in_order,
    inside,
    keys_of,
    only,
    selected_numbers,
    send,
    spared_numbers,
    stamped,
    with_values,
    without,
)
from floodmark.testing.memory.targets import MemoryTarget, MemoryTargets


class SettleCommit(NamedTuple):
    """A request to commit what a settle function has said, or with no operation, rows as they are."""

    table: str
    snapshot: int
    operation: str | None


@dataclass(slots=True)
class MemoryLake(MemoryTables[MemoryTable]):
    """Tables as lists of immutable files, with snapshots. Share one between stores as they would share a disk."""

    held: list[tuple[Append, pa.Table]] = field(default_factory=list)
    """Requests that are under way and have not arrived. Their files are written: they need no segment any more."""
    on_append: Callable[[Append], str] | None = None
    """Decides what becomes of a request: `land`, `lose_answer` (lands, client sees an error), `hold`, `drop`."""
    held_copies: list[tuple[Copy, pa.Table]] = field(default_factory=list)
    on_copy: Callable[[Copy], str] | None = None
    """The same for a rebuild's copies."""
    held_settlements: list[tuple[SettleCommit, pa.Table]] = field(default_factory=list)
    on_settle: Callable[[SettleCommit], str] | None = None
    """The same for commits of what a settle function has said of committed rows."""
    on_rewrite: Callable[[SequenceRange], None] | None = None
    """Called before a range's files are rewritten: it may raise."""
    on_barrier: Callable[[Barrier], None] | None = None
    """Called before an append without rows: it may raise."""
    unreadable: set[str] = field(default_factory=set)
    """Tables whose metadata cannot be read."""
    vanished: set[str] = field(default_factory=set)
    """Those of them of which not even the place is left."""
    tasks: int = 2
    """Into how many tasks the ranges of `each_range` are dealt: a range that fails stops its own task only."""
    targets: MemoryTargets = field(default_factory=MemoryTargets)
    """Other people's catalogs: what table sinks deliver to."""
    jobs: int = 0
    """Always 0: there is no engine."""
    tasks_here: bool = True
    """False, as on a cluster: what tasks write to a disk is nowhere."""
    prepared: bool = False
    """Whether rows were announced: a lake on Spark starts its session then."""

    def prepare(self) -> None:
        self.prepared = True

    # ── tables ───────────────────────────────────────────────────────────────────────────────────────────────────

    def load(self, table: str) -> TableState | None:
        with self.lock:
            found = self.tables.get(table)
            if found is None:
                return None
            if table in self.unreadable:
                raise FilesMissing(f"The metadata of table {table!r} cannot be read.", hint="Restore the file.")
            reached = {file for id in found.snapshots for file in found.files[id]}
            state = TableState(
                name=table,
                uuid=found.uuid,
                lineage=tuple(found.lineage()),
                columns=tuple((column.name, column.type) for column in found.schema.columns),
                max_seq=found.max_seq,
                declaration=found.declaration,
                location=found.location,
                bytes=sum(self.data[file].nbytes for file in reached if file in self.data),
                files=len(found.files[found.head]) if found.head is not None else 0,
            )
            return unmoved(state)

    def table_names(self) -> list[str]:
        with self.lock:
            return sorted(self.tables)

    def ensure(
        self,
        table: str,
        schema: Schema = NO_COLUMNS,
        *,
        layout: Layout = PLAIN,
        create: bool = True,
        declaration: str | None = None,
        max_seq: int = 0,
        drop: Collection[str] = (),
    ) -> None:
        with self.lock:
            for column in drop:
                self._drop_column(table, column)
            if table not in self.tables:
                if not create and not max_seq:
                    return
                if not create:
                    raise Retryable(f"The table {table!r} does not exist.")
                home = f"{layout.warehouse or 'memory:'}/{table}"
                self.tables[table] = MemoryTable(uuid=str(uuid.uuid4()), schema=schema, layout=layout, location=home)
            found = self.tables[table]
            found.schema = found.schema.merge(schema.columns)
            found.declaration = declaration or found.declaration
            found.max_seq = max(found.max_seq, max_seq)

    def _drop_column(self, table: str, column: str) -> None:
        found = self.table(table)
        found.schema = Schema(tuple(one for one in found.schema if one.name != column))
        for file in {file for files in found.files.values() for file in files} & self.data.keys():
            if column in self.data[file].column_names:
                self.data[file] = self.data[file].drop_columns([column])

    def rename(self, table: str, to: str) -> bool:
        with self.lock:
            if table not in self.tables:
                return False
            if to in self.tables:
                raise Retryable(f"There is a table {to!r} already.")
            self.tables[to] = self.tables.pop(table)
            return True

    def drop(self, table: str) -> None:
        with self.lock:
            if table in self.tables:
                if self.tables[table].head is not None:
                    self.expire(table, keep_snapshots=0)
                del self.tables[table]

    def target(self, name: TargetName) -> MemoryTarget:
        return MemoryTarget(name, self.targets, self)

    # ── commits ──────────────────────────────────────────────────────────────────────────────────────────────────

    def append(self, request: Append | Copy | Barrier) -> bool:
        match request:
            case Append():
                return self._append_block(request)
            case Copy():
                self._append_copy(request)
            case Barrier():
                self._append_nothing(request)
        return True

    def _append_block(self, request: Append) -> bool:
        rows = self._settled(request, self._without_duplicates(request, stamped(request)))
        if rows.num_rows == 0:
            return False
        send(
            self.on_append(request) if self.on_append else "land",
            f"the append of {request.range}",
            land=lambda: self.land_block(request, rows),
            hold=lambda: self.held.append((request, rows)),
        )
        return True

    def _append_copy(self, request: Copy) -> None:
        origin = self if request.origin is None else cast("MemoryLake", request.origin)
        rows = in_order(origin.parts(request.source, request.snapshot, request.within))
        send(
            self.on_copy(request) if self.on_copy else "land",
            f"the copy of {request.within}",
            land=lambda: self._land_copy(request, rows),
            hold=lambda: self.held_copies.append((request, rows)),
        )

    def _append_nothing(self, request: Barrier) -> None:
        if self.on_barrier is not None:
            self.on_barrier(request)
        with self.lock:
            table, state = self.tables.get(request.table), self.load(request.table)
            if table is None or state is None or not state.may_append_on(request.base):
                raise AppendRefused("found conflicting files")
            self.commit(
                table,
                operation="append",
                files=table.head_files,
                added_rows=0,
                through=request.through,
                barrier=request.block,
            )

    def _settled(self, request: Append, rows: pa.Table) -> pa.Table:
        if request.settle is None or rows.num_rows == 0:
            return rows
        try:
            settled = settled_table(request, rows)
        except Exception as error:  # noqa: BLE001 - B6: whatever it was, it has changed nothing
            request.settlement.problem = problem_of(request.settle, error)
            return rows
        request.settlement.dropped = rows.num_rows - settled.num_rows
        return self._without_duplicates(request, settled)

    def _without_duplicates(self, request: Append, rows: pa.Table) -> pa.Table:
        """The rows without those that are committed at the base, or twice in the batch."""
        if not request.identity:
            return rows
        state = self.load(request.table)
        snapshot = None if state is None else state.standing_for(request.base.snapshot)
        try:
            committed = [] if snapshot is None else list(self.parts(request.table, snapshot, ALL_NUMBERS))
        except FilesMissing as error:
            raise Retryable(f"Duplicates cannot be looked for: {error}") from error
        seen: set[Key] = {key for part in committed for key in keys_of(request, part) if key is not None}
        return first_of_each(request, rows, seen)

    def land_block(self, request: Append, rows: pa.Table) -> None:
        """The compare-and-swap: refused if anything was appended since the base."""
        with self.lock:
            table = self.tables.get(request.table)
            if table is None or (request.base.snapshot is None and table.uuid != request.base.table_uuid):
                raise AppendRefused("the table is another one")
            state = self.load(request.table)
            since = state.since(request.base.snapshot) if state else None
            if since is None or any(snapshot.brought_rows for snapshot in since):
                raise AppendRefused("found conflicting files")
            new = self.store_by_bucket(request.table, rows)
            self.commit(
                table,
                operation="append",
                files=(*table.head_files, *new),
                added_files=len(new),
                added_rows=rows.num_rows,
                block=request.block,
                through=request.range.through,
                dropped=request.settlement.dropped,
                segments=named_segments(request),
            )

    def _land_copy(self, request: Copy, rows: pa.Table) -> None:
        """The compare-and-swap: refused if the table of that name is another one, or anything was appended since."""
        with self.lock:
            state = self.load(request.table)
            if state is None or not state.may_append_on(request.base):
                raise AppendRefused("found conflicting files")
            found = self.tables[request.table]
            files = (*found.head_files, *self.store_by_bucket(request.table, rows))
            self.commit(found, operation="append", files=files, added_rows=rows.num_rows, through=request.through)

    def resettle(self, request: Resettling) -> Resettled:
        rows = in_order(self.parts(request.table, request.snapshot, SequenceRange(0, request.horizon)))
        if request.settle is None:
            rows = in_order(self.parts(request.table, request.snapshot, ALL_NUMBERS))

        def put(operation: str | None, settled: pa.Table) -> None:
            commit = SettleCommit(request.table, request.snapshot, operation)
            send(
                self.on_settle(commit) if self.on_settle else "land",
                f"the settling commit of {request.table}",
                land=lambda: self._land_settled(commit, settled),
                hold=lambda: self.held_settlements.append((commit, settled)),
            )

        return resettled(request, rows, put)

    def _land_settled(self, request: SettleCommit, settled: pa.Table) -> None:
        """The compare-and-swap."""
        with self.lock:
            if not only_rewritten_since(request.snapshot, self.load(request.table)):
                raise AppendRefused("found conflicting files: rows were appended or changed meanwhile")
            files = (self.store(settled),) if settled.num_rows else ()
            self.commit(
                self.tables[request.table],
                operation="overwrite",
                files=files,
                added_rows=0,
                added_files=len(files),
                settled=True,
                change=request.operation,
            )

    def remove(self, table: str, *, selection: Selection, schema: Schema, partition_by: tuple[str, ...]) -> None:
        def rest(part: pa.Table) -> pa.Table:
            return without(part, selected_numbers(part, selection, columns=schema.names, partition_by=partition_by))

        with self.lock:
            found = self.table(table)
            files, written = self.pruned(found, rest)
            if files != found.head_files:
                operation = "overwrite" if written else "delete"
                self.commit(found, operation=operation, files=files, added_rows=0, added_files=written)

    def rewrite(
        self,
        table: str,
        *,
        within: SequenceRange | None = None,
        file_bytes: int = 0,
        one_file: bool = False,  # noqa: ARG002 - no matter here
    ) -> None:
        if self.on_rewrite is not None and within is not None:
            self.on_rewrite(within)
        with self.lock:
            found = self.table(table)
            if within is not None:
                self._join(found, within, file_bytes)
            elif found.head is not None:
                self.commit(found, operation="replace", files=found.head_files, added_rows=0, added_files=0)
                found.manifests = 1

    def _join(self, table: MemoryTable, within: SequenceRange, file_bytes: int) -> None:
        """Join the files of a range, in order of their numbers."""
        kept: list[int] = []
        joined: list[pa.Table] = []
        for file in table.head_files:
            part = self.read(file)
            span = pc.min_max(part[SEQ])
            if span["max"].as_py() <= within.after or span["min"].as_py() > within.through:
                kept.append(file)
            else:
                joined.append(part)
        if not joined:
            return
        rows = in_order(joined)
        rows_each = max(1, rows.num_rows * file_bytes // max(1, rows.nbytes))
        parts = [rows.slice(start, rows_each) for start in range(0, rows.num_rows, rows_each)]
        files = (*kept, *(self.store(part.combine_chunks()) for part in parts))
        self.commit(table, operation="replace", files=files, added_rows=0)

    def expire(self, table: str, *, keep_snapshots: int = 1) -> int:
        with self.lock:
            return self._expired(table, keep_snapshots)

    def _expired(self, table: str, keep_snapshots: int) -> int:
        found, state = self.table(table), self.load(table)
        if state is None:
            return 0
        kept = kept_snapshots(state, keep_snapshots)
        found.max_seq = highest_known(state)  # I1: what the old ones alone know stays
        gone = [id for id in found.snapshots if id not in kept]
        found.snapshots = {id: snapshot for id, snapshot in found.snapshots.items() if id in kept}
        for file in {file for id in gone for file in found.files[id]} - self.reached():
            self.data.pop(file, None)
        return len(gone)

    # ── rows ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def scan(
        self,
        table: str,
        *,
        snapshot: int,
        within: SequenceRange,
        columns: tuple[str, ...] | None = None,
        partition_values: PartitionValues | None = None,
        row_filter: str | None = None,
        rows_max: int | None = None,
    ) -> Iterator[pa.Table]:
        rows = self._selected(table, snapshot, within, partition_values, row_filter)
        if columns is not None:
            nothing = pa.nulls(rows.num_rows)
            names = (*columns, SEQ)
            rows = pa.table({name: rows[name] if name in rows.column_names else nothing for name in names})
        elif FILE in rows.column_names:
            rows = rows.drop_columns([FILE])
        return iter([rows.slice(0, rows_max)] if rows.num_rows else [])

    def aggregate(
        self,
        table: str,
        *,
        snapshot: int,
        selection: Selection,
        schema: Schema | None = None,
        by: tuple[str, ...] = (),
        partition_values: PartitionValues | None = None,
        cuts: Sequence[int] = (),
        width: int | None = None,
        checksum: Checksum = Checksum.CONTENT,
    ) -> list[Group]:
        rows = with_values(in_order(self.parts(table, snapshot, selection.range)), partition_values or {})
        columns = {*self.table(table).schema.names, *(schema.names if schema else ())}
        numbers = selected_numbers(rows, selection, columns=columns, partition_by=by)
        return grouped(only(rows, numbers), by=by, cuts=cuts, width=width, checksum=checksum)

    def each_range(
        self,
        table: str,
        *,
        snapshot: int,
        ranges: Sequence[SequenceRange],
        columns: tuple[str, ...],
        schema: Schema,
        work: Work,
        partition_values: PartitionValues | None = None,
        row_filter: str | None = None,
    ) -> Iterator[tuple[SequenceRange, Tally, dict[str, Any]]]:
        def read(within: SequenceRange) -> pa.Table:
            return self._selected(table, snapshot, within, partition_values, row_filter, schema.names)

        job = RangeWork(tuple(ranges), columns, schema, work)
        dealt = job.dealt([1] * len(ranges), tasks=self.tasks)
        yield from job.results([outcome for places in dealt for outcome in job.each(places, read)])

    def _selected(
        self,
        table: str,
        snapshot: int,
        within: SequenceRange,
        partition_values: PartitionValues | None,
        row_filter: str | None,
        columns: Sequence[str] = (),
    ) -> pa.Table:
        """The rows of a range that the conditions let through, in order, each with its file."""
        rows = with_values(in_order(self.parts(table, snapshot, within, named=True)), partition_values or {})
        if row_filter is None:
            return rows
        return kept_by_sqlite(rows, row_filter, {*self.table(table).schema.names, *columns})

    def stored_rows(self, table: str, *, snapshot: int, keys: FileKeys) -> dict[Path, bytes]:
        committed = self.parts(table, snapshot, ALL_NUMBERS)
        seen = {key for part in committed for key in keys_of(keys, part)} - {None}
        found = {}
        for path in keys.files:
            known = [key in seen for key in keys_of(keys, keys_in(path, keys))]
            if bits := bitmap_of(pa.array(known, pa.bool_())):
                found[path] = bits
        return found

    def matching(self, rows: pa.Table, condition: str, *, schema: Schema) -> list[int]:
        placed = rows.append_column(SEQ, pa.array(range(rows.num_rows), pa.int64()))
        return [int(place) for place in kept_by_sqlite(placed, condition, schema.names)[SEQ].to_pylist()]

    # ── files ────────────────────────────────────────────────────────────────────────────────────────────────────

    def files(self, state: TableState, *, check: bool = False) -> TableFiles:
        with self.lock:
            if state.head is None or (check and state.head not in self.table(state.name).snapshots):
                return TableFiles()
            found = self.files_of(state.name, state.head)
            missing = tuple(f"memory:{file}" for file in found if file not in self.data)
            if missing and not check:
                raise FilesMissing(f"A data file of {state.name!r} is missing.")
            listed = [self._listed(state.name, file) for file in found]
            return TableFiles(tuple(listed), self.table(state.name).manifests, tuple(sorted(set(missing))))

    def _listed(self, table: str, file: int) -> TableFile:
        width, part = self.width_of(table), self.data.get(file)
        if part is None:
            return TableFile(f"memory:{file}", 1, 1, 0, 0, bucket_range(0, width))
        span = pc.min_max(part[SEQ])
        first, last = span["min"].as_py(), span["max"].as_py()
        bucket = bucket_range(first // width * width, width)
        return TableFile(f"memory:{file}", first, last, part.num_rows, part.nbytes, bucket)

    def sync(self, state: TableState, *, since: int | None) -> None:
        """Cover the files that the head reaches and snapshot `since` did not; all of them if its history is unknown.

        No more than that. If a caller names a snapshot that was never synced, its files stay uncovered, as on a disk.
        """
        with self.lock:
            if state.head is None:
                return
            before = () if state.since(since) is None else self.table(state.name).files.get(since or 0, ())
            for file in self.files_of(state.name, state.head):
                if file in before:
                    continue
                if file not in self.data:
                    raise FilesMissing(f"Data file {file} of {state.name!r} is missing.")
                self.durable.add(file)

    def rollback(self, table: str, *, durable: int | None, droppable: Callable[[Snapshot], bool]) -> bool:
        """Move the head back to the last snapshot that is there whole; false if one in between may not be dropped."""
        with self.lock:
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

    def numbers_bound(self, table: str, *, width: int) -> int | None:
        if table in self.vanished or table not in self.tables:
            return None
        found = self.tables[table]
        files = {file for files in found.files.values() for file in files if file in self.data}
        buckets = [int(pc.max(self.data[file][SEQ]).as_py()) // width for file in files if self.data[file].num_rows]
        return max([found.max_seq, *((bucket + 1) * width for bucket in buckets)])

    def orphans(self, table: str, *, before: datetime, remove: bool = False) -> list[Orphan]:  # noqa: ARG002 - one place for all tables
        with self.lock:
            wanted = self.reached()
            found = [file for file in self.data if file not in wanted and self.born[file] < before]
            orphans = [Orphan(f"memory:{file}", self.data[file].nbytes) for file in found]
            for file in found if remove else ():
                del self.data[file]
            return orphans

    # ── what happens beside appends ──────────────────────────────────────────────────────────────────────────────

    def deliver_held(self) -> list[bool]:
        """Let the requests under way arrive; for each, whether it landed."""
        requests, self.held = self.held, []
        return arrive(requests, self.land_block)

    def deliver_held_copies(self) -> list[bool]:
        """Let the copies under way arrive; for each, whether it landed."""
        requests, self.held_copies = self.held_copies, []
        return arrive(requests, self._land_copy)

    def deliver_held_settlements(self) -> list[bool]:
        """Let the settling commits under way arrive; for each, whether it landed."""
        requests, self.held_settlements = self.held_settlements, []
        return arrive(requests, self._land_settled)

    def compact(self, table: str) -> None:
        """Rewrite all files of a table into one, in sequence order."""
        with self.lock:
            found = self.tables[table]
            if found.head_files:
                merged = in_order(self.data[file] for file in found.head_files)
                self.commit(found, operation="replace", files=(self.store(merged),), added_rows=merged.num_rows)

    def delete(self, table: str, within: SequenceRange) -> None:
        """Delete the rows of a range, as a merge-on-read delete would."""
        with self.lock:
            found = self.tables[table]
            found.max_seq = max(found.max_seq, within.through)
            files, _ = self.pruned(found, lambda part: without(part, inside(part, within)[SEQ].to_pylist()))
            self.commit(found, operation="delete", files=files, added_rows=0, added_files=0)

    def recreate(self, table: str) -> None:
        """Drop a table and create an empty one of the same name."""
        with self.lock:
            old = self.tables[table]
            self.tables[table] = MemoryTable(str(uuid.uuid4()), old.schema, layout=old.layout, location=old.location)


# ── A settle function over committed rows ────────────────────────────────────────────────────────────────────────────


def only_rewritten_since(snapshot: int, state: TableState | None) -> bool:
    """Whether the rows are still those that the function got: nothing but a rewrite was committed since."""
    since = state.since(snapshot) if state else None
    return since is not None and all(one.operation == "replace" for one in since)


def resettled(request: Resettling, rows: pa.Table, put: Callable[[str | None, pa.Table], None]) -> Resettled:
    """What the function says of the rows; `put` commits the table that follows from it."""
    if request.settle is None:
        return Resettled(commit=lambda operation: put(operation, rows))
    try:
        answer = settled_table(request, rows)
    except Exception as error:  # noqa: BLE001 - B6: whatever it was, it has changed nothing
        return Resettled(problem=problem_of(request.settle, error))
    before = {row[SEQ]: row for row in rows.to_pylist()}
    after = {row[SEQ]: row for row in answer.to_pylist()}
    differing = [seq for seq in sorted(before) if after.get(seq) != before[seq]]
    stays = spared_numbers(rows, request.spared, request.partition_by)
    other = [seq for seq in differing if seq not in stays][: request.changed_max]
    dropped = [seq for seq in other if seq not in after]
    changed = {seq for seq in other if seq in after}

    def alike(own: Collection[int]) -> Iterable[list[tuple[int, bool]]]:
        groups: dict[object, list[tuple[int, bool]]] = {}
        whole = _whole(rows, answer, own, dropped)
        for seq, key in zip(whole[SEQ].to_pylist(), keys_of(request, whole), strict=True):
            if key is not None:
                groups.setdefault(key, []).append((seq, seq in stays))
        return [group for group in groups.values() if any(seq in own for seq, _ in group)]

    found = collapse(changed, alike)
    waiting = len(stays & set(differing)) + len(found.later)
    if not found.changed and not dropped:
        return Resettled(waiting=waiting)
    settled = without(_whole(rows, answer, found.changed, dropped), found.gone)
    return Resettled(
        tuple(sorted(found.changed - {*found.gone})),
        found.gone,
        tuple(dropped),
        waiting,
        commit=lambda operation: put(operation, settled),
    )


def _whole(rows: pa.Table, answer: pa.Table, changed: Collection[int], dropped: list[int]) -> pa.Table:
    """The table with the changes, and without what was dropped."""
    left, taken = without(rows, [*changed, *dropped]), only(answer, changed)
    return pa.concat_tables([left, taken.cast(rows.schema)]).sort_by(SEQ)
