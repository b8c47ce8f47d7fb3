"""Looking closely at a target: how many rows have which numbers, and which are not as they left. One suite for all."""

# ruff: noqa: F811 - a fixture that is imported is a parameter of that name below
from __future__ import annotations

from lakes import Blocks, some
from test_targets import CLAIM, ORIGIN, SHAPE, Hands, blocks, cut_of, hands, loaded, send  # noqa: F401 - fixtures too

from floodmark.lake.targets import Cut
from floodmark.schema import Schema
from floodmark.sequence import SequenceRange


def census(hands: Hands, after: int, through: int, *, partition: str = "all") -> tuple[int, int]:
    span = SequenceRange(after, through)
    found = hands.target.census(loaded(hands), store=ORIGIN.store, partition=partition, within=span)
    return found.rows, found.numbers


def unlike(hands: Hands, cut: Cut, *, count_max: int = 100) -> list[int]:
    return hands.target.unlike(loaded(hands), cut, ORIGIN, count_max=count_max)


def test_a_census_counts_rows_and_the_numbers_they_have(hands: Hands, blocks: Blocks):
    blocks.commit(some(6))
    hands.target.fit(SHAPE, CLAIM)
    assert census(hands, 0, 9) == (0, 0)
    send(hands, cut_of(blocks, 0, 6))
    hands.add([2, 3], store=ORIGIN.store)
    hands.add([4], store="another")
    hands.add([5], store=ORIGIN.store, partition="other")
    assert census(hands, 0, 6) == (8, 6)
    assert census(hands, 2, 4) == (3, 2)
    assert census(hands, 0, 6, partition="other") == (1, 1)


def test_rows_that_the_target_has_as_they_are_here_are_not_unlike(hands: Hands, blocks: Blocks):
    blocks.commit([*some(4), {"id": None, "name": None}])
    hands.target.fit(SHAPE, CLAIM)
    send(hands, cut_of(blocks, 0, 5))
    hands.compact()
    assert unlike(hands, cut_of(blocks, 0, 5)) == []


def test_rows_that_are_lost_or_altered_there_are_unlike(hands: Hands, blocks: Blocks):
    blocks.commit(some(6))
    hands.target.fit(SHAPE, CLAIM)
    send(hands, cut_of(blocks, 0, 6))
    hands.delete(SequenceRange(1, 3))
    hands.add([3], store=ORIGIN.store)  # a row of that number, with other values
    assert unlike(hands, cut_of(blocks, 0, 6)) == [2, 3]
    assert unlike(hands, cut_of(blocks, 0, 6), count_max=1) == [2]
    assert unlike(hands, cut_of(blocks, 0, 6, without=frozenset({2, 3}))) == []
    assert unlike(hands, cut_of(blocks, 3, 6)) == []


def test_rows_of_before_a_column_was_widened_are_not_unlike(hands: Hands, blocks: Blocks):
    blocks.commit(some(3))
    wide = Schema.declare({"id": "long", "name": "string", "later": "string"})
    hands.target.fit(SHAPE, CLAIM)
    send(hands, cut_of(blocks, 0, 3))
    blocks.lake.ensure(blocks.table, wide)
    assert unlike(hands, cut_of(blocks, 0, 3, columns=wide)) == []
