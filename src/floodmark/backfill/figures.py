"""A backfill's final numbers: what the blocks say of its segments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from floodmark.control import blocks, datasets
from floodmark.control import segments as segment_records
from floodmark.control.blocks import Block
from floodmark.control.database import Database
from floodmark.control.segments import SourceStep
from floodmark.lake.generations import find_table
from floodmark.lake.table import Lake


@dataclass(frozen=True, slots=True)
class Decided:
    """What became of rows that were in the spool."""

    new: int = 0
    duplicates: int = 0
    expired: int = 0
    dropped: int = 0
    waiting: int = 0
    """Rows whose block is not decided, because their flush was stopped."""

    def __add__(self, other: Decided) -> Decided:
        return Decided(
            self.new + other.new,
            self.duplicates + other.duplicates,
            self.expired + other.expired,
            self.dropped + other.dropped,
            self.waiting + other.waiting,
        )


def decided_rows(database: Database, lake: Lake, dataset: str, steps: Sequence[SourceStep]) -> Decided:
    """The sum over the segments that the steps became."""
    total = Decided()
    for id, own in database.read(lambda c: segment_records.blocks_of_steps(c, steps)).items():
        block = database.read(partial(blocks.get, id=id))
        if block is None or block.state == "reserved":
            total += Decided(waiting=sum(rows for _, rows in own))
        else:
            total += _of_block(database, lake, dataset, block, dict(own))
    return total


def _of_block(database: Database, lake: Lake, dataset: str, block: Block, own: dict[int, int]) -> Decided:
    segments = database.read(lambda c: segment_records.of_block(c, block.id))
    if all(segment.id in own for segment in segments):
        return Decided(block.rows, block.duplicates, block.expired, block.dropped)
    # Live rows were sealed meanwhile and share the block: the table says which rows are whose.
    new = 0
    if block.rows:
        _, state = find_table(database, lake, database.read(lambda c: datasets.get(c, dataset)))
        if state is not None and state.head is not None:
            brought = lake.segment_rows(state.name, snapshot=state.head, within=block.range)
            new = sum(brought.get(id, 0) for id in own)
    # Of rows that were left out for other reasons the block only knows the sum: they are taken for the backfill's,
    # whose rows are the old ones.
    left = sum(own.values()) - new
    expired = min(block.expired, left)
    dropped = min(block.dropped, left - expired)
    return Decided(new, left - expired - dropped, expired, dropped)
