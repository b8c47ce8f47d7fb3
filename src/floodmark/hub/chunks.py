"""Accepting a forwarded chunk: a segment and its ledger entry, in one transaction.

    decide → decode → fit → write the segment → register it and update the channel (one transaction) → respond

A crash leaves both or neither, so a sender without a response sends the same chunk again, and the ledger shows whether
it is stored (H1). Two workers with chunks of one channel decide on what they read; the guarded update succeeds for one
of them, and the other reads again (H2).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection

from floodmark import faults, wire
from floodmark.config import SpoolSettings
from floodmark.control import datasets, ledger, provenance
from floodmark.control.datasets import Dataset
from floodmark.control.ledger import Entry
from floodmark.engine import Engine
from floodmark.errors import Retryable, SchemaConflict
from floodmark.hub.decision import AlreadyThere, Disagreement, Take, check_loop, decide, state_of
from floodmark.hub.shares import Room
from floodmark.rows.fit import Fit, fit, fit_table, reasons_by_row
from floodmark.schema import JSON, Column, ColumnType, Schema, parse_type
from floodmark.schema.types import from_arrow, width
from floodmark.sequence import SEQUENCE_MAX, SequenceRange
from floodmark.spool.capture import Capture
from floodmark.spool.ingest import fit_and_evolve, store
from floodmark.wire import (
    COLUMNS,
    GIVEN_UP_RANGES_MAX,
    VERSION,
    VERSIONS,
    Acknowledgement,
    ChunkHeader,
    Columns,
    LedgerState,
    Lines,
)

if TYPE_CHECKING:
    import pyarrow as pa

RACES_MAX = 20
"""How often a chunk is decided again because another worker updated its channel or its dataset."""
MISFITS_SHOWN_MAX = 5


@dataclass(frozen=True, slots=True)
class Accepted:
    """The result of a chunk: the rows stored by this request, and the present end of the channel."""

    stored: int
    state: LedgerState
    acknowledged: Acknowledgement
    version: int

    def content(self) -> dict[str, Any]:
        """The JSON of the response, in the sender's version."""
        found = {"stored": self.stored, "ledger": self.state.content(self.version)}
        return found if self.version == 1 else {**found, "acknowledged": self.acknowledged.content()}


@dataclass(frozen=True, slots=True)
class _Content:
    """The rows of a chunk, fitted to the dataset."""

    dataset: Dataset
    table: pa.Table
    sequence: tuple[int, ...]


@dataclass(slots=True)
class Chunks:
    """Accepts chunks in one worker. Threads share it."""

    engine: Engine
    spool: Capture
    content_bytes_max: int
    limits: wire.Limits = field(default_factory=wire.Limits)
    room: Room = field(default_factory=Room)
    _known: dict[str, Dataset] = field(default_factory=dict)
    _parsing: threading.Lock = field(default_factory=threading.Lock)

    def accept(self, dataset: str, header: ChunkHeader, body: bytes, *, encoding: str, media: str) -> Accepted:
        """Accept a chunk, or raise; when this returns, the result is durable."""
        content_of = partial(self._content, header=header, body=body, encoding=encoding, media=media)
        check_loop(header, store_id=self.engine.store_id)
        declared = self._dataset(dataset)
        content = None
        for _ in range(RACES_MAX):
            seen, given_up = self.engine.database.read(lambda c: _channel(c, header, dataset))
            try:
                step = decide(header, dataset=dataset, seen=seen, given_up=given_up)
            except Disagreement as odd:
                raise Disagreement(odd.error, _state(header, seen, given_up), version=header.version) from odd
            if isinstance(step, AlreadyThere):
                return self._accepted(0, header, dataset, _state(header, seen, given_up))
            if content is None:
                self.spool.check_room(dataset)
                self.room.check(dataset, header.origin, *self.spool.room(dataset))
                content = content_of(declared)
            if step.seen is None and not content.sequence and not header.given_up:
                # Nothing arrived, so nothing is recorded: the next chunk is a first chunk as well. Otherwise a client
                # could fill the control database with channels without rows.
                return self._accepted(0, header, dataset, _state(header, step.entry, []))
            if self._take(content, step, header):
                faults.reach("hub.accepted")
                self.spool.count(dataset, len(body))
                self.room.add(dataset, header.origin, len(body))
                reported = [*given_up, *step.given_up] if step.replayed is None else []
                return self._accepted(len(content.sequence), header, dataset, _state(header, step.entry, reported))
        raise Retryable(f"This chunk conflicted {RACES_MAX} times with others of its channel of {dataset!r}.")

    def _accepted(self, stored: int, header: ChunkHeader, dataset: str, state: LedgerState) -> Accepted:
        acknowledged = Acknowledgement.of(header, hub=self.engine.store_id, dataset=dataset)
        return Accepted(stored, state, acknowledged, header.version)

    def _take(self, content: _Content, step: Take, header: ChunkHeader) -> bool:
        """H1: rows and ledger change together. False if another worker updated the channel first."""

        def move(connection: Connection) -> bool:
            now = self.engine.clock.now()
            if not ledger.write(
                connection, step.entry, seen=step.seen, given_up=step.given_up, replayed=step.replayed, now=now
            ):
                return False
            if content.sequence:  # H5: a chunk without rows does not record a path of rows
                provenance.record(connection, origin=header.origin, dataset=content.dataset.name, stores=header.path)
            faults.reach("hub.stored")
            return True

        if content.sequence:
            return store(self.engine, content.dataset, content.table, also=move)
        return self.engine.database.transact(move, landed=lambda c: _has_moved(c, step.entry))

    # ── the ledger ───────────────────────────────────────────────────────────────────────────────────────────────

    def ledger(self, origin: str, asked: Mapping[str, str], *, allows: Callable[[str], bool]) -> dict[str, Any]:
        """The state of an origin's channels: all of them, or those of one dataset or one partition.

        In version 2 it has the first ranges after the number `after` that were given up.
        """
        version = 1 if asked.get("version", "1") == "1" else VERSION
        ranges_max = None if version == 1 else GIVEN_UP_RANGES_MAX
        text = asked.get("after", "0")
        after = int(text) if text.isascii() and text.isdigit() and len(text) < 20 else 0
        wanted = {key: asked[key] for key in ("dataset", "partition") if key in asked}
        above = SequenceRange(min(after, SEQUENCE_MAX - 1), SEQUENCE_MAX)

        def given_up(connection: Connection, entry: Entry) -> list[SequenceRange]:
            more = None if ranges_max is None else ranges_max + 1
            return ledger.given_up_within(connection, entry, above, ranges_max=more) if entry.given_up_rows else []

        def work(connection: Connection) -> list[dict[str, Any]]:
            return [
                {
                    "dataset": entry.dataset,
                    "partition": entry.partition,
                    **state_of(entry, given_up(connection, entry), ranges_max=ranges_max).content(version),
                }
                for entry in ledger.of_origin(connection, origin, **wanted)
                if allows(entry.dataset)
            ]

        channels = self.engine.database.read(work)
        return {
            "hub": self.engine.store_id,
            "versions": list(VERSIONS),
            "origin": origin,
            "channels": channels,
            "reads": list(wire.MEDIA),
        }

    # ── rows ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _content(self, declared: Dataset, *, header: ChunkHeader, body: bytes, encoding: str, media: str) -> _Content:
        raw = wire.decompress(body, encoding, bytes_max=self.content_bytes_max)
        # One thread at a time: threads that compete for the interpreter's lock in here are several times slower.
        with self._parsing:
            decode = wire.decode_columns if media == COLUMNS else wire.decode_lines
            came = decode(raw, header, self.limits)
            grown, table = self._fitted(declared, header, came)
        return _Content(grown, table, tuple(came.sequence))

    def _fitted(self, declared: Dataset, header: ChunkHeader, came: Columns | Lines) -> tuple[Dataset, pa.Table]:
        """Fit all rows or none, and add their new columns to the dataset, as capture does."""
        limits = self.engine.settings.spool
        grown, fitted = fit_and_evolve(self.engine, declared, lambda current: _fit(current, header, came, limits))
        self._known[declared.name] = grown
        return grown, fitted.table

    def _dataset(self, name: str) -> Dataset:
        """The dataset as this worker last saw it."""
        if name not in self._known or name in self.engine.corrected:
            self.engine.corrected.discard(name)
            self._known[name] = self.engine.database.read(lambda c: datasets.get(c, name))
        return self._known[name]


def _fit(declared: Dataset, header: ChunkHeader, came: Columns | Lines, limits: SpoolSettings) -> Fit:
    known = declared.schema
    names = came.table.column_names if isinstance(came, Columns) else came.columns
    types = {name: parse_type(header.types[name]) for name in names if name in header.types}
    _check_columns(declared, came, names, types, limits)
    schema = known.merge(Column(name, kind) for name, kind in types.items() if name not in known)
    if isinstance(came, Lines):
        fitted = fit(schema, came.columns, came.values, rows=len(came.sequence))
    else:
        fitted = _fit_columns(schema, came, types)
    if fitted.misfits:
        reasons = reasons_by_row(fitted.misfits)
        first = [f"row {came.sequence[row]}: {reason}" for row, reason in list(reasons.items())[:MISFITS_SHOWN_MAX]]
        more = f" (and {len(reasons) - len(first):,} more)" if len(reasons) > len(first) else ""
        raise SchemaConflict(
            f"{len(reasons):,} of {len(came.sequence):,} rows do not fit {declared.name!r}. {'; '.join(first)}{more}.",
            hint="Nothing was stored. Correct the rows, or the dataset that the hub declares.",
        )
    return fitted


def _check_columns(
    declared: Dataset,
    came: Columns | Lines,
    names: Sequence[str],
    types: Mapping[str, ColumnType],
    limits: SpoolSettings,
) -> None:
    """The limits of capture: otherwise one chunk could add more columns than a flush can write."""
    new = [name for name in names if name not in declared.schema]
    widths = dict.fromkeys(new, 1)  # a type that is inferred from values has no fields
    if isinstance(came, Columns):
        arrow = {name: from_arrow(came.table.schema.field(name).type, column=name) for name in new}
        widths |= {name: width(kind) for name, kind in arrow.items() if kind is not None}
    widths |= {name: width(types[name]) for name in new if name in types}
    declared.demands(limits).check_columns(declared.schema, new, taken=sum(widths.values()))


def _fit_columns(schema: Schema, came: Columns, sent_types: Mapping[str, ColumnType]) -> Fit:
    """Columns with the dataset's types are used unchanged; others are read like lines."""
    arrow = {field.name: from_arrow(field.type, column=field.name) for field in came.table.schema}
    sent = {name: sent_types.get(name, kind) for name, kind in arrow.items()}
    # Arrow has no json: in a list or a struct it is a string, and only the header distinguishes them.
    if all(
        (name not in schema or schema.column(name).type == kind) and kind in {arrow[name], JSON}
        for name, kind in sent.items()
    ):
        return fit_table(schema, came.table)
    theirs = Schema(tuple(Column(name, kind) for name, kind in sent.items() if kind is not None))
    columns, values = wire.read_as_lines(came.table, schema=theirs)
    return fit(schema, columns, values, rows=len(came.sequence))


def _channel(connection: Connection, header: ChunkHeader, dataset: str) -> tuple[Entry | None, list[SequenceRange]]:
    """The present state of a channel, and its given-up ranges that overlap the chunk."""
    seen = ledger.find(connection, origin=header.origin, dataset=dataset, partition=header.partition)
    if seen is None or not seen.given_up_rows:
        return seen, []
    # The response to a sender of version 1 has every given-up row by number: it does not know ranges.
    within = header.range if header.version > 1 or header.replay else SequenceRange(0, SEQUENCE_MAX)
    ranges_max = GIVEN_UP_RANGES_MAX + 1 if header.version > 1 else None
    return seen, ledger.given_up_within(connection, seen, within, ranges_max=ranges_max)


def _state(header: ChunkHeader, entry: Entry | None, given_up: Sequence[SequenceRange]) -> LedgerState:
    return state_of(entry, given_up, ranges_max=None if header.version == 1 else GIVEN_UP_RANGES_MAX)


def _has_moved(connection: Connection, entry: Entry) -> bool:
    found = ledger.find(connection, origin=entry.origin, dataset=entry.dataset, partition=entry.partition)
    return found == entry
