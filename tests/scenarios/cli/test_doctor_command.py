"""`floodmark doctor` as its users meet it."""

from __future__ import annotations

from pathlib import Path

from scenarios.cli.conftest import Cli


def test_a_sound_store_is_told_check_by_check(shop: Cli) -> None:
    done = shop("doctor", "--no-spark")
    assert done.code == 0
    assert "ok       control database: SQLite" in done.out
    assert "0 problems" in done.out
    report = shop("doctor", "--no-spark", "--json").json
    assert report["sound"]
    assert {one["state"] for one in report["checks"]} <= {"ok", "warning", "skipped"}


def test_a_problem_is_told_with_what_to_do_and_the_exit_code_says_so(shop: Cli, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    shop("sink", "add", "archive", "blob", "--url", (tmp_path / "file").as_uri())
    done = shop("doctor", "--no-spark")
    assert done.code == 1
    assert "wrong    sink archive:" in done.out
    assert "Try: " in done.out


def test_without_a_store_the_machine_is_checked(cli: Cli) -> None:
    done = cli("doctor", "--no-spark", "--json")
    assert done.code == 0
    assert "only this machine is checked" in done.err
    assert done.json["store"] is None


def test_a_store_that_does_not_open_is_a_problem_and_the_machine_is_checked(shop: Cli, tmp_path: Path) -> None:
    with (tmp_path / "store" / "floodmark.toml").open("a") as file:
        file.write("[run]\nmore = 1\n")
    done = shop("doctor", "--no-spark", "--json")
    assert done.code == 1
    assert done.json["checks"][0]["name"] == "store"
    assert "java" in {one["name"] for one in done.json["checks"]}
