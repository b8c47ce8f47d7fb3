"""Blocks and the allocator: ranges of sequence numbers, reserved for one flush each.

    (none) ──reserve──▶ reserved ──record──▶ committed
                            └────void──▶ void

A block leaves `reserved` once (I4); the table's own history decides to which side, never an error message.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, bindparam, false, func, select, update

from floodmark.commit.protocol import Base, PartitionStats
from floodmark.control import datasets as dataset_records
from floodmark.control import segments as segment_records
from floodmark.control.datasets import Dataset, PartitionTotals
from floodmark.control.schema import (
    Record,
    block_partitions,
    blocks,
    counters,
    datasets,
    intents,
    segments,
    watermarks,
)
from floodmark.control.segments import Segment
from floodmark.errors import Corrupt, Permanent, Retryable
from floodmark.sequence import SEQUENCE_MAX, SequenceRange

FOUND = "found-"
"""How the ids of commits begin that were found in the table: no process of this database reserved them."""

# Asked all the time. Built once: to put a statement together takes longer than to run it.
_BY_ID = select(blocks).where(blocks.c.id == bindparam("block"))
_UNDECIDED = select(blocks).where(blocks.c.dataset == bindparam("of"), blocks.c.state == "reserved")
_HIGHEST = tuple(
    select(func.coalesce(func.max(column), 0))
    for column in (blocks.c.through_seq, datasets.c.horizon, watermarks.c.seq, intents.c.through_seq)
)
_RESERVE, _STATS = blocks.insert(), block_partitions.insert()
_COUNTER = select(counters.c.value).where(counters.c.name == "sequence")
_RAISE = (
    update(counters)
    .where(counters.c.name == "sequence", counters.c.value < bindparam("to"))
    .values(value=bindparam("to"))
)
_JOIN = (
    update(segments)
    .where(segments.c.id == bindparam("segment"), segments.c.state == "sealed", segments.c.block.is_(None))
    .values(block=bindparam("joined"), block_offset=bindparam("place"))
)


class BlockUndecided(Retryable):
    """The dataset has an undecided block: settle it before reserving another."""


@dataclass(frozen=True, slots=True)
class Block:
    """A reserved range with the base it may be appended on."""

    id: str
    dataset: str
    range: SequenceRange
    base: Base
    state: str
    rows: int = 0
    duplicates: int = 0
    snapshot: int | None = None
    expired: int = 0
    """Rows that were too old to be committed, or whose identity was purged."""
    dropped: int = 0
    """Rows that the dataset's settle function dropped."""


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """How much one flush commits at once."""

    rows_max: int = 2_000_000
    bytes_max: int = 1 << 30
    """The uncompressed size of the rows."""
    segments_max: int = 512


@dataclass(frozen=True, slots=True)
class Reservation:
    """A fresh block, the segments in it, and the dataset as it was in that transaction."""

    block: Block
    segments: tuple[Segment, ...]
    dataset: Dataset


def undecided(connection: Connection, dataset: str) -> Block | None:
    row = connection.execute(_UNDECIDED, {"of": dataset}).one_or_none()
    return None if row is None else _block(row)


def get(connection: Connection, id: str) -> Block | None:
    row = connection.execute(_BY_ID, {"block": id}).one_or_none()
    return None if row is None else _block(row)


def is_folded(connection: Connection, block: Block) -> bool:
    """U35: whether a block has no record of its own any more, because it is long decided: later ones are joined."""
    own = get(connection, block.id)
    if own is not None:
        return own.range != block.range
    newer = blocks.c.through_seq >= block.range.through
    found = connection.execute(select(blocks.c.id).where(blocks.c.dataset == block.dataset, newer).limit(1)).first()
    return found is not None


def committed_within(connection: Connection, dataset: str, within: SequenceRange) -> list[Block]:
    """The committed blocks that have numbers in a range, in order."""
    found = connection.execute(
        select(blocks)
        .where(
            blocks.c.dataset == dataset,
            blocks.c.state == "committed",
            blocks.c.through_seq > within.after,
            blocks.c.after_seq < within.through,
        )
        .order_by(blocks.c.through_seq)
    )
    return [_block(row) for row in found]


def committed_before(connection: Connection, dataset: str, moment: datetime) -> int:
    """The end of the last block up to which every one was committed before a moment; 0 if none was.

    The age of a row is the age of its commit. Clocks differ, so the first younger block ends the search.
    """
    through = 0
    found = connection.execute(
        select(blocks.c.through_seq, blocks.c.decided_at)
        .where(blocks.c.dataset == dataset, blocks.c.state == "committed")
        .order_by(blocks.c.through_seq)
    )
    for row in found:
        if row.decided_at is None or datetime.fromisoformat(row.decided_at) >= moment:
            break
        through = int(row.through_seq)
    return through


def raise_allocator(connection: Connection, *, seen_through: int) -> int:
    """I1: the allocator starts above everything that carries a number: tables, blocks, watermarks, intents."""
    highest = highest_number(connection, seen_through=seen_through)
    _raise_to(connection, highest)
    return highest


def highest_number(connection: Connection, *, seen_through: int) -> int:
    """The highest number that anything carries, by the records and by what was seen in tables."""
    return max(seen_through, *(int(connection.execute(asked).scalar_one()) for asked in _HIGHEST))


def allocated(connection: Connection) -> int:
    """The highest number that was handed out, as the allocator has it."""
    return _counter(connection)


def reserve(
    connection: Connection,
    *,
    id: str,
    dataset: str,
    base: Base,
    seen_through: int,
    limits: BatchLimits,
    now: datetime,
    without: Collection[int] = (),
) -> Reservation | None:
    """Take waiting segments and the numbers for their rows, or None if nothing waits. Segments `without` are left.

    `seen_through` is the highest number visible at `base`: the block starts above it whatever the counter says.
    """
    declared = dataset_records.get(connection, dataset)
    declared.check_running()
    if declared.fenced or declared.generation != base.generation:
        raise Retryable(f"Dataset {dataset!r} is being rebuilt; its rows wait in the spool.")
    if undecided(connection, dataset) is not None:
        raise BlockUndecided(f"Another flush of {dataset!r} has just started.")
    taken = segment_records.waiting(
        connection,
        dataset,
        rows_max=limits.rows_max,
        bytes_max=limits.bytes_max,
        count_max=limits.segments_max,
        without=without,
    )
    if not taken:
        return None
    _raise_to(connection, seen_through)
    after = _counter(connection)
    through = after + sum(segment.rows for segment in taken)
    if through > SEQUENCE_MAX:
        raise Permanent("The store has used up its sequence numbers.")
    _raise_to(connection, through)
    block = Block(id=id, dataset=dataset, range=SequenceRange(after, through), base=base, state="reserved")
    _insert(connection, block, now=now)
    joined = join_segments(connection, block, taken)
    return Reservation(block=block, segments=joined, dataset=declared)


def record(
    connection: Connection,
    block: Block,
    *,
    snapshot: int | None,
    synced_snapshot: int | None,
    rows: int,
    expired: int = 0,
    dropped: int = 0,
    reason: str | None = None,
    stats: Sequence[PartitionStats],
    now: datetime,
    consumed: Collection[int] | None = None,
) -> bool:
    """Record that a block is committed; false if another process has already decided it.

    `reason` is why its rows are as they came, although there is a settle function.

    All its segments are done with; or, where `consumed` names some, those, and the others are free for the next block.
    """
    own = segments.c.block == block.id
    rest = false() if consumed is None else own & segments.c.id.not_in(consumed)
    freed = int(connection.execute(select(func.coalesce(func.sum(segments.c.row_count), 0)).where(rest)).scalar_one())
    changed = connection.execute(
        update(blocks)
        .where(blocks.c.id == block.id, blocks.c.state == "reserved")
        .values(
            state="committed",
            snapshot=snapshot,
            row_count=rows,
            duplicates=len(block.range) - freed - rows - expired - dropped,
            expired=expired,
            dropped=dropped,
            reason=reason,
            decided_at=now.isoformat(),
        )
    )
    if changed.rowcount == 0:
        return False
    connection.execute(update(segments).where(rest).values(block=None, block_offset=None))
    connection.execute(update(segments).where(own).values(state="consumed"))
    _add_stats(connection, block, stats)
    dataset_records.raise_horizon(
        connection, block.dataset, through=block.range.through, synced_snapshot=synced_snapshot
    )
    return True


def void(
    connection: Connection,
    block: Block,
    *,
    reason: str,
    consume: bool,
    expired: int = 0,
    dropped: int = 0,
    now: datetime,
) -> bool:
    """Record that a block is not in the table and never can be.

    Its segments are free for the next block, or, with `consume`, done with: none of their rows was left to commit.
    """
    changed = connection.execute(
        update(blocks)
        .where(blocks.c.id == block.id, blocks.c.state == "reserved")
        .values(
            state="void",
            reason=reason,
            duplicates=len(block.range) - expired - dropped if consume else 0,
            expired=expired,
            dropped=dropped,
            decided_at=now.isoformat(),
        )
    )
    if changed.rowcount == 0:
        return False
    released = {"state": "consumed"} if consume else {"block": None, "block_offset": None}
    connection.execute(update(segments).where(segments.c.block == block.id).values(**released))
    return True


def found(connection: Connection, dataset: str) -> list[Block]:
    """The commits that were entered by `record_found`, in order."""
    rows = connection.execute(
        select(blocks).where(blocks.c.dataset == dataset, blocks.c.id.startswith(FOUND)).order_by(blocks.c.through_seq)
    )
    return [_block(row) for row in rows]


def record_found(
    connection: Connection,
    block: Block,
    *,
    rows: int,
    stats: Sequence[PartitionStats],
    now: datetime,
) -> None:
    """Enter a commit that the table shows and this database has forgotten (it was restored from a backup)."""
    if get(connection, block.id) is not None:
        return
    _insert(connection, block, now=now)
    record(
        connection,
        block,
        snapshot=block.snapshot,
        synced_snapshot=block.snapshot,
        rows=rows,
        stats=stats,
        now=now,
    )


def _insert(connection: Connection, block: Block, *, now: datetime) -> None:
    connection.execute(
        _RESERVE,
        {
            "id": block.id,
            "dataset": block.dataset,
            "after_seq": block.range.after,
            "through_seq": block.range.through,
            "state": "reserved",
            "generation": block.base.generation,
            "table_uuid": block.base.table_uuid,
            "base_snapshot": block.base.snapshot,
            "reserved_at": now.isoformat(),
        },
    )


def join_segments(connection: Connection, block: Block, taken: list[Segment]) -> tuple[Segment, ...]:
    offset = 0
    for segment in taken:
        changed = connection.execute(_JOIN, {"segment": segment.id, "joined": block.id, "place": offset})
        if changed.rowcount != 1:
            raise Corrupt(
                f"Segment {segment.id} is in two blocks.", hint="Do not change the store, and run `floodmark fsck`."
            )
        offset += segment.rows
    return tuple(segment_records.of_block(connection, block.id))


def _add_stats(connection: Connection, block: Block, stats: Sequence[PartitionStats]) -> None:
    for item in stats:
        connection.execute(
            _STATS,
            {
                "block": block.id,
                "partition_key": item.partition,
                "row_count": item.tally.rows,
                "checksum": item.tally.checksum_text,
                "first_seq": item.first_seq,
                "last_seq": item.last_seq,
            },
        )
        dataset_records.add_to_partition(
            connection, block.dataset, PartitionTotals(item.partition, item.tally, item.last_seq)
        )


def _counter(connection: Connection) -> int:
    return int(connection.execute(_COUNTER).scalar_one())


def _raise_to(connection: Connection, value: int) -> None:
    connection.execute(_RAISE, {"to": value})


def _block(row: Record) -> Block:
    return Block(
        id=row.id,
        dataset=row.dataset,
        range=SequenceRange(row.after_seq, row.through_seq),
        base=Base(row.table_uuid, row.generation, row.base_snapshot),
        state=row.state,
        rows=row.row_count,
        duplicates=row.duplicates,
        snapshot=row.snapshot,
        expired=row.expired,
        dropped=row.dropped,
    )
