#!/usr/bin/env python
"""Run a command and note what it took: `scripts/measured.py NAME FILE COMMAND…`. `--table FILE` prints the notes.

CPU time tells more than the clock where others use the machine. It includes every process that the command leaves
behind: a JVM outlives the Python process that started it, so orphans are adopted and waited for.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys
import time
from pathlib import Path
from typing import Any

ORPHANS_SECONDS_MAX = 20
"""For so long processes may live on after the command has ended. Later ones are not counted."""
PR_SET_CHILD_SUBREAPER = 36


def main(arguments: list[str]) -> int:
    if arguments[0] == "--table":
        print(table(Path(arguments[1])))
        return 0
    name, file, *command = arguments
    began = time.time()
    code = run(command)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    note = {"job": name, "began": began, "ended": time.time(), "cpu": used.ru_utime + used.ru_stime}
    with Path(file).open("a", encoding="utf-8") as notes:
        notes.write(json.dumps(note) + "\n")
    return code


def run(command: list[str]) -> int:
    """The exit code of a command, when its orphans have ended too."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    started = os.posix_spawnp(command[0], command, os.environ)
    code = None
    while True:
        try:
            ended, status = os.waitpid(-1, 0)  # at once, whoever it is: a test may wait until a process has gone
        except (ChildProcessError, TimeoutError):  # nobody is left, or somebody stays
            break
        if ended == started:
            code = os.waitstatus_to_exitcode(status)
            signal.signal(signal.SIGALRM, _enough)
            signal.alarm(ORPHANS_SECONDS_MAX)
    signal.alarm(0)
    return 1 if code is None else code if code >= 0 else 128 - code


def _enough(_number: int, _frame: object) -> None:
    raise TimeoutError


def table(file: Path) -> str:
    """The notes as a table, the most CPU time first, and all of them together."""
    notes = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    notes.sort(key=lambda note: -note["cpu"])
    every = {
        "job": "all",
        "began": min(note["began"] for note in notes),
        "ended": max(note["ended"] for note in notes),
        "cpu": sum(note["cpu"] for note in notes),
    }
    head = f"{'job':<12}{'minutes':>9}{'CPU minutes':>13}"
    return "\n".join([head, *map(_line, (*notes, every))])


def _line(note: dict[str, Any]) -> str:
    return f"{note['job']:<12}{(note['ended'] - note['began']) / 60:>9.1f}{note['cpu'] / 60:>13.1f}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
