"""`floodmark backfill`, for people and for programs."""

from __future__ import annotations

from pathlib import Path

from cli_input import lines

from floodmark import providers


def test_it_reports_what_became_of_the_rows(shop, tmp_path: Path):
    shop("capture", "orders", stdin=lines({"id": "a"}))
    (tmp_path / "old.jsonl").write_bytes(lines({"id": "a"}, {"id": "b"}, {"id": "c", "total": "x"}) + b"torn\n")
    done = shop("backfill", "orders", "--from", str(tmp_path / "old.jsonl"), "--json")
    assert done.code == 0
    assert {name: done.json[name] for name in ("read", "new", "already_spooled", "quarantined")} == {
        "read": 4, "new": 1, "already_spooled": 1, "quarantined": 2,
    }  # fmt: skip
    again = shop("backfill", "orders", "--from", str(tmp_path / "old.jsonl"))
    assert "Already loaded, and not read again: 1 of 1 units" in again.err
    assert [row["id"] for row in shop("read", "orders").rows] == ["a", "b"]


def test_columns_are_renamed_and_files_need_no_ending(shop, tmp_path: Path):
    (tmp_path / "old").write_bytes(lines({"key": "a", "sum": 5}))
    source = str(tmp_path / "old")
    done = shop("backfill", "orders", "--from", source, "--format", "jsonl", "--map", "key=id", "--map", "sum=total")
    assert done.code == 0
    assert shop("read", "orders").rows == [{"id": "a", "total": 5}]


def test_what_is_written_wrongly_is_told(shop):
    assert shop("backfill", "orders").code == 2
    done = shop("backfill", "orders", "--from", "x.jsonl", "--map", "key")
    assert done.code == 2
    assert "old=new" in done.err
    for missing in ("missing.jsonl", "dump.2026.jsonl", "dump.2026.csv.gz"):
        done = shop("backfill", "orders", "--from", missing)
        assert (done.code, f"nothing to load at {missing}" in done.err) == (1, True), "and no table of this name"


def test_a_directory_with_a_foreign_file_and_a_broken_line(shop, tmp_path: Path):
    folder = tmp_path / "old"
    folder.mkdir()
    (folder / "readme.txt").write_text("not for us\n")
    (folder / "orders.csv").write_text("id,total\na,1\nb,2,what\nc,3\n")
    done = shop("backfill", "orders", "--from", str(folder))
    assert done.code == 0
    assert "Do not fit: 1. `floodmark quarantine list` shows the reason" in done.err
    assert shop("read", "orders").rows == [{"id": "a", "total": 1}, {"id": "c", "total": 3}]
    [held] = shop("quarantine", "list", "--json").json
    assert held["reason"] == f"{folder}/orders.csv row 2: it has 3 columns instead of 2"


def test_a_provider_that_fails_does_not_stop_the_others(shop, monkeypatch):
    monkeypatch.setattr(providers, "registered", {})

    @providers.provider("broken")
    def broken(_):
        raise OSError("the tape is torn")

    @providers.provider("whole")
    def whole(_):
        return [{"id": "z"}]

    done = shop("backfill", "orders", "--provider", "broken", "--provider", "whole", "--json")
    assert done.code == 1
    assert "the tape is torn" in done.err
    assert [report["new"] for report in done.json] == [1]
    assert shop("backfill", "orders", "--provider", "whole", "--select", "SELECT 1").code == 1
