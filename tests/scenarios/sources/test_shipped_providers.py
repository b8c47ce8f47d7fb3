"""The providers that come along, from their files into a store: once, however their files move and grow."""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path

from floodmark.store import Store
from scenarios.sources.histories import adds_up

FIXTURES = Path(__file__).parents[2] / "fixtures"


def count(store: Store, dataset: str) -> int:
    return sum(batch.table.num_rows for batch in store.read_since(dataset))


def test_transcripts_of_both_layouts_and_a_session_that_goes_on(store: Store, tmp_path: Path) -> None:
    home = tmp_path / "sessions"
    shutil.copytree(FIXTURES / "transcripts", home)
    first = store.backfill("parts", home, provider="transcripts")
    assert first.new > 10
    assert adds_up(first)
    assert store.backfill("parts", home, provider="transcripts").read == 0

    session = next(
        path for path in sorted((home / "claude-code").rglob("*.jsonl")) if path.read_bytes().count(b"\n") > 3
    )
    lines = session.read_bytes().splitlines(keepends=True)
    fork = session.with_name("resumed.jsonl")
    fork.write_bytes(b"".join(lines[:3]))
    again = store.backfill("parts", home, provider="transcripts")
    assert again.read > 0
    assert again.new == 0, "a resumed session repeats the parts of the one it goes on from"
    assert count(store, "parts") == first.new


def test_access_logs_through_their_rotation(store: Store, tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    shutil.copy(FIXTURES / "access_logs" / "access.log", log)
    first = store.backfill("requests", tmp_path, provider="access-logs")
    assert first.new > 0
    assert adds_up(first)
    with gzip.open(tmp_path / "access.log.1.gz", "wb") as packed:
        packed.write(log.read_bytes())
    log.write_bytes(log.read_bytes().splitlines(keepends=True)[0].replace(b"GET /", b"GET /rotated/", 1))
    again = store.backfill("requests", tmp_path, provider="access-logs")
    assert adds_up(again)
    assert count(store, "requests") == first.new + again.new
    assert again.new <= 1
