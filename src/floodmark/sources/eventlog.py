"""The event log as a source: each event becomes one row of a dataset, exactly once, in local-ingestion order.

A transaction without events (a decision that needed none) becomes one row too, its *marker*: what hangs below it is
deeper by one, so canonical order cannot be computed without it. Markers have no number in the log; the source of
markers remembers the transactions themselves instead.

A step of the loader (`sources.steps`) takes the next events. Positions belong to the log's local numbering: when that
was rebuilt or copied (its identity differs), or the position no longer names the event it named, the log is read
again from its beginning, and flush drops the events that are stored already: they have the same identity.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

from floodmark.control import datasets, sources
from floodmark.control.datasets import Dataset
from floodmark.control.quarantine import QuarantineInput
from floodmark.control.sources import Source
from floodmark.engine import Engine
from floodmark.errors import SchemaConflict, UnserialisableValue
from floodmark.rows.envelope import encode_envelope
from floodmark.rows.fit import fit, reasons_by_row
from floodmark.schema import Schema
from floodmark.sources.steps import Step, StepLoader

if TYPE_CHECKING:
    from floodmark.eventlog import EventLog, RecordedEvent
    from floodmark.eventlog.transactions import Transaction

Item = TypeVar("Item")

STEP_EVENTS_MAX = 50_000
IDENTITY = (("event_id",),)
EVENT_TIME = "recorded_at"
COLUMNS = {
    "event_id": "string not null",
    "recorded_at": "timestamp not null",
    "stream": "string",
    "type": "string",
    "data": "json",
    "metadata": "json",
    "log": "string not null",
    "position": "long",
    "transaction_id": "string not null",
    "parent_transaction_ids": "list<string>",
    "ordinal": "long",
    "created_at": "string",
    "replica_id": "string",
    "depth_on_arrival": "long",
    "version_on_arrival": "long",
}
"""One row per event; a marker has its transaction's id as `event_id` and null for `ordinal` and all else that only an
event has. `log` and `position` are its place in the local numbering; the transaction's id, parents and
time define the canonical order (`floodmark.lake.linearise` computes it for millions of rows); depth and
stream version are as they were on arrival, and a later merge may change them."""


@dataclass(frozen=True, slots=True)
class FeedReport:
    """What one run added to the spool; `markers` counts the transactions without events."""

    dataset: str
    events: int = 0
    steps: int = 0
    position: int = 0
    """Up to which event of the log everything is stored, by this feeding or an earlier one."""
    markers: int = 0


def event_dataset(name: str) -> Dataset:
    """The dataset that event rows go to."""
    return Dataset(name=name, identity=IDENTITY, event_time=EVENT_TIME, partition_by=(), schema=Schema.declare(COLUMNS))


def feed(engine: Engine, dataset: str, log: EventLog) -> FeedReport:
    """Store every event that has arrived in the log since the last feeding."""
    declared = engine.database.read(lambda c: datasets.get(c, dataset))
    if declared.identity != IDENTITY or declared.event_time != EVENT_TIME:
        raise SchemaConflict(
            f"Dataset {dataset!r} is not declared for events.",
            hint="Feed a separate dataset: the first run declares it.",
        )
    log.refresh()
    feeding = _Feeding(engine, declared, log, FeedReport(dataset))
    loader = StepLoader(engine, dataset, "this event log", feeding.note_stored)
    # The markers first: an event is then never in the dataset without what was above it in the log.
    loader.load(feeding.read_markers)
    loader.load(feeding.read_events)
    return feeding.report


@dataclass(slots=True, kw_only=True)
class _Step(Step):
    """Some events, or some markers."""

    counted: FeedReport
    """What it adds to the report."""


@dataclass(slots=True)
class _Feeding:
    """One run."""

    engine: Engine
    declared: Dataset
    log: EventLog
    report: FeedReport

    def read_markers(self) -> Iterator[_Step]:
        source = self._begun(f"eventlog:{self.log.identity}:markers", position="[]")
        fed = json.loads(source.position)
        known = set(fed)
        empty = (item for item in self.log.history if not item.events and item.id not in known)
        for transactions in _some(empty):
            fed += [item.id for item in transactions]
            depth = self.log.history.graph.depth
            rows = [_marker(item, self.log.identity, depth=depth[item.id]) for item in transactions]
            counted = FeedReport(self.declared.name, markers=len(rows), position=self.report.position)
            yield self._step(source, rows, position=json.dumps(fed), counted=counted)
            source = replace(source, next_ordinal=source.next_ordinal + 1)

    def read_events(self) -> Iterator[_Step]:
        source = self._source()
        begun = _position(source)[0]
        self.report = replace(self.report, position=begun)
        for events in _some(event for event in self.log.arrivals(begun) if event.seq is not None):
            rows = [_row(event, self.log.identity) for event in events]
            last = events[-1]
            counted = FeedReport(self.declared.name, events=len(rows), position=last.seq or 0)
            yield self._step(source, rows, position=_text(last.seq, last.event_id), counted=counted)
            source = replace(source, next_ordinal=source.next_ordinal + 1)

    def note_stored(self, step: _Step) -> None:
        before, counted = self.report, step.counted
        self.report = replace(
            before,
            events=before.events + counted.events,
            markers=before.markers + counted.markers,
            steps=before.steps + 1,
            position=counted.position,
        )

    def _source(self) -> Source:
        """Where to continue: at the beginning, if the position names another event than it did."""
        found = self._begun(f"eventlog:{self.log.identity}", position=_text(0, None))
        seq, event_id = _position(found)
        if seq and self.log.ingestion.entry_at(seq) != event_id:
            return replace(found, position=_text(0, None))
        return found

    def _begun(self, id: str, *, position: str) -> Source:
        dataset = self.declared.name
        return self.engine.database.transact(lambda c: sources.begin(c, id=id, dataset=dataset, position=position))

    def _step(self, source: Source, rows: list[dict[str, Any]], *, position: str, counted: FeedReport) -> _Step:
        values = [[row[name] for row in rows] for name in COLUMNS]
        fitted = fit(self.declared.schema, list(COLUMNS), values, rows=len(rows))
        quarantined = [
            QuarantineInput(reason=f"event {rows[row]['event_id']}: {reason}", payload=_payload(rows[row]))
            for row, reason in reasons_by_row(fitted.misfits).items()
        ]
        moves: dict[str, tuple[Source | None, str]] = {source.id: (source, position)}
        return _Step(
            dataset=self.declared, tables=[fitted.table], quarantined=quarantined, moves=moves, counted=counted
        )


def _payload(row: dict[str, Any]) -> str:
    """The row as an envelope; as plain text where it holds something that JSON cannot."""
    try:
        return encode_envelope(list(row), [[value] for value in row.values()], rows=1).decode()
    except UnserialisableValue:
        return repr(row)


def _some(arrivals: Iterator[Item]) -> Iterator[list[Item]]:
    while some := list(itertools.islice(arrivals, STEP_EVENTS_MAX)):
        yield some


def _row(event: RecordedEvent, identity: str) -> dict[str, Any]:
    return {
        "event_id": event.event_id,
        "recorded_at": _instant(event.created_at),
        "stream": event.stream,
        "type": event.type,
        "data": event.data,
        "metadata": event.metadata,
        "log": identity,
        "position": event.seq,
        "transaction_id": event.transaction_id,
        "parent_transaction_ids": list(event.parents),
        "ordinal": event.ordinal,
        "created_at": event.created_at,
        "replica_id": event.replica_id,
        "depth_on_arrival": event.depth,
        "version_on_arrival": event.version,
    }


def _marker(transaction: Transaction, identity: str, *, depth: int) -> dict[str, Any]:
    return dict.fromkeys(COLUMNS) | {
        "event_id": transaction.id,
        "recorded_at": _instant(transaction.created_at),
        "log": identity,
        "transaction_id": transaction.id,
        "parent_transaction_ids": list(transaction.parents),
        "created_at": transaction.created_at,
        "replica_id": transaction.replica,
        "depth_on_arrival": depth,
    }


def _instant(created_at: str) -> datetime:
    """The transaction's time to the microsecond; its exact text is in `created_at`.

    A text that is no time (nothing checks it in a foreign file) gives the epoch: the same for every replica.
    """
    head, dot, rest = created_at.partition(".")
    digits = "".join(itertools.takewhile(str.isdigit, rest))
    try:
        return datetime.fromisoformat(f"{head}{dot}{digits[:6]}{rest[len(digits) :]}").astimezone(UTC)
    except (ValueError, OverflowError):  # the latter where it lies outside the years 1 to 9999 in UTC
        return datetime(1970, 1, 1, tzinfo=UTC)


def _text(seq: int | None, event_id: str | None) -> str:
    return json.dumps({"seq": seq or 0, "event_id": event_id})


def _position(source: Source) -> tuple[int, str | None]:
    found = json.loads(source.position)
    return found["seq"], found["event_id"]
