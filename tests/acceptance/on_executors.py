"""Loaded by every Python on the cluster of the tests: it strikes where a test says, and notes what no task may do.

A file in STRIKES that is named as a fault point says what happens to the first task that gets there. Whoever renames
the file is the first.
"""

import os
import signal
import sys
import time
from pathlib import Path

STRIKES = Path(os.environ["STRIKES"])
POINTS = ("task.segments_read", "task.range_done")
FORBIDDEN = {"psycopg", "psycopg2"}
"""Drivers of a control database."""


def note(what: str) -> None:
    with (STRIKES / "noted").open("a") as file:
        file.write(f"{what}\n")


def watch(event: str, arguments: tuple) -> None:
    if event == "import" and arguments[0] in FORBIDDEN:
        note(f"import {arguments[0]}")
    elif event == "sqlite3.connect":
        note(f"sqlite {arguments[0]}")


def struck(point: str) -> None:
    try:
        deed = (STRIKES / point).read_text()
        (STRIKES / point).rename(STRIKES / f"{point}.done")
    except FileNotFoundError:
        if (STRIKES / f"{point}.waiting").exists():
            (STRIKES / f"{point}.other").touch()
        return
    worker = os.getpid()
    if deed == "kill the executor":
        daemon = os.getppid()
        os.kill(int(Path(f"/proc/{daemon}/stat").read_text().rpartition(")")[2].split()[1]), signal.SIGKILL)
        os.kill(worker, signal.SIGKILL)
    if deed == "kill the task":
        os.kill(worker, signal.SIGKILL)
    if deed == "wait for another attempt":
        (STRIKES / f"{point}.waiting").touch()
        while not (STRIKES / f"{point}.other").exists():
            time.sleep(0.05)


def arm() -> None:
    try:
        from floodmark import faults
    except ImportError:
        return  # a Python of a machine on which it was not installed
    for point in POINTS:
        faults.arm(point, lambda point=point: struck(point))


class Absent:
    """Finds no module of Floodmark: this machine does not have it."""

    @staticmethod
    def find_spec(name: str, *_: object) -> None:
        if name.partition(".")[0] == "floodmark":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


if "WITHOUT_FLOODMARK" in os.environ:
    sys.meta_path.insert(0, Absent)
sys.addaudithook(watch)
arm()
