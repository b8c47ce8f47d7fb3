"""The chunks of a pinned intent: one request or one object each, and their states.

    pending ──acknowledge──▶ acknowledged ─╮
      │  ╰──give up──▶ quarantined ────────┴──▶ settled: the watermark moves over it, the last one closes the intent
      ╰──split──▶ two pending chunks, which remember their root

Invariants
- D2 The watermark moves only over a gapless run of settled chunks, and never back.
- D3 Chunks tile the intent's range without holes, are recorded before they leave, and are never computed again;
  a split replaces its parent in one transaction.
- D4 Only while its intent is open is a chunk settled.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, and_, bindparam, func, or_, select, update
from sqlalchemy.sql import ColumnElement

from floodmark.commit.protocol import Base
from floodmark.control import quarantine
from floodmark.control.deliveries import (
    Channel,
    Intent,
    Watermark,
    channel_values,
    check_tiling,
    get_intent,
    of_channel,
    open_intent,
    watermark,
)
from floodmark.control.quarantine import GivenUp
from floodmark.control.schema import Record, chunks, intents, watermarks
from floodmark.sequence import SequenceRange, Tally

# Asked with every chunk. Built once: to put a statement together takes longer than to run it.
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
_MOVE_MARK = (
    update(watermarks)
    .where(
        watermarks.c.sink == bindparam("of_sink"),
        watermarks.c.dataset == bindparam("of_dataset"),
        watermarks.c.partition_key == bindparam("of_partition"),
        watermarks.c.seq == bindparam("was"),
    )
    .values(
        seq=bindparam("to"),
        row_count=bindparam("rows"),
        checksum=bindparam("sum"),
        moved_at=func.coalesce(bindparam("at"), watermarks.c.moved_at),
    )
)
_CLOSE = update(intents).where(intents.c.id == bindparam("pinned")).values(state="closed")


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


# ── recording ────────────────────────────────────────────────────────────────────────────────────────────────────────


def plan(connection: Connection, intent: Intent, ranges: Sequence[SequenceRange]) -> list[Chunk]:
    """D3: record the chunks before the first one is sent; recorded chunks are not changed."""
    recorded = of_intent(connection, intent)
    if recorded:
        return recorded
    if open_intent(connection, intent.channel) != intent:
        return []  # another exporter has delivered all of it, and its records are folded (U35)
    check_tiling(intent.range, ranges)
    connection.execute(
        chunks.insert(),
        [
            {"intent": intent.id, "after_seq": item.after, "through_seq": item.through, "state": "pending"}
            for item in ranges
        ],
    )
    return [Chunk(item, "pending") for item in ranges]


def of_intent(connection: Connection, intent: Intent) -> list[Chunk]:
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


def given_up_chunk(connection: Connection, channel: Channel, seq: int) -> tuple[Intent, Chunk] | None:
    """The chunk with which a row was given up, and the intent it belonged to."""
    found = connection.execute(
        select(chunks)
        .join(intents, intents.c.id == chunks.c.intent)
        .where(
            of_channel(intents),
            chunks.c.state == "quarantined",
            chunks.c.after_seq < seq,
            chunks.c.through_seq >= seq,
        ),
        channel_values(channel),
    ).one_or_none()
    return None if found is None else (get_intent(connection, found.intent), _chunk(found))


# ── settling ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def acknowledge(connection: Connection, intent: Intent, range: SequenceRange, tally: Tally, *, now: datetime) -> bool:
    """Settle a chunk, move the watermark over the settled prefix, close the intent if that was its last.

    False if the intent is closed or the chunk is settled: a late acknowledgement changes nothing (D4).
    """
    return _close(connection, intent, range, tally, state="acknowledged", now=now)


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
    if not _close(connection, intent, range, tally, state="quarantined", now=now):
        return False
    quarantine.hold_given_up(connection, intent.channel, rows, reason=reason, now=now)
    return True


def _close(
    connection: Connection, intent: Intent, range: SequenceRange, tally: Tally, *, state: str, now: datetime
) -> bool:
    if open_intent(connection, intent.channel) != intent:
        return False
    which = {"pinned": intent.id, "begin": range.after, "end": range.through}
    what = {"settled": state, "rows": tally.rows, "sum": tally.checksum_text, "at": now.isoformat()}
    if connection.execute(_SETTLE, which | what).rowcount == 0:
        return False
    advance(connection, intent, now=now)
    return True


def advance(connection: Connection, intent: Intent, *, now: datetime | None = None) -> int:
    """D2: the watermark follows the gapless run of settled chunks from the intent's beginning, and no further."""
    mark = watermark(connection, intent.channel) or Watermark(intent.range.after, Tally())
    seq, tally = mark.seq, mark.tally
    ahead = connection.execute(_AHEAD, {"pinned": intent.id, "begin": seq})
    for chunk in gapless_run(map(_chunk, ahead), after=seq):
        seq, tally = chunk.range.through, tally + (chunk.tally or Tally())
    if seq > mark.seq:
        here = intent.channel
        which = {"of_sink": here.sink, "of_dataset": here.dataset, "of_partition": here.partition, "was": mark.seq}
        at = None if now is None else now.isoformat()
        moved = {"to": seq, "rows": tally.rows, "sum": tally.checksum_text, "at": at}
        connection.execute(_MOVE_MARK, which | moved)
    if seq >= intent.range.through:
        connection.execute(_CLOSE, {"pinned": intent.id})
    return seq


def gapless_run(ahead: Iterable[Chunk], *, after: int) -> Iterator[Chunk]:
    """D2: the settled chunks up to the first that is pending or missing."""
    for chunk in ahead:
        if chunk.state == "pending" or chunk.range.after != after:
            return
        after = chunk.range.through
        yield chunk


# ── small words ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _pending(intent: Intent, range: SequenceRange) -> Any:
    return and_(
        chunks.c.intent == intent.id,
        chunks.c.after_seq == range.after,
        chunks.c.through_seq == range.through,
        chunks.c.state == "pending",
    )


def _chunk(row: Record) -> Chunk:
    tally = None if row.row_count is None else Tally.of(row.row_count, row.checksum)
    root = None if row.root_after is None else Root(row.root_after, row.root_rows)
    return Chunk(SequenceRange(row.after_seq, row.through_seq), row.state, tally, root)


# ── How far back a parcel reaches, where the destination keeps a ledger without holes ────────────────────────────────
# Such a ledger takes only what begins where it ends, and it ends behind the last rows that it was sent. What was
# settled
# since without a row delivered, because it was empty or given up, belongs to the parcel that follows.


EMPTY_CHUNKS_MAX = 100_000
"""A bound on the walk back over chunks without rows."""

# Asked at every step back. Built once: to put a statement together takes longer than to run it.
_EMPTY_BEFORE = (
    select(chunks)
    .join(intents, intents.c.id == chunks.c.intent)
    .where(
        of_channel(intents),
        chunks.c.through_seq == bindparam("end"),
        or_(chunks.c.state == "quarantined", and_(chunks.c.state == "acknowledged", chunks.c.row_count == 0)),
    )
)


@dataclass(frozen=True, slots=True)
class ParcelStart:
    """How far back a parcel reaches: to the end of the last chunk that had rows and was delivered."""

    after: int
    before: Tally
    """Of all rows up to there, delivered or given up."""
    given_up: Tally
    """Of all rows given up since: each of them is in quarantine."""
    watermark: int
    """From which it was counted back; 0 if there is none yet."""


def parcel_start(connection: Connection, channel: Channel) -> ParcelStart:
    """From the watermark back over chunks without delivered rows: empty ones, and those given up.

    What is acknowledged or given up stays so, hence the same chunk reaches equally far back whenever it is sent again.
    """
    return _walked_back(connection, channel, watermark(connection, channel) or Watermark(0, Tally()))


def sent_range(connection: Connection, channel: Channel, chunk: Chunk) -> SequenceRange:
    """The range under which a chunk was sent that is not pending any more."""
    begin = _walked_back(connection, channel, Watermark(chunk.range.after, Tally()))
    return SequenceRange(begin.after, chunk.range.through)


def _walked_back(connection: Connection, channel: Channel, mark: Watermark) -> ParcelStart:
    after, before = mark.seq, mark.tally
    for _ in range(EMPTY_CHUNKS_MAX):
        row = connection.execute(_EMPTY_BEFORE, channel_values(channel) | {"end": after}).one_or_none()
        if row is None:
            break
        tally = Tally.of(row.row_count, row.checksum)
        after, before = row.after_seq, before - tally
    return ParcelStart(after, before, mark.tally - before, mark.seq)


# ── Bases ────────────────────────────────────────────────────────────────────────────────────────────────────────────
# The base of a chunk: a table sink's target as it was before the first attempt to append the chunk there.
#
# D5: it is recorded before anything is sent, and the first one stands. A later attempt that recorded its own would
# forget the time in which the earlier one may have landed, and append again what a user has since deleted.


def recorded_base(connection: Connection, intent: Intent, range: SequenceRange) -> Base | None:
    """The base on record, if there is one."""
    text = connection.execute(select(chunks.c.base).where(_of(intent, range))).scalar_one_or_none()
    return None if text is None else _parsed(text)


def record_base(connection: Connection, intent: Intent, range: SequenceRange, base: Base) -> Base | None:
    """Record what the target was, unless that is on record already. Returns the base that counts.

    None if the chunk is settled, or its intent closed (D4): another process has seen to it, and nothing may be sent.
    """
    if open_intent(connection, intent.channel) != intent:
        return None
    text = json.dumps({"table": base.table_uuid, "snapshot": base.snapshot})
    pending = and_(_of(intent, range), chunks.c.state == "pending")
    connection.execute(update(chunks).where(pending, chunks.c.base.is_(None)).values(base=text))
    found = connection.execute(select(chunks.c.base).where(pending)).scalar_one_or_none()
    return None if found is None else _parsed(found)


def _of(intent: Intent, range: SequenceRange) -> ColumnElement[bool]:
    return and_(chunks.c.intent == intent.id, chunks.c.after_seq == range.after, chunks.c.through_seq == range.through)


def _parsed(text: str) -> Base:
    found = json.loads(text)
    return Base(found["table"], 0, found["snapshot"])
