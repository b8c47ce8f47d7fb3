"""A private PostgreSQL server for the tests: one cluster per run, a fresh schema per test, nothing left behind."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

SETTINGS = {
    "fsync": "off",  # the machine's power is not part of these tests; the protocol's own fsyncs are tested elsewhere
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "max_connections": "100",
    "max_pred_locks_per_transaction": "256",
}


@dataclass(frozen=True, slots=True)
class PostgresServer:
    """A running server that trusts whoever reaches its loopback port."""

    port: int
    folder: Path = Path()
    """Where its data and its log are."""

    def restart(self) -> None:
        """Kill every process of it without a word to anybody, as a failover does, and start it again."""
        self.stop()
        self.start()

    def start(self) -> None:
        options = " ".join(f"-c {name}={value}" for name, value in SETTINGS.items())
        options += f" -c listen_addresses=127.0.0.1 -c port={self.port} -c unix_socket_directories={self.folder}"
        data, log = self.folder / "data", self.folder / "log"
        run_program(programs_directory() / "pg_ctl", "-D", data, "-l", log, "-w", "-o", options, "start")

    def stop(self) -> None:
        run_program(programs_directory() / "pg_ctl", "-D", self.folder / "data", "-m", "immediate", "-w", "stop")

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    def execute(self, statement: str) -> None:
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(statement.encode())

    def create_database(self) -> str:
        """The URL of a database that nothing has been in."""
        name = f"t{uuid.uuid4().hex}"
        self.execute(f"CREATE DATABASE {name}")
        return self.url(name)

    def create_schema(self) -> str:
        """The URL of an empty schema: as good as a database, and there in a thousandth of the time."""
        name = f"t{uuid.uuid4().hex}"
        self.execute(f"CREATE SCHEMA {name}")
        return f"{self.url()}?options=-csearch_path%3D{name}"


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    with running_server() as server:
        yield server


@contextlib.contextmanager
def running_server() -> Iterator[PostgresServer]:
    """A server of its own, until the block ends."""
    programs = programs_directory()
    # In memory where there is such a place. Not pytest's own directory: that is closed to the server's user.
    place = Path("/dev/shm")
    roomy = place.is_dir() and shutil.disk_usage(place).free > 512 << 20
    folder = Path(tempfile.mkdtemp(prefix="floodmark-postgres-", dir=place if roomy else None))
    try:
        if os.geteuid() == 0:
            shutil.chown(folder, "postgres", "postgres")
        run_program(
            programs / "initdb", "--no-sync", "--auth=trust", "--username=postgres", "-E", "UTF8", "-D", folder / "data"
        )
        server = PostgresServer(_free_port(), folder)
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def programs_directory() -> Path:
    """Where initdb and pg_ctl are: Debian keeps them outside the PATH, one folder for each version."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    on_path = shutil.which("initdb")
    if not found and on_path is None:
        pytest.fail("PostgreSQL's server programs are not installed: run scripts/services.sh")
    return found[-1].parent if found else Path(str(on_path)).parent


def run_program(program: Path, *arguments: str | Path) -> None:
    # PostgreSQL refuses to run as root.
    account = pwd.getpwnam("postgres") if os.geteuid() == 0 else None
    result = subprocess.run(
        [program, *arguments],
        user=account and account.pw_uid,
        group=account and account.pw_gid,
        extra_groups=[] if account else None,
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,  # not a pipe: the server would inherit it, and keep it open
        stderr=subprocess.DEVNULL,
        check=False,
        timeout=120,
    )
    if result.returncode:
        pytest.fail(f"{program.name} ended with {result.returncode}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
