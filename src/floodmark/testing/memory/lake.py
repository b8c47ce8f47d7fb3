"""A lake in memory: the same contract as the real one, without a JVM, and with a hand on everything that can go wrong.

It is public (`floodmark.testing`) so that applications can test against it. Tests hold a request back
and let it land after its client has given up, lose answers, compact, delete, expire and recreate tables.

Here are the contract, with the lock that makes each of its steps one, and the hands of tests. Below it are files and
snapshots (`memory_tables`); beside it, how each part of the contract is kept (`memory_appends`, `memory_reading` …).
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from floodmark.commit.protocol import Append, Barrier, PartitionStats, Snapshot, TableState
from floodmark.compaction import Bucket
from floodmark.errors import FilesMissing
from floodmark.lake.filters import check_text, kept_by_sqlite
from floodmark.lake.generations import Copy
from floodmark.lake.inspection import FileReport, StoredRow
from floodmark.lake.maintenance import Orphan
from floodmark.lake.stored import FileKeys, stored_in_memory
from floodmark.lake.table import PLAIN, Work
from floodmark.lake.targets import TargetName
from floodmark.lake.tasks import RangeWork
from floodmark.layout import Layout
from floodmark.removal import Selection
from floodmark.schema import SEGMENT, SEQ, Schema
from floodmark.sequence import SEQUENCE_MAX, SequenceRange, Tally
from floodmark.settlement import Resettled, Resettling
from floodmark.testing.memory.appends import keys_of, land_append, land_barrier, stamped
from floodmark.testing.memory.durability import make_durable, rolled_back
from floodmark.testing.memory.generations import cleared, copied, land_copy, renamed, tallies_of
from floodmark.testing.memory.inspection import find_in_memory, inspect_memory
from floodmark.testing.memory.maintenance import buckets_in_memory, expired, orphans_in_memory, rewritten
from floodmark.testing.memory.reading import ALL_NUMBERS, in_order, selected, stats_of
from floodmark.testing.memory.removals import only, selected_numbers, stats_between, without
from floodmark.testing.memory.requests import arrive, send
from floodmark.testing.memory.settling import SettleCommit, put_settled, resettle_in_memory
from floodmark.testing.memory.tables import MemoryTable, MemoryTables
from floodmark.testing.memory.targets import MemoryTarget, MemoryTargets


@dataclass(slots=True)
class MemoryLake(MemoryTables):
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

    # ── the contract ─────────────────────────────────────────────────────────────────────────────────────────────

    def load(self, table: str) -> TableState | None:
        with self._lock:
            found = self.tables.get(table)
            if found is None:
                return None
            if table in self.unreadable:
                raise FilesMissing(f"The metadata of table {table!r} cannot be read.", hint="Restore the file.")
            return TableState(
                name=table,
                uuid=found.uuid,
                lineage=tuple(found.lineage()),
                columns=tuple((column.name, column.type) for column in found.schema.columns),
                max_seq=found.max_seq,
                declaration=found.declaration,
            )

    def table_names(self) -> list[str]:
        with self._lock:
            return sorted(self.tables)

    def ensure(
        self,
        table: str,
        schema: Schema,
        *,
        layout: Layout = PLAIN,
        create: bool = True,
        declaration: str | None = None,
    ) -> None:
        with self._lock:
            if table not in self.tables:
                if not create:
                    return
                home = f"{layout.warehouse or 'memory:'}/{table}"
                self.tables[table] = MemoryTable(uuid=str(uuid.uuid4()), schema=schema, layout=layout, location=home)
            found = self.tables[table]
            found.schema = found.schema.merge(schema.columns)
            found.declaration = declaration or found.declaration

    def append(self, request: Append) -> bool:
        rows = stamped(self, request)
        if rows.num_rows == 0:
            return False
        send(
            self.on_append(request) if self.on_append else "land",
            f"the append of {request.range}",
            land=lambda: self._swap(request, rows),
            hold=lambda: self.held.append((request, rows)),
        )
        return True

    def barrier(self, request: Barrier) -> None:
        if self.on_barrier is not None:
            self.on_barrier(request)
        with self._lock:
            land_barrier(self, request)

    def numbers_bound(self, table: str, *, width: int) -> int | None:
        if table in self.vanished or table not in self.tables:
            return None
        found = self.tables[table]
        files = {file for held in found.files.values() for file in held if file in self.data}
        buckets = [int(pc.max(self.data[file][SEQ]).as_py()) // width for file in files if self.data[file].num_rows]
        return max([found.max_seq, *((bucket + 1) * width for bucket in buckets)])

    def has_rows(self, table: str, *, snapshot: int, within: SequenceRange) -> bool:
        return any(part.num_rows for part in self.parts(table, snapshot, within))

    def stats(
        self,
        table: str,
        *,
        snapshot: int,
        within: SequenceRange,
        partition_by: tuple[str, ...],
        partition_values: dict[str, Any] | None = None,
        row_filter: str | None = None,
    ) -> list[PartitionStats]:
        return stats_of(
            self.scan(
                table, snapshot=snapshot, within=within, partition_values=partition_values, row_filter=row_filter
            ),
            partition_by,
        )

    def highest_seq(self, state: TableState) -> int:
        known = next((snapshot.through for snapshot in state.lineage if snapshot.through is not None), None)
        if known is None and state.head is not None:
            parts = self.parts(state.name, state.head, ALL_NUMBERS)
            known = max((pc.max(part[SEQ]).as_py() for part in parts if part.num_rows), default=0)
        return max(known or 0, state.max_seq)

    def segments_above(self, table: str, *, snapshot: int, after: int) -> set[int]:
        parts = self.parts(table, snapshot, SequenceRange(after, SEQUENCE_MAX))
        return {value for part in parts for value in part[SEGMENT].to_pylist()}

    def segment_rows(self, table: str, *, snapshot: int, within: SequenceRange) -> dict[int, int]:
        parts = self.parts(table, snapshot, within)
        return dict(Counter(value for part in parts for value in part[SEGMENT].to_pylist()))

    def resettle(self, request: Resettling) -> Resettled:
        rows = selected(self, request.table, request.snapshot, SequenceRange(0, request.horizon))

        def put(operation: str, settled: pa.Table) -> None:
            self._send_settled(SettleCommit(request.table, request.snapshot, operation), settled)

        return resettle_in_memory(request, rows, keys_of=lambda table: list(keys_of(request, table)), put=put)

    def supersede(self, table: str, *, snapshot: int, horizon: int, schema: Schema) -> None:  # noqa: ARG002 - of all rows
        rows = selected(self, table, snapshot, ALL_NUMBERS)
        self._send_settled(SettleCommit(table, snapshot, None), rows)

    def stored_rows(self, table: str, *, snapshot: int, keys: FileKeys) -> dict[Path, bytes]:
        committed = self.parts(table, snapshot, ALL_NUMBERS)
        seen = {key for part in committed for key in keys_of(keys, part)}
        return stored_in_memory(seen, keys, lambda rows: keys_of(keys, rows))

    def sync(self, state: TableState, *, since: int | None) -> None:
        with self._lock:
            make_durable(self, state, since=since)

    def rollback(self, table: str, *, durable: int | None, droppable: Callable[[Snapshot], bool]) -> bool:
        with self._lock:
            return rolled_back(self, table, durable=durable, droppable=droppable)

    def scan(
        self,
        table: str,
        *,
        snapshot: int,
        within: SequenceRange,
        columns: tuple[str, ...] | None = None,
        partition_values: dict[str, Any] | None = None,
        row_filter: str | None = None,
    ) -> Iterator[pa.Table]:
        rows = selected(self, table, snapshot, within, partition_values=partition_values, row_filter=row_filter)
        if rows.num_rows:
            yield rows if columns is None else rows.select([*columns, SEQ])

    def check_filter(self, table: str, expression: str) -> None:
        found = self.tables.get(table)
        if found is None:
            check_text(expression, None)
        else:
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
        partition_values: dict[str, Any] | None = None,
        row_filter: str | None = None,
    ) -> Iterator[tuple[SequenceRange, Tally, dict[str, Any]]]:
        job = RangeWork(tuple(ranges), columns, schema, work)
        outcomes = [
            outcome
            for places in job.dealt([1] * len(ranges), tasks=self.tasks)
            for outcome in job.each(
                places,
                lambda within: selected(
                    self,
                    table,
                    snapshot,
                    within,
                    partition_values=partition_values,
                    row_filter=row_filter,
                    schema=schema,
                ),
            )
        ]
        yield from job.told(outcomes)

    def find_rows(
        self,
        table: str,
        *,
        snapshot: int,
        partition_values: Mapping[str, Any],
        columns: tuple[str, ...] = (),
        rows_max: int = 100,
    ) -> list[StoredRow]:
        return find_in_memory(
            self, table, snapshot=snapshot, partition_values=partition_values, columns=columns, rows_max=rows_max
        )

    def inspect_files(self, state: TableState) -> FileReport:
        return inspect_memory(self, state)

    def selected_stats(
        self,
        table: str,
        *,
        snapshot: int,
        selection: Selection,
        schema: Schema,
        partition_by: tuple[str, ...],
        cuts: Sequence[int] = (),
    ) -> list[tuple[SequenceRange, PartitionStats]]:
        rows = selected(self, table, snapshot, SequenceRange(0, selection.through))
        gone = selected_numbers(rows, selection, schema=schema, partition_by=partition_by)
        return stats_between(only(rows, gone), cuts, through=selection.through, partition_by=partition_by)

    def remove(self, table: str, *, selection: Selection, schema: Schema, partition_by: tuple[str, ...]) -> None:
        with self._lock:
            found = self.table(table)
            files, written = self.pruned(
                found,
                lambda part: without(part, selected_numbers(part, selection, schema=schema, partition_by=partition_by)),
            )
            if files != found.head_files:
                operation = "overwrite" if written else "delete"
                self.commit(found, operation=operation, files=files, added_rows=0, added_files=written)

    def raise_max_seq(self, table: str, seq: int) -> None:
        with self._lock:
            self.table(table).max_seq = max(self.tables[table].max_seq, seq)

    def expire(self, table: str, *, keep_snapshots: int = 1, since: int | None = None) -> int:
        with self._lock:
            return expired(self, table, keep_snapshots=keep_snapshots, since=since)

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
            found, state = self.table(table), self.load(table)
            files = None if state is None else rewritten(self, state, within, file_bytes=file_bytes)
            if files is not None:
                self.commit(found, operation="replace", files=files, added_rows=0)

    def manifests(self, state: TableState) -> int:
        if state.head is not None:
            self.files_of(state.name, state.head)
        return self.tables[state.name].manifests

    def rewrite_manifests(self, table: str) -> None:
        with self._lock:
            found = self.tables[table]
            if found.head is not None:
                self.commit(found, operation="replace", files=found.files[found.head], added_rows=0, added_files=0)
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
        send(
            self.on_copy(request) if self.on_copy else "land",
            f"the copy of {request.within}",
            land=lambda: self._land_copy(request, rows),
            hold=lambda: self.held_copies.append((request, rows)),
        )

    def clear(self, table: str, within: SequenceRange) -> None:
        with self._lock:
            cleared(self, self.table(table), within)

    def tallies(
        self,
        table: str,
        *,
        snapshot: int,
        within: SequenceRange,
        width: int,
        schema: Schema,  # noqa: ARG002 - a value that is not there is null here
    ) -> dict[int, Tally]:
        return tallies_of(selected(self, table, snapshot, within), width=width)

    def rename(self, table: str, to: str) -> bool:
        with self._lock:
            return renamed(self, table, to)

    def drop(self, table: str) -> None:
        with self._lock:
            if table in self.tables:
                self.expire(table, keep_snapshots=0)
                del self.tables[table]

    def location(self, table: str) -> str | None:
        with self._lock:
            return self.tables[table].location if table in self.tables else None

    def target(self, name: TargetName) -> MemoryTarget:
        return MemoryTarget(name, self.targets, self)

    # ── what happens beside appends ──────────────────────────────────────────────────────────────────────────────

    def deliver_held(self) -> list[bool]:
        """Let the requests under way arrive; for each, whether it landed."""
        requests, self.held = self.held, []
        return arrive(requests, self._swap)

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
        with self._lock:
            found = self.tables[table]
            if found.head is None or not found.files[found.head]:
                return
            merged = in_order(self.data[file] for file in found.files[found.head])
            self.commit(found, operation="replace", files=(self.store(merged),), added_rows=merged.num_rows)

    def delete(self, table: str, within: SequenceRange) -> None:
        """Delete the rows of a range, as a merge-on-read delete would."""
        with self._lock:
            found = self.tables[table]
            found.max_seq = max(found.max_seq, within.through)
            cleared(self, found, within)

    def recreate(self, table: str) -> None:
        """Drop a table and create an empty one of the same name."""
        with self._lock:
            old = self.tables[table]
            self.tables[table] = MemoryTable(str(uuid.uuid4()), old.schema, layout=old.layout, location=old.location)

    def lose_power(self) -> None:
        """Forget every file that no `sync` has covered."""
        self.data = {file: part for file, part in self.data.items() if file in self.durable}

    # ── inside ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _swap(self, request: Append, rows: pa.Table) -> None:
        with self._lock:
            land_append(self, request, rows)

    def _land_copy(self, request: Copy, rows: pa.Table) -> None:
        with self._lock:
            land_copy(self, request, rows)

    def _send_settled(self, request: SettleCommit, rows: pa.Table) -> None:
        send(
            self.on_settle(request) if self.on_settle else "land",
            f"the settling commit of {request.table}",
            land=lambda: self._land_settled(request, rows),
            hold=lambda: self.held_settlements.append((request, rows)),
        )

    def _land_settled(self, request: SettleCommit, rows: pa.Table) -> None:
        with self._lock:
            put_settled(self, request, rows)
