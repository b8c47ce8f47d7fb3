"""A hub of our own, with workers that die one by one or all at once."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
from pathlib import Path

from floodmark.torture.members import Kill, Records, dice
from floodmark.torture.processes import floodmark, kill_group, kin_of, start


class HubMember:
    """`floodmark hub`: a supervisor and its workers, always on the same port."""

    kind = "hub"

    def __init__(
        self,
        root: Path,
        *,
        folder: Path,
        seed: int,
        began: float,
        workers: int = 2,
        life_seconds: float = 5.0,
        outage_seconds_max: float = 4.0,
    ) -> None:
        self.records = Records()
        self.port = free_port()
        self._log = folder / "hub.log"
        listen = ["--port", str(self.port), "--workers", str(workers)]
        self._command = floodmark(root, "hub", *listen)
        self._chance = dice(seed, "hub")
        self._life_seconds = life_seconds
        self._outage_seconds_max = outage_seconds_max
        self._began = began
        self._process: subprocess.Popen[bytes] | None = None
        self._ours = False
        self._start_at = 0.0
        self._due = 0.0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def step(self, *, trouble: bool) -> None:
        now = time.monotonic()
        if self._process is None or self._process.poll() is not None:
            self._come_back(now)
        elif trouble and now >= self._due:
            self._due = now + max(1.0, self._chance.expovariate(1 / self._life_seconds))
            if answers(self.port):
                self._kill(self._process, now)

    def close(self) -> None:
        if self._process is not None:
            kin = kin_of(self._process.pid)
            kill_group(self._process)
            for one in kin:
                one.kill()

    def _come_back(self, now: float) -> None:
        # A worker that outlives its supervisor keeps the port for a moment; then the new one ends at once.
        if self._process is not None and not self._ours and not answers(self.port):
            self.records.ended_by_itself(self._process.returncode, self._log)
        if now >= self._start_at:
            self._process = start(self._command, output=self._log, errors=self._log)
            self.records.starts += 1
            self._ours = False
            self._start_at = now + 1.0
            self._due = now + max(1.0, self._chance.expovariate(1 / self._life_seconds))

    def _kill(self, process: subprocess.Popen[bytes], now: float) -> None:
        how = self._chance.choices(("a worker", "the supervisor", "all of it", "all of it, for a while"), (6, 2, 2, 1))[
            0
        ]
        workers = [kin for kin in kin_of(process.pid) if kin.name.startswith("python")]
        if how == "a worker" and workers:
            self._chance.choice(workers).kill()
        elif how == "the supervisor":
            process.kill()
            process.wait()
        else:
            kill_group(process)
        self._ours = process.poll() is not None
        if how.endswith("a while"):
            self._start_at = now + self._chance.uniform(1.0, self._outage_seconds_max)
        self.records.killed(Kill(now - self._began, self.kind, how, "serving"))


def answers(port: int) -> bool:
    """Whether a process listens on a port of this machine."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
