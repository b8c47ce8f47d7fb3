"""The base of a chunk, on every control database."""

from __future__ import annotations

import channels
from floodmark.commit.protocol import Base
from floodmark.control.chunks import record_base, recorded_base
from floodmark.control.database import Database
from floodmark.sequence import SequenceRange, Tally

FIRST, SECOND = SequenceRange(0, 3), SequenceRange(3, 5)


def test_the_first_base_of_a_chunk_stands_and_each_chunk_has_its_own(database: Database) -> None:
    """D5: whatever a later attempt saw, the first one saw it earlier."""
    intent = channels.pin(database, channels.open_channel(database), [FIRST, SECOND])
    assert database.read(lambda c: recorded_base(c, intent, FIRST)) is None

    found = [
        database.transact(lambda c, base=base: record_base(c, intent, FIRST, base))
        for base in (Base("t1", 0, None), Base("t1", 0, 2**62), Base("t2", 0, 7))
    ]

    assert found == [Base("t1", 0, None)] * 3
    assert database.read(lambda c: recorded_base(c, intent, FIRST)) == Base("t1", 0, None)
    assert database.transact(lambda c: record_base(c, intent, SECOND, Base("t1", 0, 2**62))) == Base("t1", 0, 2**62)


def test_a_chunk_that_is_settled_gets_no_base(database: Database) -> None:
    """D4: another process has seen to it."""
    channel = channels.open_channel(database)
    intent = channels.pin(database, channel, [FIRST, SECOND])
    channels.acknowledge(database, intent, FIRST, Tally(3, 1))
    base = Base("t1", 0, 1)
    assert database.transact(lambda c: record_base(c, intent, FIRST, base)) is None
    assert database.transact(lambda c: record_base(c, intent, SequenceRange(0, 5), base)) is None
    channels.acknowledge(database, intent, SECOND, Tally(2, 1))
    assert database.transact(lambda c: record_base(c, intent, SECOND, base)) is None
    later = channels.pin(database, channel, [SequenceRange(5, 9)])
    assert database.transact(lambda c: record_base(c, intent, SECOND, base)) is None
    assert database.transact(lambda c: record_base(c, later, SequenceRange(5, 9), base)) == base
