"""Captures, flushes, backfills, compactions and crashes in any order: each identity is there once, none is lost."""

from __future__ import annotations

import contextlib
import functools
import shutil
import tempfile
from pathlib import Path

import pyarrow as pa
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from engines import set_flush
from floodmark import faults
from floodmark.control import database
from floodmark.errors import FloodmarkError
from floodmark.sources import files, load
from floodmark.sources import load as known
from floodmark.sources.loading import Frame, load_frame
from floodmark.sources.shaping import Shape
from floodmark.store import Store, init, open_store
from floodmark.testing import AnswerLost, ManualClock, MemoryLake, SimulatedCrash, kill_store
from scenarios.sources.histories import jsonl, parquet

MEMORY = Path("/dev/shm")
IDS = st.lists(st.integers(0, 30), min_size=1, max_size=8)
POINTS = sorted(
    point for point in faults.POINTS if point.startswith(("backfill.", "segment.", "flush.", "seal.", "capture."))
)

COMPACTION_POINTS = sorted(point for point in faults.POINTS if point.startswith("compact."))


class Histories(RuleBasedStateMachine):
    """A dataset with an identity and a small world of ids, so that everything meets everything."""

    @initialize(small=st.booleans())
    def begin(self, small: bool) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="floodmark-", dir=MEMORY if MEMORY.is_dir() else None))
        self.patches = contextlib.ExitStack()
        for module, name, value in (
            (load, "STEP_ROWS", 3),
            (files, "BATCH_ROWS", 2),
            (known, "STORED_ROWS_MIN", 1 if small else 1000),
            (database, "engine_for", functools.cache(database.engine_for)),
        ):
            before = getattr(module, name)
            setattr(module, name, value)
            self.patches.callback(setattr, module, name, before)
        self.lake, self.clock = MemoryLake(), ManualClock()
        self.promised: set[int] = set()
        self.possible: set[int] = set()
        self.files = self.writings = 0
        with init(self.home / "store", lake=self.lake, clock=self.clock) as store:
            store.add_dataset("messages", ["id"], event_time="at", schema={"id": "long"})
        self.store = self.opened()

    def opened(self) -> Store:
        store = open_store(self.home / "store", lake=self.lake, clock=self.clock)
        set_flush(store, patience_seconds=0)
        return store

    def rows(self, ids: list[int]) -> list[dict]:
        return [{"id": id, "at": f"2026-01-{1 + id % 28:02}"} for id in ids]

    def attempt(self, work, ids: list[int], crash: str | None, time: int) -> None:
        """Do something that promises some ids once it returns; perhaps the process dies in the middle of it."""
        self.possible |= set(ids)
        if crash is not None:
            faults.arm(crash, faults.nth_time(time, _die))
        try:
            work()
            self.promised |= set(ids)
        except SimulatedCrash:
            kill_store(self.store)
            self.store = self.opened()
        except FloodmarkError:
            pass  # told, so nothing is promised
        finally:
            faults.disarm_all()

    # ── what may happen ──────────────────────────────────────────────────────────────────────────────────────────

    @rule(ids=IDS, arrow=st.booleans(), crash=st.none() | st.sampled_from(POINTS), time=st.integers(1, 3))
    def capture(self, ids: list[int], arrow: bool, crash: str | None, time: int) -> None:
        rows = self.rows(ids)
        self.attempt(
            lambda: self.store.capture("messages", pa.Table.from_pylist(rows) if arrow else rows), ids, crash, time
        )

    @rule(crash=st.none() | st.sampled_from(POINTS), time=st.integers(1, 3))
    def seal(self, crash: str | None, time: int) -> None:
        self.attempt(lambda: self.store.seal("messages"), [], crash, time)

    @rule(crash=st.none() | st.sampled_from(POINTS), time=st.integers(1, 3))
    def flush(self, crash: str | None, time: int) -> None:
        self.attempt(lambda: self.store.flush("messages"), [], crash, time)

    @rule(
        ids=IDS,
        kind=st.sampled_from(["list", "jsonl", "parquet", "staged"]),
        crash=st.none() | st.sampled_from(POINTS),
        time=st.integers(1, 4),
        again=st.booleans(),
    )
    def backfill(self, ids: list[int], kind: str, crash: str | None, time: int, again: bool) -> None:
        self.files += 1
        path = self.home / f"{self.files}.{kind}"
        source = self.rows(ids)
        if kind in ("jsonl", "parquet"):
            {"jsonl": jsonl, "parquet": parquet}[kind](path, source)

        def load_it() -> None:
            if kind == "staged":
                self.load_as_spark_wrote_it(path.name, source)
            else:
                self.store.backfill("messages", source if kind == "list" else path)

        self.attempt(load_it, ids, crash, time)
        if again:
            self.attempt(load_it, ids, None, 1)

    def load_as_spark_wrote_it(self, name: str, source: list[dict]) -> None:
        """A table that Spark reads: written down in another order each time."""
        self.writings += 1
        turned = [*source[self.writings % len(source) :], *source[: self.writings % len(source)]]

        def write(directory: Path) -> None:
            shutil.rmtree(directory, ignore_errors=True)
            for number in range(2):
                if turned[number::2]:
                    parquet(directory / f"part-{number:05}.parquet", turned[number::2])

        load_frame(
            load.Backfiller(self.store.engine, self.store.spool),
            self.store.datasets()[0],
            Shape(),
            Frame(name, "1", write),
            source_id=None,
            progress=None,
        )

    @rule(ids=IDS, live=IDS, point=st.sampled_from([point for point in POINTS if point.startswith("backfill.")]))
    def backfill_beside_a_live_writer(self, ids: list[int], live: list[int], point: str) -> None:
        other = self.opened()

        def meanwhile() -> None:
            other.capture("messages", self.rows(live))
            self.promised |= set(live)
            if len(live) % 2:
                other.flush("messages")

        self.possible |= set(live)
        faults.arm(point, faults.nth_time(1, meanwhile))
        self.attempt(lambda: self.store.backfill("messages", self.rows(ids)), ids, None, 1)
        kill_store(other)

    @rule(fate=st.sampled_from(["hold", "drop", "lose_answer"]))
    def a_request_goes_astray(self, fate: str) -> None:
        fates = iter([fate])
        self.lake.on_append = lambda _: next(fates, "land")
        with contextlib.suppress(FloodmarkError, AnswerLost):
            self.store.flush("messages")
        self.lake.on_append = None

    @rule()
    def late_requests_arrive(self) -> None:
        self.lake.deliver_held()

    @rule(crash=st.none() | st.sampled_from(COMPACTION_POINTS))
    def compact(self, crash: str | None) -> None:
        self.attempt(lambda: self.store.compact("messages"), [], crash, 1)

    @rule()
    def another_engine_compacts(self) -> None:
        if "messages_g1" in self.lake.tables:
            self.lake.compact("messages_g1")

    # ── what must be true ────────────────────────────────────────────────────────────────────────────────────────

    @invariant()
    def no_identity_is_there_twice(self) -> None:
        if hasattr(self, "store"):
            found = self.stored(self.store)
            assert len(found) == len(set(found)), found
            assert set(found) <= self.possible

    def stored(self, store: Store) -> list[int]:
        return [row["id"] for batch in store.read_since("messages") for row in batch.table.to_pylist()]

    def teardown(self) -> None:
        if not hasattr(self, "store"):
            return
        try:
            kill_store(self.store)
            self.lake.deliver_held()
            with self.opened() as store:
                store.flush("messages")
                found = self.stored(store)
            assert len(found) == len(set(found)), found
            assert self.promised <= set(found) <= self.possible
        finally:
            self.patches.close()
            shutil.rmtree(self.home, ignore_errors=True)


def _die() -> None:
    raise SimulatedCrash


TestHistories = Histories.TestCase
TestHistories.settings = settings(
    max_examples=20, stateful_step_count=12, deadline=None, suppress_health_check=list(HealthCheck)
)
