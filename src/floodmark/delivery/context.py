"""What the parts of one tick share: the tick with its report, and the task of one channel."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from sqlalchemy import Connection

from floodmark.clock import Clock
from floodmark.control.database import Database
from floodmark.control.datasets import Dataset
from floodmark.control.deliveries import Channel
from floodmark.control.sinks import Sink
from floodmark.delivery.destination import Destination, Kind
from floodmark.delivery.scope import Scope
from floodmark.delivery.source import RowSource
from floodmark.read import View

T = TypeVar("T")


class Stop:
    """Ends a tick after the present chunk, and a wait immediately."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._event = threading.Event()

    def set(self) -> None:
        self._event.set()

    @property
    def is_set(self) -> bool:
        return self._event.is_set()

    def wait(self, seconds: float) -> bool:
        """Wait; false if the wait was interrupted."""
        until = self._clock.monotonic_seconds() + seconds
        while not self.is_set and (left := until - self._clock.monotonic_seconds()) > 0:
            self._clock.sleep(min(left, 0.1))
        return not self.is_set


@dataclass(slots=True)
class Tick:
    """What the channels of one tick of one sink share."""

    sink: Sink
    kind: Kind
    scope: Scope
    report: ExportReport
    database: Database
    clock: Clock
    stop: Stop
    connect: Callable[[Dataset, Channel, dict[str, Any]], Destination]
    view: Callable[[str], View]
    """Reads the present view of a dataset."""
    asked: set[tuple[Channel, int]]
    """The channels whose holdings this process has already compared, each with the identity of its destination."""
    progress: Callable[[ExportReport], None] | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def acknowledged(self, *, rows: int, bytes: int) -> None:
        with self.lock:
            self.report.rows += rows
            self.report.bytes += bytes
            self.report.chunks += 1 if rows else 0
        if self.progress is not None:
            self.progress(self.report)


@dataclass(slots=True)
class ChannelTask:
    """One channel in one tick, and the snapshot of its dataset from which rows are read."""

    tick: Tick
    channel: Channel
    source: RowSource

    def refresh_up_to(self, seq: int) -> bool:
        """Whether our view includes a number. If it does not, it is read again first.

        Since this tick read it, rows may have been committed, and pinned or delivered by another exporter.
        """
        if seq > self.source.view.horizon:
            self.source = RowSource(self.source.lake, self.tick.view(self.channel.dataset))
        return seq <= self.source.view.horizon

    def connect(self, settings: dict[str, Any]) -> Destination:
        return self.tick.connect(self.source.view.dataset, self.channel, settings)

    def read(self, work: Callable[[Connection], T]) -> T:
        return self.tick.database.read(work)

    def transact(self, work: Callable[[Connection], T]) -> T:
        return self.tick.database.transact(work)


# ── the report ───────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class ExportReport:
    """What one export of a sink did."""

    sink: str
    rows: int = 0
    chunks: int = 0
    bytes: int = 0
    watermarks: dict[tuple[str, str], int] = field(default_factory=dict)
    """The watermark of each partition that had new rows, by dataset and partition."""
    blocked: str | None = None
    """Why the destination accepts nothing until a user corrects the cause."""
    errors: dict[tuple[str, str], str] = field(default_factory=dict)
    """Errors by dataset and partition; the other channels continued."""
    damaged: dict[str, str] = field(default_factory=dict)
    """Datasets of the sink whose rows cannot be committed or read, with the problem. Their new rows wait."""
    quarantined: int = 0
    """Rows that the destination refused permanently."""
    spark_jobs: int = 0
    """Spark actions that were started."""
    wait_seconds: float | None = None
    """How long to wait before the next attempt, if a delivery failed."""


def together(reports: Sequence[ExportReport]) -> ExportReport:
    """Several sinks' reports as one: sums, the lowest watermark of each partition, and every problem by sink."""
    whole = ExportReport("*")
    for report in reports:
        for figure in ("rows", "chunks", "bytes", "quarantined", "spark_jobs"):
            setattr(whole, figure, getattr(whole, figure) + getattr(report, figure))
        for key, seq in report.watermarks.items():
            whole.watermarks[key] = min(seq, whole.watermarks.get(key, seq))
        whole.damaged |= report.damaged
        for (dataset, partition), error in report.errors.items():
            whole.errors[f"{report.sink}: {dataset}", partition] = error
    blocked = [f"{report.sink}: {report.blocked}" for report in reports if report.blocked]
    whole.blocked = "; ".join(blocked) or None
    return whole
