"""What pages and metrics ask the control database has one answer on both databases."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from floodmark.control import overview, quarantine, reports
from floodmark.control.ledger import Entry, write
from floodmark.dashboard.line import read_line, window_of
from floodmark.dashboard.watch import Watch
from floodmark.metrics import StoreFigures, TableSizes, Waiting, control_bytes, text_of
from floodmark.sequence import SequenceRange, Tally
from floodmark.store import Store, init
from floodmark.testing import ManualClock, MemoryLake


@pytest.fixture
def looked_at(request: pytest.FixtureRequest, dialect: str, tmp_path: Path) -> Iterator[Store]:
    control = "" if dialect == "sqlite" else request.getfixturevalue("postgres_server").create_schema()
    with init(
        tmp_path / "store", lake=MemoryLake(), clock=ManualClock(), **({"control": control} if control else {})
    ) as store:
        store.add_dataset("m", ["n"], partition_by=["who"], schema={"n": "long", "who": "string"})
        store.add_dataset("other", schema={"n": "long"})
        store.add_sink("out", "blob", url=(tmp_path / "out").as_uri())
        yield store


def capture(store: Store, *numbers: int, who: str = "a") -> None:
    store.capture("m", [{"n": number, "who": who} for number in numbers])


def test_status_says_what_waits_what_is_behind_and_since_when(looked_at: Store) -> None:
    store, clock = looked_at, looked_at.engine.clock
    begun = clock.now()
    capture(store, 1, 2, 3)
    capture(store, 9, who="b")
    store.flush("m")
    clock.advance(60)
    capture(store, 4, 4)
    store.flush("m")
    clock.advance(60)
    capture(store, 5)
    store.seal("m")
    item = store.status().datasets[0]
    assert (item.rows, item.committed_at, item.spool.segments, item.spool.segment_rows) == (
        5,
        begun + timedelta(60 / 86400),
        1,
        1,
    )
    assert item.spool.since == begun + timedelta(seconds=120)
    (sink,) = store.status().sinks
    assert (sink.lag, sink.behind_since, sink.delivered_at) == (5, begun, None)
    store.export("out")
    (sink,) = store.status().sinks
    assert (sink.lag, sink.behind_since, sink.delivered_at) == (0, None, begun + timedelta(seconds=120))
    assert [one.pinned for one in sink.channels] == [None, None]


def test_flows_count_what_came_and_what_was_committed(looked_at: Store) -> None:
    capture(looked_at, 1, 2, 2)
    looked_at.flush("m")
    flow = looked_at.engine.database.read(overview.flows)["m"]
    assert (flow.taken, flow.committed) == (3, 2)
    assert flow.rows_per_landing_byte > 0
    reading = Watch(looked_at.engine).now()
    capture(looked_at, 3)
    assert reading.captured("m") == 3
    assert Watch(looked_at.engine).now().captured("m") > 3


def test_the_line_joins_blocks_that_share_a_bin_and_leaves_gaps(looked_at: Store) -> None:
    for number in range(6):
        capture(looked_at, number)
        looked_at.flush("m")
        looked_at.capture("other", [{"n": number}])
        looked_at.flush("other")
    reading = Watch(looked_at.engine).now()
    window = window_of(None, None, allocated=reading.allocated)
    item = reading.status.datasets[0]
    line = looked_at.engine.database.read(
        lambda c: read_line(c, item, reading.status.sinks, window, allocated=reading.allocated)
    )
    assert line.blocks == 6
    assert [one.title for one in line.lanes[0].stretches][:2] == [
        "1 block committed, 1 rows, 1 to 1",
        "1 block committed, 1 rows, 3 to 3",
    ]
    assert [lane.name for lane in line.lanes] == ["rows", "out"]


def test_the_newest_entries_of_the_quarantine_come_with_the_beginning_of_their_payload(looked_at: Store) -> None:
    looked_at.capture("m", [{"n": 1, "who": "a"}, {"n": "x" * 1000, "who": "a"}])
    (entry,) = looked_at.engine.database.read(lambda c: quarantine.newest(c, entries_max=10))
    assert entry.dataset == "m"
    assert len(entry.payload or "") == quarantine.PAYLOAD_CHARACTERS_MAX
    assert looked_at.engine.database.read(overview.quarantined) == {"m": 1}


def test_origins_are_added_up_with_what_they_gave_up(looked_at: Store) -> None:
    database, now = looked_at.engine.database, looked_at.engine.clock.now()
    for partition, rows in (("a", 10), ("b", 5)):
        entry = Entry("edge", "m", partition, 20, Tally(rows, 1), given_up_rows=2)
        database.transact(lambda c, entry=entry: write(c, entry, seen=None, given_up=[SequenceRange(3, 5)], now=now))
    (found,) = database.read(lambda c: overview.origins(c, origins_max=10, ranges_max=10))
    assert (found.channels, found.rows, found.through, found.seen_at, found.given_up_rows) == (2, 15, 20, now, 4)
    assert len(found.given_up) == 2


def test_a_result_replaces_the_one_before_and_counts_failures_in_a_row(looked_at: Store) -> None:
    database, clock = looked_at.engine.database, looked_at.engine.clock
    begun = clock.now()
    for failed in (False, True, True):
        clock.advance(10)
        database.transact(
            lambda c, failed=failed: reports.record(c, "fold", "m", message="x", failed=failed, now=clock.now())
        )
    (found,) = database.read(reports.everyone)
    assert (found.failures, found.failing_since) == (2, begun + timedelta(seconds=20))
    database.transact(lambda c: reports.record(c, "fold", "m", message="ok", failed=False, now=clock.now()))
    (found,) = database.read(reports.everyone)
    assert (found.failures, found.failing_since, found.message) == (0, None, "ok")


def test_a_scrape_has_an_answer(looked_at: Store) -> None:
    capture(looked_at, 1)
    looked_at.flush("m")
    text = text_of(StoreFigures(looked_at.engine, TableSizes(looked_at.engine), Waiting())).decode()
    assert 'floodmark_dataset_rows{dataset="m"} 1.0' in text
    assert 'floodmark_sink_lag_rows{dataset="m",sink="out"} 1.0' in text
    assert control_bytes(looked_at.engine) > 10_000
