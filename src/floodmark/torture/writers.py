"""Writers: processes that capture rows and log the acknowledgements."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from pathlib import Path

from floodmark.torture.journal import Entries
from floodmark.torture.members import Kill, Records, dice
from floodmark.torture.processes import kill_group, start

FAULTS = ("capture.written", "capture.synced")
POINT_SHARE = 0.4
"""The share of kills inside a capture call: a call takes a thousandth of the time, so random kills would rarely hit it.
"""


class WriterMember:
    """A process that captures rows and logs the acknowledgements."""

    kind = "writer"

    def __init__(
        self,
        root: Path,
        *,
        dataset: str,
        name: str,
        folder: Path,
        seed: int,
        again: bool,
        began: float,
        command: tuple[str, ...] = (sys.executable, "-m", "floodmark.torture.writer"),
        life_seconds: float = 8.0,
    ) -> None:
        self.records = Records()
        self.dataset = dataset
        self.journal = folder / f"{name}.journal"
        self._log = folder / f"{name}.log"
        manner = "again" if again else "leave"
        self._command = [*command, str(root), dataset, name, str(self.journal), str(seed), manner]
        self._chance = dice(seed, name)
        self._life_seconds = life_seconds
        self._began = began
        self._due = 0.0
        self._process: subprocess.Popen[bytes] | None = None
        self._fault: str | None = None

    def entries(self) -> Entries:
        return Entries.read(self.journal)

    def step(self, *, trouble: bool) -> None:
        if self._process is None or self._process.poll() is not None:
            if self._process is not None:
                self._take_end(self._process.returncode)
            self._start(trouble=trouble)
        elif trouble and time.monotonic() >= self._due:
            self._process.kill()
            self._process.wait()
            inside = self.entries().last_unanswered
            self._note("at random", "inside a capture" if inside else "between two captures")
            self._start(trouble=True)

    def finish(self, seconds_max: float) -> None:
        """Stop, and resolve rows with an unknown outcome."""
        deadline = time.monotonic() + seconds_max
        self._end(seconds_max)
        while time.monotonic() < deadline:
            self._start("finish", trouble=False)
            self._wait(deadline - time.monotonic())
            if self._process is not None and self._process.returncode == 0:
                return
            time.sleep(0.5)

    def close(self) -> None:
        if self._process is not None:
            kill_group(self._process)

    def _start(self, *more: str, trouble: bool) -> None:
        self._fault = None
        if trouble and self._chance.random() < POINT_SHARE:
            self._fault = f"{self._chance.choice(FAULTS)}:{self._chance.randint(1, 30)}"
        self._process = start([*self._command, *more], output=self._log, errors=self._log, fault=self._fault)
        self.records.starts += 1
        self._due = time.monotonic() + max(0.8, self._chance.expovariate(1 / self._life_seconds))

    def _take_end(self, code: int) -> None:
        if code == -signal.SIGKILL and self._fault is not None:
            self._note("at a point", self._fault.partition(":")[0])
        else:
            self.records.ended_by_itself(code, self._log)

    def _note(self, how: str, where: str) -> None:
        self.records.killed(Kill(time.monotonic() - self._began, self.kind, how, where))

    def _end(self, seconds_max: float) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            self._wait(seconds_max)

    def _wait(self, seconds_max: float) -> None:
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(max(0.1, seconds_max))
            kill_group(self._process)
