"""A sink lost its records after rows of its objects had gone: those objects cannot be compared any more."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from removing import NAME, Aged

from floodmark.testing import kill_store
from scenarios.hubs import forget_deliveries


@pytest.fixture
def world(quick_path: Path) -> Iterator[Aged]:
    made = Aged(quick_path)
    yield made
    kill_store(made.store)


def lose_records(world: Aged) -> None:
    forget_deliveries(world.store)
    world.restart()


@pytest.mark.parametrize("old", [2, 3, 4, 7, 8])
def test_it_goes_on_behind_the_rows_that_are_gone(world: Aged, old: int) -> None:
    """U10: they went because the sink had them, in whole objects; the totals are what they were."""
    world.sink()
    world.flush(*[world.row(id, days=40 if id < old else 1) for id in range(8)])
    world.store.export("out")
    before = world.watermark()
    world.clock.advance(1)
    assert world.store.retain(NAME, older_than="30d").rows == old
    lose_records(world)
    world.flush(world.row(100), world.row(101))
    report = world.store.export("out")
    assert (report.blocked, report.errors) == (None, {})
    assert world.delivered() == [*range(8), 100, 101]
    assert world.watermark().tally.rows == before.tally.rows + 2
    assert world.store.audit("out", deep=True).sound
    assert world.store.export("out").rows == 0


def test_what_went_before_there_was_such_a_sink_proves_nothing(world: Aged) -> None:
    world.flush(*[world.row(id, days=40 if id == 3 else 1) for id in range(5)])
    world.store.retain(NAME, older_than="30d")
    world.clock.advance(1)
    world.sink()
    world.flush(world.row(50))
    world.store.export("out")
    lose_records(world)
    world.flush(world.row(51))
    assert world.store.export("out").blocked is None
    assert world.delivered() == [0, 1, 2, 4, 50, 51]


def test_what_a_sink_was_given_up_for_proves_nothing(world: Aged) -> None:
    world.sink()
    world.flush(world.row(1, days=40), world.row(2, days=1))
    world.store.export("out")
    world.flush(world.row(3, days=1), world.row(4, days=40), world.row(5, days=1))
    world.clock.advance(1)
    assert world.store.retain(NAME, older_than="35d", give_up="out").forfeited
    lose_records(world)
    report = world.store.export("out")
    assert set(world.delivered()) >= {1, 2}
    if report.blocked is None:
        assert world.delivered() == [1, 2, 3, 5]
