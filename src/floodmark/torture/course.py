"""The course of a run: trouble, then every book finished, then the drain."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from sqlalchemy import Connection, select

from floodmark.control.schema import blocks, intents
from floodmark.errors import FloodmarkError, Retryable
from floodmark.store import Store
from floodmark.torture.daemons import DaemonMember
from floodmark.torture.members import Member, dice
from floodmark.torture.verdict import Compared, Exercised
from floodmark.torture.writers import WriterMember

STEP_SECONDS = 0.05
TELL_SECONDS = 5.0
NUDGE_SECONDS = 3.0
FINISH_SECONDS_MAX = 120.0
STOP_SECONDS_MAX = 120.0
OVERTIME = 4.0
"""Trouble ends after so many times its length, whether enough was killed or not."""


@dataclass(slots=True)
class Course:
    """One run over a store. `others` are members besides its writers and its daemon."""

    store: Store
    """Opened by us, to look."""
    writers: Sequence[WriterMember]
    daemon: DaemonMember
    others: Sequence[Member]
    seconds: float
    seed: int
    kills_min: Mapping[str, int] = field(default_factory=dict)
    """By kind: trouble goes on until so many were killed."""
    tell: Callable[[str], None] = lambda _: None
    drain_seconds_max: float = 240.0
    """How long nothing may move before the drain is given up."""
    began: float = field(default_factory=time.monotonic)
    drained: bool = False
    destinations: Sequence[Compared] = ()
    """What was found in the end."""
    nudges: int = 0
    rows_in_trouble: int = 0
    """Rows that were told to be delivered while processes were killed."""
    _nudged: float = 0.0
    _told: float = 0.0

    @property
    def members(self) -> list[Member]:
        return [*self.others, *self.writers, self.daemon]

    def run(self, reading: Callable[[], Sequence[Compared]]) -> None:
        """Everything, and `reading` when nothing moves any more. Ends with every process gone."""
        try:
            self._trouble()
            self.rows_in_trouble = self.daemon.told.rows["exported"]
            self.tell("Killing has ended; the writers finish their books.")
            for writer in self.writers:
                writer.finish(FINISH_SECONDS_MAX)
            self.tell("The daemon delivers what is left.")
            self.drained = self._drain()
            self.daemon.stop(STOP_SECONDS_MAX)
            self.tell("Reading every destination.")
            self.destinations = reading()  # while servers among the members are still there
        finally:
            for member in self.members:
                member.close()

    def kills(self) -> Counter[str]:
        return Counter(kill.kind for member in self.members for kill in member.records.kills)

    # ── trouble ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _trouble(self) -> None:
        end = time.monotonic() + self.seconds
        latest = end + self.seconds * (OVERTIME - 1)
        while (now := time.monotonic()) < latest and (now < end or self._too_few()):
            self._step(self.members, trouble=True)
            self._tell_now(f"{max(0, end - now):,.0f} s left")

    def _too_few(self) -> bool:
        killed = self.kills()
        few = any(killed[kind] < count for kind, count in self.kills_min.items())
        return few or not self.daemon.told.rows["exported"]

    def _step(self, members: Sequence[Member], *, trouble: bool) -> None:
        for member in members:
            member.step(trouble=trouble)
        self._nudge()
        time.sleep(STEP_SECONDS)

    def _nudge(self) -> None:
        """A sink that failed is left alone for half a minute and more. New settings end that wait, and are one more
        thing that can go wrong.
        """
        if time.monotonic() < self._nudged + NUDGE_SECONDS:
            return
        self._nudged = time.monotonic()
        with contextlib.suppress(FloodmarkError):  # the store itself may be in trouble
            for sink in self.store.sinks():
                if f"sink {sink.name}" in self.daemon.told.problems and "chunk_rows" in sink.settings:
                    rows = dice(self.seed, f"nudge {self.nudges}").randint(10, 60)
                    self.store.change_sink(sink.name, chunk_rows=rows)
                    self.nudges += 1

    def _tell_now(self, time_text: str) -> None:
        if time.monotonic() < self._told + TELL_SECONDS:
            return
        self._told = time.monotonic()
        kills = ", ".join(f"{kind} {count}" for kind, count in sorted(self.kills().items())) or "none"
        rows = sum(writer.page().rows_acknowledged for writer in self.writers)
        delivered = self.daemon.told.rows["exported"]
        self.tell(f"{time_text}; killed: {kills}; {rows:,} rows acknowledged, {delivered:,} told to be delivered")

    # ── the drain ────────────────────────────────────────────────────────────────────────────────────────────────

    def _drain(self) -> bool:
        members = [*self.others, self.daemon]
        if any(subject.startswith("dataset") for subject in self.daemon.told.problems):
            self.daemon.stop(STOP_SECONDS_MAX)  # the next life does not wait for the end of a back-off
        left, moved = None, time.monotonic()
        while time.monotonic() < moved + self.drain_seconds_max:
            self._step(members, trouble=False)
            try:
                now_left = waiting(self.store)
            except Retryable:
                continue
            if now_left == 0:
                return True
            if now_left != left:
                left, moved = now_left, time.monotonic()
            self._tell_now(f"draining, {left} to go")
        return False


def exercised(course: Course) -> Exercised:
    pages = [writer.page() for writer in course.writers]
    told = course.daemon.told
    records = [member.records for member in course.members]
    return Exercised(
        kills=tuple(sorted((kill for one in records for kill in one.kills), key=lambda kill: kill.seconds)),
        starts=sum(one.starts for one in records),
        rows_attempted=sum(len(rows) for page in pages for rows in page.attempts.values()),
        rows_acknowledged=sum(page.rows_acknowledged for page in pages),
        rows_captured_again=sum(page.rows_again for page in pages),
        duplicates_dropped=told.duplicates,
        commits=told.events["flushed"],
        ticks=told.events["exported"],
        rows_in_trouble=course.rows_in_trouble,
        chunks=told.chunks,
        setting_changes=course.nudges,
        problems=told.events["problem"],
    )


def waiting(store: Store) -> int:
    """Bytes and rows that have not come to their end; 0 means that nothing will move any more."""
    status = store.status()
    spooled = sum(
        item.spool.landing_bytes + item.spool.segment_rows + (item.undecided_block is not None)
        for item in status.datasets
    )
    undelivered = sum(store.rows_waiting(sink.name) for sink in store.sinks())
    return spooled + undelivered + store._database.read(_open_intents)  # noqa: SLF001 - one more door into the same store


def doing(store: Store) -> str:
    """What the records say is under way."""

    def look(connection: Connection) -> str:
        commits = connection.execute(select(blocks.c.id).where(blocks.c.state == "reserved")).first() is not None
        under_way = ["a commit"] * commits + ["a delivery"] * (_open_intents(connection) > 0)
        return " and ".join(under_way) or "neither commit nor delivery"

    try:
        return store._database.read(look)  # noqa: SLF001
    except FloodmarkError:
        return "not to be told"


def _open_intents(connection: Connection) -> int:
    return len(connection.execute(select(intents.c.id).where(intents.c.state == "open")).fetchall())
