"""Purge: rows that match a condition are removed permanently, wherever the store keeps them.

    what a backfill has staged → landing logs sealed → waiting segments replaced → lake, every generation
      → old snapshots → quarantine

What is left of a row is the hash of its identity, so that a backfill does not bring it back (U13), and its part of the
totals, so that audits and hubs still agree (U12). A sink that had not got the row yet never gets it; what had already
left is reported, and is for the user to remove there.

- U16 A waiting segment is replaced by a copy without the rows in one transaction, and only while no block has it:
  then its rows are in the copy or in the lake, and never in both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection

from floodmark import faults
from floodmark.commit.flush import decide_beside_flushes, flush_lock
from floodmark.control import datasets, quarantine, removals
from floodmark.control import segments as segment_records
from floodmark.control.blocks import BlockUndecided
from floodmark.control.datasets import Dataset
from floodmark.control.quarantine import Entry
from floodmark.control.removals import Operation, RowsMoved
from floodmark.engine import Engine
from floodmark.errors import FloodmarkError, Permanent, Retryable
from floodmark.files import durable_remove
from floodmark.jsonread import read_json
from floodmark.lake.filters import check_text
from floodmark.maintenance.pending_deliveries import Position, needs_of
from floodmark.maintenance.remover import (
    Counted,
    Records,
    carry_out,
    check_same,
    count_rows,
    end_unfinished,
    plan_operation,
    prepare,
    read_records,
    record_plan,
    retry_if_changed,
)
from floodmark.removal import Selection, Stretch, Verdict, judge
from floodmark.rows.content import content_ids
from floodmark.rows.fit import fit
from floodmark.rows.identities import identity_hashes
from floodmark.schema import CONTENT_ID, Column, Schema, is_system_column
from floodmark.sequence import SequenceRange
from floodmark.sources.staging import count_staged, purge_staged
from floodmark.spool.landing import landing_files
from floodmark.spool.quarantine import decode_payload, kept_payload
from floodmark.spool.sealing import landing_directory, seal
from floodmark.spool.segments import add_segment, remove_leftovers, segment_files, segment_id, segment_key

if TYPE_CHECKING:
    import pyarrow as pa


# ── Purging the quarantine: the payloads of entries whose row matches a condition ────────────────────────────────────
# An entry holds what is no row, or a row that a destination refused, so not every one can be evaluated. One that
# cannot, because it is no envelope or a value that the condition reads does not fit its column, is named and left to a
# person.


@dataclass(frozen=True, slots=True)
class Judged:
    """The ids of entries."""

    matching: tuple[str, ...]
    not_evaluated: tuple[str, ...]


def _find_quarantined(engine: Engine, declared: Dataset, where: str) -> Judged:
    """Which entries match, decided ones too: their payloads are still there."""
    used = sorted(check_text(where, declared.schema.names))
    entries = engine.database.read(lambda c: quarantine.entries(c, dataset=declared.name, state=None))
    tables: list[pa.Table] = []
    owners: list[str] = []
    unclear: list[str] = []
    for entry in entries:
        if entry.payload is None and entry.payload_path is None:
            continue
        rows = _entry_rows(engine, entry, declared.schema, used)
        if rows is None:
            unclear.append(entry.id)
        else:
            tables.append(rows)
            owners += [entry.id] * rows.num_rows
    matching = _matching_rows(engine, tables, where, declared.schema)
    return Judged(tuple(dict.fromkeys(owners[place] for place in matching)), tuple(unclear))


def _purge_quarantine(engine: Engine, declared: Dataset, where: str) -> Judged:
    """Remove the payloads, and what the reasons quote of them. The record that there was an entry stays."""
    found = _find_quarantined(engine, declared, where)
    entries = engine.database.read(lambda c: quarantine.entries(c, dataset=declared.name, state=None))
    for entry in entries:
        if entry.id in found.matching and entry.payload_path is not None:
            durable_remove(engine.root / entry.payload_path)
    if found.matching:
        engine.database.transact(lambda c: quarantine.scrub(c, found.matching, now=engine.clock.now()))
    return found


def _matching_rows(engine: Engine, tables: Sequence[pa.Table], where: str, schema: Schema) -> list[int]:
    import pyarrow as pa

    if not tables:
        return []
    return engine.lake.matching(pa.concat_tables(tables, promote_options="permissive"), where, schema=schema)


def _entry_rows(engine: Engine, entry: Entry, schema: Schema, used: Sequence[str]) -> pa.Table | None:
    """The values that the condition reads; None where one of them cannot be read."""
    import pyarrow as pa

    came = _entry_values(engine, entry)
    if came is None:
        return None
    count = max((len(values) for values in came.values()), default=1)
    columns: dict[str, Any] = {"_ingest_entry": pa.nulls(count)}
    for name in used:
        kind = schema.column(name).type
        if name not in came:
            columns[name] = pa.nulls(count, schema.arrow((name,)).field(name).type)
            continue
        try:
            fitted = fit(Schema((Column(name, kind),)), [name], [came[name]], rows=count)
            if fitted.misfits:
                return None
            columns[name] = fitted.table[name].cast(schema.arrow((name,)).field(name).type)
        except (FloodmarkError, pa.ArrowException, ValueError):
            return None
    return pa.table(columns)


def _entry_values(engine: Engine, entry: Entry) -> dict[str, list[Any]] | None:
    try:
        payload = kept_payload(engine.root, entry)
        if entry.sink is not None:
            row = read_json(payload)
            return {name: [value] for name, value in row.items()} if isinstance(row, dict) else None
        envelope = decode_payload(payload)
    except (ValueError, FloodmarkError):
        return None
    return {name: list(values) for name, values in zip(envelope.columns, envelope.values, strict=True)}


# ── Purge ────────────────────────────────────────────────────────────────────────────────────────────────────────────


TRIES_MAX = 20
"""How often a step is retried after flushes and exports that have just begun."""
SCAN_ROWS_MAX = 500_000


@dataclass(frozen=True, slots=True)
class AlreadyDelivered:
    """Rows that had left before they were purged: they are for the user to remove there."""

    sink: str
    rows: int
    """At most: a sink's own filter may have kept some back."""


@dataclass(frozen=True, slots=True)
class PurgeReport:
    """What a purge removed, and what is beyond its reach."""

    dataset: str
    rows: int = 0
    """From the lake."""
    spool_rows: int = 0
    """From segments that waited, and from what a backfill had still to load."""
    quarantined: int = 0
    """Entries of the quarantine."""
    not_evaluated: tuple[str, ...] = ()
    """Entries of the quarantine that are no rows, or lack a readable value: inspect them, and discard them."""
    already_delivered: tuple[AlreadyDelivered, ...] = ()
    identities: int = 0
    """Hashes of identities that do not come back."""
    landing_files: tuple[str, ...] = ()
    """Of writers that are still at work: their rows are committed, and are removed when the writers close them."""
    bytes_freed: int = 0
    dry_run: bool = False


def purge(engine: Engine, dataset: str, *, where: str, dry_run: bool = False) -> PurgeReport:
    declared = _declared(engine, dataset)
    _check(engine, declared, where)
    if dry_run:
        return _forecast(engine, declared, where)
    prepare(engine, dataset)
    # Before the segments: what is loaded from there while they are read has no such row any more.
    staged, remembered = purge_staged(engine, declared, where, partial(_remember, engine, dataset))
    seal(engine, dataset)
    spooled, hashes = _purge_spool(engine, _declared(engine, dataset), where)
    rows, freed, delivered, more = _purge_lake(engine, dataset, where)
    scrubbed = _purge_quarantine(engine, _declared(engine, dataset), where)
    faults.reach("purge.quarantine_cleared")
    remove_leftovers(engine, dataset)
    engine.database.forget_freed()
    return PurgeReport(
        dataset,
        rows,
        staged + spooled,
        len(scrubbed.matching),
        scrubbed.not_evaluated,
        delivered,
        remembered + hashes + more,
        _landing_files(engine, dataset),
        freed,
    )


def _declared(engine: Engine, dataset: str) -> Dataset:
    return engine.database.read(lambda c: datasets.get(c, dataset))


def _check(engine: Engine, declared: Dataset, where: str) -> None:
    """A condition that cannot be evaluated is refused before anything is removed; so is a purge during a rebuild."""
    engine.lake.matching(declared.schema.arrow().empty_table(), where, schema=declared.schema)
    engine.database.read(lambda c: _check_not_rebuilding(c, declared.name))


def _landing_files(engine: Engine, dataset: str) -> tuple[str, ...]:
    return tuple(path.name for path in landing_files(landing_directory(engine, dataset)))


def _remember(engine: Engine, dataset: str, hashes: list[str]) -> int:
    for _ in range(TRIES_MAX):
        try:
            return engine.database.transact(lambda c: removals.remember_purged(c, dataset, hashes, operation="purge"))
        except BlockUndecided:
            decide_beside_flushes(engine, dataset)
    raise Retryable(f"Dataset {dataset!r} is flushed too often for this purge.", hint="Run it again.")


def _purge_spool(engine: Engine, declared: Dataset, where: str) -> tuple[int, int]:
    """(rows, identities) of the segments that wait now. A block that has one is decided first."""
    registered = engine.database.read(segment_records.registered_so_far)
    rows = hashes = 0
    for _ in range(TRIES_MAX):
        waiting = engine.database.read(lambda c: segment_records.sealed_so_far(c, declared.name, registered))
        if not any(block is not None for _, _, block in waiting):
            break
        decide_beside_flushes(engine, declared.name)
    for id, path, _ in waiting:
        found, new = _purge_segment(engine, _declared(engine, declared.name), id, path, where)
        rows, hashes = rows + found, hashes + new
    _drop_consumed_files(engine, declared, where)
    return rows, hashes


def _purge_segment(engine: Engine, declared: Dataset, id: int, path: str, where: str) -> tuple[int, int]:
    rows = _rows(engine, path)
    if rows is None:
        return 0, 0  # committed a moment ago: its rows are in the lake
    places = engine.lake.matching(rows, where, schema=declared.schema)
    if not places:
        return 0, 0
    gone, left = _parted(rows, places)
    whole = gone.append_column(CONTENT_ID, content_ids(gone)[0])
    hashes = [item for item in _identities(declared, whole) if item is not None]
    for _ in range(TRIES_MAX):
        try:
            replaced, new = _replace(engine, declared, id, left, hashes)
        except BlockUndecided:
            decide_beside_flushes(engine, declared.name)
            continue
        if replaced:
            remove_leftovers(engine, declared.name)
            return len(places), new
        if not engine.database.read(lambda c: segment_records.is_waiting(c, id)):
            return 0, 0  # a flush was first: the rows are in the lake, which is next
        decide_beside_flushes(engine, declared.name)
    raise Retryable(f"Dataset {declared.name!r} is flushed too often for this purge.", hint="Run it again.")


def _replace(engine: Engine, declared: Dataset, id: int, left: pa.Table, hashes: list[str]) -> tuple[bool, int]:
    """U16: the old segment ends and its copy begins in one transaction."""
    new = 0

    def swap(connection: Connection) -> bool:
        nonlocal new
        if not segment_records.retire(connection, id):
            return False
        new = removals.remember_purged(connection, declared.name, hashes, operation=f"segment {id}")
        return True

    replaced = add_segment(engine, declared, left, also=swap) if left.num_rows else engine.database.transact(swap)
    faults.reach("purge.segment_replaced")
    return replaced, new


def _rows(engine: Engine, path: str) -> pa.Table | None:
    import pyarrow.parquet as pq

    try:
        rows = pq.read_table(engine.segments.path(path))
    except FileNotFoundError:
        return None
    return rows.select([name for name in rows.column_names if not is_system_column(name)])


def _drop_consumed_files(engine: Engine, declared: Dataset, where: str) -> None:
    """Files that only a restored control database would register, if they hold such rows."""
    remove_leftovers(engine, declared.name)
    kept = {Path(path).name for path in _sealed(engine, declared.name)}
    for name in sorted(segment_files(engine, declared.name)):
        if name in kept or engine.database.read(partial(_is_being_written, path=Path(name))):
            continue
        key = segment_key(declared.name, name)
        rows = _rows(engine, key)
        if rows is not None and engine.lake.matching(rows, where, schema=declared.schema):
            engine.segments.remove([key])


def _sealed(engine: Engine, dataset: str) -> list[str]:
    return list(engine.database.read(lambda c: segment_records.sealed_paths(c, dataset)).values())


def _purge_lake(engine: Engine, dataset: str, where: str) -> tuple[int, int, tuple[AlreadyDelivered, ...], int]:
    """(rows, bytes, what had left, identities)."""
    for _ in range(TRIES_MAX):
        end_unfinished(engine, dataset)
        records = read_records(engine, dataset)
        selection = Selection(records.declared.horizon, where=where)
        with retry_if_changed(engine, records):
            counted = count_rows(engine, records, selection)
            if not counted.stretches:
                return 0, 0, (), 0
            hashes = _hashes(engine, records.declared, selection, counted)
            operation, new = _plan(engine, records, selection, counted, hashes)
            if operation is None:
                return 0, 0, (), 0
            gone = carry_out(engine, operation)
            return gone.rows, gone.bytes_freed, _already_delivered(counted, records.positions), new
    raise Retryable(f"Sinks of {dataset!r} deliver too often for this purge.", hint="Purge again.")


def _plan(
    engine: Engine, records: Records, selection: Selection, counted: Counted, hashes: list[str]
) -> tuple[Operation | None, int]:
    declared = records.declared
    remembered: list[int] = []

    def work(connection: Connection) -> Operation | None:
        _check_not_rebuilding(connection, declared.name)
        needs = needs_of(connection, declared)
        check_same(counted, needs)
        verdict = judge(counted.stretches, needs.by_partition, given_up=[need.sink for need in needs.everyone])
        _check_nothing_under_way(verdict, {sink: needs.names[sink] for sink in verdict.held_back})
        if verdict.spared:
            raise RowsMoved(f"A sink of {declared.name!r} delivered rows in the meantime.", hint="Purge again.")
        new = removals.remember_purged(connection, declared.name, hashes, operation="purge")
        remembered[:] = [new]
        return record_plan(
            engine, connection, records, verdict, kind="purge", selection=selection, counted=counted, reason="purge"
        )

    with flush_lock(engine, declared.name):
        operation = plan_operation(engine, declared.name, work)
    return operation, remembered[0]


def _hashes(engine: Engine, declared: Dataset, selection: Selection, counted: Counted) -> list[str]:
    """The hashed identities of the rows to remove, from the state in which they were counted."""
    state = counted.state
    if not declared.identity or state is None or state.head is None:
        return []
    known = {name for name, _ in state.columns}
    names = dict.fromkeys([name for names in declared.identity for name in names] + ([declared.event_time or ""]))
    columns = tuple(name for name in names if name in known)
    columns += (CONTENT_ID,) if declared.by_content else ()
    found: list[str] = []
    for within in _windows([item for items in counted.stretches.values() for item in items]):
        parts = engine.lake.scan(
            state.name, snapshot=state.head, within=within, columns=columns, row_filter=selection.where
        )
        for part in parts:
            found += [item for item in _identities(declared, part) if item is not None]
    return found


def _forecast(engine: Engine, declared: Dataset, where: str) -> PurgeReport:
    records = read_records(engine, declared.name)
    counted = count_rows(engine, records, Selection(records.declared.horizon, where=where))
    spooled = 0
    for path in _sealed(engine, declared.name):
        rows = _rows(engine, path)
        spooled += 0 if rows is None else len(engine.lake.matching(rows, where, schema=declared.schema))
    found = _find_quarantined(engine, declared, where)
    return PurgeReport(
        declared.name,
        sum(item.tally.rows for items in counted.stretches.values() for item in items),
        count_staged(engine, declared, where) + spooled,
        len(found.matching),
        found.not_evaluated,
        _already_delivered(counted, records.positions),
        landing_files=_landing_files(engine, declared.name),
        dry_run=True,
    )


def _check_not_rebuilding(connection: Connection, dataset: str) -> None:
    if removals.is_rebuilding(connection, dataset):
        raise Retryable(
            f"Dataset {dataset!r} is being rebuilt: rows that are purged now could return with the copy.",
            hint="Purge again when the rebuild is complete.",
        )


def _check_nothing_under_way(verdict: Verdict, names: dict[str, str]) -> None:
    """U11: a chunk that may have arrived cannot lose rows; it is acknowledged first."""
    if verdict.held_back:
        sink = names[next(iter(verdict.held_back))]
        rows = next(iter(verdict.held_back.values())).rows
        raise Permanent(
            f"{rows} of the rows are being delivered to sink {sink!r}: it is not known yet whether they arrived.",
            hint=f"Run `floodmark export {sink}` until it succeeds, or `floodmark sink skip {sink}`, or remove "
            "the sink; then purge again. Nothing was purged from the lake.",
        )


def _is_being_written(connection: Connection, *, path: Path) -> bool:
    id = segment_id(path.name)
    return id is None or not segment_records.is_consumed(connection, id)


def _parted(rows: pa.Table, places: list[int]) -> tuple[pa.Table, pa.Table]:
    import pyarrow as pa

    going = set(places)
    kept = [place for place in range(rows.num_rows) if place not in going]
    return rows.take(pa.array(places, pa.int64())), rows.take(pa.array(kept, pa.int64()))


def _windows(stretches: list[Stretch]) -> Iterator[SequenceRange]:
    """Ranges that hold all of the rows, each of bounded size."""
    first, last, rows = None, 0, 0
    for item in sorted(stretches, key=lambda one: one.range):
        if first is not None and rows + item.tally.rows > SCAN_ROWS_MAX and item.range.after >= last:
            yield SequenceRange(first, last)
            first, rows = None, 0
        first = item.range.after if first is None else first
        last, rows = max(last, item.range.through), rows + item.tally.rows
    if first is not None:
        yield SequenceRange(first, last)


def _let_through(stretch: Stretch, where: str | None) -> int:
    """How many of the rows a sink's filter let through; all, where they were not counted by it."""
    filtered = dict(stretch.filtered)
    if where is None or where not in filtered:
        return stretch.tally.rows
    counted = filtered[where]
    return 0 if counted is None else counted.tally.rows


def _already_delivered(counted: Counted, positions: Sequence[Position]) -> tuple[AlreadyDelivered, ...]:
    found: dict[str, int] = {}
    for item in positions:
        here = counted.stretches.get(item.partition, [])
        inside = [_let_through(one, item.where) for one in here if one.range.intersect(item.delivered)]
        found[item.name] = found.get(item.name, 0) + sum(inside)
    return tuple(AlreadyDelivered(name, rows) for name, rows in sorted(found.items()) if rows)


def _identities(declared: Dataset, rows: pa.Table) -> list[str | None]:
    """The hash of what each row is known by again."""
    return identity_hashes(rows, declared.identity, declared.key_time, by_content=declared.by_content)
