"""Sinks on the command line: what can be told and refused without Spark."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from floodmark.cli.entry import run
from floodmark.cli.group import app


@pytest.fixture
def store(tmp_path: Path) -> Path:
    assert run(["-s", str(tmp_path / "store"), "init"]) == 0
    assert run(["-s", str(tmp_path / "store"), "dataset", "add", "m"]) == 0
    return tmp_path / "store"


def test_a_sink_is_added_listed_and_removed(store: Path, tmp_path: Path) -> None:
    command = CliRunner()
    url = (tmp_path / "out").as_uri()
    added = command.invoke(app, ["-s", str(store), "sink", "add", "archive", "blob", "--url", url, "--format", "jsonl"])
    assert added.exit_code == 0

    listed = json.loads(command.invoke(app, ["-s", str(store), "sink", "list", "--json"]).stdout)

    assert [(item["name"], item["place"], item["state"], item["watermarks"]) for item in listed] == [
        ("archive", url, "active", {"m": 0})
    ]
    assert command.invoke(app, ["-s", str(store), "sink", "remove", "archive"]).exit_code == 0
    assert "No sinks yet" in command.invoke(app, ["-s", str(store), "sink", "list"]).stdout


def test_an_export_with_nothing_to_deliver_starts_no_jvm(store: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    run(["-s", str(store), "sink", "add", "archive", "blob", "--url", (tmp_path / "out").as_uri()])

    done = CliRunner().invoke(app, ["-s", str(store), "export", "--json"])

    assert done.exit_code == 0
    assert [(report["sink"], report["rows"]) for report in json.loads(done.stdout)] == [("archive", 0)]


def test_a_sink_that_cannot_be_is_refused_with_the_way_out(store: Path, capsys) -> None:
    assert run(["-s", str(store), "sink", "add", "archive", "blob", "--url", "ftp://x"]) == 1
    said = capsys.readouterr().err
    assert "Error: The url 'ftp://x' cannot be delivered to." in said
    assert "Try:" in said


@pytest.mark.parametrize("setting", ["start=5", "start=true", "chunk_rows=" + "9" * 5000, "cron=5"])
def test_a_setting_of_the_wrong_kind_is_told_in_a_sentence(store: Path, tmp_path: Path, capsys, setting: str) -> None:
    url = (tmp_path / "out").as_uri()
    assert run(["-s", str(store), "sink", "add", "archive", "blob", "--url", url, "--set", setting]) == 1
    said = capsys.readouterr().err
    assert said.startswith("Error: ")
    assert "unexpected" not in said


@pytest.mark.parametrize(
    ("url", "clear"),
    [("http://203.0.113.9:8080", True), ("https://203.0.113.9", False), ("http://127.0.0.1:8080", False)],
)
def test_a_token_that_would_travel_in_the_clear_is_warned_about(store: Path, capsys, url: str, clear: bool) -> None:
    capsys.readouterr()
    assert run(["-s", str(store), "sink", "add", "hub", "forward", "--url", url, "--token", "env:HUB_TOKEN"]) == 0
    assert ("WARNING: The token travels in the clear" in capsys.readouterr().err) is clear
