"""Deliveries in the control database: what each channel has received, and what is in progress.

A *channel* is one sink instance's way through one partition of one dataset. Its life, over and over:

    watermark ──pin──▶ open intent ──its chunks are settled (`control.chunks`)──▶ closed, watermark moved

Invariants
- D1 A range is pinned before anything leaves, with the settings it leaves under: a retry sends the same ranges,
  whatever arrived, was compacted or reconfigured meanwhile.
- D4 At most one open intent per channel.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, and_, bindparam, func, select, update

from floodmark.control import sinks as sink_records
from floodmark.control.schema import (
    Record,
    block_partitions,
    blocks,
    chunks,
    datasets,
    forfeits,
    intents,
    partitions,
    quarantine,
    sinks,
    watermarks,
)
from floodmark.control.sinks import Sink
from floodmark.errors import Retryable
from floodmark.sequence import SEQUENCE_MAX, SequenceRange, Tally

# ── Where a range is cut into chunks ─────────────────────────────────────────────────────────────────────────────────
# Boundaries are chosen at rows. Arithmetic on the numbers alone would cost by sequence: a partition first seen at
# number 10^9 would have hundreds of thousands of empty chunks.


@dataclass(frozen=True, slots=True)
class Stretch:
    """A number of rows of a partition between two sequence numbers."""

    rows: int
    first_seq: int
    last_seq: int

    def within(self, whole: SequenceRange) -> Stretch:
        """The part inside a range that it reaches into, with its share of the rows."""
        first, last = max(self.first_seq, whole.after + 1), min(self.last_seq, whole.through)
        share = -(-self.rows * (last - first + 1) // (self.last_seq - self.first_seq + 1))
        return Stretch(share, first, last)


def chunk_ranges(
    whole: SequenceRange,
    found: Sequence[Stretch],
    *,
    rows_max: int,
    fixed: Sequence[SequenceRange] = (),
) -> list[SequenceRange]:
    """Cut a range at rows, about `rows_max` to a chunk; an empty stretch belongs to the chunk behind it.

    Inside one block a stretch is cut evenly. `fixed` ranges are chunks as they are (they left before, and the
    destination still has them); what lies between them is cut as usual.
    """
    ranges: list[SequenceRange] = []
    after = whole.after
    for item in sorted(fixed):
        if item.after > after:
            ranges += _cut(SequenceRange(after, item.after), found, rows_max=rows_max)
        ranges.append(item)
        after = item.through
    if after < whole.through:
        ranges += _cut(SequenceRange(after, whole.through), found, rows_max=rows_max)
    return ranges


def _cut(whole: SequenceRange, found: Sequence[Stretch], *, rows_max: int) -> list[SequenceRange]:
    cuts: list[int] = []
    rows = 0
    inside = [stretch for stretch in found if stretch.last_seq > whole.after and stretch.first_seq <= whole.through]
    for piece in (piece for stretch in inside for piece in _pieces(stretch, rows_max=rows_max)):
        if rows and rows + piece.rows > rows_max:
            cuts.append(piece.first_seq - 1)
            rows = 0
        rows += piece.rows
    edges = [whole.after, *(cut for cut in cuts if whole.after < cut < whole.through), whole.through]
    return [SequenceRange(after, through) for after, through in itertools.pairwise(edges)]


def exact_rows(ranges: Sequence[SequenceRange], found: Sequence[Stretch]) -> list[int | None]:
    """How many rows each range has, by what was committed; None where only the rows themselves can tell.

    Both rise. A stretch inside a range counts whole; one that is cut counts only if no number in it is missing.
    """
    counts: list[int | None] = []
    place = 0
    for range_ in ranges:
        while place < len(found) and found[place].last_seq <= range_.after:
            place += 1
        total: int | None = 0
        for stretch in itertools.islice(found, place, None):
            if stretch.first_seq > range_.through:
                break
            part = stretch.within(range_)
            cut = (part.first_seq, part.last_seq) != (stretch.first_seq, stretch.last_seq)
            dense = stretch.rows == stretch.last_seq - stretch.first_seq + 1
            total = None if total is None or (cut and not dense) else total + part.rows
        counts.append(total)
    return counts


def rows_through(found: Sequence[Stretch], *, rows_max: int) -> int | None:
    """The number at which about `rows_max` rows are reached; None if there are not so many."""
    rows = 0
    for stretch in found:
        if rows + stretch.rows >= rows_max:
            share = rows_max - rows
            width = stretch.last_seq - stretch.first_seq + 1
            return stretch.first_seq + max(width * share // stretch.rows, 1) - 1
        rows += stretch.rows
    return None


def _pieces(stretch: Stretch, *, rows_max: int) -> Iterator[Stretch]:
    """Divide a stretch into even parts of at most about `rows_max` rows."""
    count = -(-stretch.rows // rows_max)
    width = -(-(stretch.last_seq - stretch.first_seq + 1) // count)
    for first in range(stretch.first_seq, stretch.last_seq + 1, width):
        yield Stretch(-(-stretch.rows // count), first, min(first + width - 1, stretch.last_seq))


def check_tiling(whole: SequenceRange, ranges: Sequence[SequenceRange]) -> None:
    edges = [whole.after, *(item.through for item in ranges)]
    if [item.after for item in ranges] != edges[:-1] or edges[-1] != whole.through:
        raise ValueError(f"chunks {[str(item) for item in ranges]} do not tile {whole}")


# ── Deliveries ───────────────────────────────────────────────────────────────────────────────────────────────────────


STRETCHES_MAX = 10_000
"""How many blocks one read includes: a first export of a long history is pinned in pieces."""


def of_channel(table: Any) -> Any:
    """The condition on a table's rows that they are a channel's; which one is said with `channel_values`."""
    return and_(
        table.c.sink == bindparam("sink"),
        table.c.dataset == bindparam("dataset"),
        table.c.partition_key == bindparam("partition_key"),
    )


def channel_values(channel: Channel) -> dict[str, str]:
    """A channel as the columns of its records, and the statements about it, name it."""
    return {"sink": channel.sink, "dataset": channel.dataset, "partition_key": channel.partition}


# Asked for with every chunk. Built once: to put a statement together takes longer than to run it.
_PAUSED = select(datasets.c.paused_at).where(datasets.c.name == bindparam("dataset"))
_MARK = select(watermarks).where(of_channel(watermarks))
_OPEN = select(intents).where(of_channel(intents), intents.c.state == "open")
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
    """None if nothing was recorded, or the record is lost."""
    open: bool
    """Whether an intent is open."""


@dataclass(frozen=True, slots=True)
class Intent:
    """A pinned range, with the settings that were in force when it was pinned."""

    id: str
    channel: Channel
    range: SequenceRange
    settings: dict[str, Any]


# ── watermarks and intents ───────────────────────────────────────────────────────────────────────────────────────────


def watermark(connection: Connection, channel: Channel) -> Watermark | None:
    row = connection.execute(_MARK, channel_values(channel)).one_or_none()
    return None if row is None else Watermark(row.seq, Tally.of(row.row_count, row.checksum))


def lowest_watermark(connection: Connection, sink: str, dataset: str, partition: str | None) -> int:
    """Up to which number a sink has everything of a partition, or of all partitions of a dataset."""
    known = select(partitions.c.partition_key).where(partitions.c.dataset == dataset)
    keys = [partition] if partition else connection.execute(known).scalars().all()
    marks = [watermark(connection, Channel(sink, dataset, key)) for key in keys]
    return min((mark.seq if mark else 0 for mark in marks), default=0)


def lagging(connection: Connection, sink: str) -> list[Lag]:
    """The channels of a sink with rows behind their watermark, or with an intent that is still open.

    One read of the control database: a delivery without new rows ends here, without Spark and without the lake.
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
    row = connection.execute(_OPEN, channel_values(channel)).one_or_none()
    return None if row is None else _intent(row)


def get_intent(connection: Connection, id: str) -> Intent:
    """An intent that is on record, open or closed."""
    return _intent(connection.execute(select(intents).where(intents.c.id == id)).one())


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

    At most about `rows_max` rows are pinned at once, and none of the `uncut` ranges in part.
    `removals_seen` is `removals.moment` as it was when the rows were looked at: what changed since must not leave.
    """
    after = delivered_through(connection, channel, start=start)
    adopted = open_intent(connection, channel)
    if adopted is not None:
        _check_none_went(connection, channel, adopted.range, seen=removals_seen)
        return adopted
    if after >= horizon or _stopped(connection, channel):
        return None
    check_unremoved(connection, channel, after=after, seen=removals_seen)
    through = limit(connection, channel, SequenceRange(after, horizon), rows_max=rows_max)
    through = max([through, *(item.through for item in uncut if through in item)])
    intent = Intent(id, channel, SequenceRange(after, through), settings)
    connection.execute(
        intents.insert().values(
            id=id,
            **channel_values(channel),
            after_seq=intent.range.after,
            through_seq=intent.range.through,
            settings=json.dumps(settings, sort_keys=True),
            state="open",
            pinned_at=now.isoformat(),
        )
    )
    return intent


def _stopped(connection: Connection, channel: Channel) -> bool:
    """Read in the transaction that pins. An exporter that began before the pause, the removal or the rewinding ends
    after what it has pinned: nothing leaves for a sink that nobody has any more.
    """
    paused = connection.execute(_PAUSED, {"dataset": channel.dataset}).scalar_one_or_none()
    return paused is not None or not sink_records.takes_more(connection, channel.sink)


def delivered_through(connection: Connection, channel: Channel, *, start: int) -> int:
    """D1: the watermark, read in the transaction that inserts the intent. Read before it, two exporters would pin two
    ranges that overlap. A channel without one gets one at `start`.
    """
    mark = watermark(connection, channel)
    if mark is None:
        connection.execute(watermarks.insert().values(**channel_values(channel), seq=start))
        return start
    return mark.seq


def check_unremoved(connection: Connection, channel: Channel, *, after: int, seen: int | None) -> None:
    """U14: what is pinned is what is there. Rows that are being removed would leave now and be missing at a retry; rows
    that are being settled again would be others then.
    """
    from floodmark.control import removals as removal_records  # only for those who deliver

    if removal_records.under_way(connection, channel, after=after):
        raise Retryable(
            f"Another process is removing or settling rows of {channel.dataset!r} that this sink does not have yet.",
            hint="Export again. If this repeats, a `floodmark retain`, `purge` or `compact` was interrupted: run "
            "it again.",
        )
    _check_none_went(connection, channel, SequenceRange(after, SEQUENCE_MAX), seen=seen)


def _check_none_went(connection: Connection, channel: Channel, within: SequenceRange, *, seen: int | None) -> None:
    """U14: rows that were removed or changed since they were read must not be sent, also not with an intent of another
    process.
    """
    from floodmark.control import removals as removal_records  # only for those who deliver

    if seen is None or removal_records.moment(connection, channel.dataset) == seen:
        return
    if removal_records.touched_since(connection, channel, within, seen=seen):
        raise Retryable(f"Rows of {channel.dataset!r} were just removed or settled again.", hint="Export again.")


def limit(connection: Connection, channel: Channel, within: SequenceRange, *, rows_max: int) -> int:
    """How far one intent reaches into a range."""
    found = stretches(connection, channel, within)
    cut = rows_through(found, rows_max=rows_max)
    if cut is None and len(found) == STRETCHES_MAX:
        cut = found[-1].last_seq
    return within.through if cut is None else max(min(cut, within.through), within.after + 1)


def fast_forward(connection: Connection, channel: Channel, *, seen: Watermark | None, to: Watermark) -> bool:
    """Set the watermark to what the destination was proved to have; false if anything changed since the comparison.

    D4: never while an intent is open, whose chunks would then be acknowledged twice.
    """
    if open_intent(connection, channel) is not None or watermark(connection, channel) != seen:
        return False
    values = {"seq": to.seq, "row_count": to.tally.rows, "checksum": to.tally.checksum_text}
    if seen is None:
        connection.execute(watermarks.insert().values(**channel_values(channel), **values))
    elif to.seq > seen.seq:
        here = (
            watermarks.c.sink == channel.sink,
            watermarks.c.dataset == channel.dataset,
            watermarks.c.partition_key == channel.partition,
        )
        connection.execute(update(watermarks).where(*here).values(**values))
    return True


# ── where the rows are ───────────────────────────────────────────────────────────────────────────────────────────────


def stretches(connection: Connection, channel: Channel, within: SequenceRange) -> list[Stretch]:
    """Where the partition's rows are, block by block: so chunk boundaries need no scan, and gaps cost nothing."""
    # A block that was delivered in part counts with the rest of it: what is pinned and cut begins there.
    return [stretch.within(within) for stretch in whole_stretches(connection, channel, within)]


def whole_stretches(connection: Connection, channel: Channel, within: SequenceRange) -> list[Stretch]:
    """The same with those that reach over an end of the range as they were committed: their rows are exact."""
    asked = {"of": channel.dataset, "key": channel.partition, "after": within.after, "through": within.through}
    found = connection.execute(_STRETCHES, asked)
    return [Stretch(row.row_count, row.first_seq, row.last_seq) for row in found]


def _intent(row: Record) -> Intent:
    return Intent(
        row.id,
        Channel(row.sink, row.dataset, row.partition_key),
        SequenceRange(row.after_seq, row.through_seq),
        json.loads(row.settings),
    )


# ── a sink that begins anew ──────────────────────────────────────────────────────────────────────────────────────────
# A new instance takes the place of the old one, in one transaction.


def chunk_beginning(connection: Connection, channel: Channel, position: int) -> int:
    """The position, or the beginning of the chunk that it is inside of."""
    found = connection.execute(
        select(func.min(chunks.c.after_seq))
        .join(intents, intents.c.id == chunks.c.intent)
        .where(
            intents.c.sink == channel.sink,
            intents.c.dataset == channel.dataset,
            intents.c.partition_key == channel.partition,
            chunks.c.after_seq < position,
            chunks.c.through_seq > position,
            chunks.c.state != "split",
        )
    ).scalar_one_or_none()
    return position if found is None else int(found)


def held_after(connection: Connection, channel: Channel, position: int) -> int:
    """How many rows of a channel are in quarantine behind a position."""
    return int(
        connection.execute(
            select(func.count()).where(
                quarantine.c.sink == channel.sink,
                quarantine.c.dataset == channel.dataset,
                quarantine.c.partition_key == channel.partition,
                quarantine.c.state == "held",
                quarantine.c.seq > position,
            )
        ).scalar_one()
    )


def begin_anew(
    connection: Connection,
    old: Sink,
    *,
    instance: str,
    settings: str,
    positions: Mapping[tuple[str, str], int],
    discard: bool,
    now: datetime,
) -> None:
    """Put a new instance in the place of a sink. Channels with a position begin anew; the others go on as they are.

    The new one has the number of the old one: what was removed from the lake since then concerned it, too (U19).
    """
    row = connection.execute(select(sinks).where(sinks.c.instance == old.instance)).one()
    connection.execute(update(sinks).where(sinks.c.instance == old.instance).values(state="removed", reason=None))
    connection.execute(
        sinks.insert().values(
            instance=instance,
            name=row.name,
            kind=row.kind,
            settings=settings,
            state="active",
            created_at=row.created_at,
            number=row.number,
            hub=row.hub,
            paused_at=row.paused_at,
            known_as=old.claimant,
        )
    )
    for dataset, partition in _channels(connection, old.instance):
        if (dataset, partition) not in positions:
            for table in (watermarks, intents):
                same = (table.c.sink == old.instance, table.c.dataset == dataset, table.c.partition_key == partition)
                connection.execute(update(table).where(*same).values(sink=instance))
    # An acknowledgement counts only while its intent is open: what is still sent for the old one counts for nobody.
    connection.execute(update(intents).where(intents.c.sink == old.instance).values(state="closed"))
    connection.execute(update(forfeits).where(forfeits.c.sink == old.instance).values(sink=instance))
    for (dataset, partition), position in positions.items():
        if discard:
            connection.execute(
                update(quarantine)
                .where(
                    quarantine.c.sink == old.instance,
                    quarantine.c.dataset == dataset,
                    quarantine.c.partition_key == partition,
                    quarantine.c.state == "held",
                    quarantine.c.seq > position,
                )
                .values(state="discarded", decided_at=now.isoformat())
            )
    connection.execute(
        update(quarantine).where(quarantine.c.sink == old.instance, quarantine.c.state == "held").values(sink=instance)
    )


def _channels(connection: Connection, instance: str) -> list[tuple[str, str]]:
    found = set()
    for table in (watermarks, intents):
        rows = connection.execute(select(table.c.dataset, table.c.partition_key).where(table.c.sink == instance))
        found |= {(row.dataset, row.partition_key) for row in rows}
    return sorted(found)
