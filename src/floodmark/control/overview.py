"""What status shows of all datasets and of a sink, in a fixed number of statements, however many there are.

Page after page asks this, and scrape after scrape: a question per dataset or partition would be felt.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, case, func, select

from floodmark.control.datasets import PartitionTotals
from floodmark.control.deliveries import Channel, Stretch, Watermark
from floodmark.control.schema import (
    block_partitions,
    blocks,
    intents,
    ledger,
    ledger_given_up,
    losses,
    partitions,
    quarantine,
    segments,
    watermarks,
)
from floodmark.sequence import SequenceRange, Tally

BLOCKS_BEHIND_MAX = 10_000
"""How many blocks of a channel are added up; what is behind them counts, too, and is not shown."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """The sealed segments of a dataset that wait for their commit."""

    segments: int = 0
    rows: int = 0
    bytes: int = 0
    set_aside_segments: int = 0
    set_aside_rows: int = 0
    oldest: datetime | None = None
    """When the oldest of them that is not set aside was sealed."""


@dataclass(frozen=True, slots=True)
class Commits:
    """What the blocks of a dataset come to."""

    at: datetime | None = None
    """When the newest commit was recorded."""
    undecided: SequenceRange | None = None
    expired: int = 0
    dropped: int = 0
    unsettled: int = 0


@dataclass(frozen=True, slots=True)
class Flow:
    """How many rows of a dataset have passed so far."""

    taken: int = 0
    """Rows of decided blocks with their duplicates, and those that were too old or dropped."""
    committed: int = 0
    rows_per_landing_byte: float = 0.0
    """How many rows a byte of the landing log holds, on average."""


@dataclass(frozen=True, slots=True)
class Position:
    """How far a channel has got."""

    mark: Watermark
    moved_at: datetime | None
    """When a delivery last moved it."""


def backlogs(connection: Connection) -> dict[str, Backlog]:
    """What waits in segments, by dataset."""
    aside = segments.c.set_aside.is_not(None)
    found = connection.execute(
        select(
            segments.c.dataset,
            func.count(),
            func.sum(segments.c.row_count),
            func.sum(segments.c.byte_count),
            func.sum(case((aside, 1), else_=0)),
            func.sum(case((aside, segments.c.row_count), else_=0)),
            func.min(case((~aside, segments.c.created_at))),
        )
        .where(segments.c.state == "sealed")
        .group_by(segments.c.dataset)
    )
    return {
        dataset: Backlog(int(count), int(rows), int(size), int(asides), int(aside_rows), _time(oldest))
        for dataset, count, rows, size, asides, aside_rows, oldest in found
    }


def commits(connection: Connection) -> dict[str, Commits]:
    """What the blocks come to, by dataset."""
    failed = (blocks.c.state == "committed") & blocks.c.reason.is_not(None)
    sums = connection.execute(
        select(
            blocks.c.dataset,
            func.max(case((blocks.c.state == "committed", blocks.c.decided_at))),
            func.sum(blocks.c.expired),
            func.sum(blocks.c.dropped),
            func.sum(case((failed, 1), else_=0) + blocks.c.unsettled),
        ).group_by(blocks.c.dataset)
    )
    open_blocks = connection.execute(
        select(blocks.c.dataset, blocks.c.after_seq, blocks.c.through_seq).where(blocks.c.state == "reserved")
    )
    undecided = {dataset: SequenceRange(after, through) for dataset, after, through in open_blocks}
    return {
        dataset: Commits(_time(at), undecided.get(dataset), int(expired), int(dropped), int(unsettled))
        for dataset, at, expired, dropped, unsettled in sums
    }


def flows(connection: Connection) -> dict[str, Flow]:
    """How many rows have passed so far, by dataset."""
    landed = connection.execute(
        select(
            segments.c.dataset,
            func.sum(segments.c.row_count),
            func.sum(segments.c.landing_through - segments.c.landing_from),
        )
        .where(segments.c.landing_file.is_not(None))
        .group_by(segments.c.dataset)
    )
    shares = {dataset: float(rows) / float(size) for dataset, rows, size in landed if size}
    all_rows = blocks.c.row_count + blocks.c.duplicates + blocks.c.expired + blocks.c.dropped
    found = connection.execute(
        select(blocks.c.dataset, func.sum(all_rows), func.sum(blocks.c.row_count))
        .where(blocks.c.state != "reserved")
        .group_by(blocks.c.dataset)
    )
    return {dataset: Flow(int(taken), int(committed), shares.get(dataset, 0.0)) for dataset, taken, committed in found}


def partition_totals(connection: Connection) -> dict[str, list[PartitionTotals]]:
    """The totals of every partition, by dataset and in order."""
    result: dict[str, list[PartitionTotals]] = {}
    found = connection.execute(select(partitions).order_by(partitions.c.dataset, partitions.c.partition_key))
    for row in found:
        totals = PartitionTotals(row.partition_key, Tally.of(row.row_count, row.checksum), row.last_seq)
        result.setdefault(row.dataset, []).append(totals)
    return result


def quarantined(connection: Connection) -> dict[str, int]:
    """Rows in quarantine, by dataset."""
    found = connection.execute(
        select(quarantine.c.dataset, func.sum(quarantine.c.row_count))
        .where(quarantine.c.state == "held")
        .group_by(quarantine.c.dataset)
    )
    return {dataset: int(rows) for dataset, rows in found}


def lost(connection: Connection) -> dict[str, int]:
    """Acknowledged rows that were given up, by dataset."""
    found = connection.execute(select(losses.c.dataset, func.sum(losses.c.row_count)).group_by(losses.c.dataset))
    return {dataset: int(rows) for dataset, rows in found}


def positions(connection: Connection, sink: str) -> dict[Channel, Position]:
    """The watermarks of a sink."""
    found = connection.execute(select(watermarks).where(watermarks.c.sink == sink))
    return {
        Channel(sink, row.dataset, row.partition_key): Position(
            Watermark(row.seq, Tally.of(row.row_count, row.checksum)), _time(row.moved_at)
        )
        for row in found
    }


def pinned(connection: Connection, sink: str) -> dict[Channel, SequenceRange]:
    """The ranges that a sink is delivering."""
    found = connection.execute(select(intents).where(intents.c.sink == sink, intents.c.state == "open"))
    return {
        Channel(sink, row.dataset, row.partition_key): SequenceRange(row.after_seq, row.through_seq) for row in found
    }


def behind(connection: Connection, channel: Channel, within: SequenceRange) -> tuple[int, datetime | None]:
    """About how many rows a range has, and when the first of them was committed."""
    found = connection.execute(
        select(
            block_partitions.c.row_count,
            block_partitions.c.first_seq,
            block_partitions.c.last_seq,
            case((blocks.c.folded > 1, blocks.c.reserved_at), else_=blocks.c.decided_at).label("since"),
        )
        .join(blocks, blocks.c.id == block_partitions.c.block)
        .where(
            blocks.c.dataset == channel.dataset,
            blocks.c.state == "committed",
            blocks.c.through_seq > within.after,
            blocks.c.after_seq < within.through,
            block_partitions.c.partition_key == channel.partition,
            block_partitions.c.last_seq > within.after,
            block_partitions.c.first_seq <= within.through,
        )
        .order_by(blocks.c.through_seq)
        .limit(BLOCKS_BEHIND_MAX)
    ).all()
    rows = sum(Stretch(row.row_count, row.first_seq, row.last_seq).within(within).rows for row in found)
    return rows, _time(found[0].since) if found else None


@dataclass(frozen=True, slots=True)
class Origin:
    """What a hub has received from one store into one dataset."""

    origin: str
    dataset: str
    channels: int
    rows: int
    through: int
    """The highest sequence number of that store which has arrived."""
    seen_at: datetime | None
    given_up_rows: int
    given_up: tuple[SequenceRange, ...] = ()
    """Ranges whose rows did not arrive, the first few."""


def origins(connection: Connection, *, origins_max: int, ranges_max: int) -> list[Origin]:
    """The stores that send, and what they send to, the last seen first."""
    given_up: dict[tuple[str, str], list[SequenceRange]] = {}
    ranges = connection.execute(
        select(
            ledger_given_up.c.origin,
            ledger_given_up.c.dataset,
            ledger_given_up.c.after_seq,
            ledger_given_up.c.through_seq,
        )
        .order_by(ledger_given_up.c.after_seq)
        .limit(ranges_max)
    )
    for origin, dataset, after, through in ranges:
        given_up.setdefault((origin, dataset), []).append(SequenceRange(after, through))
    found = connection.execute(
        select(
            ledger.c.origin,
            ledger.c.dataset,
            func.count(),
            func.sum(ledger.c.row_count),
            func.max(ledger.c.through_seq),
            func.max(ledger.c.updated_at).label("seen"),
            func.sum(ledger.c.given_up_rows),
        )
        .group_by(ledger.c.origin, ledger.c.dataset)
        .order_by(func.max(ledger.c.updated_at).desc(), ledger.c.origin, ledger.c.dataset)
        .limit(origins_max)
    )
    return [
        Origin(
            origin,
            dataset,
            int(channels),
            int(rows),
            int(through),
            _time(seen),
            int(lost_rows),
            tuple(given_up.get((origin, dataset), ())),
        )
        for origin, dataset, channels, rows, through, seen, lost_rows in found
    ]


def latest(moments: Iterable[datetime | None]) -> datetime | None:
    return max((one for one in moments if one is not None), default=None)


def earliest(moments: Iterable[datetime | None]) -> datetime | None:
    return min((one for one in moments if one is not None), default=None)


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
