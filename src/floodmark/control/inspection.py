"""The records of deliveries and commits as a whole, for those who check them: audit, trace and fsck."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from sqlalchemy import ColumnElement, Connection, and_, func, select, text

from floodmark.control.deliveries import Channel, Intent
from floodmark.control.schema import (
    Record,
    block_partitions,
    blocks,
    chunks,
    forfeits,
    intents,
    landing,
    partitions,
    quarantine,
    removals,
    segments,
    watermarks,
)
from floodmark.sequence import SequenceRange, Tally


@dataclass(frozen=True, slots=True)
class ChunkRecord:
    """One chunk with all that is on record about it."""

    intent: str
    range: SequenceRange
    state: str
    tally: Tally
    acknowledged_at: str | None
    folded: int = 1
    """How many chunks it stands for (U35)."""


@dataclass(frozen=True, slots=True)
class IntentRecord:
    """One pinned range, open or closed, with its chunks in order."""

    intent: Intent
    state: str
    pinned_at: str
    chunks: tuple[ChunkRecord, ...]


@dataclass(frozen=True, slots=True)
class BlockStats:
    """What a committed block holds of a partition."""

    block: str
    first_seq: int
    last_seq: int
    tally: Tally


@dataclass(frozen=True, slots=True)
class Removal:
    """Rows of a partition that were removed from the lake, or that a sink will never receive."""

    operation: str
    partition: str
    range: SequenceRange
    tally: Tally
    state: str = "done"


@dataclass(frozen=True, slots=True)
class GivenUpRow:
    """A row that a sink could not deliver."""

    id: str
    seq: int
    tally: Tally
    state: str
    reason: str
    decided_at: str | None = None


@dataclass(frozen=True, slots=True)
class SegmentRecord:
    """A segment's row."""

    id: int
    state: str
    path: str
    rows: int
    block: str | None
    landing_file: str | None
    landing_from: int | None
    landing_through: int | None
    source: str | None
    created_at: str


@dataclass(frozen=True, slots=True)
class BlockRecord:
    """A block's row, with the times of its life."""

    id: str
    range: SequenceRange
    state: str
    generation: int
    snapshot: int | None
    rows: int
    reserved_at: str
    decided_at: str | None
    folded: int = 1
    """How many blocks it stands for (U35)."""


def channels_of(connection: Connection, sink: str) -> list[Channel]:
    """Every partition there is, and every one that the sink has a watermark for."""
    found = connection.execute(select(partitions.c.dataset, partitions.c.partition_key)).all()
    marked = connection.execute(
        select(watermarks.c.dataset, watermarks.c.partition_key).where(watermarks.c.sink == sink)
    ).all()
    return [
        Channel(sink, dataset, partition) for dataset, partition in sorted({*map(tuple, found), *map(tuple, marked)})
    ]


def intents_of(connection: Connection, channel: Channel) -> list[IntentRecord]:
    """All intents of a channel, oldest first."""
    return _intents(
        connection,
        and_(
            intents.c.sink == channel.sink,
            intents.c.dataset == channel.dataset,
            intents.c.partition_key == channel.partition,
        ),
    )


def filters_of(connection: Connection, channel: Channel) -> list[tuple[int, str | None]]:
    """The row filter of each intent of a channel, with the sequence number after which the intent begins; in order."""
    found = connection.execute(
        select(intents.c.after_seq, intents.c.settings)
        .where(
            intents.c.sink == channel.sink,
            intents.c.dataset == channel.dataset,
            intents.c.partition_key == channel.partition,
        )
        .order_by(intents.c.after_seq)
    )
    return [(row.after_seq, json.loads(row.settings).get("where")) for row in found]


def chunk_with(connection: Connection, channel: Channel, seq: int) -> tuple[ChunkRecord, Intent] | None:
    """The newest chunk of a channel that a number lies in, and the intent it belongs to."""
    row = connection.execute(
        select(chunks, intents.c.settings, intents.c.after_seq.label("begin"), intents.c.through_seq.label("end"))
        .join(intents, intents.c.id == chunks.c.intent)
        .where(
            intents.c.sink == channel.sink,
            intents.c.dataset == channel.dataset,
            intents.c.partition_key == channel.partition,
            chunks.c.after_seq < seq,
            chunks.c.through_seq >= seq,
        )
        .order_by(intents.c.pinned_at.desc())
        .limit(1)
    ).first()
    if row is None:
        return None
    intent = Intent(row.intent, channel, SequenceRange(row.begin, row.end), json.loads(row.settings))
    return _chunk(row), intent


def every_intent(connection: Connection, dataset: str) -> list[IntentRecord]:
    return _intents(connection, intents.c.dataset == dataset)


def _intents(connection: Connection, condition: ColumnElement[bool]) -> list[IntentRecord]:
    rows = connection.execute(select(intents).where(condition).order_by(intents.c.pinned_at, intents.c.after_seq)).all()
    by_intent: dict[str, list[ChunkRecord]] = {row.id: [] for row in rows}
    found = connection.execute(
        select(chunks).join(intents, intents.c.id == chunks.c.intent).where(condition).order_by(chunks.c.after_seq)
    )
    for row in found:
        by_intent[row.intent].append(_chunk(row))
    return [
        IntentRecord(
            Intent(
                row.id,
                Channel(row.sink, row.dataset, row.partition_key),
                SequenceRange(row.after_seq, row.through_seq),
                json.loads(row.settings),
            ),
            row.state,
            row.pinned_at,
            tuple(by_intent[row.id]),
        )
        for row in rows
    ]


def stats_of(connection: Connection, dataset: str, partition: str) -> list[BlockStats]:
    """What the committed blocks hold of a partition, in order."""
    found = connection.execute(
        select(block_partitions)
        .join(blocks, blocks.c.id == block_partitions.c.block)
        .where(
            blocks.c.dataset == dataset,
            blocks.c.state == "committed",
            block_partitions.c.partition_key == partition,
        )
        .order_by(block_partitions.c.first_seq)
    )
    return [BlockStats(row.block, row.first_seq, row.last_seq, Tally.of(row.row_count, row.checksum)) for row in found]


def totals_of_blocks(connection: Connection, dataset: str) -> dict[str, Tally]:
    """What the committed blocks hold of each partition together."""
    found = connection.execute(
        select(block_partitions.c.partition_key, block_partitions.c.row_count, block_partitions.c.checksum)
        .join(blocks, blocks.c.id == block_partitions.c.block)
        .where(blocks.c.dataset == dataset, blocks.c.state == "committed")
    )
    totals: dict[str, Tally] = {}
    for partition, rows, checksum in found:
        totals[partition] = totals.get(partition, Tally()) + Tally.of(rows, checksum)
    return totals


def removals_of(connection: Connection, dataset: str, partition: str | None = None) -> list[Removal]:
    query = select(removals).where(removals.c.dataset == dataset)
    if partition is not None:
        query = query.where(removals.c.partition_key == partition)
    found = connection.execute(query.order_by(removals.c.after_seq))
    return [replace(_removal(row), state=row.state) for row in found]


def forfeits_of(connection: Connection, channel: Channel) -> list[Removal]:
    """The rows that the sink was recorded to never receive."""
    found = connection.execute(
        select(forfeits)
        .where(
            forfeits.c.sink == channel.sink,
            forfeits.c.dataset == channel.dataset,
            forfeits.c.partition_key == channel.partition,
        )
        .order_by(forfeits.c.after_seq)
    )
    return [_removal(row) for row in found]


def _removal(row: Record) -> Removal:
    tally = Tally.of(row.row_count, row.checksum)
    return Removal(row.operation, row.partition_key, SequenceRange(row.after_seq, row.through_seq), tally)


def given_up_of(connection: Connection, channel: Channel) -> list[GivenUpRow]:
    """Every row that the channel could not deliver at first, in sequence order."""
    found = connection.execute(
        select(quarantine)
        .where(
            quarantine.c.sink == channel.sink,
            quarantine.c.dataset == channel.dataset,
            quarantine.c.partition_key == channel.partition,
        )
        .order_by(quarantine.c.seq)
    )
    return [
        GivenUpRow(row.id, row.seq, Tally.of(1, row.checksum or "0"), row.state, row.reason, row.decided_at)
        for row in found
    ]


def block_with(connection: Connection, dataset: str, seq: int) -> BlockRecord | None:
    """The committed block that a number lies in."""
    row = connection.execute(
        select(blocks).where(
            blocks.c.dataset == dataset,
            blocks.c.state == "committed",
            blocks.c.after_seq < seq,
            blocks.c.through_seq >= seq,
        )
    ).first()
    return None if row is None else _block(row)


def committed_blocks(connection: Connection, dataset: str) -> list[BlockRecord]:
    """The committed blocks, newest first."""
    found = connection.execute(
        select(blocks)
        .where(blocks.c.dataset == dataset, blocks.c.state == "committed")
        .order_by(blocks.c.through_seq.desc())
    )
    return [_block(row) for row in found]


def segment(connection: Connection, id: int) -> SegmentRecord | None:
    row = connection.execute(select(segments).where(segments.c.id == id)).one_or_none()
    return None if row is None else _segment(row)


def segments_in(connection: Connection, dataset: str, *, state: str) -> list[SegmentRecord]:
    found = connection.execute(
        select(segments).where(segments.c.dataset == dataset, segments.c.state == state).order_by(segments.c.registered)
    )
    return [_segment(row) for row in found]


def known_segments(connection: Connection, ids: Sequence[int]) -> set[int]:
    """Those of some ids that there is a row for."""
    known: set[int] = set()
    for start in range(0, len(ids), 500):
        found = connection.execute(select(segments.c.id).where(segments.c.id.in_(ids[start : start + 500])))
        known.update(found.scalars())
    return known


def landing_states(connection: Connection, dataset: str) -> dict[str, tuple[str, int]]:
    """For each recorded landing file: its state and its sealed offset."""
    found = connection.execute(select(landing).where(landing.c.dataset == dataset))
    return {row.file: (row.state, row.sealed) for row in found}


def watermarks_above(connection: Connection, dataset: str, seq: int) -> list[tuple[Channel, int]]:
    found = connection.execute(
        select(watermarks).where(watermarks.c.dataset == dataset, watermarks.c.seq > seq).order_by(watermarks.c.sink)
    )
    return [(Channel(row.sink, row.dataset, row.partition_key), row.seq) for row in found]


def highest_committed(connection: Connection, dataset: str) -> int:
    return int(
        connection.execute(
            select(func.coalesce(func.max(blocks.c.through_seq), 0)).where(
                blocks.c.dataset == dataset, blocks.c.state == "committed"
            )
        ).scalar_one()
    )


def _chunk(row: Record) -> ChunkRecord:
    tally = Tally() if row.row_count is None else Tally.of(row.row_count, row.checksum)
    span = SequenceRange(row.after_seq, row.through_seq)
    return ChunkRecord(row.intent, span, row.state, tally, row.acknowledged_at, row.folded)


def _block(row: Record) -> BlockRecord:
    return BlockRecord(
        row.id,
        SequenceRange(row.after_seq, row.through_seq),
        row.state,
        row.generation,
        row.snapshot,
        row.row_count,
        row.reserved_at,
        row.decided_at,
        row.folded,
    )


def _segment(row: Record) -> SegmentRecord:
    return SegmentRecord(
        row.id,
        row.state,
        row.path,
        row.row_count,
        row.block,
        row.landing_file,
        row.landing_from,
        row.landing_through,
        row.source,
        row.created_at,
    )


# ── the database itself ──────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Health:
    """The control database as a program: which one it is, and what it says about itself."""

    version: str
    problem: str | None
    now: datetime | None
    """Its own clock, if it runs elsewhere."""


def health(connection: Connection) -> Health:
    """Ask the database to check its file; a server checks its own."""
    if connection.dialect.name == "sqlite":
        found = connection.execute(text("PRAGMA quick_check(1)")).scalar_one()
        version = connection.execute(text("SELECT sqlite_version()")).scalar_one()
        return Health(f"SQLite {version}", None if found == "ok" else str(found), None)
    version = connection.execute(text("SHOW server_version")).scalar_one()
    return Health(f"PostgreSQL {version}", None, connection.execute(text("SELECT clock_timestamp()")).scalar_one())
