"""Fault points are dealt in turn, so that a long run dies at each of them; a daemon lives long enough to deliver."""

from __future__ import annotations

import random
from pathlib import Path

from floodmark import faults
from floodmark.torture.daemons import FAULTS, FRUITLESS_MAX, DaemonReports, Life, Turns


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


def test_after_lives_that_delivered_nothing_comes_one_that_lasts_until_it_has(tmp_path: Path) -> None:
    """On a slow machine a JVM takes longer to start than most lives last."""
    chance = random.Random(1)
    before = [Life.planned(chance, fruitless=FRUITLESS_MAX - 1, life_seconds=6.0).manner for _ in range(50)]
    assert set(before) == {"early", "at work", "point"}
    life = Life.planned(chance, fruitless=FRUITLESS_MAX, life_seconds=0.1)
    reports = DaemonReports(tmp_path / "run.jsonl", life_began=-1e9)

    def says(event: str) -> bool:
        with reports.path.open("a") as file:
            file.write(event + "\n")
        reports.listen()
        return life.due(reports)

    assert not says('{"event":"flushed","rows":3}')
    assert not says('{"event":"exported","rows":0}')
    says('{"event":"exported","rows":3}')
    assert reports.life_delivered is not None
    reports.life_delivered -= 1.0
    assert life.due(reports)
    reports.new_life()
    assert reports.life_delivered is None
    assert not life.due(reports)
