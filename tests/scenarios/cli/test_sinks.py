"""Sinks on the command line: what can be told and refused without Spark."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

import pytest
from click.testing import CliRunner

import floodmark.store
from floodmark.cli.entry import run
from floodmark.cli.group import app
from floodmark.errors import InvalidSetting
from floodmark.testing import MemoryLake


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
    assert ("WARNING: The token is sent unencrypted" in capsys.readouterr().err) is clear


def test_a_command_names_only_functions_that_the_settings_allow_and_is_told_the_line_to_add(
    store: Path, tmp_path: Path, monkeypatch, capsys
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "imported_by_nobody.py").write_text("raise SystemExit('this code ran')\n")
    (tmp_path / "my_totals.py").write_text("def add_up(batch):\n    pass\n")
    command = ["-s", str(store), "sink", "add", "totals", "projection", "--function"]

    assert run([*command, "imported_by_nobody:function"]) == 1
    assert run([*command, "my_totals:add_up"]) == 1
    said = capsys.readouterr().err
    assert 'Try:   Add this to [functions] in floodmark.toml: allow = ["my_totals"]' in said

    settings = store / "floodmark.toml"
    settings.write_text(settings.read_text().replace("# allow = []", 'allow = ["my_totals"]'))
    assert run([*command, "my_totals:add_up"]) == 0
    assert run(["-s", str(store), "sink", "change", "totals", "--set", "function=my_totals_too:add_up"]) == 1
    assert run(["-s", str(store), "dataset", "add", "n", "--settle", "os:system"]) == 1
    assert 'allow = ["my_totals", "os"]' in capsys.readouterr().err


def test_with_a_list_of_functions_nothing_else_runs_whoever_named_it(store: Path, tmp_path: Path, monkeypatch) -> None:
    """Also what was added before the list was there: it is looked at again before the function is imported."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "my_figures.py").write_text("def add_up(batch):\n    pass\n")
    lake = MemoryLake()
    with floodmark.store.open_store(store, lake=lake) as opened:
        opened.add_sink("totals", "projection", function="my_figures:add_up")
        opened.capture("m", [{"n": 1}])
        opened.flush()
    settings = store / "floodmark.toml"
    settings.write_text(settings.read_text().replace("# allow = []", 'allow = ["other"]'))
    with floodmark.store.open_store(store, lake=lake) as opened:
        assert "do not allow functions of the module 'my_figures'" in (opened.export("totals").blocked or "")
        with pytest.raises(InvalidSetting, match="do not allow"):
            opened.add_sink("more", "projection", function="my_figures:add_up")
        with pytest.raises(InvalidSetting, match="do not allow"):
            opened.add_dataset("n", settle="my_figures:add_up")


def test_status_tells_how_far_each_sink_is_and_what_keeps_it_back(shop, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    assert shop("dataset", "add", "visits", "--partition-by", "site").code == 0
    assert shop("sink", "add", "good", "blob", "--url", (tmp_path / "good").as_uri()).code == 0
    assert shop("sink", "add", "bad", "blob", "--url", (tmp_path / "file").as_uri(), "--datasets", "visits").code == 0
    url = (tmp_path / "none").as_uri()
    assert shop("sink", "add", "none", "blob", "--url", url, "--datasets", "visits", "--partition", "site=z").code == 0
    shop("capture", "visits", "-", stdin=b'{"n": 1, "site": "a"}\n{"n": 2, "site": "b"}\n{"n": 3, "site": "a"}\n')
    shop("flush")
    shop("export", "good")
    assert shop("export", "bad").code == 1

    told = {item["name"]: item for item in shop("status", "--json").json["sinks"]}

    assert (told["good"]["state"], told["good"]["lag"], told["good"]["reason"]) == ("active", 0, None)
    assert told["good"]["next_attempt"] is None
    assert (told["bad"]["state"], told["bad"]["lag"]) == ("blocked", 3)
    assert "A part of the path is a file" in told["bad"]["reason"]
    assert datetime.fromisoformat(told["bad"]["next_attempt"])
    assert {item["partition"]: item["lag"] for item in told["bad"]["channels"]} == {"site=a": 2, "site=b": 1}
    assert told["none"]["warnings"] == ["No existing partition has site=z."]
    shown = shop("status").out
    assert [line.split()[:5] for line in shown.splitlines() if line.startswith(("good", "bad "))] == [
        ["bad", "blob", (tmp_path / "file").as_uri(), "blocked", "3"],
        ["good", "blob", (tmp_path / "good").as_uri(), "active", "0"],
    ]
    warning = "Warning: sink none does not deliver everything that its settings name."
    assert f"{warning} No existing partition has site=z." in shown
    assert [line.split() for line in shown.splitlines() if "site=" in line][:2] == [
        ["visits", "site=a", "2", "3"],
        ["visits", "site=b", "1", "2"],
    ]
    (tmp_path / "file").unlink()
    assert shop("export", "bad").code == 0
    told = {item["name"]: item for item in shop("status", "--json").json["sinks"]}
    assert (told["bad"]["state"], told["bad"]["lag"], told["bad"]["reason"], told["bad"]["next_attempt"]) == (
        "active",
        0,
        None,
        None,
    )


def test_what_passes_by_itself_is_told_by_status_with_the_next_attempt(shop) -> None:
    """A sink that is not blocked has a problem too while its server is away."""
    shop("dataset", "add", "m")
    shop("sink", "add", "central", "forward", "--url", "http://127.0.0.1:9", "--set", "wait_seconds_max=0")
    shop("capture", "m", "-", stdin=b'{"n": 1}\n')
    shop("flush")
    assert shop("export", "central").code == 1
    (told,) = shop("status", "--json").json["sinks"]
    assert (told["state"], told["lag"]) == ("active", 1)
    assert told["reason"]
    assert datetime.fromisoformat(told["next_attempt"])


def test_an_audit_counts_all_committed_rows_and_says_when_none_is_in_scope(shop, tmp_path: Path) -> None:
    shop("dataset", "add", "m")
    shop("sink", "add", "out", "blob", "--url", (tmp_path / "out").as_uri())
    assert "No committed row is in the scope of sink out yet." in shop("audit", "out").out
    shop("capture", "m", "-", stdin=b"".join(b'{"n": %d}\n' % n for n in range(20)))
    shop("flush")
    (channel,) = shop("audit", "out", "--json").json["channels"]
    assert (channel["committed"], channel["settled"], channel["waiting"]) == (20, 0, 20)
    shop("export")
    (channel,) = shop("audit", "out", "--json").json["channels"]
    assert (channel["committed"], channel["settled"], channel["waiting"]) == (20, 20, 0)
