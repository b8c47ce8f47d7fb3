"""What a person does about a sink that is stuck: give a chunk up, or send rows again that were given up.

A chunk that is skipped is settled like a delivered one, and each of its rows goes to quarantine under the sink's name:
nothing is forgotten, and `replay` sends it later. A replayed row leaves as a parcel of its own, under a key that
stays the same: replayed twice, it arrives once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from floodmark import faults
from floodmark.control import deliveries, quarantine, sinks
from floodmark.control.deliveries import Channel, Intent
from floodmark.control.quarantine import Entry
from floodmark.delivery.channel import given_up_rows
from floodmark.delivery.destination import Parcel, TransactionalDestination
from floodmark.delivery.outcomes import Refused
from floodmark.delivery.source import RowSource
from floodmark.delivery.tick import Exporter
from floodmark.errors import Permanent
from floodmark.sequence import SequenceRange


@dataclass(frozen=True, slots=True)
class Skipped:
    """A chunk that was given up."""

    dataset: str
    partition: str
    range: SequenceRange
    rows: int


@dataclass(frozen=True, slots=True)
class Replayed:
    """What became of rows that were given up before."""

    rows: int
    refused: int
    """Still not taken: they stay in quarantine."""


@dataclass(frozen=True, slots=True)
class Remedies:
    """The two ways on for a sink that is stuck."""

    exporter: Exporter

    def skip(self, name: str, *, dataset: str | None = None, partition: str | None = None) -> list[Skipped]:
        """Give up the first chunk that has not got through, of each channel that matches."""
        sink, lags = self.exporter.lags(name)
        skipped = []
        for lag in lags:
            channel = lag.channel
            if not lag.open or dataset not in (None, channel.dataset) or partition not in (None, channel.partition):
                continue
            found = self._skip(channel, self.exporter.sources([lag])[channel.dataset])
            skipped += [] if found is None else [found]
        if not skipped:
            raise Permanent(
                f"Sink {name!r} has no chunk under way there.",
                hint="Only what was tried and did not get through can be skipped.",
            )
        self.exporter.database.transact(lambda c: sinks.set_state(c, sink.instance, state="active", reason=None))
        return skipped

    def _skip(self, channel: Channel, source: RowSource) -> Skipped | None:
        database, clock = self.exporter.database, self.exporter.clock

        def first(connection: Connection) -> tuple[Intent, SequenceRange] | None:
            intent = deliveries.open_intent(connection, channel)
            pending = [] if intent is None else deliveries.chunks_of(connection, intent)
            spans = [chunk.range for chunk in pending if chunk.state == "pending"]
            return (intent, spans[0]) if intent is not None and spans else None

        found = database.read(first)
        if found is None:
            return None
        intent, span = found
        rows = given_up_rows(source.rows(intent, span))
        ours = database.transact(
            lambda c: deliveries.give_up(c, intent, span, rows, reason="Skipped on demand.", now=clock.now())
        )
        return Skipped(channel.dataset, channel.partition, span, len(rows)) if ours else None

    def replay(self, name: str, *, id: str | None = None) -> Replayed:
        """Send the rows again that were given up, in sequence order; all of the sink's, or one."""
        database = self.exporter.database
        sink = database.read(lambda c: sinks.get(c, name))
        entries = database.read(lambda c: quarantine.of_sink(c, sink.instance))
        if id is not None:
            wanted = database.read(lambda c: quarantine.get(c, id))
            entries = [entry for entry in entries if entry.id == wanted.id]
            if not entries:
                raise Permanent(f"Entry {id!r} is not a held row of sink {name!r}.")
        done = [self._replay(sink, entry) for entry in entries]
        return Replayed(sum(done), len(done) - sum(done))

    def _replay(self, sink: sinks.Sink, entry: Entry) -> bool:
        exporter, clock = self.exporter, self.exporter.clock
        channel = Channel(sink.instance, entry.dataset, entry.partition or "")
        source = RowSource(exporter.lake, exporter.reader.view(channel.dataset))
        parcel = _parcel(source, channel, entry.seq or 0)
        destination = exporter.destination(sink, source.view.dataset, channel, {})
        if isinstance(destination, TransactionalDestination):

            def within(connection: Connection) -> bool:
                mine = quarantine.decide(connection, entry.id, state="replayed", now=clock.now())
                if mine:
                    destination.deliver_within(connection, parcel)
                return mine

            return exporter.database.transact(within)
        try:
            destination.deliver(parcel)
        except Refused as error:
            words = error.words
            exporter.database.transact(lambda c: quarantine.set_reason(c, entry.id, words))
            return False
        faults.reach("delivery.replayed")
        exporter.database.transact(lambda c: quarantine.decide(c, entry.id, state="replayed", now=clock.now()))
        return True


def _parcel(source: RowSource, channel: Channel, seq: int) -> Parcel:
    span = SequenceRange(seq - 1, seq)
    settings: dict[str, Any] = {"columns": list(source.view.dataset.schema.names)}
    piece = source.rows(Intent("", channel, span, settings), span)
    if piece.rows != 1:
        raise Permanent(
            f"Row {seq} of {channel.dataset!r} is no longer in the lake.",
            hint="`floodmark quarantine show` still has its text; discard the entry.",
        )
    return Parcel(channel, span, piece.table, piece.sequence, piece.ids, piece.tally, replay=True)
