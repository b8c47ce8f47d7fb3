"""What delivery needs from a destination: the contract of every kind of sink.

A destination receives *parcels*: the rows of one recorded range. It may receive the same parcel again, after a crash
or from another process, and must then have one copy of its rows. What it raises decides what happens next:

| raised                        | meaning                                   | what the tick does                     |
|-------------------------------|-------------------------------------------|----------------------------------------|
| `Refused`                     | these rows will never be accepted (poison)| splits; a single row is quarantined    |
| `Busy`, any other `Retryable` | not now                                   | waits, or leaves the channel for later |
| `Ahead`                       | the destination has more than we recorded | compares totals, then fast-forwards    |
| `Oversized`                   | more bytes than one chunk may have        | splits                                 |
| any other `Permanent`         | nothing will be accepted (wrong url, …)   | blocks the sink with the reason        |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from sqlalchemy import Connection

from floodmark.control.deliveries import Channel, Intent
from floodmark.control.sinks import Sink
from floodmark.delivery.outcomes import Holdings, Task
from floodmark.engine import Engine
from floodmark.errors import InvalidSetting
from floodmark.schema import PartitionValues, Schema
from floodmark.sequence import SequenceRange, Tally
from floodmark.wire import GivenUpRange

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Parcel:
    """One chunk with its rows, in sequence order. The same range always has the same rows."""

    channel: Channel
    range: SequenceRange
    """The range as it is sent. It begins where the last parcel with rows ended: a gap without rows, and rows that were
    given up, belong to the next parcel."""
    rows: pa.Table
    """User columns only, those that were pinned."""
    sequence: pa.ChunkedArray
    """The sequence number of each row (int64, ascending, all inside the range)."""
    ids: pa.ChunkedArray
    """The content id of each row (text)."""
    tally: Tally
    """Of these rows."""
    before: Tally = field(default_factory=Tally)
    """Of everything in this channel up to `range.after`: delivered and given up."""
    given_up: GivenUpRange | None = None
    """The part of the range whose rows are all in quarantine. It is before the rows, because a parcel begins after the
    last rows that were delivered."""
    replay: bool = False
    """Every row of the range was given up before, and is now replayed."""


@dataclass(frozen=True, slots=True)
class Delivered:
    """The result of a delivery."""

    bytes: int
    """The parcel's size at the destination, or as it was sent."""


class Destination(Protocol):
    """Where a sink delivers to."""

    def open(self) -> None:
        """Check that this store may write here, before anything is sent. Called once per process."""
        ...

    def held(self, channel: Channel, *, after: int) -> Holdings:
        """What the destination has beyond a number.

        Asked when the channel has no watermark row, and before a process's first delivery to the channel: a control
        database that was restored from a backup lacks deliveries, and the destination has them.
        """
        ...

    def deliver(self, parcel: Parcel) -> Delivered:
        """Store a parcel durably. See the table above for what it raises."""
        ...

    def close(self) -> None:
        """Close connections."""
        ...


@dataclass(frozen=True, slots=True)
class Source:
    """Where a chunk's rows are: one snapshot of the dataset's table, by its id, loaded after the horizon (I9)."""

    table: str
    snapshot: int
    columns: Schema
    """The user columns that were pinned, in that order, with the types the dataset has for them now."""
    partition_values: PartitionValues | None = None
    """The values of the partition's columns; None for a dataset that is not partitioned."""
    row_filter: str | None = None
    """The row filter that was pinned."""
    given_up: Mapping[int, Tally] = field(default_factory=dict)
    """Rows inside the range that are in quarantine: number and tally of each."""


@dataclass(frozen=True, slots=True)
class Copied:
    """The result of a range that a destination read itself."""

    bytes: int
    """The size of the range at the destination; 0 if it has no rows, and nothing was sent."""
    tally: Tally
    """Of the range's rows in the source, without those that were given up: what the acknowledgement records."""


@runtime_checkable
class CopyingDestination(Destination, Protocol):
    """A destination that reads a chunk's rows itself, on Spark: they never pass through this process.

    Where `isinstance(destination, CopyingDestination)`, the tick calls `copy` for every pending chunk, with or without
    rows, one after the other in sequence order; `deliver` only replays rows that were given up before.
    """

    def copy(self, intent: Intent, range: SequenceRange, source: Source) -> Copied:
        """Copy one recorded chunk of an open intent durably. `range` is exactly the chunk's.

        Like `deliver` it may be called again, after any crash and from another process, and raises the same.
        """
        ...


@dataclass(frozen=True, slots=True)
class ExpectedRange:
    """A range that counts as delivered, and what the destination must have of it."""

    range: SequenceRange
    tally: Tally
    """Of its rows, without those that were given up."""
    source: Source
    """Where its rows are in the lake today: retention may have removed some of them since."""
    fetch: Callable[[], pa.Table] = field(compare=False, repr=False)
    """Reads those rows, with the columns that were pinned."""
    recorded: bool = True
    """Whether its chunk is recorded. Otherwise only the watermark shows that it was delivered."""
    replayed: tuple[int, ...] = ()
    """Rows that were given up and replayed: as one chunk, or each alone."""
    part: Callable[[SequenceRange], ExpectedRange] | None = field(default=None, compare=False, repr=False)
    """Of a range that was delivered in chunks whose records are folded: what the destination must have of a part."""


@dataclass(frozen=True, slots=True)
class Account:
    """What the destination must have according to the records of a channel."""

    expected: tuple[ExpectedRange, ...]
    """In order: chunks, rows that were replayed, and ranges below the watermark without a recorded chunk."""
    pending: tuple[SequenceRange, ...]
    """Chunks that the destination may have: they were or will be sent, and are not acknowledged."""
    watermark: int
    horizon: int
    end: int
    """The number that a ledger without gaps must reach."""
    totals: Tally
    """Of everything up to there, including rows that were given up."""
    given_up: frozenset[int] = frozenset()
    """The numbers of rows that were given up and not sent since."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it should be."""

    kind: str
    """A short name that does not change: `object-missing`, `allocator-behind`, …"""
    what: str
    """What is wrong, in a sentence."""
    where: str
    """The dataset, the partition, the place."""
    run: str
    """What to do about it."""
    range: SequenceRange | None = None
    wrong: bool = True
    """False for a note: worth knowing, and harmless."""

    @property
    def key(self) -> tuple[str, str, SequenceRange | None]:
        """The key by which two reads recognise the same finding."""
        return self.kind, self.where, self.range


@dataclass(frozen=True, slots=True)
class Audited:
    """The result of an audit."""

    rows: int | None = None
    """How many rows the destination has; None if they were not counted."""
    findings: tuple[Finding, ...] = ()
    note: str | None = None
    """What could not be checked, and why."""
    asked: bool = True
    """Whether the destination was read at all. If not, only the records were compared."""
    failed: bool = False
    """It should have responded, and gave no valid response."""


@runtime_checkable
class AuditableDestination(Destination, Protocol):
    """A destination whose content can be read. Nothing is written there; `open` is not called before."""

    def audited(self, channel: Channel, account: Account, *, deep: bool) -> Audited:
        """Compare an account with the destination: by names and counts, or if `deep` row by row.

        It may be called during a delivery: a difference that the delivery causes is absent in the next audit.
        """
        ...


@runtime_checkable
class LedgerDestination(Destination, Protocol):
    """A destination that may keep a ledger without gaps, and then knows which rows it never received."""

    @property
    def keeps_ledger(self) -> bool:
        """Whether it does. Rows that were given up are then sent as replayed, by their range."""
        ...


@runtime_checkable
class TransactionalDestination(Destination, Protocol):
    """A destination whose effect is in the control database, so that effect and acknowledgement are one transaction.

    Where `isinstance(destination, TransactionalDestination)`, the tick acknowledges the parcel first, and calls
    `deliver_within` in the same control transaction only if that acknowledgement was its own: the watermark is the
    checkpoint. `deliver` is not called.
    """

    def deliver_within(self, connection: Connection, parcel: Parcel) -> Delivered:
        """Apply the parcel through the connection, without committing. Any exception rolls back both.

        The control database may run the whole transaction again: only effects through the connection are exactly once.
        """
        ...


@runtime_checkable
class PreparingDestination(Destination, Protocol):
    """A destination for which a parcel can be prepared while the one before it is sent."""

    def prepare(self, parcel: Parcel) -> object:
        """Prepare what depends on the parcel's rows alone; `deliver` uses it. Called in another thread."""
        ...


@runtime_checkable
class ParallelDestination(Destination, Protocol):
    """A destination that accepts many chunks in parallel, in any order."""

    def task(self, channel: Channel) -> Task:
        """The task that stores one chunk."""
        ...


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of sink: its settings, and how to connect to a destination with them."""

    name: str
    defaults: Mapping[str, Any]
    """Every setting of this kind alone, with its default."""
    required: tuple[str, ...]
    check: Callable[[dict[str, Any]], None]
    """Raises `InvalidSetting` for an invalid value; may convert values to their canonical form."""
    connect: Callable[[Engine, Channel, Mapping[str, Any]], Destination]
    """Creates the destination. The settings are the sink's, overridden by those that the intent has pinned."""
    probe: Callable[[Engine, Sink], str]
    """Asks whether the destination can be reached and written to, and leaves nothing there. Returns what it found, in
    a sentence; raises the error that a delivery would."""
    pinned: tuple[str, ...] = ()
    """Settings that an intent keeps, so that a change applies to the next intent (D1). Credentials are never pinned:
    a new one applies immediately."""
    secret: frozenset[str] = frozenset()
    """Settings that are never shown."""
    contiguous: bool = False
    """Whether the destination keeps a ledger without gaps: parcels then include the empty range before them."""


def whole_number(settings: Mapping[str, Any], key: str) -> None:
    """A check for `Kind.check`."""
    value = settings[key]
    if type(value) is not int or value < 1:
        raise InvalidSetting(f"{key} is {value!r}.", hint="It must be a whole number above zero.")
