"""Old records of commits and deliveries become a few, and every answer of the store stays the same."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select

from engines import set_flush
from floodmark import faults
from floodmark.control.schema import metadata
from floodmark.engine import Engine
from floodmark.maintenance import fold as folding
from floodmark.maintenance.fold import DatasetFolding, Kept
from floodmark.store import Store, init, open_store
from floodmark.testing import ManualClock, MemoryLake, crash_at, kill_store
from scenarios import hubs  # noqa: F401 - one more place
from scenarios.destinations import PLACES, Place
from scenarios.maintenance.delivered import DATASET, SINK, Shop, objects

ROUND, MONTH = 30, 30 * 86_400
KEPT = Kept(blocks=4, intents=3)
"""So that a few rounds are a long history."""
POINTS = ["fold.looked", "fold.segments", "fold.blocks", "fold.deliveries"]


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a few rounds take several."""
    monkeypatch.setattr(folding, "BATCH", 7)


def fold(engine: Engine) -> DatasetFolding:
    return folding.fold_dataset(engine, DATASET, kept=KEPT)


def rounds(shop: Shop, count: int, *, rows: int = 4) -> None:
    for _ in range(count):
        shop.deliver(rows, rounds=1)
        shop.clock.advance(ROUND)


def later(shop: Shop) -> None:
    shop.clock.advance(MONTH)


def counted(store: Store) -> dict[str, int]:
    """The rows of every control table."""
    tables = metadata.sorted_tables
    counts = store.engine.database.read(
        lambda c: [c.execute(select(func.count()).select_from(one)).scalar_one() for one in tables]
    )
    return {table.name: count for table, count in zip(tables, counts, strict=True)}


def answers(shop: Shop) -> dict[str, Any]:
    """What a store says of itself, and what its readers get."""
    store = shop.again()
    status = store.status()
    report = store.audit(SINK, deep=True)
    return {
        "status": status.datasets,
        "sinks": status.sinks,
        "audit": (report.channels, report.findings),
        "fsck": store.fsck(deep=True).findings,
        "horizon": store.horizon(DATASET),
        "read": [batch.table.to_pylist() for batch in store.read_since(DATASET)],
    }


def test_a_long_history_leaves_as_many_records_as_a_short_one(tmp_path: Path):
    """U35: every table of the control database, whatever it is for."""
    found = {}
    for count in (12, 48):
        shop = Shop(tmp_path / str(count))
        shop.add_files()
        rounds(shop, count)
        later(shop)
        fold(shop.store.engine)
        found[count] = counted(shop.store)
        shop.store.close()
    assert found[48] == found[12]
    assert found[12]["blocks"] == KEPT.blocks + 1
    assert found[12]["intents"] == 2 * (KEPT.intents + 1)


def test_every_answer_is_the_same_as_before(shop: Shop):
    """U35"""
    shop.add_files()
    rounds(shop, 16)
    later(shop)
    before = answers(shop)
    assert before["audit"][1] == ()
    report = fold(shop.store.engine)
    assert report.records > 40
    assert answers(shop) == before
    assert fold(shop.store.engine).records == 0


@pytest.mark.parametrize("kind", PLACES)
def test_deliveries_go_on_behind_folded_ones_and_a_lost_watermark_is_found_again(
    tmp_path: Path, lake: MemoryLake, clock: ManualClock, kind: str
):
    """U35, D2: no row is missing at any kind of destination, and none is there twice."""
    with init(tmp_path / "store", lake=lake, clock=clock) as store:
        store.add_dataset(DATASET, schema={"n": "long"}, partition_by=["source"])
        place: Place = PLACES[kind](tmp_path, lake)
        place.add(store)
        numbers = iter(range(1_000))

        def deliver(times: int) -> None:
            for _ in range(times):
                store.capture(DATASET, [{"n": next(numbers), "source": "a"}, {"n": next(numbers), "source": "a"}])
                store.flush(DATASET)
                store.export(SINK)
                clock.advance(ROUND)

        deliver(14)
        clock.advance(MONTH)
        assert fold(store.engine).chunks > 0
        deliver(2)
        if kind not in ("projection", "keys"):  # the others know what they have
            store.engine.database.transact(lambda c: c.exec_driver_sql("DELETE FROM watermarks"))
        deliver(2)
        assert place.rows() == {"source=a": list(range(36))}
        assert store.audit(SINK).sound
        place.close()


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("time", [1, 2])
def test_a_crash_at_any_point_leaves_a_sound_store_and_the_next_run_goes_on(shop: Shop, point: str, time: int):
    """U35, U36"""
    shop.add_files()
    rounds(shop, 16)
    later(shop)
    before = answers(shop)
    with crash_at(point, time=time):
        fold(shop.store.engine)
    kill_store(shop.store)
    assert answers(shop) == before
    fold(shop.store.engine)
    assert counted(shop.store)["blocks"] == KEPT.blocks + 1
    assert answers(shop) == before


def test_two_processes_that_fold_at_once_do_it_once(shop: Shop):
    shop.add_files()
    rounds(shop, 16)
    later(shop)
    before = answers(shop)
    faults.arm("fold.blocks", faults.nth_time(1, lambda: fold(shop.store.engine)))
    fold(shop.store.engine)
    assert answers(shop) == before


def test_the_record_of_a_segment_stays_as_long_as_its_file(shop: Shop, tmp_path: Path):
    """U36: a file without a record would be committed again."""
    rounds_without_sink(shop, 1)
    shop.store.capture(DATASET, [{"n": 1_000, "source": "s0", "note": "late"}])
    shop.store.seal(DATASET)
    segment = next((shop.root / "store" / "spool" / DATASET / "segments").glob("*.parquet"))
    kept = tmp_path / segment.name
    shutil.copyfile(segment, kept)
    shop.store.flush(DATASET)
    rounds_without_sink(shop, 20)
    shutil.copyfile(kept, segment)  # its removal did not reach the disk
    later(shop)
    assert fold(shop.store.engine).segments > 0
    store = shop.again()
    store.flush(DATASET)
    assert [row["n"] for row in rows(store)].count(1_000) == 1
    assert not segment.exists()


def rounds_without_sink(shop: Shop, count: int) -> None:
    for _ in range(count):
        shop.commit(2)
        shop.clock.advance(ROUND)


def rows(store: Store) -> list[dict[str, Any]]:
    return [row for batch in store.read_since(DATASET) for row in batch.table.to_pylist()]


def test_a_deleted_object_of_a_folded_chunk_is_missed(shop: Shop):
    directory = shop.add_files()
    rounds(shop, 14)
    later(shop)
    fold(shop.store.engine)
    assert shop.kinds() == []
    gone = objects(directory)[2]
    gone.unlink()
    assert shop.kinds() == ["object-missing"]
    after, through = map(int, gone.stem.split("-"))
    found = shop.audit().findings[0].range
    assert found is not None
    assert (found.after, found.through) == (after, through)


def test_an_object_beside_those_of_folded_chunks_is_found(shop: Shop):
    directory = shop.add_files()
    rounds(shop, 14)
    later(shop)
    fold(shop.store.engine)
    first, second = objects(directory)[:2]
    shutil.copyfile(first, first.with_name(f"{first.stem.split('-')[0]}-{second.stem.split('-')[1]}.parquet"))
    assert "object-extra" in shop.kinds()


def test_a_new_sink_receives_every_row_of_a_folded_history(shop: Shop, tmp_path: Path):
    shop.add_files()
    rounds(shop, 16)
    later(shop)
    fold(shop.store.engine)
    shop.store.add_sink("second", "blob", url=(tmp_path / "second").as_uri(), chunk_rows=3)
    assert shop.store.export("second").rows == 64
    report = shop.store.audit("second", deep=True)
    assert report.sound
    assert sum(channel.there or 0 for channel in report.channels) == 64


def test_a_sink_that_lags_keeps_its_exact_lag(shop: Shop):
    """U35: no joined block has a watermark inside."""
    shop.add_files()
    rounds(shop, 10)
    for _ in range(20):
        shop.commit(4)
        shop.clock.advance(ROUND)
    later(shop)
    before = (shop.audit().channels, shop.store.status().sinks)
    assert fold(shop.store.engine).blocks > 0
    assert (shop.audit().channels, shop.store.status().sinks) == before
    assert shop.store.export(SINK).rows == 80


@pytest.mark.parametrize("rule", [{"keep_rows": 30}, {"older_than": "20d", "by": "ingest_time"}])
def test_retention_removes_the_same_rows_as_without_folding(tmp_path: Path, rule: dict[str, Any]):
    left = {}
    for folded in (False, True):
        shop = Shop(tmp_path / str(folded))
        rounds_without_sink(shop, 20)
        later(shop)
        rounds_without_sink(shop, 20)
        if folded:
            fold(shop.store.engine)
        shop.store.retain(DATASET, **rule)
        left[folded] = rows(shop.store)
        assert shop.store.fsck(deep=True).findings == ()
        shop.store.close()
    assert left[True] == left[False]


def test_a_row_of_an_old_commit_is_traced_to_the_joined_records(shop: Shop):
    shop.add_files()
    rounds(shop, 14)
    later(shop)
    fold(shop.store.engine)
    found = shop.store.trace(DATASET, {"n": 1}).committed[0]
    assert found.folded == 10
    assert found.block is not None
    assert found.seq in found.block
    assert [(step.state, step.chunk is not None) for step in found.sinks] == [("delivered", True)]


def test_rows_that_were_given_up_can_be_replayed_after_folding(shop: Shop):
    """U35: what was given up stays as it is, and what lies between is joined around it."""
    shop.add_files()
    rounds(shop, 10)
    shop.commit(4)
    with crash_at("delivery.planned"):
        shop.store.export(SINK)
    store = shop.again()
    assert store.skip(SINK)
    rounds(shop, 14)
    later(shop)
    fold(shop.store.engine)
    assert shop.kinds(deep=True) == []
    assert shop.store.replay(SINK).refused == 0
    assert shop.kinds(deep=True) == []


def test_a_control_database_from_before_the_folding_catches_up(shop: Shop, tmp_path: Path):
    shop.add_files()
    rounds(shop, 15)
    shop.store.close()
    file = shop.root / "store" / "control.db"
    shutil.copyfile(file, tmp_path / "backup.db")
    shop.again()
    rounds(shop, 15)
    later(shop)
    fold(shop.store.engine)
    shop.store.close()
    shutil.copyfile(tmp_path / "backup.db", file)
    for part in ("-wal", "-shm"):
        file.with_name(file.name + part).unlink(missing_ok=True)
    shop.again()
    rounds(shop, 1)
    assert [row["n"] for row in rows(shop.store)] == list(range(1, 125))
    assert shop.kinds(deep=True) == []


def test_a_flush_that_slept_through_all_of_it_reports_nothing_and_harms_nothing(
    shop: Shop, reopened: Callable[[], Store]
):
    """U35: its block was decided by another, long ago."""
    shop.commit(2)
    set_flush(shop.store, patience_seconds=0)
    shop.store.capture(DATASET, [{"n": 500, "source": "s0", "note": "slow"}])

    def meanwhile() -> None:
        with faults.disarmed():
            other = reopened()
            set_flush(other, patience_seconds=0)
            for number in range(12):
                other.capture(DATASET, [{"n": 600 + number, "source": "s0", "note": "fast"}])
                other.flush(DATASET)
                shop.clock.advance(ROUND)
            shop.clock.advance(MONTH)
            assert fold(other.engine).blocks > 0

    faults.arm("flush.synced", faults.nth_time(1, meanwhile))
    shop.store.flush(DATASET)
    assert [row["n"] for row in rows(shop.store)].count(500) == 1
    assert shop.store.fsck(deep=True).findings == ()


@pytest.fixture
def reopened(shop: Shop) -> Iterator[Callable[[], Store]]:
    opened: list[Store] = []

    def again() -> Store:
        opened.append(open_store(shop.root / "store", lake=shop.lake, clock=shop.clock))
        return opened[-1]

    yield again
    for one in opened:
        one.close()
