"""Where worlds are made: the stores that every schedule begins with, and everything that is put in the place of what a
machine would decide.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import os
import random
import secrets
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from floodmark import faults, files, process
from floodmark.control import database
from floodmark.control.database import Database
from floodmark.delivery import channel
from floodmark.delivery import channel as shipping
from floodmark.delivery.sinks import blob, forward
from floodmark.maintenance import compact
from floodmark.sources import iterables, load, steps
from floodmark.spool import landing, segments
from floodmark.store import Store, init
from floodmark.testing import ManualClock
from floodmark.testing.memory.lake import MemoryLake
from floodmark.testing.oracle import Oracle

from . import others, places
from .replacing import everywhere, replaced
from .stage import Actor
from .world import DATASET, SITES, World

MEMORY = Path("/dev/shm")
SINKS: dict[str, dict[str, Any]] = {
    "archive": {"kind": "blob", "url": "s3://simulated/archive", "format": "jsonl", "concurrency": 1},
    "central": {"kind": "forward", "url": "http://hub.simulated", "concurrency": 1, "wait_seconds_max": 0},
    "mirror": {"kind": "table", "table": "elsewhere.copies"},
    "figures": {"kind": "projection", "function": others.PROJECTION, "transactional": True},
}


@dataclass(frozen=True, slots=True)
class Kind:
    """What a world is like."""

    identified: bool
    sinks: tuple[str, ...]
    settles: bool = False
    typed: bool = False
    """Whether rows have a column whose type is corrected."""

    @property
    def roles(self) -> tuple[str, ...]:
        """The stores that there are."""
        return ("edge", "hub") if "central" in self.sinks else ("edge",)

    @property
    def name(self) -> str:
        more = [word for word in ("settles", "typed") if getattr(self, word)]
        return "-".join([f"identified{int(self.identified)}", *self.sinks, *more])


@dataclass
class Workshop:
    """Makes worlds, all at one place: the control databases' compiled statements are kept from one to the next."""

    directory: Path
    beginnings: dict[Kind, tuple[Path, MemoryLake, Oracle]] = field(default_factory=dict)

    def beginning(self, kind: Kind) -> tuple[Path, MemoryLake, Oracle]:
        """The two stores as every schedule finds them: the edge has some rows that nobody has got yet."""
        if kind not in self.beginnings:
            path, lake, oracle = self.directory / kind.name, MemoryLake(clock=ManualClock()), Oracle()
            for role in kind.roles:
                with init(path / role, lake=lake, clock=ManualClock()) as store:
                    _declare(store, kind, role)
                    if role == "edge":
                        _fill(store, oracle, kind)
            self.beginnings[kind] = path, lake, oracle
        return self.beginnings[kind]

    @contextlib.contextmanager
    def world(self, seed: int, kind: Kind, *, partitions: int, parallel: bool) -> Iterator[World]:
        place = self.directory / "world"
        shutil.rmtree(place, ignore_errors=True)
        path, lake, oracle = self.beginning(kind)
        shutil.copytree(path, place)
        world = World(place, kind.identified, SITES[:partitions], kind.settles)
        world.lake.tables, world.lake.numbers = copy.deepcopy(lake.tables), copy.copy(lake.numbers)
        world.lake.data, world.lake.durable = dict(lake.data), set(lake.durable)
        world.oracle = Oracle(dict(oracle.attempted), dict(oracle.acknowledged))
        for disk in world.disks.values():
            disk.take_stock()
        with contextlib.ExitStack() as patches:
            for item in _patches(world, random.Random(seed)):
                patches.enter_context(item)
            if parallel:
                patches.enter_context(replaced(channel, "PARALLEL_ROWS_MIN", 1))
            try:
                yield world
            finally:
                world.stage.clear()
                others.known.clear()  # now: a beginning that is made for the next world must not know of it
                for role in kind.roles:
                    Database(f"sqlite:///{place / role / 'control.db'}").close()


def _declare(store: Store, kind: Kind, role: str) -> None:
    own = "key" if kind.settles else others.REFERENCE
    columns = (*others.COLUMNS, own) if kind.settles or kind.identified else others.COLUMNS
    identity = [own]
    store.add_dataset(
        DATASET,
        identity if role == "edge" and (kind.identified or kind.settles) else None,
        partition_by=["site"],
        schema=dict.fromkeys((*columns, others.AMOUNT) if kind.typed else columns, "string"),
        settle=others.SETTLE if kind.settles and role == "edge" else None,
    )
    if role == "edge":
        for name in kind.sinks:
            store.add_sink(name, chunk_rows=3, **SINKS[name])


def _fill(store: Store, oracle: Oracle, kind: Kind) -> None:
    def rows(count: int) -> list[dict[str, Any]]:
        made = oracle.rows(count, partitions=SITES[:1])
        oracle.acknowledge(made)
        return [others.as_captured(row, identified=kind.identified, settles=kind.settles) for row in made]

    for count in (3, 1):  # so that a chunk is full, and the next is not
        store.capture(DATASET, rows(count))
        store.flush(DATASET)
    # … and some that wait: in a segment, and in the landing file of a writer that has gone.
    store.capture(DATASET, pa.Table.from_pylist(rows(1)))
    store.capture(DATASET, rows(1))


@contextlib.contextmanager
def workshop() -> Iterator[Workshop]:
    """A place in memory for one run of the simulation."""
    with (
        tempfile.TemporaryDirectory(prefix="floodmark-sim-", dir=MEMORY if MEMORY.is_dir() else None) as directory,
        replaced(database, "engine_for", functools.cache(database.engine_for)),
    ):
        before, threads = gc.get_threshold(), pa.cpu_count()
        pa.set_cpu_count(1)  # tables of a few rows: waking threads for them costs more than the work
        gc.freeze()  # what is loaded stays: looking through it again and again would cost a tenth of all the time
        gc.set_threshold(50_000, 50, 50)
        try:
            yield Workshop(Path(directory))
        finally:
            pa.set_cpu_count(threads)
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
        actor = stage.running
        path = str(Path(f"/proc/self/fd/{descriptor}").readlink())
        if path.endswith(".lock"):  # advisory, and nobody on another machine sees it
            host = actor.on.host if actor is not None and actor.on is not None else "nobody's"
            taken = world.host_locks.setdefault((path, host), descriptor) == descriptor
        else:
            taken = real_try_lock(descriptor)
        if taken and actor is not None and actor.on is not None:
            world.locks[descriptor] = actor.on.identity
        return taken

    def closed(descriptor: int) -> None:
        world.locks.pop(descriptor, None)
        world.unlock(descriptor)
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
    yield everywhere(files.try_lock, try_lock)
    yield everywhere(landing.landing_files, oldest_first)
    yield replaced(segments, "process_identity", identity)
    yield everywhere(process.is_certainly_dead, dead)
    yield everywhere(database.migrate, lambda _database, **_options: None)  # the tables are there
    yield replaced(blob, "place_of", lambda _settings: world.bucket)
    yield replaced(forward, "Exchange", lambda **_options: world.network)
    for owner, name in ((iterables, "BATCH_ROWS"), (load, "STEP_ROWS")):
        yield replaced(owner, name, 1)  # so that a history of a few rows has a middle
    for module in (steps, compact):
        yield replaced(module, "ThreadPoolExecutor", places.InTurn)
    yield replaced(shipping.Preparation, "prepare", lambda *_arguments: None)
