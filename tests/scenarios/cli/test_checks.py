"""`audit`, `trace` and `fsck` as their users meet them: what they print, and the exit codes."""

from __future__ import annotations

from pathlib import Path

import pytest

from read_only import read_only


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
    assert "has every delivered row exactly once" in done.out
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
    assert "Not found" in done.out


@pytest.mark.parametrize("question", [(), ("id",), ("--row", "[1]"), ("--row", "x"), ("id=1", "--id", "00")])
def test_a_trace_that_is_not_written_correctly_is_refused(archive, question: tuple[str, ...]):
    assert archive("trace", "orders", *question).code == 2


def test_fsck_of_a_sound_store_ends_with_zero(archive):
    done = archive("fsck", "--deep")
    assert done.code == 0
    assert "no problems found" in done.out


def test_what_the_next_flush_resolves_by_itself_is_a_note_and_the_exit_code_zero(archive, tmp_path: Path):
    import sqlite3

    with sqlite3.connect(tmp_path / "store" / "control.db") as control:
        control.execute("DROP TRIGGER counter_never_back")
        control.execute("UPDATE counters SET value = 0 WHERE name = 'sequence'")
    done = archive("fsck")
    assert done.code == 0
    assert "note   allocator-behind" in done.out
    assert "WRONG" not in done.out
    assert archive("fsck", "--json").json["findings"][0]["kind"] == "allocator-behind"
    repaired = archive("fsck", "--repair")
    assert repaired.code == 0
    assert "done   The allocator is raised" in repaired.out


@pytest.fixture
def damaged(archive, tmp_path: Path) -> int:
    """The segment whose file is gone, of three rows."""
    rows = b'{"id": 4, "total": 5}\n{"id": 5, "total": 6}\n'
    assert archive("capture", "orders", "-", stdin=rows).code == 0
    import floodmark.store

    with floodmark.store.open_store(tmp_path / "store") as store:
        store.seal("orders")
    (file,) = (tmp_path / "store" / "spool" / "orders" / "segments").glob("*.parquet")
    file.unlink()
    return int(file.name.partition("-")[0])


def test_fsck_ends_with_three_while_a_segment_is_missing_and_says_how_to_give_it_up(archive, damaged: int):
    done = archive("fsck", "--repair")
    assert done.code == 3
    assert f"fsck --repair --give-up {damaged}" in done.out
    assert archive("fsck", "--json").json["offers"] == [
        {"segment": damaged, "dataset": "orders", "rows": 2, "range": None, "problem": "has no file"}
    ]


def test_a_segment_is_given_up_only_after_somebody_agreed(archive, damaged: int):
    """U33"""
    assert archive("fsck", "--give-up", str(damaged)).code == 2
    refused = archive("fsck", "--repair", "--give-up", str(damaged), stdin=b"n\n")
    assert refused.code == 130
    assert "2 acknowledged rows" in refused.err
    assert archive("fsck").code == 3
    done = archive("fsck", "--repair", "--give-up", str(damaged), "--yes")
    assert done.code == 0
    assert "2 acknowledged rows are lost" in done.out
    assert "segment-given-up" in archive("fsck").out
    assert "given up" in archive("trace", "orders", "id=4").out
    assert "acknowledged rows given up" in archive("status").err


def test_flush_names_what_it_left_behind_and_ends_with_three(archive, damaged: int):
    """U34"""
    assert archive("capture", "orders", "-", stdin=b'{"id": 6, "total": 6}\n').code == 0
    done = archive("flush")
    assert done.code == 3
    assert f"Segment {damaged}" in done.err
    assert archive("flush", "orders", "--json").json[0]["problems"]
    assert f"Segment {damaged}" in archive("status").err
    assert archive("status", "--json").json["datasets"][0]["rows"] == 4


def test_one_damaged_dataset_stops_no_flush_of_another(archive, lake, tmp_path: Path):
    """I10"""
    assert archive("dataset", "add", "other").code == 0
    for name in ("orders", "other"):
        assert archive("capture", name, "-", stdin=b'{"id": 6, "total": 6}\n').code == 0
    lake.unreadable.add("orders_g1")
    done = archive("flush")
    assert done.code == 3
    assert "orders: The metadata of table" in done.err
    assert {item["dataset"]: item["rows"] for item in archive("flush", "--json").json} == {"orders": 0, "other": 0}
    assert archive("status", "--json").json["datasets"][1]["rows"] == 1


def test_a_missing_control_database_is_corruption_and_can_be_made_anew(archive, lake, tmp_path: Path, monkeypatch):

    for part in ("control.db", "control.db-wal", "control.db-shm"):
        (tmp_path / "store" / part).unlink(missing_ok=True)
    for command in (("status",), ("fsck",), ("flush",), ("capture", "orders", "-")):
        done = archive(*command)
        assert done.code == 3
        assert "is missing" in done.err
        assert "--rebuild-records" in done.err
    monkeypatch.setattr("floodmark.lake.embedded.embedded_lake", lambda *_: lake)
    made = archive("fsck", "--rebuild-records")
    assert made.code == 0
    assert "orders" in made.out
    assert archive("flush").code == 0
    assert archive("status", "--json").json["datasets"][0]["rows"] == 3
    assert archive("fsck", "--deep").code == 0

    assert archive("fsck").code == 0


@pytest.mark.parametrize(
    "command",
    [
        "status",
        "read orders",
        "dataset list",
        "sink list",
        "quarantine list",
        "token list",
        "audit archive",
        "trace orders id=1",
        "fsck",
        "export --dry-run",
    ],
)
def test_a_store_that_can_only_be_read_answers_every_command_that_only_looks(archive, tmp_path: Path, command):
    whole = archive(*command.split())
    with read_only(tmp_path / "store"):
        looked = archive(*command.split())
    assert (looked.code, looked.err) == (whole.code, whole.err)
    assert looked.out == whole.out


@pytest.mark.parametrize(
    "command", ["capture orders -", "flush", "dataset add more", "sink remove archive", "run --once", "hub"]
)
def test_a_store_that_can_only_be_read_refuses_the_others_in_a_sentence(archive, tmp_path: Path, command):
    with read_only(tmp_path / "store"):
        done = archive(*command.split(), stdin=b'{"id": 4}\n')
    assert done.code == 1
    assert "store is read-only" in done.out + done.err
    assert "Traceback" not in done.err
