"""Time, injected, so that tests step it instead of sleeping."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """What the system may know of time. Nothing about safety depends on it."""

    def now(self) -> datetime:
        """The wall clock, in UTC. It may jump in either direction."""
        ...

    def monotonic_seconds(self) -> float:
        """Seconds that never go back, from an unknown origin."""
        ...

    def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """The machine's own clock."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic_seconds(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)
