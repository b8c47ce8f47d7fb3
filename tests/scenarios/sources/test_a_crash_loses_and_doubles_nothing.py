"""Interrupted anywhere, a backfill goes on behind what it stored; two at once store each step once."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select

from engines import set_spool
from floodmark import faults
from floodmark.control.schema import segments as segments_table
from floodmark.errors import Retryable, SpoolFull
from floodmark.sources import files, load, steps
from floodmark.spool.segments import WrittenSegment
from floodmark.store import Store
from floodmark.testing import crash_at, kill_store
from scenarios.sources.histories import jsonl, parquet, rows, stored

POINTS = [
    "backfill.sealed",
    "backfill.read",
    "backfill.stored",
    "backfill.loaded",
    "segment.announced",
    "segment.written",
    "segment.registered",
    "flush.appended",
]


@pytest.fixture
def history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files of several kinds, of which one is longer than a step and others go together."""
    monkeypatch.setattr(load, "STEP_ROWS", 10)
    monkeypatch.setattr(files, "BATCH_ROWS", 5)
    monkeypatch.setattr(files, "BLOCK_BYTES", 300)
    root = tmp_path / "history"
    jsonl(root / "1.jsonl", rows(0, 4), "no row")
    jsonl(root / "2.jsonl", rows(4, 8))
    parquet(root / "3.parquet", rows(8, 40), group=12)
    jsonl(root / "4.jsonl.gz", rows(40, 60))
    return root


@pytest.mark.parametrize("dataset", ["messages", "plain"])
@pytest.mark.parametrize("time", [1, 3])
@pytest.mark.parametrize("point", POINTS)
def test_after_a_crash_at_any_point(
    messages: Store, plain: Store, reopen: Callable[[], Store], history: Path, point: str, time: int, dataset: str
) -> None:
    """B1, with an identity and without: there only the positions tell what is stored."""
    with crash_at(point, time=time):
        messages.backfill(dataset, history)
    kill_store(messages)

    again = reopen()
    again.backfill(dataset, history)

    assert stored(again, dataset) == list(range(60))
    assert len(again.quarantine.entries(dataset)) == 1


def test_what_was_stored_is_not_read_again(messages: Store, reopen: Callable[[], Store], history: Path) -> None:
    with crash_at("backfill.stored", time=4):
        messages.backfill("messages", history)
    kill_store(messages)
    report = reopen().backfill("messages", history)
    assert 0 < report.read < 30
    assert report.units_loaded_before >= 2


def test_a_second_run_adds_nothing_and_reads_nothing(messages: Store, history: Path) -> None:
    messages.backfill("messages", history)
    report = messages.backfill("messages", history)
    assert (report.read, report.new, report.units_loaded_before) == (0, 0, 4)
    one = messages.backfill("messages", history / "3.parquet")
    assert (one.read, one.units_loaded_before) == (0, 1), "a file is the same file, however it is named"


def test_what_was_added_to_a_directory_is_loaded_alone(messages: Store, history: Path) -> None:
    messages.backfill("messages", history)
    jsonl(history / "5.jsonl", rows(60, 70))
    assert messages.backfill("messages", history).read == 10


def test_a_file_that_has_grown_is_read_again_and_its_old_rows_recognised(messages: Store, history: Path) -> None:
    messages.backfill("messages", history)
    jsonl(history / "2.jsonl", rows(4, 8) + rows(100, 103))
    report = messages.backfill("messages", history)
    assert (report.new, report.already_stored) == (3, 4)


def test_under_another_source_id_it_is_another_source(messages: Store, history: Path) -> None:
    messages.backfill("messages", history)
    report = messages.backfill("messages", history, source_id="again")
    assert (report.new, report.already_stored) == (0, 60)


@pytest.mark.parametrize(("dataset", "time"), [("messages", 1), ("plain", 1), ("plain", 4)])
@pytest.mark.parametrize("point", ["backfill.read", "segment.written", "backfill.stored", "backfill.loaded"])
def test_two_at_once_store_each_step_once(
    messages: Store, plain: Store, reopen: Callable[[], Store], history: Path, point: str, time: int, dataset: str
) -> None:
    """B1"""
    other = reopen()
    faults.arm(point, faults.nth_time(time, lambda: other.backfill(dataset, history)))
    messages.backfill(dataset, history)
    assert stored(messages, dataset) == list(range(60))
    assert len(messages.quarantine.entries(dataset)) == 1


@pytest.mark.parametrize("dataset", ["messages", "plain"])
@pytest.mark.parametrize("failing", [1, 2, 4])
def test_a_step_that_cannot_be_written_takes_no_other_with_it(
    messages: Store, plain: Store, history: Path, monkeypatch: pytest.MonkeyPatch, failing: int, dataset: str
) -> None:
    """B1: those before it are stored, those behind it are dropped and read again."""
    write, calls = steps.write_segment, itertools.count(1)

    def full(*arguments: Any, **options: Any) -> WrittenSegment:
        if next(calls) == failing:
            raise Retryable("The disk is full.")
        return write(*arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(steps, "write_segment", full)
        with pytest.raises(Retryable, match="disk is full"):
            messages.backfill(dataset, history)
    unfinished = select(func.count()).select_from(segments_table).where(segments_table.c.state == "writing")
    assert messages.engine.database.read(lambda c: c.execute(unfinished).scalar()) == 0
    messages.backfill(dataset, history)
    assert stored(messages, dataset) == list(range(60))
    assert len(messages.quarantine.entries(dataset)) == 1


def test_history_does_not_fill_the_spool(messages: Store, history: Path) -> None:
    set_spool(messages, backlog_bytes_max=4000)
    messages.backfill("messages", history)
    assert stored(messages) == list(range(60))
    set_spool(messages, backlog_bytes_max=0)
    with pytest.raises(SpoolFull):
        messages.backfill("messages", rows(100, 110))


def test_it_is_committed_now_and_then(messages: Store, history: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "FLUSH_ROWS", 20)
    seen: list[int] = []
    report = messages.backfill("messages", history, progress=lambda _: seen.append(messages.status().datasets[0].rows))
    assert seen == sorted(seen)
    assert 0 < seen[-1] <= 60
    assert report.new == 60
