"""The status of a store, without starting a JVM: the one source of `status`, the metrics and the dashboard.

It takes a fixed number of statements for the datasets and a few for each sink, and one more for each of at most
`CHANNELS_ASKED_MAX` partitions in which a sink is behind.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from sqlalchemy import Connection

from floodmark.control import datasets, overview, problems, reports, sinks
from floodmark.control import segments as segment_records
from floodmark.control.datasets import Dataset, PartitionTotals
from floodmark.control.deliveries import Channel
from floodmark.control.overview import Backlog, Commits, earliest, latest
from floodmark.control.problems import DatasetProblem
from floodmark.control.reports import Report
from floodmark.control.sinks import Sink
from floodmark.delivery.scope import Scope
from floodmark.engine import Engine
from floodmark.schedule import Cron, Every
from floodmark.sequence import SequenceRange
from floodmark.spool.landing import landing_files

CHANNELS_ASKED_MAX = 200
"""In how many partitions the rows behind are counted by their blocks; in others they are estimated by the totals."""

# ── Sinks: lag, state and reason ─────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class ChannelStatus:
    """One partition of a dataset, as delivered to a sink."""

    dataset: str
    partition: str
    watermark: int
    lag: int
    """About how many committed rows the sink has not received, before its filter."""
    behind_since: datetime | None = None
    """When the oldest of them was committed; None if there are none."""
    delivered_at: datetime | None = None
    """When a delivery last moved the watermark."""
    pinned: SequenceRange | None = None
    """The range that is being delivered."""


@dataclass(frozen=True, slots=True)
class SinkStatus:
    name: str
    kind: str
    place: str
    state: str
    """`active`, `paused`, or `blocked` until its cause is fixed."""
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
    behind_since: datetime | None = None
    """When the oldest row was committed that the sink has not received."""
    delivered_at: datetime | None = None
    """When a delivery last moved one of its watermarks."""
    paused_since: datetime | None = None


def standings(connection: Connection, totals: dict[str, list[PartitionTotals]]) -> tuple[SinkStatus, ...]:
    """Every sink, by name."""
    declared = datasets.everyone(connection)
    due = sinks.schedules(connection)
    return tuple(_standing(connection, sink, declared, totals, due) for sink in sinks.everyone(connection))


def _due(sink: Sink, ticked_at: datetime | None, created_at: datetime) -> datetime | None:
    if sink.settings.get("cron"):
        return Cron(sink.settings["cron"]).following(ticked_at or created_at)
    if sink.settings.get("every") and ticked_at is not None:
        from floodmark.delivery.kinds import seconds

        return Every(seconds(sink.settings["every"])).following(ticked_at)
    return None


def _standing(
    connection: Connection,
    sink: Sink,
    declared: list[Dataset],
    totals: dict[str, list[PartitionTotals]],
    due: dict[str, tuple[datetime | None, datetime]],
) -> SinkStatus:
    from floodmark.delivery.kinds import place_of  # every kind of sink, with its libraries: only where there is a sink

    scope = Scope.of(sink.settings)
    keys = {name: [one.partition for one in found] for name, found in totals.items()}
    positions, pinned = overview.positions(connection, sink.instance), overview.pinned(connection, sink.instance)
    channels: list[ChannelStatus] = []
    asked = 0
    for item in declared:
        for total in totals.get(item.name, ()):
            if not scope.takes(item, total.partition):
                continue
            channel = Channel(sink.instance, item.name, total.partition)
            position = positions.get(channel)
            after = scope.start(channel) if position is None else position.mark.seq
            rows, since = 0, None
            if min(total.last_seq, item.horizon) > after:
                asked += 1
                if asked <= CHANNELS_ASKED_MAX:
                    rows, since = overview.behind(connection, channel, SequenceRange(after, item.horizon))
                else:
                    rows = max(0, total.tally.rows - (position.mark.tally.rows if position else 0))
            moved_at = None if position is None else position.moved_at
            channels.append(
                ChannelStatus(item.name, total.partition, after, rows, since, moved_at, pinned.get(channel))
            )
    return SinkStatus(
        sink.name,
        sink.kind,
        place_of(sink),
        sink.state if sink.paused_at is None else "paused",
        sink.reason or sink.problem,
        None if sink.paused_at is not None else sink.next_attempt_at or _due(sink, *due[sink.instance]),
        sum(one.lag for one in channels),
        tuple(scope.warnings(declared, keys)),
        tuple(channels),
        earliest(one.behind_since for one in channels),
        latest(one.delivered_at for one in channels),
        None if sink.paused_at is None else datetime.fromisoformat(sink.paused_at),
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
    since: datetime | None = None
    """Since when the oldest row has been waiting, at least: of rows in the landing log only the last write is known."""


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
    committed_at: datetime | None = None
    """When the last commit was recorded."""
    paused_since: datetime | None = None
    """Since when nothing of it is committed or delivered, on demand."""


@dataclass(frozen=True, slots=True)
class Status:
    """The same as `floodmark status --json`."""

    store: str
    store_id: str
    datasets: tuple[DatasetStatus, ...]
    sinks: tuple[SinkStatus, ...]
    tasks: tuple[Report, ...] = ()


def read_status(engine: Engine, *, with_sinks: bool = False) -> Status:
    """One consistent view of the control database, and the sizes of the landing files.

    The files first: a line that is sealed in between is counted once or twice, but never missed.
    """
    landed = _landed(engine.root / "spool")

    def work(connection: Connection) -> Status:
        offsets = segment_records.sealed_offsets(connection, [file for files in landed.values() for file in files])
        backlogs, commits = overview.backlogs(connection), overview.commits(connection)
        totals, quarantined, lost = (
            overview.partition_totals(connection),
            overview.quarantined(connection),
            overview.lost(connection),
        )
        failing = {item.dataset: item for item in problems.everyone(connection)}
        found = tuple(
            _dataset_status(
                item,
                _landing(landed.get(item.name, {}), offsets),
                backlogs.get(item.name, Backlog()),
                commits.get(item.name, Commits()),
                totals.get(item.name, []),
                quarantined=quarantined.get(item.name, 0),
                lost=lost.get(item.name, 0),
                problem=failing.get(item.name),
            )
            for item in datasets.everyone(connection)
        )
        standing = standings(connection, totals) if with_sinks else ()
        known = {"", *(item.name for item in found), *(sink.name for sink in sinks.everyone(connection))}
        return Status(
            store=str(engine.root),
            store_id=engine.store_id,
            datasets=found,
            sinks=standing,
            tasks=tuple(one for one in reports.everyone(connection) if one.subject in known),
        )

    return engine.database.read(work)


def _landed(spool: Path) -> dict[str, dict[str, tuple[int, float]]]:
    """Size and time of the last write of every landing file, by dataset and name."""
    found: dict[str, dict[str, tuple[int, float]]] = {}
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        for directory in spool.iterdir():
            files = found[directory.name] = {}
            for path in landing_files(directory / "landing"):
                with contextlib.suppress(FileNotFoundError):  # sealed to its end and removed since
                    stat = path.stat()
                    files[path.stem] = (stat.st_size, stat.st_mtime)
    return found


def _landing(files: dict[str, tuple[int, float]], offsets: dict[str, int | None]) -> tuple[int, datetime | None]:
    """How many landed bytes are not sealed, and the oldest last write of their files."""
    waiting = [
        (size - sealed, written)
        for name, (size, written) in files.items()
        if (sealed := offsets.get(name, 0)) is not None and size > sealed
    ]
    oldest = min((written for _, written in waiting), default=None)
    return sum(size for size, _ in waiting), None if oldest is None else datetime.fromtimestamp(oldest, UTC)


def _dataset_status(
    dataset: Dataset,
    landing: tuple[int, datetime | None],
    backlog: Backlog,
    commits: Commits,
    totals: list[PartitionTotals],
    *,
    quarantined: int,
    lost: int,
    problem: DatasetProblem | None,
) -> DatasetStatus:
    return DatasetStatus(
        name=dataset.name,
        columns={column.name: column.text for column in dataset.schema},
        identity=dataset.identity,
        event_time=dataset.event_time,
        identity_null=dataset.identity_null,
        identity_scope=dataset.identity_scope,
        partition_by=dataset.partition_by,
        rows=sum(item.tally.rows for item in totals),
        horizon=dataset.horizon,
        undecided_block=commits.undecided,
        spool=SpoolStatus(
            landing[0],
            backlog.segments,
            backlog.rows,
            backlog.bytes,
            backlog.set_aside_segments,
            backlog.set_aside_rows,
            earliest((backlog.oldest, landing[1])),
        ),
        quarantined=quarantined,
        expired=commits.expired,
        dropped=commits.dropped,
        unsettled_blocks=commits.unsettled,
        event_cutoff=_moment(dataset.event_cutoff),
        partitions=tuple(
            PartitionStatus(item.partition, item.tally.rows, item.tally.checksum_text, item.last_seq) for item in totals
        ),
        problem=None if problem is None else problem.message,
        problem_since=None if problem is None else problem.since,
        lost_rows=lost,
        committed_at=commits.at,
        paused_since=None if dataset.paused_at is None else datetime.fromisoformat(dataset.paused_at),
    )


def _moment(micros: int | None) -> datetime | None:
    return None if micros is None else datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)
