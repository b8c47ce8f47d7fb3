"""Targets in memory: somebody else's catalogs, without a JVM, and with a hand on everything that happens there.

It is public (`floodmark.testing`). Tests hold an append back and let it land after its client has given up, lose
answers, append as strangers do, compact, delete, expire and recreate tables.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from floodmark.commit.protocol import TableState
from floodmark.lake.table import AppendRefused
from floodmark.lake.targets import (
    ORIGIN_COLUMNS,
    ORIGIN_PARTITION,
    ORIGIN_SEQ,
    ORIGIN_STORE,
    Census,
    Claim,
    Cut,
    Landed,
    Measure,
    Origin,
    TargetAppend,
    TargetColumn,
    TargetName,
    TargetState,
    check_claim,
    missing_columns,
)
from floodmark.schema import SEQ, ColumnType, Schema
from floodmark.schema.types import WIDER, ListType, StructType, holds, physical
from floodmark.sequence import SequenceRange, Tally
from floodmark.testing.memory.tables import AnswerLost, MemoryTable, MemoryTables, arrive, send

if TYPE_CHECKING:
    from floodmark.testing.memory.lake import MemoryLake


class TargetAnswerLost(AnswerLost):
    """What a client sees when the answer never came: the append may have landed."""


@dataclass(slots=True)
class TargetTable(MemoryTable):
    """One table of somebody else's."""

    uuid: str = field(default_factory=lambda: str(uuid.uuid4()))
    schema: Schema = field(default_factory=Schema)
    columns: dict[str, ColumnType] = field(default_factory=dict)
    properties: dict[str, str] = field(default_factory=dict)
    landed: dict[int, Landed] = field(default_factory=dict)


@dataclass(slots=True)
class MemoryTargets(MemoryTables[TargetTable]):
    """All tables of all catalogs. Share one between stores as they would share a catalog server."""

    held: list[tuple[tuple[str, TargetAppend], pa.Table]] = field(default_factory=list)
    """Appends that are under way and have not arrived."""
    on_append: Callable[[TargetAppend], str] | None = None
    """Decides what becomes of an append: `land`, `lose_answer` (lands, client sees an error), `hold`, `drop`."""
    rows_asked: int = 0
    """How often rows were looked for."""

    # ── what others do ───────────────────────────────────────────────────────────────────────────────────────────

    def rows(self, name: str) -> list[dict[str, Any]]:
        """All rows of a table, by their number."""
        parts = [self.data[file] for file in self.tables[name].head_files]
        return sorted((row for part in parts for row in part.to_pylist()), key=lambda row: row.get(ORIGIN_SEQ) or 0)

    def create(self, name: str, columns: dict[str, ColumnType]) -> None:
        """Make a table as a user does, or a new one in the place of an old one."""
        with self.lock:
            self.tables[name] = TargetTable(columns=dict(columns))

    def add(self, name: str, rows: pa.Table) -> None:
        """Append as a stranger does."""
        with self.lock:
            table = self.tables[name]
            files = (*table.head_files, self.store(rows))
            self.commit(table, operation="append", files=files, added_rows=rows.num_rows)

    def compact(self, name: str) -> None:
        """Rewrite all files of a table into one."""
        with self.lock:
            table = self.tables[name]
            if table.head_files:
                parts = [self.data[file] for file in table.head_files]
                merged = pa.concat_tables(parts, promote_options="permissive")
                self.commit(table, operation="replace", files=(self.store(merged),), added_rows=merged.num_rows)

    def delete(self, name: str, within: SequenceRange | None = None) -> None:
        """Delete the rows of a range of numbers, or all of them, as a merge-on-read delete would."""

        def rest(part: pa.Table) -> pa.Table:
            return part.slice(0, 0) if within is None else part.filter(pc.invert(_inside(part, within)))

        with self.lock:
            table = self.tables[name]
            files, _ = self.pruned(table, rest)
            self.commit(table, operation="delete", files=files, added_rows=0, added_files=0)

    def expire(self, name: str, *, keep_snapshots: int = 1) -> None:
        """Forget all but the newest snapshots."""
        with self.lock:
            table = self.tables[name]
            kept = [snapshot.id for snapshot in table.lineage()][:keep_snapshots]
            table.snapshots = {id: table.snapshots[id] for id in kept}

    def drop(self, name: str) -> None:
        del self.tables[name]

    def deliver_held(self) -> list[bool]:
        """Let the appends under way arrive; for each, whether it landed."""
        requests, self.held = self.held, []
        return arrive(requests, lambda request, rows: self.swap(*request, rows))

    # ── inside ───────────────────────────────────────────────────────────────────────────────────────────────────

    def state(self, name: str) -> TargetState | None:
        with self.lock:
            table = self.tables.get(name)
            if table is None:
                return None
            lineage = tuple(table.lineage())
            return TargetState(
                TableState(name, table.uuid, lineage, columns=()),
                {item.id: table.landed[item.id] for item in lineage if item.id in table.landed},
                tuple(TargetColumn(name, kind, str(kind)) for name, kind in table.columns.items()),
                dict(table.properties),
            )

    def send(self, name: str, request: TargetAppend, rows: pa.Table) -> None:
        send(
            self.on_append(request) if self.on_append else "land",
            f"the append of {request.mark.key}",
            land=lambda: self.swap(name, request, rows),
            hold=lambda: self.held.append(((name, request), rows)),
            lost=TargetAnswerLost,
        )

    def swap(self, name: str, request: TargetAppend, rows: pa.Table) -> None:
        """The compare-and-swap. Like Iceberg's it takes the head of a dropped table for one of an empty successor."""
        with self.lock:
            table = self.tables.get(name)
            state = self.state(name)
            if table is None or state is None:
                raise AppendRefused("there is no such table")
            since = state.history.since(request.head) if state.history.lineage else ()
            if since is None or any(snapshot.brought_rows for snapshot in since):
                raise AppendRefused("found conflicting files")
            files = (*table.head_files, self.store(rows))
            landed = self.commit(table, operation="append", files=files, added_rows=rows.num_rows)
            table.landed[landed.id] = Landed(request.mark, rows.nbytes, landed.id, landed.parent)

    def rows_at(self, name: str, snapshot: int) -> Iterator[pa.Table]:
        self.rows_asked += 1
        for file in self.tables[name].files[snapshot]:
            yield self.read(file)


@dataclass(frozen=True, slots=True)
class MemoryTarget:
    """One table in memory, from the store whose rows come from the lake in memory."""

    name: TargetName
    targets: MemoryTargets
    lake: MemoryLake

    def load(self) -> TargetState | None:
        return self.targets.state(str(self.name))

    def fit(self, columns: Schema, claim: Claim) -> None:
        with self.targets.lock:
            table = self.targets.tables.setdefault(str(self.name), TargetTable(columns=dict(ORIGIN_COLUMNS)))
            state = self.load()
            if state is None or not check_claim(self.name, state, claim):
                table.properties.update([claim.property])
            if state is not None and missing_columns(self.name, state, columns):
                for column in columns:
                    kind = physical(column.type)
                    table.columns[column.name] = _grown(table.columns.get(column.name, kind), kind)

    def append(self, request: TargetAppend) -> None:
        rows = self._rows(request.rows) if isinstance(request.rows, Cut) else request.rows
        if rows is None or rows.num_rows == 0:
            raise ValueError("an append without rows is never sent")
        origin = request.mark.origin
        numbers = rows[SEQ] if isinstance(request.rows, Cut) else rows[ORIGIN_SEQ]
        sent = request.columns.typed(rows, request.columns.names)
        for name, values in (
            (ORIGIN_STORE, pa.array([origin.store] * rows.num_rows)),
            (ORIGIN_SEQ, numbers.cast(pa.int64())),
            (ORIGIN_PARTITION, pa.array([origin.partition] * rows.num_rows)),
        ):
            sent = sent.append_column(name, values)
        self.targets.send(str(self.name), request, sent)

    def seen(self, state: TargetState, *, store: str, partition: str | None, within: SequenceRange) -> Measure:
        if state.history.head is None:
            return Measure(Tally(), 0)
        numbers = [row[ORIGIN_SEQ] for row in self._there(state, store=store, partition=partition, within=within)]
        return Measure(Tally(len(numbers), 0), max(numbers, default=0))

    def census(self, state: TargetState, *, store: str, partition: str, within: SequenceRange) -> Census:
        there = list(self._there(state, store=store, partition=partition, within=within))
        return Census(len(there), len({row[ORIGIN_SEQ] for row in there}))

    def unlike(self, state: TargetState, cut: Cut, origin: Origin, *, count_max: int) -> list[int]:
        rows = self._rows(cut)
        if rows is None:
            return []
        there = self._there(state, store=origin.store, partition=origin.partition, within=cut.range)
        theirs = {(row[ORIGIN_SEQ], _comparable(row, cut.columns)) for row in there}
        here = cut.columns.typed(rows, cut.columns.names).to_pylist()
        numbered = zip(rows[SEQ].to_pylist(), here, strict=True)
        return [seq for seq, row in numbered if (seq, _comparable(row, cut.columns)) not in theirs][:count_max]

    def _there(
        self, state: TargetState, *, store: str, partition: str | None, within: SequenceRange
    ) -> Iterator[dict[str, Any]]:
        if state.history.head is None:
            return
        for part in self.targets.rows_at(str(self.name), state.history.head):
            ours = pc.and_(pc.equal(part[ORIGIN_STORE], store), _inside(part, within))
            if partition is not None:
                ours = pc.and_(ours, pc.equal(part[ORIGIN_PARTITION], partition))
            yield from part.filter(ours).to_pylist()

    def sync(self, state: TargetState, *, since: int | None) -> None:
        if state.history.head is not None:
            files = self.targets.tables[str(self.name)].files
            before = () if state.history.since(since) is None else files.get(since or 0, ())
            for file in files[state.history.head]:
                if file in before:
                    continue
                self.targets.read(file)
                self.targets.durable.add(file)

    def _rows(self, cut: Cut) -> pa.Table | None:
        found = list(
            self.lake.scan(
                cut.table,
                snapshot=cut.snapshot,
                within=cut.range,
                partition_values=cut.partition_values,
                row_filter=cut.row_filter,
            )
        )
        if not found:
            return None
        rows = found[0]
        if cut.without:
            rows = rows.filter(pc.invert(pc.is_in(rows[SEQ], pa.array(sorted(cut.without), pa.int64()))))
        return rows if rows.num_rows else None


def _comparable(row: Mapping[str, Any], columns: Schema) -> str:
    return repr([row.get(name) for name in columns.names])


def _inside(part: pa.Table, within: SequenceRange) -> Any:
    return pc.and_(pc.greater(part[ORIGIN_SEQ], within.after), pc.less_equal(part[ORIGIN_SEQ], within.through))


def _grown(have: ColumnType, wanted: ColumnType) -> ColumnType:
    """The type that holds both."""
    match have, wanted:
        case ListType(inner), ListType(wanted_inner):
            return ListType(_grown(inner, wanted_inner))
        case StructType(fields), StructType(wanted_fields):
            known = dict(fields)
            for name, kind in wanted_fields:
                known[name] = _grown(known.get(name, kind), kind)
            return StructType(tuple(known.items()))
        case _:
            return have if holds(have, wanted) else WIDER.get(have, wanted)
