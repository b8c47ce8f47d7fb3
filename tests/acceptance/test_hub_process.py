"""A hub of real processes, killed for real while a client sends: every row is stored exactly once."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil
import pytest

import floodmark
from floodmark.hub.access import add_token
from floodmark.spool.segments import drop_dead_writers, remove_leftovers
from floodmark.store import Store
from seeds import SEED
from sending import Chunk, Sender, check, entry, spooled, spooled_ids
from waiting import wait_until

START_SECONDS_MAX = 60
PUSH_SECONDS_MAX = 300


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class HubProcess:
    """A hub of two workers on one port, which comes back when it was killed."""

    root: Path
    log: Path
    fault: str | None = None
    host: str = "127.0.0.1"
    port: int = field(default_factory=free_port)
    workers_wanted: int = 2
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    def start(self) -> None:
        environment = {name: value for name, value in os.environ.items() if name != "FLOODMARK_FAULT"}
        if self.fault is not None:
            environment["FLOODMARK_FAULT"] = self.fault
        self._launch(environment)
        self.wait_until_ready(environment)

    def _launch(self, environment: dict[str, str]) -> None:
        command = [sys.executable, "-m", "floodmark.cli", "-s", str(self.root), "hub"]
        with self.log.open("ab") as said:
            self.process = subprocess.Popen(
                [*command, "--host", self.host, "--port", str(self.port), "--workers", str(self.workers_wanted)],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,
            )

    def wait_until_ready(self, environment: dict[str, str] | None = None) -> None:
        def ready() -> bool:
            # A worker that was just being started when its supervisor was killed lives, and listens, a moment longer.
            if environment is not None and self.process is not None and self.process.poll() is not None:
                self._launch(environment)
            with contextlib.suppress(httpx.HTTPError):
                return httpx.get(f"{self.url}/readyz", timeout=START_SECONDS_MAX).status_code == 200
            return False

        wait_until(ready, seconds_max=START_SECONDS_MAX, look_seconds=0.1, story=self.said)

    def workers(self) -> list[psutil.Process]:
        assert self.process is not None
        found = psutil.Process(self.process.pid).children()
        return [child for child in found if "resource_tracker" not in " ".join(child.cmdline())]

    def kill_worker(self, chance: random.Random) -> None:
        with contextlib.suppress(psutil.Error):
            chance.choice(self.workers() or [psutil.Process(self.process.pid)]).kill()

    def kill_all(self) -> None:
        """The machine's power, as far as a process can tell: supervisor and workers at once."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def said(self) -> str:
        return self.log.read_text()[-3000:]


@pytest.fixture
def central(tmp_path: Path) -> Iterator[Store]:
    with floodmark.init(tmp_path / "central") as store:
        store.add_dataset("events", schema={"id": "long", "text": "string"})
        yield store


@pytest.fixture
def hub(central: Store, tmp_path: Path) -> Iterator[HubProcess]:
    made = HubProcess(central.path, tmp_path / "hub.log")
    yield made
    made.kill_all()


def push(url: str, sender: Sender, *, chunks: int, rows: int, answers: list[int]) -> None:
    """Send everything in order, each chunk until it is answered with success. Knows nothing but status codes."""
    with httpx.Client(base_url=url, timeout=30) as client:
        for index in range(chunks):
            chunk = sender.chunk(index * rows, (index + 1) * rows)

            def answered(chunk: Chunk = chunk) -> bool:
                try:
                    response = client.post(chunk.path, content=chunk.body, headers=chunk.headers())
                except httpx.TransportError:
                    return False
                if response.status_code == 200:
                    answers.append(response.json()["stored"])
                    return True
                assert response.status_code in {429, 503}, response.text
                return False

            wait_until(answered, seconds_max=PUSH_SECONDS_MAX, look_seconds=0.02)


def check_debris(store: Store) -> None:
    """What dead writers left is dropped, and no file stays that no registered segment needs."""
    from sqlalchemy import select

    from floodmark.control.schema import segments

    drop_dead_writers(store.engine, "events")
    remove_leftovers(store.engine, "events")
    found = store.engine.database.read(lambda c: c.execute(select(segments.c.path, segments.c.state)).fetchall())
    assert {item.state for item in found} <= {"sealed", "dropped"}
    wanted = {Path(item.path).name for item in found if item.state == "sealed"}
    assert {path.name for path in (store.path / "spool/events/segments").glob("*.parquet")} == wanted


@pytest.mark.timeout(600)
def test_a_hub_that_is_killed_again_and_again_stores_every_row_once(hub: HubProcess, central: Store) -> None:
    """H1, H2: two channels, two workers; now a worker dies, now all of it."""
    chance = random.Random(SEED)
    hub.start()
    senders = [Sender(origin="edge-1"), Sender(origin="edge-2")]
    answers: list[list[int]] = [[], []]
    for sender in senders:
        sender.add(40 * 25)
    clients = [
        threading.Thread(target=push, args=(hub.url, sender), kwargs={"chunks": 40, "rows": 25, "answers": got})
        for sender, got in zip(senders, answers, strict=True)
    ]
    for client in clients:
        client.start()
    kills = 0
    while any(client.is_alive() for client in clients):
        done = min(map(len, answers))
        before = time.monotonic()
        while any(client.is_alive() for client in clients) and min(map(len, answers)) < done + chance.randrange(3, 12):
            clients[0].join(chance.uniform(0, 0.05))  # some chunks get through between two deaths, at any instant
            if time.monotonic() - before > 120:
                pytest.fail(f"nothing moves: {hub.said()}")
        kills += 1
        if chance.random() < 0.3:
            hub.kill_all()
            hub.start()
        else:
            hub.kill_worker(chance)
    for client in clients:
        client.join()
    hub.kill_all()
    assert list(map(len, answers)) == [40, 40]
    assert kills >= 6
    lost = [40 * 25 - sum(got) for got in answers]
    print(f"{kills} kills; {sum(lost)} rows whose answer was lost were found in the ledger")
    for sender in senders:
        check(central, sender, through=1000)
    check_debris(central)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("point", ["hub.stored", "hub.accepted"])
def test_a_worker_that_dies_at_this_very_point_stores_every_row_once(
    hub: HubProcess, central: Store, point: str
) -> None:
    """H1, with SIGKILL."""
    hub.fault = f"{point}:9"
    hub.start()
    sender = Sender()
    sender.add(200)
    answers: list[int] = []
    push(hub.url, sender, chunks=20, rows=10, answers=answers)  # of two workers one takes ten of them
    hub.kill_all()
    check(central, sender, through=200)
    check_debris(central)
    died_after_the_commit = point in {"segment.registered", "hub.accepted"}
    assert (sum(answers) < 200) == died_after_the_commit, "no worker died at the point, or it left half of a chunk"


@pytest.mark.timeout(300)
def test_a_capture_with_a_key_is_stored_once_by_a_hub_that_dies_before_it_answers(
    hub: HubProcess, central: Store
) -> None:
    """H1, for one request."""
    hub.fault = "hub.accepted:2"
    hub.start()
    died: list[str] = []
    with httpx.Client(base_url=hub.url, timeout=30) as client:
        for number in range(5):
            headers = {"Content-Type": "application/json", "Idempotency-Key": f"request {number}"}
            body = f'[{{"id":{number}}}]'

            def answered(body: str = body, headers: dict[str, str] = headers) -> bool:
                try:
                    response = client.post("/v1/datasets/events/capture", content=body, headers=headers)
                except httpx.TransportError:
                    died.append(body)
                    return False
                assert (response.status_code, response.json()) == (200, {"rows": 1, "quarantined": 0})
                return True

            wait_until(answered, seconds_max=PUSH_SECONDS_MAX, look_seconds=0.05)
    assert died
    assert spooled_ids(central) == list(range(5))


@pytest.mark.timeout(120)
def test_sigterm_finishes_what_is_at_hand_and_leaves_no_process(hub: HubProcess, central: Store) -> None:
    hub.start()
    assert hub.process is not None
    family = [hub.process.pid, *(worker.pid for worker in hub.workers())]
    sender = Sender()
    sender.add(50_000)
    acknowledged: list[int] = []

    def send() -> None:
        with httpx.Client(base_url=hub.url, timeout=30) as client:
            for after in range(0, 50_000, 500):
                chunk = sender.chunk(after, after + 500)
                try:
                    response = client.post(chunk.path, content=chunk.body, headers=chunk.headers())
                except httpx.TransportError:
                    return
                assert response.status_code == 200
                acknowledged.append(after + 500)

    sending = threading.Thread(target=send)
    sending.start()
    wait_until(lambda: len(acknowledged) >= 3)
    hub.process.terminate()
    assert hub.process.wait(60) == 0, hub.said()
    sending.join()
    assert "Hub stopped." in hub.said()
    assert "Traceback" not in hub.said()
    assert not any(psutil.pid_exists(pid) for pid in family)
    found = entry(central)
    assert found is not None
    assert found.through >= acknowledged[-1]
    assert spooled_ids(central) == list(range(1, found.through + 1))


@pytest.mark.timeout(120)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_hub_of_one_worker_ends_as_well_and_tidies_up(hub: HubProcess, central: Store, number: int) -> None:
    hub.workers_wanted = 1
    hub.start()
    assert hub.process is not None
    hub.process.send_signal(number)
    assert hub.process.wait(60) == 0, hub.said()
    assert "Hub stopped." in hub.said()
    assert list((central.path / "hub").iterdir()) == []


@pytest.mark.timeout(120)
def test_workers_end_with_their_supervisor_and_the_port_is_free_again(hub: HubProcess) -> None:
    hub.start()
    workers = hub.workers()
    assert len(workers) == 2
    assert hub.process is not None
    hub.process.kill()
    hub.process.wait()
    gone, alive = psutil.wait_procs(workers, timeout=60)
    assert alive == []
    assert len(gone) == 2
    hub.start()


@pytest.mark.timeout(120)
def test_a_hub_starts_no_jvm_and_counts_over_all_workers(hub: HubProcess) -> None:
    hub.start()
    for _ in range(20):  # each on a connection of its own: both workers answer some
        httpx.get(f"{hub.url}/healthz")
    text = httpx.get(f"{hub.url}/metrics", timeout=30).text
    line = next(line for line in text.splitlines() if 'route="healthz",status="200"' in line)
    assert float(line.split()[-1]) == 20
    family = psutil.Process(hub.process.pid).children(recursive=True)
    assert not [process for process in family if "java" in process.name()]


# ── what no proper client sends ──────────────────────────────────────────────────────────────────────────────────────


def raw(hub: HubProcess, content: bytes, *, leaves: bool = False) -> bytes:
    """The beginning of what comes back for these bytes; or the sender leaves without waiting for it."""
    with socket.create_connection((hub.host, hub.port), timeout=30) as connection:
        answer = b""
        with contextlib.suppress(ConnectionError):
            connection.sendall(content)
            while not leaves and b"\r\n" not in answer and (piece := connection.recv(65536)):
                answer += piece
        return answer.partition(b"\r\n")[0]


HEAD = b"POST /v1/datasets/events/capture HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@pytest.mark.timeout(120)
def test_half_requests_wrong_lengths_and_garbage_store_nothing_and_do_no_harm(hub: HubProcess, central: Store) -> None:
    hub.workers_wanted = 1
    hub.start()
    body = b'[{"id":1}]'
    for half in (
        HEAD + b"Content-Length: 10\r\n\r\n" + body[:4],
        HEAD + b"Content-Length: 99\r\n\r\n" + body,
        HEAD[:20],
    ):
        raw(hub, half, leaves=True)
    for wrong in (
        HEAD + b"Content-Length: 4\r\n\r\n" + body,
        HEAD + b"Content-Length: 10\r\nContent-Length: 11\r\n\r\n" + body,
        HEAD + b"Content-Length: -1\r\n\r\n" + body,
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n" + body,
        HEAD + b"X: " + b"A" * (1 << 20),
        b"\x16\x03\x01\x02\x00 this is not HTTP\r\n\r\n",
    ):
        assert raw(hub, wrong) in {b"HTTP/1.1 400 Bad Request", b""}
    with httpx.Client(base_url=hub.url, timeout=30) as client:
        headers = {"Content-Type": "application/json"}
        huge = client.post("/v1/datasets/events/capture", content=bytes(17 << 20), headers=headers)
        assert huge.status_code == 413
        assert client.get("/v1/ledger/edge-1").json()["channels"] == []
        assert client.post("/v1/datasets/events/capture", content=body, headers=headers).json()["rows"] == 1
    central.seal("events")
    assert spooled(central) == [{"id": 1}]
    assert "Traceback" not in hub.said()


@pytest.mark.timeout(120)
def test_an_open_store_is_not_served_to_the_network(hub: HubProcess, central: Store) -> None:
    command = [
        sys.executable,
        "-m",
        "floodmark.cli",
        "-s",
        str(central.path),
        "hub",
        "--host",
        "0.0.0.0",
        "--port",
        "0",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert "Error: The hub would listen on 0.0.0.0, but the store has no valid token" in done.stderr
    assert "Try:   Create one with `floodmark token add`" in done.stderr
    _, secret = add_token(central, "edge", any_origin=True, any_dataset=True, rights=["capture"])
    hub.host, hub.workers_wanted = "0.0.0.0", 1
    hub.start()
    assert httpx.get(f"{hub.url}/v1/ledger/edge-1").status_code == 401
    assert httpx.get(f"{hub.url}/v1/ledger/edge-1", headers={"Authorization": f"Bearer {secret}"}).status_code == 200
    assert secret not in hub.said()
