"""What a person does about a sink that is stuck: give a chunk up, or send rows again that were given up.

A chunk that is skipped is settled like a delivered one, and each of its rows goes to quarantine under the sink's name:
nothing is forgotten, and `replay` sends it later. A replayed row leaves as a parcel of its own, under a key that
stays the same: replayed twice, it arrives once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection

from floodmark import faults
from floodmark.control import chunks, deliveries, quarantine, sinks
from floodmark.control.chunks import Chunk
from floodmark.control.deliveries import Channel, Intent
from floodmark.control.quarantine import Entry
from floodmark.control.reach import Reach, reach_back, reach_of
from floodmark.delivery.destination import Destination, LedgerDestination, Parcel, TransactionalDestination
from floodmark.delivery.kinds import kind_of
from floodmark.delivery.outcomes import Ahead, Oversized, Refused
from floodmark.delivery.source import RowSource
from floodmark.delivery.tick import Exporter
from floodmark.errors import Permanent
from floodmark.sequence import SequenceRange, Tally
from floodmark.wire import GivenUpRange


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
            pending = [] if intent is None else chunks.of_intent(connection, intent)
            spans = [chunk.range for chunk in pending if chunk.state == "pending"]
            return (intent, spans[0]) if intent is not None and spans else None

        found = database.read(first)
        if found is None:
            return None
        intent, span = found
        rows = source.rows(intent, span).one_by_one()
        ours = database.transact(
            lambda c: chunks.give_up(c, intent, span, rows, reason="Skipped on demand.", now=clock.now())
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
        done = 0
        self._tell_ledgers(sink, entries)
        for group in self._by_chunk(sink, entries):
            done += self._replay_chunk(sink, group) if group.whole else 0
            if not group.whole or not self._is_replayed(group.entries[0]):
                done += sum(self._replay(sink, entry) for entry in group.entries)
        return Replayed(done, len(entries) - done)

    def _tell_ledgers(self, sink: sinks.Sink, entries: Sequence[Entry]) -> None:
        """A ledger takes a row as replayed only once it knows that the row was given up.

        It learns so from the next chunk with rows. Where none has left since, a chunk without rows tells it now.
        """
        if not kind_of(sink).contiguous:
            return
        for channel in {Channel(sink.instance, entry.dataset, entry.partition or "") for entry in entries}:
            _, destination = self._way(sink, channel, {})
            if not _keeps_ledger(destination):
                continue
            reach, mark = self.exporter.database.read(
                lambda c, channel=channel: (reach_back(c, channel), deliveries.watermark(c, channel))  # type: ignore[misc]
            )
            if mark is None or not reach.given_up.rows:
                continue
            with contextlib.suppress(Ahead):  # it knows that, and more
                destination.deliver(_without_rows(channel, SequenceRange(reach.after, mark.seq), reach))

    def _by_chunk(self, sink: sinks.Sink, entries: Sequence[Entry]) -> list[_Group]:
        """Rows that were given up together, with the chunk they were given up with."""
        groups: dict[tuple[str, SequenceRange], _Group] = {}
        for entry in entries:
            channel = Channel(sink.instance, entry.dataset, entry.partition or "")
            found = self.exporter.database.read(
                lambda c, channel=channel, entry=entry: chunks.given_up_chunk(c, channel, entry.seq or 0)  # type: ignore[misc]
            )
            alone = SequenceRange((entry.seq or 1) - 1, entry.seq or 1)
            key = (entry.dataset, alone if found is None else found[1].range)
            groups.setdefault(key, _Group(channel, found)).entries.append(entry)
        return list(groups.values())

    def _replay_chunk(self, sink: sinks.Sink, group: _Group) -> int:
        """Send a chunk as it was sent before, under the same range: whoever has it already will know it by that.

        A row sent by itself under another key could arrive a second time at a server that knows keys only.
        """
        if group.found is None:
            return 0
        intent, chunk = group.found
        source, destination = self._way(sink, group.channel, intent.settings)
        if isinstance(destination, TransactionalDestination):
            return 0  # row by row: effect and record are one there
        piece = source.rows(intent, chunk.range)
        span, replay = chunk.range, _keeps_ledger(destination)
        if replay and piece.tally != chunk.tally:
            return 0  # some of it is not in the lake any more: row by row, then
        if kind_of(sink).contiguous and not replay:
            span = self.exporter.database.read(lambda c: reach_of(c, group.channel, chunk))
        parcel = Parcel(group.channel, span, piece.table, piece.sequence, piece.ids, piece.tally, replay=replay)
        try:
            destination.deliver(parcel)
        except (Refused, Ahead, Oversized):
            return 0  # a ledger is past it, or it is still poison: row by row, then
        faults.reach("delivery.replayed")
        return self._decide(*group.entries)

    def _replay(self, sink: sinks.Sink, entry: Entry) -> bool:
        channel = Channel(sink.instance, entry.dataset, entry.partition or "")
        source, destination = self._way(sink, channel, {})
        parcel = _parcel(source, channel, entry.seq or 0)
        if isinstance(destination, TransactionalDestination):
            return self._replay_within(destination, parcel, entry)
        try:
            destination.deliver(parcel)
        except Refused as error:
            words = error.words
            self.exporter.database.transact(lambda c: quarantine.set_reason(c, entry.id, words))
            return False
        faults.reach("delivery.replayed")
        return bool(self._decide(entry))

    def _replay_within(self, destination: TransactionalDestination, parcel: Parcel, entry: Entry) -> bool:
        def work(connection: Connection) -> bool:
            mine = quarantine.decide(connection, entry.id, state="replayed", now=self.exporter.clock.now())
            if mine:
                destination.deliver_within(connection, parcel)
            return mine

        return self.exporter.database.transact(work)

    def _way(self, sink: sinks.Sink, channel: Channel, settings: dict[str, Any]) -> tuple[RowSource, Destination]:
        source = RowSource(self.exporter.lake, self.exporter.reader.view(channel.dataset))
        return source, self.exporter.destination(sink, source.view.dataset, channel, settings)

    def _decide(self, *entries: Entry) -> int:
        now = self.exporter.clock.now()
        return self.exporter.database.transact(
            lambda c: sum(quarantine.decide(c, entry.id, state="replayed", now=now) for entry in entries)
        )

    def _is_replayed(self, entry: Entry) -> bool:
        return self.exporter.database.read(lambda c: quarantine.get(c, entry.id)).state == "replayed"


@dataclass(frozen=True, slots=True)
class _Group:
    """Held rows that were given up with one chunk."""

    channel: Channel
    found: tuple[Intent, Chunk] | None
    entries: list[Entry] = field(default_factory=list)

    @property
    def whole(self) -> bool:
        """Whether all rows of the chunk are still held: one that has been replayed must not go again."""
        return (
            self.found is not None and self.found[1].tally is not None and self.found[1].tally.rows == len(self.entries)
        )


def _keeps_ledger(destination: Destination) -> bool:
    return isinstance(destination, LedgerDestination) and destination.keeps_ledger


def _without_rows(channel: Channel, span: SequenceRange, reach: Reach) -> Parcel:
    import pyarrow as pa

    numbers, ids = pa.chunked_array([], pa.int64()), pa.chunked_array([], pa.string())
    given_up = GivenUpRange(span, reach.given_up)
    return Parcel(channel, span, pa.table({}), numbers, ids, Tally(), before=reach.before, given_up=given_up)


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
