"""The supervisor and real worker processes."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time

import pytest
import uvicorn

from floodmark.hub.serve import Supervisor


async def nothing(scope, receive, send):
    """The smallest application."""


@pytest.fixture
def supervisor():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(
            nothing, workers=1, lifespan="off", log_config=None, ws="none", timeout_worker_healthcheck=60
        )
        before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
        made = Supervisor(config, [listener], lambda: None)
        made.init_processes()
        yield made
        for worker in made.processes:
            worker.kill()
            worker.join()
        for number, handler in before.items():
            signal.signal(number, handler)


def test_a_worker_that_dies_while_it_is_asked_whether_it_lives_is_replaced_at_once(supervisor):
    """It was asked, and never answers: waiting for its answer would leave nothing serving for a minute."""
    worker = supervisor.processes[0]
    assert worker.wait_until_ready(30)
    os.kill(worker.pid, signal.SIGSTOP)
    began = time.monotonic()
    death = threading.Timer(0.5, os.kill, (worker.pid, signal.SIGKILL))
    death.start()
    while supervisor.processes[0] is worker and time.monotonic() - began < 20:
        supervisor.keep_subprocess_alive()
        supervisor.should_exit.wait(0.05)
    assert supervisor.processes[0] is not worker
    assert time.monotonic() - began < 10
    assert supervisor.processes[0].wait_until_ready(30)


def test_a_worker_that_hangs_is_replaced_when_its_time_is_over(supervisor):
    worker = supervisor.processes[0]
    assert worker.wait_until_ready(30)
    supervisor.config.timeout_worker_healthcheck = 0.2
    os.kill(worker.pid, signal.SIGSTOP)
    began = time.monotonic()
    while supervisor.processes[0] is worker and time.monotonic() - began < 20:
        supervisor.keep_subprocess_alive()
        supervisor.should_exit.wait(0.05)
    assert supervisor.processes[0] is not worker
