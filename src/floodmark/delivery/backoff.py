"""How long to wait before the next attempt, after a destination did not respond or asked for a wait. Pure.

A destination may ask for a wait (`Retry-After`: whole seconds, or a date). If it does not, or asks for none, the
waits are 30, 60, 120, then 300 seconds. So no response causes retries without a pause, and none stops a sink for
days.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

LADDER_SECONDS = (30.0, 60.0, 120.0, 300.0)
ASKED_SECONDS_MAX = 3600.0
"""The longest wait that a destination can ask for."""

_SECONDS_DIGITS_MAX = 9
_DATE_CHARACTERS_MAX = 64


def wait_seconds(failures: int, asked: float | None = None) -> float:
    """How long to wait after this many consecutive failures: what was asked for, or the next step of the ladder."""
    if asked is not None and asked >= 1:
        return min(asked, ASKED_SECONDS_MAX)
    return LADDER_SECONDS[min(max(failures, 1), len(LADDER_SECONDS)) - 1]


def retry_after_seconds(text: str | None, *, now: datetime) -> float | None:
    """The wait that a `Retry-After` asks for, from 1 s up to the limit; None if it asks for none.

    None if it is absent, zero, a date that is not in the future, or neither whole seconds nor a date.
    """
    given = (text or "").strip()
    if given.isascii() and given.isdigit():
        digits = given.lstrip("0")
        asked = ASKED_SECONDS_MAX if len(digits) > _SECONDS_DIGITS_MAX else float(digits or 0)
    else:
        # A date has whole seconds only: rounded up, less than a second is still a wait.
        asked = float(math.ceil(_seconds_until(given, now=now)))
    return min(asked, ASKED_SECONDS_MAX) if asked >= 1 else None


def _seconds_until(date: str, *, now: datetime) -> float:
    """0 if the text is not a date."""
    if not date or len(date) > _DATE_CHARACTERS_MAX:
        return 0.0
    try:
        moment = parsedate_to_datetime(date)
        aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        return (aware - now).total_seconds()
    except (ValueError, TypeError, IndexError, OverflowError):  # what the parser raises for an invalid date
        return 0.0
