"""What a table sink needs from a foreign table: values, the verdict on a chunk, and the contract. Pure.

Terms
- A *target* is an Iceberg table in any catalog. Others may append to it, compact it, delete from it, expire its
  snapshots, drop it: it is theirs.
- An *origin* is what a chunk comes from: store, dataset, partition. Each row of the target carries its store, its
  partition and its number there (`_origin_…`).
- A *mark* is what a commit of ours says about itself, in its snapshot's properties: origin, range, tally.
- A *claim* is a property of the table: which dataset of a store, and which rows of it, come here. Two datasets of one
  store in one table would take each other's numbers for their own.

The *base* of a chunk is the target as it was before the first attempt (D5). From one load of the metadata the `fate`
of the chunk follows (D6), whatever the attempts have said: its mark is there → delivered. The history since the base
is known and the mark is not in it → it was not delivered, and an append on the head of that very load lands only if
no other append comes first. The history is not known → the rows may show it; if not, it is not guessed.

A target promises
- `load` returns the metadata of one instant.
- `append` is a compare-and-swap: it lands only if nothing was appended since the request's head. What it raises is no
  verdict, unless it is one of our own errors: then nothing was sent.
- `fit` adds no snapshot.

`testing.memory.targets.MemoryTarget` and `spark_targets.SparkTarget` pass one contract suite.
"""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from floodmark.commit.protocol import Base, TableState
from floodmark.errors import Permanent, SchemaConflict
from floodmark.schema import LONG, STRING, ColumnType, PartitionValues, Schema
from floodmark.schema.names import name_key
from floodmark.schema.types import WIDER, ListType, StructType, holds, physical
from floodmark.sequence import SequenceRange, Tally

if TYPE_CHECKING:
    import pyarrow as pa

    from floodmark.lake.table import Lake

ORIGIN_STORE = "_origin_store"
ORIGIN_SEQ = "_origin_seq"
ORIGIN_PARTITION = "_origin_partition"
ORIGIN_COLUMNS: dict[str, ColumnType] = {ORIGIN_STORE: STRING, ORIGIN_SEQ: LONG, ORIGIN_PARTITION: STRING}

CHUNK_PROPERTY = "floodmark.chunk"
TALLY_PROPERTY = "floodmark.tally"
TOTALS_PROPERTY = "floodmark.totals"
CLAIM_PREFIX = "floodmark.origin."

_KEY = re.compile(r"(?P<store>[^/]+)/(?P<dataset>[^/]+)/(?P<after>[0-9]+)-(?P<through>[0-9]+)/(?P<partition>.+)")


@dataclass(frozen=True, slots=True)
class TargetName:
    """The place of a target."""

    catalog: str
    namespace: str
    table: str

    def __str__(self) -> str:
        return f"{self.catalog}.{self.namespace}.{self.table}"


@dataclass(frozen=True, slots=True)
class Origin:
    """What a chunk comes from."""

    store: str
    dataset: str
    partition: str


@dataclass(frozen=True, slots=True)
class Claim:
    """Which rows of a store come to a table: those of one dataset, under one row filter."""

    store: str
    dataset: str
    row_filter: str | None = None

    @property
    def property(self) -> tuple[str, str]:
        """Its form in the table's properties."""
        value = (
            {"dataset": self.dataset}
            if self.row_filter is None
            else {"dataset": self.dataset, "where": self.row_filter}
        )
        return f"{CLAIM_PREFIX}{self.store}", json.dumps(value, sort_keys=True)


@dataclass(frozen=True, slots=True)
class Mark:
    """What a commit of ours says about itself."""

    origin: Origin
    range: SequenceRange
    tally: Tally
    """Of the chunk's rows."""
    totals: Tally | None = None
    """Of all rows that the channel delivered up to this chunk: a store that lost its watermark compares it."""

    @property
    def key(self) -> str:
        return (
            f"{self.origin.store}/{self.origin.dataset}/{self.range.after}-{self.range.through}/{self.origin.partition}"
        )

    @property
    def properties(self) -> dict[str, str]:
        properties = {CHUNK_PROPERTY: self.key, TALLY_PROPERTY: _tally_text(self.tally)}
        return properties if self.totals is None else {**properties, TOTALS_PROPERTY: _tally_text(self.totals)}

    @classmethod
    def parse(cls, properties: Mapping[str, str]) -> Mark | None:
        """The mark among a snapshot's properties; None for a foreign commit."""
        found = _KEY.fullmatch(properties.get(CHUNK_PROPERTY, ""))
        tally = _tally(properties.get(TALLY_PROPERTY))
        if found is None or tally is None:
            return None
        origin = Origin(found["store"], found["dataset"], found["partition"])
        span = SequenceRange(int(found["after"]), int(found["through"]))
        return cls(origin, span, tally, _tally(properties.get(TOTALS_PROPERTY)))


def _tally_text(tally: Tally) -> str:
    return f"{tally.rows}:{tally.checksum_text}"


def _tally(text: str | None) -> Tally | None:
    rows, colon, checksum = (text or "").partition(":")
    return Tally.of(int(rows), checksum) if colon else None


@dataclass(frozen=True, slots=True)
class Landed:
    """A commit of ours, as the target's history shows it."""

    mark: Mark
    bytes: int
    snapshot: int
    parent: int | None


@dataclass(frozen=True, slots=True)
class TargetColumn:
    """A column of the target; `type` is None where no column of a dataset could have its type."""

    name: str
    type: ColumnType | None
    text: str
    required: bool = False


@dataclass(frozen=True, slots=True)
class TargetState:
    """A target's metadata from **one** load."""

    history: TableState
    """Its identity, and its commits from the head back as far as they are known."""
    landed: Mapping[int, Landed] = field(default_factory=dict)
    """Those commits that are ours or another store's, by their snapshot."""
    columns: tuple[TargetColumn, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    handle: Any = field(default=None, compare=False, repr=False)
    """What the implementation finds the files of this very load by."""

    @property
    def base(self) -> Base:
        return Base(self.history.uuid, 0, self.history.head)

    def chunks_of(self, origin: Origin) -> Iterator[Landed]:
        """What the known history says about one origin, newest first."""
        for snapshot in self.history.lineage:
            found = self.landed.get(snapshot.id)
            if found is not None and found.mark.origin == origin:
                yield found


@dataclass(frozen=True, slots=True)
class Cut:
    """A range of a dataset's rows, in the lake."""

    table: str
    snapshot: int
    range: SequenceRange
    columns: Schema
    partition_values: PartitionValues | None = None
    row_filter: str | None = None
    without: frozenset[int] = frozenset()
    """Numbers that are left out."""


@dataclass(frozen=True, slots=True)
class Measure:
    """How much is seen of a range: its tally, and the number of its last row (0 if there is none)."""

    tally: Tally
    last: int


@dataclass(frozen=True, slots=True)
class Census:
    """What is visible of a range: a number that several rows have is counted once in `numbers`."""

    rows: int
    numbers: int


@dataclass(frozen=True, slots=True)
class TargetAppend:
    """A request to append a chunk on a head. Sending it twice is safe: at most one can land."""

    mark: Mark
    head: int | None
    rows: Cut | pa.Table
    """Where the rows are, or the rows themselves with `_origin_seq`."""
    columns: Schema


# ── the verdict ──────────────────────────────────────────────────────────────────────────────────────────────────────


class Fate(enum.Enum):
    """What became of a chunk, as far as the target's metadata shows."""

    DELIVERED = "delivered"
    OPEN = "open"
    """It was not delivered up to this load: it may be appended on this load's head."""
    ASK_ROWS = "ask the rows"
    """The history does not show it."""
    OTHER_TABLE = "other table"
    OTHER_ROWS = "other rows"
    """The range is there, with other rows in it."""
    OTHER_RANGES = "other ranges"
    """A part of the range is there, or more than it: chunks were cut elsewhere."""


def fate(mark: Mark, *, base: Base, state: TargetState | None, first_look: bool) -> Fate:
    """Decide a chunk from one load of the target's metadata.

    `first_look` says that the base is of this very load. Then nothing has been attempted under this record; but the
    record itself may be a lost one's successor, so a target whose history does not know us is searched for rows.
    """
    if state is None or state.history.uuid != base.table_uuid:
        return Fate.OTHER_TABLE
    ours = [landed.mark for landed in state.chunks_of(mark.origin)]
    same = next((other for other in ours if other.range == mark.range), None)
    if same is not None:
        return Fate.DELIVERED if same.tally == mark.tally else Fate.OTHER_ROWS
    if any(other.range.intersect(mark.range) for other in ours):
        return Fate.OTHER_RANGES
    if state.history.since(base.snapshot) is None:
        return Fate.ASK_ROWS
    unknown_here = first_look and not ours and state.history.head is not None
    return Fate.ASK_ROWS if unknown_here else Fate.OPEN


# ── shape ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def check_claim(name: TargetName, state: TargetState, claim: Claim) -> bool:
    """Whether the claim is valid; false if this store has none. Another claim of this store is refused."""
    key, wanted = claim.property
    found = state.properties.get(key)
    if found is not None and found != wanted:
        raise Permanent(
            f"Table {name} receives other rows of this store ({found}), and one table cannot distinguish them.",
            hint="Use a separate table for each sink.",
        )
    return found is not None


def missing_columns(name: TargetName, state: TargetState, columns: Schema) -> bool:
    """Whether the table must grow for rows of these columns to fit; what cannot be made to fit is refused."""
    have = {name_key(column.name): column for column in state.columns}
    for origin, kind in ORIGIN_COLUMNS.items():
        found = have.get(origin)
        if found is None or found.type != kind:
            raise SchemaConflict(
                f"Table {name} has no column {origin} of type {kind}, so a row's delivery could not be recognised.",
                hint="Name a table that does not exist: it is created with the right columns. Or add "
                "_origin_store STRING, _origin_seq BIGINT and _origin_partition STRING to this one.",
            )
    for other in state.columns:
        if other.required and other.name not in ORIGIN_COLUMNS and other.name not in columns:
            raise SchemaConflict(
                f"Column {other.name!r} of table {name} needs a value in every row; the dataset has no such column.",
                hint=f"ALTER TABLE {name} ALTER COLUMN {other.name} DROP NOT NULL, or deliver to another table.",
            )
    grown = [_must_grow(name, have.get(name_key(column.name)), column.name, column.type) for column in columns]
    return any(grown)  # after all of them were checked: the last may be the one that cannot fit


def _must_grow(table: TargetName, have: TargetColumn | None, name: str, kind: ColumnType) -> bool:
    if have is None:
        return True
    wanted = physical(kind)
    if have.name == name and have.type is not None:
        if holds(have.type, wanted):
            return False
        if _grows_into(have.type, wanted):
            return True
    raise SchemaConflict(
        f"Column {name!r} is {kind} in the dataset, and {have.name!r} is {have.text} in table {table}.",
        hint="Change the table's column, or deliver to another table.",
    )


def _grows_into(have: ColumnType, wanted: ColumnType) -> bool:
    """Whether widening and new fields of structs make one type of another."""
    match have, wanted:
        case ListType(inner), ListType(wanted_inner):
            return _grows_into(inner, wanted_inner)
        case StructType(fields), StructType(wanted_fields):
            known = dict(fields)
            return all(name not in known or _grows_into(known[name], kind) for name, kind in wanted_fields)
        case _:
            return holds(have, wanted) or WIDER.get(have) == wanted


# ── the contract ─────────────────────────────────────────────────────────────────────────────────────────────────────


class Target(Protocol):
    """One foreign table, from the store that delivers to it."""

    @property
    def name(self) -> TargetName: ...

    @property
    def lake(self) -> Lake:
        """Where the rows come from."""
        ...

    def load(self) -> TargetState | None:
        """The metadata from one load, or None if there is no such table.

        `Retryable` if the catalog does not answer, `Permanent` if it refuses or is not known.
        """
        ...

    def fit(self, columns: Schema, claim: Claim) -> None:
        """Create the table, or add and widen columns, and make the claim. Adds no snapshot."""
        ...

    def append(self, request: TargetAppend) -> None:
        """The compare-and-swap append. One that has no rows must not be sent."""
        ...

    def seen(self, state: TargetState, *, store: str, partition: str | None, within: SequenceRange) -> Measure:
        """How many rows of a store are visible at a load, of one partition or of all; the tally has no checksum."""
        ...

    def census(self, state: TargetState, *, store: str, partition: str, within: SequenceRange) -> Census:
        """How many rows of a partition are visible at a load, and how many numbers they have."""
        ...

    def unlike(self, state: TargetState, cut: Cut, origin: Origin, *, count_max: int) -> list[int]:
        """The numbers of rows of the lake that the target does not have unchanged: lost there, or altered."""
        ...

    def sync(self, state: TargetState, *, since: int | None) -> None:
        """Make every file durable that the state reaches and snapshot `since` did not; else `FilesMissing`."""
        ...
