"""200 stores forward to one hub of real processes; and a hub of two hosts that share a database and a bucket alone."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from bench.delivery import hub_process
from bench.edges import DATASET, Fleet, started
from sqlalchemy import func, select

import floodmark
from floodmark.control.schema import ledger
from floodmark.sequence import SEQUENCE_MAX, SequenceRange
from floodmark.store import Store, init, open_store
from floodmark.testing import MemoryLake
from floodmark.testing.oracle import Oracle
from floodmark.torture.processes import kill_group
from postgres import PostgresServer, postgres_server  # noqa: F401 - a fixture
from s3 import SECRET, S3Server
from waiting import wait_until

pytestmark = pytest.mark.postgres

EDGES = 200
PROCESSES = 2
AGAIN = 10
"""Every tenth edge sends a second time: its channel has a row in the ledger already."""
ROWS = 2
SITES = 40
SCHEMA = dict.fromkeys(("id", "site", "text", "proof"), "string")
ATTEMPTS_MAX = 3
"""One, as far as the hub is concerned; PostgreSQL may ask for another."""


def fleet_of(folder: Path, oracle: Oracle, turns: dict[str, int], **options: Any) -> Fleet:
    edges = {name: [oracle.rows(ROWS, partitions=[name]) for _ in range(count)] for name, count in turns.items()}
    return Fleet(folder, edges, SCHEMA, pause_seconds_max=0.05, **options)


def ledger_rows(store: Store) -> int:
    return store.engine.database.read(lambda c: c.execute(select(func.count()).select_from(ledger)).scalar_one())


def check(store: Store, oracle: Oracle) -> None:
    """Commit what the hub has, and compare every row with what was captured."""
    oracle.acknowledge(oracle.attempted.values())
    store.flush(DATASET)
    state = store.engine.lake.load(f"{DATASET}_g1")
    assert state is not None
    assert state.head is not None
    parts = store.engine.lake.scan(state.name, snapshot=state.head, within=SequenceRange(0, SEQUENCE_MAX))
    rows = [row for part in parts for row in part.to_pylist()]
    assert oracle.compare("hub", rows) == []
    assert len(rows) == len(oracle.attempted)


@pytest.mark.timeout(600)
def test_the_rows_of_two_hundred_edges_arrive_once_beside_one_that_sends_as_much_as_it_can(
    postgres_server: PostgresServer,  # noqa: F811
    tmp_path: Path,
) -> None:
    """H1, H2, H6: four workers, a ledger row for each channel, and nobody waits for the loud one."""
    oracle = Oracle()
    with init(tmp_path / "hub", control=postgres_server.create_schema(), lake=MemoryLake()) as hub:
        hub.add_dataset(DATASET, schema=SCHEMA)
        fleets = [
            fleet_of(
                tmp_path / f"fleet-{number}",
                oracle,
                {f"edge-{number}-{edge}": 1 if edge % AGAIN else 2 for edge in range(EDGES // PROCESSES)},
                at_once=4,
            )
            for number in range(PROCESSES)
        ]
        loud = {"loud": [oracle.rows(SITES * 5, partitions=[f"site-{site}" for site in range(SITES)])]}
        fleets.append(
            Fleet(tmp_path / "loud", loud, SCHEMA, 1, {"concurrency": SITES, "chunk_rows": 1}, pause_seconds_max=0.05)
        )
        limits = ("--requests-max", "16", "--client-requests-max", "16")
        with contextlib.ExitStack() as running:
            url = running.enter_context(hub_process(hub.path, *limits, workers=4))
            processes = [running.enter_context(started(fleet, hub, url)) for fleet in fleets]
            for process in processes:
                process.wait_until_ready()
            *quiet, _ = [one.result() for one in [process.go() for process in processes]]
        attempts = [turn["attempts"] for one in quiet for told in one.values() for turn in told["turns"]]
        assert len(attempts) == EDGES + EDGES // AGAIN
        assert max(attempts) <= ATTEMPTS_MAX
        assert ledger_rows(hub) == EDGES + SITES
        check(hub, oracle)


# ── two hosts ────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Balancer:
    """What stands in front of several hosts: one address, and a connection goes to the first host that takes it."""

    hosts: list[tuple[str, int]]
    taken: dict[tuple[str, int], int] = field(default_factory=dict)
    """Connections, by host."""

    @contextlib.contextmanager
    def listening(self) -> Iterator[str]:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
            try:
                yield f"http://127.0.0.1:{listener.getsockname()[1]}"
            finally:
                listener.shutdown(socket.SHUT_RDWR)

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            host = self._connected()
            if host is None:
                client.close()
                continue
            for one, other in ((client, host), (host, client)):
                threading.Thread(target=_pump, args=(one, other), daemon=True).start()

    def _connected(self) -> socket.socket | None:
        for host in self.hosts:
            with contextlib.suppress(OSError):
                connection = socket.create_connection(host)
                self.taken[host] = self.taken.get(host, 0) + 1
                return connection
        return None


def _pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while piece := source.recv(1 << 16):
            target.sendall(piece)
    for one in (source, target):
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)


@dataclass
class Host:
    """A hub process of its own, with a directory of its own."""

    root: Path
    port: int
    process: subprocess.Popen[bytes]

    def answers(self) -> bool:
        with contextlib.suppress(httpx.HTTPError):
            return httpx.get(f"http://127.0.0.1:{self.port}/readyz", timeout=30).status_code == 200
        return False

    def vanish(self) -> None:
        """Every process at once, and the disk with it."""
        kill_group(self.process)
        shutil.rmtree(self.root)


@pytest.fixture
def start_host(tmp_path: Path) -> Iterator[Callable[[Path], Host]]:
    hosts: list[Host] = []

    def start(root: Path) -> Host:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        command = [sys.executable, "-m", "floodmark.cli", "-s", str(root), "hub", "--port", str(port)]
        with (tmp_path / f"{root.name}.log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        hosts.append(Host(root, port, process))
        wait_until(hosts[-1].answers, seconds_max=60, look_seconds=0.1)
        return hosts[-1]

    yield start
    for host in hosts:
        if host.process.poll() is None:
            kill_group(host.process)


@pytest.mark.timeout(600)
def test_hosts_of_a_hub_share_a_database_and_a_bucket_and_nothing_else(
    postgres_server: PostgresServer,  # noqa: F811
    s3_server: S3Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    start_host: Callable[[Path], Host],
) -> None:
    """One host and its disk are gone while edges send: they go on with the other, and every row is there once."""
    monkeypatch.setenv("TEST_S3_KEY", "AKIDEXAMPLE")
    monkeypatch.setenv("TEST_S3_SECRET", SECRET)
    url, bucket, oracle = postgres_server.create_schema(), s3_server.create_bucket(), Oracle()
    lake = {
        "warehouse": f"s3://{bucket}/lake",
        "s3.endpoint": s3_server.endpoint,
        "s3.region": "us-east-1",
        "s3.path-style-access": "true",
        "s3.access-key-id": "env:TEST_S3_KEY",
        "s3.secret-access-key": "env:TEST_S3_SECRET",
    }
    init(tmp_path / "first", control=url, lake=lake, segments=f"s3://{bucket}/segments").close()
    floodmark.attach(tmp_path / "second", control=url).close()
    with open_store(tmp_path / "second", lake=MemoryLake()) as hub:
        hub.add_dataset(DATASET, schema=SCHEMA)
        first, second = start_host(tmp_path / "first"), start_host(tmp_path / "second")
        balancer = Balancer([("127.0.0.1", host.port) for host in (first, second)])
        turns = {f"edge-{number}": 3 for number in range(8)}
        fleet = fleet_of(tmp_path / "fleet", oracle, turns, at_once=2)
        with balancer.listening() as address, started(fleet, hub, address) as process:
            process.wait_until_ready()
            sent = process.go()
            wait_until(lambda: ledger_rows(hub) >= 2, seconds_max=120, look_seconds=0.02)
            first.vanish()
            told = sent.result()
        assert {name: len(one["turns"]) for name, one in told.items()} == turns
        assert set(balancer.taken) == {("127.0.0.1", host.port) for host in (first, second)}
        assert ledger_rows(hub) == len(turns)
        check(hub, oracle)
