"""What a person changes from the command line: pauses, positions, settle functions, datasets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scenarios.cli.conftest import Cli


@pytest.fixture
def sold(shop: Cli, tmp_path: Path) -> Cli:
    """Three orders, delivered to files."""
    shop("sink", "add", "archive", "blob", "--url", (tmp_path / "out").as_uri())
    shop("capture", "orders", "-", stdin=b'{"id": 1}\n{"id": 2}\n{"id": 3}\n')
    shop("flush")
    assert shop("export").code == 0
    return shop


def test_a_paused_sink_is_left_out_and_named_it_is_an_error(sold: Cli) -> None:
    assert sold("sink", "pause", "archive").code == 0
    done = sold("export")
    assert (done.code, "archive is paused" in done.err) == (0, True)
    done = sold("export", "archive")
    assert (done.code, "sink resume archive" in done.err) == (1, True)
    assert sold("status", "--json").json["sinks"][0]["state"] == "paused"
    assert sold("sink", "resume", "archive", "--json").json == {"sink": "archive", "paused": False}
    assert sold("export", "archive").code == 0


def test_a_paused_dataset_is_captured_and_shown(sold: Cli) -> None:
    assert sold("dataset", "pause", "orders", "--json").json == {"dataset": "orders", "paused": True}
    assert sold("capture", "orders", "-", stdin=b'{"id": 4}\n').code == 0
    done = sold("flush")
    assert (done.code, "orders is paused" in done.err) == (0, True)
    assert sold("flush", "orders").code == 1
    assert "paused since" in sold("status").err
    assert sold("dataset", "resume", "orders").code == 0
    assert sold("flush", "--json").json[0]["rows"] == 1


def test_a_sink_is_rewound_after_it_was_shown_where_to(sold: Cli, tmp_path: Path) -> None:
    lost = next((tmp_path / "out").rglob("*.parquet"))
    lost.unlink()
    assert sold("audit", "archive").code == 3
    done = sold("sink", "rewind", "archive", "--beginning", "--dry-run")
    assert (done.code, "Nothing was changed." in done.out) == (0, True)
    assert sold("export", "archive", "--json").json[0]["rows"] == 0
    assert sold("sink", "rewind", "archive", "--beginning", "--json").json["channels"][0]["position"] == 0
    assert sold("export", "archive").code == 0
    assert lost.exists()
    assert sold("audit", "archive", "--deep").code == 0


@pytest.mark.parametrize("words", [[], ["--beginning", "--to", "x"]])
def test_where_to_rewind_to_is_said_exactly_once(sold: Cli, words: list[str]) -> None:
    assert sold("sink", "rewind", "archive", *words).code == 2


def test_a_dataset_is_removed_after_what_depends_on_it_was_shown(sold: Cli) -> None:
    sold("sink", "add", "more", "blob", "--url", "file:///nonexistent/x", "--datasets", "orders")
    done = sold("dataset", "remove", "orders", "--dry-run")
    assert done.code == 0
    assert "3 committed rows" in done.out
    assert "Sink more names it. It delivers nothing else" in done.out
    assert sold("dataset", "remove", "orders").code == 2, "nobody is there to be asked"
    done = sold("dataset", "remove", "orders", "--yes")
    assert (done.code, "sink remove more" in done.err) == (1, True)
    sold("sink", "remove", "more")
    assert sold("dataset", "remove", "orders", "--yes", "--json").json["removed"] is True
    assert sold("dataset", "list", "--json").json == []
    assert sold("dataset", "add", "orders").code == 1


def test_a_settle_function_is_changed_and_taken_away(sold: Cli, tmp_path: Path) -> None:
    text = (tmp_path / "store" / "floodmark.toml").read_text().replace("# allow = []", 'allow = ["json"]')
    (tmp_path / "store" / "floodmark.toml").write_text(text)
    assert sold("dataset", "change", "orders").code == 2
    assert sold("dataset", "change", "orders", "--settle", "os:getcwd").code == 1, "not allowed"
    assert sold("dataset", "change", "orders", "--settle", "json:nothing").code == 1, "not there"
    done = sold("dataset", "change", "orders", "--settle", "json:dumps")
    assert (done.code, "json:dumps" in done.out) == (0, True)
    assert json.loads(sold("dataset", "change", "orders", "--no-settle", "--json").out)["name"] == "orders"
