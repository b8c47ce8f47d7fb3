"""Requests to a lake in memory: a test says what becomes of each, as a network would.

land          it arrives, and so does its answer
lose_answer   it arrives, and its client sees an error
hold          it is under way; it arrives when its client has given up, if it is let
drop          it never arrives
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

from floodmark.lake.table import AppendRefused

if TYPE_CHECKING:
    import pyarrow as pa

Request = TypeVar("Request")


class AnswerLost(Exception):
    """What a client sees when the answer never came: the request may have landed."""


def send(
    fate: str,
    what: str,
    *,
    land: Callable[[], None],
    hold: Callable[[], None],
    lost: type[AnswerLost] = AnswerLost,
) -> None:
    """Let a request meet its fate; `AnswerLost` if its client hears nothing."""
    if fate == "hold":
        hold()
    if fate in ("hold", "drop"):
        raise lost(f"no answer to {what}")
    land()
    if fate == "lose_answer":
        raise lost(f"no answer to {what}")


def arrive(held: Iterable[tuple[Request, pa.Table]], land: Callable[[Request, pa.Table], None]) -> list[bool]:
    """Let the requests under way arrive; for each, whether it landed."""
    landed = []
    for request, rows in held:
        try:
            land(request, rows)
            landed.append(True)
        except AppendRefused:
            landed.append(False)
    return landed
