"""Quarantine: input that is not a row, and rows that a sink gave up; with the reason, until they are replayed or
discarded.

held ──replay──▶ replayed        (in the transaction that registers its segment)
  └───discard──▶ discarded
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from sqlalchemy import Connection, case, func, select, update

from floodmark.control.schema import Record, quarantine
from floodmark.errors import UnknownQuarantineEntry
from floodmark.sequence import Tally

if TYPE_CHECKING:
    from floodmark.control.deliveries import Channel

KEYS_AT_ONCE = 500
"""So many keys are asked for in one query."""
PAYLOAD_CHARACTERS_MAX = 400


@dataclass(frozen=True, slots=True)
class QuarantineInput:
    """Input that does not fit, to be stored in quarantine."""

    reason: str
    payload: str | None
    payload_path: str | None = None
    landing_file: str | None = None
    landing_offset: int | None = None
    landing_row: int | None = None
    rows: int = 1
    """How many rows the entry has: rows of one request that do not fit for the same reason share an entry."""
    token: str | None = None
    """The token it came with, over HTTP."""
    source_key: str | None = None
    """Its source, if the source can be read again: there is one entry for it, also if it is read several times."""


@dataclass(frozen=True, slots=True)
class GivenUp:
    """A row that a sink did not deliver."""

    seq: int
    tally: Tally
    payload: str


@dataclass(frozen=True, slots=True)
class Entry:
    """One quarantined row or line, or several that came together and do not fit for the same reason."""

    id: str
    dataset: str
    state: str
    reason: str
    payload: str | None
    payload_path: str | None
    created_at: str
    sink: str | None = None
    """The sink instance that could not deliver it; None for what could not become a row."""
    seq: int | None = None
    partition: str | None = None
    rows: int = 1
    token: str | None = None


def hold(connection: Connection, dataset: str, items: Iterable[QuarantineInput], *, now: datetime) -> None:
    """Store input that does not fit. An existing entry, in any state, is not stored again."""
    values = [
        {
            "id": uuid.uuid4().hex,
            "dataset": dataset,
            "state": "held",
            "reason": item.reason,
            "payload": item.payload,
            "payload_path": item.payload_path,
            "landing_file": item.landing_file,
            "landing_offset": item.landing_offset,
            "landing_row": item.landing_row,
            "row_count": item.rows,
            "token": item.token,
            "source_key": item.source_key,
            "created_at": now.isoformat(),
        }
        for item in _first_seen(connection, dataset, list(items))
    ]
    if values:
        connection.execute(quarantine.insert(), values)


def source_key(place: str, payload: bytes) -> str:
    """The key of a line of a source: its place and its content."""
    return hashlib.blake2b(place.encode(errors="surrogateescape") + b"\0" + payload, digest_size=16).hexdigest()


def _first_seen(connection: Connection, dataset: str, items: list[QuarantineInput]) -> list[QuarantineInput]:
    """The items whose source has brought no entry yet, each of them once."""
    keys = list(dict.fromkeys(item.source_key for item in items if item.source_key is not None))
    known: set[str | None] = set()
    for start in range(0, len(keys), KEYS_AT_ONCE):
        asked = quarantine.c.source_key.in_(keys[start : start + KEYS_AT_ONCE])
        found = connection.execute(select(quarantine.c.source_key).where(quarantine.c.dataset == dataset, asked))
        known.update(key for (key,) in found)
    fresh: dict[str, QuarantineInput] = {}
    for item in items:
        if item.source_key not in known:
            fresh.setdefault(item.source_key or uuid.uuid4().hex, item)
    return list(fresh.values())


def hold_given_up(
    connection: Connection, channel: Channel, rows: Sequence[GivenUp], *, reason: str, now: datetime
) -> None:
    """Put rows into quarantine under the sink's name; existing entries are not changed."""
    if not rows:
        return
    # By range and not by number: a chunk may have more rows than a statement takes values.
    known = set(
        connection.execute(
            select(quarantine.c.seq).where(
                quarantine.c.sink == channel.sink,
                quarantine.c.dataset == channel.dataset,
                quarantine.c.seq >= min(row.seq for row in rows),
                quarantine.c.seq <= max(row.seq for row in rows),
            )
        ).scalars()
    )
    values = [
        {
            "id": uuid.uuid4().hex,
            "dataset": channel.dataset,
            "state": "held",
            "reason": reason,
            "payload": row.payload,
            "sink": channel.sink,
            "seq": row.seq,
            "partition_key": channel.partition,
            "checksum": row.tally.checksum_text,
            "created_at": now.isoformat(),
        }
        for row in rows
        if row.seq not in known
    ]
    if values:
        connection.execute(quarantine.insert(), values)


def entries(connection: Connection, *, dataset: str | None = None, state: str | None = "held") -> list[Entry]:
    query = select(quarantine).order_by(quarantine.c.created_at, quarantine.c.landing_offset, quarantine.c.landing_row)
    if dataset is not None:
        query = query.where(quarantine.c.dataset == dataset)
    if state is not None:
        query = query.where(quarantine.c.state == state)
    return [_entry(row) for row in connection.execute(query)]


def newest(connection: Connection, *, entries_max: int) -> list[Entry]:
    """The newest entries, the newest first, each with at most `PAYLOAD_CHARACTERS_MAX` of its payload."""
    others = [column for column in quarantine.c if column is not quarantine.c.payload]
    found = connection.execute(
        select(*others, func.substr(quarantine.c.payload, 1, PAYLOAD_CHARACTERS_MAX).label("payload"))
        .where(quarantine.c.state == "held")
        .order_by(quarantine.c.created_at.desc(), quarantine.c.id)
        .limit(entries_max)
    )
    return [_entry(row) for row in found]


def get(connection: Connection, id: str) -> Entry:
    """One entry by its id, or by a beginning of it that only one entry has."""
    found = connection.execute(select(quarantine).where(quarantine.c.id.startswith(id, autoescape=True)).limit(2)).all()
    if len(found) != 1 or not id:
        raise UnknownQuarantineEntry(
            f"{'No' if not found else 'More than one'} quarantine entry has the id {id!r}.",
            hint="`floodmark quarantine list` shows the ids.",
        )
    return _entry(found[0])


def of_sink(connection: Connection, sink: str) -> list[Entry]:
    """The rows that a sink could not deliver, still in quarantine, in sequence order."""
    found = connection.execute(
        select(quarantine)
        .where(quarantine.c.sink == sink, quarantine.c.state == "held")
        .order_by(quarantine.c.dataset, quarantine.c.seq)
    )
    return [_entry(row) for row in found]


def set_reason(connection: Connection, id: str, reason: str) -> None:
    """Why it was refused this time."""
    connection.execute(
        update(quarantine).where(quarantine.c.id == id, quarantine.c.state == "held").values(reason=reason)
    )


def decide(connection: Connection, id: str, *, state: str, now: datetime) -> bool:
    """Change the state of an entry from `held`; false if another process did."""
    changed = connection.execute(
        update(quarantine)
        .where(quarantine.c.id == id, quarantine.c.state == "held")
        .values(state=state, decided_at=now.isoformat())
    )
    return changed.rowcount == 1


def scrub(connection: Connection, ids: Iterable[str], *, now: datetime) -> None:
    """Take the payloads away, and the reasons with what they quote; that there was an entry stays on record."""
    for id in ids:
        decide(connection, id, state="discarded", now=now)
        connection.execute(
            update(quarantine).where(quarantine.c.id == id).values(payload=None, payload_path=None, reason="Purged.")
        )


def held_entries(connection: Connection, dataset: str, *, token: str | None) -> tuple[int, int]:
    """How many entries of a dataset are held that came with a token, and how many in all."""
    mine = func.coalesce(func.sum(case((quarantine.c.token == token, 1), else_=0)), 0)
    found = connection.execute(
        select(mine, func.count()).where(quarantine.c.dataset == dataset, quarantine.c.state == "held")
    ).one()
    return int(found[0]), int(found[1])


def _entry(row: Record) -> Entry:
    return Entry(
        id=row.id,
        dataset=row.dataset,
        state=row.state,
        reason=row.reason,
        payload=row.payload,
        payload_path=row.payload_path,
        created_at=row.created_at,
        sink=row.sink,
        seq=row.seq,
        partition=row.partition_key,
        rows=row.row_count,
        token=row.token,
    )
