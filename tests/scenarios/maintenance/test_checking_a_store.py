"""Fsck finds every way in which control database, lake and spool contradict each other, and repairs what is safe."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from floodmark import faults
from floodmark.commit import recovery
from floodmark.lake import queries
from floodmark.maintenance.fsck import FsckReport
from floodmark.process import process_identity
from floodmark.schema import SEQ
from floodmark.sequence import SequenceRange
from floodmark.spool.landing import landing_files
from floodmark.spool.segments import add_segment
from floodmark.testing import SimulatedCrash, crash_at
from scenarios.maintenance.delivered import DATASET, SINK, Shop

TABLE = f"{DATASET}_g1"


def check(shop: Shop, **how: bool) -> FsckReport:
    return shop.again().fsck(**how)


def wrong(shop: Shop, **how: bool) -> list[str]:
    return [item.kind for item in check(shop, **how).findings if item.wrong]


def notes(shop: Shop) -> list[str]:
    return [item.kind for item in check(shop).findings if not item.wrong]


def committed(shop: Shop) -> list[int]:
    state = shop.lake.load(TABLE)
    parts = shop.lake.scan(TABLE, snapshot=state.head, within=SequenceRange(0, 2**62))
    return sorted(row["n"] for part in parts for row in part.to_pylist())


def committed_or_none(shop: Shop) -> list[int]:
    return [] if shop.lake.load(TABLE) is None else committed(shop)


def back_up(shop: Shop) -> Callable[[], None]:
    """Copy the control database; what is returned puts the copy back."""
    shop.again().flush(DATASET)  # the landing file of the writer before is gone
    shop.store.close()
    copy = shop.root / "control.copy"
    shutil.copy(shop.root / "store" / "control.db", copy)
    shop.again()

    def restore() -> None:
        shop.store.close()
        for name in ("control.db", "control.db-wal", "control.db-shm"):
            (shop.root / "store" / name).unlink(missing_ok=True)
        shutil.copy(copy, shop.root / "store" / "control.db")

    return restore


def capture(shop: Shop, *numbers: int, arrow: bool = False) -> None:
    rows = [{"n": n, "source": "a", "note": "x"} for n in numbers]
    shop.store.capture(DATASET, pa.Table.from_pylist(rows) if arrow else rows)


def segment_files(shop: Shop) -> list[Path]:
    return sorted((shop.store.path / "spool" / DATASET / "segments").glob("*.parquet"))


def test_a_sound_store_has_nothing_to_find(shop: Shop):
    shop.add_files()
    shop.deliver()
    capture(shop, 100)
    report = check(shop, deep=True)
    assert report.sound
    assert report.findings == ()
    assert report.datasets == (DATASET,)


def test_rows_of_a_writer_that_is_gone_are_a_note(shop: Shop):
    capture(shop, 1)
    assert [item.kind for item in shop.store.fsck().findings] == [], "its writer lives"
    assert notes(shop) == ["landing-waits"]


def test_a_new_store_has_nothing_to_find(shop: Shop):
    assert check(shop, deep=True).findings == ()


# ── blocks, numbers, records ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("point", ["flush.reserved", "flush.appended", "flush.synced"])
def test_a_block_without_a_verdict_is_found_and_settled(shop: Shop, point: str):
    capture(shop, 1, 2)
    with crash_at(point):
        shop.store.flush(DATASET)
    assert (wrong(shop), notes(shop)) == ([], ["block-undecided"]), "the next flush decides it by itself"
    report = check(shop, repair=True)
    assert report.sound
    assert "committed" in report.repaired[0]
    assert committed(shop) == [1, 2]


def test_a_block_of_a_flush_at_work_is_no_fault(shop: Shop):
    capture(shop, 1)
    seen: list[str] = []
    from floodmark.store import open_store

    def look() -> None:
        with open_store(shop.store.path, lake=shop.lake, clock=shop.clock) as other:
            seen.extend(item.kind for item in other.fsck().findings)

    faults.arm("flush.appending", look)
    shop.store.flush(DATASET)
    assert seen == []


def test_an_allocator_below_what_is_taken_is_found_and_raised(shop: Shop):
    shop.commit()
    shop.sql("DROP TRIGGER counter_never_back")
    shop.sql("UPDATE counters SET value = 3 WHERE name = 'sequence'")
    assert (wrong(shop), notes(shop)) == ([], ["allocator-behind"])
    assert "raised" in check(shop, repair=True).repaired[0]
    assert notes(shop) == []


def test_a_horizon_that_is_not_the_end_of_the_last_block_is_found(shop: Shop):
    shop.commit()
    shop.sql("UPDATE datasets SET horizon = 900")
    assert "horizon-differs" in wrong(shop)


def test_a_watermark_above_the_horizon_is_found(shop: Shop):
    shop.add_files()
    shop.deliver(rounds=1)
    shop.sql("UPDATE watermarks SET seq = 900 WHERE partition_key = 'source=s0'")
    assert "watermark-ahead" in wrong(shop)


def test_a_watermark_below_what_is_settled_is_a_note(shop: Shop):
    shop.add_files()
    shop.deliver(rounds=1)
    shop.sql("DELETE FROM watermarks")
    assert notes(shop) == ["watermark-behind", "watermark-behind"]


def test_chunks_that_do_not_tile_their_intent_are_found(shop: Shop):
    shop.add_files()
    shop.deliver(rounds=1)
    shop.sql("DELETE FROM chunks WHERE after_seq = 0")
    assert set(wrong(shop)) == {"chunks-do-not-tile"}


def test_an_intent_that_is_closed_with_chunks_unsettled_is_found(shop: Shop):
    shop.add_files()
    shop.commit()
    with crash_at("delivery.planned"):
        shop.store.export(SINK)
    assert wrong(shop) == []
    shop.sql("UPDATE intents SET state = 'closed'")
    assert wrong(shop) == ["intent-unsettled"]


def test_an_open_intent_that_begins_above_the_watermark_is_found(shop: Shop):
    shop.add_files()
    shop.deliver(rounds=1)
    shop.commit()
    with crash_at("delivery.planned"):
        shop.store.export(SINK)
    shop.sql("DROP TRIGGER watermark_never_back")
    shop.sql("UPDATE watermarks SET seq = 2")
    assert wrong(shop) == ["intent-beyond-watermark"]


def test_a_partition_that_counts_otherwise_than_its_blocks_is_found(shop: Shop):
    shop.commit()
    shop.sql("UPDATE partitions SET row_count = row_count + 1 WHERE partition_key = 'source=s1'")
    assert wrong(shop) == ["partition-differs"]


def test_a_removal_that_was_not_ended_is_a_note(shop: Shop):
    shop.commit()
    shop.sql(
        "INSERT INTO removals (operation, dataset, partition_key, after_seq, through_seq, row_count, checksum, reason, "
        f"removed_at, state) VALUES ('retain-1', '{DATASET}', 'source=s0', 0, 2, 1, '00', 'retention', '', 'planned')"
    )
    assert notes(shop) == ["removal-unfinished"]


def test_a_payload_in_quarantine_whose_file_is_gone_is_found(shop: Shop):
    shop.store.capture(DATASET, [{"n": 1, "source": "a"}, {"n": "bad", "source": "a", "note": "x" * 100_000}])
    shop.store.flush(DATASET)
    files = list((shop.store.path / "quarantine" / DATASET).iterdir())
    assert len(files) == 1
    files[0].unlink()
    assert wrong(shop) == ["payload-missing"]


# ── the lake ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_missing_data_file_is_found(shop: Shop):
    shop.commit()
    table = shop.lake.tables[TABLE]
    del shop.lake.data[table.files[table.head or 0][0]]
    assert wrong(shop) == ["file-missing"]
    report = check(shop, repair=True)
    assert not report.sound
    assert report.repaired == ()


def test_files_of_an_undecided_block_that_never_reached_the_disk_are_written_again(shop: Shop):
    shop.commit(2)
    capture(shop, 50)
    with crash_at("flush.appended"):
        shop.store.flush(DATASET)
    shop.lake.lose_power()
    assert "file-missing" in wrong(shop)
    assert check(shop, repair=True).sound
    assert committed(shop) == [1, 2, 50]


def test_a_data_file_that_is_referred_to_twice_is_found(shop: Shop):
    shop.commit()
    table = shop.lake.tables[TABLE]
    table.files[table.head or 0] *= 2
    assert wrong(shop) == ["file-twice"]


def test_a_table_that_is_gone_is_found(shop: Shop):
    shop.commit()
    del shop.lake.tables[TABLE]
    assert wrong(shop) == ["table-missing"]


def test_a_table_that_was_rolled_back_is_found_with_the_snapshot_to_go_back_to(shop: Shop):
    shop.commit()
    old = shop.lake.load(TABLE).head
    shop.commit()
    shop.commit()
    lost = shop.lake.load(TABLE).head
    shop.lake.tables[TABLE].head = old
    assert wrong(shop) == ["table-rolled-back"]
    found = check(shop).findings[0]
    assert found.range == SequenceRange(8, 24)
    assert str(lost) in found.run


def test_expired_snapshots_and_compaction_are_no_roll_back(shop: Shop):
    shop.commit()
    shop.commit()
    shop.lake.compact(TABLE)
    shop.lake.expire(TABLE)
    assert check(shop, deep=True).findings == ()


def test_rows_that_were_all_removed_on_record_are_no_roll_back(shop: Shop):
    shop.commit()
    head = shop.lake.load(TABLE).head
    for item in queries.stats(shop.lake, TABLE, snapshot=head, within=SequenceRange(0, 8), partition_by=("source",)):
        shop.sql(
            "INSERT INTO removals (operation, dataset, partition_key, after_seq, through_seq, row_count, checksum, "
            f"reason, removed_at, state) VALUES ('r', '{DATASET}', '{item.partition}', 0, 8, {item.tally.rows}, "
            f"'{item.tally.checksum_text}', 'retention', '2026-01-01', 'done')"
        )
    shop.sql("UPDATE partitions SET row_count = 0, checksum = '0000000000000000'")
    shop.lake.delete(TABLE, SequenceRange(0, 8))
    shop.lake.expire(TABLE)
    assert check(shop, deep=True).findings == ()


def test_a_removal_on_record_that_a_partition_still_counts_is_found(shop: Shop):
    """U17"""
    shop.commit()
    shop.store.purge(DATASET, "n = 1")
    assert wrong(shop, deep=True) == []
    shop.sql("UPDATE partitions SET row_count = row_count + 1")
    assert wrong(shop) == ["partition-differs"] * 2


def test_rows_that_the_lake_lost_are_found_by_counting(shop: Shop):
    shop.commit()
    shop.lake.delete(TABLE, SequenceRange(2, 3))
    assert wrong(shop) == []
    assert wrong(shop, deep=True) == ["lake-differs"]


# ── the spool ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_segment_without_its_file_is_found(shop: Shop):
    capture(shop, 1)
    shop.store.seal(DATASET)
    segment_files(shop)[0].unlink()
    assert wrong(shop) == ["segment-missing"]
    assert not check(shop, repair=True).sound


def test_a_segment_whose_file_is_cut_off_or_another_is_found(shop: Shop):
    capture(shop, 1)
    shop.store.seal(DATASET)
    path = segment_files(shop)[0]
    pq.write_table(pa.concat_tables([pq.read_table(path)] * 2), path)
    assert wrong(shop) == ["segment-missing"]
    path.write_bytes(path.read_bytes()[:-20])
    assert wrong(shop) == ["segment-missing"]


def test_an_unfinished_segment_of_a_dead_writer_is_a_note_and_dropped(shop: Shop):
    with crash_at("segment.written"):
        capture(shop, 1, arrow=True)
    assert notes(shop) == []
    shop.sql(f"UPDATE segments SET owner = '{process_identity().rpartition('/')[0]}/0'")
    assert notes(shop) == ["writer-dead"]
    report = check(shop, repair=True)
    assert "dropped" in report.repaired[0]
    assert (report.findings, segment_files(shop)) == ((), [])


def test_a_landing_file_that_is_gone_is_found_and_its_row_closed(shop: Shop):
    capture(shop, 1)
    shop.store.seal(DATASET)
    for path in landing_files(shop.store.path / "spool" / DATASET / "landing"):
        path.unlink()
    assert wrong(shop) == ["landing-missing"]
    assert check(shop, repair=True).sound
    assert wrong(shop) == []


def test_a_landing_file_that_came_back_is_a_note(shop: Shop):
    capture(shop, 1)
    path = landing_files(shop.store.path / "spool" / DATASET / "landing")[0]
    content = path.read_bytes()
    shop.again().flush(DATASET)
    assert not path.exists()
    path.write_bytes(content)
    assert notes(shop) == ["landing-returned"]
    shop.store.flush(DATASET)
    assert committed(shop) == [1]


def test_rows_of_landing_files_that_went_long_ago_are_forgotten_but_never_the_last(shop: Shop):
    for n in range(3):
        capture(shop, n)
        shop.again().flush(DATASET)
        shop.clock.advance(86_400)
    assert check(shop, repair=True).repaired == ()
    shop.clock.advance(31 * 86_400)
    assert check(shop).repaired == ()
    assert "2 old records of removed landing files" in check(shop, repair=True).repaired[0]
    assert check(shop, repair=True).repaired == ()


# ── after the control database was restored ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("arrow", [False, True])
def test_a_segment_that_a_restored_control_database_does_not_know_is_adopted(shop: Shop, arrow: bool):
    """U32: its rows were acknowledged."""
    shop.commit(2)
    restore = back_up(shop)
    capture(shop, 10, 11, arrow=arrow)
    shop.again().seal(DATASET)
    restore()
    assert (wrong(shop), notes(shop)) == ([], ["segment-orphaned"])
    report = check(shop, repair=True)
    assert report.sound
    assert "2 rows wait" in report.repaired[0]
    shop.again().flush(DATASET)
    shop.again().flush(DATASET)
    assert committed(shop) == [1, 2, 10, 11]
    assert check(shop, deep=True).findings == ()


@pytest.mark.parametrize("attempt", range(4))  # the order of the files' names is chance
def test_segments_whose_lines_still_stand_in_the_landing_log_are_adopted_with_them_in_order(shop: Shop, attempt: int):
    """U32: adopted before those in front of it, one would be without its lines, and its rows be sealed again."""
    restore = back_up(shop)
    for n in (10, 11, 12, 13):
        capture(shop, n)
        shop.store.seal(DATASET)  # its writer lives: the landing file stays
    capture(shop, 14)
    restore()
    assert len(landing_files(shop.store.path / "spool" / DATASET / "landing")) == 1
    report = check(shop, repair=True)
    assert report.sound
    assert "\n".join(report.repaired).count("registered again") == 4
    shop.again().flush(DATASET)
    assert committed(shop) == [10, 11, 12, 13, 14]
    assert check(shop, deep=True).findings == ()


def test_a_segment_whose_lines_were_sealed_again_otherwise_is_not_adopted(shop: Shop, monkeypatch: pytest.MonkeyPatch):
    """U32: a flush of a version that took up nothing has stored its rows under another segment."""
    restore = back_up(shop)
    for n in (10, 11):
        capture(shop, n)
        shop.store.seal(DATASET)
    restore()
    with monkeypatch.context() as older:
        older.setattr(recovery, "register_files", lambda *_: [])
        shop.again().flush(DATASET)
    assert committed(shop) == [10, 11]
    report = check(shop, repair=True)
    assert not report.sound
    assert all("in the store already" in item.run for item in report.findings)
    shop.again().flush(DATASET)
    assert committed(shop) == [10, 11]


def test_a_segment_behind_one_that_is_torn_is_left_to_the_landing_log(shop: Shop):
    """U32: its lines still stand there, behind those of the torn one."""
    restore = back_up(shop)
    paths: list[Path] = []
    for n in (10, 11):
        capture(shop, n)
        shop.store.seal(DATASET)
        paths += [path for path in segment_files(shop) if path not in paths]
    paths[0].write_bytes(b"torn")
    restore()
    assert not check(shop, repair=True).sound
    shop.again().flush(DATASET)
    assert committed(shop) == [10, 11]
    assert not check(shop, repair=True).sound
    shop.again().flush(DATASET)
    assert committed(shop) == [10, 11]


def test_a_segment_file_whose_rows_are_committed_is_not_adopted(shop: Shop):
    shop.commit(2)
    restore = back_up(shop)
    capture(shop, 10)
    with crash_at("flush.recorded"):
        shop.store.flush(DATASET)
    restore()
    found = {item.kind: item.wrong for item in check(shop).findings}
    assert found == {
        "segment-leftover": False,
        "commits-forgotten": False,
        "allocator-behind": False,
        "landing-waits": False,
    }
    report = check(shop, repair=True)
    assert report.sound
    assert segment_files(shop) == []
    shop.again().flush(DATASET)
    assert committed(shop) == [1, 2, 10]


def test_commits_that_a_restored_control_database_forgot_are_recorded_again(shop: Shop):
    shop.add_files()
    shop.deliver(rounds=1)
    restore = back_up(shop)
    shop.deliver(rounds=1)
    capture(shop, 90, 91)
    shop.again().seal(DATASET)
    restore()
    assert wrong(shop) == []
    assert set(notes(shop)) >= {"commits-forgotten", "allocator-behind", "segment-orphaned"}
    report = check(shop, repair=True)
    assert report.sound, report.findings
    shop.again().flush(DATASET)
    shop.store.export(SINK)
    assert committed(shop) == [*range(1, 17), 90, 91]
    assert check(shop, deep=True).findings == ()
    assert shop.audit(deep=True).findings == ()


def test_a_torn_segment_file_is_not_adopted(shop: Shop):
    restore = back_up(shop)
    capture(shop, 10, arrow=True)
    path = segment_files(shop)[0]
    path.write_bytes(path.read_bytes()[:-30])
    restore()
    report = check(shop, repair=True)
    assert not report.sound
    assert "damaged" in report.findings[0].run
    assert path.exists()


def test_a_segment_file_with_an_altered_value_is_not_adopted(shop: Shop):
    restore = back_up(shop)
    capture(shop, 10, arrow=True)
    path = segment_files(shop)[0]
    rows = pq.read_table(path)
    pq.write_table(rows.set_column(0, "n", pa.array([99], pa.int64())), path)
    restore()
    assert not check(shop, repair=True).sound


def test_a_segment_with_columns_that_the_restored_schema_lacks_brings_them(shop: Shop):
    restore = back_up(shop)
    shop.store.capture(DATASET, pa.table({"n": [1], "source": ["a"], "weight": [2.5]}))
    restore()
    assert check(shop, repair=True).sound
    shop.again().flush(DATASET)
    assert [row["weight"] for batch in shop.store.read_since(DATASET) for row in batch.table.to_pylist()] == [2.5]


def test_a_segment_whose_rows_may_be_sent_again_is_left_to_a_person(shop: Shop):
    """Without an identity, adopting what a sender sends again would store it twice."""
    restore = back_up(shop)
    declared = shop.store.datasets()[0]
    rows = pa.table({"n": [10], "source": ["a"], "note": ["x"]})
    add_segment(shop.store.engine, declared, rows, also=lambda _: True)
    restore()
    shop.again().flush(DATASET)
    assert committed_or_none(shop) == []
    report = check(shop, repair=True)
    assert [item.kind for item in report.findings] == ["segment-orphaned"]
    assert "stored twice" in report.findings[0].run
    assert not report.sound


def test_a_segment_that_was_captured_is_adopted_although_others_are_sent_again(shop: Shop):
    """U32: its file says that nobody sends it again."""
    restore = back_up(shop)
    capture(shop, 10, arrow=True)
    restore()
    shop.again()
    shop.sql(
        "INSERT INTO ledger (origin, dataset, partition_key, through_seq, row_count, checksum, given_up, version) "
        f"VALUES ('o', '{DATASET}', 'all', 5, 5, '00', '[]', 1)"
    )
    shop.again().flush(DATASET)
    assert committed(shop) == [10]


def test_with_an_identity_it_is_adopted_all_the_same(tmp_path: Path):
    shop = Shop(tmp_path / "other", identity=["n"])
    restore = back_up(shop)
    capture(shop, 10, arrow=True)
    restore()
    shop.again()
    shop.sql(
        "INSERT INTO ledger (origin, dataset, partition_key, through_seq, row_count, checksum, given_up, version) "
        f"VALUES ('o', '{DATASET}', 'all', 5, 5, '00', '[]', 1)"
    )
    assert check(shop, repair=True).sound
    capture(shop, 10)
    shop.store.flush(DATASET)
    assert committed(shop) == [10]
    shop.store.close()


def test_a_repair_that_dies_anywhere_is_finished_by_the_next(tmp_path: Path):
    """U32: each repair is done or not begun."""
    for point in ("fsck.mending", "fsck.mended", "flush.synced", "flush.recorded"):
        for time in range(1, 6):
            shop = Shop(tmp_path / f"{point}-{time}")
            shop.commit(2)
            restore = back_up(shop)
            shop.commit(2)
            capture(shop, 10, 11)
            shop.again().seal(DATASET)
            capture(shop, 12, arrow=True)
            restore()
            died = False
            faults.arm(point, faults.nth_time(time, _die))
            try:
                check(shop, repair=True)
            except SimulatedCrash:
                died = True
            finally:
                faults.disarm_all()
            assert check(shop, repair=True).sound
            shop.again().flush(DATASET)
            assert committed(shop) == [1, 2, 3, 4, 10, 11, 12], (point, time, died)
            assert check(shop, deep=True).findings == ()
            numbers = [row[SEQ] for part in _parts(shop) for row in part.to_pylist()]
            assert len(set(numbers)) == len(numbers)
            shop.store.close()
            if not died:
                break


def _die() -> None:
    raise SimulatedCrash


def _parts(shop: Shop) -> list[pa.Table]:
    state = shop.lake.load(TABLE)
    return list(shop.lake.scan(TABLE, snapshot=state.head, within=SequenceRange(0, 2**62)))


def test_a_check_without_repair_changes_nothing(shop: Shop):
    shop.add_files()
    shop.deliver(rounds=1)
    restore = back_up(shop)
    shop.deliver(rounds=1)
    capture(shop, 90)
    shop.again().seal(DATASET)
    restore()
    first = check(shop, deep=True)
    files = sorted(path for path in shop.store.path.rglob("*") if "control" not in path.name)
    second = check(shop, deep=True)
    assert first.findings == second.findings
    assert sorted(path for path in shop.store.path.rglob("*") if "control" not in path.name) == files


POINTS = [point for point in faults.POINTS if point.startswith(("flush.", "segment.", "seal."))]


@pytest.mark.parametrize("point", POINTS)
def test_after_a_kill_at_any_point_of_a_flush_nothing_is_wrong(shop: Shop, point: str):
    """What the next flush resolves by itself is a note."""
    shop.commit(2)
    capture(shop, 10)
    shop.again()  # the landing file of the writer before can be removed
    capture(shop, 11, arrow=True)
    faults.arm(point, _die)
    with contextlib.suppress(SimulatedCrash):  # a point that this flush does not pass is no harm
        shop.store.flush(DATASET)
    faults.disarm_all()
    assert wrong(shop) == []
    shop.again().flush(DATASET)
    assert committed(shop) == [1, 2, 10, 11]
    assert [item for item in check(shop, deep=True).findings if item.wrong] == []
