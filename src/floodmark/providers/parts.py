"""Shared by the transcript layouts: times, token counts, tool calls and their results."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import orjson

PENDING_CALLS_MAX = 10_000


class NotARow(ValueError):
    """A line that should contain a message and cannot be read; the text says why."""


class PendingCalls:
    """Tool calls without a result yet, to find the tool of a result. Limited in size."""

    def __init__(self) -> None:
        self._tools: dict[str, str] = {}

    def called(self, call_id: str | None, tool: str | None) -> None:
        if call_id is None or tool is None:
            return
        if len(self._tools) >= PENDING_CALLS_MAX:
            self._tools.pop(next(iter(self._tools)))
        self._tools[call_id] = tool

    def answered(self, call_id: str | None) -> str | None:
        return None if call_id is None else self._tools.pop(call_id, None)


def moment(value: Any) -> datetime:
    """The time of a line; a time without a zone would mean another instant on every machine."""
    if not isinstance(value, str):
        raise NotARow("the line has no timestamp")
    try:
        time = datetime.fromisoformat(value)
    except ValueError as error:
        raise NotARow(f"the timestamp {value!r} is not a time") from error
    if time.tzinfo is None:
        raise NotARow(f"the timestamp {value!r} has no time zone")
    return time


def text(value: Any) -> str | None:
    """A value that should be text, if it is."""
    return value if isinstance(value, str) else None


def number(value: Any) -> int | None:
    """A value that should be a count, if it is."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def mapping(value: Any) -> dict[str, Any]:
    """A value that should be an object; an empty one if it is not."""
    return value if isinstance(value, dict) else {}


def listed(value: Any) -> list[Any]:
    """A value that should be a list; an empty one if it is not."""
    return value if isinstance(value, list) else []


def output(value: Any) -> str | None:
    """A tool's output as text. Blocks of text are joined; images are named, not stored; the rest is JSON."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, list) and value and all(isinstance(block, dict) for block in value):
        return "\n".join(_block(block) for block in value)
    return orjson.dumps(value).decode()


def _block(block: dict[str, Any]) -> str:
    if isinstance(block.get("text"), str):
        return str(block["text"])
    if "image" in str(block.get("type")):
        return "[image]"
    return orjson.dumps(block).decode()
