"""The hub's ledger: for each channel, the sequence number up to which all rows have arrived.

Terms. A *channel* is one partition of one dataset of one origin store. Its row holds the contiguous end, rows and
checksum up to there, and how many rows the sender gave up; so its size does not grow with what has arrived, nor with
what has not. Where those rows are is kept as ranges in a table of their own: one for each run of them, however long.

Invariants
- H1 A channel's row moves in the transaction that registers the rows it speaks of. One without the other would be a
  row lost, or a row stored twice at the next retry.
- H2 It moves only from the version that the decision was made on. Of two workers with chunks of one channel, one
  stores; the other reads again and decides again.
- H3 A row that was given up is stored at most once later: it is cut out of its range in the transaction that stores it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, and_, func, select, update

from floodmark.control.schema import Record, ledger, ledger_given_up, read_back
from floodmark.sequence import SequenceRange, Tally


@dataclass(frozen=True, slots=True)
class Entry:
    """One channel: everything up to `through` has arrived here or was given up by its sender."""

    origin: str
    dataset: str
    partition: str
    through: int
    tally: Tally
    """Of all rows up to `through`, including given-up rows."""
    given_up_rows: int = 0
    """How many of those were given up, and have not come since."""
    version: int = 1


def find(connection: Connection, *, origin: str, dataset: str, partition: str) -> Entry | None:
    row = connection.execute(select(ledger).where(_is(ledger, origin, dataset, partition))).one_or_none()
    return None if row is None else _entry(row)


def write(
    connection: Connection,
    entry: Entry,
    *,
    seen: int | None,
    given_up: Sequence[SequenceRange] = (),
    replayed: SequenceRange | None = None,
    now: datetime,
) -> bool:
    """H2: move a channel from the version that was seen (None: from nothing); false if it is not there any more.

    `given_up` are ranges whose rows will not come by themselves, `replayed` is one whose rows have come after all.
    """
    values = {
        "through_seq": entry.through,
        "row_count": entry.tally.rows,
        "checksum": entry.tally.checksum_text,
        "given_up_rows": entry.given_up_rows,
        "updated_at": now.isoformat(),
    }
    here = _is(ledger, entry.origin, entry.dataset, entry.partition)
    if seen is not None:
        moved = connection.execute(
            update(ledger)
            .where(here, ledger.c.version == seen, ledger.c.through_seq <= entry.through)
            .values(version=seen + 1, **values)
        )
        if moved.rowcount != 1:
            return False
    else:
        if connection.execute(select(ledger.c.version).where(here)).one_or_none() is not None:
            return False
        connection.execute(ledger.insert().values(version=1, given_up="[]", **_key(entry), **values))
    _give_up(connection, entry, given_up)
    if replayed is not None:
        _cut_out(connection, entry, replayed)
    return True


def _give_up(connection: Connection, entry: Entry, ranges: Sequence[SequenceRange]) -> None:
    for span in ranges:
        joined = connection.execute(
            update(ledger_given_up)
            .where(_given_up_of(entry), ledger_given_up.c.through_seq == span.after)
            .values(through_seq=span.through)
        )
        if joined.rowcount == 0:
            _insert_range(connection, entry, span)


def _cut_out(connection: Connection, entry: Entry, span: SequenceRange) -> None:
    """H3: what has come is not given up any more. What is left of its range stays so."""
    for whole in given_up_within(connection, entry, span):
        connection.execute(
            ledger_given_up.delete().where(_given_up_of(entry), ledger_given_up.c.after_seq == whole.after)
        )
        for after, through in ((whole.after, span.after), (span.through, whole.through)):
            if after < through:
                _insert_range(connection, entry, SequenceRange(after, through))
    if entry.given_up_rows == 0:  # what is left are numbers that no row has
        connection.execute(ledger_given_up.delete().where(_given_up_of(entry)))


def _insert_range(connection: Connection, entry: Entry, span: SequenceRange) -> None:
    connection.execute(ledger_given_up.insert().values(**_key(entry), after_seq=span.after, through_seq=span.through))


def given_up_within(
    connection: Connection, entry: Entry, within: SequenceRange, *, ranges_max: int | None = None
) -> list[SequenceRange]:
    """The ranges that were given up and touch another one, in order; no more of them than asked for."""
    query = (
        select(ledger_given_up.c.after_seq, ledger_given_up.c.through_seq)
        .where(
            _given_up_of(entry),
            ledger_given_up.c.through_seq > within.after,
            ledger_given_up.c.after_seq < within.through,
        )
        .order_by(ledger_given_up.c.after_seq)
    )
    found = connection.execute(query if ranges_max is None else query.limit(ranges_max))
    return [SequenceRange(after, through) for after, through in found]


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


@dataclass(frozen=True, slots=True)
class OriginTotals:
    """The channels of one origin and dataset."""

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


def _is(table: Any, origin: str, dataset: str, partition: str) -> Any:
    return and_(table.c.origin == origin, table.c.dataset == dataset, table.c.partition_key == partition)


def _given_up_of(entry: Entry) -> Any:
    return _is(ledger_given_up, entry.origin, entry.dataset, entry.partition)


def _key(entry: Entry) -> dict[str, str]:
    return {"origin": entry.origin, "dataset": entry.dataset, "partition_key": entry.partition}


def _entry(row: Record) -> Entry:
    return read_back(f"the chunks of {row.origin!r}", lambda: _read(row))


def _read(row: Record) -> Entry:
    return Entry(
        origin=row.origin,
        dataset=row.dataset,
        partition=row.partition_key,
        through=row.through_seq,
        tally=Tally.of(row.row_count, row.checksum),
        given_up_rows=row.given_up_rows,
        version=row.version,
    )
