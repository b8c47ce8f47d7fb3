"""One segment that cannot be committed holds up no other: it is found, and set aside on record."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import orjson
import pyarrow.parquet as pq
import pytest
from worlds import DATASET, TABLE, World, dies, interrupted

from floodmark.commit.block import raise_barrier
from floodmark.commit.flush import SPLIT_ROWS_MIN
from floodmark.commit.protocol import Append
from floodmark.control.blocks import BatchLimits
from floodmark.control.segments import sealed
from floodmark.errors import Retryable
from floodmark.process import process_identity
from floodmark.store import Store
from floodmark.testing import kill_store

MEMORY = "java.lang.OutOfMemoryError: Java heap space"


class Trouble(Exception):
    """What an engine says."""


@pytest.fixture
def world(quick_path: Path) -> Iterator[World]:
    made = World.make(quick_path / "store")
    yield made
    made.close()


def refusing(world: World, bad: set[int], words: str = "it does not work") -> None:
    """The engine fails for every request that has one of these segments."""

    def on_append(request: Append) -> str:
        if bad & {segment.id for segment in request.segments}:
            raise Trouble(words)
        return "land"

    world.lake.on_append = on_append


def captured(world: World, store: Store, count: int) -> list[int]:
    """Segments of one row each; their ids, oldest first."""
    for _ in range(count):
        world.capture(store, 1, arrow=True)
    return [one.id for one in store.engine.database.read(lambda c: sealed(c, DATASET))]


def fails(store: Store, times: int) -> None:
    for _ in range(times):
        with pytest.raises(Retryable):
            store.flush(DATASET)


@pytest.mark.parametrize("place", range(5))
def test_after_failing_alike_several_times_the_segment_that_does_it_is_set_aside(world: World, place: int):
    """U34: wherever it stands among the others."""
    world.committed(2)
    store = world.open()
    ids = captured(world, store, 5)
    refusing(world, {ids[place]})
    fails(store, 2)
    report = store.flush(DATASET)
    assert report.rows == 4
    assert f"Segment {ids[place]}" in report.problems[0]
    assert "it does not work" in report.problems[0]
    status = store.status().datasets[0]
    assert (status.spool.set_aside_segments, status.spool.set_aside_rows) == (1, 1)
    assert status.undecided_block is None
    captured(world, store, 1)
    assert store.flush(DATASET).rows == 1, "it holds nobody up any more"
    world.lake.on_append = None
    store.fsck(repair=True, retry=[ids[place]])
    world.check()


def test_a_new_process_counts_on(world: World):
    """U34: `floodmark flush` from cron is a new process each time."""
    ids = captured(world, world.open(), 3)
    refusing(world, {ids[0]})
    fails(world.open(), 1)
    fails(world.open(), 1)
    assert world.open().flush(DATASET).rows == 2


def test_two_bad_ones_beside_each_other_are_both_found(world: World):
    """U34"""
    store = world.open()
    ids = captured(world, store, 6)
    refusing(world, {ids[0], ids[1]})
    fails(store, 2)
    assert store.flush(DATASET).rows == 4
    assert store.status().datasets[0].spool.set_aside_segments == 2


def test_where_all_fail_none_is_set_aside(world: World):
    """U34: then it is the table's fault, or the engine's."""
    store = world.open()
    ids = captured(world, store, 4)
    refusing(world, set(ids))
    fails(store, 8)
    assert store.status().datasets[0].spool.set_aside_segments == 0
    world.lake.on_append = None
    assert store.flush(DATASET).rows == 4
    world.check()


def test_a_segment_that_is_alone_waits_and_is_tried_again(world: World):
    """U34: nothing waits behind it, and nothing shows that it is its own fault."""
    store = world.open()
    ids = captured(world, store, 1)
    refusing(world, set(ids))
    fails(store, 5)
    assert store.status().datasets[0].spool.set_aside_segments == 0
    captured(world, store, 1)
    assert store.flush(DATASET).rows == 1
    assert store.status().datasets[0].spool.set_aside_segments == 1
    world.lake.on_append = None
    store.fsck(repair=True, retry=ids)
    world.check()


def test_a_commit_that_does_not_fit_the_heap_is_split_at_once(world: World):
    """U34: every segment gets through, in smaller commits."""
    store = world.open()
    captured(world, store, 9)

    def on_append(request: Append) -> str:
        if len(request.segments) > 2:
            raise Trouble(MEMORY)
        return "land"

    world.lake.on_append = on_append
    report = store.flush(DATASET)
    assert (report.rows, report.problems) == (9, ())
    assert store.status().datasets[0].problem is None
    world.check()


# ── a segment that does not fit the heap alone ───────────────────────────────────────────────────────────────────────


def bounded_heap(world: World, rows_max: int) -> list[int]:
    """The engine runs out of memory for every request of more rows. The sizes of those that landed."""
    landed: list[int] = []

    def on_append(request: Append) -> str:
        rows = sum(segment.rows for segment in request.segments)
        if rows > rows_max:
            raise Trouble(MEMORY)
        landed.append(rows)
        return "land"

    world.lake.on_append = on_append
    return landed


@pytest.mark.parametrize("others", [0, 2])
def test_a_segment_that_does_not_fit_the_heap_alone_is_split(world: World, others: int):
    """U34: at the first flush, in the order of its rows, and before what came after it."""
    world.committed(2)
    store = world.open()
    world.capture(store, 100, arrow=True)
    captured(world, store, others)
    landed = bounded_heap(world, 30)
    report = store.flush(DATASET)
    assert (report.rows, report.problems) == (100 + others, ())
    assert max(landed) <= 30
    assert world.ids_in_table() == world.acknowledged
    status = store.status().datasets[0]
    assert (status.spool.set_aside_segments, status.spool.segment_rows, status.problem) == (0, 0, None)
    assert store.fsck(deep=True).findings == ()
    world.check()


def test_the_parts_of_sealed_lines_are_committed_once(quick_path: Path):
    """U34: the landing file of a writer that is gone."""
    world = World.make(quick_path / "store")
    with world.open() as store:
        world.capture(store, 64)
    store = world.open()
    bounded_heap(world, 16)
    assert store.flush(DATASET).rows == 64
    assert world.ids_in_table() == world.acknowledged
    world.check()


def test_a_segment_whose_lines_could_be_sealed_again_is_not_split(world: World):
    """U34: without an identity, only the segment's id tells a restored control database that they are committed."""
    store = world.open()
    world.capture(store, 64)
    store.seal(DATASET)
    bounded_heap(world, 16)
    fails(store, 2)
    assert len(world.segment_files()) == 1
    store.spool.close()
    assert world.open().flush(DATASET).rows == 64
    world.check()


def test_lines_that_an_identity_recognises_are_split_beside_their_writer(quick_path: Path):
    """U34: and a control database restored from before they were sealed commits none of them twice."""
    world = World.make(quick_path / "store", identity=["id"], identity_null="content")
    store = world.open()
    world.capture(store, 64)
    backup = (world.root / "control.db").read_bytes()
    bounded_heap(world, 16)
    assert store.flush(DATASET).rows == 64
    world.close()
    for left in world.root.glob("control.db*"):
        left.unlink()
    (world.root / "control.db").write_bytes(backup)
    again = world.open()
    assert again.flush(DATASET).rows == 0
    world.capture(again, 1)
    again.flush(DATASET)  # a file of nothing but duplicates stays until a later block is committed
    world.check(restored=True)


@pytest.mark.parametrize("rows", [40, 5])
def test_what_does_not_fit_at_its_smallest_is_set_aside_and_the_rest_is_committed(world: World, rows: int):
    """U34: one row that no heap holds takes a few others with it, not the whole segment."""
    store = world.open()
    world.capture(store, rows, arrow=True)
    captured(world, store, 1)
    bad = world.acknowledged[rows // 3]

    def on_append(request: Append) -> str:
        tables = [pq.read_table(segment.path) for segment in request.segments]
        if any(bad in table["id"].to_pylist() for table in tables):
            raise Trouble(MEMORY)
        return "land"

    world.lake.on_append = on_append
    report = store.flush(DATASET)
    aside = store.status().datasets[0].spool
    assert aside.set_aside_segments == 1
    assert aside.set_aside_rows < SPLIT_ROWS_MIN
    assert report.rows == rows + 1 - aside.set_aside_rows
    assert MEMORY in report.problems[0]
    (left,) = store.engine.database.read(lambda c: sealed(c, DATASET))
    world.lake.on_append = None
    store.fsck(repair=True, retry=[left.id])
    world.check()


def test_where_nothing_fits_a_segment_is_split_a_few_times_and_nothing_is_set_aside(world: World):
    """U34: an engine that has no memory at all is not the segment's fault."""
    store = world.open()
    world.capture(store, 1000, arrow=True)
    bounded_heap(world, 0)
    fails(store, 6)
    status = store.status().datasets[0].spool
    assert (status.set_aside_segments, status.segment_rows) == (0, 1000)
    assert len(world.segment_files()) <= 10
    world.lake.on_append = None
    assert store.flush(DATASET).rows == 1000
    world.check()


@pytest.mark.parametrize("point", ["split.written", "split.replaced", "segment.announced", "segment.written"])
@pytest.mark.parametrize("time", [1, 2, 3])
def test_a_flush_that_dies_while_it_splits_is_finished_by_the_next(
    world: World, monkeypatch: pytest.MonkeyPatch, point: str, time: int
):
    """U34: the rows are in the old segment or in its halves, and never in both."""
    host, boot, pid, _ = process_identity().split("/")
    monkeypatch.setattr("floodmark.spool.segments.process_identity", lambda: f"{host}/{boot}/{pid}/before")
    world.committed(2)
    store = world.open()
    world.capture(store, 50, arrow=True)
    captured(world, store, 1)
    bounded_heap(world, 10)
    assert dies(lambda: store.flush(DATASET), at=point, time=time)
    kill_store(store)
    assert world.open().flush(DATASET).problems == ()
    assert world.ids_in_table() == world.acknowledged
    world.check()


def test_a_segment_that_another_takes_meanwhile_is_not_split(world: World):
    """U34: its halves are dropped, and the other process's block has it."""
    store = world.open()
    world.capture(store, 50, arrow=True)
    bounded_heap(world, 30)

    def other() -> None:
        world.lake.on_append = None
        assert world.open().flush(DATASET).rows == 50

    with interrupted(split__written=other):
        store.flush(DATASET)
    assert world.ids_in_table() == world.acknowledged
    world.check()


def test_the_report_of_a_backfill_counts_the_rows_of_a_split_step_once(world: World, tmp_path: Path):
    """U34: the parts take over the step of the source."""
    path = tmp_path / "history.jsonl"
    rows = world.rows(60)
    world.acknowledged += [row["id"] for row in rows]
    path.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    store = world.open()
    bounded_heap(world, 20)
    report = store.backfill(DATASET, path)
    assert (report.read, report.new, report.already_stored) == (60, 60, 0)
    assert store.backfill(DATASET, path).new == 0
    world.check()


def test_commits_are_bounded_by_the_size_of_rows_and_not_of_compressed_files(world: World):
    """A text that repeats itself is small on the disk and large in memory."""
    world.limits = BatchLimits(bytes_max=3_000_000)
    store = world.open()
    for n in range(6):
        store.capture(DATASET, [{"id": n, "site": "x" * 1_000_000}])
        store.seal(DATASET)
    seen: list[int] = []
    world.lake.on_append = lambda request: (seen.append(len(request.segments)), "land")[1]
    store.flush(DATASET)
    assert max(seen) <= 3
    assert sum(seen) == 6


@pytest.mark.parametrize("point", ["barrier.sending", "barrier.sent"])
@pytest.mark.parametrize("late", [False, True])
def test_a_flush_that_dies_at_a_barrier_is_finished_by_the_next(world: World, point: str, late: bool):
    """I4, U34: what was under way before the barrier lands before it, or never."""
    world.committed(2)
    first = world.open()
    captured(world, first, 3)
    world.lake.on_append = lambda _: "hold"
    assert dies(lambda: first.flush(DATASET), at="flush.appended")
    assert dies(lambda: raise_barrier(world.open().engine, DATASET), at=point)
    if late:
        assert world.lake.deliver_held() == [point == "barrier.sending"]
    world.lake.on_append = None
    world.open().flush(DATASET)
    world.lake.deliver_held()
    world.check()


def test_a_request_that_comes_before_the_barrier_is_recorded(world: World):
    """I4: the barrier's own word is no verdict."""
    first = world.open()
    captured(world, first, 2)
    world.lake.on_append = lambda _: "hold"
    assert dies(lambda: first.flush(DATASET), at="flush.appended")
    world.lake.on_append = None
    world.lake.on_barrier = lambda _: world.lake.deliver_held()
    decided = raise_barrier(world.open().engine, DATASET)
    assert decided.state == "committed"
    world.check()


def test_a_barrier_that_the_power_takes_is_taken_back(world: World):
    """U4, U34: the block is still undecided then."""
    world.committed(2)
    first = world.open()
    captured(world, first, 2)
    assert dies(lambda: first.flush(DATASET), at="flush.reserved")
    assert dies(lambda: raise_barrier(world.open().engine, DATASET), at="barrier.sent")
    state = world.lake.load(TABLE)
    lost = world.lake.store(world.lake.data[world.lake.tables[TABLE].head_files[0]].slice(0, 0))
    world.lake.tables[TABLE].files[state.head] += (lost,)
    world.lake.lose_power()
    world.check()
