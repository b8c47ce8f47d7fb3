"""A rebuilder dies at any step, beside flushes in any state: whoever goes on, every row is there once."""

from __future__ import annotations

import pytest
from rebuilding import POINTS, SOME_POINTS, Rebuilding
from worlds import DATASET, dies, interrupted

from floodmark import faults
from floodmark.errors import Retryable
from floodmark.testing import SimulatedCrash


def test_every_step_of_a_rebuild_is_a_fault_point() -> None:
    declared = {point for point in faults.POINTS if point.startswith("rebuild.")}
    assert declared == {*POINTS, "rebuild.cleared", "rebuild.dropped"}


@pytest.mark.parametrize(
    ("point", "power_is_lost"),
    [*((point, False) for point in POINTS), *((point, True) for point in [*SOME_POINTS, "rebuild.switched"])],
)
def test_a_rebuild_that_died_is_ended_by_the_next_one(rebuilding: Rebuilding, point: str, power_is_lost: bool) -> None:
    """U20: the next one takes over, under a name of its own. I7: what was switched to is on the disk."""
    rebuilding.begun()
    assert dies(rebuilding.rebuild, point)
    rebuilding.close()
    if power_is_lost:
        rebuilding.lake.lose_power()
    switched = rebuilding.declared().generation
    report = rebuilding.rebuild()
    assert report.generation == 3
    assert switched == (2 if point == "rebuild.switched" else 1)
    rebuilding.check_all()


@pytest.mark.parametrize("point", POINTS)
def test_flushes_and_exports_go_on_or_wait_after_a_crash(rebuilding: Rebuilding, point: str) -> None:
    rebuilding.begun()
    assert dies(rebuilding.rebuild, point)
    rebuilding.close()
    fenced = rebuilding.declared().fenced
    assert rebuilding.flush() is not fenced
    store = rebuilding.open()
    report = store.export("out")
    assert report.errors == {}, "a sink does not notice"
    assert report.rows == (0 if fenced else 2)
    rebuilding.rebuild()
    rebuilding.check_all()


@pytest.mark.parametrize("point", SOME_POINTS)
def test_dying_again_and_again_at_the_same_point_ends_too(rebuilding: Rebuilding, point: str) -> None:
    rebuilding.begun()
    for _ in range(3):
        dies(rebuilding.rebuild, point)
        rebuilding.close()
        rebuilding.flush()
    rebuilding.rebuild()
    rebuilding.check_all()
    assert sum(state == "current" for state in rebuilding.generations().values()) == 1
    assert "staging" not in rebuilding.generations().values()


@pytest.mark.parametrize("time", [1, 2, 3])
def test_a_copy_that_landed_before_the_crash_is_not_copied_again(rebuilding: Rebuilding, time: int) -> None:
    """It goes on after the highest number in the staging table."""
    rebuilding.begun()
    assert dies(rebuilding.rebuild, "rebuild.copied", time=time)
    rebuilding.close()
    report = rebuilding.rebuild()
    assert report.copies == 3 - time
    assert report.buckets_repaired == 0
    rebuilding.check_all()


@pytest.mark.parametrize("point", SOME_POINTS)
@pytest.mark.parametrize("fate", ["lose_answer", "hold"])
def test_a_flush_whose_outcome_is_not_known_is_settled_rightly(rebuilding: Rebuilding, point: str, fate: str) -> None:
    """U22, I4: by the table that it was sent to, under whatever name; a late request finds no table of the old name."""
    rebuilding.begun()
    store = rebuilding.open()
    rebuilding.capture(store, 2)
    rebuilding.lake.on_append = lambda _: fate
    assert dies(lambda: store.flush(DATASET), "flush.appended")
    rebuilding.lake.on_append = None
    with interrupted(**{point.replace(".", "__"): rebuilding.lake.deliver_held}):
        rebuilding.rebuild()
    rebuilding.lake.deliver_held()
    rebuilding.check_all()


@pytest.mark.parametrize("point", SOME_POINTS)
@pytest.mark.parametrize("fate", ["lose_answer", "hold"])
def test_both_die_and_the_append_arrives_afterwards(rebuilding: Rebuilding, point: str, fate: str) -> None:
    """U22: a fence that stands only in the records makes no block void."""
    rebuilding.begun()
    store = rebuilding.open()
    rebuilding.capture(store, 2)
    rebuilding.lake.on_append = lambda _: fate
    assert dies(lambda: store.flush(DATASET), "flush.appended")
    rebuilding.lake.on_append = None
    assert dies(rebuilding.rebuild, point)
    rebuilding.close()
    for held in (False, True):
        if held:
            rebuilding.lake.deliver_held()
        rebuilding.flush()
        rebuilding.close()
    rebuilding.rebuild()
    rebuilding.check_all()


@pytest.mark.parametrize("point", ["flush.base_loaded", "flush.reserved", "flush.appending", "flush.appended"])
def test_a_whole_rebuild_in_the_middle_of_a_flush(rebuilding: Rebuilding, point: str) -> None:
    """I4: the flush finds its block decided, or is told to come again; nothing is sent to a table that is made anew."""
    rebuilding.begun()
    store = rebuilding.open()
    rebuilding.capture(store, 2)
    try:
        with interrupted(**{point.replace(".", "__"): rebuilding.rebuild}):
            store.flush(DATASET)
    except Retryable:
        pass
    except SimulatedCrash:
        pytest.fail("nobody died")
    assert "events_g1" not in rebuilding.lake.tables
    rebuilding.check_all()


def test_retired_tables_that_were_dropped_before_a_crash_are_forgotten_later(rebuilding: Rebuilding) -> None:
    rebuilding.begun()
    rebuilding.rebuild()
    rebuilding.clock.advance(2 * 86_400)
    assert dies(rebuilding.rebuild, "rebuild.dropped")
    rebuilding.close()
    assert rebuilding.rebuild().removed == (1,)
    assert rebuilding.generations()[1] == "removed"
    rebuilding.check_all()


@pytest.mark.parametrize(("point", "wrong"), [("rebuild.copied", False), ("rebuild.renamed", True)])
def test_fsck_names_a_rebuild_that_nobody_ended(rebuilding: Rebuilding, point: str, wrong: bool) -> None:
    """And takes nothing else for a fault: the table has another name, its rows are all there."""
    rebuilding.begun()
    assert dies(rebuilding.rebuild, point)
    rebuilding.close()
    report = rebuilding.open().fsck(deep=True)
    assert [(item.kind, item.wrong) for item in report.findings] == [("rebuild-unfinished", wrong)]
    rebuilding.rebuild()
    assert rebuilding.open().fsck(deep=True).findings == ()
