"""Log lines: text for people, JSON for programs. One line per piece of work that mattered.

`run` writes its events through `event_logger`; the hub and the libraries below it use Python's `logging`, which
`handler` renders in the same two forms.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import orjson
import structlog
from structlog.typing import EventDict, FilteringBoundLogger, WrappedLogger

TEXT, JSON = "text", "json"

_TIME = structlog.processors.TimeStamper(fmt="%Y-%m-%dT%H:%M:%SZ", utc=True, key="at")


class _Lines:
    """What structlog writes to: a function that takes a line."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self.info = self.warning = self.msg = write


def event_logger(form: str, write: Callable[[str], None]) -> FilteringBoundLogger:
    """A logger whose lines go to `write`. A text line is the time and the event's `text`."""
    render = _json if form == JSON else _text
    logger: FilteringBoundLogger = structlog.wrap_logger(
        _Lines(write),
        processors=[structlog.processors.add_log_level, _TIME, render],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
    )
    return logger


def handler(form: str) -> logging.Handler:
    """A handler for Python's own log, to standard error."""
    made = logging.StreamHandler()
    if form == TEXT:
        made.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        return made
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[structlog.stdlib.add_log_level, structlog.stdlib.add_logger_name, _TIME],
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.format_exc_info,
            _json,
        ],
    )
    made.setFormatter(formatter)
    return made


def _json(_logger: WrappedLogger, _method: str, event: EventDict) -> str:
    known: dict[str, Any] = {"at": event.pop("at"), "event": event.pop("event")}
    return orjson.dumps({**known, **event}, default=str).decode()


def _text(_logger: WrappedLogger, _method: str, event: EventDict) -> str:
    return f"{event['at']} {event.get('text', event['event'])}"
