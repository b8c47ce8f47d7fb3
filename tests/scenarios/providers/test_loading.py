"""What the shipped providers read is loaded once, while its files grow and are rotated."""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path

import pytest

from floodmark.providers import find
from floodmark.store import Store

TRANSCRIPTS = Path(__file__).parents[2] / "fixtures" / "transcripts"


def declare(store: Store, dataset: str, provider: str) -> None:
    suggested = find(provider).declaration
    store.add_dataset(dataset, suggested.identity, event_time=suggested.event_time, schema=suggested.schema)


def rows(store: Store, dataset: str) -> list[dict]:
    return [row for batch in store.read_since(dataset) for row in batch.table.to_pylist()]


def test_sessions_are_loaded_once_while_they_are_being_written(store: Store, tmp_path: Path):
    declare(store, "parts", "transcripts")
    live = tmp_path / "sessions"
    shutil.copytree(TRANSCRIPTS, live)
    session = next(live.rglob("7b1f*.jsonl"))
    whole = session.read_bytes()
    session.write_bytes(whole[: len(whole) // 2])  # in the middle of a line

    first = store.backfill("parts", provider="transcripts", source=str(live))
    assert first.quarantined == 0
    assert store.backfill("parts", provider="transcripts", source=str(live)).new == 0

    session.write_bytes(whole)
    second = store.backfill("parts", provider="transcripts", source=str(live))
    found = rows(store, "parts")
    assert second.new > 0
    assert len(found) == first.new + second.new
    assert len({row["part_id"] or (row["message_id"], row["part_index"]) for row in found}) == len(found)


def test_a_line_that_is_no_message_is_in_quarantine_with_its_place(store: Store, tmp_path: Path):
    declare(store, "parts", "transcripts")
    (tmp_path / "s.jsonl").write_text("not json\n")
    assert store.backfill("parts", provider="transcripts", source=str(tmp_path)).quarantined == 1
    (entry,) = store.quarantine.entries("parts")
    assert "not JSON" in entry.reason
    assert f"{tmp_path / 's.jsonl'}:1" in entry.reason


@pytest.mark.parametrize("rotations", [1, 2])
def test_a_rotated_log_is_not_loaded_again(store: Store, tmp_path: Path, rotations: int):
    declare(store, "requests", "access-logs")
    line = '192.0.2.1 - - [03/Feb/2026:09:00:0{} +0000] "GET /{} HTTP/1.1" 200 5 "-" "probe"\n'
    log = tmp_path / "access.log"
    log.write_text(line.format(0, 0) + line.format(1, 1))
    assert store.backfill("requests", provider="access-logs", source=str(log)).new == 2

    with log.open("a") as file:
        file.write(line.format(2, 2))
    log.rename(tmp_path / "access.log.1")
    if rotations == 2:
        (tmp_path / "access.log.2.gz").write_bytes(gzip.compress((tmp_path / "access.log.1").read_bytes()))
        (tmp_path / "access.log.1").unlink()
    log.write_text(line.format(3, 3))

    store.backfill("requests", provider="access-logs", source=str(tmp_path))
    assert sorted(row["path"] for row in rows(store, "requests")) == ["/0", "/1", "/2", "/3"]
