"""How far back a parcel reaches, where the destination keeps a ledger without holes.

Such a ledger takes only what begins where it ends, and it ends behind the last rows that it was sent. What was settled
since without a row delivered, because it was empty or given up, belongs to the parcel that follows.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, and_, bindparam, or_, select

from floodmark.control.chunks import Chunk
from floodmark.control.deliveries import Channel, Watermark, channel_values, of_channel, watermark
from floodmark.control.schema import chunks, intents
from floodmark.sequence import SequenceRange, Tally

REACH_MAX = 100_000
"""A bound on the walk back over chunks without rows."""

# Asked at every step back. Built once: to put a statement together takes longer than to run it.
_EMPTY_BEFORE = (
    select(chunks)
    .join(intents, intents.c.id == chunks.c.intent)
    .where(
        of_channel(intents),
        chunks.c.through_seq == bindparam("end"),
        or_(chunks.c.state == "quarantined", and_(chunks.c.state == "acknowledged", chunks.c.row_count == 0)),
    )
)


@dataclass(frozen=True, slots=True)
class Reach:
    """How far back a parcel reaches: to the end of the last chunk that had rows and was delivered."""

    after: int
    before: Tally
    """Of everything that was settled up to there."""
    given_up: Tally
    """Of everything that was settled since: each row of it is in quarantine."""


def reach_back(connection: Connection, channel: Channel) -> Reach:
    """From the watermark back over settled chunks without delivered rows: empty ones, and those given up.

    What is settled stays so, hence the same chunk reaches equally far back whenever it is sent again.
    """
    return _walked_back(connection, channel, watermark(connection, channel) or Watermark(0, Tally()))


def reach_of(connection: Connection, channel: Channel, chunk: Chunk) -> SequenceRange:
    """The range under which a settled chunk was sent."""
    reach = _walked_back(connection, channel, Watermark(chunk.range.after, Tally()))
    return SequenceRange(reach.after, chunk.range.through)


def _walked_back(connection: Connection, channel: Channel, mark: Watermark) -> Reach:
    after, before = mark.seq, mark.tally
    for _ in range(REACH_MAX):
        row = connection.execute(_EMPTY_BEFORE, channel_values(channel) | {"end": after}).one_or_none()
        if row is None:
            break
        tally = Tally.of(row.row_count, row.checksum)
        after, before = row.after_seq, before - tally
    return Reach(after, before, mark.tally - before)
