"""`floodmark log`: every verb, its text and its JSON."""

import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from floodmark.cli.log import log as group
from floodmark.errors import FloodmarkError, InvalidCursor, LogMissing, Permanent, VersionConflict
from floodmark.eventlog import SqlTarget


@pytest.fixture
def call(tmp_path):
    def run(*arguments, code=0, raises=None):
        result = CliRunner().invoke(group, [str(a) for a in arguments])
        if raises is not None:
            assert isinstance(result.exception, raises), result.output
            return result.exception
        assert result.exit_code == code, (result.output, result.exception)
        return json.loads(result.stdout) if "--json" in arguments else result.stdout

    return run


@pytest.fixture
def ledger(tmp_path, call):
    path = tmp_path / "ledger"
    call("init", path)
    call("append", path, "account-1", '{"amount": 5}', "--type", "Deposited")
    return path


@pytest.fixture
def forked(ledger, tmp_path, call):
    other = tmp_path / "other"
    shutil.copytree(ledger, other)
    call("append", ledger, "account-1", '{"amount": 6}')
    call("append", other, "account-1", '{"amount": 7}')
    shutil.copytree(other / "events", ledger / "events", dirs_exist_ok=True)
    return ledger


def test_init_says_what_it_added_and_can_be_repeated(tmp_path, call):
    first = call("init", tmp_path / "log", "--json")
    assert first["replica_id"] == call("init", tmp_path / "log", "--json")["replica_id"]
    (tmp_path / "log" / ".gitattributes").write_text("events/** merge=union\n")
    assert call("init", tmp_path / "log", "--json")["added"] == [".gitattributes: events/** merge=union -text"]
    assert call("init", tmp_path / "log", "--new-identity", "--json")["replica_id"] != first["replica_id"]


def test_append_checks_versions_and_reports_new_ones(ledger, tmp_path, call):
    assert "account-1 is at version 2" in call("append", ledger, "account-1", "{}", "--expect", "1")
    assert isinstance(
        call("append", ledger, "account-1", "{}", "--expect", "1", raises=VersionConflict), VersionConflict
    )
    transfer = tmp_path / "transfer.jsonl"
    transfer.write_text(
        '{"stream": "account-1", "data": {"amount": -1}}\n\n{"stream": "account-2", "data": 1, "type": "In"}\n'
    )
    done = call("append", ledger, "--events", transfer, "--expect", "account-1=2", "--expect", "account-2=0", "--json")
    assert done["versions"] == {"account-1": 3, "account-2": 1}
    transfer.write_text('{"data": 1}\n')
    assert "Line 1" in str(call("append", ledger, "--events", transfer, raises=Permanent))
    assert "not JSON" in str(call("append", ledger, "s", "{", raises=Permanent))
    call("append", ledger, "s", code=2)
    call("append", ledger, "s", "1", "--expect", "x", code=2)


def test_show_and_events_print_streams_and_arrivals(forked, call):
    assert call("show", forked, "--json") == {"account-1": 3}
    assert [e["version"] for e in call("show", forked, "account-1", "--after", "1", "--json")] == [2, 3]
    assert [e["seq"] for e in call("events", forked, "--json")] == [1, 2, 3]
    assert [e["data"]["amount"] for e in call("events", forked, "--after", "2", "--json")] == [7]
    assert call("events", forked, "--type", "Deposited").splitlines()[1].split() == [
        "1",
        "account-1",
        "Deposited",
        '{"amount":5}',
        call("events", forked, "--json")[0]["transaction_id"][-8:],
    ]
    assert call("events", forked, "--pattern", "*-2", "--json") == []


def test_forks_are_listed_and_decided_by_a_resolver_of_the_user(forked, tmp_path, call, monkeypatch):
    assert "account-1 forked at version 1" in call("forks", forked)
    (fork,) = call("forks", forked, "--json")
    assert fork["streams"] == ["account-1"]
    assert len(fork["branches"]) == 2
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rules.py").write_text(
        "from floodmark.eventlog import Event, Unresolvable\n"
        "def decline(fork): return Unresolvable('ask first')\n"
        "def add(fork):\n"
        "    amounts = [e.data['amount'] for b in fork.branches for e in b.events]\n"
        "    return [Event(fork.stream, {'amount': sum(amounts)})]\n"
    )
    assert "ask first" in call("reconcile", forked, "--resolver", "rules:decline")
    assert call("status", forked, "--json")["forks"][0]["reason"] == "ask first"
    assert len(call("reconcile", forked, "--resolver", "rules:add", "--json")["resolved"]) == 1
    assert call("show", forked, "account-1", "--json")[-1]["data"] == {"amount": 13}
    assert call("forks", forked) == "No open forks.\n"
    assert "cannot be loaded" in str(call("reconcile", forked, "--resolver", "rules:nothing", raises=Permanent))
    call("reconcile", forked, code=2)


def test_accepting_all_branches_decides_without_adding_events(forked, call):
    assert call("reconcile", forked, "--accept-all") == "1 fork resolved, 0 left open.\n"
    assert call("status", forked).endswith("clean\n")
    assert call("show", forked, "--json") == {"account-1": 3}


def test_status_and_fsck_name_what_is_wrong(forked, call):
    text = call("status", forked)
    assert "fork on account-1 at version 1: not decided yet" in text
    assert text.endswith("problems found\n")
    assert call("fsck", forked, "--json")["ok"] is True
    file = min((forked / "events").iterdir())
    file.write_bytes(file.read_bytes().replace(b":5}", b":9}"))
    assert f"error: events/{file.name}" in call("fsck", forked, code=3)
    assert file.name in call("status", forked)
    call("status", forked / "nowhere", raises=LogMissing)


def test_project_runs_a_projection_into_a_database(ledger, tmp_path, call, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "views.py").write_text(
        "from floodmark.eventlog import projection\n"
        "@projection('totals', on_poison='quarantine',\n"
        "            setup=lambda c: c.exec_driver_sql('CREATE TABLE IF NOT EXISTS totals (amount INTEGER)'))\n"
        "def totals(event, connection):\n"
        "    connection.exec_driver_sql('INSERT INTO totals VALUES (?)', (event.data['amount'],))\n"
        "plain = 1\n"
    )
    call("append", ledger, "account-1", "{}")
    target = f"sqlite:///{tmp_path / 't.db'}"
    assert call("project", ledger, "views:totals", "--target", target) == "1 event applied, 1 in quarantine.\n"
    assert call("project", ledger, "views:totals", "--target", target, "--json")["applied"] == 0
    assert call("project", ledger, "views:totals", "--target", target, "--retry", "--json")["quarantined"] == 1
    with sqlite3.connect(tmp_path / "t.db") as connection:
        assert list(connection.execute("SELECT amount FROM totals")) == [(5,)]
    assert "not a projection" in str(call("project", ledger, "views:plain", "--target", target, raises=Permanent))


PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "event-log.md"


def page_command(word):
    """The arguments of the command on the page, as one types them."""
    (line,) = re.findall(rf"^\$ floodmark log ({word} .*)$", PAGE.read_text(), re.MULTILINE)
    return line.split()


@pytest.fixture
def shop(tmp_path, monkeypatch):
    """The page's own modules, written down as the page has them, in the current directory."""
    monkeypatch.chdir(tmp_path)
    modules = re.findall(r"```python\n# (\w+)\.py\n(.*?)```", PAGE.read_text(), re.DOTALL)
    for name, text in modules:
        (tmp_path / f"{name}.py").write_text(text)
    yield
    for name, _ in modules:
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("shop")
def test_the_projection_and_the_command_of_the_page_work_as_they_stand_there(ledger, tmp_path, call):
    call("append", ledger, "account-1", '{"amount": 8}')
    assert call(*page_command("project")) == "2 events applied, 0 in quarantine.\n"
    with sqlite3.connect(tmp_path / "balances.db") as connection:
        assert list(connection.execute("SELECT * FROM balances")) == [("account-1", 13)]


@pytest.mark.usefixtures("shop")
def test_the_resolver_and_the_command_of_the_page_work_as_they_stand_there(forked, call):
    assert call(*page_command("reconcile")) == "1 fork resolved, 0 left open.\n"


def test_a_projection_written_for_another_connection_is_refused_in_a_sentence(ledger, tmp_path, call, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plain.py").write_text(
        "from floodmark.eventlog import projection\n"
        "@projection('plain', on_poison='quarantine', setup=lambda c: c.execute('CREATE TABLE t (a INTEGER)'))\n"
        "def plain(event, connection): pass\n"
    )
    error = call("project", ledger, "plain:plain", "--target", f"sqlite:///{tmp_path / 't.db'}", raises=Permanent)
    assert "'plain' failed in its setup: ObjectNotExecutableError" in error.message
    assert "SQLAlchemy" in error.hint


def test_a_module_that_fails_when_it_is_loaded_is_told_with_its_reason(ledger, tmp_path, call, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hasty.py").write_text("nowhere.run()\n")
    error = call("project", ledger, "hasty:x", "--target", "sqlite://", raises=Permanent)
    assert "NameError: name 'nowhere' is not defined" in error.message


def test_graph_draws_the_same_transactions_in_every_format(forked, tmp_path, call):
    from xml.etree import ElementTree as ET

    call("reconcile", forked, "--accept-all")
    ids = {file.stem[-8:] for file in (forked / "events").iterdir()}
    text = call("graph", forked)
    assert all(one in text for one in ids)
    assert text.splitlines()[0].endswith("(head, merge, decision)")
    assert "|/" in text
    mermaid = call("graph", forked, "--format", "mermaid")
    assert mermaid.startswith("flowchart TB\n")
    assert mermaid.count("-->") == 4
    call("graph", forked, "--format", "svg", "--output", tmp_path / "g.svg")
    drawing = ET.parse(tmp_path / "g.svg").getroot()
    assert len(drawing.findall(".//{http://www.w3.org/2000/svg}circle")) == len(ids)
    assert len(call("graph", forked, "--limit", "1").splitlines()) <= 2


@pytest.mark.parametrize("text", ["²", "9" * 5000])
def test_what_is_no_number_is_refused_as_a_position_and_as_a_version(call, ledger, text):
    assert isinstance(call("events", ledger, "--after", text, raises=InvalidCursor), InvalidCursor)
    call("append", ledger, "account-1", "{}", "--expect", text, code=2)


@pytest.mark.parametrize(
    "target",
    [
        "postgresql+psycopg://u:hush@127.0.0.1:port/x",
        "nothing://u:hush@h/x",
        "postgresql+psycopg://u:hush@127.0.0.1:9/x",
    ],
)
def test_a_target_that_cannot_be_used_is_told_without_its_password(target, ledger):
    with pytest.raises(FloodmarkError) as caught:
        SqlTarget(target).begin()
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_place_whose_name_is_no_text_is_a_place_as_well(tmp_path, options):
    place = os.fsencode(tmp_path) + b"/\xff"
    for _ in range(2):  # and is known again
        done = subprocess.run(
            [sys.executable, "-m", "floodmark.cli", "log", "init", place, *options], capture_output=True, check=False
        )
        assert b"unexpected" not in done.stderr
        assert done.returncode == 0, done.stderr
