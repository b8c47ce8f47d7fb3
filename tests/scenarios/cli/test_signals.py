"""`floodmark run` and `floodmark hub` as real processes: when they serve, and what one signal means, and another one.

The lake is in memory, so no process starts a JVM.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import orjson
import psutil
import pytest

from floodmark.store import Store, init
from floodmark.testing import MemoryLake
from s3 import free_port
from scenarios.delivery.servers import KeyOnlyServer, Silent, always
from waiting import wait_until

RUN = """
import atexit, os, signal
import floodmark.store
from floodmark.testing import MemoryLake
real, lake = floodmark.store.open_store, MemoryLake()
floodmark.store.open_store = lambda path, **given: real(path, **{**given, "lake": lake})
def terminate():
    os.kill(os.getpid(), signal.SIGTERM)
"""
HUB = """
import pathlib, time
here = pathlib.Path(__file__).parent
"""
END = """
if __name__ == "__main__":
    from floodmark.cli.entry import main
    main()
"""
WORKER_WAITS = """
if __name__ == "__mp_main__":
    (here / "starts").touch()
    while not (here / "go").exists():
        time.sleep(0.01)
"""
WORKER_FAILS = """
from floodmark.errors import Permanent
import floodmark.hub.app
serve = floodmark.hub.app.worker_app
def worker_app(*given):
    if (here / "broken").exists():
        raise Permanent("The disk is not there.", hint="Mount it.")
    return serve(*given)
floodmark.hub.app.worker_app = worker_app
"""


class Program:
    """The command line in a process of its own, with a few lines of Python before it."""

    def __init__(self, directory: Path, *arguments: str, before: str = "") -> None:
        script = directory / "program.py"
        script.write_text((RUN if arguments[0] == "run" else HUB) + before + END)
        self._out, self._err = directory / "out", directory / "err"
        with self._out.open("w") as out, self._err.open("w") as err:  # files: a full pipe would hold it up
            self.process = subprocess.Popen(
                [sys.executable, str(script), "-s", str(directory / "store"), *arguments],
                env={**os.environ, "FLOODMARK_RUN__FLUSH_SECONDS": "1"},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    @property
    def err(self) -> str:
        return self._err.read_text()

    def events(self, name: str) -> list[dict[str, Any]]:
        lines = self._out.read_bytes().split(b"\n")[:-1]
        return [event for event in map(orjson.loads, lines) if event["event"] == name]

    def until(self, met: Callable[[], object]) -> None:
        wait_until(lambda: met() or self.process.poll() is not None, story=lambda: self.err)
        assert met(), self.err

    def gets(self, *numbers: signal.Signals) -> None:
        for number in numbers:
            self.process.send_signal(number)

    def ends(self) -> int:
        return self.process.wait(60)

    def workers(self) -> list[psutil.Process]:
        found = psutil.Process(self.process.pid).children()
        return [child for child in found if "resource_tracker" not in " ".join(child.cmdline())]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Program]]:
    started: list[Program] = []

    def one(*arguments: str, before: str = "") -> Program:
        started.append(Program(tmp_path, *arguments, before=before))
        return started[-1]

    yield one
    for program in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(program.process.pid, signal.SIGKILL)
        program.process.wait()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with init(tmp_path / "store", lake=MemoryLake()) as made:
        made.add_dataset("orders", schema={"id": "string"})
        yield made


# ── run ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_second_signal_ends_a_run_at_once_with_130_and_says_what_is_left(
    store: Store, start: Callable[..., Program]
) -> None:
    with KeyOnlyServer() as server:
        server.script = always(Silent.hangs)
        store.add_sink("out", "forward", url=server.url, accept="status")
        store.capture("orders", [{"id": "a"}])
        run = start("run", "--json")
        run.until(lambda: any(request.method == "POST" for request in server.requests))
        run.gets(signal.SIGINT)
        run.until(lambda: run.events("stopping"))
        run.gets(signal.SIGTERM)
        assert run.ends() == 130, run.err
    (stopped,) = run.events("stopped")
    assert stopped["given_up"] == ["sink out"]
    assert stopped["text"] == "Stopped by a second signal. Not finished: sink out; the next start continues them."


def test_a_second_signal_is_the_same_while_a_run_that_has_finished_its_work_exits(
    store: Store, start: Callable[..., Program]
) -> None:
    closing = "floodmark.store.Store.close = lambda store: terminate()\n"
    run = start("run", before=closing)
    run.until(lambda: "Running on" in run.err)
    run.gets(signal.SIGTERM)
    assert run.ends() == 130, run.err
    assert run.err.endswith(" Stopped by a second signal.\n")


@pytest.mark.parametrize(
    ("before", "code"),
    [
        ("floodmark.store.Store.close = lambda store: atexit.register(terminate)\n", 130),
        ("atexit.register(terminate)  # registered first, so it is called last\n", 0),
    ],
)
def test_a_signal_in_the_last_steps_of_the_process_gives_no_other_code(
    store: Store, start: Callable[..., Program], before: str, code: int
) -> None:
    run = start("run", before=before)
    run.until(lambda: "Running on" in run.err)
    run.gets(signal.SIGTERM)
    assert run.ends() == code, run.err


def test_a_signal_before_anything_has_begun_is_an_orderly_stop(store: Store, start: Callable[..., Program]) -> None:
    opening = "def opened(path, **given):\n    terminate()\n    return real(path, **given)\n"
    run = start("run", "--json", before=opening + "floodmark.store.open_store = opened\n")
    assert run.ends() == 0, run.err
    assert run.events("stopping")[0]["reason"] == "SIGTERM"
    assert run.events("stopped")[0]["given_up"] == []


def test_a_signal_while_a_run_waits_to_be_restarted_is_an_orderly_stop(
    store: Store, start: Callable[..., Program]
) -> None:
    lost = (
        "import floodmark.daemon.loop\n"
        "floodmark.daemon.loop.Daemon.run = lambda daemon, **_: floodmark.daemon.loop.RESTART\n"
        "os.environ['FLOODMARK_RUN_RESTARTS'] = '3'\n"
    )
    run = start("run", before=lost)
    run.until(lambda: "restarting in" in run.err)
    run.gets(signal.SIGTERM)
    assert run.ends() == 0, run.err


# ── hub ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_second_signal_ends_a_hub_at_once_with_130(store: Store, start: Callable[..., Program], workers: str) -> None:
    port = free_port()
    hub = start("hub", "--json", "--port", str(port), "--workers", workers)
    hub.until(lambda: hub.events("listening"))
    processes = hub.workers()
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(b"POST /v1/datasets/orders/capture HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n")
        client.sendall(b"Content-Type: application/json\r\nExpect: 100-continue\r\n\r\n")
        assert b"100 Continue" in client.recv(1000), "the request is in progress"
        hub.gets(signal.SIGTERM, signal.SIGINT)  # two of the same could become one
        assert hub.ends() == 130, hub.err
    assert hub.events("stopped") == [{"event": "stopped", "at_once": True}]
    wait_until(lambda: not any(worker.is_running() for worker in processes))
    assert "Traceback" not in hub.err


def test_one_ctrl_c_stops_a_hub_and_its_workers_quietly_also_while_they_start(
    store: Store, start: Callable[..., Program]
) -> None:
    """A terminal sends it to every process."""
    hub = start("hub", "--port", "0", before=WORKER_WAITS)
    hub.until((store.path.parent / "starts").exists)
    os.killpg(hub.process.pid, signal.SIGINT)
    assert hub.ends() == 0
    assert hub.err == "Hub stopped.\n"


def test_a_hub_says_where_it_is_when_a_worker_serves_and_not_before(
    store: Store, start: Callable[..., Program]
) -> None:
    hub = start("hub", "--port", "0", before=WORKER_WAITS)
    here = store.path.parent
    hub.until((here / "starts").exists)
    assert hub.err == ""
    (here / "go").touch()
    hub.until(lambda: "Hub on" in hub.err)
    assert httpx.get(hub.err.split()[2].rstrip(",") + "/healthz").json() == {"status": "alive"}


def test_a_hub_whose_workers_cannot_start_ends_with_the_reason(store: Store, start: Callable[..., Program]) -> None:
    (store.path.parent / "broken").touch()
    hub = start("hub", "--port", "0", before=WORKER_FAILS)
    assert hub.ends() == 1, hub.err
    assert "Hub on" not in hub.err
    assert "The disk is not there.\nTry:   Mount it.\n" in hub.err
    assert "Traceback" not in hub.err


def test_a_worker_that_cannot_be_replaced_now_is_replaced_later(store: Store, start: Callable[..., Program]) -> None:
    hub = start("hub", "--port", "0", before=WORKER_FAILS)
    broken = store.path.parent / "broken"
    hub.until(lambda: "Hub on" in hub.err)
    broken.touch()
    dead = hub.workers()[0]
    dead.kill()
    hub.until(lambda: "could not start: The disk is not there." in hub.err)
    broken.unlink()
    said = len(hub.err)
    hub.until(lambda: len([worker for worker in hub.workers() if worker.status() != "zombie"]) == 2)
    hub.gets(signal.SIGTERM)
    assert hub.ends() == 0, hub.err[said:]
