"""Every fault point of flush and delivery, one after the other: a real process is killed there, and others go on.

Chance meets some of these instants seldom or never: a block that is void, a chunk that is split, a row that is given up
or sent again. Here each is prepared, and reached.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from floodmark import faults
from floodmark.store import Store
from floodmark.testing.oracle import Finding, Oracle
from floodmark.torture import reading
from floodmark.torture.processes import floodmark, start
from floodmark.torture.scratch import Planned, make_store
from scenarios.delivery.servers import Answer, KeyOnlyServer, Request

from .servers import PostgresMember
from .stage import SMALL_JVM

DATASET = "orders"
SITES = ("north", "south")
PROCESS_SECONDS_MAX = 180
TRIES_MAX = 3
POINTS = tuple(point for point in faults.POINTS if point.startswith(("flush.", "delivery.")))


class PickyServer(KeyOnlyServer):
    """Refuses some rows, until it is told to take them."""

    refuses = True

    def refusal(self, request: Request) -> Answer | None:
        poison = [row["id"] for row in request.rows() if int(row["id"].removeprefix("row-")) % 7 == 3]
        return Answer(422, {"detail": f"not {poison}"}) if poison and self.refuses else None


@dataclass
class Swept:
    """What became of a sweep."""

    reached: Counter[str]
    findings: list[Finding | str]

    @property
    def unreached(self) -> list[str]:
        return [point for point in POINTS if not self.reached[point]]


@dataclass
class Sweep:
    """One store, whose processes die wherever they can."""

    folder: Path
    postgres: bool = False
    oracle: Oracle = field(default_factory=Oracle)
    reached: Counter[str] = field(default_factory=Counter)
    _groups: list[int] = field(default_factory=list)

    def run(self, points: Iterable[str] = POINTS) -> Swept:
        wanted = list(points)
        with ExitStack() as stack:
            stack.callback(self._end_stragglers)
            self.root = self.folder / "edge"
            control = ""
            if self.postgres:
                member = PostgresMember(seed=0, began=0.0)
                stack.callback(member.close)
                control = member.url
            self.picky = stack.enter_context(PickyServer())
            self.place = {"url": (self.folder / "files").as_uri(), "format": "jsonl"}
            sinks = [
                Planned("objects", "blob", {**self.place, "chunk_rows": 8, "chunk_bytes": 400}),
                Planned(
                    "picky", "forward", {"url": self.picky.url, "chunk_rows": 4, "concurrency": 1, "accept": "status"}
                ),
            ]
            self.store = stack.enter_context(make_store(self.root, SMALL_JVM, {DATASET: True}, sinks, control=control))
            for point in wanted:
                self._die_at(point)
            return Swept(self.reached, self._compared())

    def _die_at(self, point: str) -> None:
        """Prepare what the instant needs, and have a process die there."""
        for _ in range(TRIES_MAX):
            match point.partition("."):
                case ("flush", _, "released"):
                    self._all_is_flushed()
                    self._capture(2, again=True)  # nothing of it is left to commit
                    command = ["flush"]
                case ("flush", _, _):
                    self._capture(4)
                    command = ["flush"]
                case (_, _, "replayed"):
                    self._command("export")
                    self.picky.refuses = False
                    command = ["sink", "replay", "picky"]
                case (_, _, "given_up"):
                    self._undelivered_rows("picky")
                    command = ["export", "picky"]
                case _:
                    self._undelivered_rows("objects")
                    command = ["export", "objects"]
            code = self._command(*command, fault=point)
            self.picky.refuses = True
            if code == -signal.SIGKILL:
                self.reached[point] += 1
                return

    def _undelivered_rows(self, sink: str) -> None:
        """Some that are left are enough: to commit others takes a JVM."""
        delivered = min(self.store.watermark(sink, DATASET, partition={"site": site}) for site in SITES)
        if self.store.horizon(DATASET) - delivered < 40:
            self._capture(64)
            self._all_is_flushed()

    def _all_is_flushed(self) -> None:
        if self._command("flush") != 0:
            raise AssertionError(f"a flush failed: {self._said()}")

    def _capture(self, count: int, *, again: bool = False) -> None:
        known = [dict(row) for row in list(self.oracle.attempted.values())[:count]]
        rows = known if again and known else self.oracle.rows(count, partitions=SITES)
        self.store.capture(DATASET, [{**row, "size": len(row["text"])} for row in rows])
        self.oracle.acknowledge(rows)

    def _command(self, *arguments: str, fault: str | None = None) -> int:
        command = floodmark(self.root, *arguments)
        said = self.folder / "said.log"
        process = start(command, output=said, errors=said, fault=fault)
        self._groups.append(process.pid)
        return process.wait(PROCESS_SECONDS_MAX)

    def _end_stragglers(self) -> None:
        """A JVM may outlive the process that was killed over it."""
        for group in self._groups:
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)

    def _said(self) -> str:
        return (self.folder / "said.log").read_text(errors="replace")[-2000:]

    # ── what came of it ──────────────────────────────────────────────────────────────────────────────────────────

    def _compared(self) -> list[Finding | str]:
        self.picky.refuses = False
        for arguments in (("flush",), ("export",), ("sink", "replay", "picky")):
            if self._command(*arguments) != 0:
                return [f"`{' '.join(arguments)}` failed: {self._said()}"]
        lake = reading.lake_rows(self.store, DATASET)
        there: dict[str, list[dict[str, Any]]] = {
            "lake": lake,
            "objects": list(reading.Objects(self.place).rows(DATASET)),
            "picky": self.picky.rows(DATASET),
        }
        found: list[Finding | str] = [item for name, rows in there.items() for item in self.oracle.compare(name, rows)]
        found += self.oracle.compare_order("objects", there["objects"], lake)
        found += [f"picky: the key {key} came with other rows" for key in self.picky.conflicts]
        return found + _unsound(self.store)


def _unsound(store: Store) -> list[str]:
    return [f"audit of objects: {item.what}" for item in store.audit("objects").findings if item.wrong]
