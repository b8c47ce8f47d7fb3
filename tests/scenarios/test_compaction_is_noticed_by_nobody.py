"""Compaction: few files out of many, bounded work that ends, and no reader, flush or sink that notices."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from worlds import DATASET, TABLE, World, die, dies, interrupted

from floodmark import faults
from floodmark.control import blocks, datasets
from floodmark.errors import Retryable, UnknownDataset
from floodmark.layout import Layout
from floodmark.maintenance.compact import MANIFEST_TRIES_MAX, DatasetCompaction
from floodmark.schema import Schema
from floodmark.sequence import SequenceRange
from floodmark.store import Store
from floodmark.testing import MemoryLake, SimulatedCrash, kill_store

POINTS = [point for point in faults.POINTS if point.startswith(("compact.", "upkeep."))]
OFTEN = ["compact.rewriting", "compact.rewritten", "upkeep.synced"]


@pytest.fixture
def world(quick_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """Buckets of ten numbers; the clock of the store is the clock of the lake."""
    monkeypatch.setattr("floodmark.layout.BUCKET_WIDTH_MIN", 1)
    made = World.make(quick_path / "store")
    made.lake.ensure(TABLE, Schema.declare({"id": "long", "site": "string"}), layout=Layout(bucket_width=10))
    made.lake.clock = made.clock
    yield made
    made.close()


def opened(world: World, **upkeep: Any) -> Store:
    store = world.open()
    few = {"files_min": 2, "snapshots_keep": 1, "snapshots_age_seconds": 60}
    wanted = {**few, "manifests_max": 1000, "buckets_at_once": 1, **upkeep}
    store.engine.settings = replace(store.settings, upkeep=replace(store.settings.upkeep, **wanted))
    return store


def small_flushes(world: World, count: int, *, rows: int = 2) -> None:
    store = world.open()
    for _ in range(count):
        world.capture(store, rows)
        store.flush(DATASET)
    kill_store(store)
    world.clock.advance(3600)


def compact(store: Store, **options: Any) -> DatasetCompaction:
    (done,) = store.compact(DATASET, **options).datasets
    return done


def files(world: World) -> dict[SequenceRange, int]:
    state = world.lake.load(TABLE)
    assert state is not None
    return {bucket.range: len(bucket.files) for bucket in world.lake.files(state).buckets}


def test_small_files_become_few_and_every_row_keeps_its_number(world: World) -> None:
    """U1."""
    small_flushes(world, 12)
    before = world.table()
    assert sum(files(world).values()) == 14
    done = compact(opened(world))
    assert set(files(world).values()) == {1}
    assert [(item.files_before, item.files_after) for item in done.compacted] == [(5, 1), (6, 1), (3, 1)]
    assert world.table() == before
    world.check()


def test_a_second_run_right_after_finds_nothing_to_do_and_says_why(world: World) -> None:
    """U6."""
    small_flushes(world, 12)
    store = opened(world)
    compact(store)
    head = world.lake.load(TABLE).head
    again = compact(store)
    assert again.idle
    assert {item.reason for item in again.skipped} == {
        "its files are large enough",
        "still being written to, and has fewer than 2 small files to join",
    }
    assert world.lake.load(TABLE).head == head


def test_one_bad_bucket_does_not_stop_the_rest(world: World) -> None:
    small_flushes(world, 12)
    store = opened(world, buckets_at_once=3)

    def fail(within: SequenceRange) -> None:
        if 12 in within:
            raise Retryable("the disk under it is broken")

    world.lake.on_rewrite = fail
    report = store.compact(DATASET)
    (done,) = report.datasets
    assert not report.sound
    assert [(item.range, item.reason) for item in done.failed] == [
        (SequenceRange(9, 19), "the disk under it is broken")
    ]
    assert [item.range for item in done.compacted] == [SequenceRange(0, 9), SequenceRange(19, 29)]
    world.lake.on_rewrite = None
    assert [item.range for item in compact(store).compacted] == [SequenceRange(9, 19)]
    world.check()


@pytest.mark.parametrize("times", [1, 10])
def test_a_flush_that_comes_between_the_manifests_is_no_problem(
    world: World, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    small_flushes(world, 12)
    store, other = opened(world, manifests_max=1), world.open()
    real, refused = MemoryLake.rewrite, []

    def rewrite(lake: MemoryLake, table: str, **options: Any) -> None:
        if not options and len(refused) < times:
            world.capture(other, 1)
            other.flush(DATASET)
            refused.append(table)
            raise Retryable("a manifest is not there any more")
        real(lake, table, **options)

    monkeypatch.setattr(MemoryLake, "rewrite", rewrite)
    assert store.compact(DATASET).sound
    assert len(refused) == min(times, MANIFEST_TRIES_MAX)
    world.check()


def test_manifests_that_cannot_be_joined_while_nobody_commits_are_a_problem(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_flushes(world, 12)
    store = opened(world, manifests_max=1)
    real = MemoryLake.rewrite

    def rewrite(lake: MemoryLake, table: str, **options: Any) -> None:
        if not options:
            raise Retryable("the disk is full")
        real(lake, table, **options)

    monkeypatch.setattr(MemoryLake, "rewrite", rewrite)
    assert compact(store).problems == ("rewriting manifests: the disk is full",)


def test_one_run_does_a_bounded_amount_and_the_next_goes_on(world: World) -> None:
    small_flushes(world, 12)
    store = opened(world, bytes_max=1)
    assert [len(compact(store).compacted) for _ in range(4)] == [1, 1, 1, 0]
    assert set(files(world).values()) == {1}


def test_a_dry_run_tells_and_changes_nothing(world: World) -> None:
    small_flushes(world, 12)
    before = world.lake.load(TABLE)
    done = compact(opened(world), dry_run=True)
    assert [(item.files_before, item.files_after) for item in done.compacted] == [(6, None), (5, None), (3, None)]
    assert world.lake.load(TABLE) == before


def test_all_datasets_are_compacted_and_one_that_cannot_be_does_not_stop_the_others(world: World) -> None:
    small_flushes(world, 12)
    store = opened(world)
    store.add_dataset("another", schema={"id": "long"})
    store.add_dataset("zebra", schema={"id": "long"})
    store.capture("zebra", [{"id": 1}])
    store.flush("zebra")
    world.lake.data.pop(world.lake.tables["zebra_g1"].files[world.lake.load("zebra_g1").head][0])
    report = store.compact()
    found = {item.dataset: item for item in report.datasets}
    assert found["another"].idle
    assert len(found[DATASET].compacted) == 3
    assert "missing" in found["zebra"].problems[0]
    assert not report.sound


def test_a_dataset_that_is_not_there_is_named(world: World) -> None:
    with pytest.raises(UnknownDataset):
        opened(world).compact("nothing")


# ── beside flushes and readers ───────────────────────────────────────────────────────────────────────────────────────


def test_a_request_under_way_lands_after_a_compaction(world: World) -> None:
    """U1, U3: a flush that lost its answer is settled first; what nobody decided keeps its history."""
    small_flushes(world, 5)
    store = opened(world)
    world.capture(store, 3)
    world.lake.on_append = lambda _: "hold"
    with pytest.raises(Retryable):
        store.flush(DATASET)
    world.lake.on_append = None
    # Another process compacts: it settles the block before it does anything else.
    compact(opened(world))
    world.lake.deliver_held()
    world.check()


def reserve(store: Store) -> None:
    """A flush that dies as soon as it has its numbers."""
    with contextlib.suppress(SimulatedCrash):
        faults.arm("flush.reserved", die)
        store.flush(DATASET)
    faults.disarm_all()


def test_what_a_flush_under_way_stands_on_does_not_expire(world: World) -> None:
    """U3: a flush reserves right between the settling and the expiry."""
    small_flushes(world, 5)
    other = opened(world)
    world.capture(other, 3)
    store = opened(world)
    with interrupted(upkeep__expiring=lambda: reserve(other)):
        compact(store)
    undecided = store.engine.database.read(lambda c: blocks.undecided(c, DATASET))
    assert undecided is not None
    state = world.lake.load(TABLE)
    assert undecided.base.snapshot in {snapshot.id for snapshot in state.lineage}
    world.check()


def test_numbers_that_only_expired_commits_knew_are_not_given_again(world: World) -> None:
    """I1, U3."""
    small_flushes(world, 5)
    world.lake.delete(TABLE, SequenceRange(8, 10))
    world.clock.advance(3600)
    store = opened(world)
    compact(store)
    state = world.lake.load(TABLE)
    assert {snapshot.operation for snapshot in state.lineage} == {"replace"}
    assert state.max_seq == 10


def test_a_reader_goes_on_where_it_was(world: World) -> None:
    """U1."""
    small_flushes(world, 3)
    store = opened(world)
    batches = list(store.read_since(DATASET))
    small_flushes(world, 3)
    compact(store)
    after = [row["id"] for batch in store.read_since(DATASET, batches[-1].cursor) for row in batch.table.to_pylist()]
    assert after == world.acknowledged[6:]


def test_snapshots_stay_for_readers_under_way_and_not_for_ever(world: World) -> None:
    store = opened(world, snapshots_keep=2, snapshots_max=4, snapshots_age_seconds=600, files_min=100)
    for _ in range(3):
        world.committed(1)
    world.clock.advance(3600)
    for _ in range(3):
        world.committed(1)
    assert compact(store).snapshots_expired == 3
    for _ in range(3):
        world.committed(1)
    assert compact(store).snapshots_expired == 2
    world.clock.advance(3600)
    assert compact(store).snapshots_expired == 2
    assert len(world.lake.load(TABLE).lineage) == 2
    world.check()


def test_manifests_are_joined_when_there_are_many(world: World) -> None:
    small_flushes(world, 12)
    done = compact(opened(world, files_min=100, manifests_max=4))
    assert (done.manifests_before, done.manifests_after) == (14, 1)
    world.check()


def test_files_that_nothing_refers_to_go_when_they_are_old_and_not_before(world: World) -> None:
    """U5: never younger than a day, whatever the settings say."""
    small_flushes(world, 2)
    store = opened(world, orphan_age_seconds=1, files_min=100)
    orphan = world.lake.store(next(iter(world.lake.data.values())))
    world.clock.advance(timedelta(hours=23).total_seconds())
    assert compact(store).orphans == 0
    world.clock.advance(timedelta(hours=2).total_seconds())
    assert compact(store, dry_run=True).orphans == 1
    assert orphan in world.lake.data
    done = compact(store)
    assert (done.orphans, done.orphan_bytes > 0) == (1, True)
    assert orphan not in world.lake.data
    world.check()


def test_a_table_that_a_rebuild_has_retired_goes_a_day_later(world: World) -> None:
    small_flushes(world, 3)
    store = opened(world)
    store.rebuild(DATASET, bucket_width=20)
    assert compact(store).generations_removed == ()
    world.clock.advance(timedelta(days=2).total_seconds())
    assert compact(store).generations_removed == (1,)
    assert len(world.lake.tables) == 1
    assert sorted(row["id"] for b in store.read_since(DATASET) for row in b.table.to_pylist()) == world.acknowledged


def test_a_dataset_behind_a_rebuilds_fence_is_left_alone(world: World) -> None:
    small_flushes(world, 3)
    store = opened(world)
    assert dies(lambda: store.rebuild(DATASET), "rebuild.fenced")
    with pytest.raises(Retryable, match="being rebuilt"):
        opened(world).compact(DATASET)


# ── crashes ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("power", ["stays", "goes"])
@pytest.mark.parametrize(("point", "time"), [*((point, 1) for point in POINTS), *((point, 2) for point in OFTEN)])
def test_a_compaction_that_dies_anywhere_leaves_a_sound_store(world: World, point: str, time: int, power: str) -> None:
    """U2, U4: also where the power goes, and takes every file along that was not synced."""
    small_flushes(world, 12)
    store = opened(world, manifests_max=2)
    assert dies(lambda: compact(store), point, time=time)
    kill_store(store)
    if power == "goes":
        world.lake.lose_power()
    store = opened(world, manifests_max=2)
    world.capture(store, 2)
    store.flush(DATASET)
    compact(store)
    assert set(files(world).values()) <= {1, 2}
    world.check()


def test_what_is_known_to_be_on_the_disk_is_on_record(world: World) -> None:
    """U2."""
    small_flushes(world, 12)
    store = opened(world)
    compact(store)
    state = world.lake.load(TABLE)
    declared = store.engine.database.read(lambda c: datasets.get(c, DATASET))
    assert state.since(declared.synced_snapshot) == ()
    assert set(world.lake.tables[TABLE].files[state.head]) <= world.lake.durable
