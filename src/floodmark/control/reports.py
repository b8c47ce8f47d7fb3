"""The last result of each task of maintenance and of each audit: when, what it did, and since when it fails.

One row per task and subject (a dataset, a sink, or "" for the whole store), written over by the next result. Nothing
depends on these rows; they are for those who look at a store.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, select

from floodmark.control.schema import Record, reports

MESSAGE_CHARACTERS_MAX = 2000


@dataclass(frozen=True, slots=True)
class Report:
    """The last result of a task of maintenance, or of an audit."""

    task: str
    subject: str
    """The dataset or sink; empty for the whole store."""
    ended_at: datetime
    message: str
    """What it did, or why it failed and what to do."""
    failures: int = 0
    """How often it has failed in a row; 0: it did not."""
    failing_since: datetime | None = None
    details: dict[str, Any] = field(default_factory=dict)
    """Figures, for programs."""


def record(
    connection: Connection,
    task: str,
    subject: str,
    *,
    message: str,
    failed: bool,
    now: datetime,
    details: Mapping[str, Any] | None = None,
) -> None:
    """Write a result over the one before it."""
    here = (reports.c.task == task, reports.c.subject == subject)
    known = connection.execute(select(reports).where(*here)).one_or_none()
    failures = 0 if not failed else 1 + (known.failures if known is not None else 0)
    since = None if not failed else (known.failing_since if known is not None and known.failures else now.isoformat())
    values = {
        "ended_at": now.isoformat(),
        "message": message[:MESSAGE_CHARACTERS_MAX],
        "details": json.dumps(dict(details or {}), sort_keys=True),
        "failures": failures,
        "failing_since": since,
    }
    if known is None:
        connection.execute(reports.insert().values(task=task, subject=subject, **values))
    else:
        connection.execute(reports.update().where(*here).values(**values))


def everyone(connection: Connection) -> list[Report]:
    """By subject and task."""
    return [_report(row) for row in connection.execute(select(reports).order_by(reports.c.subject, reports.c.task))]


def _report(row: Record) -> Report:
    return Report(
        row.task,
        row.subject,
        datetime.fromisoformat(row.ended_at),
        row.message,
        row.failures,
        None if row.failing_since is None else datetime.fromisoformat(row.failing_since),
        json.loads(row.details),
    )
