"""Random histories on two to five replicas, with unions, reconciles, crashes and lost indexes.

Replicas that hold the same files agree byte for byte on the canonical order, and every live projection has
seen each event exactly once, whatever happened on the way.
"""

import contextlib
import os
import shutil
import sqlite3
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from replicas import SteppedClock, merged

from floodmark import faults
from floodmark.eventlog import Event, EventLog, Runner, SqliteTarget, Unresolvable, projection, view
from floodmark.eventlog.dag import is_ancestor
from floodmark.eventlog.forks import find_forks, identity_conflicts
from floodmark.eventlog.history import History

CRASH_POINTS = ["eventlog.staged", "eventlog.renamed", "eventlog.committed", "eventlog.ingested"]
STREAMS = ["a", "b", "c"]


class Crash(BaseException):
    pass


def crash():
    raise Crash


def insert(event, connection):
    connection.execute("INSERT INTO seen VALUES (?, ?)", [event.event_id, event.seq])


follow = projection(
    "follow", setup=lambda c: c.execute("CREATE TABLE IF NOT EXISTS seen (event_id TEXT PRIMARY KEY, seq INTEGER)")
)(insert)


class Histories(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="histories-"))
        self.clock = SteppedClock()
        self.logs = []
        self.written = 0
        # Files here are younger than an index would trust; trust them, so that opening goes through the index.
        self.settle, view.SETTLE_NANOSECONDS = view.SETTLE_NANOSECONDS, -(10**12)

    @initialize(count=st.integers(2, 5))
    def make_replicas(self, count):
        for n in range(count):
            self.logs.append(EventLog.open(self.root / str(n), sync=False, clock=self.clock, lock_wait_seconds_max=0))

    def replica(self, number):
        return self.logs[number % len(self.logs)]

    def reopen(self, log):
        log.close()
        place = self.logs.index(log)
        self.logs[place] = EventLog.open(log.root, sync=False, clock=self.clock, lock_wait_seconds_max=0)

    @rule(
        number=st.integers(0, 4), streams=st.lists(st.sampled_from(STREAMS), min_size=1, max_size=3), read=st.booleans()
    )
    def append(self, number, streams, read):
        log = self.replica(number)
        self.written += 1
        log.refresh()
        expected = {"c": log.version("c")} if read else None
        log.append([Event(s, {"text": f"{self.written}.{n}"}) for n, s in enumerate(streams)], expected)

    @rule(into=st.integers(0, 4), source=st.integers(0, 4), part=st.one_of(st.none(), st.integers(0, 2**16)))
    def union(self, into, source, part):
        self.copy(self.replica(source), self.replica(into), part)

    def copy(self, origin, target, part):
        """Copy files, or with `part` only some of them: a partial merge."""
        for place, file in enumerate(sorted((origin.root / "events").iterdir())):
            arriving = target.root / "events" / file.name
            if not arriving.exists() and (part is None or part >> (place % 16) & 1):
                shutil.copy(file, arriving)
        target.refresh()

    @rule(number=st.integers(0, 4), decline=st.booleans())
    def reconcile(self, number, decline):
        log = self.replica(number)
        log.refresh()
        report = log.reconcile((lambda _: Unresolvable("no")) if decline else merged)
        if decline:
            assert report.resolved == ()
        else:
            assert log.forks() == []

    @rule(number=st.integers(0, 4), point=st.sampled_from(CRASH_POINTS))
    def crash_in_append(self, number, point):
        log = self.replica(number)
        self.written += 1
        faults.arm(point, crash)
        with pytest.raises(Crash):
            log.append([Event("a", {"text": f"crashed-{self.written}"}), Event("b", {"text": "too"})])
        faults.disarm_all()
        self.reopen(log)

    @rule(number=st.integers(0, 4), what=st.sampled_from(["index", "index/ingestion.log", "index/transactions.index"]))
    def lose(self, number, what):
        log = self.replica(number)
        log.close()
        lost = log.root / what
        shutil.rmtree(lost) if lost.is_dir() else lost.unlink(missing_ok=True)
        place = self.logs.index(log)
        self.logs[place] = EventLog.open(log.root, sync=False, clock=self.clock)

    @rule(number=st.integers(0, 4), cut=st.integers(1, 200))
    def tear_ingestion_log(self, number, cut):
        log = self.replica(number)
        log.close()
        path = log.root / "index" / "ingestion.log"
        if path.exists():
            os.truncate(path, max(0, path.stat().st_size - cut))
        place = self.logs.index(log)
        self.logs[place] = EventLog.open(log.root, sync=False, clock=self.clock)

    @rule(
        number=st.integers(0, 4), batch=st.sampled_from([1, 3, 500]), point=st.sampled_from([None, "eventlog.applied"])
    )
    def project(self, number, batch, point):
        self.run_projection(self.replica(number), batch, point)

    def run_projection(self, log, batch=500, point=None):
        if point is not None:
            faults.arm(point, faults.nth_time(2, crash))
        with contextlib.suppress(Crash):
            Runner(log, follow, SqliteTarget(log.root / "follow.db"), batch_events=batch).run()
        faults.disarm_all()

    @invariant()
    def nothing_is_lost_in_numbering(self):
        for log in self.logs:
            numbers = [e.seq for e in log.read_events()]
            assert numbers == sorted(set(numbers))
            assert len(numbers) == len(log.history.event_ids())
            assert log.status().integrity_failures == ()
            assert log.status().identity_conflicts == ()

    @invariant()
    def incremental_order_is_the_order_computed_from_nothing(self):
        for log in self.logs:
            anew = History.of(reversed(list(log.history)))
            assert anew.order == log.history.order
            assert anew.heads == log.heads
            assert dict(anew.streams()) == dict(log.streams())
            assert anew.graph.merges == log.topology_generation
            assert find_forks(anew) == find_forks(log.history)

    @precondition(lambda self: self.logs)
    @invariant()
    def ancestry_by_bits_is_ancestry_by_search(self):
        history = self.logs[0].history
        for conflict in identity_conflicts(history):
            one, other = conflict.transactions
            assert not is_ancestor(history.graph, one, of=other)

    def teardown(self):
        try:
            if self.logs:
                self.converge()
        finally:
            view.SETTLE_NANOSECONDS = self.settle
            for log in self.logs:
                log.close()
            shutil.rmtree(self.root)

    def converge(self):
        for into in range(len(self.logs)):
            for source in range(len(self.logs)):
                self.copy(self.logs[source], self.logs[into], None)
        orders = {tuple(e.event_id for e in log.canonical_events()) for log in self.logs}
        assert len(orders) == 1
        order = orders.pop()
        contents = {tuple((e.stream, e.version, e.data["text"]) for e in log.canonical_events()) for log in self.logs}
        assert len(contents) == 1
        for log in self.logs:
            self.run_projection(log)
            with sqlite3.connect(log.root / "follow.db") as connection:
                seen = [row[0] for row in connection.execute("SELECT event_id FROM seen ORDER BY rowid")]
            # A second insertion of an event would have failed on the primary key, and stopped the projection.
            assert sorted(seen) == sorted(order)


TestHistories = Histories.TestCase
TestHistories.settings = settings(
    max_examples=25,
    stateful_step_count=20,
    deadline=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)
