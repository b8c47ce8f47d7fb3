"""The order of events in the control database.

- U19 Which came first is decided by a counter of the control database and never by a clock: a clock may be set back,
  and two machines have two. Times are recorded for users only.
"""

from __future__ import annotations

from sqlalchemy import Connection, select, update

from floodmark.control.schema import counters

_EVENT = counters.c.name == "event"
_COUNT_ON = update(counters).where(_EVENT).values(value=counters.c.value + 1)
_COUNTED = select(counters.c.value).where(_EVENT)


def happens(connection: Connection) -> int:
    """The number of an event that happens in this transaction: higher than that of every one before it."""
    connection.execute(_COUNT_ON)
    return int(connection.execute(_COUNTED).scalar_one())
