"""The dashboard of real processes: a hub that receives rows, and `floodmark run` with its own JVM."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import orjson
import pytest
from playwright.sync_api import expect

from floodmark.store import init
from sending import Sender
from waiting import wait_until

PATIENCE_SECONDS = 240


def started(root: Path, *arguments: str, output: Path) -> subprocess.Popen[bytes]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_GATEWAY")}
    with output.open("wb") as stream:  # a file: a full pipe would hold it up
        return subprocess.Popen(
            [sys.executable, "-m", "floodmark.cli", "-s", str(root), *arguments], stdout=stream, stderr=stream, env=kept
        )


def test_a_hub_shows_who_sends_and_what_has_arrived(tmp_path: Path, open_page, picture) -> None:
    import httpx

    root, said = tmp_path / "central", tmp_path / "hub.log"
    with init(root) as store:
        store.add_dataset("events")
    hub = started(root, "hub", "--port", "0", "--workers", "1", output=said)
    try:
        wait_until(lambda: re.search(r"Hub on (\S+),", said.read_text()), story=said.read_text)
        address = re.search(r"Hub on (\S+),", said.read_text())[1]
        page = open_page(f"{address}/senders")
        expect(page.locator("main")).to_contain_text("No store has sent rows yet.")
        for name, rows in (("edge-north", 40), ("edge-south", 10)):
            sender = Sender(origin=name)
            sender.add(rows)
            chunk = sender.chunk(0, rows)
            assert httpx.post(address + chunk.path, content=chunk.body, headers=chunk.headers(None)).status_code == 200
        expect(page.get_by_role("row", name="edge-north")).to_contain_text("40")
        expect(page.get_by_role("row", name="edge-south")).to_contain_text("none")
        picture(page, "dashboard-senders")
        page.goto(address)
        expect(page.locator("main")).to_contain_text("50 rows")
        page.close()
    finally:
        hub.terminate()
        hub.wait(60)


@pytest.mark.spark
def test_run_with_its_own_jvm_shows_rows_that_it_commits_and_delivers(tmp_path: Path, open_page) -> None:
    root, said = tmp_path / "river", tmp_path / "run.log"
    with init(root) as store:
        settings = root / "floodmark.toml"
        settings.write_text(settings.read_text().replace("# flush_seconds = 30.0", "flush_seconds = 1.0"))
        store.add_dataset("readings", identity=["n"])
        store.add_sink("archive", "blob", url=(tmp_path / "out").as_uri(), format="jsonl")
        store.capture("readings", [{"n": number} for number in range(100)])
    run = started(root, "run", "--listen", "127.0.0.1:0", "--log", "json", output=said)
    try:

        def events(name: str) -> list[dict[str, object]]:
            lines = said.read_bytes().split(b"\n")[:-1]
            return [found for line in lines if line.startswith(b"{") and (found := orjson.loads(line))["event"] == name]

        wait_until(lambda: events("listening"), seconds_max=PATIENCE_SECONDS, story=said.read_text)
        page = open_page(str(events("listening")[0]["address"]))
        expect(page.locator("h1")).to_contain_text(
            "Every row is committed and delivered.", timeout=PATIENCE_SECONDS * 1000
        )
        expect(page.locator("main")).to_contain_text("100 rows committed")
        expect(page.locator("main")).to_contain_text("1 files, 1 snapshots")
        assert len(list((tmp_path / "out").rglob("*.jsonl"))) == 1
        page.close()
    finally:
        run.terminate()
        assert run.wait(PATIENCE_SECONDS) == 0, said.read_text()
