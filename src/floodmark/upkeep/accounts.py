"""What the records of one channel say, and the account of it that its destination is held against."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection

from floodmark.control import deliveries, inspection
from floodmark.control.deliveries import Channel, Intent, Watermark
from floodmark.control.inspection import ChunkRecord, GivenUpRow, IntentRecord, Removal
from floodmark.control.reach import Reach, reach_back
from floodmark.control.sinks import Sink
from floodmark.delivery.destination import Account, Settled
from floodmark.delivery.kinds import kind_of
from floodmark.delivery.source import RowSource
from floodmark.sequence import SequenceRange, Tally
from floodmark.upkeep.conservation import Committed

if TYPE_CHECKING:
    import pyarrow as pa

_HOW = frozenset({"format", "chunk_rows", "chunk_bytes"})
"""Pinned settings that say how, and not where to, chunks go."""


@dataclass(frozen=True, slots=True)
class Records:
    """All that is on record about one channel, read at one instant."""

    mark: Watermark | None
    reach: Reach | None
    """Of a channel whose destination keeps a ledger: up to where that must reach."""
    intents: list[IntentRecord]
    committed: Committed
    figures: list[inspection.Figures]
    removed: list[Removal]
    """What retention and purge took out; behind it, once more, what of that never got to the sink."""
    forfeited: list[Removal]
    given_up: list[GivenUpRow]

    @property
    def chunks(self) -> list[ChunkRecord]:
        return [chunk for item in self.intents for chunk in item.chunks]


def read_records(connection: Connection, sink: Sink, channel: Channel) -> Records:
    figures = inspection.figures_of(connection, channel.dataset, channel.partition)
    forfeited = inspection.forfeits_of(connection, channel)
    return Records(
        deliveries.watermark(connection, channel),
        reach_back(connection, channel) if kind_of(sink).contiguous else None,
        inspection.intents_of(connection, channel),
        Committed(figures),
        figures,
        [*inspection.removals_of(connection, channel.dataset, channel.partition), *forfeited],
        forfeited,
        inspection.given_up_of(connection, channel),
    )


def accounts(
    sink: Sink,
    channel: Channel,
    records: Records,
    settled: Sequence[ChunkRecord],
    unrecorded: Sequence[SequenceRange],
    source: RowSource,
) -> Iterator[tuple[dict[str, Any], Account]]:
    """One account for each place that the channel has been delivered to: a sink's url may have changed."""
    if source.view.snapshot is None:
        return
    pinned = {item.intent.id: item.intent for item in records.intents}
    today = Intent("", channel, SequenceRange(0, 1), _pinned_today(sink, source))
    places: dict[str, list[Settled]] = {_place(sink, today): []}
    settings = {_place(sink, today): today.settings}
    given_up = {row.seq: row.tally for row in records.given_up if row.state != "replayed"}
    held = frozenset(given_up)

    def add(intent: Intent, item: Settled) -> None:
        places.setdefault(_place(sink, intent), []).append(item)
        settings.setdefault(_place(sink, intent), intent.settings)

    for chunk in settled:
        intent = pinned[chunk.intent]
        if chunk.state == "acknowledged":
            add(intent, _settled(source, intent, chunk.range, chunk.tally, given_up))
        sent = [row for row in records.given_up if row.state == "replayed" and row.seq in chunk.range]
        if chunk.state == "quarantined" and sent:
            tally = sum((row.tally for row in sent), Tally())
            item = _settled(source, intent, chunk.range, tally, given_up)
            add(intent, replace(item, replayed=tuple(row.seq for row in sent)))
    for span in unrecorded:  # U31
        tally = _committed_in(records, source, today, span)
        if tally.rows:
            add(today, replace(_settled(source, today, span, tally, given_up), recorded=False))
    mark = records.mark or Watermark(0, Tally())
    for place, items in places.items():
        pending = [
            chunk.range
            for item in records.intents
            if _place(sink, item.intent) == place
            for chunk in item.chunks
            if chunk.range.through > mark.seq
        ]
        delivered = any(item.tally.rows for item in items)
        reach = records.reach if delivered else None
        yield (
            {key: value for key, value in settings[place].items() if key in kind_of(sink).pinned},
            Account(
                tuple(sorted(items, key=lambda item: item.range)),
                tuple(pending),
                mark.seq,
                source.view.horizon,
                0 if reach is None else reach.after,
                Tally() if reach is None else reach.before,
                held,
            ),
        )


def _pinned_today(sink: Sink, source: RowSource) -> dict[str, Any]:
    own = {key: sink.settings[key] for key in kind_of(sink).pinned}
    return own | {"columns": list(source.view.dataset.schema.names), "where": sink.settings.get("where")}


def _place(sink: Sink, intent: Intent) -> str:
    where_to = {key: intent.settings.get(key) for key in kind_of(sink).pinned if key not in _HOW}
    return json.dumps(where_to, sort_keys=True)


def _settled(
    source: RowSource, intent: Intent, span: SequenceRange, tally: Tally, given_up: Mapping[int, Tally]
) -> Settled:
    inside = {seq: item for seq, item in given_up.items() if seq in span}
    place = replace(source.place(intent), given_up=given_up)

    def fetch() -> pa.Table:
        import pyarrow as pa
        import pyarrow.compute as pc

        piece = source.rows(intent, span)
        kept = pc.invert(pc.is_in(piece.sequence, pa.array(sorted(inside), pa.int64())))
        return piece.table.filter(kept) if inside else piece.table

    return Settled(span, tally, place, fetch)


def _committed_in(records: Records, source: RowSource, intent: Intent, span: SequenceRange) -> Tally:
    """What a stretch without a chunk held: by the blocks where they say so, else in the lake and removed from there."""
    keep = intent.settings.get("where")
    known = records.committed.within(span)
    if known is not None and (keep is None or not known.rows):
        return known
    gone = [item for item in records.removed if item.range.intersect(span) == item.range]
    lost = [item for item in records.forfeited if item.range.intersect(span) == item.range]
    # Twice: once for the removal that it is part of, once for its own entry among them.
    delivered = sum((item.tally for item in gone), Tally()) - sum((item.tally for item in (*lost, *lost)), Tally())
    return source.totals(intent.channel, span, keep=keep) + delivered
