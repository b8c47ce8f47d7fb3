"""A rate limit for the log: equal lines are written a few times, and then counted."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

LINES_MAX = 20
"""Lines of one kind that are written in `SECONDS`."""
SECONDS = 60.0
KINDS_MAX = 1_000


@dataclass(slots=True)
class _Kind:
    since: float
    written: int = 0
    left_out: int = 0


class Quiet(logging.Filter):
    """Lines are of one kind if they have the same format string in the code."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._kinds: OrderedDict[tuple[str, int, str], _Kind] = OrderedDict()

    def filter(self, record: logging.LogRecord) -> bool:
        now = self._clock()
        key = (record.name, record.levelno, str(record.msg)[:200])
        kind = self._kinds.setdefault(key, _Kind(now))
        if now - kind.since >= SECONDS:
            if kind.left_out:
                record.msg, record.args = f"{record.getMessage()} ({kind.left_out:,} more lines like this one)", ()
            kind.since, kind.written, kind.left_out = now, 0, 0
        if kind.written >= LINES_MAX:
            kind.left_out += 1
            return False
        kind.written += 1
        while len(self._kinds) > KINDS_MAX:
            self._kinds.popitem(last=False)
        return True
