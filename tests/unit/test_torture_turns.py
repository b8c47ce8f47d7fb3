"""Fault points are dealt in turn, so that a long run dies at each of them."""

from __future__ import annotations

import random

from floodmark import faults
from floodmark.torture.daemons import FAULTS, Turns


def dealt(turns: Turns) -> str:
    point, _, times = turns.next().partition(":")
    assert times in {"1", "2"}
    return point


def test_every_point_is_dealt_before_one_comes_again() -> None:
    turns = Turns(FAULTS, random.Random(1))
    first = [dealt(turns) for _ in FAULTS]
    assert sorted(first) == sorted(FAULTS)
    assert [dealt(turns) for _ in FAULTS] == first  # nothing has died at any of them


def test_a_point_that_was_reached_waits_until_all_others_are() -> None:
    turns = Turns(("a", "b", "c"), random.Random(1))
    first = dealt(turns)
    turns.reached(first)
    others = [dealt(turns) for _ in range(4)]
    assert first not in others
    for point in set(others):
        turns.reached(point)
    assert dealt(turns) == first


def test_a_daemon_dies_at_every_instant_of_a_flush_and_a_delivery_that_it_reaches() -> None:
    own = {point for point in faults.POINTS if point.startswith(("flush.", "delivery."))}
    assert own - set(FAULTS) == {"flush.released", "delivery.split", "delivery.given_up", "delivery.replayed"}
    assert set(FAULTS) <= set(faults.POINTS)
