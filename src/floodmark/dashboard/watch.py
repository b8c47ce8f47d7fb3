"""What a store looks like now, and what it looked like in the last hour.

One *reading* is the status with the few figures that only pages show. It is read at most once a second, however many
pages ask. A thread takes a *sample* of it every few seconds: rates and trends come from samples, and a page that is
opened shows the hour before it at once.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy import Connection

from floodmark.control import blocks, overview
from floodmark.control.overview import Flow
from floodmark.engine import Engine
from floodmark.errors import FloodmarkError
from floodmark.metrics import TableSize, TableSizes, Waiting
from floodmark.status import Status, read_status

READ_SECONDS = 1.0
SAMPLE_SECONDS = 5.0
SAMPLES_MAX = 720
"""An hour."""
RATE_SECONDS = 60.0
"""Rates are means of this time."""
SERIES_MAX = 200
"""Of so many datasets and sinks samples are kept: a bound on memory."""


@dataclass(frozen=True, slots=True)
class Reading:
    """A store at one time."""

    at: datetime
    status: Status
    allocated: int
    """The highest sequence number that was handed out, to any dataset."""
    flows: dict[str, Flow]
    tables: dict[str, TableSize]

    def captured(self, dataset: str) -> float:
        """About how many rows of a dataset have ever been captured: those in blocks, and those that wait."""
        item = next(one for one in self.status.datasets if one.name == dataset)
        flow = self.flows.get(dataset, Flow())
        return flow.taken + item.spool.segment_rows + item.spool.landing_bytes * flow.rows_per_landing_byte


@dataclass(frozen=True, slots=True)
class Sample:
    """A few figures of one reading."""

    at: float
    """Seconds since 1970."""
    captured: dict[str, float]
    committed: dict[str, int]
    lag_rows: dict[str, int]
    lag_seconds: dict[str, float]


@dataclass(slots=True)
class Watch:
    """The readings of one store. Threads share it."""

    engine: Engine
    tables: TableSizes = field(init=False)
    waiting: Waiting = field(default_factory=Waiting)
    _samples: deque[Sample] = field(default_factory=lambda: deque(maxlen=SAMPLES_MAX))
    _reading: Reading | None = None
    _read_at: float = float("-inf")
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __post_init__(self) -> None:
        self.tables = TableSizes(self.engine)

    # ── now ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def now(self) -> Reading:
        """The present reading, at most a second old."""
        with self._lock:
            seconds = self.engine.clock.monotonic_seconds()
            if self._reading is None or seconds - self._read_at >= READ_SECONDS:
                self._reading, self._read_at = self._read(), seconds
            return self._reading

    def _read(self) -> Reading:
        status = self.waiting.known(read_status(self.engine, with_sinks=True))

        def more(connection: Connection) -> tuple[int, dict[str, Flow]]:
            return blocks.allocated(connection), overview.flows(connection)

        allocated, flows = self.engine.database.read(more)
        return Reading(self.engine.clock.now(), status, allocated, flows, self.tables.now())

    # ── the last hour ────────────────────────────────────────────────────────────────────────────────────────────

    def start(self) -> None:
        """Take samples until `stop`."""
        self._thread = threading.Thread(target=self._sample_on, name="dashboard", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(1.0)

    def _sample_on(self) -> None:
        while not self._stop.is_set():
            # A control database that is out of reach is reported by those who need it; there is no sample of this time.
            with contextlib.suppress(FloodmarkError, OSError):
                self.sample()
            self._stop.wait(SAMPLE_SECONDS)

    def sample(self) -> None:
        """Keep the present figures."""
        reading = self.now()
        datasets, sinks = reading.status.datasets[:SERIES_MAX], reading.status.sinks[:SERIES_MAX]
        self._samples.append(
            Sample(
                reading.at.timestamp(),
                {item.name: reading.captured(item.name) for item in datasets},
                {item.name: reading.flows.get(item.name, Flow()).committed for item in datasets},
                {item.name: item.lag for item in sinks},
                {
                    item.name: (reading.at - item.behind_since).total_seconds() if item.behind_since else 0.0
                    for item in sinks
                },
            )
        )

    def samples(self) -> list[Sample]:
        """Oldest first."""
        return list(self._samples)

    def rate(self, figure: Callable[[Sample], float | None]) -> float | None:
        """By how much a figure that only grows has grown per second; None before there are two samples."""
        found = [(one.at, value) for one in self._samples if (value := figure(one)) is not None]
        recent = [one for one in found if one[0] >= found[-1][0] - RATE_SECONDS] if found else []
        if len(recent) < 2 or recent[-1][0] <= recent[0][0]:
            return None
        return max(0.0, (recent[-1][1] - recent[0][1]) / (recent[-1][0] - recent[0][0]))
