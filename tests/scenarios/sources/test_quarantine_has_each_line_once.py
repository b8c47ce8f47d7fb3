"""A line of a source is quarantined once, however often, and under whatever options, it is read."""

from __future__ import annotations

from pathlib import Path

import pytest
from histories import jsonl, rows

from floodmark.control import quarantine
from floodmark.store import Store

BAD = ('{"id":"seven","at":"2026-01-01T00:00:00Z"}', "no json", '{"id":9,"_ingest_seq":1,"at":"2026-01-02T00:00:00Z"}')
HUGE = '{"id":"' + "x" * 100_000 + '"}'


def held(store: Store) -> list[str]:
    return sorted(entry.reason for entry in store.quarantine.entries("messages"))


@pytest.mark.parametrize("workers", [False, True])
def test_a_file_that_has_grown_brings_only_its_new_lines_to_quarantine(
    messages: Store, tmp_path: Path, workers: bool, request: pytest.FixtureRequest
) -> None:
    if workers:
        request.getfixturevalue("spread")
    path = jsonl(tmp_path / "a.jsonl", rows(0, 3), *BAD, HUGE)
    first = messages.backfill("messages", path)
    assert (first.new, first.quarantined) == (3, 4)
    before = held(messages)
    assert len(before) == 4
    grown = messages.backfill("messages", jsonl(path, rows(0, 3), *BAD, HUGE, *BAD[:2]))
    assert grown.quarantined == 6, "of this run"
    assert set(held(messages)) > set(before)
    assert len(held(messages)) == 6
    for options in ({"since": "2025-01-01"}, {"since": "2025-06-01", "until": "2027-01-01"}, {"source_id": "again"}):
        messages.backfill("messages", path, **options)
    assert len(held(messages)) == 6
    payloads = list((messages.path / "quarantine" / "messages").iterdir())
    assert len(payloads) == 1, "a long payload is kept once, too"


def test_an_entry_that_was_decided_does_not_come_back(messages: Store, tmp_path: Path) -> None:
    path = jsonl(tmp_path / "a.jsonl", rows(0, 3), *BAD)
    messages.backfill("messages", path)
    for entry in messages.quarantine.entries("messages"):
        messages.quarantine.discard(entry.id)
    messages.backfill("messages", path, since="2025-01-01")
    assert held(messages) == []


def test_another_line_in_the_same_place_is_another_entry(messages: Store, tmp_path: Path) -> None:
    messages.backfill("messages", jsonl(tmp_path / "a.jsonl", rows(0, 3), "no json"))
    messages.backfill("messages", jsonl(tmp_path / "a.jsonl", rows(0, 3), "nor this"))
    messages.backfill("messages", jsonl(tmp_path / "b.jsonl", rows(0, 3), "no json"))
    assert len(held(messages)) == 3


def test_rows_of_python_have_no_lasting_place_unless_their_source_has_a_name(messages: Store) -> None:
    bad = [*rows(0, 3), {"id": "seven"}]
    for _ in range(2):
        messages.backfill("messages", bad)
    assert len(held(messages)) == 2
    for since in ("2025-01-01", "2025-06-01"):
        messages.backfill("messages", iter(bad), source_id="named", since=since)
    assert len(held(messages)) == 3


def test_a_key_says_where_a_line_stands_and_what_it_is() -> None:
    keys = {quarantine.source_key(place, payload) for place in ("a:1", "a:2") for payload in (b"x", b"y", b"1x")}
    assert len(keys) == 6
