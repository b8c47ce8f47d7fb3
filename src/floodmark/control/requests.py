"""Captures over HTTP with an idempotency key: a second request with the same key gets the same receipt, and stores
nothing.

A key belongs to the token it came with: two clients that chose the same one never see each other's receipts. The row
is written in the transaction that registers the rows (H1, for one request instead of a channel).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, bindparam, delete, select

from floodmark.control.schema import requests

NOT_KNOWN = "*"
"""The token of keys from before tokens were noted with them. No token has this name."""


@dataclass(frozen=True, slots=True)
class Request:
    """A completed request: its rows and its receipt."""

    dataset: str
    token: str
    """The name of the token it came with; empty where none was needed."""
    key: str
    digest: str
    rows: int
    quarantined: int


# Asked by every capture with a key. Built once: to put a statement together takes longer than to run it.
_FIND = (
    select(requests)
    .where(
        requests.c.dataset == bindparam("of"),
        requests.c.key == bindparam("wanted"),
        requests.c.token.in_([bindparam("sender"), NOT_KNOWN]),
    )
    .limit(1)
)
_TAKEN = select(requests.c.token, requests.c.key).where(
    requests.c.dataset == bindparam("of"), requests.c.key.in_(bindparam("wanted", expanding=True))
)
_RECORD = requests.insert()


def find(connection: Connection, *, dataset: str, token: str, key: str) -> Request | None:
    row = connection.execute(_FIND, {"of": dataset, "wanted": key, "sender": token}).one_or_none()
    if row is None:
        return None
    receipt = json.loads(row.receipt)
    return Request(row.dataset, row.token, row.key, row.digest, receipt["rows"], receipt["quarantined"])


def record_all(connection: Connection, items: Sequence[Request], *, now: datetime) -> bool:
    """Remember requests of one dataset; false, and none of them, if a key is taken, or two of them have the same."""
    wanted = {(item.token, item.key) for item in items}
    taken = connection.execute(_TAKEN, {"of": items[0].dataset, "wanted": [item.key for item in items]})
    known = {(token, key) for token, key in taken}
    if len(wanted) < len(items) or known & (wanted | {(NOT_KNOWN, key) for _, key in wanted}):
        return False
    connection.execute(
        _RECORD,
        [
            {
                "dataset": item.dataset,
                "token": item.token,
                "key": item.key,
                "digest": item.digest,
                "receipt": json.dumps({"rows": item.rows, "quarantined": item.quarantined}),
                "created_at": now.isoformat(),
            }
            for item in items
        ],
    )
    return True


def forget(connection: Connection, *, before: datetime) -> int:
    """Delete older requests: clients do not retry for ever. Times are texts in UTC, which sort like times."""
    return connection.execute(delete(requests).where(requests.c.created_at < before.isoformat())).rowcount
