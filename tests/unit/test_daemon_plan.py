"""What is due: decided from looks and outcomes alone, without threads, files or sleeping."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floodmark.commit.flush import FlushReport
from floodmark.config import RunSettings
from floodmark.control.sinks import Sink
from floodmark.daemon.plan import (
    COMMIT_SECONDS_MIN,
    FLUSHES_AT_ONCE,
    Change,
    Compact,
    DatasetView,
    Export,
    Flush,
    Moment,
    Outcome,
    Plan,
    SinkView,
    StoreView,
    Tend,
    Work,
)
from floodmark.delivery.channel import ExportReport
from floodmark.errors import Corrupt, Paused, Retryable
from floodmark.maintenance.compact import CompactReport, DatasetCompaction, SkippedBucket
from floodmark.maintenance.upkeep import TaskReport
from floodmark.sequence import SequenceRange

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
OFF = {"compact": False, "expire": False, "fold": False, "orphans": False}
RUN = RunSettings(flush_seconds=30, flush_bytes=1000, export_seconds=30, **OFF)
COMPACTING = replace(RUN, compact=True, compact_seconds=600, compact_commits=5)


@dataclass
class Table:
    """A plan with a store beside it that is made of two dictionaries."""

    plan: Plan = field(default_factory=lambda: Plan(RUN))
    seconds: float = 0.0
    datasets: dict[str, DatasetView] = field(default_factory=dict)
    sinks: dict[str, SinkView] = field(default_factory=dict)

    @property
    def now(self) -> Moment:
        return Moment(BEGIN + timedelta(seconds=self.seconds), self.seconds)

    def dataset(self, name: str, *, waiting: int = 0, horizon: int = 0) -> None:
        self.datasets[name] = DatasetView(waiting, horizon)

    def sink(self, name: str, *, ticked: float | None = None, instance: str = "", **given: Any) -> None:
        at = None if ticked is None else BEGIN + timedelta(seconds=ticked)
        view = SinkView(Sink(instance or name, name, "blob", given), self.now.wall, at)
        self.sinks[view.sink.instance] = view

    def look(self) -> list[Change]:
        return self.plan.see(StoreView(dict(self.datasets), list(self.sinks.values())), self.now)

    def due(self, *, after: float = 0) -> list[Work]:
        """Let time pass, look, and begin what is due."""
        self.seconds += after
        self.look()
        works = self.plan.due(self.now)
        for work in works:
            self.plan.began(work, self.now)
        return works

    def end(self, work: Work, *, error: BaseException | None = None, wait: float | None = None) -> None:
        if isinstance(work, Flush):
            report: Any = FlushReport(work.dataset)
        elif isinstance(work, Compact):
            report = CompactReport((DatasetCompaction(work.dataset),))
        else:
            report = ExportReport(work.sink, wait_seconds=wait, errors={} if wait is None else {("m", ""): "no"})
            if wait is None and error is None and work.recorded:
                self.sinks[work.instance] = replace(self.sinks[work.instance], ticked_at=work.slot)
        self.plan.ended(Outcome(work, None if error else report, error), self.now)


@pytest.fixture
def table() -> Table:
    return Table()


def names(works: list[Work]) -> list[str]:
    return [work.sink if isinstance(work, Export) else work.dataset for work in works]


# ── flushing ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_waits_when_the_daemon_starts_is_flushed_at_once(table: Table) -> None:
    table.dataset("m", waiting=1)
    assert table.due() == [Flush("m")]


def test_a_dataset_with_nothing_waiting_is_never_flushed(table: Table) -> None:
    table.dataset("m")
    assert [table.due(after=100) for _ in range(10)] == [[]] * 10


def test_rows_are_flushed_when_they_have_waited_long_enough(table: Table) -> None:
    table.dataset("m")
    table.due()
    table.dataset("m", waiting=1)
    assert table.due(after=1) == []
    assert table.due(after=29) == []
    assert table.due(after=1) == [Flush("m")]


def test_many_bytes_are_flushed_without_waiting(table: Table) -> None:
    table.dataset("m")
    table.due()
    table.dataset("m", waiting=999)
    assert table.due(after=1) == []
    table.dataset("m", waiting=1000)
    assert table.due(after=1) == [Flush("m")]


def test_a_dataset_is_not_flushed_twice_at_once(table: Table) -> None:
    table.dataset("m", waiting=5000)
    (work,) = table.due()
    assert table.due(after=100) == []
    table.end(work)
    assert table.due() == [Flush("m")]


def test_rows_that_came_during_a_flush_have_waited_since_it_began(table: Table) -> None:
    table.dataset("m", waiting=1)
    (work,) = table.due()
    table.seconds += 20
    table.end(work)
    assert table.due() == []
    assert table.due(after=10) == [Flush("m")]


def test_a_failed_flush_is_tried_again_up_the_ladder(table: Table) -> None:
    table.dataset("m", waiting=5000)
    for wait in (30, 60, 120, 300, 300):
        (work,) = table.due()
        table.end(work, error=Retryable("not now"))
        assert table.plan.retry_seconds(work, table.now) == wait
        assert table.due(after=wait - 1) == []
        table.seconds += 1
    (work,) = table.due()
    table.end(work)
    assert table.plan.retry_seconds(work, table.now) is None
    assert table.due() == [Flush("m")]


def test_a_failed_flush_does_not_wait_for_a_long_interval(table: Table) -> None:
    table.plan = Plan(replace(RUN, flush_seconds=3600))
    table.dataset("m", waiting=1)
    (work,) = table.due()
    table.end(work, error=Retryable("not now"))
    assert table.due(after=30) == [Flush("m")]


def test_a_dataset_that_contradicts_itself_is_tried_again_seldom_and_the_others_as_ever(table: Table) -> None:
    """I10"""
    table.dataset("bad", waiting=5000)
    table.dataset("good", waiting=5000)
    bad, good = table.due()
    table.end(bad, error=Corrupt("two truths"))
    table.end(good)
    assert table.due() == [Flush("good")]
    assert table.plan.retry_seconds(bad, table.now) == 300
    assert table.due(after=299) == []
    assert table.due(after=1) == [Flush("bad")]


def test_only_so_many_flushes_run_at_once_and_who_waited_longest_comes_first(table: Table) -> None:
    for number in range(FLUSHES_AT_ONCE + 2):
        table.dataset(f"m{number}", waiting=1)
    first = table.due()
    assert len(first) == FLUSHES_AT_ONCE
    table.dataset("new", waiting=5000)
    assert table.due(after=1) == []
    for work in first:
        table.end(work)
    assert names(table.due()) == [f"m{FLUSHES_AT_ONCE}", f"m{FLUSHES_AT_ONCE + 1}", "new"]


# ── sinks ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_sink_without_a_schedule_is_due_at_the_start_and_at_equal_intervals(table: Table) -> None:
    table.sink("s")
    (work,) = table.due()
    assert work == Export("s", "s", BEGIN, recorded=False)
    table.end(work)
    assert table.due(after=29) == []
    assert names(table.due(after=1)) == ["s"]


def test_new_rows_wake_the_sinks_that_take_them_and_have_no_schedule_of_their_own(table: Table) -> None:
    table.dataset("m")
    table.sink("plain")
    table.sink("other", datasets=["n"])
    table.sink("hourly", every="1h")
    table.sink("nightly", cron="0 2 * * *")
    for work in table.due():
        table.end(work)
    assert table.due(after=1) == []
    table.dataset("m", horizon=5)
    works = table.due(after=1)
    assert names(works) == ["plain"]
    table.end(works[0])
    assert table.due(after=1) == []


def test_rows_that_come_during_a_tick_wake_the_sink_once_more(table: Table) -> None:
    table.dataset("m")
    table.sink("s")
    (work,) = table.due()
    table.dataset("m", horizon=5)
    assert table.due(after=1) == []
    table.end(work)
    assert names(table.due()) == ["s"]


def test_a_sink_has_never_two_ticks_at_once(table: Table) -> None:
    table.sink("s", every="1s")
    (work,) = table.due()
    assert table.due(after=1000) == []
    table.end(work)
    assert len(table.due()) == 1


def test_a_cron_sink_waits_for_its_first_slot_after_it_was_added(table: Table) -> None:
    table.sink("nightly", cron="0 2 * * *")
    assert table.due() == []
    assert table.due(after=2 * 3600 - 1) == []
    assert table.due(after=1) == [Export("nightly", "nightly", BEGIN + timedelta(hours=2), recorded=True)]


def test_slots_that_were_missed_while_no_daemon_ran_are_caught_up_once(table: Table) -> None:
    table.seconds = 3 * 86_400
    table.sink("nightly", cron="0 2 * * *", ticked=2 * 3600)
    table.sink("hourly", every="1h", ticked=0)
    works = table.due()
    assert names(works) == ["nightly", "hourly"]
    for work in works:
        table.end(work)
    assert table.due() == []
    assert table.sinks["nightly"].ticked_at == BEGIN + timedelta(days=2, hours=2)


def test_a_slot_whose_tick_failed_is_tried_again_and_not_left_to_the_next_night(table: Table) -> None:
    table.sink("nightly", cron="0 2 * * *", ticked=0)
    (work,) = table.due(after=2 * 3600)
    table.end(work, wait=30)
    assert table.due(after=29) == []
    (again,) = table.due(after=1)
    assert again == work
    table.end(again)
    assert table.due(after=3600) == []


def test_the_wait_that_a_destination_asks_for_is_kept_whatever_is_due_or_new(table: Table) -> None:
    table.dataset("m")
    table.sink("s")
    (work,) = table.due()
    table.end(work, wait=600)
    table.dataset("m", horizon=7)
    assert table.due(after=599) == []
    assert names(table.due(after=1)) == ["s"]


def test_an_error_that_nobody_expected_is_tried_again_up_the_ladder(table: Table) -> None:
    table.sink("s")
    for wait in (30, 60, 120, 300):
        (work,) = table.due()
        table.end(work, error=ZeroDivisionError("surprise"))
        assert table.plan.retry_seconds(work, table.now) == wait
        table.seconds += wait


def test_new_settings_end_a_wait(table: Table) -> None:
    table.sink("s", url="file:///wrong")
    (work,) = table.due()
    table.end(work, wait=300)
    table.sink("s", url="file:///right")
    assert names(table.due(after=1)) == ["s"]


def test_what_comes_goes_and_changes_is_noticed_once(table: Table) -> None:
    table.dataset("m")
    table.sink("s")
    assert table.look() == []
    table.dataset("n")
    table.sink("t")
    table.sink("s", every="1h")
    assert table.look() == [
        Change("dataset", "n", "added"),
        Change("sink", "s", "changed", "s"),
        Change("sink", "t", "added", "t"),
    ]
    assert table.look() == []
    del table.sinks["s"]
    assert table.look() == [Change("sink", "s", "removed", "s")]
    assert table.look() == []


def test_a_sink_that_is_removed_and_added_again_is_another_one(table: Table) -> None:
    table.sink("s", instance="old")
    (old,) = table.due()
    del table.sinks["old"]
    table.sink("s", instance="new")
    (new,) = table.due()
    assert (old.instance, new.instance) == ("old", "new")
    table.end(old)  # comes late, and is nobody's any more
    assert table.plan.sinks["new"].busy


def test_a_change_of_schedule_applies_at_once(table: Table) -> None:
    table.sink("s", every="1d", ticked=0)
    assert table.due(after=3600) == []
    table.sink("s", every="1h", ticked=0)
    assert names(table.due()) == ["s"]


# ── all of it at once ────────────────────────────────────────────────────────────────────────────────────────────────

schedules = st.sampled_from([{}, {"every": "45s"}, {"every": "1h"}, {"cron": "*/5 * * * *"}, {"cron": "0 2 * * *"}])
steps = st.lists(
    st.tuples(
        st.sampled_from(["pass", "pass", "rows", "end", "end", "fail", "restart", "add", "remove"]),
        st.integers(0, 7200),
        schedules,
    ),
    max_size=60,
)


@given(steps)
@settings(max_examples=100)
def test_whatever_happens_work_is_never_doubled_and_never_forgotten(
    steps: list[tuple[str, int, dict[str, str]]],
) -> None:
    """Through failures, restarts, and sinks that come and go: in the end everything was flushed and every slot run."""
    table = Table()
    table.dataset("m", waiting=1)
    running: list[Work] = []

    def began(works: list[Work]) -> None:
        for work in works:
            keys = [(type(item), item.dataset if isinstance(item, Flush) else item.instance) for item in running]
            assert (type(work), work.dataset if isinstance(work, Flush) else work.instance) not in keys
            running.append(work)

    def finish(work: Work, **how: Any) -> None:
        if isinstance(work, Flush) and not how:
            table.dataset("m", horizon=table.datasets["m"].horizon + 1)
        if isinstance(work, Export) and work.instance not in table.sinks:
            table.plan.ended(Outcome(work, ExportReport(work.sink)), table.now)
        else:
            table.end(work, **how)

    for number, (what, amount, schedule) in enumerate(steps):
        if what == "pass":
            table.seconds += amount
        elif what == "rows":
            table.dataset("m", waiting=amount, horizon=table.datasets["m"].horizon)
        elif what == "end" and running:
            finish(running.pop(amount % len(running)))
        elif what == "fail" and running:
            finish(running.pop(amount % len(running)), error=Retryable("no"))
        elif what == "restart":
            table.plan, running = Plan(RUN), []
        elif what == "add":
            table.sink(f"s{number}", **schedule)
        elif what == "remove" and table.sinks:
            table.sinks.pop(sorted(table.sinks)[amount % len(table.sinks)])
        began(table.due())

    for _ in range(10):  # from here on everything gets through
        while running:
            finish(running.pop())
        began(table.due(after=300))
    while running:
        finish(running.pop())
        began(table.due())
    assert table.datasets["m"].waiting_bytes == 0
    for view in table.sinks.values():
        if "cron" in view.sink.settings:
            done = view.ticked_at or view.created_at
            following = table.plan.sinks[view.sink.instance].schedule.following(done)
            assert following is not None
            assert following > table.now.wall, "a slot was forgotten"


# ── a commit a second ────────────────────────────────────────────────────────────────────────────────────────────────


def test_however_short_rows_may_wait_commits_are_about_a_second_apart(table: Table) -> None:
    table.plan = Plan(replace(RUN, flush_seconds=0.25))
    table.dataset("m", waiting=1)
    begun = []
    for _ in range(40):
        for work in table.due(after=0.125):
            begun.append(table.seconds)
            table.end(work)
    apart = [later - earlier for earlier, later in itertools.pairwise(begun)]
    assert all(COMMIT_SECONDS_MIN <= seconds < COMMIT_SECONDS_MIN + 0.125 for seconds in apart)
    assert len(apart) > 3


def test_rows_that_come_after_a_quiet_time_are_flushed_at_once(table: Table) -> None:
    table.plan = Plan(replace(RUN, flush_seconds=0.25))
    table.dataset("m")
    table.due(after=10)
    table.dataset("m", waiting=1)
    assert table.due(after=0.125) == []
    assert table.due(after=0.25) == [Flush("m")]


def test_many_bytes_do_not_wait_for_the_next_second(table: Table) -> None:
    table.plan = Plan(replace(RUN, flush_seconds=0.25))
    table.dataset("m", waiting=5000)
    (work,) = table.due()
    table.end(work)
    assert table.due(after=0.125) == [Flush("m")]


# ── compaction ───────────────────────────────────────────────────────────────────────────────────────────────────────


def committed(table: Table, name: str, times: int) -> list[Work]:
    """Let a dataset's horizon rise so often; what is due after the last time."""
    works: list[Work] = []
    for _ in range(times):
        table.dataset(name, horizon=table.datasets[name].horizon + 1)
        works = table.due(after=1)
    return works


def test_a_dataset_is_compacted_after_so_many_commits(table: Table) -> None:
    table.plan = Plan(COMPACTING)
    table.dataset("m")
    table.due()
    assert committed(table, "m", 4) == []
    assert committed(table, "m", 1) == [Compact("m")]


def test_a_dataset_with_fewer_commits_is_compacted_after_a_while(table: Table) -> None:
    table.plan = Plan(COMPACTING)
    table.dataset("m", horizon=7)
    table.due()
    assert table.due(after=6000) == []  # nothing has changed: nothing is looked at
    assert committed(table, "m", 1) == []
    assert table.due(after=599) == []
    (work,) = table.due(after=1)
    assert work == Compact("m")
    table.end(work)
    assert table.due(after=6000) == []


def test_compaction_can_be_switched_off(table: Table) -> None:
    table.dataset("m", horizon=7)
    table.due()
    assert committed(table, "m", 50) == []


def test_one_dataset_is_compacted_at_a_time_and_the_one_with_most_commits_first(table: Table) -> None:
    table.plan = Plan(replace(COMPACTING, compact_commits=2, compact_seconds=3600))
    for name in ("a", "b"):
        table.dataset(name)
    table.due()
    committed(table, "a", 1)
    committed(table, "b", 1)
    table.dataset("a", horizon=2)
    table.dataset("b", horizon=3)
    works = table.due(after=1)
    assert len(works) == 1
    assert committed(table, "b", 1) == []
    table.end(works[0])
    assert names(table.due(after=1)) == [{"a": "b", "b": "a"}[names(works)[0]]]


def test_a_compaction_delays_no_flush(table: Table) -> None:
    table.plan = Plan(replace(COMPACTING, compact_commits=1))
    table.dataset("m")
    table.due()
    assert committed(table, "m", 1) == [Compact("m")]
    table.dataset("m", waiting=5000, horizon=1)
    assert table.due(after=1) == [Flush("m")]


def test_commits_during_a_compaction_are_for_the_next_one(table: Table) -> None:
    table.plan = Plan(replace(COMPACTING, compact_commits=2))
    table.dataset("m")
    table.due()
    (work,) = committed(table, "m", 2)
    committed(table, "m", 1)
    table.end(work)
    assert table.due(after=1) == []
    assert committed(table, "m", 1) == [Compact("m")]


@pytest.mark.parametrize("how", ["error", "report"])
def test_a_compaction_that_failed_is_tried_again_up_the_ladder(table: Table, how: str) -> None:
    table.plan = Plan(replace(COMPACTING, compact_commits=1))
    table.dataset("m")
    table.due()
    (work,) = committed(table, "m", 1)
    unsound = DatasetCompaction("m", failed=(SkippedBucket(SequenceRange(0, 1), 2, 2, "no room"),))
    for wait in (30, 60):
        if how == "error":
            table.end(work, error=Retryable("not now"))
        else:
            table.plan.ended(Outcome(work, CompactReport((unsound,))), table.now)
        assert table.due(after=wait - 1) == []
        assert table.due(after=1) == [Compact("m")]


def test_a_dataset_that_is_removed_while_it_is_compacted_is_forgotten_afterwards(table: Table) -> None:
    table.plan = Plan(replace(COMPACTING, compact_commits=1))
    table.dataset("m")
    table.due()
    (work,) = committed(table, "m", 1)
    del table.datasets["m"]
    assert table.look() == []
    table.end(work)
    assert table.look() == [Change("dataset", "m", "removed")]


# ── the other tasks ──────────────────────────────────────────────────────────────────────────────────────────────────

TENDING = replace(RUN, expire=True, expire_seconds=100, fold=True, fold_seconds=1000)
EXPIRE = Tend("expire", "m")


def tasks(table: Table, *, after: float = 0) -> list[Work]:
    """Let time pass and look: what is due, without beginning it."""
    table.seconds += after
    table.look()
    return [work for work in table.plan.due(table.now) if isinstance(work, Tend)]


def test_a_task_without_a_result_is_due_a_minute_after_its_dataset_was_seen(table: Table) -> None:
    """Rows come first: a process that starts commits and delivers what waits."""
    table.plan = Plan(TENDING)
    table.dataset("m", horizon=5)
    assert tasks(table) == []
    assert tasks(table, after=59) == []
    assert tasks(table, after=1) == [EXPIRE], "one at a time"


def test_a_task_is_due_again_after_its_interval_also_in_another_process(table: Table) -> None:
    table.plan = Plan(TENDING)
    table.datasets["m"] = DatasetView(horizon=5, tended={"expire": table.now.wall, "fold": table.now.wall})
    tasks(table)
    assert tasks(table, after=99) == []
    assert tasks(table, after=1) == [EXPIRE]
    table.plan.began(EXPIRE, table.now)
    assert tasks(table) == []
    table.plan.ended(Outcome(EXPIRE, TaskReport("expire", "m", "done")), table.now)
    table.datasets["m"] = replace(table.datasets["m"], horizon=6)
    assert tasks(table, after=99) == [], "also if its result could not be recorded"
    assert tasks(table, after=1) == [EXPIRE]


def test_what_grows_with_commits_is_not_done_again_without_one(table: Table) -> None:
    table.plan = Plan(TENDING)
    table.dataset("m", horizon=5)
    tasks(table)
    for work in (EXPIRE, Tend("fold", "m")):
        assert tasks(table, after=60) == [work]
        table.plan.began(work, table.now)
        table.plan.ended(Outcome(work, TaskReport(work.task, "m", "done")), table.now)
    assert tasks(table, after=10_000) == []
    table.dataset("m", horizon=6)
    assert len(tasks(table)) == 1


def test_a_dataset_without_rows_and_a_task_that_is_off_need_nothing(table: Table) -> None:
    table.plan = Plan(replace(TENDING, fold=False, retain={"other": "1d"}))
    table.dataset("m")
    tasks(table)
    assert tasks(table, after=10_000) == []
    table.dataset("m", horizon=5)
    assert tasks(table) == [EXPIRE]
    table.plan = Plan(RUN)
    tasks(table)
    assert tasks(table, after=10_000) == []


def test_retention_is_due_only_where_the_settings_name_the_dataset(table: Table) -> None:
    table.plan = Plan(replace(RUN, retain={"m": "30d"}))
    table.dataset("m", horizon=5)
    table.dataset("n", horizon=5)
    tasks(table)
    assert tasks(table, after=60) == [Tend("retain", "m")]


def test_a_task_does_not_begin_beside_a_flush_of_its_dataset_nor_beside_a_compaction(table: Table) -> None:
    table.plan = Plan(TENDING)
    table.dataset("m", horizon=5)
    table.dataset("n", horizon=5)
    tasks(table)
    table.seconds += 60
    table.plan.began(Flush("m"), table.now)
    assert tasks(table) == [Tend("expire", "n")]
    table.plan.began(Compact("n"), table.now)
    assert tasks(table) == []


def test_a_task_that_failed_is_tried_again_up_the_ladder_and_not_after_a_day(table: Table) -> None:
    table.plan = Plan(replace(RUN, orphans=True))
    table.dataset("m", horizon=5)
    tasks(table)
    (work,) = tasks(table, after=60)
    table.plan.began(work, table.now)
    table.plan.ended(Outcome(work, error=Retryable("The catalog is away.")), table.now)
    table.datasets["m"] = DatasetView(horizon=5, tended={"orphans": table.now.wall})
    assert tasks(table, after=29) == []
    assert tasks(table, after=1) == [work]


# ── pauses ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_nothing_is_done_for_what_is_paused_and_everything_once_it_is_resumed() -> None:
    table = Table(Plan(COMPACTING))
    table.datasets["m"] = DatasetView(waiting_bytes=10_000, horizon=1, paused=True)
    table.sink("s")
    table.sinks["s"] = replace(table.sinks["s"], sink=replace(table.sinks["s"].sink, paused_at=BEGIN.isoformat()))
    for horizon in range(2, 20):  # commits that were recorded by others
        table.datasets["m"] = replace(table.datasets["m"], horizon=horizon)
        assert table.due(after=100) == []
    table.datasets["m"] = replace(table.datasets["m"], paused=False)
    table.sinks["s"] = replace(table.sinks["s"], sink=replace(table.sinks["s"].sink, paused_at=None))
    assert {type(work) for work in table.due(after=1)} == {Flush, Compact, Export}


def test_work_that_met_a_pause_is_no_failure(table: Table) -> None:
    table.dataset("m", waiting=1)
    [flush] = table.due()
    table.end(flush, error=Paused("paused"))
    assert table.plan.retry_seconds(flush, table.now) is None
    assert table.due(after=31) == [Flush("m")]
