"""`floodmark run` as a real process with its own JVM: killed, stopped, and stopped again in the middle."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import orjson
import psutil
import pyarrow.parquet as pq
import pytest
from sqlalchemy import func, select
from stores import check_history, make_store, rows_of

from floodmark.control import reports
from floodmark.control.schema import intents
from floodmark.maintenance.upkeep import EXPIRE, FOLD, ORPHANS, RETAIN, SURPLUS_MIN
from floodmark.store import Store
from scenarios.delivery.servers import KeyOnlyServer, Silent, always
from waiting import wait_until

RUN = "\n[run]\nflush_seconds = 1\nexport_seconds = 1\nstop_seconds_max = 200\n"
PATIENCE_SECONDS = 240  # a JVM starts in ten seconds, or in a hundred on a machine that has other things to do


class Running:
    """A daemon's process, and the events it has told so far."""

    def __init__(self, root: Path, name: str, *options: str, fault: str | None = None) -> None:
        self.said = root.parent / f"{name}.jsonl"
        self.errors = root.parent / f"{name}.log"
        with self.said.open("w") as said, self.errors.open("w") as errors:  # files: a full pipe would hold it up
            self.process = subprocess.Popen(
                floodmark(root, "run", "--json", *options), env=environment(fault), stdout=said, stderr=errors
            )

    def events(self, name: str) -> list[dict[str, Any]]:
        lines = self.said.read_bytes().split(b"\n")[:-1]  # what follows the last line's end is still being written
        return [event for event in map(orjson.loads, lines) if event["event"] == name]

    def until(self, condition: Callable[[], Any]) -> None:
        wait_until(
            lambda: condition() or self.process.poll() is not None, seconds_max=PATIENCE_SECONDS, story=self.story
        )
        assert condition(), self.story()

    def ends(self) -> int:
        return self.process.wait(PATIENCE_SECONDS)

    def story(self) -> str:
        return self.said.read_text()[-2000:] + self.errors.read_text()[-2000:]


def floodmark(root: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "floodmark.cli", "-s", str(root), *arguments]


def environment(fault: str | None = None) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_GATEWAY")}
    kept.pop("FLOODMARK_FAULT", None)
    return kept if fault is None else {**kept, "FLOODMARK_FAULT": fault}


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    """Starts daemons on the store of the test; none outlives it."""
    started: list[Running] = []

    def one(*options: str, fault: str | None = None) -> Running:
        started.append(Running(tmp_path / "store", f"run-{len(started)}", *options, fault=fault))
        return started[-1]

    yield one
    for item in started:
        with contextlib.suppress(ProcessLookupError):
            item.process.kill()
        item.process.wait()


@pytest.fixture
def store(spark: Any, tmp_path: Path) -> Iterator[Store]:
    with make_store(tmp_path / "store", spark) as made:
        with (tmp_path / "store" / "floodmark.toml").open("a") as settings:
            settings.write(RUN)
        yield made


def jvms(running: Running) -> list[psutil.Process]:
    family = psutil.Process(running.process.pid).children(recursive=True)
    return [process for process in family if process.name() == "java"]


def capture(store: Store, first: int, count: int) -> None:
    store.capture("events", [{"id": str(id), "site": f"s{id % 2}"} for id in range(first, first + count)])


def objects(directory: Path) -> list[str]:
    return [id for path in sorted(directory.rglob("*.parquet")) for id in pq.read_table(path)["id"].to_pylist()]


@pytest.mark.spark
@pytest.mark.timeout(1200)
def test_killed_in_a_commit_and_in_a_delivery_and_stopped_under_load_it_delivers_every_row_once(
    store: Store, start: Callable[..., Running], tmp_path: Path
) -> None:
    """D1, D4, I4: each process takes up what the one before it left, beside captures and exports of other processes."""
    out = tmp_path / "out"
    store.add_sink("archive", "blob", url=out.as_uri(), chunk_rows=7)
    capture(store, 0, 40)

    first = start(fault="flush.appended")
    assert first.ends() == -signal.SIGKILL, first.story()
    assert objects(out) == []

    second = start(fault="delivery.shipped:3")
    assert second.ends() == -signal.SIGKILL, second.story()
    assert 0 < len(objects(out)) < 40

    orphan = start()
    orphan.until(lambda: orphan.events("exported"))
    capture(store, 40, 10)
    orphan.until(lambda: orphan.events("flushed"))
    for jvm in jvms(orphan):
        jvm.kill()
    capture(store, 50, 10)
    # It begins anew in the same process, with a JVM of its own, and goes on.
    orphan.until(lambda: len(orphan.events("started")) == 2)
    assert "spark" in [event["subject"] for event in orphan.events("problem")], orphan.story()
    orphan.until(lambda: sum(event["rows"] for event in orphan.events("flushed")) >= 20)
    orphan.process.send_signal(signal.SIGTERM)
    assert orphan.ends() == 0, orphan.story()

    capture(store, 250, 5)  # something to deliver, also if the one before delivered everything before it stopped
    third = start()
    writer = subprocess.Popen(
        floodmark(store.path, "capture", "events", "-", "--batch-rows", "5"),
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    assert writer.stdin is not None
    third.until(lambda: third.events("exported"))
    for id in range(60, 240):
        flushed = len(third.events("flushed"))  # before there is anything more to flush
        writer.stdin.write(f'{{"id": "{id}", "site": "s{id % 2}"}}\n')
        writer.stdin.flush()
        if id % 40 == 0:
            store.export("archive")  # beside the daemon's own
            third.until(lambda flushed=flushed: len(third.events("flushed")) > flushed)
    writer.stdin.close()
    assert writer.wait(60) == 0
    third.until(lambda: sum(event["rows"] for event in third.events("flushed")) > 40)
    store.add_dataset("late")
    store.capture("late", [{"id": "late"}])
    third.until(lambda: [event for event in third.events("flushed") if event["dataset"] == "late"])
    capture(store, 240, 10)
    third.process.send_signal(signal.SIGTERM)
    assert third.ends() == 0, third.story()
    assert third.events("stopped") == [{**third.events("stopped")[0], "given_up": []}]
    assert third.events("problem") == []
    assert [event["name"] for event in third.events("noticed")] == ["late"]
    delivered = objects(out / "events")
    assert len(delivered) == len(set(delivered)), "a row was delivered twice"

    store.flush()
    store.export("archive")
    wanted = sorted(str(id) for id in range(255))
    assert sorted(objects(out / "events")) == wanted
    assert objects(out / "late") == ["late"]
    assert sorted(rows_of(store)) == wanted
    check_history(store)


@pytest.mark.spark
@pytest.mark.timeout(1200)
def test_a_signal_ends_a_back_off_at_once_and_a_second_one_ends_a_request_that_hangs(
    store: Store, start: Callable[..., Running]
) -> None:
    """Nobody listens at one hub; the other one takes the request and never answers."""
    capture(store, 0, 10)
    store.flush("events")
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    store.add_sink("nobody", "forward", url=f"http://127.0.0.1:{port}")
    waiting = start()
    waiting.until(lambda: waiting.events("problem"))
    assert waiting.events("problem")[0]["retry_seconds"] == 30
    asked = time.monotonic()
    waiting.process.send_signal(signal.SIGTERM)
    assert waiting.ends() == 0, waiting.story()
    assert time.monotonic() - asked < 20, "it waited for the end of the back-off"

    with KeyOnlyServer() as server:
        server.script = always(Silent.hangs)
        store.add_sink("silent", "forward", url=server.url, accept="status", timeout_seconds=3600)
        capture(store, 10, 5)
        hanging = start()
        hanging.until(lambda: hanging.events("flushed"))
        hanging.until(lambda: any(request.method == "POST" for request in server.requests))
        hanging.until(lambda: hanging.events("problem"))  # the other sink was tried meanwhile
        family = jvms(hanging)
        assert family
        hanging.process.send_signal(signal.SIGTERM)
        hanging.until(lambda: hanging.events("stopping"))
        assert "sink silent" in hanging.events("stopping")[0]["under_way"]
        with pytest.raises(subprocess.TimeoutExpired):
            hanging.process.wait(3)
        asked = time.monotonic()
        hanging.process.send_signal(signal.SIGTERM)
        assert hanging.ends() == 130, hanging.story()
        assert time.monotonic() - asked < 20
        assert hanging.events("stopped")[0]["given_up"] == ["sink silent"]
        assert psutil.wait_procs(family, timeout=60)[1] == [], "its JVM outlived it"

        server.script = None
        store.remove_sink("nobody")
        assert start("--once").ends() == 0
        assert sorted(row["id"] for row in server.rows()) == sorted(str(id) for id in range(15))
        assert server.conflicts == []


UPKEEP = """
[run.retain]
events = "12 rows"

[upkeep]
files_min = 4
snapshots_keep = 1
snapshots_max = 3
"""
QUICK = {
    "RUN__FLUSH_SECONDS": "0.2",
    "RUN__COMPACT_COMMITS": "8",
    "RUN__COMPACT_SECONDS": "5",
    "RUN__EXPIRE_SECONDS": "3",
    "RUN__RETAIN_SECONDS": "30",
    "RUN__FOLD_SECONDS": "3",
    "RUN__ORPHANS_SECONDS": "3",
}
TASKS = (EXPIRE, RETAIN, FOLD, ORPHANS)
COMMITS = 30


@pytest.mark.spark
@pytest.mark.timeout(1200)
def test_one_process_does_all_upkeep_beside_its_commits_and_nothing_piles_up(
    store: Store, start: Callable[..., Running], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """U5, U6, U10, U35: with short intervals, on a store where each task was done an hour ago."""
    out = tmp_path / "out"
    store.add_sink("archive", "blob", url=out.as_uri())
    capture(store, 0, 2)
    store.flush("events")
    with (store.path / "floodmark.toml").open("a") as settings:
        settings.write(UPKEEP)
    for name, value in QUICK.items():
        monkeypatch.setenv(f"FLOODMARK_{name}", value)
    then = datetime.now(UTC) - timedelta(hours=1)
    for task in TASKS:
        store.engine.database.transact(
            lambda c, task=task: reports.record(c, task, "events", message="", failed=False, now=then)
        )
    orphan = next((store.path / "lake").rglob("*.parquet")).with_name("orphan.parquet")
    orphan.write_bytes(b"of a writer that died")
    os.utime(orphan, ((then - timedelta(days=9)).timestamp(),) * 2)

    running = start()

    def done() -> set[str]:
        return {event["task"] for event in running.events("tended")} | {
            "compact" for event in running.events("compacted") if event["files_before"]
        }

    sent = 2
    while done() != {*TASKS, "compact"} or len(running.events("flushed")) < COMMITS:
        before = len(running.events("flushed"))
        assert before < 10 * COMMITS, f"it did {done()}: {running.story()}"
        capture(store, sent, 2)
        sent += 2
        running.until(lambda before=before: len(running.events("flushed")) > before)

    def left() -> dict[str, int]:
        state = store.engine.lake.load("events_g1")
        assert state is not None
        of = select(func.count()).select_from(intents).group_by(intents.c.partition_key)
        return {
            "files": sum(len(bucket.files) for bucket in store.engine.lake.files(state).buckets),
            "snapshots": len(state.lineage),
            "deliveries on record": max(store.engine.database.read(lambda c: c.execute(of).scalars().all())),
            "rows": store.status().datasets[0].rows,
        }

    # It comes to rest at what is kept, however many commits there were: also those of the upkeep itself, at most four.
    most = {"files": 2 * 4, "snapshots": 3 + SURPLUS_MIN + 4, "deliveries on record": 20 + 4, "rows": 12}
    wait_until(
        lambda: all(found <= most[name] for name, found in left().items()),
        seconds_max=PATIENCE_SECONDS,
        look_seconds=0.5,
        story=lambda: f"{left()} {running.story()}",
    )
    assert max(most.values()) < COMMITS <= len(running.events("flushed"))
    assert not orphan.exists()
    running.process.send_signal(signal.SIGTERM)
    assert running.ends() == 0, running.story()
    assert running.events("problem") == []
    assert sorted(objects(out)) == sorted(str(id) for id in range(sent))
    assert len(rows_of(store)) == 12
    assert [item.what for item in store.fsck(deep=True).findings if item.wrong] == []
    assert store.audit("archive").sound
