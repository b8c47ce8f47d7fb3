"""The hub's ledger: for each channel, up to where everything has arrived.

Terms. A *channel* is one partition of one dataset of one origin store. Its row holds the contiguous end, rows and
checksum up to there, and the numbers that the sender gave up; so its size does not grow with what has arrived.

Invariants
- H1 A channel's row moves in the transaction that registers the rows it speaks of. One without the other would be a
  row lost, or a row stored twice at the next retry.
- H2 It moves only from the version that the decision was made on. Of two workers with chunks of one channel, one
  stores; the other reads again and decides again.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy import Connection, Row, func, select, update

from floodmark.control.schema import ledger
from floodmark.control.stored import read_back
from floodmark.sequence import Tally


@dataclass(frozen=True, slots=True)
class Entry:
    """One channel: everything up to `through` has arrived here or was given up by its sender."""

    origin: str
    dataset: str
    partition: str
    through: int
    tally: Tally
    """Of everything up to `through`, what was given up included."""
    given_up: tuple[int, ...] = ()
    path: tuple[str, ...] = field(default=())
    """The stores that the rows passed on their way here, in no order that matters."""
    version: int = 1


def find(connection: Connection, *, origin: str, dataset: str, partition: str) -> Entry | None:
    row = connection.execute(select(ledger).where(_is(origin, dataset, partition))).one_or_none()
    return None if row is None else _entry(row)


def write(connection: Connection, entry: Entry, *, seen: int | None, now: datetime) -> bool:
    """H2: move a channel from the version that was seen (None: from nothing); false if it is not there any more."""
    values = {
        "through_seq": entry.through,
        "row_count": entry.tally.rows,
        "checksum": entry.tally.checksum_text,
        "given_up": json.dumps(entry.given_up),
        "path": json.dumps(entry.path),
        "updated_at": now.isoformat(),
    }
    here = _is(entry.origin, entry.dataset, entry.partition)
    if seen is not None:
        moved = connection.execute(
            update(ledger)
            .where(here, ledger.c.version == seen, ledger.c.through_seq <= entry.through)
            .values(version=seen + 1, **values)
        )
        return moved.rowcount == 1
    if connection.execute(select(ledger.c.version).where(here)).one_or_none() is not None:
        return False
    key = {"origin": entry.origin, "dataset": entry.dataset, "partition_key": entry.partition}
    connection.execute(ledger.insert().values(version=1, **key, **values))
    return True


def of_origin(
    connection: Connection, origin: str, *, dataset: str | None = None, partition: str | None = None
) -> list[Entry]:
    """The channels of an origin; all of them, or of one dataset, of one partition."""
    query = select(ledger).where(ledger.c.origin == origin).order_by(ledger.c.dataset, ledger.c.partition_key)
    if dataset is not None:
        query = query.where(ledger.c.dataset == dataset)
    if partition is not None:
        query = query.where(ledger.c.partition_key == partition)
    return [_entry(row) for row in connection.execute(query)]


def stores_before(connection: Connection, dataset: str) -> list[str]:
    """Every store that rows of the dataset have passed through on their way into this one, by id."""
    found = connection.execute(select(ledger.c.origin, ledger.c.path).where(ledger.c.dataset == dataset).distinct())
    return sorted({store for origin, path in found for store in (origin, *json.loads(path))})


@dataclass(frozen=True, slots=True)
class OriginTotals:
    """What one origin has sent of one dataset."""

    origin: str
    dataset: str
    channels: int
    rows: int


def totals(connection: Connection) -> list[OriginTotals]:
    found = connection.execute(
        select(ledger.c.origin, ledger.c.dataset, func.count(), func.sum(ledger.c.row_count))
        .group_by(ledger.c.origin, ledger.c.dataset)
        .order_by(ledger.c.origin, ledger.c.dataset)
    )
    return [OriginTotals(origin, dataset, channels, int(rows)) for origin, dataset, channels, rows in found]


def _is(origin: str, dataset: str, partition: str):  # type: ignore[no-untyped-def]  # noqa: ANN202 - SQLAlchemy's own
    return (ledger.c.origin == origin) & (ledger.c.dataset == dataset) & (ledger.c.partition_key == partition)


def _entry(row: Row) -> Entry:  # type: ignore[type-arg]
    return read_back(f"what {row.origin!r} has sent", lambda: _read(row))


def _read(row: Row) -> Entry:  # type: ignore[type-arg]
    return Entry(
        origin=row.origin,
        dataset=row.dataset,
        partition=row.partition_key,
        through=row.through_seq,
        tally=Tally.of(row.row_count, row.checksum),
        given_up=tuple(json.loads(row.given_up)),
        path=tuple(json.loads(row.path)),
        version=row.version,
    )
