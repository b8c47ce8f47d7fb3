"""Start, find and kill processes by number and start time, so that no other process is ever killed."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

FAULT_VARIABLE = "FLOODMARK_FAULT"


@dataclass(frozen=True, slots=True)
class Kin:
    """A process below one of ours."""

    pid: int
    started: str
    name: str

    def kill(self) -> None:
        """Only if the number is still the same process."""
        if any((pid, started) == (self.pid, self.started) for pid, _, started, _ in _listed()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


def floodmark(root: Path, *arguments: str) -> list[str]:
    """The command line of this very installation."""
    return [sys.executable, "-m", "floodmark.cli", "-s", str(root), *arguments]


def start(
    command: Sequence[str],
    *,
    output: Path,
    errors: Path,
    fault: str | None = None,
    variables: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Start a program in its own process group. Its output goes to files: a full pipe would block it."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_GATEWAY")}
    kept.pop(FAULT_VARIABLE, None)
    environment = {**kept, **(variables or {}), **({} if fault is None else {FAULT_VARIABLE: fault})}
    with output.open("ab") as said, contextlib.ExitStack() as stack:
        complained: IO[bytes] = said if errors == output else stack.enter_context(errors.open("ab"))
        return subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=complained,
            start_new_session=True,
        )


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """A process and all below it at once, as a power cut would have it."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def kin_of(pid: int) -> list[Kin]:
    """All processes below a process."""
    listed = _listed()
    found: list[Kin] = []
    above = {pid}
    while above:
        below = [Kin(child, started, name) for child, parent, started, name in listed if parent in above]
        found += below
        above = {kin.pid for kin in below}
    return found


def _listed() -> list[tuple[int, int, str, str]]:
    """Number, parent, start and name of every process: from /proc, or where there is none from `ps`."""
    if Path("/proc/self/stat").exists():
        return [entry for folder in Path("/proc").iterdir() if folder.name.isdigit() and (entry := _entry(folder))]
    program = shutil.which("ps") or "ps"
    done = subprocess.run(
        [program, "-A", "-o", "pid=,ppid=,lstart=,comm="], capture_output=True, text=True, check=False
    )
    lines = [line.split() for line in done.stdout.splitlines()]
    return [(int(line[0]), int(line[1]), " ".join(line[2:7]), Path(line[7]).name) for line in lines if len(line) > 7]


def _entry(folder: Path) -> tuple[int, int, str, str] | None:
    try:
        status = (folder / "stat").read_text()
    except OSError:
        return None
    name, _, rest = status.partition("(")[2].rpartition(")")
    fields = rest.split()
    return None if fields[0] in {"Z", "X"} else (int(folder.name), int(fields[1]), fields[19], name)
