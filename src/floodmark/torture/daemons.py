"""The daemon: `floodmark run` with its JVM, killed at random instants and at chosen points."""

from __future__ import annotations

import contextlib
import math
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from floodmark import faults
from floodmark.torture.members import Kill, Records, dice
from floodmark.torture.processes import Kin, floodmark, kill_group, kin_of, start

# ── What the daemon tells, followed line by line through all its lives ───────────────────────────────────────────────


@dataclass(slots=True)
class DaemonReports:
    """The events of one daemon: counted, and by life."""

    path: Path
    events: Counter[str] = field(default_factory=Counter)
    rows: Counter[str] = field(default_factory=Counter)
    """By event: flushed and exported."""
    duplicates: int = 0
    chunks: int = 0
    problems: dict[str, str] = field(default_factory=dict)
    """What each subject suffers from at present."""
    life_began: float = 0.0
    life_spoke: bool = False
    life_worked: float | None = None
    """When its first work got through, or failed for a reason that will keep it waiting."""
    life_delivered: float | None = None
    """When it first delivered rows."""
    _offset: int = 0

    def new_life(self) -> None:
        with self.path.open("ab") as file:
            file.write(b"\n")  # the incomplete line of a killed process ends here
        self.listen()
        self.life_began, self.life_spoke = time.monotonic(), False
        self.life_worked = self.life_delivered = None
        self.problems.clear()

    def listen(self) -> None:
        """Take in what has been said since."""
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(self._offset)
            content = file.read()
        whole, newline, _ = content.rpartition(b"\n")  # what follows the last line's end is still being written
        self._offset += len(whole) + len(newline)
        for line in whole.split(b"\n"):
            try:
                event = orjson.loads(line)
            except orjson.JSONDecodeError:
                continue  # a death cut it off
            self._take(event)

    def _take(self, event: dict[str, Any]) -> None:
        name = event["event"]
        self.life_spoke = True
        self.events[name] += 1
        if name in {"flushed", "exported"}:
            self.rows[name] += event["rows"]
            self.chunks += event.get("chunks", 0)
            self.duplicates += event.get("duplicates", 0)
            if self.life_worked is None:
                self.life_worked = time.monotonic()
            if name == "exported" and event["rows"] and self.life_delivered is None:
                self.life_delivered = time.monotonic()
        elif name == "problem":
            self.problems[event["subject"]] = event["problem"]
            if not event["subject"].startswith("sink") and self.life_worked is None:
                self.life_worked = time.monotonic()
        elif name == "recovered":
            self.problems.pop(event["subject"], None)


# ── Daemons ──────────────────────────────────────────────────────────────────────────────────────────────────────────


_SELDOM = ("flush.released", "delivery.split", "delivery.given_up", "delivery.replayed")
"""Fault points that a daemon without concurrent flushes and without refused rows reaches rarely or never."""
FAULTS = (
    *(point for point in faults.POINTS if point.startswith(("flush.", "delivery.")) and point not in _SELDOM),
    "segment.written",
    "segment.registered",
)
"""Fault points at which the daemon is also killed: random kills would rarely reach them."""


class Turns:
    """Deals fault points in turn: one that nothing has died at yet comes before one that was reached."""

    def __init__(self, points: Sequence[str], chance: random.Random) -> None:
        self._chance = chance
        self._left = list(points)
        chance.shuffle(self._left)  # a short run does not always have the same first ones
        self._reached: list[str] = []

    def next(self) -> str:
        """The next point, as the environment of a process names it."""
        if not self._left:
            self._left, self._reached = self._reached, []
        point = self._left.pop(0)
        self._left.append(point)  # if this life does not get there, a later one tries again
        return f"{point}:{self._chance.randint(1, 2)}"

    def reached(self, point: str) -> None:
        if point in self._left:
            self._left.remove(point)
            self._reached.append(point)


EARLY_SECONDS_MAX = 8.0
POINT_SECONDS = 8.0
WITHOUT_JVM_SECONDS_MAX = 20.0
LIFE_SECONDS_MAX = 90.0
KIN_SECONDS = 1.0
FRUITLESS_MAX = 2
"""After so many lives in a row that delivered nothing, one lasts until it has: where a JVM takes a minute to start,
kills that come sooner would prove nothing of deliveries."""


@dataclass(frozen=True, slots=True)
class Life:
    """What a life of the daemon is to be like."""

    manner: str
    after_seconds: float
    """After its start, after the first work that it reports of, or after its first delivery."""
    latest: float
    """It dies then, whatever it has done."""

    @classmethod
    def planned(cls, chance: random.Random, *, fruitless: int, life_seconds: float) -> Life:
        """The next life, after so many in a row that delivered nothing."""
        if fruitless >= FRUITLESS_MAX:
            return cls("delivering", chance.uniform(0.1, life_seconds), math.inf)
        manner = chance.choice(("early", "at work", "point"))
        longest = EARLY_SECONDS_MAX if manner == "early" else life_seconds
        return cls(manner, chance.uniform(0.1, longest), time.monotonic() + LIFE_SECONDS_MAX)

    def due(self, reports: DaemonReports) -> bool:
        """Whether its time has come."""
        since = {"early": reports.life_began, "delivering": reports.life_delivered}.get(
            self.manner, reports.life_worked
        )
        # A point may never be reached: then it dies a little later, as others do.
        patience = POINT_SECONDS if self.manner == "point" else 0.0
        now = time.monotonic()
        return now >= self.latest or (since is not None and now >= since + patience + self.after_seconds)


class DaemonMember:
    """`floodmark run` with its JVM. Starting takes long, so it dies less often than others."""

    kind = "daemon"

    def __init__(
        self,
        root: Path,
        *,
        name: str,
        folder: Path,
        seed: int,
        began: float,
        look: Callable[[], str],
        command: list[str] | None = None,
        life_seconds: float = 6.0,
    ) -> None:
        self.records = Records()
        self.reports = DaemonReports(folder / f"{name}.jsonl")
        self._log = folder / f"{name}.log"
        self._command = command or floodmark(root, "run", "--json")
        self._chance = dice(seed, name)
        self._turns = Turns(FAULTS, self._chance)
        self._look = look
        self._life_seconds = life_seconds
        self._began = began
        self._process: subprocess.Popen[bytes] | None = None
        self._kin: set[Kin] = set()
        self._counted = 0.0
        self._plan = Life("", 0.0, 0.0)
        self._fruitless = 0
        self._fault: str | None = None
        self._ours = False
        """This life's end is our doing."""

    def step(self, *, trouble: bool) -> None:
        self.reports.listen()
        self._count_kin()
        if self._process is None:
            self._start(trouble=trouble)
        elif self._process.poll() is not None:
            self._take_end(self._process.returncode)
            self._start(trouble=trouble)
        elif self._ours:
            # Its JVM was killed. The daemon restarts when it detects this; without work it never does.
            if time.monotonic() >= self._plan.latest:
                self._process.kill()
        elif trouble and self._plan.due(self.reports):
            self._kill()

    def stop(self, seconds_max: float) -> int | None:
        """Ask it to stop; its exit code, or None if it did not."""
        if self._process is None:
            return None
        self._kin |= set(kin_of(self._process.pid))
        self._ours = True
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(seconds_max)
        return None

    def close(self) -> None:
        if self._process is not None:
            self._kin |= set(kin_of(self._process.pid))
            kill_group(self._process)
        for kin in self._kin:
            kin.kill()
        self.reports.listen()

    def _count_kin(self) -> None:
        """A JVM that survives its daemon can no longer be found through it, so it is recorded before."""
        now = time.monotonic()
        if self._process is not None and now >= self._counted + KIN_SECONDS:
            self._counted = now
            self._kin |= set(kin_of(self._process.pid))

    def _start(self, *, trouble: bool) -> None:
        self._fault, self._ours = None, False
        delivered = self.reports.life_delivered is not None or self.records.starts == 0
        self._fruitless = 0 if delivered else self._fruitless + 1
        if trouble:
            self._plan = Life.planned(self._chance, fruitless=self._fruitless, life_seconds=self._life_seconds)
            if self._plan.manner == "point":
                self._fault = self._turns.next()
        self.reports.new_life()
        self._process = start(self._command, output=self.reports.path, errors=self._log, fault=self._fault)
        self.records.starts += 1

    def _kill(self) -> None:
        if self._process is None:
            return
        family = kin_of(self._process.pid)
        jvms = [kin for kin in family if kin.name == "java"]
        self._kin |= set(family)
        how = self._chance.choices(("alone", "with its JVM", "its JVM only"), (4, 3, 2 if jvms else 0))[0]
        if how == "its JVM only":
            jvms[0].kill()
            self._plan = Life("without a JVM", 0.0, time.monotonic() + WITHOUT_JVM_SECONDS_MAX)
        elif how == "alone":
            self._process.kill()  # the JVM finds out in its own time, and what it is doing may still land
            self._process.wait()
        else:
            kill_group(self._process)
        self._ours = True
        self._note(how, self._look() if self.reports.life_spoke else "starting")

    def _take_end(self, code: int) -> None:
        if self._ours:
            return
        if code == -signal.SIGKILL and self._fault is not None:
            point = self._fault.partition(":")[0]
            self._turns.reached(point)
            self._note("at a point", point)
        else:
            self.records.ended_by_itself(code, self._log)

    def _note(self, how: str, where: str) -> None:
        self.records.killed(Kill(time.monotonic() - self._began, self.kind, how, where))
