"""Every command that reports something does it as JSON, too; and long work says how far it is, and what is left."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import click
import orjson
import pytest

from docs.test_docs_keep_up import commands
from floodmark.cli import output
from floodmark.cli.group import app
from floodmark.cli.output import Progress, progress
from floodmark.signals import INTERRUPTED
from floodmark.store import Store
from scenarios.cli.conftest import Cli
from waiting import wait_until

PRINTS_A_TEXT_FOR_A_PROGRAM = {"completion", "log graph"}
"""A script for a shell, a drawing for a renderer: these are no reports."""


def leaves() -> list[tuple[str, click.Command]]:
    return [(" ".join(path), command) for path, command in commands(app) if not isinstance(command, click.Group)]


def options(command: click.Command) -> set[str]:
    return {name for one in command.params if isinstance(one, click.Option) for name in one.opts}


def test_every_command_has_json() -> None:
    missing = {name for name, command in leaves() if "--json" not in options(command)}
    assert missing == PRINTS_A_TEXT_FOR_A_PROGRAM


def test_every_command_that_removes_or_rewinds_shows_first_what_it_would_do() -> None:
    dangerous = {"retain", "purge", "compact", "dataset remove", "sink rewind", "quarantine discard"}
    found = {name for name, command in leaves() if "--dry-run" in options(command)}
    assert dangerous <= found


def test_rows_are_one_json_document(shop: Cli) -> None:
    assert shop("read", "orders", "--json").json == []
    shop("capture", "orders", "-", stdin=b'{"id": 1, "total": 5}\n{"id": 2}\n')
    shop("flush")
    assert [row["id"] for row in shop("read", "orders", "--json").json] == [1, 2]
    assert shop("read", "orders", "--format", "json", "--columns", "total").json == [{"total": 5}, {"total": None}]


@pytest.mark.parametrize(
    ("words", "report"),
    [
        (["token", "add", "edge", "--capture", "--any-dataset", "--json"], {"name": "edge"}),
        (["token", "revoke", "edge", "--json"], {"token": "edge", "revoked": True}),
    ],
)
def test_what_is_changed_is_reported_as_json(shop: Cli, words: list[str], report: dict[str, object]) -> None:
    if words[1] == "revoke":
        shop("token", "add", "edge", "--capture", "--any-dataset")
    assert report.items() <= shop(*words).json.items()


# ── progress ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_line_has_rows_rate_and_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(output.time, "monotonic", lambda: now[0])
    shown = Progress("Exporting to archive")
    assert shown.line() == "Exporting to archive …"
    now[0] = 10.0
    assert shown.line() == "Exporting to archive … 10 s"
    shown.step("orders")
    assert shown.line() == "Exporting to archive: orders … 10 s"
    shown.update(2000, total=9000)
    assert shown.line() == "Exporting to archive: 2,000 of 9,000 rows, 200/s, about 35 s left"
    shown.update(2000, done=50, total=100)
    assert shown.line() == "Exporting to archive: 2,000 rows, 200/s, about 10 s left"
    shown.update(2000)
    assert shown.line() == "Exporting to archive: 2,000 rows, 200/s"


def test_long_work_writes_plain_lines_where_there_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "FIRST_SECONDS", 0.0)
    monkeypatch.setattr(output, "LATER_SECONDS", 0.001)
    said = io.StringIO()
    monkeypatch.setattr(sys, "stderr", said)
    with progress("Counting") as shown:
        shown.update(7, total=9)
        wait_until(lambda: "Counting: 7 of 9 rows" in said.getvalue())
    assert "\x1b" not in said.getvalue()


def test_short_work_writes_nothing(shop: Cli) -> None:
    shop("capture", "orders", "-", stdin=b'{"id": 1}\n')
    assert "Flushing" not in shop("flush").err


@pytest.mark.parametrize(
    ("words", "method", "left"),
    [
        (["flush", "orders"], "flush", "safe in the spool"),
        (["export", "archive"], "export", "continues with the same chunks"),
        (["compact"], "compact", "Run the same command again"),
        (["audit", "archive"], "audit", "Nothing was changed"),
        (["purge", "orders", "--where", "id = '1'"], "purge", "Run the same command again"),
        (["rebuild", "orders"], "rebuild", "Run the same command again"),
    ],
)
def test_an_interrupted_command_says_what_is_left(
    shop: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], method: str, left: str
) -> None:
    shop("sink", "add", "archive", "blob", "--url", (tmp_path / "out").as_uri())

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Store, method, interrupted)
    done = shop(*words)
    assert done.code == INTERRUPTED
    assert left in done.err
    assert "All acknowledged rows are safe." in done.err


def test_a_hub_tells_programs_where_it_listens(shop: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("floodmark.hub.serve.serve", lambda _path, **given: given["listening"]("http://127.0.0.1:1"))
    lines = [orjson.loads(line) for line in shop("hub", "--json").out.splitlines()]
    assert lines == [
        {"event": "listening", "address": "http://127.0.0.1:1", "workers": 2},
        {"event": "stopped", "at_once": False},
    ]
