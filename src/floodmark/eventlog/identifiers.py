"""Identifiers, timestamps and positions, in the exact format of the files."""

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
    """A UUID of version 7, greater than all earlier ones of this process."""
    return new_identifiers(now, 1)[0]


def new_identifiers(now: datetime, count: int) -> list[str]:
    """UUIDs of version 7 that follow one another, greater than every one this process made before.

    Increasing also when the clock stands still or jumps back: the last value plus one is used then, so
    that two transactions of one process never tie on time and come out in the wrong order.
    """
    global _last  # noqa: PLW0603 - the promise is per process, so the state is too
    milliseconds = int(now.timestamp() * 1000)
    random = int.from_bytes(os.urandom(9), "big")
    fresh = (milliseconds << 74) | (random & ((1 << 73) - 1))
    with _last_guard:
        first = max(fresh, _last + 1)
        _last = first + count - 1
    return [_spelt(value) for value in range(first, first + count)]


def _spelt(value: int) -> str:
    """48 bits of time and 74 that count on, with the version and the variant put between them."""
    bits = value >> 74 << 80 | 7 << 76 | (value >> 62 & 0xFFF) << 64 | 2 << 62 | value & 0x3FFF_FFFF_FFFF_FFFF
    text = f"{bits:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def as_uuid(text: str) -> str:
    """The lowercase hyphenated form; ValueError if the text is not a UUID."""
    return text if _LOWER_UUID(text) else str(uuid.UUID(text))


def is_lower_uuid(text: str) -> bool:
    return _LOWER_UUID(text) is not None


def timestamp(now: datetime) -> str:
    """UTC with 0, 3 or 6 fraction digits and `+00:00`: timestamps are compared as bytes, so the format matters."""
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
