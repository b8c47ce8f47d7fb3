"""`audit`, `trace` and `fsck` as their users meet them: what they print, and the exit codes."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def archive(shop, tmp_path: Path):
    """A store that has delivered three orders to files."""
    rows = b'{"id": 1, "total": 5}\n{"id": 2, "total": 6}\n{"id": 3, "total": 7}\n'
    assert shop("capture", "orders", "-", stdin=rows).code == 0
    assert shop("flush").code == 0
    assert shop("sink", "add", "archive", "blob", "--url", (tmp_path / "out").as_uri()).code == 0
    assert shop("export").code == 0
    return shop


def object_of(tmp_path: Path) -> Path:
    return next((tmp_path / "out" / "orders").glob("*/*.parquet"))


def test_an_audit_of_a_sound_sink_ends_with_zero(archive):
    done = archive("audit", "archive", "--deep")
    assert done.code == 0
    assert "each once" in done.out
    assert archive("audit", "archive", "--json").json["sound"] is True


def test_an_audit_that_finds_something_ends_with_three_and_says_what_to_do(archive, tmp_path: Path):
    object_of(tmp_path).unlink()
    done = archive("audit", "archive")
    assert done.code == 3
    assert "object-missing" in done.out
    assert "new prefix" in done.out
    found = archive("audit", "archive", "--json")
    assert found.code == 3
    assert found.json["findings"][0]["range"] == [0, 3]


def test_an_audit_of_an_unknown_sink_is_a_failure(archive):
    assert archive("audit", "nope").code == 1


def test_a_trace_shows_the_way_of_a_row(archive):
    done = archive("trace", "orders", "id=2")
    assert done.code == 0
    for word in ("number 2", "landing", "segment", "block", "file", "archive: delivered"):
        assert word in done.out
    found = archive("trace", "orders", "id=2", "--json").json
    assert found["known"] is True
    content_id = found["committed"][0]["content_id"]
    assert archive("trace", "orders", "--id", content_id).code == 0
    assert archive("trace", "orders", "--row", '{"id": 2, "total": 6}').code == 0


def test_a_trace_of_a_row_that_waits_and_of_one_that_nobody_knows(archive):
    assert archive("capture", "orders", "-", stdin=b'{"id": 9, "total": 5}\n').code == 0
    assert "not yet sealed" in archive("trace", "orders", "id=9").out
    done = archive("trace", "orders", "id=10")
    assert done.code == 1
    assert "Not known" in done.out


@pytest.mark.parametrize("question", [(), ("id",), ("--row", "[1]"), ("--row", "x"), ("id=1", "--id", "00")])
def test_a_trace_that_is_not_written_correctly_is_refused(archive, question: tuple[str, ...]):
    assert archive("trace", "orders", *question).code == 2


def test_fsck_of_a_sound_store_ends_with_zero(archive):
    done = archive("fsck", "--deep")
    assert done.code == 0
    assert "nothing is wrong" in done.out


def test_fsck_ends_with_three_until_what_is_wrong_is_repaired(archive, tmp_path: Path):
    import sqlite3

    with sqlite3.connect(tmp_path / "store" / "control.db") as control:
        control.execute("DROP TRIGGER counter_never_back")
        control.execute("UPDATE counters SET value = 0 WHERE name = 'sequence'")
    done = archive("fsck")
    assert done.code == 3
    assert "fsck --repair" in done.out
    assert archive("fsck", "--json").json["findings"][0]["kind"] == "allocator-behind"
    repaired = archive("fsck", "--repair")
    assert repaired.code == 0
    assert "done   The allocator is raised" in repaired.out
    assert archive("fsck").code == 0
