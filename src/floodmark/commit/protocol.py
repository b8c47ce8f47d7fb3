"""The values of a stamping commit, and the verdict on it. Pure.

A block of sequence numbers is reserved *against a base*: the table as it stood when the commit was prepared.
The append is a compare-and-swap on that base. Whatever the call then said (success, error, time-out,
conflict), only the table's own history decides what became of the block: `verdict` reads it.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from datetime import datetime

from floodmark.schema import Schema
from floodmark.schema.types import ColumnType
from floodmark.segment_store import Bucket
from floodmark.sequence import SequenceRange, Tally


@dataclass(frozen=True, slots=True)
class Base:
    """The table as a commit was prepared against it. `snapshot` is None for a table without any."""

    table_uuid: str
    generation: int
    snapshot: int | None


@dataclass(frozen=True, slots=True)
class Barrier:
    """A request to append nothing on a block's base: after it the block can never land."""

    table: str
    block: str
    base: Base
    through: int
    """The last number of the block."""


SEGMENTS_NAMED_MAX = 32
"""An append of more segments does not name them."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One commit in a table's history, as far as a verdict needs it."""

    id: int
    parent: int | None
    operation: str
    added_files: int
    added_rows: int
    block: str | None = None
    through: int | None = None
    dropped: int = 0
    """Rows of the block that its settle function dropped."""
    settled: bool = False
    """Whether this commit settled committed rows again."""
    change: str | None = None
    """The operation that settled rows again with this commit."""
    segments: frozenset[int] = frozenset()
    """What an append was made of; empty where that was too much to name."""
    barrier: str | None = None
    """The block that this append without rows keeps from landing."""
    announced_rows: int | None = None
    """How many rows its writer was about to append; None where it did not say."""
    at: datetime | None = None
    """When it was made, by its writer's clock."""

    @property
    def brought_rows(self) -> bool:
        """Whether this commit blocks an append that was prepared before it."""
        return self.operation == "append" or (self.operation == "overwrite" and self.added_files > 0)


@dataclass(frozen=True, slots=True)
class TableState:
    """A table's metadata from **one** load. Two loads would let a late request land in between."""

    name: str
    uuid: str
    lineage: tuple[Snapshot, ...]
    """From the head back, as far as the history is still known."""
    columns: tuple[tuple[str, ColumnType], ...]
    """Name and type of each column but the system columns."""
    max_seq: int = 0
    """The table property that deletes raise before they remove the newest rows."""
    declaration: str | None = None
    """The dataset's declaration, as the table keeps it: it outlives the control database."""
    location: str = ""
    """Where its files are."""
    bytes: int = field(default=0, compare=False)
    """How much room they take, as far as the table itself says."""
    files: int = field(default=0, compare=False)
    """How many data files the head has, as far as the table itself says."""

    @property
    def head(self) -> int | None:
        return self.lineage[0].id if self.lineage else None

    def since(self, base: int | None) -> tuple[Snapshot, ...] | None:
        """The commits after a base, newest first; None if the history no longer reaches back to it."""
        found: list[Snapshot] = []
        for snapshot in self.lineage:
            if snapshot.id == base:
                return tuple(found)
            found.append(snapshot)
        # The base itself may have expired: its child still names it. No base at all: back to the very beginning.
        oldest = self.lineage[-1].parent if self.lineage else None
        return tuple(found) if oldest == base else None

    def standing_for(self, base: int | None) -> int | None:
        """The snapshot to compare new rows with: the base, or the first one after it where it has expired.

        Nothing added rows in between, or nothing could be appended on the base any more. So it holds the rows
        that the base held, but for those that were removed since.
        """
        after_base = self.since(base)
        if base is None or not after_base or any(snapshot.id == base for snapshot in self.lineage):
            return base
        return after_base[-1].id

    def through_at(self, snapshot: int) -> int:
        """The last number that a snapshot held, as far as its history is known; 0 if it is not."""
        ids = [item.id for item in self.lineage]
        older = self.lineage[ids.index(snapshot) :] if snapshot in ids else ()
        return next((item.through for item in older if item.through is not None), 0)

    def may_append_on(self, base: Base) -> bool:
        """Whether an append that was prepared on the base could land here: nothing added rows since."""
        after_base = self.since(base.snapshot)
        return (
            self.uuid == base.table_uuid
            and after_base is not None
            and not any(snapshot.brought_rows for snapshot in after_base)
        )


@dataclass(frozen=True, slots=True)
class BlockSegment:
    """A segment with its place in a block: row `i` gets the number `block.after + 1 + offset + i`."""

    id: int
    path: str
    rows: int
    offset: int
    event_span: tuple[int, int] | None = None
    """Its least and greatest event time, in microseconds."""
    bucket: Bucket | None = None
    """Where tasks on other machines read it, as `key`; None: only this machine has its file."""
    key: str = ""


@dataclass(frozen=True, slots=True)
class PartitionRows:
    """What a segment holds of one partition: its tally, and the first and last of its rows by their place."""

    partition: str
    tally: Tally
    first_row: int
    last_row: int


@dataclass(frozen=True, slots=True)
class PartitionStats:
    """What a committed block holds of one partition."""

    partition: str
    tally: Tally
    first_seq: int
    last_seq: int


@dataclass(slots=True)
class Settlement:
    """What a settle function did at one attempt: the lake fills it in."""

    dropped: int = 0
    problem: str | None = None
    """Why its result was rejected: the rows were committed unchanged."""


@dataclass(frozen=True, slots=True)
class Append:
    """A request to append a block on a base. Sending it twice is safe: at most one can land."""

    table: str
    block: str
    range: SequenceRange
    base: Base
    segments: tuple[BlockSegment, ...]
    schema: Schema
    identity: tuple[tuple[str, ...], ...] = ()
    event_time: str | None = None
    event_span: tuple[int, int] | None = None
    """The least and the greatest event time in the batch, in microseconds: bounds what deduplication reads."""
    settle: str | None = None
    event_cutoff: int | None = None
    """Rows with an event time before this (in microseconds) stay out: retention removed rows of that time."""
    purged: tuple[int, ...] = ()
    """The numbers of rows whose identity was purged: they stay out too."""
    partition_by: tuple[str, ...] = ()
    """The columns that a settle function must not change, beside the event time."""
    declaration: str | None = None
    """What the table keeps of the dataset's declaration."""
    any_time: bool = False
    """Rows of one identity are one row also where their event times differ."""
    by_content: bool = False
    """Rows whose identity is null are compared by their content hash (B10)."""
    settlement: Settlement = field(default_factory=Settlement, compare=False)

    @property
    def key_time(self) -> str | None:
        """The column that is compared together with the identity, if one is."""
        return None if self.any_time else self.event_time


def named_segments(request: Append) -> frozenset[int]:
    """The segments of a block, if they are few: the table's metadata has their names as long as the snapshot."""
    if len(request.segments) > SEGMENTS_NAMED_MAX:
        return frozenset()
    return frozenset(segment.id for segment in request.segments)


def may_be_expired(request: Append) -> bool:
    """Whether the batch could hold rows from before the cut-off; cheap, and never wrongly false."""
    return (
        request.event_cutoff is not None
        and request.event_span is not None
        and (request.event_span[0] < request.event_cutoff)
    )


class Verdict(enum.Enum):
    """What became of a block."""

    LANDED = "landed"
    VOID = "void"
    OPEN = "open"


def verdict(*, block: str, base: Base, fenced: bool, state: TableState | None, row_visible: bool) -> Verdict:
    """Decide a block from one load of the table's metadata.

    `row_visible` says whether a row with a number of the block is visible at that same load. `OPEN` means
    that nothing has happened since the base, so the same block on the same base may be sent again: either
    that request or an earlier one that is still pending wins, never both.
    """
    if state is None:
        return Verdict.VOID
    after_base = state.since(base.snapshot)
    if row_visible or any(snapshot.block == block for snapshot in (after_base or state.lineage)):
        return Verdict.LANDED
    return Verdict.OPEN if state.may_append_on(base) and not fenced else Verdict.VOID
