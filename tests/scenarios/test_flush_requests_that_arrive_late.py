"""An append may fail, time out, land late, or land unnoticed: the table decides, and exactly one lands."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from worlds import DATASET, TABLE, World, dies

from floodmark import faults
from floodmark.commit.protocol import Append, TableState
from floodmark.errors import Retryable
from floodmark.lake.table import AppendRefused
from floodmark.testing import MemoryLake

INSTANTS = ["flush.base_loaded", "flush.reserved", "flush.appending", "flush.appended", "flush.decided"]
LATER = [*INSTANTS, "flush.synced", "flush.recorded", "flush.segment_removed", "flush.released"]


@pytest.fixture
def world(quick_path: Path) -> Iterator[World]:
    made = World.make(quick_path / "store")
    yield made
    made.close()


def only_first(fate: str) -> Callable[[Append], str]:
    """The first request meets a fate, the later ones land."""
    fates = iter([fate])
    return lambda request: next(fates, "land")


def test_a_request_whose_answer_is_lost_is_found_in_the_table(world: World) -> None:
    """I4: a time-out is not a verdict; the block is recorded, not sent again."""
    world.lake.on_append = only_first("lose_answer")
    store = world.open()
    world.capture(store)
    report = store.flush(DATASET)
    assert (report.rows, report.blocks) == (3, 1)
    assert len(world.lake.load(TABLE).lineage) == 1
    world.check()


def test_a_request_that_was_lost_is_sent_again_with_the_same_numbers(world: World) -> None:
    world.lake.on_append = only_first("drop")
    store = world.open()
    world.capture(store)
    assert str(store.flush(DATASET).block) == "(0, 3]"
    world.check()


def test_a_false_conflict_is_no_verdict(world: World) -> None:
    """I4: the first request landed, and a client that repeated it inside reported a conflict with itself."""
    appended = world.lake.append

    def conflict_with_itself(request: Append) -> bool:
        appended(request)
        raise AppendRefused("found conflicting files")

    world.lake = _Wrapped(world.lake, append=conflict_with_itself)
    store = world.open()
    world.capture(store)
    assert store.flush(DATASET).rows == 3
    world.check()


def test_a_conflict_without_another_append_is_no_verdict_either(world: World) -> None:
    """Nothing landed, nothing came first: the same block is sent again, and its segments are not released."""
    refusals = iter([AppendRefused("found conflicting files")] * 2)
    appended = world.lake.append

    def refused_at_first(request: Append) -> bool:
        for error in refusals:
            raise error
        return appended(request)

    world.lake = _Wrapped(world.lake, append=refused_at_first)
    store = world.open()
    world.capture(store)
    assert str(store.flush(DATASET).block) == "(0, 3]"
    world.check()


@pytest.mark.parametrize("instant", LATER)
@pytest.mark.parametrize("passes", [1, 2])
def test_a_late_request_may_arrive_at_any_later_instant(world: World, instant: str, passes: int) -> None:
    """I4: before the verdict, after the retry, after the record: of the request and its retry exactly one lands."""
    world.committed(1)
    world.lake.on_append = only_first("hold")
    store = world.open()
    world.capture(store)
    faults.arm(instant, faults.nth_time(passes, world.lake.deliver_held))
    store.flush(DATASET)
    faults.disarm_all()
    world.lake.deliver_held()
    world.capture(store)
    world.check()


@pytest.mark.parametrize("instant", LATER)
def test_a_late_request_of_a_dead_process_may_arrive_at_any_instant_of_the_recovery(world: World, instant: str) -> None:
    """Its client gave up and died; another process settles its block meanwhile."""
    world.committed(1)
    world.lake.on_append = only_first("hold")
    first = world.open()
    world.capture(first)
    assert dies(lambda: first.flush(DATASET), at="flush.appended")
    world.close()
    second = world.open()
    world.capture(second)
    faults.arm(instant, faults.nth_time(1, world.lake.deliver_held))
    second.flush(DATASET)
    faults.disarm_all()
    world.lake.deliver_held()
    world.check()


def test_a_request_that_arrives_after_its_block_was_void_is_refused(world: World) -> None:
    """I2: the rows went with a later block; the old one finds that block in its way."""
    world.committed(1)
    slow, fast = world.open(), world.open()
    world.lake.on_append = only_first("hold")
    world.capture(slow)

    def overtake() -> None:
        faults.disarm_all()
        fast.flush(DATASET)  # its request is the one that is held; it is sent again and lands
        world.capture(fast)
        fast.seal(DATASET)

    faults.arm("flush.base_loaded", overtake)
    slow.flush(DATASET)
    states = [block.state for block in world.blocks(slow)]
    assert states == ["committed", "committed", "void", "committed"]
    assert world.lake.deliver_held() == [False]
    world.check()


def test_a_late_request_waits_out_a_compaction(world: World) -> None:
    """Compaction after the base neither voids the block nor hides it."""
    world.committed(2)
    world.committed(2)
    world.lake.on_append = only_first("hold")
    first = world.open()
    world.capture(first)
    assert dies(lambda: first.flush(DATASET), at="flush.appended")
    world.compact()
    assert world.lake.deliver_held() == [True]
    world.compact()
    world.check()


def test_requests_that_never_arrive_leave_the_block_to_the_next_flush(world: World) -> None:
    """Nothing moves, the error says so, and the same numbers are sent again later."""
    world.lake.on_append = lambda request: "drop"
    store = world.open()
    world.capture(store)
    with pytest.raises(Retryable, match="safe in the spool"):
        store.flush(DATASET)
    assert [block.state for block in world.blocks(store)] == ["reserved"]
    assert len(world.segment_files()) == 1
    world.lake.on_append = None
    assert str(world.open().flush(DATASET).block) == "(0, 3]"
    world.check()


def test_every_repetition_may_be_late(world: World) -> None:
    """All of three requests for one block are under way at once: the first to arrive wins."""
    world.lake.on_append = lambda request: "hold"
    store = world.open()
    world.capture(store)
    with pytest.raises(Retryable):
        store.flush(DATASET)
    world.lake.on_append = None
    assert sorted(world.lake.deliver_held()) == [False, False, True]
    world.check()


# ── the verdict comes from one load ──────────────────────────────────────────────────────────────────────────────────


class _Wrapped:
    """A lake with some of its methods replaced."""

    def __init__(self, lake: MemoryLake, **methods: Any) -> None:
        self._lake = lake
        self._methods = methods

    def __getattr__(self, name: str) -> Any:
        return self._methods[name] if name in self._methods else getattr(self._lake, name)


@pytest.mark.parametrize("operation", ["load", "has_rows", "highest_seq", "figures", "sync", "ensure", "append"])
@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("time", [1, 2, 3])
def test_a_request_that_lands_between_two_looks_is_never_void(
    world: World, operation: str, moment: str, time: int
) -> None:
    """I4: whatever is asked of the lake, a late request may land right before or after; it is seen or sent again."""
    world.committed(1)
    world.lake.on_append = only_first("hold")
    first = world.open()
    world.capture(first)
    assert dies(lambda: first.flush(DATASET), at="flush.appended")
    world.close()
    lake = world.lake
    deliver = faults.nth_time(time, lake.deliver_held)

    def with_delivery(*arguments: Any, **named: Any) -> Any:
        if moment == "before":
            deliver()
        answer = getattr(lake, operation)(*arguments, **named)
        if moment == "after":
            deliver()
        return answer

    world.lake = _Wrapped(lake, **{operation: with_delivery})
    second = world.open()
    world.capture(second)
    second.flush(DATASET)
    world.close()
    world.lake = lake
    lake.deliver_held()
    world.check()


def test_a_verdict_from_two_loads_would_double_rows(world: World) -> None:
    """The test above can fail: this lake answers with history from one load and the head from the next."""
    world.committed(1)
    world.lake.on_append = only_first("hold")
    first = world.open()
    world.capture(first)
    assert dies(lambda: first.flush(DATASET), at="flush.appended")
    world.close()
    lake = world.lake

    def mixed(table: str) -> TableState | None:
        old = lake.load(table)
        landed = lake.deliver_held()
        if landed == [True]:
            new = lake.load(table)
            foreign = [_anonymous(snapshot) for snapshot in new.lineage[: -len(old.lineage)]]
            return TableState(old.name, old.uuid, (*foreign, *old.lineage), old.columns, old.max_seq)
        return lake.load(table)

    world.lake = _Wrapped(lake, load=mixed, has_rows=lambda *_, **__: False)
    second = world.open()
    second.engine.recovered.numbers_raised = True
    second.engine.recovered.datasets.add(DATASET)
    second.flush(DATASET)
    world.close()
    world.lake = lake
    with pytest.raises(AssertionError):
        world.check()


def _anonymous(snapshot: Any) -> Any:
    from dataclasses import replace

    return replace(snapshot, block=None)
