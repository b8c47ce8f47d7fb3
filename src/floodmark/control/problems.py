"""The problem of each dataset: the failure of its last flush, how often it repeated, and since when.

It is recorded per dataset (I10), by any process, until a flush succeeds.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, select, update

from floodmark.control.schema import Record, problems

_NUMBERS = re.compile(r"[0-9]+")


@dataclass(frozen=True, slots=True)
class DatasetProblem:
    """Why a dataset's rows wait."""

    dataset: str
    message: str
    """What happened, and what to do about it."""
    failures: int
    """How many flushes in a row have failed like this."""
    since: datetime
    segments_max: int | None = None
    """How many segments the next block may have: fewer than usual, to isolate the segment that fails."""
    gist: str = ""


def gist_of(message: str) -> str:
    """The message without its numbers: they differ from try to try and make nothing new of it."""
    return _NUMBERS.sub("", message)


def find(connection: Connection, dataset: str) -> DatasetProblem | None:
    row = connection.execute(select(problems).where(problems.c.dataset == dataset)).one_or_none()
    return None if row is None else _problem(row)


def everyone(connection: Connection) -> list[DatasetProblem]:
    return [_problem(row) for row in connection.execute(select(problems).order_by(problems.c.dataset))]


def record(
    connection: Connection, dataset: str, message: str, *, now: datetime, segments_max: int | None = None
) -> DatasetProblem:
    """Remember a failure; the same one again is counted."""
    known = find(connection, dataset)
    gist = gist_of(message)
    same = known is not None and known.gist == gist
    values = {
        "message": message,
        "gist": gist,
        "failures": known.failures + 1 if known is not None and same else 1,
        "segments_max": segments_max,
        "last_at": now.isoformat(),
    }
    if known is None:
        connection.execute(problems.insert().values(dataset=dataset, first_at=now.isoformat(), **values))
    else:
        begun = {} if same else {"first_at": now.isoformat()}
        connection.execute(update(problems).where(problems.c.dataset == dataset).values(**values, **begun))
    found = find(connection, dataset)
    if found is None:
        raise LookupError(dataset)
    return found


def forget(connection: Connection, dataset: str) -> None:
    connection.execute(problems.delete().where(problems.c.dataset == dataset))


def _problem(row: Record) -> DatasetProblem:
    return DatasetProblem(
        row.dataset, row.message, row.failures, datetime.fromisoformat(row.first_at), row.segments_max, row.gist
    )
