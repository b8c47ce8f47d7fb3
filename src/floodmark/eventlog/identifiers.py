"""Identifiers, time stamps and positions, in the exact spelling that the files carry."""

from __future__ import annotations

import os
import re
import threading
import uuid
from datetime import datetime

_LOWER_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}").fullmatch

_last = 0
_last_guard = threading.Lock()


def new_identifier(now: datetime) -> str:
    """A UUID of version 7, greater than every one this process made before.

    Increasing also when the clock stands still or jumps back: the last value plus one is used then, so
    that two transactions of one process never tie on time and come out in the wrong order.
    """
    global _last  # noqa: PLW0603 - the promise is per process, so the state is too
    milliseconds = int(now.timestamp() * 1000)
    random = int.from_bytes(os.urandom(9), "big")
    fresh = (milliseconds << 74) | (random & ((1 << 73) - 1))
    with _last_guard:
        _last = max(fresh, _last + 1)
        value = _last
    high, low = value >> 62, value & ((1 << 62) - 1)
    stamped = ((high >> 12) << 80) | (0x7 << 76) | ((high & 0xFFF) << 64) | (0b10 << 62) | low
    text = f"{stamped:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def as_uuid(text: str) -> str:
    """The lowercase hyphenated form; ValueError if the text is no UUID."""
    return text if _LOWER_UUID(text) else str(uuid.UUID(text))


def is_lower_uuid(text: str) -> bool:
    return _LOWER_UUID(text) is not None


def timestamp(now: datetime) -> str:
    """UTC with 0, 3 or 6 fraction digits and `+00:00`: time stamps are compared as bytes, so the spelling counts."""
    if now.microsecond == 0:
        return now.isoformat(timespec="seconds")
    return now.isoformat(timespec="milliseconds" if now.microsecond % 1000 == 0 else "microseconds")


def position_of(seq: int) -> uuid.UUID:
    """The position of a local-ingestion number: eight bytes of it, big-endian, then zeros."""
    return uuid.UUID(int=seq << 64)


def seq_of(position: uuid.UUID) -> int:
    """The local-ingestion number of a position; ValueError if it is some other UUID."""
    if position.int & ((1 << 64) - 1):
        raise ValueError(f"{position} is not a position: its last eight bytes are not zero")
    return position.int >> 64
