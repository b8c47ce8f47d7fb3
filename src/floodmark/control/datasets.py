"""Datasets: what was declared, the schema as it has grown, the horizon."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, bindparam, func, select, update

from floodmark.config import SpoolSettings
from floodmark.control.schema import Record, datasets, partitions, read_back, removed_datasets, texts
from floodmark.errors import DatasetExists, Paused, SchemaChanged, UnknownDataset
from floodmark.layout import Layout
from floodmark.schema import Column, Schema, parse_identity, parse_partition_key, partition_key
from floodmark.schema.types import holds
from floodmark.sequence import Tally

if TYPE_CHECKING:
    from floodmark.rows.plain import Demands

DECLARATION_VERSION = 1

# Asked all the time. Built once: to put a statement together takes longer than to run it.
_BY_NAME = select(datasets).where(datasets.c.name == bindparam("dataset"))
_REMOVED = select(removed_datasets.c.name).where(removed_datasets.c.name == bindparam("dataset"))
_COLUMNS = select(datasets.c.columns).where(datasets.c.name == bindparam("dataset"))
_EVERYONE = select(datasets).order_by(datasets.c.name)
_PARTITIONS = select(partitions).where(partitions.c.dataset == bindparam("of")).order_by(partitions.c.partition_key)
_PARTITION = select(partitions).where(
    partitions.c.dataset == bindparam("of"), partitions.c.partition_key == bindparam("key")
)
_RAISE_HORIZON = (
    update(datasets)
    .where(datasets.c.name == bindparam("dataset"), datasets.c.horizon < bindparam("through"))
    .values(horizon=bindparam("through"))
)
_SET_SYNCED = update(datasets).where(datasets.c.name == bindparam("dataset")).values(synced_snapshot=bindparam("head"))


CONTENT, KEEP, QUARANTINE = "content", "keep", "quarantine"
EVENT_TIME, ALL = "event_time", "all"


@dataclass(frozen=True, slots=True)
class Dataset:
    """One named stream of rows. Everything but schema, horizon and generation is fixed for its life."""

    name: str
    identity: tuple[tuple[str, ...], ...]
    event_time: str | None
    partition_by: tuple[str, ...]
    schema: Schema
    settle: str | None = None
    generation: int = 1
    fenced: bool = False
    horizon: int = 0
    synced_snapshot: int | None = None
    event_cutoff: int | None = None
    """Rows with an older event time (in microseconds) were pruned once, and are not committed any more."""
    layout: Layout = field(default_factory=Layout)
    identity_null: str = KEEP
    """What becomes of a row whose identity is null: it is compared by its content, kept, or quarantined."""
    identity_scope: str = EVENT_TIME
    """Where rows of one identity are one row: at one event time, or all of them."""
    paused_at: str | None = None
    """Since when none of its rows are committed or delivered."""

    def check_running(self) -> None:
        """`Paused` while nothing of it may be committed or delivered."""
        if self.paused_at is not None:
            raise Paused(
                f"Dataset {self.name!r} is paused since {self.paused_at[:19]}.",
                hint=f"Captured rows are safe in the spool. `floodmark dataset resume {self.name}` continues.",
            )

    @property
    def key_time(self) -> str | None:
        """The column that is compared together with the identity, if one is."""
        return self.event_time if self.identity_scope == EVENT_TIME else None

    @property
    def by_content(self) -> bool:
        """Whether rows whose identity is null are compared by their content."""
        return bool(self.identity) and self.identity_null == CONTENT

    def demands(self, limits: SpoolSettings) -> Demands:
        """What is asked of its rows beside the schema."""
        from floodmark.rows.plain import Demands

        return Demands(limits, self.identity if self.identity_null == QUARANTINE else ())

    @property
    def table_name(self) -> str:
        """The Iceberg table of the current generation. Names of generations are never used again."""
        return f"{self.name}_g{self.generation}"

    @property
    def fenced_name(self) -> str:
        """What that table is called once nothing may be appended to it any more: requests name their table."""
        return f"{self.table_name}_fenced"

    @property
    def declaration(self) -> str:
        """What was declared, as one stable line of text: the table keeps it, for a control database that is lost."""
        content = {
            "version": DECLARATION_VERSION,
            "identity": self.identity,
            "event_time": self.event_time,
            "partition_by": self.partition_by,
            "settle": self.settle,
            "identity_null": self.identity_null,
            "identity_scope": self.identity_scope,
            "schema": self.schema.to_json(),
            "layout": self.layout.to_json(),
        }
        return json.dumps(content, sort_keys=True)

    def slice(self, partition: str | Mapping[str, Any] | None) -> tuple[str | None, dict[str, Any] | None]:
        """A partition's key and the column values it stands for, given either of them."""
        by = self.partition_by
        if partition is None:
            return None, None
        if not isinstance(partition, str):
            partition = partition_key(by, [partition.get(name) for name in by])
        return partition, dict(zip(by, parse_partition_key(by, partition, self.schema), strict=True))

    def of_generation(self, generation: int) -> Dataset:
        """The dataset with the names of one of its generations, past, present or staging."""
        return replace(self, generation=generation)


def from_declaration(name: str, generation: int, text: str) -> Dataset:
    """A dataset from what its table keeps; `Corrupt` if that cannot be read."""

    def read() -> Dataset:
        content = json.loads(text)
        if content["version"] != DECLARATION_VERSION:
            raise ValueError(f"version {content['version']!r}")
        return Dataset(
            name,
            parse_identity(content["identity"]),
            content["event_time"],
            tuple(content["partition_by"]),
            Schema.from_json(content["schema"]),
            content["settle"],
            generation,
            layout=Layout.from_json(content["layout"]),
            # A table of before says nothing of these, and its rows were compared in this way.
            identity_null=content.get("identity_null", KEEP),
            identity_scope=content.get("identity_scope", EVENT_TIME),
        )

    return read_back(f"dataset {name!r}, as stored in its table", read)


@dataclass(frozen=True, slots=True)
class PartitionTotals:
    """The recorded totals of a partition: rows, checksum, and its newest sequence number."""

    partition: str
    tally: Tally
    last_seq: int


def insert(connection: Connection, dataset: Dataset, *, now: datetime) -> None:
    if connection.execute(_REMOVED, {"dataset": dataset.name}).one_or_none() is not None:
        raise DatasetExists(
            f"A dataset {dataset.name!r} was removed from this store, and its name is not used again.",
            hint="Destinations and cursors know rows under this name. Choose another one.",
        )
    connection.execute(
        datasets.insert().values(
            name=dataset.name,
            identity_columns=json.dumps(dataset.identity),
            event_time=dataset.event_time,
            partition_by=json.dumps(dataset.partition_by),
            columns=dataset.schema.to_json(),
            settle=dataset.settle,
            generation=dataset.generation,
            fenced=dataset.fenced,
            horizon=dataset.horizon,
            layout=dataset.layout.to_json(),
            identity_null=dataset.identity_null,
            identity_scope=dataset.identity_scope,
            created_at=now.isoformat(),
        )
    )


def find(connection: Connection, name: str) -> Dataset | None:
    row = connection.execute(_BY_NAME, {"dataset": name}).one_or_none()
    return None if row is None else _dataset(row)


def get(connection: Connection, name: str) -> Dataset:
    found = find(connection, name)
    if found is None:
        known = ", ".join(item.name for item in everyone(connection)) or "none yet"
        raise UnknownDataset(
            f"There is no dataset {name!r} in this store (existing datasets: {known}).",
            hint=f"Add it with `floodmark dataset add {name}` or store.add_dataset.",
        )
    return found


def everyone(connection: Connection) -> list[Dataset]:
    return [_dataset(row) for row in connection.execute(_EVERYONE)]


def evolve(connection: Connection, name: str, columns: tuple[Column, ...]) -> Dataset:
    """Grow the schema by what rows brought; `SchemaConflict` where that is not an addition.

    The merge is made on the schema as it stands *now*: two writers who both saw no such column may
    have different types in mind, and the second is told so.
    """
    dataset = get(connection, name)
    grown = dataset.schema.merge(columns)
    if grown != dataset.schema:
        connection.execute(update(datasets).where(datasets.c.name == name).values(columns=grown.to_json()))
    return replace(dataset, schema=grown)


def replace_types(connection: Connection, name: str, schema: Schema) -> bool:
    """U42: record other types of the columns; false if the columns are others by now."""
    if get(connection, name).schema.names != schema.names:
        return False
    connection.execute(update(datasets).where(datasets.c.name == name).values(columns=schema.to_json()))
    return True


def check_types(connection: Connection, known: Dataset) -> None:
    """U42: `SchemaChanged` if rows were fitted to a type that was corrected since."""
    stored = connection.execute(_COLUMNS, {"dataset": known.name}).scalar_one_or_none()
    if stored is None or stored == known.schema.text:
        return
    current = Schema.from_json(stored)
    for column in known.schema:
        now = current.get(column.name)
        if now is not None and not holds(now.type, column.type):
            raise SchemaChanged(
                f"The type of column {column.name!r} of {known.name!r} was changed to {now.type} in the meantime.",
                hint="Nothing was stored. Send the rows again.",
            )


def raise_horizon(connection: Connection, name: str, *, through: int, synced_snapshot: int | None) -> None:
    """I3: the horizon only rises."""
    connection.execute(_RAISE_HORIZON, {"dataset": name, "through": through})
    if synced_snapshot is not None:
        connection.execute(_SET_SYNCED, {"dataset": name, "head": synced_snapshot})


def set_paused(connection: Connection, name: str, *, at: datetime | None) -> None:
    """Pause a dataset, or resume it; one that is paused already keeps its time."""
    found = get(connection, name)
    if at is None or found.paused_at is None:
        text = None if at is None else at.isoformat()
        connection.execute(update(datasets).where(datasets.c.name == name).values(paused_at=text))


def paused(connection: Connection) -> set[str]:
    """The names of those that are paused."""
    return set(connection.execute(select(datasets.c.name).where(datasets.c.paused_at.is_not(None))).scalars())


def set_settle(connection: Connection, name: str, settle: str | None) -> None:
    """Another settle function. A block that is undecided lands with either: the table decides which request did."""
    get(connection, name)
    connection.execute(update(datasets).where(datasets.c.name == name).values(settle=settle))


def record_synced(connection: Connection, dataset: Dataset, *, snapshot: int | None) -> None:
    """Record that all files of a snapshot are durable. It applies to the table of one generation only."""
    connection.execute(
        update(datasets)
        .where(datasets.c.name == dataset.name, datasets.c.generation == dataset.generation)
        .values(synced_snapshot=snapshot)
    )


def partition_totals(connection: Connection, name: str) -> list[PartitionTotals]:
    found = connection.execute(_PARTITIONS, {"of": name})
    return [PartitionTotals(row.partition_key, Tally.of(row.row_count, row.checksum), row.last_seq) for row in found]


def row_count(connection: Connection, name: str) -> int:
    total = connection.execute(
        select(func.coalesce(func.sum(partitions.c.row_count), 0)).where(partitions.c.dataset == name)
    )
    return int(total.scalar_one())


def add_to_partition(connection: Connection, name: str, totals: PartitionTotals) -> None:
    """Add a block's figures to a partition's."""
    here = (partitions.c.dataset == name) & (partitions.c.partition_key == totals.partition)
    row = connection.execute(_PARTITION, {"of": name, "key": totals.partition}).one_or_none()
    if row is None:
        connection.execute(
            partitions.insert().values(
                dataset=name,
                partition_key=totals.partition,
                row_count=totals.tally.rows,
                checksum=totals.tally.checksum_text,
                last_seq=totals.last_seq,
            )
        )
        return
    tally = Tally.of(row.row_count, row.checksum) + totals.tally
    connection.execute(
        update(partitions)
        .where(here)
        .values(
            row_count=tally.rows,
            checksum=tally.checksum_text,
            last_seq=max(row.last_seq, totals.last_seq),
        )
    )


def _dataset(row: Record) -> Dataset:
    return read_back(f"dataset {row.name!r}", lambda: _read(row))


def _read(row: Record) -> Dataset:
    return Dataset(
        name=row.name,
        identity=_identity(row.identity_columns),
        event_time=row.event_time,
        partition_by=texts(row.partition_by),
        schema=_schema(row.columns),
        settle=row.settle,
        generation=row.generation,
        fenced=bool(row.fenced),
        horizon=row.horizon,
        synced_snapshot=row.synced_snapshot,
        event_cutoff=row.event_cutoff,
        layout=_layout(row.layout),
        identity_null=row.identity_null,
        identity_scope=row.identity_scope,
        paused_at=row.paused_at,
    )


# A dataset is read in every transaction that has to do with it, and these texts hardly ever change.
_schema = lru_cache(maxsize=256)(Schema.from_json)
_layout = lru_cache(maxsize=256)(Layout.from_json)


@lru_cache(maxsize=256)
def _identity(text: str) -> tuple[tuple[str, ...], ...]:
    return parse_identity(json.loads(text))
