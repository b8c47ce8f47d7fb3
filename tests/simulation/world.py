"""Two stores, a bucket, the processes that come and go on them, and the oracle that watches."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import random
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from floodmark.config import UpkeepSettings
from floodmark.control.database import Database
from floodmark.errors import FilesMissing, OutcomeUnknown, Permanent, Retryable
from floodmark.hub.chunks import Chunks
from floodmark.lake.targets import ORIGIN_STORE
from floodmark.schema import SEQ
from floodmark.store import Store, open_store
from floodmark.testing import ManualClock
from floodmark.testing.oracle import Oracle

from . import others, places
from .disk import Disk
from .stage import Actor, Died, ServerDied, Stage
from .watch import look_at_commit

DATASET = "events"
TARGET = f"elsewhere.copies.{DATASET}"
SITES = ("north", "south")
DRAINS_MAX = 8
COMPACTIONS_MAX = 4
UPKEEP = UpkeepSettings(files_min=2, snapshots_keep=1, snapshots_age_seconds=0, snapshots_max=3)


MEETS = {
    "two flushes": {"flush"},
    "two exporters of one sink": {"export"},
    "two at upkeep": {"upkeep"},
    "upkeep beside a flush": {"upkeep", "flush"},
    "upkeep beside a delivery": {"upkeep", "export"},
}
"""Those who may meet, and at what."""


class Clock(ManualClock):
    """Stands still until somebody sleeps or a schedule moves it, also backwards."""

    def jump(self, seconds: float) -> None:
        self._now += timedelta(seconds=seconds)


@dataclass(eq=False)
class Process:
    """A process on one of the two stores. It has its own open store, which dies with it."""

    world: World
    name: str
    role: str
    lives: int = 1
    store: Store | None = None
    chunks: Chunks | None = None
    actor: Actor | None = None
    doing: str = ""
    """What it has begun last."""

    @property
    def identity(self) -> str:
        return f"{self.name}/{self.lives}"

    @property
    def host(self) -> str:
        """The machine that it runs on. Two processes of the edge share one; the third shares only files with them."""
        return "the other machine" if self.name == "edge1" else self.role

    @property
    def busy(self) -> bool:
        return self.actor is not None and self.actor.state == "paused"

    def open(self) -> Store:
        if self.store is None:
            self.store = self.world.open(self.role)
        return self.store

    def answer(self, method: str, url: str, headers: dict[str, str], content: bytes | None) -> Any:
        """As a hub's worker: take one request."""
        store = self.open()
        if self.chunks is None:
            self.chunks = Chunks(store.engine, store.spool, 1 << 20)
        return places.answered(store, self.chunks, method, url, headers, content)


@dataclass(eq=False)
class World:
    """Everything there is in one schedule."""

    root: Path
    identified: bool
    sites: tuple[str, ...] = SITES
    settles: bool = False
    """Whether the dataset has a settle function."""
    stage: Stage = field(default_factory=Stage)
    clock: Clock = field(default_factory=Clock)
    oracle: Oracle = field(default_factory=Oracle)
    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    """What went wrong on the way: errors that no operation may end with."""
    chances: dict[Any, random.Random] = field(default_factory=dict)
    reader_rows: list[dict[str, Any]] = field(default_factory=list)
    cursor: Any = None
    history: list[Any] = field(default_factory=list)
    unsteady: list[Any] = field(default_factory=list)
    """History that comes in another order each time."""
    legacy: list[Any] = field(default_factory=list)
    rebuilding: bool = False
    """Whether a rebuild was begun, and may have been cut off."""
    removing: bool = False
    """Whether rows were removed because they were old."""
    purges: dict[str, bool] = field(default_factory=dict)
    """The rows that somebody wanted to be removed for good, and whether he was told that they are."""
    retired: set[str] = field(default_factory=set)
    """The rows that a retention said it has removed."""
    disowned: set[str] = field(default_factory=set)
    """The rows that the owner of a target has deleted there, or that were given up because nobody can tell."""
    compacted: bool = False
    settling: int = 0
    """How many settlements were begun and not seen to their end: the rows they remove keep sinks waiting."""
    twins: dict[str, str] = field(default_factory=dict)
    """The rows that turned out to be another one."""
    fickle: set[str] = field(default_factory=set)
    """Those of them of which that is not said any more: both may be there, or one."""
    paused: bool = False
    restored: bool = False
    """Whether the control database is an older one than the spool and the lake, and nobody has checked it yet."""

    def __post_init__(self) -> None:
        self.lake = places.simulated_lake(self.stage, self.fate, self.counts, partial(look_at_commit, self))
        self.hub_lake = places.simulated_lake(self.stage, self.fate, self.counts, lambda *_commit: None)
        self.lake.clock = self.hub_lake.clock = self.clock
        self.bucket = places.Bucket(self.stage, self.fate, self.counts)
        self.network = places.Network(self.stage, self.fate, self.counts, self.hub_worker)
        self.disks = {"edge": Disk(self.root / "edge" / "spool"), "hub": Disk(self.root / "hub" / "spool")}
        self.processes = [Process(self, f"edge{n}", "edge") for n in range(3)]
        self.processes += [Process(self, f"hub{n}", "hub") for n in range(2)]
        self.locks: dict[int, str] = {}
        self.host_locks: dict[tuple[str, str], int] = {}
        """Lock files that only the processes of one machine share, with the descriptor that holds each."""
        self.arrivals: list[int] = []
        """After how many pauses the requests that are held up arrive."""
        self.stage.meanwhile = self._meanwhile

    def open(self, role: str) -> Store:
        lake = self.lake if role == "edge" else self.hub_lake
        store = open_store(self.root / role, lake=lake, clock=self.clock)
        flush = replace(store.settings.flush, patience_seconds=0)
        store.engine.settings = replace(store.settings, upkeep=UPKEEP, flush=flush)
        return store

    def fate(self, what: str) -> str:
        """What becomes of a request, by the chances of the operation that sends it."""
        actor = self.stage.running
        chance = self.chances.get(actor)
        fate = places.LAND if chance is None else places.drawn(chance)
        if fate != places.LAND:
            self.counts[f"{what}: {fate}"] += 1
        if fate == places.HOLD and chance is not None and (pauses := places.delay(chance)) is not None:
            self.arrivals.append(pauses)
        return fate

    def _meanwhile(self) -> None:
        """Time passes: what is under way to a lake or a bucket arrives, whoever runs just now."""
        due = [pauses <= 1 for pauses in self.arrivals]
        self.arrivals = [pauses - 1 for pauses in self.arrivals if pauses > 1]
        if any(due):
            self._arrive()

    def hub_worker(self) -> Process | None:
        """The worker that takes the next request: one that has nothing to do, if there is one."""
        workers = [process for process in self.processes if process.role == "hub"]
        free = [worker for worker in workers if not any(worker in actor.servers for actor in self.stage.actors)]
        return (free or workers)[0]

    # ── operations ───────────────────────────────────────────────────────────────────────────────────────────────

    def start(self, process: Process, name: str, work: Callable[[Store], Any], seed: int) -> Actor:
        """Begin an operation of a process."""
        actor = self.stage.add(f"{process.identity} {name}", process, lambda: self._ended(name, process, work))
        for other in self.processes:
            if other is not process and other.role == process.role and other.busy:
                self._count_meeting({_kind(name), _kind(other.doing)}, same=name == other.doing)
        process.actor, process.doing = actor, name
        self.chances[actor] = random.Random(seed)
        return actor

    def _ended(self, name: str, process: Process, work: Callable[[Store], Any]) -> None:
        try:
            report = work(process.open())
        except (Retryable, OutcomeUnknown) as error:
            self.counts[f"{name}: {type(error).__name__}"] += 1
            return
        except FilesMissing as error:
            # A commit or rewrite that the power took is undone by the next flush. Until then those who only look are
            # told that files are missing, and nothing else.
            if not self.counts["power cuts"] or "flush" in name:
                self.wrong.append(f"{process.identity} {name}: {type(error).__name__}: {error}")
            self.counts[f"{name}: FilesMissing"] += 1
            return
        except Exception as error:
            if _does_not_fit(error):
                raise
            self.wrong.append(f"{process.identity} {name}: {type(error).__name__}: {error}")
            return
        blocked = getattr(report, "blocked", None)
        if blocked and not self._cannot_be_told(report):
            self.wrong.append(f"{process.identity} {name}: blocked: {blocked}")
        self.counts[f"{name}: done"] += 1
        self.counts["duplicates dropped"] += getattr(report, "duplicates", 0)

    def _count_meeting(self, kinds: Collection[str], *, same: bool) -> None:
        """Somebody begins something while another one is in the middle of something."""
        for name, wanted in MEETS.items():
            if set(kinds) == wanted and (same or name != "two exporters of one sink"):
                self.counts[f"met: {name}"] += 1

    def as_captured(self, row: Any) -> dict[str, Any]:
        """A row as its producer has it: with a provisional key, where it is settled later which rows are one."""
        return others.as_captured(row, identified=self.identified, settles=self.settles)

    def read(self, store: Store) -> None:
        """A reader that keeps its cursor with what it has read: both move together, and from where they were."""
        seen = self.cursor
        for batch in store.read_since(DATASET, since=seen):
            if self.cursor is not seen:
                return  # another reader was first
            self.reader_rows += batch.table.to_pylist()
            self.cursor = seen = batch.cursor
            self.stage.pause("read.stored")
        self.look(store)

    def look(self, store: Store) -> None:
        """Somebody looks at everything that was acknowledged until now, committed or not: each row is there once."""
        owed = set(self.oracle.acknowledged)
        found = Counter(str(row["id"]) for part in store.read_with_pending(DATASET) for row in part.table.to_pylist())
        self.counts["looks at pending rows"] += 1
        self.wrong += [
            f"a look at pending rows: {id} is there {count} times" for id, count in found.items() if count > 1
        ]
        # A control database that was put back knows an older horizon, until the next flush.
        if not self.removing and not self.counts["control databases put back"]:
            excused = {*self.purges, *self.twins, *self.twins.values()}
            self.wrong += [f"a look at pending rows: {id} is missing" for id in sorted(owed - set(found) - excused)]

    def purge(self, store: Store, victim: str, *, by_key: bool = False) -> Any:
        """Remove one row for good, as far as it is not on its way to a sink.

        `by_key` names it by a value that a settlement may change at any moment: then nobody knows whether it is gone.
        """
        by_key = by_key and self.settles
        self.purges.setdefault(victim, False)
        if by_key:
            self.purges = dict.fromkeys((id for id, twin in self.twins.items() if twin == victim), False) | self.purges
        try:
            report = store.purge(DATASET, where=f"{'key' if by_key else 'id'} = '{victim}'")
        except Permanent as error:
            if "being delivered" not in error.message:
                raise
            self.counts["purge: under way"] += 1
            return None
        self.purges[victim] = self.purges[victim] or not by_key
        return report

    # ── accidents ────────────────────────────────────────────────────────────────────────────────────────────────

    def crash(self, process: Process) -> None:
        """The process is killed: what it was doing stands still, and its locks are free."""
        self.counts["crashes"] += 1
        for actor in self.stage.actors:
            if actor.state == "paused" and process in actor.servers:
                self.stage.strike(actor, ServerDied)
                self.stage.died[actor.at] += 1
        actor = process.actor
        if actor is not None and actor.state == "paused":
            if actor.servers:
                # Its request goes on at the hub without it.
                actor.process, self.chances[actor] = None, random.Random(0)
            else:
                self.stage.abandon(actor)
        self._bury(process)

    def _bury(self, process: Process) -> None:
        for descriptor in [number for number, owner in self.locks.items() if owner == process.identity]:
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_UN)
            self.locks.pop(descriptor, None)
            self.unlock(descriptor)
        if process.store is not None:
            for writer in process.store.spool._writers.values():
                if writer._descriptor is not None:
                    os.close(writer._descriptor)
                    writer._descriptor = None
        process.store = process.chunks = process.actor = None
        process.lives += 1

    def unlock(self, descriptor: int) -> None:
        """A lock file is free again, on the machine of whoever held it."""
        self.host_locks = {place: held for place, held in self.host_locks.items() if held != descriptor}

    def lose_power(self, role: str, chance: random.Random) -> None:
        """A machine goes dark: its processes, and what they had not synced."""
        self.counts["power cuts"] += 1
        for process in self.processes:
            if process.role == role:
                self.crash(process)
        # A request that was under way inside the machine is gone with it.
        lake = self.lake if role == "edge" else self.hub_lake
        lake.held.clear()
        lake.held_copies.clear()
        lake.held_settlements.clear()
        for file in sorted(set(lake.data) - lake.durable):
            if chance.random() < 0.5:
                del lake.data[file]
        self.disks[role].lose_power(chance)

    def own_target(self, what: str) -> None:
        """The owner of the table that rows are copied to does something there."""
        targets = self.lake.targets
        table = targets.tables.get(TARGET)
        if table is None or table.head is None:
            return
        self.counts[f"target: {what}"] += 1
        match what:
            case "delete":
                self.disowned |= {str(row["id"]) for row in self.mirrored()}
                targets.delete(TARGET)
            case "forget":
                self.disowned |= {str(row["id"]) for row in self.mirrored()}
                targets.delete(TARGET)
                targets.expire(TARGET)
            case "append":
                targets.add(TARGET, others.stranger())
            case _:
                targets.compact(TARGET)

    def learn(self, chance: random.Random, *, from_the_end: int = 0) -> None:
        """It turns out that two rows are one: any two, or one that is so far from the last, and another one."""
        twins = {*self.twins, *self.twins.values()}
        free = [id for id in self.oracle.acknowledged if id not in {*twins, *self.purges}]
        site = {id: self.oracle.attempted[id]["site"] for id in free}
        pairs = [pair for pair in itertools.combinations(free, 2) if site[pair[0]] == site[pair[1]]]
        if from_the_end in range(1, len(free) + 1):
            wanted = free[-from_the_end]
            pairs = [(pair[pair[0] == wanted], wanted) for pair in pairs if wanted in pair]
        if pairs:
            one, other = chance.choice(pairs)
            if not from_the_end and chance.random() < 0.5:
                # Either of them may be the one whose values change, and so either the one that stays.
                one, other = other, one
            self.twins[other] = one
            others.known[other] = one
            self.counts["rows that turned out to be one"] += 1

    def unlearn(self) -> None:
        """The settle function changes its mind about two rows."""
        if others.known:
            other = next(reversed(others.known))
            del others.known[other]
            self.fickle.add(other)
            self.counts["settle functions that changed their mind"] += 1

    def audit(self, sink: str) -> bool:
        """What the store itself says of a sink's destination."""
        process, told = Process(self, "auditor", "edge"), []
        actor = self.stage.add("audit", process, lambda: told.append(process.open().audit(sink).sound))
        self.stage.finish(actor)
        self._check_ended(actor)
        self._bury(process)
        return told == [True]

    def back_up(self) -> None:
        """Copy the control database."""
        with (
            contextlib.closing(sqlite3.connect(self.root / "edge" / "control.db")) as here,
            contextlib.closing(sqlite3.connect(self.root / "backup.db")) as there,
        ):
            here.backup(there)

    def restore(self) -> None:
        """Put the copy of the control database back: spool, lake and destinations are newer."""
        if not (self.root / "backup.db").exists():
            return
        self.counts["control databases put back"] += 1
        for process in self.processes:
            if process.role == "edge":
                self.crash(process)
        file = self.root / "edge" / "control.db"
        Database(f"sqlite:///{file}").close()
        for end in ("", "-wal", "-shm"):
            file.with_name(f"{file.name}{end}").unlink(missing_ok=True)
        shutil.copy(self.root / "backup.db", file)
        self.restored = True

    def compact(self, role: str) -> None:
        """Another engine rewrites the table's files."""
        lake, name = self.lake if role == "edge" else self.hub_lake, self.table(role)
        if name in lake.tables and lake.tables[name].head is not None:
            with contextlib.suppress(KeyError):  # files that a power cut took are not compacted
                lake.compact(name)
                self.counts["compactions"] += 1

    def table(self, role: str) -> str:
        """The table that a store's rows are in just now."""
        with contextlib.closing(sqlite3.connect(self.root / role / "control.db")) as connection:
            found = connection.execute("SELECT generation FROM datasets WHERE name = ?", [DATASET]).fetchone()
        return f"{DATASET}_g{found[0]}"

    def rows(self, role: str) -> list[dict[str, Any]]:
        """The rows of a store's table, in the order of their numbers."""
        return [_plain(row) for row in self.numbered(role)]

    def numbered(self, role: str) -> list[dict[str, Any]]:
        """The rows of a store's table as its files have them."""
        lake = self.lake if role == "edge" else self.hub_lake
        table = lake.tables.get(self.table(role))
        if table is None or table.head is None:
            return []
        parts = [lake.data[file].to_pylist() for file in table.files[table.head] if file in lake.data]
        return sorted((row for part in parts for row in part), key=lambda row: row[SEQ])

    def deliver_late(self) -> None:
        """Let whatever is under way arrive, when its clients have given up."""
        self._arrive()
        flying, self.network.flying = self.network.flying, []
        for request in flying:
            self._arrives_late(request)

    def _arrive(self) -> None:
        for lake in (self.lake, self.hub_lake):
            late = {"append": lake.deliver_held(), "copy": lake.deliver_held_copies()}
            for what, landed in (late | {"settlement": lake.deliver_held_settlements()}).items():
                self.counts[f"{what}: late and landed"] += sum(landed)
                self.counts[f"{what}: late and refused"] += len(landed) - sum(landed)
        self.counts["target: late append"] += len(self.lake.targets.deliver_held())
        self.bucket.deliver()

    def repeat_request(self, chance: random.Random) -> None:
        """The network delivers a request once more."""
        if self.network.sent:
            self._arrives_late(chance.choice(self.network.sent))

    def _arrives_late(self, request: Any) -> None:
        self.counts["request: late or repeated"] += 1
        actor = self.stage.add("a late request", None, lambda: self.network.arrive(request))
        self.stage.finish(actor)
        if actor.error is not None and not isinstance(actor.error, Died):
            self.wrong.append(f"a late request: {type(actor.error).__name__}: {actor.error}")

    # ── the end ──────────────────────────────────────────────────────────────────────────────────────────────────

    def settle(self, *, sinks: tuple[str, ...]) -> None:
        """Everybody comes to an end; then fresh processes bring everything home."""
        for actor in list(self.stage.actors):
            self.stage.finish(actor)
            self._check_ended(actor)
        self._drain(sinks)
        lakes = (self.lake.held, self.lake.held_copies, self.lake.targets.held, self.hub_lake.held)
        lakes += (self.lake.held_settlements,)
        if any(lakes) or self.bucket.flying or self.network.flying:
            self.deliver_late()
            self.repeat_request(random.Random(0))
            self._drain(sinks)

    def _check_ended(self, actor: Actor) -> None:
        if actor.error is not None and _does_not_fit(actor.error):
            raise actor.error
        if actor.error is not None and not isinstance(actor.error, Died):
            self.wrong.append(f"{actor.name}: {type(actor.error).__name__}: {actor.error}")

    def _drain(self, sinks: tuple[str, ...]) -> None:
        roles = ("edge", "hub") if "central" in sinks else ("edge",)
        last = {role: Process(self, f"last-{role}", role) for role in roles}

        def work() -> None:
            error: Exception | None = None
            for _ in range(DRAINS_MAX):
                try:
                    self._drain_once({role: process.open() for role, process in last.items()}, sinks)
                except (Retryable, OutcomeUnknown) as later:
                    error = later
                else:
                    return
            raise AssertionError(f"it does not come to an end: {error}") from error

        actor = self.stage.add("the last process", last["edge"], work)
        self.stage.finish(actor)
        self._check_ended(actor)
        for process in last.values():
            self._bury(process)

    def _drain_once(self, stores: dict[str, Store], sinks: tuple[str, ...]) -> None:
        edge = stores["edge"]
        if self.paused:  # whoever paused it may have died before it was resumed
            edge.resume_dataset(DATASET)
            for sink in sinks:
                edge.resume_sink(sink)
            self.paused = False
        if self.restored:
            edge.fsck(repair=True)
            self.restored = False
        if self.rebuilding:  # one that was cut off behind the fence is gone on with by asking for it again
            edge.rebuild(DATASET)
            self.rebuilding = False
        if self.settling:
            edge.compact(DATASET)  # as far as sinks let it: the rest comes in the end
            self.settling = 0
        self._purge_again(edge)
        self.counts["duplicates dropped"] += edge.flush(DATASET).duplicates
        for sink in sinks:
            report = edge.export(sink)
            if self._cannot_be_told(report):
                self._give_up(edge, sink)
            if report.errors:
                kind = AssertionError if report.blocked and not self._cannot_be_told(report) else Retryable
                raise kind(str(report.errors))
        self._purge_again(edge)
        if "central" in sinks:
            stores["hub"].flush(DATASET)
        if not self.removing:
            self.read(edge)
        if self.compacted:
            self._compact_to_the_end(edge)
        if self.settles:
            self._settle_again(edge)
        if self.settles or self.removing or self.purges:
            self._add_up(edge)

    def _add_up(self, store: Store) -> None:
        """U17: what was committed, without what was removed, is what the table holds."""
        for finding in store.fsck(deep=True).findings:
            if finding.kind in {"lake-differs", "partition-differs"}:
                self.wrong.append(f"the totals: {finding.where}: {finding.what}")

    @staticmethod
    def _settle_again(store: Store) -> None:
        problems = [item.settled.problem for item in store.compact(DATASET).datasets]
        if any(problems):
            raise Retryable(str(problems))

    def _compact_to_the_end(self, store: Store) -> None:
        for _ in range(COMPACTIONS_MAX):
            if not any(item.compacted for item in store.compact(DATASET).datasets):
                return
        self.wrong.append("the lake: compaction does not come to an end")

    def _cannot_be_told(self, report: Any) -> bool:
        """Whether a sink has stopped because the owner of its target has removed rows and the history of them."""
        return bool(self.counts["target: forget"]) and "is unknown: its snapshots" in str(report.errors)

    def _give_up(self, store: Store, sink: str) -> None:
        numbers = {row[SEQ]: str(row["id"]) for row in self.numbered("edge")}
        for skipped in store.skip(sink):
            self.disowned |= {id for number, id in numbers.items() if number in skipped.range}

    def _purge_again(self, store: Store) -> None:
        """Whoever wanted a row to be gone, and was not told that it is, asks again."""
        for victim, gone in self.purges.items():
            if not gone:
                self.purge(store, victim)

    # ── what there is ────────────────────────────────────────────────────────────────────────────────────────────

    def mirrored(self) -> list[dict[str, Any]]:
        """The rows of the edge in the table of somebody else's."""
        if TARGET not in self.lake.targets.tables:
            return []
        return [_plain(row) for row in self.lake.targets.rows(TARGET) if row.get(ORIGIN_STORE)]

    def projected(self) -> list[dict[str, Any]]:
        """What the projection has kept."""
        with contextlib.closing(sqlite3.connect(self.root / "edge" / "control.db")) as connection:
            connection.row_factory = sqlite3.Row
            if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'projected'").fetchone():
                return []
            return [dict(row) for row in connection.execute("SELECT * FROM projected ORDER BY rowid")]


def _kind(name: str) -> str:
    """Flush, export or upkeep, as far as an operation is one of them."""
    if name in {"retain", "purge", "compact", "settle", "rebuild"}:
        return "upkeep"
    return next((kind for kind in ("flush", "export") if kind in name), "")


def _does_not_fit(error: BaseException) -> bool:
    """Nobody's finding: the simulation, or a bug that was put in, does not fit the product any more. But values of two
    types in one column are one.
    """
    return isinstance(error, TypeError | AttributeError | NameError) and not isinstance(error, pa.ArrowException)


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if not name.startswith("_")}
