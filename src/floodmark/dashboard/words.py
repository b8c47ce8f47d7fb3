"""Figures and states as people read them: the texts of pages and of the terminal. Pure."""

from __future__ import annotations

from datetime import datetime

from floodmark.sequence import SequenceRange
from floodmark.status import SinkStatus

_UNITS = ((86_400.0, "d"), (3_600.0, "h"), (60.0, "min"))


def duration(seconds: float | None) -> str:
    """`3.2 s`, `4 min 10 s`, `2 h 5 min`, `3 d 4 h`; empty for None. Never below zero: two clocks differ."""
    if seconds is None:
        return ""
    seconds = max(0.0, seconds)
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    whole = round(seconds)
    for (size, unit), (smaller, small) in zip(_UNITS, (*_UNITS[1:], (1.0, "s")), strict=True):
        if whole >= size:
            first, rest = divmod(whole, int(size))
            second = rest // int(smaller)
            return f"{first} {unit} {second} {small}" if second else f"{first} {unit}"
    return f"{whole} s"


def ago(moment: datetime | None, now: datetime) -> str:
    """`4 s ago`, `never` for None."""
    if moment is None:
        return "never"
    seconds = max(0.0, (now - moment).total_seconds())
    return "just now" if seconds < 1 else f"{duration(seconds)} ago"


def until(moment: datetime | None, now: datetime) -> str:
    """`in 42 s`, `now` if it has passed."""
    if moment is None:
        return ""
    seconds = (moment - now).total_seconds()
    return "now" if seconds <= 0 else f"in {duration(seconds)}"


def count(number: float | None) -> str:
    """With thousands separators."""
    return "" if number is None else f"{number:,.0f}"


def rows(number: int) -> str:
    return f"{number:,} row" if number == 1 else f"{number:,} rows"


def rate(per_second: float | None) -> str:
    """`1,040 rows/s`; a dash while it is not known yet."""
    if per_second is None:
        return "-"
    return f"{per_second:,.0f} rows/s" if per_second >= 10 or per_second == 0 else f"{per_second:.1f} rows/s"


def size(number: float | None) -> str:
    """Bytes with a unit."""
    if number is None:
        return ""
    left = float(number)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if left < 1024:
            return f"{left:.0f} B" if unit == "B" else f"{left:.1f} {unit}"
        left /= 1024
    return f"{left:.1f} TiB"


def state(sink: SinkStatus) -> str:
    """In one word: `blocked`, `paused`, `retrying`, `behind` or `up to date`."""
    if sink.state != "active":
        return sink.state
    if sink.reason is not None:
        return "retrying"
    return "behind" if sink.lag else "up to date"


def waits_for(sink: SinkStatus, now: datetime) -> str:
    """What has to happen before the sink delivers more."""
    pinned = next((one.pinned for one in sink.channels if one.pinned is not None), None)
    found = "new rows"
    if sink.state == "blocked":
        found = "you: its destination accepts nothing until the cause is corrected"
    elif sink.state != "active":
        found = f"you: it is {sink.state}"
    elif sink.reason is not None:
        found = "its next attempt"
    elif pinned is not None:
        found = f"the destination: {span(pinned)} is being delivered"
    elif sink.lag and sink.next_attempt is not None and sink.next_attempt > now:
        found = "its schedule"
    elif sink.lag:
        found = "`floodmark run` to deliver"
    return found


def span(numbers: SequenceRange) -> str:
    """`1,001 to 2,000`."""
    return f"{numbers.after + 1:,} to {numbers.through:,}"
