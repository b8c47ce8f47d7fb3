"""`floodmark status --watch`: lines where there is no terminal, a screen where there is one."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import time
from pathlib import Path

import orjson
from rich.console import Console

from floodmark.cli.watch import screen_of, trend_bars
from floodmark.dashboard.watch import Watch
from floodmark.store import Store


def test_without_a_terminal_each_reading_is_a_line(shop, tmp_path: Path):
    shop("sink", "add", "archive", "blob", "--url", (tmp_path / "out").as_uri())
    shop("capture", "orders", stdin=b'{"id": "a"}\n{"id": "b"}\n')
    shop("flush")
    done = shop("status", "--watch", "--seconds", "0.1", "--count", "2")
    first, second = done.out.splitlines()
    assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ All is well\.", first)
    assert "dataset orders: 2 rows, 0 B waiting." in second
    assert "sink archive: behind, 2 rows behind, " in second


def test_with_json_each_reading_is_a_document_on_a_line(shop):
    done = shop("status", "--watch", "--json", "--seconds", "0.1", "--count", "3")
    assert [orjson.loads(line)["datasets"][0]["name"] for line in done.out.splitlines()] == ["orders"] * 3


def test_the_screen_shows_sinks_datasets_and_what_needs_attention(store: Store, tmp_path: Path):
    store.add_dataset("m", schema={"n": "long"})
    (tmp_path / "file").write_text("")
    store.add_sink("broken", "blob", url=(tmp_path / "file" / "below").as_uri())
    store.capture("m", [{"n": 1}, {"n": "x\x1b[31m"}])
    store.flush()
    store.export()
    watch = Watch(store.engine)
    watch.sample()
    console = Console(width=200, record=True, file=open(os.devnull, "w"))  # noqa: PTH123, SIM115
    console.print(screen_of(watch, watch.now()))
    text = console.export_text()
    assert "1 thing needs your attention." in text
    assert "sink broken" in text
    assert re.search(r"broken\s+blocked\s+\S+ s\s+1\s", text)
    assert re.search(r"m\s+1\s+- → -", text)
    assert "floodmark quarantine list m" in text


def test_a_trend_is_a_row_of_bars():
    assert trend_bars([]) == ""
    assert trend_bars([0, 0]) == "▁▁"
    assert trend_bars([0, 5, 10]) == "▁▅█"
    assert len(trend_bars(list(range(100)))) == 16


def test_on_a_terminal_q_quits_and_the_terminal_is_as_before(tmp_path: Path, shop):
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "floodmark.cli", "-s", str(tmp_path / "store"), "status", "--watch", "--seconds", "60"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "40"},
    )
    os.close(theirs)
    seen, deadline = b"", time.monotonic() + 60
    while b"q quits" not in seen and time.monotonic() < deadline:
        if select.select([ours], [], [], 1)[0]:
            seen += os.read(ours, 65536)
    assert b"All is well." in seen
    os.write(ours, b"q")
    assert process.wait(30) == 0
    os.close(ours)
