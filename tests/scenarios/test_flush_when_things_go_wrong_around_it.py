"""Power loss, deleted rows, recreated tables, restored records, limits: nothing acknowledged is lost or doubled."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from worlds import DATASET, TABLE, World, dies

from floodmark import faults
from floodmark.control.blocks import BatchLimits
from floodmark.errors import Corrupt, FilesMissing, FloodmarkError, Retryable
from floodmark.schema import SEQ
from floodmark.sequence import SequenceRange
from floodmark.store import Store, init
from floodmark.testing import MemoryLake, kill_store


@pytest.fixture
def world(quick_path: Path) -> Iterator[World]:
    made = World.make(quick_path / "store")
    yield made
    made.close()


CONTROL = ("control.db", "control.db-wal", "control.db-shm")


def back_up(world: World, *stores: Store) -> None:
    for store in stores:
        store.engine.database.close()
    for name in CONTROL:
        if (world.root / name).exists():
            shutil.copy(world.root / name, world.root.parent / name)


def restore(world: World, *stores: Store) -> None:
    """Put the control database back as it was at the last `back_up`, also under processes that use it."""
    for store in stores:
        store.engine.database.close()
    for name in CONTROL:
        (world.root / name).unlink(missing_ok=True)
        if (world.root.parent / name).exists():
            shutil.copy(world.root.parent / name, world.root / name)


# ── power ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("point", ["flush.appended", "flush.decided"])
def test_the_segments_outlive_a_power_loss_before_the_commit_is_synced(world: World, point: str) -> None:
    """I7: the commit's files are gone with the power; the segments are not, and the block is committed again."""
    world.committed(2)
    store = world.open()
    world.capture(store, 3)
    assert dies(lambda: store.flush(DATASET), at=point)
    world.close()
    assert len(world.segment_files()) == 1
    world.lake.lose_power()
    world.check()


@pytest.mark.parametrize("point", ["flush.synced", "flush.recorded", "flush.segment_removed"])
def test_what_is_recorded_or_synced_survives_a_power_loss(world: World, point: str) -> None:
    """I7: nothing goes from the spool before the table's files are on the disk."""
    world.committed(2)
    store = world.open()
    world.capture(store, 3)
    assert dies(lambda: store.flush(DATASET), at=point)
    world.close()
    world.lake.lose_power()
    world.check()


def test_a_power_loss_at_any_moment_between_flushes_loses_nothing(world: World) -> None:
    for _ in range(3):
        world.committed(2)
        world.lake.lose_power()
    world.check()


def test_a_commit_never_stands_on_files_of_a_predecessor_that_were_not_synced(world: World) -> None:
    """I7: what one process committed and did not sync is synced by whoever records on top of it."""
    first = world.open()
    world.capture(first, 2)
    assert dies(lambda: first.flush(DATASET), at="flush.decided")  # landed, not synced
    second = world.open()
    world.capture(second, 2)
    second.flush(DATASET)
    world.lake.lose_power()
    world.check()


def test_a_compaction_whose_files_were_never_synced_is_covered_by_the_next_commit(world: World) -> None:
    world.committed(2)
    world.committed(2)
    world.compact()
    world.committed(2)
    world.lake.lose_power()
    world.check()


class ForgetsToSync(MemoryLake):
    def sync(self, state: Any, *, since: int | None) -> None:
        pass


def test_a_lake_that_does_not_sync_is_noticed(quick_path: Path) -> None:
    """The tests above can fail."""
    world = World.make(quick_path / "store", lake=ForgetsToSync())
    world.committed(2)
    world.lake.lose_power()
    with pytest.raises((AssertionError, FloodmarkError)):
        world.check()
    world.close()


def test_damage_to_committed_files_is_said_by_whoever_looks_at_them(world: World) -> None:
    """A flush looks at what came since the last synced snapshot; a reader and fsck look at all of it."""
    world.committed(2)
    store = world.open()
    world.capture(store, 3)
    kept = dict(world.lake.data)
    world.lake.data.clear()
    for process in (store, world.open()):
        assert not process.fsck().sound
        with pytest.raises(Corrupt):
            list(process.read_since(DATASET))
    world.lake.data.update(kept)
    world.check()


# ── rows that were deleted, tables that were replaced ────────────────────────────────────────────────────────────────


def test_rows_deleted_before_the_verdict_do_not_come_back(world: World) -> None:
    """The commit is recognised by its snapshot, though none of its rows is visible any more."""
    world.committed(1)
    store = world.open()
    ids = world.capture(store, 3)
    assert dies(lambda: store.flush(DATASET), at="flush.appended")
    world.close()
    world.lake.delete(TABLE, SequenceRange(1, 4))
    world.check(gone=tuple(ids))


def test_a_commit_is_recognised_by_a_row_of_it_when_its_snapshot_is_forgotten(world: World) -> None:
    world.committed(1)
    store = world.open()
    ids = world.capture(store, 3)
    assert dies(lambda: store.flush(DATASET), at="flush.appended")
    world.close()
    world.lake.delete(TABLE, SequenceRange(1, 3))
    world.compact()
    world.lake.expire(TABLE)
    world.check(gone=tuple(ids[:2]))


def test_numbers_of_deleted_rows_are_not_given_again(world: World) -> None:
    """I1: the newest rows are gone, history is forgotten, the counter is back at zero: the table still knows."""
    back_up(world)
    world.committed(3)
    world.lake.delete(TABLE, SequenceRange(1, 3))
    world.compact()
    world.lake.expire(TABLE)
    restore(world)
    world.committed(2)
    assert [row[SEQ] for row in world.table()] == [1, 4, 5]


@pytest.mark.parametrize("point", ["flush.base_loaded", "flush.reserved", "flush.appending", "flush.appended"])
def test_a_table_that_was_dropped_and_made_again_takes_the_rows_once(world: World, point: str) -> None:
    """The base belongs to a table that is no more: the block is void, and the rows go to the successor once."""
    world.committed(2)
    gone = tuple(world.acknowledged)
    store = world.open()
    world.capture(store, 3)
    faults.arm(point, faults.nth_time(1, lambda: world.lake.recreate(TABLE)))
    store.flush(DATASET)
    faults.disarm_all()
    assert sorted(world.ids_in_table()) == [2, 3, 4]
    assert gone == (0, 1)


@pytest.mark.parametrize("rows_before", [0, 2], ids=["no base", "a base"])
def test_a_dead_flushes_block_is_void_when_its_table_was_replaced(world: World, rows_before: int) -> None:
    if rows_before:
        world.committed(rows_before)
    store = world.open()
    ids = world.capture(store, 3)
    assert dies(lambda: store.flush(DATASET), at="flush.appending")
    world.lake.recreate(TABLE)
    second = world.open()
    assert second.flush(DATASET).rows == 3
    assert [block.state for block in world.blocks(second)][-2:] == ["void", "committed"]
    assert world.ids_in_table() == ids


# ── records that were restored ───────────────────────────────────────────────────────────────────────────────────────


def test_an_allocator_that_was_restored_low_never_goes_back(world: World) -> None:
    """I1: whatever the counter says, a block starts above what the tables show."""
    back_up(world)
    world.committed(5)
    restore(world)
    world.committed(2)
    assert [row[SEQ] for row in world.table()] == [1, 2, 3, 4, 5, 6, 7]


def test_an_allocator_that_goes_low_under_a_running_process_never_goes_back_either(world: World) -> None:
    """I1: the base says which numbers are taken, at every reservation."""
    flusher = world.open()
    flusher.flush(DATASET)
    back_up(world, flusher)
    for count in (5, 2):
        writer = world.open()
        world.capture(writer, count)
        kill_store(writer)
        flusher.flush(DATASET)
        restore(world, flusher)
    assert [row[SEQ] for row in world.table()] == [1, 2, 3, 4, 5, 6, 7]


def test_a_running_process_does_not_give_the_numbers_of_deleted_rows_again(world: World) -> None:
    """I1: no row shows them, the records have forgotten them, and the table's own property has not."""
    flusher = world.open()
    flusher.flush(DATASET)
    back_up(world, flusher)
    for count in (3, 2):
        writer = world.open()
        world.capture(writer, count)
        kill_store(writer)
        flusher.flush(DATASET)
        if count == 3:
            world.lake.delete(TABLE, SequenceRange(0, 3))
            restore(world, flusher)
    assert [row[SEQ] for row in world.table()] == [4, 5]


BACKUPS = ["before the capture", "after the capture", "after sealing", "after the reservation"]


@pytest.mark.parametrize("when", BACKUPS)
@pytest.mark.parametrize("compacted", [False, True])
def test_a_restored_control_database_does_not_flush_committed_rows_again(
    world: World, when: str, compacted: bool
) -> None:
    """The table knows the segments by their ids, and a landing segment's id is a function of its lines."""
    world.committed(2)
    store = world.open()

    if when == "before the capture":
        back_up(world, store)
    world.capture(store, 3)
    if when == "after the capture":
        back_up(world, store)
    if when == "after sealing":
        store.seal(DATASET)
        back_up(world, store)
    if when == "after the reservation":
        faults.arm("flush.reserved", faults.nth_time(1, lambda: back_up(world, store)))
    store.flush(DATASET)
    faults.disarm_all()
    if compacted:
        world.compact()
    restore(world, store)
    world.close()
    fresh = world.open()
    world.capture(fresh, 2)
    fresh.flush(DATASET)
    assert sorted(world.ids_in_table()) == world.acknowledged
    numbers = [row[SEQ] for row in world.table()]
    assert numbers == sorted(set(numbers))
    assert fresh.horizon(DATASET) == numbers[-1]


# ── hooks, duplicates, limits, columns ───────────────────────────────────────────────────────────────────────────────


def test_duplicates_that_cannot_be_looked_for_are_retryable_and_nothing_moves(quick_path: Path) -> None:
    """If the committed rows cannot be read, nothing is committed on a guess: the rows wait in the spool."""
    world = World.make(quick_path / "store", identity=["id"])
    world.committed(2)
    store = world.open()
    world.capture(store, 2)
    kept = dict(world.lake.data)
    head = world.lake.load(TABLE).head
    world.lake.data.clear()
    with pytest.raises(Retryable):
        store.flush(DATASET)
    assert world.lake.load(TABLE).head == head
    assert len(world.segment_files()) == 1
    world.lake.data.update(kept)
    world.check()
    world.close()


def test_a_batch_of_duplicates_only_is_void_and_its_segments_are_done_with(quick_path: Path) -> None:
    """No empty snapshot, no block for ever undecided; its file goes with the next commit, which leaves a trace."""
    world = World.make(quick_path / "store", identity=["id"])
    world.committed(3)
    head = world.lake.load(TABLE).head
    store = world.open()
    store.capture(DATASET, [{"id": 0, "site": "s0"}, {"id": 2, "site": "s0"}])
    report = store.flush(DATASET)
    assert (report.rows, report.duplicates) == (0, 2)
    assert world.lake.load(TABLE).head == head
    assert [(block.state, block.duplicates) for block in world.blocks(store)] == [("committed", 0), ("void", 2)]
    assert store.horizon(DATASET) == 3
    assert len(world.segment_files()) == 1
    world.capture(store, 1)
    store.flush(DATASET)
    world.check()
    world.close()


@pytest.mark.parametrize("point", [point for point in faults.POINTS if point.startswith("flush.")])
def test_a_batch_with_duplicates_is_recovered_as_any_other(quick_path: Path, point: str) -> None:
    """Sent again on the same base it decides the same way; figures count what landed."""
    world = World.make(quick_path / "store", identity=["id"])
    world.committed(3)
    store = world.open()
    store.capture(DATASET, [{"id": 1, "site": "s1"}])
    world.capture(store, 2)
    store.capture(DATASET, [{"id": 4, "site": "s0"}])
    dies(lambda: store.flush(DATASET), at=point)
    world.close()
    world.check()
    world.close()


@pytest.mark.parametrize(
    "limits", [BatchLimits(rows_max=4), BatchLimits(segments_max=2), BatchLimits(bytes_max=1)], ids=str
)
def test_limits_cut_a_backlog_into_several_blocks_with_every_row_once(world: World, limits: BatchLimits) -> None:
    world.limits = limits
    store = world.open()
    for count in (3, 1, 2, 5, 1, 1):
        world.capture(store, count, arrow=True)
    report = store.flush(DATASET)
    assert report.rows == 13
    assert report.blocks >= 3
    assert str(report.block) == "(0, 13]"
    assert len(world.lake.load(TABLE).lineage) == report.blocks
    world.check()


def test_a_segment_above_the_limit_is_committed_alone(world: World) -> None:
    world.limits = BatchLimits(rows_max=2)
    store = world.open()
    for count in (1, 5, 1):
        world.capture(store, count, arrow=True)
    assert store.flush(DATASET).blocks == 3
    world.check()


@pytest.mark.parametrize("point", ["flush.base_loaded", "flush.reserved", "flush.appending", "flush.appended"])
def test_a_column_may_arrive_at_any_moment_of_a_flush(world: World, point: str) -> None:
    """Additive: the block under way is unharmed, and the new column's rows come with the next one."""
    world.committed(1)
    store, other = world.open(), world.open()
    world.capture(store, 2)

    def new_column() -> None:
        other.capture(DATASET, [{"id": 900, "site": "s0", "extra": "new"}])
        world.acknowledged.append(900)
        other.seal(DATASET)

    faults.arm(point, faults.nth_time(1, new_column))
    store.flush(DATASET)
    faults.disarm_all()
    world.check()
    assert [row.get("extra") for row in world.table()] == [None, None, None, "new"]


def test_a_wider_type_may_arrive_at_any_moment_of_a_flush(quick_path: Path) -> None:
    world = World.make(quick_path / "store", schema={"id": "long", "size": "int"})
    store, other = world.open(), world.open()
    store.capture(DATASET, [{"id": 1, "site": "s1", "size": 1}])

    def wider() -> None:
        other.capture(DATASET, [{"id": 2, "site": "s0", "size": 2**40}])
        other.seal(DATASET)

    faults.arm("flush.appending", faults.nth_time(1, wider))
    store.flush(DATASET)
    faults.disarm_all()
    store.flush(DATASET)
    assert [row["size"] for row in world.table()] == [1, 2**40]
    world.close()


class ForgetfulLake(MemoryLake):
    """Its catalog commits, its client does not hear of it, and deletes the files of what it takes for a failure."""

    forgetful: bool = False

    def append(self, request: Any) -> bool:
        landed = super().append(request)
        if self.forgetful:
            self.forgetful = False
            state = self.load(request.table)
            assert state is not None
            assert state.head is not None
            before = state.lineage[1].id if len(state.lineage) > 1 else None
            old = set() if before is None else set(self.files_of(request.table, before))
            for id in set(self.files_of(request.table, state.head)) - old:
                del self.data[id]
            raise RuntimeError("found conflicting files")
        return landed


def test_a_commit_whose_files_its_own_client_deleted_is_made_again_by_the_next_flush(tmp_path: Path) -> None:
    """I7: step 5 finds it out before a segment goes, and the same process goes back over it."""
    lake = ForgetfulLake()
    with init(tmp_path / "store", lake=lake) as store:
        store.add_dataset("rows", schema={"id": "long"})
        for number in range(3):
            store.capture("rows", [{"id": number}])
            store.flush("rows")
            store.capture("rows", [{"id": number + 10}])
            lake.forgetful = True
            with pytest.raises(FilesMissing):
                store.flush("rows")
            store.flush("rows")
        found = [row["id"] for batch in store.read_since("rows") for row in batch.table.to_pylist()]
        assert sorted(found) == [0, 1, 2, 10, 11, 12]
        assert store.fsck().sound
