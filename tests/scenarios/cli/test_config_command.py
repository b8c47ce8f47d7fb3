"""`config check` and `config show`: what is set, where, and what is wrong with it, without opening the store."""

from __future__ import annotations

from pathlib import Path

import pytest

from scenarios.cli.conftest import Cli


def setting(tmp_path: Path, text: str) -> None:
    with (tmp_path / "store" / "floodmark.toml").open("a") as file:
        file.write(text)


def test_a_new_store_has_valid_settings(shop: Cli) -> None:
    done = shop("config", "check")
    assert done.code == 0
    assert "is valid. Values from the file: 1, from the environment: 0" in done.out


def test_every_problem_is_listed_with_its_place_and_what_is_allowed(
    shop: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting(tmp_path, "[lines]\nmore = 1\n")
    monkeypatch.setenv("FLOODMARK_RUN__FLUSH_SECOND", "1")
    monkeypatch.setenv("FLOODMARK_RUN__FLUSH_BYTES", "-1")
    done = shop("config", "check", "--json")
    assert done.code == 1
    assert not done.json["valid"]
    assert sorted(str(one["variable"]) for one in done.json["problems"]) == [
        "FLOODMARK_RUN__FLUSH_BYTES",
        "FLOODMARK_RUN__FLUSH_SECOND",
        "None",
    ]
    done = shop("config", "check")
    assert (done.code, done.out) == (1, "")
    assert "FLOODMARK_RUN__FLUSH_SECONDS" in done.err
    assert "3 problems found." in done.err
    assert shop("config", "show").code == 1
    assert shop("status").code == 1, "and nothing opens a store whose settings are not what they seem"


def test_values_are_shown_with_their_origin_and_without_secrets(
    shop: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting(tmp_path, '[catalogs.far]\ntype = "rest"\nuri = "https://a"\ntoken = "hush"\n')
    monkeypatch.setenv("FLOODMARK_RUN__FLUSH_SECONDS", "0.5")
    done = shop("config", "show")
    assert done.code == 0
    assert "hush" not in done.out
    lines = {line.split()[0]: line for line in done.out.splitlines()}
    assert "FLOODMARK_RUN__FLUSH_SECONDS" in lines["run.flush_seconds"]
    assert "file, line" in lines["catalogs.far.uri"]
    assert "default" in lines["run.compact"]
    assert "true or false" in lines["run.compact"]
    shown = shop("config", "show", "--changed", "--json").json["settings"]
    assert {one["key"] for one in shown if one["from"] == "environment"} == {"run.flush_seconds"}
    assert "run.compact" not in {one["key"] for one in shown}


def test_the_environment_is_what_a_store_runs_with(shop: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOODMARK_SPOOL__BACKLOG_BYTES_MAX", "1")
    shop("capture", "orders", "-", stdin=b'{"id": 1}\n')
    done = shop("capture", "orders", "-", stdin=b'{"id": 2}\n')
    assert done.code == 1
    assert "its limit is 1." in done.err


def test_settings_are_shown_without_a_control_database(shop: Cli, tmp_path: Path) -> None:
    (tmp_path / "store" / "control.db").unlink()
    assert shop("config", "show").code == 0
