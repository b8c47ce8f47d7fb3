"""The figures of a store for Prometheus, read from its records at each scrape: the same in `run` and in the hub.

What happens inside one process is counted there (`hub.metrics`, `daemon.metrics`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from sqlalchemy import Connection

from floodmark import meters
from floodmark.control import datasets, ledger
from floodmark.control.ledger import OriginTotals
from floodmark.control.overview import earliest, latest
from floodmark.engine import CONTROL_FILE, Engine
from floodmark.errors import FloodmarkError
from floodmark.status import ChannelStatus, DatasetStatus, SinkStatus, Status, read_status

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SERIES_MAX = 1000
"""How many datasets, pairs of sink and dataset, and pairs of store and dataset have their own series: this bounds a
scrape."""
TABLES_SECONDS = 10.0
"""For how long the sizes of tables are remembered: reading them means reading each table's metadata."""


@dataclass(frozen=True, slots=True)
class TableSize:
    """The size of a dataset's table, as its metadata says."""

    files: int
    bytes: int
    snapshots: int


@dataclass(slots=True)
class TableSizes:
    """The sizes of a store's tables, read at most every few seconds. Threads share it."""

    engine: Engine
    _read_at: float = float("-inf")
    _sizes: dict[str, TableSize] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def now(self) -> dict[str, TableSize]:
        """By dataset; one whose metadata cannot be read is left out."""
        with self._lock:
            seconds = self.engine.clock.monotonic_seconds()
            if seconds - self._read_at >= TABLES_SECONDS:
                self._sizes, self._read_at = self._read(), seconds
            return self._sizes

    def _read(self) -> dict[str, TableSize]:
        found: dict[str, TableSize] = {}
        for item in self.engine.database.read(datasets.everyone)[:SERIES_MAX]:
            if not item.horizon:
                continue  # no table yet, and none is to be looked for
            try:
                state = self.engine.lake.load(item.table_name)
            except FloodmarkError:  # fenced, damaged or out of reach: flush and fsck report it
                continue
            if state is not None:
                found[item.name] = TableSize(state.files, state.bytes, len(state.lineage))
        return found


@dataclass(slots=True)
class Waiting:
    """Since when rows have been waiting, as a process knows that looks again and again. Threads share it.

    Of rows in a landing log a single look knows only the last write, and a busy writer writes all the time. While
    nothing is committed in between, they have waited since they were first seen waiting.
    """

    _seen: dict[str, tuple[int, datetime]] = field(default_factory=dict)
    """The horizon of each dataset, and since when rows have been waiting behind it."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def known(self, status: Status) -> Status:
        """The same status with what this process knows."""
        with self._lock:
            return replace(status, datasets=tuple(self._known(item) for item in status.datasets))

    def _known(self, item: DatasetStatus) -> DatasetStatus:
        since = item.spool.since
        if since is None:
            self._seen.pop(item.name, None)
            return item
        horizon, before = self._seen.get(item.name, (item.horizon, since))
        since = min(since, before) if horizon == item.horizon else since
        self._seen[item.name] = (item.horizon, since)
        return replace(item, spool=replace(item.spool, since=since))


def control_bytes(engine: Engine) -> int:
    """The size of the control database: the file with its log, or what the server says."""
    database = engine.database
    if database.dialect == "sqlite":
        file = engine.root / CONTROL_FILE
        return sum(path.stat().st_size for path in (file, file.with_name(f"{file.name}-wal")) if path.exists())

    def ask(connection: Connection) -> int:
        return int(connection.exec_driver_sql("SELECT pg_database_size(current_database())").scalar_one())

    return database.read(ask)


def text_of(*collectors: Collector) -> bytes:
    """The answer to a scrape."""
    registry = CollectorRegistry()
    for collector in collectors:
        registry.register(collector)
    return generate_latest(registry)


class StoreFigures(Collector):
    """The store's figures at the time of a scrape."""

    def __init__(self, engine: Engine, tables: TableSizes, waiting: Waiting) -> None:
        self._engine = engine
        self._tables = tables
        self._waiting = waiting

    def describe(self) -> list[Metric]:
        """Nothing: a registry would otherwise collect once only to learn the names."""
        return []

    def collect(self) -> Iterator[Metric]:
        status = self._waiting.known(read_status(self._engine, with_sinks=True))
        now = self._engine.clock.now()
        yield from _datasets(status.datasets[:SERIES_MAX], now)
        yield from _sinks(status.sinks, now)
        yield from _tasks(status, now)
        yield from self._sizes()
        yield from self._ledger()
        yield from _counted()

    def _sizes(self) -> Iterator[Metric]:
        sizes = sorted(self._tables.now().items())
        figures: dict[str, tuple[str, Callable[[TableSize], int]]] = {
            "floodmark_table_files": ("Data files of the dataset's table.", lambda size: size.files),
            "floodmark_table_bytes": ("Bytes of these files.", lambda size: size.bytes),
            "floodmark_table_snapshots": ("Snapshots of the dataset's table.", lambda size: size.snapshots),
        }
        for name, (words, value) in figures.items():
            yield _gauge(name, words, ["dataset"], [((dataset,), value(size)) for dataset, size in sizes])
        limit = self._engine.settings.spool.backlog_bytes_max
        yield _gauge("floodmark_spool_bytes_max", "The limit of bytes in a dataset's spool.", [], [((), limit)])
        size = control_bytes(self._engine)
        yield _gauge("floodmark_control_bytes", "Size of the control database.", [], [((), size)])

    def _ledger(self) -> Iterator[Metric]:
        labels = ["origin", "dataset"]
        totals = sorted(self._engine.database.read(ledger.totals), key=lambda item: -item.rows)
        named, others = totals[:SERIES_MAX], totals[SERIES_MAX:]
        if others:
            together = OriginTotals("", "", sum(item.channels for item in others), sum(item.rows for item in others))
            named.append(together)
        channels = [((item.origin, item.dataset), item.channels) for item in named]
        rows = [((item.origin, item.dataset), item.rows) for item in named]
        yield _gauge("floodmark_ledger_channels", "Channels in the ledger.", labels, channels)
        yield _gauge("floodmark_ledger_rows", "Rows received through these channels.", labels, rows)


def _datasets(found: Sequence[DatasetStatus], now: datetime) -> Iterator[Metric]:
    figures: dict[str, tuple[str, Callable[[DatasetStatus], float | None]]] = {
        "floodmark_dataset_rows": ("Rows committed.", lambda item: item.rows),
        "floodmark_dataset_horizon": (
            "The sequence number up to which every row is visible.",
            lambda item: item.horizon,
        ),
        "floodmark_dataset_failing": (
            "1 while the dataset's last flush has a problem.",
            lambda item: int(item.problem is not None),
        ),
        "floodmark_seconds_since_commit": (
            "Seconds since the last commit of the dataset.",
            lambda item: _age(item.committed_at, now),
        ),
        "floodmark_spool_bytes": (
            "Bytes that wait to be committed.",
            lambda item: item.spool.landing_bytes + item.spool.segment_bytes,
        ),
        "floodmark_spool_segments": ("Segments that wait to be committed.", lambda item: item.spool.segments),
        "floodmark_spool_segment_rows": ("Rows in those segments.", lambda item: item.spool.segment_rows),
        "floodmark_spool_oldest_seconds": (
            "For how long the oldest row has waited, at least; 0 if none waits.",
            lambda item: _age(item.spool.since, now) or 0.0,
        ),
        "floodmark_quarantined_rows": ("Rows in quarantine.", lambda item: item.quarantined),
    }
    for name, (words, value) in figures.items():
        values = [((item.name,), value(item)) for item in found]
        yield _gauge(name, words, ["dataset"], values)


def _sinks(found: Sequence[SinkStatus], now: datetime) -> Iterator[Metric]:
    by_dataset = [
        ((sink.name, dataset), [one for one in sink.channels if one.dataset == dataset])
        for sink in found
        for dataset in dict.fromkeys(one.dataset for one in sink.channels)
    ][:SERIES_MAX]
    figures: dict[str, tuple[str, Callable[[list[ChannelStatus]], float | None]]] = {
        "floodmark_sink_lag_rows": (
            "Committed rows that the sink has not received, before its filter.",
            lambda channels: sum(one.lag for one in channels),
        ),
        "floodmark_sink_lag_seconds": (
            "Seconds since the oldest of these rows was committed; 0 if there are none.",
            lambda channels: _age(earliest(one.behind_since for one in channels), now) or 0.0,
        ),
        "floodmark_seconds_since_delivery": (
            "Seconds since rows of the dataset were last delivered to the sink.",
            lambda channels: _age(latest(one.delivered_at for one in channels), now),
        ),
    }
    for name, (words, value) in figures.items():
        yield _gauge(name, words, ["sink", "dataset"], [(labels, value(channels)) for labels, channels in by_dataset])
    blocked = [((sink.name,), int(sink.state == "blocked")) for sink in found]
    yield _gauge("floodmark_sink_blocked", "1 while the sink is blocked.", ["sink"], blocked)
    failing = [((sink.name,), int(sink.reason is not None)) for sink in found]
    yield _gauge("floodmark_sink_failing", "1 while the sink's last delivery has a problem.", ["sink"], failing)
    waits = [((sink.name,), back_off_seconds(sink, now)) for sink in found]
    yield _gauge("floodmark_sink_backoff_seconds", "Seconds until a failed delivery is retried.", ["sink"], waits)


def back_off_seconds(sink: SinkStatus, now: datetime) -> float:
    """How long until a failed delivery is retried; 0 if none failed, or the time has come."""
    if sink.reason is None or sink.next_attempt is None:
        return 0.0
    return max(0.0, (sink.next_attempt - now).total_seconds())


def _tasks(status: Status, now: datetime) -> Iterator[Metric]:
    labels, found = ["task", "subject"], status.tasks[:SERIES_MAX]
    ages = [((one.task, one.subject), _age(one.ended_at, now)) for one in found]
    yield _gauge("floodmark_task_age_seconds", "Seconds since the task's last result.", labels, ages)
    failures = [((one.task, one.subject), one.failures) for one in found]
    yield _gauge("floodmark_task_failures", "How often the task has failed in a row.", labels, failures)


def _counted() -> Iterator[Metric]:
    for meter, label, words in (
        (meters.COMMIT_CONFLICTS, "dataset", "Blocks that another commit came before."),
        (meters.DELIVERY_RETRIES, "sink", "Requests that were sent again within one export."),
    ):
        family = CounterMetricFamily(f"floodmark_{meter}", words, labels=[label])
        for subject, number in meters.counted(meter).items():
            family.add_metric([subject], number)
        yield family


def _gauge(
    name: str, words: str, labels: Sequence[str], values: Sequence[tuple[tuple[str, ...], float | None]]
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, words, labels=labels)
    for of, value in values:
        if value is not None:
            family.add_metric(of, value)
    return family


def _age(moment: datetime | None, now: datetime) -> float | None:
    """Seconds since then, never below zero: the clocks of two machines differ."""
    return None if moment is None else max(0.0, (now - moment).total_seconds())
