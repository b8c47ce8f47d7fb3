"""Read values that the control database stores as text. Only Floodmark writes them, so an unreadable one is damage."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

from floodmark.errors import Corrupt, Permanent

T = TypeVar("T")


def read_back(what: str, read: Callable[[], T]) -> T:
    """What `read` makes of a record; `Corrupt` if it is not what was written there."""
    try:
        return read()
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, Permanent) as error:
        raise Corrupt(
            f"The record of {what} in the control database cannot be read ({type(error).__name__}).",
            hint="Do not change the store. Restore the control database from a backup, and run `floodmark fsck`.",
        ) from error


def texts(stored: str) -> tuple[str, ...]:
    """A list of texts."""
    found = json.loads(stored)
    if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
        raise TypeError("not a list of strings")
    return tuple(found)


def mapping(stored: str) -> dict[str, Any]:
    """An object."""
    found = json.loads(stored)
    if not isinstance(found, dict):
        raise TypeError("not an object")
    return found
