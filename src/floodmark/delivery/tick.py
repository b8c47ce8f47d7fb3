"""One tick of a sink: every channel that lags is brought up to the horizon.

A channel's error stops that channel only. A `Permanent` one also blocks the sink, with its reason: the same delivery
would be refused again until a user corrects the cause. A tick without new rows is one read of the control database.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any

from sqlalchemy import Connection

from floodmark import traces
from floodmark.clock import Clock
from floodmark.control import blocks, datasets, deliveries, problems, sinks
from floodmark.control.database import Database
from floodmark.control.datasets import Dataset
from floodmark.control.deliveries import Channel, Lag
from floodmark.control.sinks import Sink
from floodmark.delivery import channel
from floodmark.delivery.backoff import wait_seconds
from floodmark.delivery.channel import ExportReport, Stop, Tick
from floodmark.delivery.destination import Destination
from floodmark.delivery.kinds import kind_of
from floodmark.delivery.outcomes import Busy
from floodmark.delivery.scope import Scope
from floodmark.delivery.source import RowSource
from floodmark.engine import Engine
from floodmark.errors import FloodmarkError, Permanent
from floodmark.lake.table import Lake
from floodmark.read import view_of
from floodmark.schema import Schema
from floodmark.sequence import SequenceRange

FAILURES_MAX = 3
"""After this many channels that failed permanently, and none that succeeded, the other channels are not tried."""
SHARED_ROWS_MAX = 500_000
"""Partitions share one scan of the lake if it has no more rows than this …"""
SHARE_MAX = 4
"""… and at most this many times the rows that are needed."""


@dataclass(slots=True)
class Exporter:
    """Delivers one store's rows. Any number of processes may run one on the same store."""

    engine: Engine
    _destinations: dict[tuple[str, str, Schema, str], Destination] = field(default_factory=dict)
    _asked: set[tuple[Channel, int]] = field(default_factory=set)
    _failures: dict[str, int] = field(default_factory=dict)
    """How many consecutive ticks of each sink failed: the step of the back-off."""
    _opening: dict[tuple[str, str, Schema, str], threading.Lock] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def database(self) -> Database:
        return self.engine.database

    @property
    def lake(self) -> Lake:
        return self.engine.lake

    @property
    def clock(self) -> Clock:
        return self.engine.clock

    def export(
        self, name: str, *, stop: Stop | None = None, progress: Callable[[ExportReport], None] | None = None
    ) -> ExportReport:
        """Deliver everything up to the horizon to one sink."""
        report = ExportReport(name)
        sink, lags, report.damaged = self._due(name)
        sink.check_running()
        if lags:
            resting = self.database.read(datasets.paused)
            lags = [lag for lag in lags if lag.channel.dataset not in resting]
        if not lags:
            return report  # no Spark job, no lake byte, no request
        jobs = self.lake.jobs
        tick = Tick(
            sink,
            kind_of(sink),
            Scope.of(sink.settings),
            report,
            self.database,
            self.clock,
            stop or Stop(self.clock),
            lambda dataset, channel, settings: self.destination(sink, dataset, channel, settings),
            partial(view_of, self.engine),
            self._asked,
            progress,
        )
        with traces.span("export", sink=name) as attribute:
            failed = self._run(tick, lags)
            report.spark_jobs = self.lake.jobs - jobs
            self._judge(sink, report, failed)
            attribute("rows", report.rows)
            attribute("problem", next(iter(report.errors.values()), ""))
        return report

    def lags(self, name: str) -> tuple[Sink, list[Lag]]:
        """A sink, and its channels that have rows to deliver. One read of the control database."""
        sink, lags, _ = self._due(name)
        return sink, lags

    def _due(self, name: str) -> tuple[Sink, list[Lag], dict[str, str]]:
        """The same, and the datasets of the sink whose rows cannot be committed, each with its problem (I10)."""

        def work(connection: Connection) -> tuple[Sink, list[Lag], dict[str, str]]:
            sink = sinks.get(connection, name)
            scope = Scope.of(sink.settings)
            lags = [lag for lag in deliveries.lagging(connection, sink.instance) if scope.has_news(lag)]
            declared = {name: datasets.get(connection, name) for name in {lag.channel.dataset for lag in lags}}
            damaged = {
                item.dataset: item.message
                for item in problems.everyone(connection)
                if scope.datasets is None or item.dataset in scope.datasets
            }
            taken = [lag for lag in lags if scope.takes(declared[lag.channel.dataset], lag.channel.partition)]
            return sink, taken, damaged

        return self.database.read(work)

    def destination(self, sink: Sink, dataset: Dataset, channel: Channel, settings: dict[str, Any]) -> Destination:
        """The destination under these settings, opened once per process and shape of the dataset."""
        kind = kind_of(sink)
        whole = {**sink.settings, **{key: value for key, value in settings.items() if key in kind.pinned}}
        key = (sink.instance, dataset.name, dataset.schema, json.dumps(whole, sort_keys=True))
        with self._lock:
            opening = self._opening.setdefault(key, threading.Lock())
        with opening:  # one lock per destination: one that hangs while it is opened does not block other sinks
            if key not in self._destinations:
                made = kind.connect(self.engine, channel, whole)
                made.open()
                self._destinations[key] = made
            return self._destinations[key]

    def close(self) -> None:
        for destination in self._destinations.values():
            destination.close()
        self._destinations.clear()

    # ── inside ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _run(self, tick: Tick, lags: Sequence[Lag]) -> list[FloodmarkError]:
        """Deliver every channel independently; returns the errors."""
        failed: list[FloodmarkError] = []
        sources: dict[str, RowSource] = {}
        for dataset in sorted({lag.channel.dataset for lag in lags}):
            try:
                sources |= self.sources([lag for lag in lags if lag.channel.dataset == dataset])
            except FloodmarkError as error:  # I10: the other datasets are delivered
                failed.append(error)
                mine = [lag.channel for lag in lags if lag.channel.dataset == dataset]
                tick.report.errors |= {(item.dataset, item.partition): str(error) for item in mine}
                tick.report.damaged.setdefault(dataset, str(error))
        lags = [lag for lag in lags if lag.channel.dataset in sources]
        delivered = 0

        def one(lag: Lag) -> None:
            nonlocal delivered
            permanent = sum(isinstance(error, Permanent) for error in failed)
            if tick.stop.is_set or (permanent >= FAILURES_MAX and not delivered):
                return
            key = (lag.channel.dataset, lag.channel.partition)
            try:
                channel.deliver(tick, lag.channel, sources[lag.channel.dataset])
                delivered += 1
            except FloodmarkError as error:
                with tick.lock:
                    failed.append(error)
                    tick.report.errors[key] = str(error)
            mark = self.database.read(lambda c: deliveries.watermark(c, lag.channel))
            with tick.lock:
                tick.report.watermarks[key] = mark.seq if mark else 0

        at_once = min(int(tick.sink.settings.get("concurrency") or 1), len(lags))
        if at_once <= 1:
            for lag in lags:
                one(lag)
        else:
            with ThreadPoolExecutor(at_once, thread_name_prefix=f"export-{tick.sink.name}") as pool:
                list(pool.map(one, lags))
        return failed

    def sources(self, lags: Sequence[Lag]) -> dict[str, RowSource]:
        """One instant of each dataset, and the range that its partitions fetch together, if it has few rows."""
        found = {}
        for name in {lag.channel.dataset for lag in lags}:
            view = view_of(self.engine, name)
            here = [lag for lag in lags if lag.channel.dataset == name]
            found[name] = RowSource(self.lake, view, self._shared(here, view.horizon) if len(here) > 1 else None)
        return found

    def _shared(self, lags: Sequence[Lag], horizon: int) -> SequenceRange | None:
        window = SequenceRange(min(lag.mark.seq if lag.mark else 0 for lag in lags), horizon)

        def work(connection: Connection) -> tuple[int, int]:
            inside = blocks.committed_within(connection, lags[0].channel.dataset, window)
            wanted = 0
            for lag in lags:
                own = SequenceRange(lag.mark.seq if lag.mark else 0, horizon)
                wanted += sum(item.rows for item in deliveries.stretches(connection, lag.channel, own))
            return sum(len(block.range) for block in inside), wanted

        rows, wanted = self.database.read(work)
        return window if rows <= min(SHARED_ROWS_MAX, wanted * SHARE_MAX) else None

    def _judge(self, sink: Sink, report: ExportReport, failed: Sequence[FloodmarkError]) -> None:
        """Record the state of the sink after the tick."""
        permanent = [error for error in failed if isinstance(error, Permanent)]
        report.blocked = str(permanent[0]) if permanent else None
        if failed:
            asked = [error.retry_after_seconds for error in failed if isinstance(error, Busy)]
            failures = self._failures.get(sink.instance, 0) + 1
            report.wait_seconds = wait_seconds(failures, max((one for one in asked if one), default=None))
            self._failures[sink.instance] = failures
        else:
            self._failures.pop(sink.instance, None)
        state = "blocked" if permanent else "active"
        problem = str((permanent or failed)[0]) if failed else None
        if failed or (state, report.blocked, problem) != (sink.state, sink.reason, sink.problem):
            again = None if not failed else self.clock.now() + timedelta(seconds=report.wait_seconds or 0)
            self.database.transact(
                lambda c: sinks.set_state(
                    c, sink.instance, state=state, reason=report.blocked, problem=problem, next_attempt_at=again
                )
            )
