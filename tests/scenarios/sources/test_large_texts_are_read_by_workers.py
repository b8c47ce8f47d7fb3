"""Text that is large: cut into pieces, parsed by workers, and loaded as if one reader had gone through it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from floodmark.errors import Permanent, Retryable
from floodmark.lake import staging as spreading
from floodmark.sources import files, load, parallel_text
from floodmark.sources.staging import Staging
from floodmark.store import Store
from floodmark.testing import MemoryLake, crash_at, kill_store
from scenarios.sources.histories import adds_up, csv, jsonl, parquet, rows, stored


@pytest.fixture
def history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files of all kinds: cut, whole, packed, empty, and one that needs no worker."""
    monkeypatch.setattr(load, "STEP_ROWS", 10)
    monkeypatch.setattr(files, "BLOCK_BYTES", 200)
    root = tmp_path / "history"
    jsonl(root / "1.jsonl", rows(0, 30), "no row", *[json.dumps(row) for row in rows(30, 40)])
    jsonl(root / "2.jsonl", [])
    parquet(root / "3.parquet", rows(40, 50))
    jsonl(root / "4.jsonl.gz", rows(50, 60))
    csv(root / "5.csv", rows(60, 80))
    return root


def scratch(store: Store, dataset: str) -> list[Path]:
    return list(Staging.of(store.path, dataset).directory.glob("*"))


def seen(store: Store, dataset: str) -> list[tuple[Any, ...]]:
    found = [row for batch in store.read_since(dataset) for row in batch.table.to_pylist()]
    return [(row["id"], row["at"], row["text"]) for row in found]


def test_the_rows_their_order_and_the_report_are_those_of_one_reader(
    messages: Store, history: Path, request: pytest.FixtureRequest
) -> None:
    here = messages.backfill("messages", history)
    messages.add_dataset("same", ["id"], event_time="at", schema={"id": "long"})
    request.getfixturevalue("spread")
    by_workers = messages.backfill("same", history)
    assert seen(messages, "same") == seen(messages, "messages")
    assert (by_workers.read, by_workers.new, by_workers.quarantined, by_workers.units) == (81, 80, 1, 5)
    assert by_workers.bytes == pytest.approx(here.bytes, rel=0.05)
    assert adds_up(by_workers)
    places = {entry.reason for name in ("messages", "same") for entry in messages.quarantine.entries(name)}
    assert [place.partition(": ")[0] for place in places] == [f"{history / '1.jsonl'}:31"]
    assert scratch(messages, "same") == []


@pytest.mark.usefixtures("spread")
def test_where_workers_are_on_other_machines_the_process_reads_the_files_itself(
    messages: Store, history: Path, lake: MemoryLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would not find the files, or would write where nobody looks."""
    for name in ("written", "gathered"):
        monkeypatch.setattr(spreading, name, lambda *_, **__: pytest.fail("the work went to workers"))
    lake.tasks_here = False
    assert messages.backfill("messages", history).new == 80


@pytest.mark.parametrize("dataset", ["messages", "plain"])
@pytest.mark.parametrize(("point", "time"), [("backfill.spread", 1), ("backfill.spread", 3), ("backfill.stored", 4)])
@pytest.mark.parametrize("first", ["here", "by workers"])
def test_what_was_begun_in_one_way_goes_on_in_the_other(
    messages: Store,
    plain: Store,
    reopen: Callable[[], Store],
    history: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    first: str,
    point: str,
    time: int,
    dataset: str,
) -> None:
    """B1, B4: the marks are the same. Without an identity, they are all that tells what is stored."""
    request.getfixturevalue("spread")
    if first == "here":
        monkeypatch.setattr(parallel_text, "LARGE_BYTES", 1 << 20)
        point = "backfill.stored"
    with crash_at(point, time=time):
        messages.backfill(dataset, history)
    kill_store(messages)
    monkeypatch.setattr(parallel_text, "LARGE_BYTES", 1 if first == "here" else 1 << 20)
    again = reopen()
    again.backfill(dataset, history)
    assert stored(again, dataset) == list(range(80))
    assert len(again.quarantine.entries(dataset)) == 1
    assert again.backfill(dataset, history).units_loaded_before == 5


def test_what_a_dead_process_left_is_removed(
    messages: Store, reopen: Callable[[], Store], history: Path, spread: None
) -> None:
    with crash_at("backfill.spread"):
        messages.backfill("messages", history)
    left = Staging.of(messages.path, "messages").directory / "once-0123456789abcdef"
    left.mkdir()
    kill_store(messages)
    again = reopen()
    again.backfill("messages", history)
    assert not left.exists()


def test_columns_that_the_dataset_lacks_come_with_their_types(store: Store, tmp_path: Path, spread: None) -> None:
    """… also those that only a late piece has, or that two pieces have with different types."""
    store.add_dataset("messages", ["id"], schema={"id": "int"})
    content: list[dict[str, Any]] = [{"id": id} for id in range(100)]
    content[60] |= {"about": {"deep": [1, None, "x"]}, "size": 1}
    content[80] |= {"size": 2**40}
    content[90] |= {"size": "large", "id": 2**40}
    report = store.backfill("messages", jsonl(tmp_path / "h.jsonl", content))
    assert (report.new, report.quarantined) == (99, 1)
    [declared] = store.datasets()
    assert [column.text for column in declared.schema] == ["int", "json", "long"]
    found = {row["id"]: row for batch in store.read_since("messages") for row in batch.table.to_pylist()}
    assert json.loads(found[60]["about"]) == {"deep": [1, None, "x"]}
    assert found[80]["size"] == 2**40
    [entry] = store.quarantine.entries("messages")
    assert "'size' is long" in entry.reason


def test_columns_that_change_their_names_do_so_once(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """… also those of a row that fits for its worker, but not behind an earlier piece, which gave its column a type."""
    request.getfixturevalue("spread")
    monkeypatch.setattr(parallel_text, "GROUP_BYTES", 1 << 20)
    store.add_dataset("messages", ["id"], schema={"id": "long"})
    content: list[dict[str, Any]] = [{"id": id, "right": "r"} for id in range(40)]
    content[20] |= {"left": 5}
    content[30] |= {"left": "l"}
    report = store.backfill("messages", jsonl(tmp_path / "h.jsonl", content), map={"left": "right", "right": "left"})
    assert (report.new, report.quarantined) == (39, 1)
    [row] = [row for b in store.read_since("messages") for row in b.table.to_pylist() if row["id"] == 20]
    assert (row["left"], row["right"]) == ("r", 5)
    [entry] = store.quarantine.entries("messages")
    held = json.loads(entry.payload)
    assert dict(zip(held["columns"], held["rows"][0], strict=True)) == {"id": 30, "left": "r", "right": "l"}
    assert entry.reason.startswith(f"{tmp_path / 'h.jsonl'}, up to line ")


def test_a_line_longer_than_a_piece_and_one_without_an_end(messages: Store, tmp_path: Path, spread: None) -> None:
    content = rows(0, 10)
    content[5]["text"] = "long" * 500
    path = jsonl(tmp_path / "h.jsonl", content)
    path.write_text(path.read_text() + "\n\n" + json.dumps(rows(10, 11)[0]))
    assert messages.backfill("messages", path).new == 11
    assert stored(messages) == list(range(11))


def test_damage_is_told_where_it_is_reached(messages: Store, tmp_path: Path, spread: None) -> None:
    """What stands before it is loaded, and once corrected the rest is."""
    jsonl(tmp_path / "h" / "1.jsonl", rows(0, 20))
    packed = jsonl(tmp_path / "h" / "2.jsonl.gz", rows(20, 40))
    whole = packed.read_bytes()
    packed.write_bytes(whole[:-12])
    with pytest.raises(Permanent, match=r"2\.jsonl\.gz cannot be read as jsonl"):
        messages.backfill("messages", tmp_path / "h")
    packed.write_bytes(whole)
    messages.backfill("messages", tmp_path / "h")
    assert stored(messages) == list(range(40))


def test_workers_that_give_less_than_they_should_are_noticed(
    messages: Store, history: Path, spread: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = spreading.written
    monkeypatch.setattr(spreading, "written", lambda *given, **named: written(*given, **named)[:-1])
    with pytest.raises(Retryable, match="only a part of"):
        messages.backfill("messages", history)
    monkeypatch.setattr(spreading, "written", written)
    messages.backfill("messages", history)
    assert stored(messages) == list(range(80))


def test_little_that_is_left_needs_no_workers(
    messages: Store, history: Path, spread: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What counts is what is still to be read, and not the history."""
    from floodmark.sources import parallel_text as module

    messages.backfill("messages", history)
    jsonl(history / "6.jsonl", rows(80, 90))
    monkeypatch.setattr(module, "LARGE_BYTES", 5_000)
    monkeypatch.setattr(spreading, "written", _must_not_be_called)
    assert messages.backfill("messages", history).new == 10


def _must_not_be_called(*_: object, **__: object) -> Iterator[None]:
    raise AssertionError("the workers were asked")
