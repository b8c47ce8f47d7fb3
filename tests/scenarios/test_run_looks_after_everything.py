"""`floodmark run` leaves nothing to do by hand: snapshots, old rows, old records and orphans go by themselves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

import pytest

from floodmark.config import RunSettings
from floodmark.daemon import loop
from floodmark.delivery.kinds import KINDS
from floodmark.errors import InvalidSetting, Retryable
from floodmark.maintenance import upkeep
from floodmark.maintenance.upkeep import RetentionRule, retention_rule
from floodmark.store import Store
from floodmark.testing import ManualClock, MemoryLake
from scenarios.daemons import Places, Stepped


def settle_with(store: Store, **run: object) -> None:
    store.engine.settings = replace(store.settings, run=replace(store.settings.run, **run))  # type: ignore[arg-type]


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch) -> Places:
    made = Places()
    monkeypatch.setitem(KINDS, "test", made.kind)
    return made


@pytest.fixture
def run(store: Store, clock: ManualClock, places: Places, request: pytest.FixtureRequest) -> Iterator[Stepped]:
    store.add_dataset("m", event_time="at", schema={"n": "long", "at": "timestamp"})
    settle_with(store, flush_seconds=0.5, **getattr(request, "param", {}))
    stepped = Stepped(store, clock)
    yield stepped
    stepped.daemon.ask_to_stop("the test is over")
    stepped.daemon.take(1)
    assert stepped.daemon.run() == loop.DONE


def commit(run: Stepped, number: int) -> None:
    run.store.capture("m", [{"n": number, "at": run.clock.now().isoformat()}])
    run.after(1)
    run.after(1)


def snapshots(lake: MemoryLake) -> int:
    state = lake.load("m_g1")
    assert state is not None
    return len(state.lineage)


def last(run: Stepped, task: str):
    return next(one for one in run.store.status().tasks if (one.task, one.subject) == (task, "m"))


@pytest.mark.parametrize("run", [{"expire_seconds": 20}], indirect=True)
def test_snapshots_do_not_pile_up_however_many_commits_there_are(run: Stepped, lake: MemoryLake) -> None:
    upkeep_settings = replace(run.store.settings.upkeep, snapshots_max=6, snapshots_keep=5)
    run.store.engine.settings = replace(run.store.settings, upkeep=upkeep_settings)
    most = 0
    for number in range(80):
        commit(run, number)
        most = max(most, snapshots(lake))
    assert most < 50, "those that are kept, those of one interval, and those of the first minute"
    assert snapshots(lake) < 30
    assert any("snapshots expired" in text for text in run.said("tended"))


def test_an_expiry_with_nothing_to_expire_sends_nothing_to_the_lake(
    run: Stepped, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit of it would be a snapshot of its own, and Spark would start for it."""
    monkeypatch.setattr(MemoryLake, "expire", None)
    commit(run, 1)
    run.after(61)
    assert last(run, "expire").message == "no snapshots to expire"
    assert run.said("problem") == []


@pytest.mark.parametrize("run", [{"retain": {"m": "1h"}, "retain_seconds": 600}], indirect=True)
def test_old_rows_go_by_the_declared_retention_but_never_one_that_a_sink_needs(run: Stepped, places: Places) -> None:
    def away() -> None:
        raise Retryable("closed")

    run.store.add_sink("out", "test", url="a")
    for number in range(3):
        commit(run, number)
    places.on_deliver["a"] = away
    for number in range(3, 5):
        commit(run, number)
    run.after(4000)
    assert run.store.status().datasets[0].rows == 2
    assert last(run, "retain").message == "3 rows removed (1h); out still needs 2 old rows"

    places.on_deliver.clear()
    run.after(400)
    run.after(700)
    assert places.rows["a"] == [0, 1, 2, 3, 4]
    assert run.store.status().datasets[0].rows == 0
    assert last(run, "retain").message.startswith("2 rows removed")


def test_old_records_are_folded_and_orphans_removed_at_their_intervals(run: Stepped) -> None:
    for number in range(108):
        commit(run, number)
    run.after(700)
    run.after(700)
    assert last(run, "fold").failures == 0
    assert any(text.startswith("fold of m: ") for text in run.said("tended"))
    assert last(run, "orphans").message == "0 orphan files removed"
    before = last(run, "orphans").ended_at
    run.after(3600)
    assert last(run, "orphans").ended_at == before, "once a day"
    run.after(86_400)
    assert last(run, "orphans").ended_at > before


@pytest.mark.parametrize("run", [{"expire": False, "fold": False, "orphans": False, "compact": False}], indirect=True)
def test_what_is_switched_off_is_not_done(run: Stepped, lake: MemoryLake) -> None:
    for number in range(30):
        commit(run, number)
    run.after(100_000)
    assert run.store.status().tasks == ()
    assert snapshots(lake) == 30


def test_a_task_that_cannot_go_on_says_so_until_it_can(run: Stepped, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object, **__: object) -> None:
        raise Retryable("The control database is busy.", hint="Wait.")

    commit(run, 1)
    with monkeypatch.context() as patch:
        patch.setattr(upkeep, "fold_dataset", away)
        run.after(61)
        run.after(61)
        run.after(61)
        found = last(run, "fold")
        assert found.failures >= 2
        assert found.failing_since is not None
        assert found.failing_since < found.ended_at
        assert found.message == "The control database is busy. Wait."
        assert run.said("problem") == ["fold of m: The control database is busy. Wait. Next try in 30 s."], "one line"
    run.after(301)
    assert last(run, "fold").failures == 0
    assert run.said("recovered") == ["fold of m: recovered"]


def test_a_compaction_says_how_many_files_it_joined(run: Stepped) -> None:
    for number in range(12):
        commit(run, number)
    run.after(601)
    assert last(run, "compact").message == "12 files joined into 1"
    assert last(run, "compact").details["files_before"] == 12


def test_a_restart_does_not_begin_all_tasks_again(run: Stepped, clock: ManualClock) -> None:
    commit(run, 1)
    for _ in range(4):
        run.after(61)
    ended = {one.task: one.ended_at for one in run.store.status().tasks}
    assert set(ended) == {"expire", "fold", "orphans"}
    again = Stepped(run.store, clock)
    again.settle()
    again.after(61)
    now = {one.task: one.ended_at for one in run.store.status().tasks}
    assert now["orphans"] == ended["orphans"]
    assert now["fold"] == ended["fold"]


def test_what_is_left_of_a_dataset_that_was_removed_is_not_shown(run: Stepped) -> None:
    upkeep.record(run.store.engine, upkeep.TaskReport("fold", "gone", "done"), task="fold", dataset="gone")
    assert run.store.status().tasks == ()


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("30d", RetentionRule("30d")),
        (" 12h ", RetentionRule("12h")),
        ("30d ingest", RetentionRule("30d", "ingest_time")),
        ("1000 rows", RetentionRule(keep_rows=1000)),
    ],
)
def test_a_retention_is_an_age_or_a_number_of_rows(text: str, rule: RetentionRule) -> None:
    assert retention_rule("m", text) == rule


@pytest.mark.parametrize("text", ["", "30", "30 days", "0d", "rows", "0 rows", "30d event", "-1d"])
def test_what_is_no_retention_is_refused_when_the_process_starts(store: Store, text: str) -> None:
    settle_with(store, retain={"m": text})
    with pytest.raises(InvalidSetting, match=r"run\.retain\.m is"):
        loop.Daemon(store, lambda event: None)


def test_every_task_has_an_interval_and_a_switch() -> None:
    everything = RunSettings(retain={"m": "1d"})
    assert set(upkeep.intervals(everything, "m")) == {upkeep.EXPIRE, upkeep.RETAIN, upkeep.FOLD, upkeep.ORPHANS}
    off = RunSettings(expire=False, fold=False, orphans=False)
    assert upkeep.intervals(off, "m") == {}
    assert timedelta(seconds=upkeep.intervals(everything, "m")["orphans"]) == timedelta(days=1)
