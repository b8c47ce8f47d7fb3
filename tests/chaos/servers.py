"""What lies under a store and goes away: an S3 server, a PostgreSQL server, room on a disk."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import uuid
from pathlib import Path

import httpx
from tests.chaos.hubs import answers, free_port

from floodmark.torture.members import Kill, Records, dice
from floodmark.torture.processes import kill_group, start
from waiting import wait_until

HERE = Path(__file__).parent
POSTGRES_SETTINGS = {
    "fsync": "off",  # the machine's power stays on; the server's own death loses nothing that it has written
    "synchronous_commit": "on",  # … as long as it has written what it answered
    "max_connections": "100",
}


class _Underneath:
    """Lives for a while, is gone for a while."""

    kind = ""

    def __init__(self, *, seed: int, began: float, life_seconds: float, gone_seconds_max: float) -> None:
        self.records = Records()
        self._chance = dice(seed, self.kind)
        self._began = began
        self._life_seconds = life_seconds
        self._gone_seconds_max = gone_seconds_max
        self._back_at: float | None = None
        self._due = self._next(time.monotonic())

    def step(self, *, trouble: bool) -> None:
        now = time.monotonic()
        if self._back_at is not None:
            if now >= self._back_at or not trouble:
                self.come_back()
                self.records.starts += 1
                self._back_at, self._due = None, self._next(now)
        elif trouble and now >= self._due:
            how = self.go_away()
            self.records.killed(Kill(now - self._began, self.kind, how, "in use"))
            self._back_at = time.monotonic() + self._chance.uniform(0.2, self._gone_seconds_max)

    def _next(self, now: float) -> float:
        return now + self._chance.uniform(0.3, 1.7) * self._life_seconds

    def go_away(self) -> str:
        raise NotImplementedError

    def come_back(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


class S3Member(_Underneath):
    """A server whose objects outlive it."""

    kind = "s3"

    def __init__(self, folder: Path, *, seed: int, began: float) -> None:
        super().__init__(seed=seed, began=began, life_seconds=12.0, gone_seconds_max=3.0)
        self.port = free_port()
        self._objects = folder / "s3"
        self._objects.mkdir()
        self._log = folder / "s3.log"
        self.come_back()
        self.records.starts += 1
        self.bucket = f"t{uuid.uuid4().hex}"
        httpx.put(f"{self.endpoint}/{self.bucket}", timeout=60).raise_for_status()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def settings(self) -> dict[str, str]:
        return {
            "url": f"s3://{self.bucket}/edge",
            "endpoint": self.endpoint,
            "region": "us-east-1",
            "access_key_id": "AKIDEXAMPLE",
            "secret_access_key": "secret",
        }

    def go_away(self) -> str:
        kill_group(self._process)
        return "killed"

    def come_back(self) -> None:
        command = [sys.executable, str(HERE / "s3_on_disk.py"), str(self.port), str(self._objects)]
        self._process = start(command, output=self._log, errors=self._log)
        wait_until(lambda: answers(self.port), story=self._log.read_text)

    def close(self) -> None:
        kill_group(self._process)


class PostgresMember(_Underneath):
    """A server that is stopped in the middle of everything, and recovers from its log."""

    kind = "postgres"

    def __init__(self, *, seed: int, began: float) -> None:
        super().__init__(seed=seed, began=began, life_seconds=40.0, gone_seconds_max=3.0)
        place = Path("/dev/shm") if Path("/dev/shm").is_dir() else None
        self._folder = Path(_made(place))
        self._port = free_port()
        pg("initdb", "--no-sync", "--auth=trust", "--username=postgres", "-E", "UTF8", "-D", self._folder / "data")
        self.come_back()
        self.records.starts += 1

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self._port}/postgres"

    def go_away(self) -> str:
        mode = self._chance.choice(("immediate", "fast"))
        pg("pg_ctl", "-D", self._folder / "data", "-m", mode, "-w", "stop")
        return f"stopped ({mode})"

    def come_back(self) -> None:
        options = " ".join(f"-c {name}={value}" for name, value in POSTGRES_SETTINGS.items())
        options += f" -c listen_addresses=127.0.0.1 -c port={self._port} -c unix_socket_directories={self._folder}"
        pg("pg_ctl", "-D", self._folder / "data", "-l", self._folder / "log", "-w", "-o", options, "start")

    def close(self) -> None:
        if self._back_at is None:
            pg("pg_ctl", "-D", self._folder / "data", "-m", "immediate", "-w", "stop")
            self._back_at = 0.0
        shutil.rmtree(self._folder, ignore_errors=True)


def _made(place: Path | None) -> str:
    import tempfile

    folder = tempfile.mkdtemp(prefix="floodmark-kills-postgres-", dir=place)
    if os.geteuid() == 0:
        shutil.chown(folder, "postgres", "postgres")
    return folder


def pg(program: str, *arguments: str | Path) -> None:
    from postgres import programs_directory, run_program

    run_program(programs_directory() / program, *arguments)


class DiskMember(_Underneath):
    """A small disk of its own for a store: now and then there is no room left on it."""

    kind = "disk"
    SIZE_MEGABYTES = 192

    def __init__(self, directory: Path, *, seed: int, began: float) -> None:
        super().__init__(seed=seed, began=began, life_seconds=18.0, gone_seconds_max=3.0)
        self._directory = directory
        self._ballast = directory / "ballast"
        directory.mkdir()
        options = f"size={self.SIZE_MEGABYTES}m"
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(directory)], check=True)

    def go_away(self) -> str:
        """Take all the room there is, to the last byte."""
        with self._ballast.open("wb", buffering=0) as file:
            for size in (1 << 20, 4096, 1):
                block = b"\0" * size
                try:
                    while True:
                        file.write(block)
                except OSError:
                    continue
        return "filled up"

    def come_back(self) -> None:
        self._ballast.unlink()

    def close(self) -> None:
        self._ballast.unlink(missing_ok=True)

    def unmount(self) -> None:
        subprocess.run(["umount", "-l", str(self._directory)], check=False)


def may_mount(folder: Path) -> str | None:
    """Why no small disk can be mounted here; None if one can."""
    probe = folder / "probe"
    probe.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(probe)], capture_output=True, text=True, check=False
    )
    if done.returncode == 0:
        subprocess.run(["umount", "-l", str(probe)], check=True)
    probe.rmdir()
    return None if done.returncode == 0 else done.stderr.strip()
