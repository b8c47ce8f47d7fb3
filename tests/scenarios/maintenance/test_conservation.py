"""Committed and settled rows are compared wherever both series have a cut."""

from __future__ import annotations

import pytest

from floodmark.control.inspection import BlockStats, ChunkRecord, Removal
from floodmark.maintenance.audit import Committed, effective, holes, imbalances
from floodmark.sequence import SequenceRange, Tally

BLOCKS = Committed(
    [BlockStats("a", 1, 4, Tally(4, 40)), BlockStats("b", 5, 9, Tally(3, 30)), BlockStats("c", 21, 30, Tally(10, 1))]
)


def chunk(after: int, through: int, rows: int, checksum: int, *, intent: str = "i", state: str = "acknowledged"):
    return ChunkRecord(intent, SequenceRange(after, through), state, Tally(rows, checksum), None)


def test_chunks_that_follow_the_blocks_are_compared_one_by_one():
    odd = list(imbalances([chunk(0, 4, 4, 40), chunk(4, 9, 2, 30), chunk(9, 30, 10, 1)], BLOCKS))
    assert [item.range for item in odd] == [SequenceRange(4, 9)]
    assert "3 rows were committed" in odd[0].what


def test_a_chunk_that_ends_inside_a_block_is_compared_with_those_behind_it():
    assert not list(imbalances([chunk(0, 6, 5, 50), chunk(6, 12, 2, 20)], BLOCKS))
    odd = list(imbalances([chunk(0, 6, 5, 50), chunk(6, 12, 2, 21)], BLOCKS))
    assert [item.range for item in odd] == [SequenceRange(0, 12)]
    assert "differ" in odd[0].what


def test_what_ends_inside_the_last_block_is_left_to_a_later_look():
    assert not list(imbalances([chunk(0, 9, 7, 70), chunk(9, 25, 99, 99)], BLOCKS))


@pytest.mark.parametrize(("rows", "sound"), [(4, False), (5, True), (6, True), (7, False), (8, False)])
def test_no_more_rows_may_be_missing_than_were_removed(rows: int, sound: bool):
    removed = [Removal("r", "all", SequenceRange(2, 8), Tally(2, 5))]
    assert (not list(imbalances([chunk(0, 9, rows, 1)], BLOCKS, removed=removed))) == sound


def test_a_filter_may_leave_rows_out_and_never_add_any():
    assert not list(imbalances([chunk(0, 9, 1, 1)], BLOCKS, filtered=True))
    assert list(imbalances([chunk(0, 9, 8, 1)], BLOCKS, filtered=True))


def test_of_chunks_that_were_settled_twice_the_newest_counts():
    old, new = chunk(0, 4, 4, 40, intent="old"), chunk(0, 9, 7, 70, intent="new")
    other = chunk(9, 30, 10, 1, intent="old")
    assert effective([old, other, new, chunk(30, 31, 0, 0, state="pending")]) == [new, other]


def test_holes_are_what_no_settled_chunk_covers():
    assert holes([chunk(2, 4, 1, 1), chunk(6, 7, 1, 1)], SequenceRange(0, 9)) == [
        SequenceRange(0, 2),
        SequenceRange(4, 6),
        SequenceRange(7, 9),
    ]
