"""Folding in the control database: reading what may be joined, and joining it (U35).

Every function belongs into one transaction with the decision it serves (`floodmark.folding`): what was read must
still be so when it is replaced.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime

from sqlalchemy import Connection, delete, exists, func, select, update

from floodmark.control.blocks import FOUND
from floodmark.control.deliveries import Channel, channel_values, of_channel
from floodmark.control.schema import (
    Record,
    block_partitions,
    blocks,
    chunks,
    intents,
    partitions,
    segment_partitions,
    segments,
    sinks,
    watermarks,
)
from floodmark.folding import BlockSpan, IntentSpan
from floodmark.sequence import SequenceRange, Tally

IDS_MAX = 500
"""How many ids one statement names."""
_FINISHED = ("consumed", "dropped")

# ── segments ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def finished_segments(
    connection: Connection,
    dataset: str,
    *,
    before: datetime,
    sources_before: datetime,
    below: int,
    after: int,
    count_max: int,
) -> list[int]:
    """Segments that nobody asks for any more, if their files are gone: committed by blocks up to `below`, or dropped.

    A backfill asks for the segments of its own steps at its end: they stay longer. So does a segment of which a part
    still waits. In the order of their ids, above `after`.
    """
    parts = segments.alias("parts")
    waits = exists().where(parts.c.part_of == segments.c.registered, parts.c.state.not_in(_FINISHED))
    age = segments.c.created_at
    found = connection.execute(
        select(segments.c.id)
        .outerjoin(blocks, blocks.c.id == segments.c.block)
        .where(
            segments.c.dataset == dataset,
            segments.c.id > after,
            segments.c.state.in_(_FINISHED),
            (segments.c.block.is_(None)) | ((blocks.c.state != "reserved") & (blocks.c.through_seq <= below)),
            age < before.isoformat(),
            (segments.c.source.is_(None)) | (age < sources_before.isoformat()),
            ~waits,
        )
        .order_by(segments.c.id)
        .limit(count_max)
    )
    return list(found.scalars())


def forget_segments(connection: Connection, ids: Sequence[int]) -> int:
    """Delete the records of segments that are committed or dropped."""
    count = 0
    for start in range(0, len(ids), IDS_MAX):
        wanted = ids[start : start + IDS_MAX]
        done = select(segments.c.id).where(segments.c.id.in_(wanted), segments.c.state.in_(_FINISHED))
        connection.execute(delete(segment_partitions).where(segment_partitions.c.segment.in_(done)))
        gone = connection.execute(delete(segments).where(segments.c.id.in_(wanted), segments.c.state.in_(_FINISHED)))
        count += gone.rowcount
    return count


# ── blocks ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def newest_but(connection: Connection, dataset: str, *, count: int) -> int:
    """The end of the last block before the newest `count`; 0 if there are no more."""
    found = connection.execute(
        select(blocks.c.through_seq)
        .where(blocks.c.dataset == dataset)
        .order_by(blocks.c.through_seq.desc())
        .offset(count)
        .limit(1)
    ).scalar_one_or_none()
    return 0 if found is None else int(found)


def block_spans(connection: Connection, dataset: str, *, after: int, through: int, count_max: int) -> list[BlockSpan]:
    """Blocks that end in a part of the sequence, in order."""
    used = exists().where(segments.c.block == blocks.c.id)
    found = connection.execute(
        select(blocks, used.label("used"))
        .where(blocks.c.dataset == dataset, blocks.c.through_seq > after, blocks.c.through_seq <= through)
        .order_by(blocks.c.through_seq)
        .limit(count_max)
    )
    return [_block_span(row) for row in found]


def _block_span(row: Record) -> BlockSpan:
    return BlockSpan(
        row.id,
        SequenceRange(row.after_seq, row.through_seq),
        row.row_count,
        datetime.fromisoformat(row.reserved_at),
        datetime.fromisoformat(row.decided_at or row.reserved_at),
        # One that was found is kept: each host looks for its own lines in it, whenever it comes.
        final=row.state != "reserved" and not row.used and not row.id.startswith(FOUND),
    )


def lagging_watermarks(connection: Connection, dataset: str) -> set[int]:
    """The watermarks of sinks that have not received the last row of a partition."""
    found = connection.execute(
        select(watermarks.c.seq)
        .join(sinks, sinks.c.instance == watermarks.c.sink)
        .join(
            partitions,
            (partitions.c.dataset == watermarks.c.dataset) & (partitions.c.partition_key == watermarks.c.partition_key),
        )
        .where(
            watermarks.c.dataset == dataset,
            sinks.c.state != "removed",
            partitions.c.last_seq > watermarks.c.seq,
        )
        .distinct()
    )
    return {int(seq) for seq in found.scalars()}


def join_blocks(connection: Connection, run: Sequence[str]) -> int:
    """U35: replace neighbouring decided blocks by one with the sums of their figures. Returns the end of it.

    It has the id and the snapshot of the last committed one. The range is that of the committed ones: above the last
    committed block there is no horizon.
    """
    rows = connection.execute(select(blocks).where(blocks.c.id.in_(list(run))).order_by(blocks.c.through_seq)).all()
    committed = [row for row in rows if row.state == "committed"] or rows
    last = committed[-1]
    stats = _joined_stats(connection, [row.id for row in rows])
    connection.execute(delete(block_partitions).where(block_partitions.c.block.in_([row.id for row in rows])))
    connection.execute(delete(blocks).where(blocks.c.id.in_([row.id for row in rows if row.id != last.id])))
    failed = sum(row.unsettled + (row.state == "committed" and row.reason is not None) for row in rows)
    connection.execute(
        update(blocks)
        .where(blocks.c.id == last.id)
        .values(
            after_seq=committed[0].after_seq,
            row_count=sum(row.row_count for row in rows),
            duplicates=sum(row.duplicates for row in rows),
            expired=sum(row.expired for row in rows),
            dropped=sum(row.dropped for row in rows),
            reserved_at=min(row.reserved_at for row in committed),
            decided_at=max(row.decided_at or row.reserved_at for row in committed),
            reason=None if last.state == "committed" else last.reason,
            folded=sum(row.folded for row in rows),
            unsettled=failed,
        )
    )
    if stats:
        connection.execute(block_partitions.insert(), [{"block": last.id, **item} for item in stats])
    return int(last.through_seq)


def _joined_stats(connection: Connection, ids: Sequence[str]) -> list[dict[str, str | int]]:
    found = connection.execute(select(block_partitions).where(block_partitions.c.block.in_(list(ids))))
    joined: dict[str, tuple[Tally, int, int]] = {}
    for row in found:
        tally, first, last = joined.get(row.partition_key, (Tally(), row.first_seq, row.last_seq))
        tally += Tally.of(row.row_count, row.checksum)
        joined[row.partition_key] = (tally, min(first, row.first_seq), max(last, row.last_seq))
    return [
        {
            "partition_key": key,
            "row_count": tally.rows,
            "checksum": tally.checksum_text,
            "first_seq": first,
            "last_seq": last,
        }
        for key, (tally, first, last) in joined.items()
    ]


# ── deliveries ───────────────────────────────────────────────────────────────────────────────────────────────────────


def long_channels(connection: Connection, dataset: str, *, keep: int) -> list[Channel]:
    """Channels with more intents than are kept as they are."""
    here = (intents.c.sink, intents.c.partition_key)
    found = connection.execute(
        select(*here).where(intents.c.dataset == dataset).group_by(*here).having(func.count() > keep).order_by(*here)
    )
    return [Channel(row.sink, dataset, row.partition_key) for row in found]


def intent_spans(
    connection: Connection, channel: Channel, *, after: int, keep: int, count_max: int
) -> list[IntentSpan]:
    """Intents of a channel from a position on, in order, without the newest ones.

    One that overlaps another, because a watermark was lost between the two, is not `final`: which of them counts is
    decided by their times.
    """
    values = channel_values(channel)
    total = connection.execute(
        select(func.count()).select_from(intents).where(of_channel(intents)), values
    ).scalar_one()
    before = connection.execute(
        select(func.count()).select_from(intents).where(of_channel(intents), intents.c.after_seq < after), values
    ).scalar_one()
    room = min(count_max, total - before - keep)
    if room < 1:
        return []
    found = connection.execute(
        select(intents)
        .where(of_channel(intents), intents.c.after_seq >= after)
        .order_by(intents.c.after_seq, intents.c.through_seq)
        .limit(room + 1),
        values,
    ).all()
    sent = _sent(connection, [row.id for row in found[:room]])
    spans = []
    through = 0
    for place, row in enumerate(found[:room]):
        behind = found[place + 1].after_seq if place + 1 < len(found) else row.through_seq
        alone = through <= row.after_seq and row.through_seq <= behind
        through = max(through, row.through_seq)
        spans.append(_intent_span(row, sent.get(row.id, []), alone=alone))
    return spans


def _sent(connection: Connection, ids: Collection[str]) -> dict[str, list[Record]]:
    wanted = list(ids)
    found: dict[str, list[Record]] = {}
    for start in range(0, len(wanted), IDS_MAX):
        some = wanted[start : start + IDS_MAX]
        rows = connection.execute(select(chunks).where(chunks.c.intent.in_(some)).order_by(chunks.c.after_seq))
        for row in rows:
            found.setdefault(row.intent, []).append(row)
    return found


def _intent_span(row: Record, own: Sequence[Record], *, alone: bool) -> IntentSpan:
    return IntentSpan(
        row.id,
        SequenceRange(row.after_seq, row.through_seq),
        row.settings,
        len(own),
        sum(one.row_count or 0 for one in own),
        bool(own and own[-1].row_count),
        final=alone and is_settled(row, own),
    )


def is_settled(intent: Record, own: Sequence[Record]) -> bool:
    """U35: whether nothing of an intent is on its way or given up."""
    return intent.state == "closed" and bool(own) and all(one.state == "acknowledged" for one in own)


def join_intents(connection: Connection, run: Sequence[IntentSpan]) -> int:
    """U35: replace neighbouring closed intents by one with a single chunk; how many chunks are gone by that.

    It has the id of the last one, and is closed as they were: no late acknowledgement fits it (D4).
    """
    ids = [intent.id for intent in run]
    last, whole = ids[-1], SequenceRange(run[0].range.after, run[-1].range.through)
    own = [row for rows in _sent(connection, ids).values() for row in rows]
    tally = sum((Tally.of(row.row_count or 0, row.checksum or "0") for row in own), Tally())
    connection.execute(delete(chunks).where(chunks.c.intent.in_(ids)))
    connection.execute(delete(intents).where(intents.c.id.in_(ids[:-1])))
    connection.execute(update(intents).where(intents.c.id == last).values(after_seq=whole.after))
    connection.execute(
        chunks.insert().values(
            intent=last,
            after_seq=whole.after,
            through_seq=whole.through,
            state="acknowledged",
            row_count=tally.rows,
            checksum=tally.checksum_text,
            acknowledged_at=max((row.acknowledged_at for row in own if row.acknowledged_at), default=None),
            folded=sum(row.folded for row in own),
        )
    )
    return len(own) - 1
