"""The status of a store, without starting a JVM."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from sqlalchemy import Connection

from floodmark.control import blocks, datasets, deliveries, losses, problems, quarantine, sinks
from floodmark.control import segments as segment_records
from floodmark.control.datasets import Dataset
from floodmark.control.deliveries import Channel
from floodmark.control.sinks import Sink
from floodmark.delivery.scope import Scope
from floodmark.engine import Engine
from floodmark.schedule import Cron, Every
from floodmark.sequence import SequenceRange
from floodmark.spool.landing import landing_bytes

# ── Sinks: lag, state and reason ─────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class ChannelStatus:
    """One partition of a dataset, as delivered to a sink."""

    dataset: str
    partition: str
    watermark: int
    lag: int
    """About how many committed rows the sink has not received, before its filter."""


@dataclass(frozen=True, slots=True)
class SinkStatus:
    name: str
    kind: str
    place: str
    state: str
    """`active`, or `blocked` until its cause is fixed."""
    reason: str | None
    """Why it is blocked, or the error of its last export."""
    next_attempt: datetime | None
    """When `floodmark run` retries after a failure, else when its `every` or `cron` is due next. It is in the past if
    `floodmark run` is not running. `floodmark export` tries at once.
    """
    lag: int
    """About how many committed rows the sink has not received, before its filter."""
    warnings: tuple[str, ...]
    """Datasets, columns or partitions in its scope that do not exist."""
    channels: tuple[ChannelStatus, ...]


def standings(connection: Connection) -> tuple[SinkStatus, ...]:
    """Every sink, by name."""
    declared = datasets.everyone(connection)
    keys = {item.name: [one.partition for one in datasets.partition_totals(connection, item.name)] for item in declared}
    return tuple(_standing(connection, sink, declared, keys) for sink in sinks.everyone(connection))


def _due(connection: Connection, sink: Sink) -> datetime | None:
    ticked_at, created_at = sinks.schedules(connection)[sink.instance]
    if sink.settings.get("cron"):
        return Cron(sink.settings["cron"]).following(ticked_at or created_at)
    if sink.settings.get("every") and ticked_at is not None:
        from floodmark.delivery.kinds import seconds

        return Every(seconds(sink.settings["every"])).following(ticked_at)
    return None


def _standing(
    connection: Connection, sink: Sink, declared: list[datasets.Dataset], keys: dict[str, list[str]]
) -> SinkStatus:
    from floodmark.delivery.kinds import place_of  # every kind of sink, with its libraries: only where there is a sink

    scope = Scope.of(sink.settings)
    behind = {lag.channel: lag for lag in deliveries.lagging(connection, sink.instance)}
    channels = []
    for item in declared:
        for key in keys[item.name]:
            if not scope.takes(item, key):
                continue
            channel = Channel(sink.instance, item.name, key)
            lag = behind.get(channel)
            mark = deliveries.watermark(connection, channel) if lag is None else lag.mark
            after = scope.start(channel) if mark is None else mark.seq
            rows = 0
            if lag is not None and lag.horizon > after:
                found = deliveries.stretches(connection, channel, SequenceRange(after, lag.horizon))
                rows = sum(stretch.rows for stretch in found)
            channels.append(ChannelStatus(item.name, key, after, rows))
    return SinkStatus(
        sink.name,
        sink.kind,
        place_of(sink),
        sink.state,
        sink.reason or sink.problem,
        sink.next_attempt_at or _due(connection, sink),
        sum(one.lag for one in channels),
        tuple(scope.warnings(declared, keys)),
        tuple(channels),
    )


# ── Status ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    partition: str
    rows: int
    checksum: str
    last_seq: int


@dataclass(frozen=True, slots=True)
class SpoolStatus:
    """Rows that wait for their commit."""

    landing_bytes: int
    segments: int
    segment_rows: int
    segment_bytes: int
    set_aside_segments: int = 0
    """Of these, segments that could not be committed and wait for a decision: `floodmark fsck` lists them."""
    set_aside_rows: int = 0


@dataclass(frozen=True, slots=True)
class DatasetStatus:
    name: str
    columns: dict[str, str]
    identity: tuple[tuple[str, ...], ...]
    event_time: str | None
    identity_null: str
    """How a row whose identity is null is compared."""
    identity_scope: str
    """Whether duplicates need the same event time."""
    partition_by: tuple[str, ...]
    rows: int
    horizon: int
    undecided_block: SequenceRange | None
    spool: SpoolStatus
    quarantined: int
    expired: int
    """Rows that were not committed because they are older than the retention limit, or were purged."""
    dropped: int
    """Rows that the dataset's settle function dropped."""
    unsettled_blocks: int
    """Commits whose rows were not settled, because the settle function failed."""
    event_cutoff: datetime | None
    """Rows with an older event time are not committed any more."""
    partitions: tuple[PartitionStatus, ...]
    problem: str | None = None
    """The problem of the last flush, and what to do."""
    problem_since: datetime | None = None
    lost_rows: int = 0
    """Acknowledged rows that were given up with a damaged segment."""


@dataclass(frozen=True, slots=True)
class Status:
    """The same as `floodmark status --json`."""

    store: str
    store_id: str
    datasets: tuple[DatasetStatus, ...]
    sinks: tuple[SinkStatus, ...]


def read_status(engine: Engine, *, with_sinks: bool = False) -> Status:
    """One consistent view of the control database, and the sizes of the landing files."""

    def work(connection: Connection) -> Status:
        found = tuple(_dataset_status(connection, engine.root, item) for item in datasets.everyone(connection))
        return Status(
            store=str(engine.root),
            store_id=engine.store_id,
            datasets=found,
            sinks=standings(connection) if with_sinks else (),
        )

    return engine.database.read(work)


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
