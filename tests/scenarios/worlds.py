"""One store's directory and lake, the processes that come and go on it, and what must be true in the end."""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from sqlalchemy import select

from engines import set_flush
from floodmark import faults
from floodmark.control import datasets
from floodmark.control.blocks import BatchLimits
from floodmark.control.schema import block_partitions
from floodmark.control.schema import blocks as blocks_table
from floodmark.control.schema import segments as segments_table
from floodmark.lake import queries
from floodmark.schema import SEQ
from floodmark.sequence import SequenceRange, Tally
from floodmark.store import Store, init, open_store
from floodmark.testing import ManualClock, MemoryLake, SimulatedCrash, kill_store

DATASET = "events"
TABLE = "events_g1"
AS_BEFORE = frozenset({"flush.appending", "flush.decided", "flush.synced"})
"""Fault points that leave nothing behind but what the one before left. In pairs they would show the same again."""


@dataclass
class World:
    """Everything that survives the death of a process, and what its producers were told."""

    root: Path
    lake: MemoryLake = field(default_factory=MemoryLake)
    clock: ManualClock = field(default_factory=ManualClock)
    acknowledged: list[int] = field(default_factory=list)
    limits: BatchLimits = field(default_factory=BatchLimits)
    opened: list[Store] = field(default_factory=list)
    ids: Iterator[int] = field(default_factory=itertools.count)

    @classmethod
    def make(cls, root: Path, *, lake: MemoryLake | None = None, **dataset: Any) -> World:
        world = cls(root, lake or MemoryLake())
        with init(root, lake=world.lake, clock=world.clock) as store:
            store.add_dataset(DATASET, **{"partition_by": ["site"], "schema": {"id": "long"}, **dataset})
        return world

    def open(self) -> Store:
        """A store as another process would open it; it waits for nobody."""
        store = open_store(self.root, lake=self.lake, clock=self.clock)
        set_flush(store, patience_seconds=0, **asdict(self.limits))
        self.opened.append(store)
        return store

    def close(self) -> None:
        for store in self.opened:
            kill_store(store)
        self.opened.clear()

    # ── rows in ──────────────────────────────────────────────────────────────────────────────────────────────────

    def rows(self, count: int) -> list[dict[str, Any]]:
        return [{"id": id, "site": f"s{id % 2}"} for id in itertools.islice(self.ids, count)]

    def capture(self, store: Store, count: int = 3, *, arrow: bool = False) -> list[int]:
        """Rows with fresh ids; what is acknowledged is remembered."""
        rows = self.rows(count)
        store.capture(DATASET, pa.Table.from_pylist(rows) if arrow else rows)
        self.acknowledged += [row["id"] for row in rows]
        return [row["id"] for row in rows]

    def committed(self, count: int = 3) -> None:
        """Rows that are there from before."""
        store = self.open()
        self.capture(store, count)
        store.flush(DATASET)
        kill_store(store)

    def compact(self) -> None:
        if self.current() in self.lake.tables:
            self.lake.compact(self.current())

    # ── looking ──────────────────────────────────────────────────────────────────────────────────────────────────

    def current(self) -> str:
        """The name of the table, as the records have it."""
        if not (self.root / "control.db").exists():  # they are on a server
            return self.opened[-1].engine.database.read(lambda c: datasets.get(c, DATASET)).table_name
        with contextlib.closing(sqlite3.connect(self.root / "control.db")) as connection:
            (generation,) = connection.execute("SELECT generation FROM datasets WHERE name = ?", [DATASET]).fetchone()
        return f"{DATASET}_g{generation}"

    def table(self) -> list[dict[str, Any]]:
        """All rows in the table, by number; straight from the lake."""
        state = self.lake.load(self.current())
        if state is None or state.head is None:
            return []
        parts = self.lake.scan(state.name, snapshot=state.head, within=SequenceRange(0, 2**62))
        return [row for part in parts for row in part.to_pylist()]

    def ids_in_table(self) -> list[int]:
        return [row["id"] for row in self.table()]

    def blocks(self, store: Store) -> list[Any]:
        return store.engine.database.read(
            lambda c: c.execute(select(blocks_table).order_by(blocks_table.c.after_seq)).fetchall()
        )

    def segment_files(self) -> list[Path]:
        return sorted((self.root / "spool" / DATASET / "segments").glob("*.parquet"))

    def check(self, *, gone: tuple[int, ...] = (), restored: bool = False) -> None:
        """Every acknowledged row exactly once, and every record in agreement with the table.

        A control database that was `restored` may know the rows of a block and not the block.
        """
        self.close()
        with self.open() as store:
            store.flush(DATASET)
        with self.open() as store:
            assert store.flush(DATASET).rows == 0, "a flush without anything new committed something"
            self._check_rows(store, gone)
            self._check_order(store, restored=restored)
            self._check_records(store)
            self._check_spool(store)

    def _check_rows(self, store: Store, gone: tuple[int, ...]) -> None:
        wanted = sorted(set(self.acknowledged) - set(gone))
        assert sorted(self.ids_in_table()) == wanted
        read = [row["id"] for batch in store.read_since(DATASET) for row in batch.table.to_pylist()]
        assert sorted(read) == wanted
        numbers = [row[SEQ] for row in self.table()]
        assert numbers == sorted(set(numbers))

    def _check_order(self, store: Store, *, restored: bool) -> None:
        """I2, I3: the order of commits is the order of numbers, and the horizon is the end of the last one."""
        state = self.lake.load(self.current())
        appends = [] if state is None else [item for item in reversed(state.lineage) if item.operation == "append"]
        lineage = [item for item in appends if item.block is not None]  # the others are copies of a rebuild
        ends = [item.through for item in lineage]
        assert ends == sorted(set(ends)), "a lower block landed behind a higher one"
        committed = [block for block in self.blocks(store) if block.state == "committed"]
        known = {block.id: block for block in committed}
        assert [known[item.block].through_seq for item in lineage if item.block in known] == [
            item.through for item in lineage if item.block in known
        ]
        assert restored or {item.block for item in lineage} <= set(known), "the table has a block that is not recorded"
        assert store.horizon(DATASET) == max((block.through_seq for block in committed), default=0)

    def _check_records(self, store: Store) -> None:
        assert [block.id for block in self.blocks(store) if block.state == "reserved"] == []
        ranges = [(block.after_seq, block.through_seq) for block in self.blocks(store)]
        assert all(one[1] <= other[0] for one, other in itertools.pairwise(ranges)), "two blocks share numbers"
        stats = store.engine.database.read(lambda c: c.execute(select(block_partitions)).fetchall())
        totals: dict[str, Tally] = {}
        for item in stats:
            tally = Tally.of(item.row_count, item.checksum)
            totals[item.partition_key] = totals.get(item.partition_key, Tally()) + tally
        state = self.lake.load(self.current())
        if state is not None and state.head is not None and not state.max_seq:
            counted = queries.stats(
                self.lake, state.name, snapshot=state.head, within=SequenceRange(0, 2**62), partition_by=("site",)
            )
            assert {item.partition: item.tally for item in counted} == totals

    def _check_spool(self, store: Store) -> None:
        assert self.segment_files() == []
        assert list((self.root / "spool" / DATASET / "landing").glob("*.jsonl")) == []
        states = store.engine.database.read(lambda c: c.execute(select(segments_table.c.state)).scalars().all())
        assert set(states) <= {"consumed", "dropped"}, states


@contextlib.contextmanager
def interrupted(**actions: Callable[[], None]) -> Iterator[None]:
    """Let things happen at fault points, each once; a crash ends the block. Points are written `flush__reserved`."""
    for name, action in actions.items():
        faults.arm(name.replace("__", "."), faults.nth_time(1, action))
    try:
        yield
    finally:
        faults.disarm_all()


def die() -> None:
    raise SimulatedCrash


def dies(work: Callable[[], Any], at: str, *, time: int = 1) -> bool:
    """Run work in a process that dies at a fault point; whether it got there."""
    faults.arm(at, faults.nth_time(time, die))
    try:
        work()
    except SimulatedCrash:
        return True
    finally:
        faults.disarm_all()
    return False


def horizon_of(store: Store) -> int:
    return store.engine.database.read(lambda c: datasets.get(c, DATASET)).horizon
