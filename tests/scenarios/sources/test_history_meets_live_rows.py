"""A row that came live and comes again from history is one row, whichever came first, and however it waited."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from floodmark import faults
from floodmark.errors import Retryable
from floodmark.schema import SEQ
from floodmark.sources import load
from floodmark.store import Store
from floodmark.testing import MemoryLake
from scenarios.sources.histories import adds_up, jsonl, rows, stored


def test_a_row_that_waits_in_the_landing_log_is_not_loaded_again(messages: Store, tmp_path: Path) -> None:
    """B2, and a backfill that sees committed rows only would load it, and the flush of the spool would double it."""
    messages.capture("messages", rows(5, 10))
    report = messages.backfill("messages", jsonl(tmp_path / "h.jsonl", rows(0, 20)))
    assert (report.read, report.new, report.already_spooled, report.already_stored) == (20, 15, 5, 0)
    assert stored(messages) == list(range(20))


def test_a_row_that_is_committed_is_not_stored_again(messages: Store, tmp_path: Path) -> None:
    messages.capture("messages", rows(5, 10))
    messages.flush("messages")
    report = messages.backfill("messages", jsonl(tmp_path / "h.jsonl", rows(0, 20)))
    assert (report.new, report.already_spooled, report.already_stored) == (15, 0, 5)
    assert stored(messages) == list(range(20))


def test_rows_that_wait_are_found_by_flush_where_they_are_too_many_to_hold(
    messages: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "WAITING_ROWS_MAX", 3)
    messages.capture("messages", rows(5, 10))
    report = messages.backfill("messages", jsonl(tmp_path / "h.jsonl", rows(0, 20)))
    assert (report.new, report.already_spooled, report.already_stored) == (15, 0, 5)
    assert stored(messages) == list(range(20))


@pytest.mark.parametrize("point", ["backfill.sealed", "backfill.read", "backfill.stored", "backfill.loaded"])
@pytest.mark.parametrize("flushed", [False, True])
def test_a_row_captured_during_the_backfill_is_one_row(
    messages: Store,
    reopen: Callable[[], Store],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    point: str,
    flushed: bool,
) -> None:
    """B2: what the forecast saw is old by then; the flush decides, in both orders of arrival."""
    monkeypatch.setattr(load, "STEP_ROWS", 10)
    live = reopen()

    def capture() -> None:
        live.capture("messages", rows(5, 35))
        if flushed:
            live.flush("messages")

    faults.arm(point, faults.nth_time(1, capture))
    parts = [jsonl(tmp_path / "h" / f"{number}.jsonl", rows(number * 10, number * 10 + 10)) for number in range(3)]
    report = messages.backfill("messages", parts[0].parent)
    messages.flush("messages")
    assert stored(messages) == list(range(35))
    assert report.read == 30
    assert adds_up(report)


def test_numbers_are_those_of_the_blocks_even_if_live_rows_share_them(
    messages: Store, reopen: Callable[[], Store], tmp_path: Path
) -> None:
    live = reopen()
    faults.arm("backfill.loaded", faults.nth_time(1, lambda: live.capture("messages", rows(100, 140))))
    messages.capture("messages", rows(0, 5))
    messages.flush("messages")
    report = messages.backfill("messages", jsonl(tmp_path / "h.jsonl", rows(0, 20)))
    assert (report.new, report.already_stored) == (15, 5)
    assert stored(messages) == [*range(20), *range(100, 140)]


def test_a_source_that_repeats_itself_is_stored_once(messages: Store, tmp_path: Path) -> None:
    jsonl(tmp_path / "h" / "1.jsonl", rows(0, 10) + rows(5, 10))
    jsonl(tmp_path / "h" / "2.jsonl", rows(0, 15))
    report = messages.backfill("messages", tmp_path / "h")
    assert (report.read, report.new, report.already_stored) == (30, 15, 15)
    assert stored(messages) == list(range(15))


def test_the_first_complete_identity_counts(store: Store) -> None:
    store.add_dataset("parts", [["part_id"], ["message_id", "part_index"]], schema={"id": "long", "part_index": "long"})
    store.capture("parts", [{"id": 1, "part_id": "a"}, {"id": 2, "message_id": "m", "part_index": 0}])
    history = [
        {"id": 3, "part_id": "a", "message_id": "m", "part_index": 0},  # the part a
        {"id": 4, "message_id": "m", "part_index": 0},  # the same message and part, without an id
        {"id": 5, "message_id": "m", "part_index": 1},
        {"id": 6, "message_id": "m"},  # no identity is complete: never a duplicate
        {"id": 7, "message_id": "m"},
        {"id": 8, "part_id": "b"},
        {"id": 9, "part_id": "b"},
    ]
    report = store.backfill("parts", history)
    assert (report.already_spooled, report.already_stored) == (2, 1)
    assert stored(store, "parts") == [1, 2, 5, 6, 7, 8]


def test_a_line_that_sealing_refuses_does_not_keep_a_row_of_history_out(
    messages: Store, reopen: Callable[[], Store], tmp_path: Path
) -> None:
    """One parser: what it takes for no row is nothing that a backfill could take for stored."""
    messages.capture("messages", rows(0, 1))
    [file] = (messages.path / "spool" / "messages" / "landing").glob("*.jsonl")
    with file.open("ab") as lines:
        lines.write(b'{"version":9,"columns":["id","at"],"rows":[[1,"2026-01-02"]]}\n')
    report = messages.backfill("messages", jsonl(tmp_path / "h.jsonl", rows(0, 3)))
    assert (report.new, report.already_spooled) == (2, 1)
    assert stored(messages) == [0, 1, 2]


def test_flush_does_not_look_into_the_spool(messages: Store, tmp_path: Path) -> None:
    """Else it would take the rows that it is about to commit for duplicates of themselves."""
    messages.capture("messages", rows(0, 10))
    messages.seal("messages")
    assert messages.flush("messages").rows == 10


def test_a_settle_function_may_change_identities_so_nothing_is_left_out_early(store: Store) -> None:
    """B2"""
    store.add_dataset("messages", ["id"], schema={"id": "long"}, settle="somewhere:settle")
    store.capture("messages", [{"id": 1}])
    store.seal("messages")
    waiting = load.waiting_identities(store.engine, store.datasets()[0])
    assert waiting.hashes is None


def test_if_duplicates_cannot_be_looked_for_nothing_moves_and_nothing_is_lost(
    messages: Store, lake: MemoryLake, tmp_path: Path
) -> None:
    messages.capture("messages", rows(0, 5))
    messages.flush("messages")
    files, lake.data = lake.data, {}
    with pytest.raises(Retryable):
        messages.backfill("messages", jsonl(tmp_path / "h.jsonl", rows(0, 20)))
    lake.data = files
    assert stored(messages) == list(range(5))
    report = messages.backfill("messages", tmp_path / "h.jsonl")
    assert report.units_loaded_before == 1, "its rows were safe in the spool"
    assert stored(messages) == list(range(20))


def test_what_retention_pruned_and_what_was_purged_does_not_come_back(messages: Store, tmp_path: Path) -> None:
    messages.capture(
        "messages", [{"id": 1, "at": "2025-01-01"}, {"id": 2, "at": "2025-12-31"}, {"id": 3, "at": "2025-12-31"}]
    )
    messages.flush("messages")
    messages.retain("messages", older_than="30d")
    messages.purge("messages", "id = 3")
    history = [{"id": 1, "at": "2025-01-01"}, {"id": 3, "at": "2025-12-31"}, {"id": 4, "at": "2025-12-31"}]
    report = messages.backfill("messages", jsonl(tmp_path / "h.jsonl", history))
    assert (report.new, report.expired) == (1, 2)
    assert adds_up(report)
    assert stored(messages) == [2, 4]


def test_numbers_follow_the_source(messages: Store, lake: MemoryLake, tmp_path: Path) -> None:
    messages.backfill("messages", jsonl(tmp_path / "h.jsonl", rows(0, 20)))
    part = next(iter(lake.data.values()))
    assert part["id"].to_pylist() == list(range(20))
    assert part[SEQ].to_pylist() == list(range(1, 21))
