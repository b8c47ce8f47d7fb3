"""Two stores, a bucket, the processes that come and go on them, and the oracle that watches."""

from __future__ import annotations

import contextlib
import copy
import fcntl
import functools
import gc
import os
import random
import secrets
import shutil
import sqlite3
import tempfile
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

from floodmark import faults, files
from floodmark import store as store_module
from floodmark.backfill import load
from floodmark.config import UpkeepSettings
from floodmark.control import database
from floodmark.control.database import Database
from floodmark.delivery import shipping
from floodmark.delivery.sinks import blob, forward
from floodmark.errors import FilesMissing, OutcomeUnknown, Retryable
from floodmark.hub.chunks import Chunks
from floodmark.hub.intake import Intake
from floodmark.lake.memory import MemoryLake
from floodmark.schema import SEQ
from floodmark.spool import landing, sealing, segments
from floodmark.store import Store, init, open_store
from floodmark.testing import ManualClock
from floodmark.testing.oracle import Finding, Oracle
from floodmark.upkeep import compact

from . import places
from .disk import Disk
from .replacing import replaced
from .stage import Actor, Died, ServerDied, Stage

DATASET = "events"
SITES = ("north", "south")
DRAINS_MAX = 8
UPKEEP = UpkeepSettings(files_min=2, snapshots_keep=1, snapshots_age_seconds=0, snapshots_max=3)
MEMORY = Path("/dev/shm")


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

    @property
    def identity(self) -> str:
        return f"{self.name}/{self.lives}"

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
            self.chunks = Chunks(Intake.of(store), 1 << 20)
        return places.answered(store, self.chunks, method, url, headers, content)


@dataclass(eq=False)
class World:
    """Everything there is in one schedule."""

    root: Path
    identified: bool
    sites: tuple[str, ...] = SITES
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
    rebuilding: bool = False
    """Whether a rebuild was begun, and may have been cut off."""
    removing: bool = False
    """Whether rows were removed on purpose."""

    def __post_init__(self) -> None:
        self.lake = places.simulated_lake(self.stage, self.fate, self.counts)
        self.hub_lake = places.simulated_lake(self.stage, self.fate, self.counts)
        self.bucket = places.Bucket(self.stage, self.fate, self.counts)
        self.network = places.Network(self.stage, self.fate, self.counts, self.hub_worker)
        self.disks = {"edge": Disk(self.root / "edge" / "spool"), "hub": Disk(self.root / "hub" / "spool")}
        self.processes = [Process(self, f"edge{n}", "edge") for n in range(3)]
        self.processes += [Process(self, f"hub{n}", "hub") for n in range(2)]
        self.locks: dict[int, str] = {}

    def open(self, role: str) -> Store:
        lake = self.lake if role == "edge" else self.hub_lake
        store = open_store(self.root / role, lake=lake, clock=self.clock)
        store._flusher.patience_seconds = 0
        store.settings = replace(store.settings, upkeep=UPKEEP)
        return store

    def fate(self, what: str) -> str:
        """What becomes of a request, by the chances of the operation that sends it."""
        actor = self.stage.running
        chance = self.chances.get(actor)
        if chance is None or chance.random() < 0.7:
            return places.LAND
        fate = chance.choice([places.LOSE, places.DROP, places.HOLD])
        self.counts[f"{what}: {fate}"] += 1
        return fate

    def hub_worker(self) -> Process | None:
        """The worker that takes the next request: one that has nothing to do, if there is one."""
        workers = [process for process in self.processes if process.role == "hub"]
        free = [worker for worker in workers if not any(worker in actor.servers for actor in self.stage.actors)]
        return (free or workers)[0]

    # ── operations ───────────────────────────────────────────────────────────────────────────────────────────────

    def start(self, process: Process, name: str, work: Callable[[Store], Any], seed: int) -> Actor:
        """Begin an operation of a process."""
        actor = self.stage.add(f"{process.identity} {name}", process, lambda: self._ended(name, process, work))
        process.actor = actor
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
        except (TypeError, AttributeError, NameError):
            raise  # nobody's finding: the simulation, or a bug that was put in, does not fit the product any more
        except Exception as error:
            self.wrong.append(f"{process.identity} {name}: {type(error).__name__}: {error}")
            return
        blocked = getattr(report, "blocked", None)
        if blocked:
            self.wrong.append(f"{process.identity} {name}: blocked: {blocked}")
        self.counts[f"{name}: done"] += 1
        self.counts["duplicates dropped"] += getattr(report, "duplicates", 0)

    def capture(self, store: Store, count: int, *, arrow: bool = False, again: bool = False) -> None:
        rows = self.oracle.unanswered()[:count] if again else self.oracle.rows(count, partitions=self.sites)
        if not rows:
            return
        store.capture(DATASET, pa.Table.from_pylist(list(rows)) if arrow else [dict(row) for row in rows])
        self.stage.pause("capture.answered")
        self.oracle.acknowledge(rows)

    def read(self, store: Store) -> None:
        """A reader that keeps its cursor with what it has read: both move together, and from where they were."""
        seen = self.cursor
        for batch in store.read_since(DATASET, since=seen):
            if self.cursor is not seen:
                return  # another reader was first
            self.reader_rows += batch.table.to_pylist()
            self.cursor = seen = batch.cursor
            self.stage.pause("read.stored")

    def retain(self, store: Store, keep_rows: int) -> Any:
        self.removing = True
        return store.retain(DATASET, keep_rows=keep_rows)

    def backfill(self, store: Store) -> Any:
        """History that overlaps what was captured, if rows can be told apart."""
        if not self.history:
            known = list(self.oracle.attempted.values())[:1] if self.identified else []
            self.history = [*known, *self.oracle.rows(2, partitions=self.sites)]
        report = store.backfill(DATASET, [dict(row) for row in self.history], source_id="history")
        self.stage.pause("backfill.answered")
        self.oracle.acknowledge(self.history)
        return report

    def rebuild(self, store: Store) -> Any:
        self.rebuilding = True
        report = store.rebuild(DATASET)
        self.rebuilding = False
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
        if process.store is not None:
            for writer in process.store._capture._writers.values():
                if writer._descriptor is not None:
                    os.close(writer._descriptor)
                    writer._descriptor = None
        process.store = process.chunks = process.actor = None
        process.lives += 1

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
        for file in sorted(set(lake.data) - lake.durable):
            if chance.random() < 0.5:
                del lake.data[file]
        self.disks[role].lose_power(chance)

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
        """The rows of a store's table as its files have them, by number."""
        lake = self.lake if role == "edge" else self.hub_lake
        table = lake.tables.get(self.table(role))
        if table is None or table.head is None:
            return []
        parts = [lake.data[file].to_pylist() for file in table.files[table.head] if file in lake.data]
        rows = sorted((row for part in parts for row in part), key=lambda row: row[SEQ])
        return [{name: value for name, value in row.items() if not name.startswith("_")} for row in rows]

    def deliver_late(self) -> None:
        """Let whatever is under way arrive, when its clients have given up."""
        for lake in (self.lake, self.hub_lake):
            landed = [*lake.deliver_held(), *lake.deliver_held_copies()]
            self.counts["append: late and landed"] += sum(landed)
            self.counts["append: late and refused"] += len(landed) - sum(landed)
        self.bucket.deliver()
        flying, self.network.flying = self.network.flying, []
        for request in flying:
            self._arrives_late(request)

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
        if self.lake.held or self.lake.held_copies or self.hub_lake.held or self.bucket.flying or self.network.flying:
            self.deliver_late()
            self.repeat_request(random.Random(0))
            self._drain(sinks)

    def _check_ended(self, actor: Actor) -> None:
        if isinstance(actor.error, TypeError | AttributeError | NameError):
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
        if self.rebuilding:  # one that was cut off behind the fence is gone on with by asking for it again
            stores["edge"].rebuild(DATASET)
            self.rebuilding = False
        self.counts["duplicates dropped"] += stores["edge"].flush(DATASET).duplicates
        for sink in sinks:
            report = stores["edge"].export(sink)
            if report.errors:
                kind = AssertionError if report.blocked else Retryable
                raise kind(str(report.errors))
        if "central" in sinks:
            stores["hub"].flush(DATASET)
        if not self.removing:
            self.read(stores["edge"])

    def findings(self, *, sinks: tuple[str, ...]) -> list[str | Finding]:
        """What is wrong in the end, with every destination."""
        lake = self.rows("edge")
        delivered: dict[str, list[Any]] = {}
        if "archive" in sinks:
            delivered["the bucket"] = self.bucket.rows()
        if "central" in sinks:
            delivered["the hub"] = self.rows("hub")
        excused: set[str] = set()
        if self.removing:  # what retention took from the lake must be everywhere else
            excused = set(self.oracle.acknowledged) - {row["id"] for row in lake}
        else:
            delivered["the reader"] = self.reader_rows
        found: list[str | Finding] = list(self.wrong)
        found += self.oracle.compare("the lake", lake, excused=excused if sinks else ())
        for name, rows in delivered.items():
            found += self.oracle.compare(name, rows)
            found += self.oracle.compare_order(name, rows, lake)
        return found


# ── the stores that every schedule begins with ───────────────────────────────────────────────────────────────────────


@dataclass
class Workshop:
    """Makes worlds, all at one place: the control databases' compiled statements are kept from one to the next."""

    directory: Path
    beginnings: dict[bool, tuple[Path, MemoryLake, Oracle]] = field(default_factory=dict)

    def beginning(self, *, identified: bool) -> tuple[Path, MemoryLake, Oracle]:
        """The two stores as every schedule finds them: the edge has some rows that nobody has got yet."""
        if identified not in self.beginnings:
            path, lake, oracle = self.directory / f"beginning-{int(identified)}", MemoryLake(), Oracle()
            for role in ("edge", "hub"):
                with init(path / role, lake=lake, clock=ManualClock()) as store:
                    store.add_dataset(
                        DATASET,
                        ["id"] if identified and role == "edge" else None,
                        partition_by=["site"],
                        schema=dict.fromkeys(("id", "site", "text", "proof"), "string"),
                    )
                    if role == "edge":
                        archive = {"url": "s3://simulated/archive", "format": "jsonl", "concurrency": 1}
                        store.add_sink("archive", "blob", chunk_rows=3, **archive)
                        central = {"url": "http://hub.simulated", "concurrency": 1, "wait_seconds_max": 0}
                        store.add_sink("central", "forward", chunk_rows=3, **central)
                        for count in (3, 1):  # so that a chunk is full, and the next is not
                            rows = oracle.rows(count, partitions=SITES[:1])
                            store.capture(DATASET, rows)
                            oracle.acknowledge(rows)
                            store.flush(DATASET)
                        # … and some that wait: in a segment, and in the landing file of a writer that has gone.
                        for waiting in (pa.Table.from_pylist, list):
                            rows = oracle.rows(1, partitions=SITES[:1])
                            store.capture(DATASET, waiting(rows))
                            oracle.acknowledge(rows)
            self.beginnings[identified] = path, lake, oracle
        return self.beginnings[identified]

    @contextlib.contextmanager
    def world(self, seed: int, *, identified: bool, partitions: int) -> Iterator[World]:
        place = self.directory / "world"
        shutil.rmtree(place, ignore_errors=True)
        path, lake, oracle = self.beginning(identified=identified)
        shutil.copytree(path, place)
        world = World(place, identified, SITES[:partitions])
        world.lake.tables, world.lake._numbers = copy.deepcopy(lake.tables), copy.copy(lake._numbers)
        world.lake.data, world.lake.durable = dict(lake.data), set(lake.durable)
        world.oracle = Oracle(dict(oracle.attempted), dict(oracle.acknowledged))
        for disk in world.disks.values():
            disk.take_stock()
        with contextlib.ExitStack() as patches:
            for item in _patches(world, random.Random(seed)):
                patches.enter_context(item)
            try:
                yield world
            finally:
                world.stage.clear()
                for role in ("edge", "hub"):
                    database._engine(Database(f"sqlite:///{place / role / 'control.db'}").url).dispose()


@contextlib.contextmanager
def workshop() -> Iterator[Workshop]:
    """A place in memory for one run of the simulation."""
    with (
        tempfile.TemporaryDirectory(prefix="floodmark-sim-", dir=MEMORY if MEMORY.is_dir() else None) as directory,
        replaced(database, "_engine", functools.cache(database._engine)),
    ):
        before = gc.get_threshold()
        gc.freeze()  # what is loaded stays: looking through it again and again would cost a tenth of all the time
        gc.set_threshold(50_000, 50, 50)
        try:
            yield Workshop(Path(directory))
        finally:
            gc.set_threshold(*before)
            gc.unfreeze()


def _patches(world: World, chance: random.Random) -> Iterator[Any]:
    """Everything by which a schedule could differ from one run to the next, and every instant to pause at."""
    stage = world.stage
    transact, read, close, real_try_lock = Database.transact, Database.read, os.close, files.try_lock
    names = iter(range(1 << 62))

    def paused_transact(self: Database, work: Any, **options: Any) -> Any:
        stage.pause("control.transact")
        with stage.transaction():
            result = transact(self, work, **options)
        stage.pause("control.transacted")
        return result

    def paused_read(self: Database, work: Any) -> Any:
        stage.pause("control.read")
        with stage.transaction():
            return read(self, work)

    def try_lock(descriptor: int) -> bool:
        taken = real_try_lock(descriptor)
        actor = stage.running
        if taken and actor is not None and actor.on is not None:
            world.locks[descriptor] = actor.on.identity
        return taken

    def closed(descriptor: int) -> None:
        world.locks.pop(descriptor, None)
        close(descriptor)

    def synced(descriptor: int) -> None:
        for disk in world.disks.values():
            disk.synced(descriptor)

    def identity() -> str:
        actor = stage.running
        return "nobody/0" if actor is None or actor.on is None else actor.on.identity

    def dead(owner: str) -> bool:
        alive = {process.identity for process in world.processes}
        return owner not in alive and not any(owner == actor_identity(actor) for actor in stage.actors)

    def actor_identity(actor: Actor) -> str | None:
        return actor.on.identity if actor.state == "paused" and actor.on is not None else None

    def oldest_first(directory: Path) -> list[Path]:
        return sorted(Path(directory).glob("*.jsonl"))

    yield replaced(faults, "reach", stage.pause)
    yield replaced(Database, "transact", paused_transact)
    yield replaced(Database, "read", paused_read)
    yield replaced(os, "fsync", synced)
    yield replaced(os, "close", closed)
    yield replaced(uuid, "uuid4", lambda: uuid.UUID(int=next(names), version=4))
    yield replaced(secrets, "token_hex", lambda size=8: f"{next(names):0{2 * size}x}")
    yield replaced(secrets, "randbits", chance.getrandbits)
    for module in (files, landing, sealing):
        yield replaced(module, "try_lock", try_lock)
    yield replaced(sealing, "landing_files", oldest_first)
    yield replaced(segments, "process_identity", identity)
    yield replaced(segments, "is_certainly_dead", dead)
    yield replaced(store_module, "migrate", lambda _database: None)
    yield replaced(blob, "place_of", lambda _settings: world.bucket)
    yield replaced(forward, "Exchange", lambda **_options: world.network)
    for module in (load, compact):
        yield replaced(module, "ThreadPoolExecutor", places.InTurn)
    yield replaced(shipping._Ahead, "prepare", lambda *_arguments: None)
