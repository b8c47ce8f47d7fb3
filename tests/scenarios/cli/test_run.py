"""`floodmark run` on the command line: its lines, its exit codes, and who may run it."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from pathlib import Path

import httpx
import orjson
import pytest

from floodmark.daemon.loop import present
from s3 import free_port
from waiting import wait_until


def test_one_round_commits_and_delivers_and_says_so(shop, tmp_path: Path):
    shop("capture", "orders", stdin=b'{"id": "a"}\n{"id": "b"}\n{"id": "a"}\n')
    shop("sink", "add", "archive", "blob", "--url", (tmp_path / "out").as_uri(), "--format", "jsonl")

    done = shop("run", "--once")

    assert (done.code, done.out) == (0, "")
    flushed, exported = [line.partition(" ")[2] for line in done.err.splitlines()]
    assert flushed.startswith("dataset orders: 2 rows committed, in (0, 3], 1 duplicate (")
    assert exported.startswith("sink archive: 2 rows in 1 chunk (")
    assert shop("run", "--once").err == ""


def test_with_json_every_event_is_a_line_on_standard_output(shop, tmp_path: Path):
    shop("capture", "orders", stdin=b'{"id": "a"}\n')
    shop("sink", "add", "archive", "blob", "--url", (tmp_path / "out").as_uri())

    done = shop("run", "--once", "--json")

    assert done.err == ""
    flushed, exported = done.rows
    assert (flushed["event"], flushed["dataset"], flushed["rows"]) == ("flushed", "orders", 1)
    assert flushed["block"] == {"after": 0, "through": 1}
    assert (exported["event"], exported["sink"], exported["rows"], exported["chunks"]) == ("exported", "archive", 1, 1)


def test_one_round_that_fails_in_part_ends_with_1_and_the_reason(shop, tmp_path: Path):
    shop("capture", "orders", stdin=b'{"id": "a"}\n')
    (tmp_path / "file").write_text("")
    shop("sink", "add", "broken", "blob", "--url", (tmp_path / "file" / "below").as_uri())
    shop("sink", "add", "works", "blob", "--url", (tmp_path / "out").as_uri())

    done = shop("run", "--once")

    assert done.code == 1
    assert "sink broken: " in done.err
    assert "sink works: 1 row in 1 chunk" in done.err


def test_a_second_one_is_refused_with_the_way_out(shop, tmp_path: Path):
    with present(tmp_path / "store", beside=False):
        refused = shop("run", "--once")
        assert refused.code == 1
        assert refused.err.startswith(f"Error: `floodmark run` is already running on {tmp_path / 'store'} (process ")
        assert "--beside" in refused.err
        assert shop("run", "--once", "--beside").code == 0


def test_a_signal_stops_it(shop):
    threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGTERM)).start()

    done = shop("run", "--json")

    assert done.code == 0
    assert [row["event"] for row in done.rows] == ["started", "stopping", "stopped"]
    assert done.rows[1]["reason"] == "SIGTERM"


def test_lines_that_nobody_reads_stop_nothing(shop, tmp_path: Path, monkeypatch):
    shop("capture", "orders", stdin=b'{"id": "a"}\n')
    shop("sink", "add", "archive", "blob", "--url", (tmp_path / "out").as_uri(), "--format", "jsonl")

    def gone(*_: object, **__: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr("floodmark.cli.run.click.echo", gone)
    assert shop("run", "--once").code == 0
    (stored,) = (tmp_path / "out").glob("orders/*/*.jsonl")
    assert orjson.loads(stored.read_text())["id"] == "a"


def test_with_listen_it_says_where_and_answers_until_it_stops(shop):
    port, answers = free_port(), []

    def look() -> None:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:

            def answered() -> bool:
                with contextlib.suppress(httpx.TransportError):
                    answers.append(client.get("/healthz").json())
                return bool(answers)

            wait_until(answered)
            answers.append(client.get("/").status_code)
        os.kill(os.getpid(), signal.SIGTERM)

    looking = threading.Thread(target=look)
    looking.start()
    done = shop("run", "--json", "--listen", f"127.0.0.1:{port}")
    looking.join()
    assert done.code == 0
    assert [row["event"] for row in done.rows] == ["listening", "started", "stopping", "stopped"]
    assert done.rows[0]["address"] == f"http://127.0.0.1:{port}"
    assert answers == [{"status": "alive"}, 200]
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"http://127.0.0.1:{port}/healthz")


def test_the_setting_does_the_same_and_a_wrong_one_is_refused_before_anything_begins(shop, tmp_path: Path):
    settings = tmp_path / "store" / "floodmark.toml"
    settings.write_text(settings.read_text().replace('# listen = ""', 'listen = "nowhere"'))
    refused = shop("run")
    assert refused.code == 1
    assert "'nowhere' is not an address to listen on." in refused.err
    assert shop("run", "--once").code == 0, "once serves nothing"


def test_with_log_json_every_line_is_an_object(shop):
    shop("capture", "orders", stdin=b'{"id": "a"}\n')
    done = shop("run", "--once", "--log", "json")
    assert done.out == ""
    (flushed,) = [orjson.loads(line) for line in done.err.splitlines()]
    assert (flushed["event"], flushed["level"], flushed["rows"]) == ("flushed", "info", 1)
    assert flushed["text"].startswith("dataset orders: 1 row committed")
