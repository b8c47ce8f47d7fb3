"""The base of a chunk: a table sink's target as it was before the first attempt to append the chunk there.

D5: it is recorded before anything is sent, and the first one stands. A later attempt that recorded its own would
forget the time in which the earlier one may have landed, and append again what a user has since deleted.
"""

from __future__ import annotations

import json

from sqlalchemy import Connection, and_, select, update
from sqlalchemy.sql import ColumnElement

from floodmark.commit import Base
from floodmark.control.deliveries import Intent, open_intent
from floodmark.control.schema import chunks
from floodmark.sequence import SequenceRange


def recorded_base(connection: Connection, intent: Intent, range: SequenceRange) -> Base | None:
    """The base on record, if there is one."""
    text = connection.execute(select(chunks.c.base).where(_of(intent, range))).scalar_one_or_none()
    return None if text is None else _parsed(text)


def record_base(connection: Connection, intent: Intent, range: SequenceRange, base: Base) -> Base | None:
    """Record what the target was, unless that is on record already. Returns the base that counts.

    None if the chunk is settled, or its intent closed (D4): another process has seen to it, and nothing may be sent.
    """
    if open_intent(connection, intent.channel) != intent:
        return None
    text = json.dumps({"table": base.table_uuid, "snapshot": base.snapshot})
    pending = and_(_of(intent, range), chunks.c.state == "pending")
    connection.execute(update(chunks).where(pending, chunks.c.base.is_(None)).values(base=text))
    found = connection.execute(select(chunks.c.base).where(pending)).scalar_one_or_none()
    return None if found is None else _parsed(found)


def _of(intent: Intent, range: SequenceRange) -> ColumnElement[bool]:
    return and_(chunks.c.intent == intent.id, chunks.c.after_seq == range.after, chunks.c.through_seq == range.through)


def _parsed(text: str) -> Base:
    found = json.loads(text)
    return Base(found["table"], 0, found["snapshot"])
