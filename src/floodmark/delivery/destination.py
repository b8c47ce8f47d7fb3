"""What delivery needs from a destination: the contract that every kind of sink keeps.

A destination is handed *parcels*: the rows of one recorded range. It may be handed the same parcel again, after any
crash and from another process, and must then hold one copy of its rows. What it raises decides what happens next:

| raised                        | meaning                                   | what the tick does                     |
|-------------------------------|-------------------------------------------|----------------------------------------|
| `Refused`                     | these rows will never be taken (poison)   | splits; a lone row goes to quarantine  |
| `Busy`, any other `Retryable` | not now                                   | waits, or leaves the channel for later |
| `Ahead`                       | the destination has more than we recorded | compares totals, then fast-forwards    |
| `Oversized`                   | more bytes than one chunk may have        | splits                                 |
| any other `Permanent`         | nothing will be taken (wrong address, …)  | blocks the sink with the reason        |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from sqlalchemy import Connection

from floodmark.control.deliveries import Channel, Intent
from floodmark.delivery.outcomes import Holdings, Task
from floodmark.engine import Engine
from floodmark.errors import InvalidSetting
from floodmark.schema import Schema
from floodmark.sequence import SequenceRange, Tally
from floodmark.wire import GivenUpRange

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Parcel:
    """One chunk with its rows, in sequence order. The same range always holds the same rows."""

    channel: Channel
    range: SequenceRange
    """The range as it is sent. It begins where the last parcel with rows ended: a stretch without any, and rows that
    were given up, belong to the parcel behind them."""
    rows: pa.Table
    """User columns only, those that were pinned."""
    sequence: pa.ChunkedArray
    """The number of each row (int64, rising, all inside the range)."""
    ids: pa.ChunkedArray
    """The content id of each row (text)."""
    tally: Tally
    """Of these rows."""
    before: Tally = field(default_factory=Tally)
    """Of everything this channel has settled up to `range.after`: delivered and given up."""
    given_up: GivenUpRange | None = None
    """The part of the range that stays behind in quarantine, whole: it lies before the rows, for a parcel reaches back
    to the last that were delivered."""
    replay: bool = False
    """Rows that were given up before and are now sent after all: every row of the range."""


@dataclass(frozen=True, slots=True)
class Delivered:
    """What became of a parcel."""

    bytes: int
    """Its size at the destination, or on the way there."""


class Destination(Protocol):
    """Somewhere rows go."""

    def open(self) -> None:
        """Make sure that this store may write here, before anything leaves. Called once per process."""
        ...

    def held(self, channel: Channel, *, after: int) -> Holdings:
        """What is there already beyond a number.

        Asked when the channel has no watermark row, and before a process's first delivery to the channel: a control
        database that was restored from a backup has forgotten deliveries, and this is where they are remembered.
        """
        ...

    def deliver(self, parcel: Parcel) -> Delivered:
        """Store a parcel durably. See the table above for what it raises."""
        ...

    def close(self) -> None:
        """Let go of connections."""
        ...


@dataclass(frozen=True, slots=True)
class Source:
    """Where a chunk's rows stand: one snapshot of the dataset's table, by its id, loaded after the horizon (I9)."""

    table: str
    snapshot: int
    columns: Schema
    """The user columns that were pinned, in that order, with the types the dataset has for them now."""
    where: Mapping[str, Any] | None = None
    """The values of the partition's columns; None for a dataset that is not partitioned."""
    keep: str | None = None
    """The row filter that was pinned."""
    given_up: Mapping[int, Tally] = field(default_factory=dict)
    """Rows inside the range that stay behind in quarantine: number and tally of each."""


@dataclass(frozen=True, slots=True)
class Copied:
    """What became of a range that a destination fetched itself."""

    bytes: int
    """What the range takes at the destination; 0 where it has no rows, and nothing was sent."""
    tally: Tally
    """Of the range's rows in the source, without those that were given up: what the acknowledgement records."""


@runtime_checkable
class CopyingDestination(Destination, Protocol):
    """A destination that fetches a chunk's rows itself, on Spark: they never pass through this process.

    Where `isinstance(destination, CopyingDestination)`, the tick calls `copy` for every pending chunk, with or without
    rows, one after the other in sequence order; `deliver` only replays rows that were given up before.
    """

    def copy(self, intent: Intent, range: SequenceRange, source: Source) -> Copied:
        """Bring one recorded chunk of an open intent over, durably. `range` is exactly the chunk's.

        Like `deliver` it may be called again, after any crash and from another process, and raises the same.
        """
        ...


@dataclass(frozen=True, slots=True)
class Settled:
    """A range that counts as delivered, and what must be found of it."""

    range: SequenceRange
    tally: Tally
    """Of its rows, without those that were given up."""
    source: Source
    """Where its rows stand in the lake today: retention may have taken some of them since."""
    fetch: Callable[[], pa.Table] = field(compare=False, repr=False)
    """Reads those rows, with the columns that were pinned."""
    recorded: bool = True
    """Whether a chunk of it is on record. Else only the watermark says that it was delivered."""
    replayed: tuple[int, ...] = ()
    """Rows of a chunk that was given up and that were sent after all: as the chunk, or each by itself."""


@dataclass(frozen=True, slots=True)
class Account:
    """What the records of a channel say that its destination holds."""

    settled: tuple[Settled, ...]
    """In order: chunks, rows that were replayed, and stretches below the watermark without a chunk on record."""
    pending: tuple[SequenceRange, ...]
    """Chunks that may be there or not: they have left, or will, and are not acknowledged."""
    watermark: int
    horizon: int
    end: int
    """Up to where a ledger without holes must reach."""
    totals: Tally
    """Of everything settled up to there, rows that were given up included."""
    given_up: frozenset[int] = frozenset()
    """The numbers of rows that were given up and not sent since."""


@dataclass(frozen=True, slots=True)
class Discrepancy:
    """A difference between the records and what a destination holds."""

    kind: str
    what: str
    where: str
    range: SequenceRange | None
    remedy: str
    wrong: bool = True
    """False for what is worth knowing and harms nobody."""


@dataclass(frozen=True, slots=True)
class Audited:
    """What became of looking."""

    rows: int | None = None
    """How many rows are there; None where they were not counted."""
    discrepancies: tuple[Discrepancy, ...] = ()
    note: str | None = None
    """What could not be looked at, and why."""
    asked: bool = True
    """Whether the destination was looked at at all. If not, nothing is known but what the records say."""
    failed: bool = False
    """It could have been asked, and there was no answer that counts."""


@runtime_checkable
class AuditableDestination(Destination, Protocol):
    """A destination that can be asked what it really holds. Nothing is written there; `open` is not called before."""

    def audited(self, channel: Channel, account: Account, *, deep: bool) -> Audited:
        """Compare an account with what is there: by names and counts, or if `deep` row by row.

        It may be called beside a delivery: what it then takes for a difference is gone when it looks again.
        """
        ...


@runtime_checkable
class LedgerDestination(Destination, Protocol):
    """A destination that may keep a ledger without holes, and then knows what it never got."""

    @property
    def keeps_ledger(self) -> bool:
        """Whether it does. Rows that were given up are then replayed as such, and by the range they lie in."""
        ...


@runtime_checkable
class TransactionalDestination(Destination, Protocol):
    """A destination whose effect lives in the control database, so that effect and acknowledgement are one.

    Where `isinstance(destination, TransactionalDestination)`, the tick acknowledges the parcel first, and calls
    `deliver_within` in the same control transaction only if that acknowledgement was its own: the watermark is the
    checkpoint. `deliver` is not called.
    """

    def deliver_within(self, connection: Connection, parcel: Parcel) -> Delivered:
        """Do the parcel's effect through the connection, without committing. Whatever it raises undoes both.

        The control database may run the whole transaction again: only what went through the connection counts.
        """
        ...


@runtime_checkable
class PreparingDestination(Destination, Protocol):
    """A destination for which a parcel can be made ready while the one before it is under way."""

    def prepare(self, parcel: Parcel) -> object:
        """Make ready what depends on the parcel's rows alone; `deliver` finds it. Called in another thread."""
        ...


@runtime_checkable
class ParallelDestination(Destination, Protocol):
    """A destination to which many chunks may go at once, each by itself and in any order."""

    def task(self, channel: Channel) -> Task:
        """How one chunk is stored."""
        ...


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of sink: its settings, and how to reach a destination with them."""

    name: str
    defaults: Mapping[str, Any]
    """Every setting but those that all kinds have, with its default."""
    required: tuple[str, ...]
    check: Callable[[dict[str, Any]], None]
    """Raises `InvalidSetting` for a value that makes no sense; may put values into their canonical form."""
    connect: Callable[[Engine, Channel, Mapping[str, Any]], Destination]
    """Makes the destination; the settings are the sink's, with those that the intent has pinned on top."""
    pinned: tuple[str, ...] = ()
    """What an intent keeps, so that a change of settings applies to the next one (D1). Credentials are never
    pinned: a new one applies at once."""
    secret: frozenset[str] = frozenset()
    """Settings that are never shown."""
    contiguous: bool = False
    """Whether the destination keeps a ledger without holes: parcels then reach back over what has no rows."""


def whole_number(settings: Mapping[str, Any], key: str) -> None:
    """A check for `Kind.check`."""
    value = settings[key]
    if type(value) is not int or value < 1:
        raise InvalidSetting(f"{key} is {value!r}.", hint="It is a whole number above zero.")
