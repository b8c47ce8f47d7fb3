"""Which stores a dataset's rows may have passed before they are forwarded from here."""

from __future__ import annotations

import json

from sqlalchemy import Connection, select

from floodmark.control.schema import ledger
from floodmark.wire import PATH_STORES_MAX


def stores_passed(connection: Connection, dataset: str, *, here: str, origin: str) -> tuple[str, ...]:
    """The stores that forwarded rows of the dataset to this one, and those before them; this store and `origin` last.

    A header has room for a limited number. Those in between go first, for a loop leads over a store that forwards; then
    those that forwarded last.
    """
    found = connection.execute(
        select(ledger.c.origin, ledger.c.path).where(ledger.c.dataset == dataset).distinct().order_by(ledger.c.origin)
    )
    between: dict[str, None] = {}
    senders: dict[str, None] = {}
    for row in found:
        between.update(dict.fromkeys(store for store in json.loads(row.path) if store != row.origin))
        senders[row.origin] = None
    own = dict.fromkeys((here, origin))
    before = [store for store in {**between, **senders} if store not in own]
    return (*before[: PATH_STORES_MAX - len(own)], *own)
