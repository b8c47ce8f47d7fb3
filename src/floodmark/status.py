"""What a store can say about itself without starting a JVM."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from sqlalchemy import Connection

from floodmark.control import blocks, datasets, losses, problems, quarantine
from floodmark.control import segments as segment_records
from floodmark.control.database import Database
from floodmark.control.datasets import Dataset
from floodmark.delivery.standing import SinkStatus, standings
from floodmark.sequence import SequenceRange
from floodmark.spool.landing import landing_bytes


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    partition: str
    rows: int
    checksum: str
    last_seq: int


@dataclass(frozen=True, slots=True)
class SpoolStatus:
    """What waits to be committed."""

    landing_bytes: int
    segments: int
    segment_rows: int
    segment_bytes: int
    set_aside_segments: int = 0
    """Of these, segments that could not be committed and wait for a decision: `floodmark fsck` says which."""
    set_aside_rows: int = 0


@dataclass(frozen=True, slots=True)
class DatasetStatus:
    name: str
    columns: dict[str, str]
    identity: tuple[tuple[str, ...], ...]
    event_time: str | None
    identity_null: str
    """What becomes of a row whose identity is null."""
    identity_scope: str
    """Where rows of one identity are one row."""
    partition_by: tuple[str, ...]
    rows: int
    horizon: int
    undecided_block: SequenceRange | None
    spool: SpoolStatus
    quarantined: int
    expired: int
    """Rows that were not committed because retention or a purge had removed their like."""
    dropped: int
    """Rows that the dataset's settle function left out."""
    unsettled_blocks: int
    """Commits whose rows are as they came, because the settle function failed."""
    event_cutoff: datetime | None
    """Rows with an older event time are not committed any more."""
    partitions: tuple[PartitionStatus, ...]
    problem: str | None = None
    """What the last flush could not do, and what to do about it."""
    problem_since: datetime | None = None
    lost_rows: int = 0
    """Acknowledged rows that somebody gave up with a damaged segment."""


@dataclass(frozen=True, slots=True)
class Status:
    """The same as `floodmark status --json`."""

    store: str
    store_id: str
    datasets: tuple[DatasetStatus, ...]
    sinks: tuple[SinkStatus, ...]


def read_status(*, root: Path, store_id: str, database: Database, with_sinks: bool = False) -> Status:
    """One consistent view of the control database, and the sizes of the landing files."""

    def work(connection: Connection) -> Status:
        found = tuple(_dataset_status(connection, root, item) for item in datasets.everyone(connection))
        return Status(
            store=str(root), store_id=store_id, datasets=found, sinks=standings(connection) if with_sinks else ()
        )

    return database.read(work)


def _dataset_status(connection: Connection, root: Path, dataset: Dataset) -> DatasetStatus:
    name = dataset.name
    block = blocks.undecided(connection, name)
    count, rows, size = segment_records.backlog(connection, name)
    offsets = segment_records.landing_offsets(connection, name)
    waiting = landing_bytes(root / "spool" / name / "landing", sealed=offsets)
    totals = datasets.partition_totals(connection, name)
    dropped, unsettled = blocks.settlement(connection, name)
    problem = problems.find(connection, name)
    aside = [one for one in segment_records.sealed(connection, name) if one.set_aside] if count else []
    return DatasetStatus(
        name=name,
        columns={column.name: column.text for column in dataset.schema},
        identity=dataset.identity,
        event_time=dataset.event_time,
        identity_null=dataset.identity_null,
        identity_scope=dataset.identity_scope,
        partition_by=dataset.partition_by,
        rows=sum(item.tally.rows for item in totals),
        horizon=dataset.horizon,
        undecided_block=None if block is None else block.range,
        spool=SpoolStatus(waiting, count, rows, size, len(aside), sum(one.rows for one in aside)),
        quarantined=quarantine.held_count(connection, name),
        expired=blocks.expired_rows(connection, name),
        dropped=dropped,
        unsettled_blocks=unsettled,
        event_cutoff=_moment(dataset.event_cutoff),
        partitions=tuple(
            PartitionStatus(item.partition, item.tally.rows, item.tally.checksum_text, item.last_seq) for item in totals
        ),
        problem=None if problem is None else problem.message,
        problem_since=None if problem is None else problem.since,
        lost_rows=losses.rows_lost(connection, name),
    )


def _moment(micros: int | None) -> datetime | None:
    return None if micros is None else datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)
