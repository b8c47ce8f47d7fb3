"""What every lake promises about joining files, old snapshots and files that nothing refers to."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from lakes import EVERYTHING, SIMPLE, TABLE, Blocks, Driver, numbers, some

from floodmark.commit.protocol import Snapshot, Verdict
from floodmark.errors import FilesMissing, Retryable
from floodmark.lake import inventory, queries
from floodmark.layout import Layout
from floodmark.schema import SEQ, Schema
from floodmark.sequence import SequenceRange
from seeds import SEED

WIDTH = 100
FILE_BYTES = 64 << 20


@pytest.fixture
def narrow(driver: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Blocks:
    """Buckets of a hundred numbers."""
    monkeypatch.setattr("floodmark.layout.BUCKET_WIDTH_MIN", 1)
    driver.lake.ensure(TABLE, SIMPLE, layout=Layout(bucket_width=WIDTH))
    return Blocks(driver, tmp_path)


def files(blocks: Blocks) -> list[tuple[SequenceRange, int]]:
    return [(bucket.range, len(bucket.files)) for bucket in blocks.lake.files(blocks.state()).buckets]


def rewrite(blocks: Blocks, within: SequenceRange, *, file_bytes: int = FILE_BYTES) -> None:
    blocks.lake.rewrite(TABLE, within=within, file_bytes=file_bytes)


FIRST, SECOND = SequenceRange(0, 99), SequenceRange(99, 199)


def test_files_are_told_apart_by_bucket_and_joined_within_one(narrow: Blocks) -> None:
    """U1: every row keeps its number, and the commit is no append."""
    for start in (0, 40, 80, 120):
        narrow.commit(some(40, start=start))
    before = numbers(narrow.rows())
    assert files(narrow) == [(FIRST, 3), (SECOND, 2)]
    bucket = narrow.lake.files(narrow.state()).buckets[0]
    assert [(file.first, file.last, file.rows) for file in bucket.files] == [(1, 40, 40), (41, 80, 40), (81, 99, 19)]
    assert all(file.bytes > 0 for file in bucket.files)
    rewrite(narrow, FIRST)
    assert files(narrow) == [(FIRST, 1), (SECOND, 2)]
    assert narrow.state().lineage[0].operation == "replace"
    assert numbers(narrow.rows()) == before
    assert [row[SEQ] for row in narrow.rows(SequenceRange(38, 43))] == [39, 40, 41, 42, 43]


def test_the_segments_of_a_block_are_kept_apart_by_bucket_whatever_the_order_in_which_they_are_read(
    narrow: Blocks,
) -> None:
    """Spark reads larger files first: so numbers of two buckets come in turn, and the last segment comes first."""
    parts = [some(size, start=start) for start, size in ((0, 30), (30, 40), (70, 50), (120, 60))]
    narrow.commit(*parts)
    assert [bucket for bucket, _ in files(narrow)] == [FIRST, SECOND]
    assert numbers(narrow.rows()) == {id: id + 1 for id in range(180)}
    assert [row[SEQ] for row in narrow.rows(SequenceRange(95, 125))] == [*range(96, 126)]


def test_only_the_files_of_the_range_are_touched(narrow: Blocks) -> None:
    for start in range(0, 50, 10):
        narrow.commit(some(10, start=start))
    rewrite(narrow, SequenceRange(20, 50))
    (bucket,) = narrow.lake.files(narrow.state()).buckets
    assert [(file.first, file.last) for file in bucket.files] == [(1, 10), (11, 20), (21, 50)]


def test_joined_files_stand_in_order_and_keep_to_their_size(driver: Driver, tmp_path: Path) -> None:
    schema = Schema.declare({"id": "long", "name": "string"})
    blocks = Blocks(driver, tmp_path, schema=schema)
    chance = random.Random(SEED)
    for start in range(0, 4000, 1000):
        blocks.commit([{"id": id, "name": chance.randbytes(40).hex()} for id in range(start, start + 1000)])
    (before,) = blocks.lake.files(blocks.state()).buckets
    rewrite(blocks, before.range, file_bytes=before.bytes // 3)
    (bucket,) = blocks.lake.files(blocks.state()).buckets
    assert 2 <= len(bucket.files) <= 6
    assert [file.first for file in bucket.files] == [1, *(file.last + 1 for file in bucket.files[:-1])]
    assert bucket.files[-1].last == 4000


def test_an_append_prepared_before_a_rewrite_lands_after_it(narrow: Blocks) -> None:
    """U1: nobody takes it for somebody's rows."""
    narrow.commit(some(5))
    narrow.commit(some(5, start=5))
    request = narrow.request(narrow.segment(some(5, start=10)))
    rewrite(narrow, FIRST)
    narrow.lake.rewrite(TABLE)
    assert narrow.verdict(request) is Verdict.OPEN
    assert narrow.lake.append(request) is True
    assert narrow.verdict(request) is Verdict.LANDED
    assert sorted(numbers(narrow.rows())) == list(range(15))


def test_an_append_whose_base_has_expired_behind_a_rewrite_is_still_compared_with_its_rows(
    driver: Driver, tmp_path: Path
) -> None:
    """Else a flush that began right before an expiry could never be sent again, and its block never decided."""
    blocks = Blocks(driver, tmp_path, identity=(("id",),))
    blocks.commit(some(5))
    blocks.commit(some(5, start=5))
    request = blocks.request(blocks.segment(some(8, start=5)))
    rewrite(blocks, SequenceRange(0, 10))
    assert blocks.lake.expire(TABLE) == 2
    assert blocks.verdict(request) is Verdict.OPEN
    assert blocks.lake.append(request) is True
    assert sorted(numbers(blocks.rows())) == list(range(13))


def test_deleted_rows_go_from_the_files_and_are_not_deleted_twice(narrow: Blocks) -> None:
    narrow.commit(some(20))
    narrow.commit(some(20, start=20))
    narrow.driver.delete(TABLE, SequenceRange(5, 15))
    rewrite(narrow, FIRST)
    (bucket,) = narrow.lake.files(narrow.state()).buckets
    assert (bucket.delete_files, sum(file.rows for file in bucket.files)) == (0, 30)
    assert [row[SEQ] for row in narrow.rows()] == [*range(1, 6), *range(16, 41)]


def test_columns_of_different_ages_are_joined(driver: Driver, tmp_path: Path) -> None:
    blocks = Blocks(driver, tmp_path, schema=SIMPLE)
    blocks.commit(some(3))
    blocks.schema = SIMPLE.merge(Schema.declare({"later": "string"}).columns)
    blocks.commit([{"id": 10, "name": "x", "later": "y"}])
    rewrite(blocks, SequenceRange(0, 4))
    assert [row["later"] for row in blocks.rows()] == [None, None, None, "y"]


def test_lists_of_files_are_joined(narrow: Blocks) -> None:
    for start in range(0, 12, 3):
        narrow.commit(some(3, start=start))
    assert narrow.lake.files(narrow.state()).manifests == 4
    before = numbers(narrow.rows())
    narrow.lake.rewrite(TABLE)
    assert narrow.lake.files(narrow.state()).manifests == 1
    assert narrow.state().lineage[0].operation == "replace"
    assert numbers(narrow.rows()) == before
    narrow.lake.sync(narrow.state(), since=None)


def test_a_reader_of_a_snapshot_that_expired_is_told_to_try_again(narrow: Blocks) -> None:
    narrow.commit(some(20))
    narrow.commit(some(20, start=20))
    old = narrow.state()
    rewrite(narrow, FIRST)
    narrow.lake.sync(narrow.state(), since=None)
    assert narrow.lake.expire(TABLE) == 2
    lake = narrow.lake
    reads = {
        "scan": lambda: list(lake.scan(TABLE, snapshot=old.head, within=EVERYTHING)),
        "has_rows": lambda: queries.has_rows(lake, TABLE, snapshot=old.head, within=EVERYTHING),
        "stats": lambda: queries.stats(lake, TABLE, snapshot=old.head, within=EVERYTHING, partition_by=()),
        "segments_above": lambda: queries.segments_above(lake, TABLE, snapshot=old.head, after=0),
        "find_rows": lambda: queries.find_rows(lake, TABLE, snapshot=old.head, values={"id": 1}),
        "each_range": lambda: list(
            lake.each_range(
                TABLE, snapshot=old.head, ranges=[EVERYTHING], columns=("id",), schema=SIMPLE, work=lambda *_: {}
            )
        ),
        "sync": lambda: lake.sync(old, since=None),
        "files": lambda: lake.files(old),
    }
    told = set()
    for name, read in reads.items():
        try:
            read()
        except Retryable:
            told.add(name)
    assert told == set(reads)
    assert len(narrow.rows()) == 40


def test_numbers_that_only_an_expired_commit_knew_are_remembered(narrow: Blocks) -> None:
    """I1, U3."""
    narrow.commit(some(20))
    narrow.commit(some(20, start=20))
    narrow.driver.delete(TABLE, SequenceRange(20, 40))
    rewrite(narrow, FIRST)
    narrow.lake.expire(TABLE)
    assert inventory.highest_seq(narrow.lake, narrow.state()) == 40


def test_how_old_a_commit_is_is_known(narrow: Blocks) -> None:
    narrow.commit(some(2))
    at = narrow.state().lineage[0].at
    assert at is not None
    assert abs(datetime.now(UTC) - at) < timedelta(minutes=1)


# ── taking back ──────────────────────────────────────────────────────────────────────────────────────────────────────


def never(_: Snapshot) -> bool:
    return False


def always(_: Snapshot) -> bool:
    return True


def rewrites(snapshot: Snapshot) -> bool:
    return snapshot.operation == "replace"


def test_rewrites_whose_files_are_lost_are_taken_back_all_at_once(narrow: Blocks) -> None:
    """U4: to the newest state of which every file is there."""
    narrow.commit(some(5))
    narrow.commit(some(5, start=5))
    durable = narrow.state().head
    rewrite(narrow, FIRST)
    narrow.driver.lose_data_files(TABLE, FIRST)
    narrow.lake.rewrite(TABLE)
    assert len(narrow.state().lineage) == 4
    assert not narrow.lake.rollback(TABLE, durable=durable, droppable=never)
    assert len(narrow.state().lineage) == 4
    assert narrow.lake.rollback(TABLE, durable=durable, droppable=rewrites)
    assert narrow.state().head == durable
    assert sorted(numbers(narrow.rows())) == list(range(10))
    narrow.commit(some(5, start=10))
    assert sorted(numbers(narrow.rows())) == list(range(15))


def test_a_table_of_which_everything_is_there_stays_as_it_is(narrow: Blocks) -> None:
    """U4: another process may have mended it since."""
    narrow.commit(some(5))
    durable = narrow.state().head
    rewrite(narrow, FIRST)
    before = narrow.state()
    assert narrow.lake.rollback(TABLE, durable=durable, droppable=always)
    assert narrow.state() == before


def test_what_is_known_to_be_on_the_disk_is_never_gone_back_over(narrow: Blocks) -> None:
    """U4."""
    narrow.commit(some(5))
    narrow.commit(some(5, start=5))
    before = narrow.state()
    narrow.driver.lose_data_files(TABLE, SequenceRange(5, 10))
    narrow.lake.rollback(TABLE, durable=before.head, droppable=always)
    assert narrow.state() == before
    assert not narrow.lake.rollback(TABLE, durable=before.lineage[1].id, droppable=rewrites)
    assert narrow.state() == before
    assert narrow.lake.rollback(TABLE, durable=before.lineage[1].id, droppable=always)
    assert narrow.state().head == before.lineage[1].id


# ── orphans ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_nothing_that_a_snapshot_refers_to_is_an_orphan(narrow: Blocks) -> None:
    """U5."""
    narrow.commit(some(20))
    narrow.commit(some(20, start=20))
    narrow.driver.delete(TABLE, SequenceRange(5, 15))
    rewrite(narrow, FIRST)
    assert narrow.lake.orphans(TABLE, before=datetime.now(UTC) + timedelta(days=1)) == []
    assert narrow.lake.orphans("nothing_g1", before=datetime.now(UTC)) == []


def test_files_of_a_commit_that_was_taken_back_are_orphans_once_they_are_old(narrow: Blocks) -> None:
    """U5."""
    for start in (0, 60, 120):
        narrow.commit(some(60, start=start))
    durable = narrow.state().head
    rewrite(narrow, FIRST)
    rewrite(narrow, SECOND)
    narrow.driver.lose_data_files(TABLE, FIRST)
    assert narrow.lake.rollback(TABLE, durable=durable, droppable=rewrites)
    assert narrow.lake.orphans(TABLE, before=datetime.now(UTC) - timedelta(minutes=5)) == []
    found = narrow.lake.orphans(TABLE, before=datetime.now(UTC) + timedelta(days=1))
    assert found
    assert all(item.bytes > 0 for item in found)
    assert narrow.lake.orphans(TABLE, before=datetime.now(UTC) + timedelta(days=1), remove=True) == found
    assert narrow.lake.orphans(TABLE, before=datetime.now(UTC) + timedelta(days=1)) == []
    assert len(narrow.rows()) == 180
    narrow.lake.sync(narrow.state(), since=None)


def test_files_that_are_missing_from_the_head_are_told_and_not_taken_for_an_expiry(narrow: Blocks) -> None:
    narrow.commit(some(20))
    narrow.driver.lose_data_files(TABLE, EVERYTHING)
    with pytest.raises(FilesMissing):
        narrow.lake.sync(narrow.state(), since=None)
