"""A store's tables and segments are moved to another lake and back: every row once, whatever is interrupted."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rebuilding import POINTS as OF_A_REBUILD

from engines import set_flush
from floodmark import config, faults
from floodmark.control import generations
from floodmark.errors import FloodmarkError, InvalidSetting, Permanent, Retryable
from floodmark.lake.moving import TablesMoved
from floodmark.maintenance.move_lake import LakeMoveReport, move_lake
from floodmark.store import Store, init, open_store
from floodmark.testing import ManualClock, MemoryLake, crash_at
from s3 import SECRET, S3Server
from scenarios.destinations import Files

DATASETS = ("m", "k")
SINK = "out"
ELSEWHERE = {"warehouse": "s3://bucket/lake", "s3.secret-access-key": "env:SECRET"}
BACK = {"type": "embedded"}
OF_A_MOVE = [
    "move.begun",
    "move.marked",
    "move.dataset_moved",
    "move.dropped",
    "move.recorded",
    "move.segments_copied",
    "move.written",
]


class Shop:
    """A store whose lake is one of two."""

    def __init__(self, root: Path) -> None:
        self.root, self.clock = root, ManualClock()
        self.lakes = (MemoryLake(), MemoryLake())
        self.here = 0
        self.number = 0
        with init(root / "store", lake=self.lakes[0], clock=self.clock) as store:
            for name in DATASETS:
                store.add_dataset(name, ["n"], schema={"n": "long", "source": "string"}, partition_by=["source"])
            store.add_sink(SINK, "blob", url=(root / "out").as_uri(), chunk_rows=3)
            self.round(store)
            self.round(store)
            self.capture(store)

    @property
    def lake(self) -> MemoryLake:
        return self.lakes[self.here]

    def open(self) -> Store:
        store = open_store(self.root / "store", lake=self.lake, clock=self.clock)
        set_flush(store, patience_seconds=0)  # it would wait for the process that moves: here they take turns
        return store

    def move(self, **options: Any) -> LakeMoveReport:
        """To the other lake."""
        options = options or {"lake": BACK if self.here else ELSEWHERE}
        lakes = (self.lake, self.lakes[1 - self.here])
        report = move_lake(self.root / "store", lakes=lambda *_: lakes, clock=self.clock, **options)
        self.here = 1 - self.here if "lake" in options else self.here
        return report

    def capture(self, store: Store) -> None:
        for name in DATASETS:
            store.capture(name, [{"n": self.number + place, "source": "a"} for place in range(3)])
        self.number += 3

    def round(self, store: Store) -> None:
        self.capture(store)
        for name in DATASETS:
            store.flush(name)
        store.export(SINK)

    def rows(self, store: Store, name: str = DATASETS[0]) -> list[int]:
        return [row["n"] for batch in store.read_since(name) for row in batch.table.to_pylist()]

    def check(self) -> None:
        """Every row that was captured once, at the sink too, and the other lake has no row left."""
        with self.open() as store:
            self.round(store)
            for name in DATASETS:
                assert sorted(self.rows(store, name)) == list(range(self.number))
            delivered = Files(self.root, self.lake).rows()["source=a"]
            assert sorted(delivered) == list(range(self.number))
            assert store.export(SINK).rows == 0
            assert store.fsck(deep=True).findings == ()
            assert store.audit(SINK, deep=True).sound
        left = self.lakes[1 - self.here]
        assert [name for name in left.tables if left.tables[name].head is not None] == []


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


def test_every_dataset_is_in_the_new_lake_and_back_again(shop: Shop) -> None:
    with shop.open() as store:
        cursor = [str(batch.cursor) for batch in store.read_since(DATASETS[0])][-1]
        mark = store.watermark(SINK, DATASETS[0])
    report = shop.move()
    assert (report.lake, report.datasets, report.rows) == ("sql", 2, 12)
    with shop.open() as store:
        assert store.watermark(SINK, DATASETS[0]) == mark
        assert list(store.read_since(DATASETS[0], cursor)) == []
    shop.check()
    assert shop.move().lake == "embedded"
    shop.check()
    shop.move()  # where they were before
    shop.check()


@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("point", [*OF_A_REBUILD, *OF_A_MOVE])
def test_a_move_that_was_interrupted_is_run_again(shop: Shop, point: str, back: bool) -> None:
    """U43"""
    if back:
        shop.move()
    with crash_at(point):
        shop.move()
    if point == "move.written":
        shop.here = 1 - shop.here
    else:
        shop.move()
    shop.check()


@pytest.mark.parametrize("point", [*OF_A_REBUILD, *OF_A_MOVE])
def test_beside_a_move_captures_continue_and_flushes_fail_or_commit_where_it_is_seen(shop: Shop, point: str) -> None:
    """U43: a process that has the store open all the while, and one that opens it anew."""
    with shop.open() as running:

        def others() -> None:
            shop.capture(running)
            for name in DATASETS:
                for work in (running.flush, running.compact):
                    failing(lambda work=work, name=name: work(name))
            failing(lambda: running.export(SINK))
            failing(lambda: shop.open().flush())

        faults.arm(point, faults.nth_time(1, others))
        shop.move()
        shop.capture(running)
        with pytest.raises((Retryable, TablesMoved), match="moved"):  # by the records, or by the mark in its lake
            running.flush(DATASETS[0])
        with pytest.raises(TablesMoved):
            shop.rows(running)
    shop.check()


def failing(work: Callable[[], Any]) -> None:
    """It works, or says why not."""
    with contextlib.suppress(FloodmarkError):
        work()


def test_a_process_of_before_adds_no_dataset_and_commits_none_that_was_never_flushed(shop: Shop) -> None:
    """U43"""
    with shop.open() as running:
        running.add_dataset("new", schema={"n": "long"})
        running.capture("new", [{"n": 1}])
        running.seal("new")
        shop.move()
        with pytest.raises(TablesMoved):
            running.flush("new")
        with pytest.raises(Retryable, match="were moved"):
            running.add_dataset("newer", schema={"n": "long"})
    with shop.open() as store:
        assert store.flush("new").rows == 1
        assert shop.rows(store, "new") == [1]


def test_a_dataset_that_is_added_meanwhile_moves_too(shop: Shop) -> None:
    def others() -> None:
        with shop.open() as store:
            store.add_dataset("late", schema={"n": "long"})
            store.capture("late", [{"n": 7}])

    faults.arm("move.dropped", faults.nth_time(1, others))
    assert shop.move().datasets == 3
    with shop.open() as store:
        store.flush("late")
        assert shop.rows(store, "late") == [7]
    shop.check()


def test_a_rebuild_that_was_interrupted_before_ends_first(shop: Shop) -> None:
    with shop.open() as store, crash_at("rebuild.copied"):
        store.rebuild(DATASETS[0], bucket_width=1 << 21)
    shop.move()
    shop.check()
    with shop.open() as store:
        found = store.engine.database.read(lambda c: generations.everyone(c, DATASETS[0]))
        assert [item.state for item in found].count("current") == 1


def test_a_move_to_a_third_place_waits_for_the_end_of_the_first(shop: Shop) -> None:
    with crash_at("rebuild.copied"):
        shop.move()
    with pytest.raises(Permanent, match="s3://bucket/lake was started and not completed"):
        shop.move(lake={**ELSEWHERE, "warehouse": "s3://bucket/other"})
    shop.move()
    shop.check()


def test_a_place_where_everything_is_already_is_refused(shop: Shop) -> None:
    with pytest.raises(InvalidSetting, match="there already"):
        shop.move(lake=BACK)
    shop.check()


def test_everything_else_in_the_settings_stays(shop: Shop) -> None:
    file = shop.root / "store" / config.FILE_NAME
    file.write_text(file.read_text() + '\n[catalogs.other]\ntype = "rest"\nuri = "http://x"\n# the end\n')
    before = config.load(file)
    shop.move()
    after = config.load(file)
    assert after.lake is not None
    assert after.lake.properties["s3.secret-access-key"] == "env:SECRET"
    assert after.catalogs == before.catalogs
    shop.move()
    assert config.load(file) == before
    assert "# the end" in file.read_text()
    shop.check()


# ── segments ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def bucket(s3_server: S3Server) -> str:
    return s3_server.create_bucket()


@pytest.fixture
def there(s3_server: S3Server, bucket: str) -> dict[str, Any]:
    """Tables and segments in a bucket."""
    reached = {"s3.endpoint": s3_server.endpoint, "s3.region": "us-east-1"}
    reached |= {"s3.access-key-id": "AKIDEXAMPLE", "s3.secret-access-key": SECRET}
    return {"lake": {"warehouse": f"s3://{bucket}/lake", **reached}, "segments": f"s3://{bucket}/segments"}


@pytest.mark.parametrize("point", ["", "move.begun", "move.dropped", "move.recorded", "move.segments_copied"])
def test_segments_that_wait_move_to_a_bucket_and_back(
    shop: Shop, there: dict[str, Any], point: str, bucket: str, s3_server: S3Server
) -> None:
    """U44"""
    for to in (there, {"lake": BACK, "segments": "directory"}):
        with shop.open() as store:
            shop.capture(store)
            for name in DATASETS:
                store.seal(name)
        if point:
            with crash_at(point):
                shop.move(**to)
        assert shop.move(**to).segments_copied >= 2
        assert bool(s3_server.keys(bucket)) is (to == there)
        with shop.open() as store:
            for name in DATASETS:
                store.flush(name)
    shop.check()
    assert s3_server.keys(bucket) == []


def test_a_process_of_before_registers_no_segment_at_the_old_place(shop: Shop, there: dict[str, Any]) -> None:
    """U44: its rows stay in the landing log."""
    shop.move(lake=there["lake"])
    with shop.open() as running:
        shop.move(segments=there["segments"])
        shop.capture(running)
        with pytest.raises(Retryable, match="were moved"):
            running.seal(DATASETS[0])
    shop.check()


def test_a_bucket_that_cannot_be_reached_leaves_the_store_as_it_is(shop: Shop, there: dict[str, Any]) -> None:
    there["lake"]["s3.endpoint"] = "http://127.0.0.1:1"
    with pytest.raises(Retryable, match="cannot be reached"):
        shop.move(**there)
    shop.check()
