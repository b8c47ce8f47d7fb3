"""Deliveries as the control database knows them: sinks, watermarks, intents, chunks.

A *channel* is one sink instance's way through one partition of one dataset. Its life, over and over:

    watermark ──pin──▶ open intent ──plan──▶ pending chunks ──acknowledge──▶ … ──▶ closed, watermark moved

Invariants
- D1 A range is pinned before anything leaves, with the settings it leaves under: a retry sends the same ranges,
  whatever arrived, was compacted or reconfigured meanwhile.
- D2 The watermark moves only over a gapless run of settled chunks, and never back.
- D3 Chunks tile the intent's range without holes, are recorded before they leave, and are never computed again;
  a split replaces its parent in one transaction.
- D4 At most one open intent per channel; only while it is open is a chunk acknowledged.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, and_, func, select, update

from floodmark.control.schema import block_partitions, blocks, chunks, datasets, intents, partitions, sinks, watermarks
from floodmark.errors import InvalidName, UnknownSink
from floodmark.sequence import SequenceRange, Tally


@dataclass(frozen=True, slots=True)
class Sink:
    """One configured destination. The instance is its identity: a removed and re-added sink starts anew."""

    instance: str
    name: str
    kind: str
    settings: dict[str, Any]
    state: str = "active"
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Channel:
    """A sink instance's way through one partition of one dataset."""

    sink: str
    dataset: str
    partition: str


@dataclass(frozen=True, slots=True)
class Watermark:
    """Everything up to `seq` has been delivered: so many rows, with this checksum."""

    seq: int
    tally: Tally


@dataclass(frozen=True, slots=True)
class Lag:
    """A channel with something to deliver."""

    channel: Channel
    horizon: int


@dataclass(frozen=True, slots=True)
class Intent:
    """A pinned range, with the settings that were in force when it was pinned."""

    id: str
    channel: Channel
    range: SequenceRange
    settings: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Chunk:
    """One request or one object of an intent."""

    range: SequenceRange
    state: str
    tally: Tally | None = None


@dataclass(frozen=True, slots=True)
class Stretch:
    """Where a partition's rows stand: so many of them between two numbers."""

    rows: int
    first_seq: int
    last_seq: int


# ── sinks ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def insert_sink(connection: Connection, sink: Sink, *, now: datetime) -> None:
    if find_sink(connection, sink.name) is not None:
        raise InvalidName(f"There is a sink {sink.name!r} already.", hint="Remove it first, or choose another name.")
    connection.execute(
        sinks.insert().values(
            instance=sink.instance,
            name=sink.name,
            kind=sink.kind,
            settings=json.dumps(sink.settings, sort_keys=True),
            state=sink.state,
            created_at=now.isoformat(),
        )
    )


def find_sink(connection: Connection, name: str) -> Sink | None:
    row = connection.execute(select(sinks).where(sinks.c.name == name, sinks.c.state != "removed")).one_or_none()
    return None if row is None else _sink(row)


def get_sink(connection: Connection, name: str) -> Sink:
    found = find_sink(connection, name)
    if found is None:
        known = ", ".join(sink.name for sink in every_sink(connection)) or "none yet"
        raise UnknownSink(f"There is no sink {name!r} in this store (there are: {known}).")
    return found


def every_sink(connection: Connection) -> list[Sink]:
    found = connection.execute(select(sinks).where(sinks.c.state != "removed").order_by(sinks.c.name))
    return [_sink(row) for row in found]


def set_sink_state(connection: Connection, instance: str, *, state: str, reason: str | None) -> None:
    connection.execute(
        update(sinks).where(sinks.c.instance == instance, sinks.c.state != "removed").values(state=state, reason=reason)
    )


# ── watermarks and intents ───────────────────────────────────────────────────────────────────────────────────────────


def watermark(connection: Connection, channel: Channel) -> Watermark | None:
    row = connection.execute(select(watermarks).where(_of(watermarks, channel))).one_or_none()
    return None if row is None else Watermark(row.seq, Tally.of(row.row_count, row.checksum))


def lagging(connection: Connection, sink: str) -> list[Lag]:
    """The channels of a sink with rows behind their watermark, or with an intent that is still open.

    One look at the control database: a tick with nothing new ends here, without Spark and without the lake.
    """
    mark = and_(
        watermarks.c.sink == sink,
        watermarks.c.dataset == partitions.c.dataset,
        watermarks.c.partition_key == partitions.c.partition_key,
    )
    opened = and_(
        intents.c.sink == sink,
        intents.c.dataset == partitions.c.dataset,
        intents.c.partition_key == partitions.c.partition_key,
        intents.c.state == "open",
    )
    found = connection.execute(
        select(partitions.c.dataset, partitions.c.partition_key, datasets.c.horizon)
        .join(datasets, datasets.c.name == partitions.c.dataset)
        .outerjoin(watermarks, mark)
        .outerjoin(intents, opened)
        .where((partitions.c.last_seq > func.coalesce(watermarks.c.seq, 0)) | intents.c.id.is_not(None))
        .order_by(partitions.c.dataset, partitions.c.partition_key)
    )
    return [Lag(Channel(sink, row.dataset, row.partition_key), row.horizon) for row in found]


def open_intent(connection: Connection, channel: Channel) -> Intent | None:
    row = connection.execute(select(intents).where(_of(intents, channel), intents.c.state == "open")).one_or_none()
    return None if row is None else _intent(row)


def pin(
    connection: Connection,
    channel: Channel,
    *,
    id: str,
    horizon: int,
    settings: dict[str, Any],
    start: int,
    now: datetime,
) -> Intent | None:
    """D1: adopt the channel's open intent with *its* settings, else pin `(watermark, horizon]`; None if that is empty.

    The watermark is read in the transaction that inserts the intent. Read before it, two exporters would pin
    two ranges that overlap.
    """
    mark = watermark(connection, channel)
    if mark is None:
        mark = Watermark(start, Tally())
        connection.execute(watermarks.insert().values(**_key(channel), seq=start))
    adopted = open_intent(connection, channel)
    if adopted is not None:
        return adopted
    if mark.seq >= horizon:
        return None
    intent = Intent(id, channel, SequenceRange(mark.seq, horizon), settings)
    connection.execute(
        intents.insert().values(
            id=id,
            **_key(channel),
            after_seq=intent.range.after,
            through_seq=intent.range.through,
            settings=json.dumps(settings, sort_keys=True),
            state="open",
            pinned_at=now.isoformat(),
        )
    )
    return intent


# ── chunks ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def stretches(connection: Connection, channel: Channel, within: SequenceRange) -> list[Stretch]:
    """Where the partition's rows are, block by block: so chunk boundaries need no scan, and gaps cost nothing."""
    found = connection.execute(
        select(block_partitions)
        .join(blocks, blocks.c.id == block_partitions.c.block)
        .where(
            blocks.c.dataset == channel.dataset,
            blocks.c.state == "committed",
            block_partitions.c.partition_key == channel.partition,
            block_partitions.c.last_seq > within.after,
            block_partitions.c.first_seq <= within.through,
        )
        .order_by(block_partitions.c.first_seq)
    )
    return [Stretch(row.row_count, row.first_seq, row.last_seq) for row in found]


def plan(connection: Connection, intent: Intent, ranges: Sequence[SequenceRange]) -> list[Chunk]:
    """D3: record the chunks before the first one leaves; those that are recorded already stand."""
    recorded = chunks_of(connection, intent)
    if recorded:
        return recorded
    _check_tiling(intent.range, ranges)
    connection.execute(
        chunks.insert(),
        [
            {"intent": intent.id, "after_seq": item.after, "through_seq": item.through, "state": "pending"}
            for item in ranges
        ],
    )
    return [Chunk(item, "pending") for item in ranges]


def chunks_of(connection: Connection, intent: Intent) -> list[Chunk]:
    found = connection.execute(select(chunks).where(chunks.c.intent == intent.id).order_by(chunks.c.after_seq))
    return [_chunk(row) for row in found]


def split(connection: Connection, intent: Intent, parent: SequenceRange, at: int) -> bool:
    """Replace a pending chunk by its two halves; false if it is no longer pending, or the intent is closed."""
    if not parent.after < at < parent.through or open_intent(connection, intent.channel) != intent:
        return False
    gone = connection.execute(
        chunks.delete().where(
            chunks.c.intent == intent.id,
            chunks.c.after_seq == parent.after,
            chunks.c.through_seq == parent.through,
            chunks.c.state == "pending",
        )
    )
    if gone.rowcount != 1:
        return False
    halves = (SequenceRange(parent.after, at), SequenceRange(at, parent.through))
    connection.execute(
        chunks.insert(),
        [
            {"intent": intent.id, "after_seq": half.after, "through_seq": half.through, "state": "pending"}
            for half in halves
        ],
    )
    return True


def acknowledge(connection: Connection, intent: Intent, range: SequenceRange, tally: Tally, *, now: datetime) -> bool:
    """Settle a chunk, move the watermark over the settled prefix, close the intent if that was its last.

    False if the intent is closed or the chunk is settled: a late acknowledgement changes nothing (D4).
    """
    if open_intent(connection, intent.channel) != intent:
        return False
    changed = connection.execute(
        update(chunks)
        .where(
            chunks.c.intent == intent.id,
            chunks.c.after_seq == range.after,
            chunks.c.through_seq == range.through,
            chunks.c.state == "pending",
        )
        .values(
            state="acknowledged",
            row_count=tally.rows,
            checksum=tally.checksum_text,
            acknowledged_at=now.isoformat(),
        )
    )
    if changed.rowcount == 0:
        return False
    advance(connection, intent)
    return True


def advance(connection: Connection, intent: Intent) -> int:
    """D2: the watermark follows the gapless run of settled chunks from the intent's beginning, and no further."""
    mark = watermark(connection, intent.channel) or Watermark(intent.range.after, Tally())
    seq, tally = mark.seq, mark.tally
    for chunk in chunks_of(connection, intent):
        if chunk.state == "pending":
            break
        if chunk.range.after == seq:
            seq, tally = chunk.range.through, tally + (chunk.tally or Tally())
    if seq > mark.seq:
        connection.execute(
            update(watermarks)
            .where(_of(watermarks, intent.channel), watermarks.c.seq == mark.seq)
            .values(seq=seq, row_count=tally.rows, checksum=tally.checksum_text)
        )
    if seq >= intent.range.through:
        connection.execute(update(intents).where(intents.c.id == intent.id).values(state="closed"))
    return seq


def chunk_ranges(whole: SequenceRange, found: Sequence[Stretch], *, rows_max: int) -> list[SequenceRange]:
    """Cut a range at rows, about `rows_max` to a chunk; an empty stretch belongs to the chunk behind it.

    Arithmetic on the numbers alone would cost by sequence: a partition first seen at number 10^9 would have
    hundreds of thousands of empty chunks. Inside one block a stretch is cut evenly.
    """
    cuts: list[int] = []
    held = 0
    for piece in (piece for stretch in found for piece in _pieces(stretch, rows_max=rows_max)):
        if held and held + piece.rows > rows_max:
            cuts.append(piece.first_seq - 1)
            held = 0
        held += piece.rows
    edges = [whole.after, *(cut for cut in cuts if whole.after < cut < whole.through), whole.through]
    return [SequenceRange(after, through) for after, through in itertools.pairwise(edges)]


def _pieces(stretch: Stretch, *, rows_max: int) -> Iterator[Stretch]:
    """A stretch in even parts of at most about `rows_max` rows."""
    count = -(-stretch.rows // rows_max)
    width = -(-(stretch.last_seq - stretch.first_seq + 1) // count)
    for first in range(stretch.first_seq, stretch.last_seq + 1, width):
        yield Stretch(-(-stretch.rows // count), first, min(first + width - 1, stretch.last_seq))


def _check_tiling(whole: SequenceRange, ranges: Sequence[SequenceRange]) -> None:
    edges = [whole.after, *(item.through for item in ranges)]
    if [item.after for item in ranges] != edges[:-1] or edges[-1] != whole.through:
        raise ValueError(f"chunks {[str(item) for item in ranges]} do not tile {whole}")


def _key(channel: Channel) -> dict[str, str]:
    return {"sink": channel.sink, "dataset": channel.dataset, "partition_key": channel.partition}


def _of(table: Any, channel: Channel) -> Any:
    return and_(
        table.c.sink == channel.sink,
        table.c.dataset == channel.dataset,
        table.c.partition_key == channel.partition,
    )


def _sink(row: Row) -> Sink:  # type: ignore[type-arg]
    return Sink(row.instance, row.name, row.kind, json.loads(row.settings), row.state, row.reason)


def _intent(row: Row) -> Intent:  # type: ignore[type-arg]
    return Intent(
        row.id,
        Channel(row.sink, row.dataset, row.partition_key),
        SequenceRange(row.after_seq, row.through_seq),
        json.loads(row.settings),
    )


def _chunk(row: Row) -> Chunk:  # type: ignore[type-arg]
    tally = None if row.row_count is None else Tally.of(row.row_count, row.checksum)
    return Chunk(SequenceRange(row.after_seq, row.through_seq), row.state, tally)
