"""Deliveries as the control database knows them: watermarks, intents, chunks.

A *channel* is one sink instance's way through one partition of one dataset. Its life, over and over:

    watermark ──pin──▶ open intent ──plan──▶ pending chunks ──acknowledge──▶ … ──▶ closed, watermark moved
                                                  │  ╰─split─▶ two pending chunks
                                                  ╰─give up─▶ quarantined: settled too, its rows are held

Invariants
- D1 A range is pinned before anything leaves, with the settings it leaves under: a retry sends the same ranges,
  whatever arrived, was compacted or reconfigured meanwhile.
- D2 The watermark moves only over a gapless run of settled chunks, and never back.
- D3 Chunks tile the intent's range without holes, are recorded before they leave, and are never computed again;
  a split replaces its parent in one transaction.
- D4 At most one open intent per channel; only while it is open is a chunk settled.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, and_, bindparam, func, or_, select, update

from floodmark.control import removals as removal_records
from floodmark.control.chunking import Stretch, check_tiling, rows_through
from floodmark.control.schema import (
    block_partitions,
    blocks,
    chunks,
    datasets,
    forfeits,
    intents,
    partitions,
    quarantine,
    removals,
    watermarks,
)
from floodmark.errors import Retryable
from floodmark.sequence import SEQUENCE_MAX, SequenceRange, Tally

STRETCHES_MAX = 10_000
"""How many blocks one look takes in: a first export of a long history is pinned piece by piece."""
REACH_MAX = 100_000
"""A bound on the walk back over chunks without rows."""


def _of_channel(table: Any) -> Any:
    return and_(
        table.c.sink == bindparam("sink"),
        table.c.dataset == bindparam("dataset"),
        table.c.partition_key == bindparam("partition_key"),
    )


# Asked for with every chunk. Built once: to put a statement together takes longer than to run it.
_MARK = select(watermarks).where(_of_channel(watermarks))
_OPEN = select(intents).where(_of_channel(intents), intents.c.state == "open")
_LAGGING = (
    select(
        partitions.c.dataset,
        partitions.c.partition_key,
        partitions.c.last_seq,
        datasets.c.horizon,
        watermarks.c.seq,
        watermarks.c.row_count,
        watermarks.c.checksum,
        intents.c.id,
    )
    .join(datasets, datasets.c.name == partitions.c.dataset)
    .outerjoin(
        watermarks,
        and_(
            watermarks.c.sink == bindparam("sink"),
            watermarks.c.dataset == partitions.c.dataset,
            watermarks.c.partition_key == partitions.c.partition_key,
        ),
    )
    .outerjoin(
        intents,
        and_(
            intents.c.sink == bindparam("sink"),
            intents.c.dataset == partitions.c.dataset,
            intents.c.partition_key == partitions.c.partition_key,
            intents.c.state == "open",
        ),
    )
    .where((partitions.c.last_seq > func.coalesce(watermarks.c.seq, 0)) | intents.c.id.is_not(None))
    .order_by(partitions.c.dataset, partitions.c.partition_key)
)
_MOVE_MARK = (
    update(watermarks)
    .where(
        watermarks.c.sink == bindparam("of_sink"),
        watermarks.c.dataset == bindparam("of_dataset"),
        watermarks.c.partition_key == bindparam("of_partition"),
        watermarks.c.seq == bindparam("was"),
    )
    .values(seq=bindparam("to"), row_count=bindparam("rows"), checksum=bindparam("sum"))
)
_CLOSE = update(intents).where(intents.c.id == bindparam("pinned")).values(state="closed")
_CHUNKS = select(chunks).where(chunks.c.intent == bindparam("pinned")).order_by(chunks.c.after_seq)
_AHEAD = (
    select(chunks)
    .where(chunks.c.intent == bindparam("pinned"), chunks.c.after_seq >= bindparam("begin"))
    .order_by(chunks.c.after_seq)
)
_SETTLE = (
    update(chunks)
    .where(
        chunks.c.intent == bindparam("pinned"),
        chunks.c.after_seq == bindparam("begin"),
        chunks.c.through_seq == bindparam("end"),
        chunks.c.state == "pending",
    )
    .values(
        state=bindparam("settled"),
        row_count=bindparam("rows"),
        checksum=bindparam("sum"),
        acknowledged_at=bindparam("at"),
    )
)
_STRETCHES = (
    select(block_partitions)
    .join(blocks, blocks.c.id == block_partitions.c.block)
    .where(
        blocks.c.dataset == bindparam("of"),
        blocks.c.state == "committed",
        blocks.c.through_seq > bindparam("after"),
        blocks.c.after_seq < bindparam("through"),
        block_partitions.c.partition_key == bindparam("key"),
        block_partitions.c.last_seq > bindparam("after"),
        block_partitions.c.first_seq <= bindparam("through"),
    )
    .order_by(blocks.c.through_seq)
    .limit(STRETCHES_MAX)
)
_EMPTY_BEFORE = (
    select(chunks)
    .join(intents, intents.c.id == chunks.c.intent)
    .where(
        _of_channel(intents),
        chunks.c.through_seq == bindparam("end"),
        or_(chunks.c.state == "quarantined", and_(chunks.c.state == "acknowledged", chunks.c.row_count == 0)),
    )
)


@dataclass(frozen=True, slots=True)
class Channel:
    """A sink instance's way through one partition of one dataset."""

    sink: str
    dataset: str
    partition: str


@dataclass(frozen=True, slots=True)
class Watermark:
    """Everything up to `seq` has been settled: so many rows, with this checksum."""

    seq: int
    tally: Tally


@dataclass(frozen=True, slots=True)
class Lag:
    """A channel that may have something to deliver."""

    channel: Channel
    horizon: int
    last_seq: int
    """The number of the partition's last row."""
    mark: Watermark | None
    """None: nothing was ever recorded here, or the record is lost."""
    open: bool
    """Whether an intent is open."""


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
    root: Root | None = None
    """The chunk that this one is a part of, if it was split."""


@dataclass(frozen=True, slots=True)
class Root:
    """A chunk as it was before the first split of it."""

    after: int
    rows: int


@dataclass(frozen=True, slots=True)
class Reach:
    """How far back a parcel reaches: to the end of the last chunk that had rows and was delivered."""

    after: int
    before: Tally
    """Of everything that was settled up to there."""
    given_up: dict[int, Tally] = field(default_factory=dict)
    """The rows in between that are in quarantine."""


@dataclass(frozen=True, slots=True)
class GivenUp:
    """A row that stays behind."""

    seq: int
    tally: Tally
    payload: str


# ── watermarks and intents ───────────────────────────────────────────────────────────────────────────────────────────


def watermark(connection: Connection, channel: Channel) -> Watermark | None:
    row = connection.execute(_MARK, _key(channel)).one_or_none()
    return None if row is None else Watermark(row.seq, Tally.of(row.row_count, row.checksum))


def lagging(connection: Connection, sink: str) -> list[Lag]:
    """The channels of a sink with rows behind their watermark, or with an intent that is still open.

    One look at the control database: a tick with nothing new ends here, without Spark and without the lake.
    """
    found = connection.execute(_LAGGING, {"sink": sink})
    return [
        Lag(
            Channel(sink, row.dataset, row.partition_key),
            row.horizon,
            row.last_seq,
            None if row.seq is None else Watermark(row.seq, Tally.of(row.row_count, row.checksum)),
            row.id is not None,
        )
        for row in found
    ]


def open_intent(connection: Connection, channel: Channel) -> Intent | None:
    row = connection.execute(_OPEN, _key(channel)).one_or_none()
    return None if row is None else _intent(row)


def pin(
    connection: Connection,
    channel: Channel,
    *,
    id: str,
    horizon: int,
    settings: dict[str, Any],
    start: int,
    rows_max: int,
    uncut: Sequence[SequenceRange] = (),
    removals_seen: int | None = None,
    now: datetime,
) -> Intent | None:
    """D1: adopt the channel's open intent with *its* settings, else pin `(watermark, horizon]`; None if that is empty.

    The watermark is read in the transaction that inserts the intent. Read before it, two exporters would pin
    two ranges that overlap. At most about `rows_max` rows are pinned at once, and none of the `uncut` ranges in part.
    `removals_seen` is `removals.moment` as it was when the rows were looked at: rows that went since must not leave.
    """
    mark = watermark(connection, channel)
    if mark is None:
        mark = Watermark(start, Tally())
        connection.execute(watermarks.insert().values(**_key(channel), seq=start))
    adopted = open_intent(connection, channel)
    if adopted is not None:
        _check_none_went(connection, channel, adopted.range, seen=removals_seen)
        return adopted
    if mark.seq >= horizon:
        return None
    _check_unremoved(connection, channel, after=mark.seq, seen=removals_seen)
    through = limit(connection, channel, SequenceRange(mark.seq, horizon), rows_max=rows_max)
    through = max([through, *(item.through for item in uncut if through in item)])
    intent = Intent(id, channel, SequenceRange(mark.seq, through), settings)
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


def _check_unremoved(connection: Connection, channel: Channel, *, after: int, seen: int | None) -> None:
    """U14: what is pinned is what is there. Rows that are being removed would leave now and be missing at a retry."""
    if removal_records.under_way(connection, channel, after=after):
        raise Retryable(
            f"Rows of {channel.dataset!r} that this sink does not have are being removed.",
            hint="Export again; if it stays so, a `floodmark retain` or `floodmark purge` was cut off: run it again.",
        )
    _check_none_went(connection, channel, SequenceRange(after, SEQUENCE_MAX), seen=seen)


def _check_none_went(connection: Connection, channel: Channel, within: SequenceRange, *, seen: int | None) -> None:
    """U14: rows that went since the look must not leave, also not with an intent that another has pinned since."""
    moved = seen is not None and removal_records.moment(connection, channel.dataset) != seen
    if moved and removal_records.touched(connection, channel, within):
        raise Retryable(f"Rows of {channel.dataset!r} were removed just now.", hint="Export again.")


def limit(connection: Connection, channel: Channel, within: SequenceRange, *, rows_max: int) -> int:
    """How far one intent reaches into a range."""
    found = stretches(connection, channel, within)
    cut = rows_through(found, rows_max=rows_max)
    if cut is None and len(found) == STRETCHES_MAX:
        cut = found[-1].last_seq
    return within.through if cut is None else max(min(cut, within.through), within.after + 1)


def fast_forward(connection: Connection, channel: Channel, *, seen: Watermark | None, to: Watermark) -> bool:
    """Take over what the destination has proved to hold; false if anything moved since it was compared.

    D4: never beside an open intent, whose chunks would then be settled twice.
    """
    if open_intent(connection, channel) is not None or watermark(connection, channel) != seen:
        return False
    values = {"seq": to.seq, "row_count": to.tally.rows, "checksum": to.tally.checksum_text}
    if seen is None:
        connection.execute(watermarks.insert().values(**_key(channel), **values))
    elif to.seq > seen.seq:
        connection.execute(update(watermarks).where(_of(watermarks, channel)).values(**values))
    return True


def removed_within(connection: Connection, channel: Channel, within: SequenceRange) -> Tally:
    """What retention and purge took out of a range: still part of the totals that both sides compare.

    What went before this sink had it is not: it never arrived there.
    """
    gone = connection.execute(
        select(removals.c.row_count, removals.c.checksum).where(*_inside(removals, channel, within))
    )
    lost = connection.execute(
        select(forfeits.c.row_count, forfeits.c.checksum).where(
            forfeits.c.sink == channel.sink, *_inside(forfeits, channel, within)
        )
    )
    delivered = sum((Tally.of(row.row_count, row.checksum) for row in gone), Tally())
    return delivered - sum((Tally.of(row.row_count, row.checksum) for row in lost), Tally())


def _inside(table: Any, channel: Channel, within: SequenceRange) -> tuple[Any, ...]:
    return (
        table.c.dataset == channel.dataset,
        table.c.partition_key == channel.partition,
        table.c.after_seq >= within.after,
        table.c.through_seq <= within.through,
    )


# ── chunks ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def stretches(connection: Connection, channel: Channel, within: SequenceRange) -> list[Stretch]:
    """Where the partition's rows are, block by block: so chunk boundaries need no scan, and gaps cost nothing."""
    asked = {"of": channel.dataset, "key": channel.partition, "after": within.after, "through": within.through}
    found = connection.execute(_STRETCHES, asked)
    # A block that was delivered in part counts with the rest of it: what is pinned and cut begins there.
    return [Stretch(row.row_count, row.first_seq, row.last_seq).within(within) for row in found]


def plan(connection: Connection, intent: Intent, ranges: Sequence[SequenceRange]) -> list[Chunk]:
    """D3: record the chunks before the first one leaves; those that are recorded already stand."""
    recorded = chunks_of(connection, intent)
    if recorded:
        return recorded
    check_tiling(intent.range, ranges)
    connection.execute(
        chunks.insert(),
        [
            {"intent": intent.id, "after_seq": item.after, "through_seq": item.through, "state": "pending"}
            for item in ranges
        ],
    )
    return [Chunk(item, "pending") for item in ranges]


def chunks_of(connection: Connection, intent: Intent) -> list[Chunk]:
    return [_chunk(row) for row in connection.execute(_CHUNKS, {"pinned": intent.id})]


def split(connection: Connection, intent: Intent, parent: Chunk, *, at: int, rows: int) -> tuple[Chunk, Chunk] | None:
    """Replace a pending chunk by its two halves; None if it is no longer pending, or the intent is closed.

    `rows` is what the parent holds: halves remember the chunk they come from.
    """
    whole = parent.range
    if not whole.after < at < whole.through or open_intent(connection, intent.channel) != intent:
        return None
    gone = connection.execute(chunks.delete().where(_pending(intent, whole)))
    if gone.rowcount != 1:
        return None
    root = parent.root or Root(whole.after, rows)
    halves = (SequenceRange(whole.after, at), SequenceRange(at, whole.through))
    connection.execute(
        chunks.insert(),
        [
            {
                "intent": intent.id,
                "after_seq": half.after,
                "through_seq": half.through,
                "state": "pending",
                "root_after": root.after,
                "root_rows": root.rows,
            }
            for half in halves
        ],
    )
    return Chunk(halves[0], "pending", root=root), Chunk(halves[1], "pending", root=root)


def root_was_accepted(connection: Connection, intent: Intent, root: Root) -> bool:
    """Whether any part of a chunk that was split has been delivered."""
    found = connection.execute(
        select(func.count()).where(
            chunks.c.intent == intent.id,
            chunks.c.root_after == root.after,
            chunks.c.state == "acknowledged",
            chunks.c.row_count > 0,
        )
    )
    return bool(found.scalar_one())


def acknowledge(connection: Connection, intent: Intent, range: SequenceRange, tally: Tally, *, now: datetime) -> bool:
    """Settle a chunk, move the watermark over the settled prefix, close the intent if that was its last.

    False if the intent is closed or the chunk is settled: a late acknowledgement changes nothing (D4).
    """
    return _settle(connection, intent, range, tally, state="acknowledged", now=now)


def give_up(
    connection: Connection,
    intent: Intent,
    range: SequenceRange,
    rows: Sequence[GivenUp],
    *,
    reason: str,
    now: datetime,
) -> bool:
    """Settle a chunk without its rows: they are held in quarantine, in the same transaction."""
    tally = sum((row.tally for row in rows), Tally())
    if not _settle(connection, intent, range, tally, state="quarantined", now=now):
        return False
    hold(connection, intent.channel, rows, reason=reason, now=now)
    return True


def hold(connection: Connection, channel: Channel, rows: Sequence[GivenUp], *, reason: str, now: datetime) -> None:
    """Put rows into quarantine under the sink's name; those that are there already stay as they are."""
    known = {
        seq
        for (seq,) in connection.execute(
            select(quarantine.c.seq).where(
                quarantine.c.sink == channel.sink,
                quarantine.c.dataset == channel.dataset,
                quarantine.c.seq.in_([row.seq for row in rows]),
            )
        )
    }
    for row in rows:
        if row.seq in known:
            continue
        connection.execute(
            quarantine.insert().values(
                id=uuid.uuid4().hex,
                dataset=channel.dataset,
                state="held",
                reason=reason,
                payload=row.payload,
                sink=channel.sink,
                seq=row.seq,
                partition_key=channel.partition,
                checksum=row.tally.checksum_text,
                created_at=now.isoformat(),
            )
        )


def _settle(
    connection: Connection, intent: Intent, range: SequenceRange, tally: Tally, *, state: str, now: datetime
) -> bool:
    if open_intent(connection, intent.channel) != intent:
        return False
    which = {"pinned": intent.id, "begin": range.after, "end": range.through}
    what = {"settled": state, "rows": tally.rows, "sum": tally.checksum_text, "at": now.isoformat()}
    if connection.execute(_SETTLE, which | what).rowcount == 0:
        return False
    advance(connection, intent)
    return True


def advance(connection: Connection, intent: Intent) -> int:
    """D2: the watermark follows the gapless run of settled chunks from the intent's beginning, and no further."""
    mark = watermark(connection, intent.channel) or Watermark(intent.range.after, Tally())
    seq, tally = mark.seq, mark.tally
    ahead = connection.execute(_AHEAD, {"pinned": intent.id, "begin": seq})
    for chunk in map(_chunk, ahead):
        if chunk.state == "pending" or chunk.range.after != seq:
            break
        seq, tally = chunk.range.through, tally + (chunk.tally or Tally())
    if seq > mark.seq:
        here = intent.channel
        which = {"of_sink": here.sink, "of_dataset": here.dataset, "of_partition": here.partition, "was": mark.seq}
        moved = {"to": seq, "rows": tally.rows, "sum": tally.checksum_text}
        connection.execute(_MOVE_MARK, which | moved)
    if seq >= intent.range.through:
        connection.execute(_CLOSE, {"pinned": intent.id})
    return seq


def given_up_chunk(connection: Connection, channel: Channel, seq: int) -> tuple[Intent, Chunk] | None:
    """The chunk with which a row was given up, and the intent it belonged to."""
    found = connection.execute(
        select(chunks)
        .join(intents, intents.c.id == chunks.c.intent)
        .where(
            _of(intents, channel),
            chunks.c.state == "quarantined",
            chunks.c.after_seq < seq,
            chunks.c.through_seq >= seq,
        )
    ).one_or_none()
    if found is None:
        return None
    intent = connection.execute(select(intents).where(intents.c.id == found.intent)).one()
    return _intent(intent), _chunk(found)


def reach_of(connection: Connection, channel: Channel, chunk: Chunk) -> SequenceRange:
    """The range under which a settled chunk was sent."""
    reach = _walked_back(connection, channel, Watermark(chunk.range.after, Tally()))
    return SequenceRange(reach.after, chunk.range.through)


def reach_back(connection: Connection, channel: Channel) -> Reach:
    """From the watermark back over settled chunks without delivered rows: empty ones, and those given up.

    What is settled stays so, hence the same chunk reaches equally far back whenever it is sent again.
    """
    return _walked_back(connection, channel, watermark(connection, channel) or Watermark(0, Tally()))


def _walked_back(connection: Connection, channel: Channel, mark: Watermark) -> Reach:
    after, before = mark.seq, mark.tally
    given_up: dict[int, Tally] = {}
    for _ in range(REACH_MAX):
        row = connection.execute(_EMPTY_BEFORE, _key(channel) | {"end": after}).one_or_none()
        if row is None:
            break
        tally = Tally.of(row.row_count, row.checksum)
        after, before = row.after_seq, before - tally
        if row.state == "quarantined":
            given_up |= _given_up_within(connection, channel, SequenceRange(row.after_seq, row.through_seq))
    return Reach(after, before, given_up)


def _given_up_within(connection: Connection, channel: Channel, within: SequenceRange) -> dict[int, Tally]:
    found = connection.execute(
        select(quarantine.c.seq, quarantine.c.checksum).where(
            quarantine.c.sink == channel.sink,
            quarantine.c.dataset == channel.dataset,
            quarantine.c.seq > within.after,
            quarantine.c.seq <= within.through,
        )
    )
    return {row.seq: Tally.of(1, row.checksum) for row in found}


def _pending(intent: Intent, range: SequenceRange) -> Any:
    return and_(
        chunks.c.intent == intent.id,
        chunks.c.after_seq == range.after,
        chunks.c.through_seq == range.through,
        chunks.c.state == "pending",
    )


def _key(channel: Channel) -> dict[str, str]:
    return {"sink": channel.sink, "dataset": channel.dataset, "partition_key": channel.partition}


def _of(table: Any, channel: Channel) -> Any:
    return and_(
        table.c.sink == channel.sink,
        table.c.dataset == channel.dataset,
        table.c.partition_key == channel.partition,
    )


def _intent(row: Row) -> Intent:  # type: ignore[type-arg]
    return Intent(
        row.id,
        Channel(row.sink, row.dataset, row.partition_key),
        SequenceRange(row.after_seq, row.through_seq),
        json.loads(row.settings),
    )


def _chunk(row: Row) -> Chunk:  # type: ignore[type-arg]
    tally = None if row.row_count is None else Tally.of(row.row_count, row.checksum)
    root = None if row.root_after is None else Root(row.root_after, row.root_rows)
    return Chunk(SequenceRange(row.after_seq, row.through_seq), row.state, tally, root)
