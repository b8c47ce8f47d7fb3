"""One run of `floodmark torture`: the scratch store, the kills, the verdict, and the clean-up."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, select

from floodmark.control.schema import blocks, intents
from floodmark.errors import FloodmarkError, Permanent, Retryable
from floodmark.schema import SEQ
from floodmark.store import Store, open_store
from floodmark.torture import reading
from floodmark.torture.daemons import DaemonMember
from floodmark.torture.members import Member, dice
from floodmark.torture.processes import floodmark
from floodmark.torture.scratch import PARTITION, SCHEMA, HubAccess, Plan, Planned, make_store, plan
from floodmark.torture.verdict import (
    Compared,
    Exercised,
    Verdict,
    compared,
    compared_by_ledger,
    oracle_of,
    unexercised,
)
from floodmark.torture.writers import WriterMember

# ── One run: trouble, then every journal finished, then the drain ────────────────────────────────────────────────────


STEP_SECONDS = 0.05
TELL_SECONDS = 5.0
NUDGE_SECONDS = 3.0
FINISH_SECONDS_MAX = 120.0
STOP_SECONDS_MAX = 120.0
OVERTIME = 4.0
"""Trouble ends after so many times its length, whether enough was killed or not."""


@dataclass(slots=True)
class ChaosRun:
    """One run over a store. `others` are members besides its writers and its daemon."""

    store: Store
    """Opened by the run itself, for reading."""
    writers: Sequence[WriterMember]
    daemon: DaemonMember
    others: Sequence[Member]
    seconds: float
    seed: int
    kills_min: Mapping[str, int] = field(default_factory=dict)
    """By kind: killing continues until this many were killed."""
    tell: Callable[[str], None] = lambda _: None
    drain_seconds_max: float = 240.0
    """How long nothing may move before the drain is given up."""
    began: float = field(default_factory=time.monotonic)
    drained: bool = False
    destinations: Sequence[Compared] = ()
    """What was found in the end."""
    nudges: int = 0
    rows_in_trouble: int = 0
    """Rows that were reported as delivered while processes were killed."""
    _nudged: float = 0.0
    _told: float = 0.0

    @property
    def members(self) -> list[Member]:
        return [*self.others, *self.writers, self.daemon]

    def run(self, reading: Callable[[], Sequence[Compared]]) -> None:
        """The whole run; `reading` is called when everything is drained. Ends after every process has ended."""
        try:
            self._trouble()
            self.rows_in_trouble = self.daemon.reports.rows["exported"]
            self.tell("No more kills. The writers complete their logs.")
            for writer in self.writers:
                writer.finish(FINISH_SECONDS_MAX)
            self.tell("The daemon delivers the remaining rows.")
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
        return few or not self.daemon.reports.rows["exported"]

    def _step(self, members: Sequence[Member], *, trouble: bool) -> None:
        for member in members:
            member.step(trouble=trouble)
        self._nudge()
        time.sleep(STEP_SECONDS)

    def _nudge(self) -> None:
        """A failed sink is retried after half a minute or more. A change of its settings ends that wait, and is also
        tested this way.
        """
        if time.monotonic() < self._nudged + NUDGE_SECONDS:
            return
        self._nudged = time.monotonic()
        with contextlib.suppress(FloodmarkError):  # the store itself may be in trouble
            for sink in self.store.sinks():
                if f"sink {sink.name}" in self.daemon.reports.problems and "chunk_rows" in sink.settings:
                    rows = dice(self.seed, f"nudge {self.nudges}").randint(10, 60)
                    self.store.change_sink(sink.name, chunk_rows=rows)
                    self.nudges += 1

    def _tell_now(self, time_text: str) -> None:
        if time.monotonic() < self._told + TELL_SECONDS:
            return
        self._told = time.monotonic()
        kills = ", ".join(f"{kind} {count}" for kind, count in sorted(self.kills().items())) or "none"
        rows = sum(writer.entries().rows_acknowledged for writer in self.writers)
        delivered = self.daemon.reports.rows["exported"]
        self.tell(f"{time_text}; killed: {kills}; {rows:,} rows acknowledged, {delivered:,} reported as delivered")

    # ── the drain ────────────────────────────────────────────────────────────────────────────────────────────────

    def _drain(self) -> bool:
        members = [*self.others, self.daemon]
        if any(subject.startswith("dataset") for subject in self.daemon.reports.problems):
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
            self._tell_now(f"draining, {left} rows left")
        return False


def exercised(chaos: ChaosRun) -> Exercised:
    journals = [writer.entries() for writer in chaos.writers]
    reports = chaos.daemon.reports
    records = [member.records for member in chaos.members]
    return Exercised(
        kills=tuple(sorted((kill for one in records for kill in one.kills), key=lambda kill: kill.seconds)),
        starts=sum(one.starts for one in records),
        rows_attempted=sum(len(rows) for entries in journals for rows in entries.attempts.values()),
        rows_acknowledged=sum(entries.rows_acknowledged for entries in journals),
        rows_captured_again=sum(entries.rows_again for entries in journals),
        duplicates_dropped=reports.duplicates,
        commits=reports.events["flushed"],
        ticks=reports.events["exported"],
        rows_in_trouble=chaos.rows_in_trouble,
        chunks=reports.chunks,
        setting_changes=chaos.nudges,
        problems=reports.events["problem"],
    )


def waiting(store: Store) -> int:
    """Bytes and rows that have not come to their end; 0 means that nothing will move any more."""
    status = store.status()
    spooled = sum(
        item.spool.landing_bytes + item.spool.segment_rows + (item.undecided_block is not None)
        for item in status.datasets
    )
    undelivered = sum(store.rows_waiting(sink.name) for sink in store.sinks())
    return spooled + undelivered + store.engine.database.read(_open_intents)


def doing(store: Store) -> str:
    """The work in progress, according to the records."""

    def look(connection: Connection) -> str:
        commits = connection.execute(select(blocks.c.id).where(blocks.c.state == "reserved")).first() is not None
        under_way = ["a commit"] * commits + ["a delivery"] * (_open_intents(connection) > 0)
        return " and ".join(under_way) or "no commit and no delivery"

    try:
        return store.engine.database.read(look)
    except FloodmarkError:
        return "unknown"


def _open_intents(connection: Connection) -> int:
    return len(connection.execute(select(intents.c.id).where(intents.c.state == "open")).fetchall())


# ── Trial ────────────────────────────────────────────────────────────────────────────────────────────────────────────


FLUSH_SECONDS_MAX = 600.0


@dataclass(slots=True)
class Trial:
    """What was asked for."""

    user: Store
    minutes: float
    seed: int
    sinks: Sequence[str] = ()
    writers: int = 2
    hub: HubAccess = field(default_factory=HubAccess)
    keep: bool = False
    tell: Callable[[str], None] = lambda _: None

    def run(self) -> Verdict:
        began = time.monotonic()
        folder = Path(tempfile.mkdtemp(prefix="floodmark-torture-"))
        planned = Plan("", (), ())
        store: Store | None = None
        try:
            planned = plan(self.user, self.sinks, self.hub, folder)
            if not planned.sinks:
                raise Permanent(f"No sink can be tested. {' '.join(planned.left_out)}", hint="Name others with --sink.")
            self._declare_at_the_hub(planned)
            store = make_store(folder / "store", self.user.settings, {planned.dataset: True}, planned.sinks)
            chaos = self._chaos(store, planned.dataset, folder)
            self.tell(
                f"Scratch store {store.path}; {', '.join(sink.name for sink in planned.sinks)}; seed {self.seed}."
            )
            made = store
            chaos.run(lambda: self._destinations(made, planned, chaos))
            verdict = self._verdict(planned, chaos, seconds=time.monotonic() - began, folder=folder)
        finally:
            left = () if self.keep else self._remove(store, planned, folder)
            if store is not None:
                store.close()
        return replace(verdict, kept=(*verdict.kept, *left))

    def _chaos(self, store: Store, dataset: str, folder: Path) -> ChaosRun:
        began = time.monotonic()
        writers = [
            WriterMember(
                store.path, dataset=dataset, name=f"w{number}", folder=folder, seed=self.seed, again=True, began=began
            )
            for number in range(1, self.writers + 1)
        ]
        daemon = DaemonMember(
            store.path, name="run", folder=folder, seed=self.seed, began=began, look=lambda: doing(store)
        )
        return ChaosRun(store, writers, daemon, (), self.minutes * 60, self.seed, tell=self.tell)

    # ── the hub's own store ──────────────────────────────────────────────────────────────────────────────────────

    def _declare_at_the_hub(self, planned: Plan) -> None:
        if self.hub.store is not None and any(sink.kind == "forward" for sink in planned.sinks):
            with open_store(self.hub.store) as central:
                # Without an identity: a row that came twice must show, and not be taken for a duplicate.
                if planned.dataset not in [item.name for item in central.datasets()]:
                    central.add_dataset(planned.dataset, partition_by=[PARTITION], schema=SCHEMA)

    # ── what came of it ──────────────────────────────────────────────────────────────────────────────────────────

    def _destinations(self, store: Store, planned: Plan, chaos: ChaosRun) -> list[Compared]:
        oracle = oracle_of(writer.entries() for writer in chaos.writers)
        lake = reading.lake_rows(store, planned.dataset)
        found = [compared(oracle, "the lake", lake, lake, how="every row of its table")]
        return found + [self._compared(store, sink, planned.dataset, oracle, lake) for sink in planned.sinks]

    def _verdict(self, planned: Plan, chaos: ChaosRun, *, seconds: float, folder: Path) -> Verdict:
        done, found = exercised(chaos), chaos.destinations
        return Verdict(
            seed=self.seed,
            seconds=seconds,
            drained=chaos.drained,
            stuck="" if chaos.drained else " ".join(chaos.daemon.reports.problems.values()),
            destinations=tuple(found),
            exercised=done,
            astray=tuple(text for member in chaos.members for text in member.records.astray),
            left_out=planned.left_out,
            kept=self._kept(planned, folder),
            unexercised=unexercised(done, kinds=("writer", "daemon"), destinations=found),
        )

    def _compared(self, store: Store, sink: Planned, dataset: str, oracle: Any, lake: reading.Rows) -> Compared:
        if sink.kind == "blob":
            rows = reading.Objects(sink.settings).rows(dataset)
            return compared(oracle, sink.name, rows, lake, how="every object")
        if sink.kind == "table":
            rows = reading.target_rows(store, sink.settings["table"])
            return compared(oracle, sink.name, rows, lake, how="every row of the table")
        if self.hub.store is not None:
            return compared(oracle, sink.name, self._hub_rows(dataset), lake, how="every row in the hub's store")
        ledger = reading.Ledger(sink.settings["url"], sink.settings.get("token"), sink.settings["origin"])
        return compared_by_ledger(sink.name, ledger.channels(dataset), lake, seq=SEQ, partition=PARTITION)

    def _hub_rows(self, dataset: str) -> reading.Rows:
        root = Path(str(self.hub.store))
        flush_store(root, dataset)
        with open_store(root) as central:
            return reading.lake_rows(central, dataset)

    # ── nothing left behind ──────────────────────────────────────────────────────────────────────────────────────

    def _kept(self, planned: Plan, folder: Path) -> tuple[str, ...]:
        kept = [f"the scratch store in {folder}"] if self.keep else []
        for sink in planned.sinks:
            if sink.kind == "forward":
                kept.append(f"dataset {planned.dataset} at the hub {sink.settings['url']}, with the rows of this run")
            elif self.keep:
                kept.append(f"{sink.name}: {sink.settings.get('url') or sink.settings['table']}")
        return tuple(kept)

    def _remove(self, store: Store | None, planned: Plan, folder: Path) -> tuple[str, ...]:
        """Remove what was made; returns what is left."""
        left = []
        for sink in planned.sinks if store is not None else ():
            try:
                if sink.kind == "blob":
                    reading.Objects(sink.settings).remove()
                elif sink.kind == "table" and store is not None:
                    orphans = reading.drop_target(store, sink.settings["table"])
                    left += (
                        [f"{sink.name}: files in {orphans} that killed processes did not remove, if any"]
                        if orphans
                        else []
                    )
            except Exception as error:  # noqa: BLE001 - whatever a destination says to that: it is told, and the rest goes on
                place = sink.settings.get("url") or sink.settings.get("table")
                left.append(f"{sink.name}: {place} could not be removed ({type(error).__name__})")
                self.tell(left[-1])
        with contextlib.suppress(OSError):
            shutil.rmtree(folder)
        return tuple(left)


def flush_store(root: Path, *datasets: str) -> None:
    """Commit what waits in another store, in a process of its own."""
    command = floodmark(root, "flush", *datasets)
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=FLUSH_SECONDS_MAX)
    if done.returncode != 0:
        raise Permanent(f"`floodmark flush` failed on {root}: {done.stderr.strip()}")
