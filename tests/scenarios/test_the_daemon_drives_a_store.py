"""`floodmark run`, stepped: what is captured is committed and delivered, whatever fails, hangs, comes or goes."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from engines import set_flush
from floodmark import faults
from floodmark.control import sinks
from floodmark.daemon import loop
from floodmark.daemon.lanes import Lanes
from floodmark.daemon.loop import AlreadyRunning, present, read_store
from floodmark.delivery.kinds import KINDS
from floodmark.delivery.outcomes import Busy
from floodmark.errors import Corrupt, Permanent
from floodmark.maintenance.compact import CompactReport
from floodmark.store import Store
from floodmark.testing import ManualClock, MemoryLake, SimulatedCrash
from scenarios.daemons import PATIENCE_SECONDS, Places, Stepped


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch) -> Places:
    made = Places()
    monkeypatch.setitem(KINDS, "test", made.kind)
    return made


@pytest.fixture
def run(store: Store, clock: ManualClock, places: Places) -> Iterator[Stepped]:
    store.add_dataset("m", schema={"n": "long"})
    stepped = Stepped(store, clock)
    yield stepped
    stepped.daemon.ask_to_stop("the test is over")
    stepped.daemon.take(1)
    assert stepped.daemon.run() == loop.DONE


def capture(store: Store, *numbers: int, dataset: str = "m") -> None:
    store.capture(dataset, [{"n": number} for number in numbers])


def stored(directory: Path) -> list[int]:
    """What a blob sink's objects hold, in the order of their ranges."""
    objects = sorted(directory.rglob("*.parquet"), key=lambda path: int(path.stem.split("-")[0]))
    return [number for path in objects for number in pq.read_table(path)["n"].to_pylist()]


def hold(released: threading.Event) -> Callable[[], None]:
    """A destination that hangs until the test lets go."""

    def wait() -> None:
        assert released.wait(PATIENCE_SECONDS)

    return wait


# ── the ordinary day ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_rows_are_committed_after_a_while_and_delivered_right_after(run: Stepped, places: Places) -> None:
    run.store.add_sink("out", "test", url="a")
    run.settle()
    capture(run.store, 1, 2, 3)

    run.after(1)
    run.after(29)
    assert places.rows["a"] == []
    run.after(1)

    assert places.rows["a"] == [1, 2, 3]
    assert run.said("flushed") == ["dataset m: 3 rows committed, in (0, 3] (0.0 s)"]
    assert run.said("exported") == ["sink out: 3 rows in 2 chunks (0.0 s)"]


def test_rows_that_another_process_flushed_are_delivered_at_the_next_look(run: Stepped, places: Places, reopen) -> None:
    run.store.add_sink("out", "test", url="a")
    run.settle()
    other = reopen()
    capture(other, 1, 2)
    other.flush("m")

    run.after(1)

    assert places.rows["a"] == [1, 2]


def test_a_look_at_a_store_with_nothing_to_do_touches_no_lake_and_starts_nothing(
    run: Stepped, monkeypatch: pytest.MonkeyPatch
) -> None:
    capture(run.store, 1)
    run.settle()
    run.after(run.store.settings.run.compact_seconds)
    for name in ("load", "scan", "append", "ensure"):
        monkeypatch.setattr(MemoryLake, name, None)
    monkeypatch.setattr(Store, "flush", None)
    monkeypatch.setattr(Store, "export", None)
    monkeypatch.setattr(Store, "compact", None)
    told = len(run.events)

    for _ in range(100):
        run.after(10)

    assert run.events[told:] == []


def test_a_look_counts_what_waits_in_landing_files_and_segments(run: Stepped, tmp_path: Path) -> None:
    def waiting() -> int:
        return read_store(run.store.path, run.store.engine.database).datasets["m"].waiting_bytes

    assert waiting() == 0
    capture(run.store, 1, 2)
    landed = sum(path.stat().st_size for path in run.store.path.glob("spool/m/landing/*.jsonl"))
    assert waiting() == landed > 0
    run.store.seal("m")
    sealed = sum(path.stat().st_size for path in run.store.path.glob("spool/m/segments/*.parquet"))
    assert waiting() == sealed > 0
    run.store.flush("m")
    assert waiting() == 0


# ── isolation ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("where", ["on_open", "on_deliver"])
def test_a_destination_that_hangs_holds_up_neither_other_sinks_nor_flushing(
    run: Stepped, places: Places, where: str
) -> None:
    """It does not answer for an hour: everybody else has every row all the same, and it gets its own in the end."""
    released = threading.Event()
    getattr(places, where)["hung"] = hold(released)
    run.store.add_sink("hangs", "test", url="hung")
    run.store.add_sink("works", "test", url="fine")
    wanted: list[int] = []
    for number in range(5):
        capture(run.store, number)
        wanted.append(number)
        run.daemon.step()
        run.clock.advance(31)
        run.until(lambda: places.rows["fine"] == wanted)
    assert places.rows["hung"] == []
    run.until(lambda: [work.sink for work in run.under_way] == ["hangs"])
    run.clock.advance(3600)
    run.until(lambda: run.said("slow") != [])
    run.daemon.step()
    assert [text.rpartition(" for ")[0] for text in run.said("slow")] == ["sink hangs: an export has been running"]

    released.set()
    run.settle()

    assert places.rows["hung"] == wanted


def test_a_sink_that_fails_is_tried_again_up_the_ladder_and_told_once(run: Stepped, places: Places) -> None:
    tries = []

    def unreachable() -> None:
        tries.append(round(run.clock.monotonic_seconds()))
        raise Busy("The hub does not answer.")

    places.on_deliver["a"] = unreachable
    run.store.add_sink("fails", "test", url="a")
    run.store.add_sink("works", "test", url="b")
    capture(run.store, 1)
    run.settle()
    for _ in range(90):
        run.after(10)
    assert tries == [0, 30, 90, 210, 510, 810]
    assert places.rows["b"] == [1]
    assert run.said("problem") == ["sink fails: The hub does not answer. Next try in 30 s."]

    del places.on_deliver["a"]
    run.after(300)

    assert places.rows["a"] == [1]
    assert run.said("recovered") == ["sink fails: recovered"]


def test_the_wait_that_a_destination_asks_for_is_kept(run: Stepped, places: Places) -> None:
    tries = []

    def later() -> None:
        tries.append(run.clock.monotonic_seconds())
        raise Busy("Come back later.", retry_after_seconds=700)

    places.on_deliver["a"] = later
    run.store.add_sink("out", "test", url="a")
    capture(run.store, 1)
    run.settle()
    for _ in range(141):
        run.after(10)
    assert [round(second) for second in tries] == [0, 700, 1400]


def test_a_blocked_sink_is_told_with_its_reason_and_tried_at_once_when_its_settings_change(
    run: Stepped, places: Places
) -> None:
    def wrong() -> None:
        raise Permanent("There is no such bucket.", hint="Make it.")

    places.on_open["wrong"] = wrong
    run.store.add_sink("out", "test", url="wrong")
    capture(run.store, 1)
    run.settle()
    assert run.said("problem") == ["sink out: blocked: There is no such bucket. Make it. Next try in 30 s."]

    del places.on_open["wrong"]
    run.store.change_sink("out", chunk_rows=5)
    run.after(1)

    assert places.rows["wrong"] == [1]
    assert run.said("noticed") == ["sink out was changed"]


def test_an_error_that_nobody_expected_ends_neither_the_daemon_nor_its_lane(run: Stepped, places: Places) -> None:
    def surprise() -> None:
        raise ZeroDivisionError("by nought")

    places.on_deliver["a"] = surprise
    run.store.add_sink("out", "test", url="a")
    capture(run.store, 1)
    run.settle()
    assert run.said("problem") == ["sink out: Unexpected failure (ZeroDivisionError: by nought). Next try in 30 s."]
    del places.on_deliver["a"]
    run.after(30)
    assert places.rows["a"] == [1]


def test_a_look_that_fails_is_told_once_and_repeated_after_a_while(
    run: Stepped, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.store.add_sink("out", "test", url="a")
    capture(run.store, 1)
    looks = []

    def unreadable(*_: object) -> None:
        looks.append(run.clock.monotonic_seconds())
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(loop, "read_store", unreadable)
        for _ in range(200):
            run.after(1)
    assert looks == [1, 2, 4, 8, 16, 32, 64, 128, 192]
    assert len(run.said("problem")) == 1

    run.after(300)

    assert places.rows["a"] == [1]
    assert run.said("recovered") == ["store: recovered"]


def test_a_dataset_that_contradicts_itself_is_tried_again_and_the_rest_goes_on(
    run: Stepped, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.store.add_dataset("bad", schema={"n": "long"})
    run.store.add_sink("out", "test", url="a", datasets=["m"])
    real, flushed = Store.flush, []

    def flush(store: Store, dataset: str, **given: object) -> object:
        flushed.append(dataset)
        if dataset == "bad":
            raise Corrupt("The table refers to files that are not there.", hint="Keep the store as it is.")
        return real(store, dataset, **given)

    monkeypatch.setattr(Store, "flush", flush)
    capture(run.store, 1, dataset="bad")
    capture(run.store, 1)
    run.settle()
    capture(run.store, 2)
    run.after(1)
    run.after(30)
    assert flushed.count("bad") == 1
    run.after(300)

    assert flushed.count("bad") == 2
    assert places.rows["a"] == [1, 2]
    (problem,) = run.said("problem")
    assert problem == (
        "dataset bad: The table refers to files that are not there. Keep the store as it is. All other work continues. "
        "Next try in 300 s."
    )


# ── what comes and goes ──────────────────────────────────────────────────────────────────────────────────────────────


def test_datasets_and_sinks_that_another_process_adds_and_removes_are_noticed(
    run: Stepped, places: Places, reopen
) -> None:
    run.settle()
    other = reopen()
    other.add_dataset("late", schema={"n": "long"})
    capture(other, 1, dataset="late")
    other.add_sink("out", "test", url="a")
    run.after(1)
    run.after(31)
    assert places.rows["a"] == [1]

    other.remove_sink("out")
    capture(other, 2, dataset="late")
    run.after(1)
    run.after(31)

    assert places.rows["a"] == [1]
    assert run.said("noticed") == ["dataset late was added", "sink out was added", "sink out was removed"]


def test_a_sink_that_is_removed_while_it_hangs_makes_room_for_its_successor(
    run: Stepped, places: Places, reopen
) -> None:
    released = threading.Event()
    places.on_deliver["old"] = hold(released)
    run.store.add_sink("out", "test", url="old")
    capture(run.store, 1, 2, 3)
    run.until(lambda: places.at_once["old"] == 1)
    other = reopen()
    other.remove_sink("out")
    other.add_sink("out", "test", url="new")

    run.clock.advance(1)
    run.until(lambda: places.rows["new"] == [1, 2, 3])
    released.set()
    run.settle()

    assert places.rows["old"] == [1, 2]  # the chunk under way was finished, the next has not left


# ── schedules ────────────────────────────────────────────────────────────────────────────────────────────────────────


def ticked(run: Stepped) -> dict[str, str | None]:
    found = run.store.engine.database.read(sinks.schedules)
    return {item.name: found[item.instance][0] and found[item.instance][0].isoformat() for item in run.store.sinks()}


def test_a_sink_with_a_schedule_of_its_own_is_delivered_to_by_that_and_nothing_else(
    run: Stepped, places: Places
) -> None:
    run.store.add_sink("hourly", "test", url="a", every="1h")
    run.store.add_sink("nightly", "test", url="b", cron="0 2 * * *")
    run.settle()
    capture(run.store, 1)
    for _ in range(59):
        run.after(60)
    assert (places.rows["a"], places.rows["b"]) == ([], [])
    run.after(60)
    assert (places.rows["a"], places.rows["b"]) == ([1], [])
    run.after(3600)
    assert (places.rows["a"], places.rows["b"]) == ([1], [1])
    assert ticked(run) == {"hourly": "2026-01-01T02:00:00+00:00", "nightly": "2026-01-01T02:00:00+00:00"}


def test_runs_that_were_missed_while_no_daemon_ran_are_caught_up_once(
    run: Stepped, places: Places, clock: ManualClock
) -> None:
    run.store.add_sink("nightly", "test", url="a", cron="0 2 * * *")
    run.settle()
    capture(run.store, 1)
    run.after(1)
    run.after(31)
    clock.advance(3 * 86_400)

    later = Stepped(run.store, clock)
    later.settle()

    assert places.rows["a"] == [1]
    assert ticked(later) == {"nightly": "2026-01-03T02:00:00+00:00"}
    capture(later.store, 2)
    later.after(1)
    later.after(31)
    assert places.rows["a"] == [1]


def test_a_process_that_dies_between_a_tick_and_its_record_runs_the_slot_again_and_sends_nothing_twice(
    run: Stepped, places: Places, clock: ManualClock, reopen
) -> None:
    run.store.add_sink("nightly", "test", url="a", cron="0 2 * * *")
    capture(run.store, 1, 2, 3)
    run.settle()
    dying = Stepped(reopen(), clock)
    clock.advance(2 * 3600)

    def die() -> None:
        raise SimulatedCrash

    faults.arm("run.exported", die)
    with pytest.raises(SimulatedCrash):
        dying.settle()
    faults.disarm_all()
    assert ticked(run) == {"nightly": None}

    Stepped(reopen(), clock).settle()

    assert ticked(run) == {"nightly": "2026-01-01T02:00:00+00:00"}
    assert places.rows["a"] == [1, 2, 3]


# ── beside others ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_manual_export_in_the_middle_of_a_tick_sends_nothing_twice_and_moves_nothing_back(
    run: Stepped, places: Places, reopen
) -> None:
    """D2, D4: the daemon's tick and another process's overlap; each row arrives once and the watermark only rises."""
    other, seen = reopen(), []
    run.store.add_sink("out", "blob", url=(run.store.path.parent / "out").as_uri(), chunk_rows=2)
    capture(run.store, *range(20))
    faults.arm("delivery.shipped", faults.nth_time(3, lambda: other.export("out")))
    faults.arm("delivery.acknowledged", lambda: seen.append(other.watermark("out", "m")))
    run.settle()
    capture(run.store, *range(20, 24))
    run.after(1)
    run.after(31)

    assert seen == sorted(seen)
    assert run.store.watermark("out", "m") == 24
    assert stored(run.store.path.parent / "out") == list(range(24))


def test_two_daemons_on_one_store_are_noticed_and_allowed_only_on_request(tmp_path: Path) -> None:
    with present(tmp_path, beside=False) as another:
        assert not another
        with pytest.raises(AlreadyRunning, match=r"already running on .* \(process [0-9]+\)") as refused:
            present(tmp_path, beside=False).__enter__()
        assert "--beside" in (refused.value.hint or "")
        with present(tmp_path, beside=True) as first:
            assert first
    with present(tmp_path, beside=False) as another:
        assert not another


def test_two_daemons_beside_each_other_deliver_each_row_once(
    run: Stepped, places: Places, clock: ManualClock, reopen
) -> None:
    run.store.add_sink("out", "blob", url=(run.store.path.parent / "out").as_uri(), chunk_rows=2)
    both = [run, Stepped(reopen(), clock)]
    for number in range(10):
        capture(run.store, *range(number * 5, number * 5 + 5))
        run.daemon.step()
        clock.advance(31)
        for one in both:
            one.daemon.step()
        for one in both:
            one.settle()
    clock.advance(31)
    run.settle()
    assert stored(run.store.path.parent / "out") == list(range(50))


# ── compaction ───────────────────────────────────────────────────────────────────────────────────────────────────────


def files(store: Store) -> int:
    state = store.engine.lake.load("m_g1")
    return 0 if state is None else len(store.engine.lake.files(state).files)


def test_small_files_are_joined_and_old_snapshots_expired_without_being_asked(run: Stepped) -> None:
    most = 0
    for number in range(60):
        capture(run.store, number)
        run.after(1)
        run.after(60)
        most = max(most, files(run.store))
    assert most <= 12  # a commit a minute, a compaction every ten
    assert re.match(r"compaction of m: ([89]|10) files joined into [12]\b", run.said("compacted")[0])
    assert sorted(number for part in run.store.read_since("m") for number in part.table["n"].to_pylist()) == [
        *range(60)
    ]


def test_a_compaction_under_way_is_not_waited_for(ending: Stepped, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, released = threading.Event(), threading.Event()
    real = Store.compact

    def slow(store: Store, dataset: str, **options: Any) -> CompactReport:
        begun.set()
        assert released.wait(PATIENCE_SECONDS)
        return real(store, dataset, **options)

    monkeypatch.setattr(Store, "compact", slow)
    capture(ending.store, 1)
    ending.settle()
    ending.clock.advance(ending.store.settings.run.compact_seconds + 1)
    ending.daemon.step()
    assert begun.wait(PATIENCE_SECONDS)
    capture(ending.store, 2)
    ending.daemon.step()
    ending.clock.advance(31)
    ending.until(lambda: ending.store.horizon("m") == 2)  # flushes go on beside it
    ending.daemon.ask_to_stop("SIGTERM")
    ending.daemon.take(1)

    assert ending.daemon.run() == loop.DONE

    assert ending.said("stopping") == ["Stopping (SIGTERM)."]
    released.set()


# ── the end ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def ending(store: Store, clock: ManualClock, places: Places) -> Stepped:
    store.add_dataset("m", schema={"n": "long"})
    return Stepped(store, clock)


def let_go_after_stop(monkeypatch: pytest.MonkeyPatch, released: threading.Event) -> None:
    """What hangs goes on once the lanes were told to stop: it must see that before it begins anything else."""
    real = Lanes.stop
    monkeypatch.setattr(Lanes, "stop", lambda lanes: (real(lanes), released.set()))


def test_asked_to_stop_it_finishes_the_chunk_under_way_and_begins_no_other(
    ending: Stepped, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    released = threading.Event()
    places.on_deliver["a"] = hold(released)
    ending.store.add_sink("out", "test", url="a", chunk_rows=1)
    capture(ending.store, 1, 2, 3)
    ending.until(lambda: places.at_once["a"] == 1)
    places.on_deliver["a"] = lambda: None
    ending.daemon.ask_to_stop("SIGTERM")
    ending.daemon.take(1)
    let_go_after_stop(monkeypatch, released)

    assert ending.daemon.run() == loop.DONE

    assert places.rows["a"] == [1]
    assert ending.store.watermark("out", "m") == 1
    assert ending.said("stopping") == ["Stopping (SIGTERM); waiting up to 60 s for sink out."]
    assert ending.said("stopped") == ["Stopped."]


def test_a_wait_inside_a_tick_ends_at_once_when_it_is_asked_to_stop(ending: Stepped, places: Places) -> None:
    """The destination asks for an hour, and the sink is patient enough to wait it out: stopping does not wait."""
    waiting = threading.Event()

    def later() -> None:
        waiting.set()
        raise Busy("Come back later.", retry_after_seconds=3600)

    places.on_deliver["a"] = later
    ending.clock.sleep = lambda seconds: threading.Event().wait(0.001)  # type: ignore[method-assign] # time stands still
    ending.store.add_sink("out", "test", url="a", wait_seconds_max=4000)
    capture(ending.store, 1)
    ending.until(waiting.is_set)
    ending.daemon.ask_to_stop("SIGTERM")

    assert ending.daemon.run() == loop.DONE

    assert ending.store.watermark("out", "m") == 0
    assert ending.said("problem") == ["sink out: Come back later. Next try in 3600 s."]


def test_asked_again_it_gives_up_what_hangs_and_nothing_is_lost(
    ending: Stepped, places: Places, clock: ManualClock, reopen
) -> None:
    released = threading.Event()
    places.on_deliver["a"] = hold(released)
    ending.store.add_sink("out", "test", url="a")
    capture(ending.store, 1, 2)
    ending.until(lambda: places.at_once["a"] == 1)
    ending.daemon.ask_to_stop("Spark's JVM exited")
    ending.daemon.ask_to_stop("SIGTERM")

    assert ending.daemon.run() == loop.FAILED

    assert ending.said("stopped") == ["Stopped. Not finished: sink out; the next start continues them."]
    released.set()  # the process would be gone; here its thread still has to end
    ending.until(lambda: places.at_once["a"] == 0)
    places.on_deliver.clear()
    Stepped(reopen(), clock).settle()
    assert places.rows["a"] == [1, 2]


def test_it_does_not_wait_longer_than_it_may_for_something_that_hangs(ending: Stepped, places: Places) -> None:
    released = threading.Event()
    places.on_deliver["a"] = hold(released)
    ending.store.add_sink("out", "test", url="a")
    capture(ending.store, 1)
    ending.until(lambda: places.at_once["a"] == 1)
    ending.daemon.ask_to_stop("SIGTERM")
    real = ending.daemon.take
    ending.daemon.take = lambda seconds: (ending.clock.advance(seconds), real(0))[1]  # type: ignore[method-assign]

    before = ending.clock.monotonic_seconds()
    assert ending.daemon.run() == loop.FAILED

    assert ending.clock.monotonic_seconds() - before == pytest.approx(61, abs=2)
    released.set()


def test_a_daemon_whose_jvm_died_asks_to_be_started_again(
    ending: Stepped, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused() -> None:
        raise ConnectionRefusedError

    places.on_deliver["a"] = refused
    monkeypatch.setattr(loop, "session_lost", lambda: True)
    ending.store.add_sink("out", "test", url="a")
    capture(ending.store, 1)

    assert ending.daemon.run() == loop.RESTART

    assert ending.said("problem")[-1].startswith("spark: Its JVM exited")
    assert ending.said("stopping") == ["Stopping (Spark's JVM exited)."]


def test_a_flush_of_many_blocks_ends_after_the_one_under_way(ending: Stepped, monkeypatch: pytest.MonkeyPatch) -> None:
    set_flush(ending.store, rows_max=1, bytes_max=1, segments_max=1)
    for number in range(5):
        capture(ending.store, number)
        ending.store.seal("m")
    reached, released = threading.Event(), threading.Event()
    faults.arm("flush.appended", lambda: (reached.set(), released.wait(PATIENCE_SECONDS)))
    ending.until(reached.is_set)
    ending.daemon.ask_to_stop("SIGTERM")
    ending.daemon.take(1)
    let_go_after_stop(monkeypatch, released)

    assert ending.daemon.run() == loop.DONE

    assert ending.store.horizon("m") == 1
    assert ending.store.flush("m").rows == 4


# ── one round ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_one_round_flushes_what_waits_and_delivers_what_is_due(
    ending: Stepped, places: Places, clock: ManualClock
) -> None:
    ending.store.add_sink("plain", "test", url="a")
    ending.store.add_sink("nightly", "test", url="b", cron="0 2 * * *")
    capture(ending.store, 1, 2)
    assert ending.daemon.once() == loop.DONE
    assert (places.rows["a"], places.rows["b"]) == ([1, 2], [])

    clock.advance(3 * 3600)
    assert Stepped(ending.store, clock).daemon.once() == loop.DONE
    assert places.rows["b"] == [1, 2]


def test_one_round_in_which_something_failed_says_so(ending: Stepped, places: Places) -> None:
    def unreachable() -> None:
        raise Busy("The hub does not answer.")

    places.on_deliver["a"] = unreachable
    ending.store.add_sink("fails", "test", url="a")
    ending.store.add_sink("works", "test", url="b")
    capture(ending.store, 1)

    assert ending.daemon.once() == loop.FAILED

    assert places.rows["b"] == [1]
    assert ending.clock.monotonic_seconds() == 0  # it was tried once, and not waited for
