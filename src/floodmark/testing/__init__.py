"""What tests of Floodmark, and of applications on it, are made of: fakes that keep the real contracts, and crashes.

from floodmark.testing import ManualClock, MemoryLake, crash_at, kill_store
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from floodmark import faults
from floodmark.lake.table import AppendRefused
from floodmark.store import Store
from floodmark.testing.memory.lake import MemoryLake
from floodmark.testing.memory.tables import AnswerLost
from floodmark.testing.memory.targets import MemoryTargets, TargetAnswerLost

__all__ = [
    "AnswerLost",
    "AppendRefused",
    "ManualClock",
    "MemoryLake",
    "MemoryTargets",
    "SimulatedCrash",
    "TargetAnswerLost",
    "crash_at",
    "kill_store",
]


class SimulatedCrash(BaseException):  # not an Exception: nothing in the product may catch it and go on
    """The process died here."""


class ManualClock:
    """A clock that stands still until it is moved; `sleep` moves it."""

    def __init__(self, start: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self._now = start
        self._monotonic = 0.0

    def now(self) -> datetime:
        return self._now

    def monotonic_seconds(self) -> float:
        return self._monotonic

    def sleep(self, seconds: float) -> None:
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        self._now += timedelta(seconds=seconds)
        self._monotonic += seconds


@contextlib.contextmanager
def crash_at(point: str, *, time: int = 1) -> Iterator[None]:
    """Let the process "die" on reaching a fault point (the `time`-th time); the block ends there, if it gets there."""

    def die() -> None:
        raise SimulatedCrash(point)

    faults.arm(point, faults.nth_time(time, die))
    try:
        with contextlib.suppress(SimulatedCrash):
            yield
    finally:
        faults.disarm_all()


def kill_store(store: Store) -> None:
    """Drop a store as the death of its process would: file locks go, nothing is finished or written."""
    store.close()
