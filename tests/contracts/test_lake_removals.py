"""What every lake promises about rows that go: counted as they are deleted, gone for good, flush unharmed."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from lakes import EVERYTHING, NOON, TABLE, Blocks, Driver, SparkDriver

from floodmark.commit.protocol import Verdict
from floodmark.errors import InvalidSetting, Retryable
from floodmark.lake import inventory, queries
from floodmark.removal import Selection, Spared
from floodmark.rows.content import tally_of_ids
from floodmark.schema import CONTENT_ID, SEQ, Schema
from floodmark.sequence import SequenceRange, Tally

SLICED = Schema.declare({"id": "long", "name": "string", "site": "string", "at": "timestamp"})
BY = ("site",)


def micros(moment) -> int:
    return int(moment.timestamp()) * 1_000_000


def rows(count: int, *, start: int = 0) -> list[dict[str, Any]]:
    sites = ("a", "b", None)
    return [
        {"id": id, "name": f"name {id}", "site": sites[id % 3], "at": NOON + timedelta(hours=id)}
        for id in range(start, start + count)
    ]


@pytest.fixture
def sliced(driver: Driver, tmp_path: Path) -> Blocks:
    blocks = Blocks(driver, tmp_path, schema=SLICED, event_time="at")
    blocks.commit(rows(9))
    blocks.commit(rows(9, start=9))
    return blocks


def ids(blocks: Blocks) -> list[int]:
    return [row["id"] for row in blocks.rows()]


def selected(blocks: Blocks, selection: Selection, cuts: tuple[int, ...] = ()) -> dict[tuple[SequenceRange, str], int]:
    found = queries.selected_stats(
        blocks.lake, TABLE, snapshot=blocks.state().head, selection=selection, schema=SLICED, partition_by=BY, cuts=cuts
    )
    assert all(item.tally.rows for _, item in found)
    return {(between, item.partition): item.tally.rows for between, item in found}


def remove(blocks: Blocks, selection: Selection) -> None:
    blocks.lake.ensure(TABLE, create=False, max_seq=selection.through)
    blocks.lake.remove(TABLE, selection=selection, schema=SLICED, partition_by=BY)


def test_what_is_counted_as_selected_is_what_goes(sliced: Blocks) -> None:
    selection = Selection(
        15,
        event_time="at",
        before=micros(NOON + timedelta(hours=10)),
        where="name <> 'name 4'",
        spared=(Spared("site=a", (SequenceRange(3, 12),)), Spared("site!", (SequenceRange(5, 6), SequenceRange(8, 9)))),
    )
    before = {row["id"]: row for row in sliced.rows()}
    found = queries.selected_stats(
        sliced.lake, TABLE, snapshot=sliced.state().head, selection=selection, schema=SLICED, partition_by=BY
    )
    remove(sliced, selection)
    gone = [row for id, row in before.items() if id not in ids(sliced)]
    assert sorted(row["id"] for row in gone) == [0, 1, 2, 7]
    by_site: dict[str, list[str]] = {}
    for row in gone:
        by_site.setdefault("site!" if row["site"] is None else f"site={row['site']}", []).append(row[CONTENT_ID])
    assert {item.partition: item.tally for _, item in found} == {
        key: tally_of_ids(pa.chunked_array([pa.array(held)])) for key, held in by_site.items()
    }
    assert selected(sliced, selection) == {}


def test_rows_go_by_their_numbers(sliced: Blocks) -> None:
    selection = Selection(12, numbers=(2, 5, 15))
    assert Selection.from_json(selection.to_json()) == selection
    assert sum(selected(sliced, selection).values()) == 2, "none above the bound"
    remove(sliced, selection)
    assert ids(sliced) == [id for id in range(18) if id not in {1, 4}]
    assert selected(sliced, selection) == {}


def test_rows_are_counted_apart_between_cuts(sliced: Blocks) -> None:
    found = selected(sliced, Selection(14), cuts=(4, 9))
    assert found == {
        (SequenceRange(0, 4), "site=a"): 2,
        (SequenceRange(0, 4), "site=b"): 1,
        (SequenceRange(0, 4), "site!"): 1,
        (SequenceRange(4, 9), "site=a"): 1,
        (SequenceRange(4, 9), "site=b"): 2,
        (SequenceRange(4, 9), "site!"): 2,
        (SequenceRange(9, 14), "site=a"): 2,
        (SequenceRange(9, 14), "site=b"): 2,
        (SequenceRange(9, 14), "site!"): 1,
    }


def test_first_and_last_of_the_selected_rows_are_known(sliced: Blocks) -> None:
    found = queries.selected_stats(
        sliced.lake,
        TABLE,
        snapshot=sliced.state().head,
        selection=Selection(12, where="id > 3"),
        schema=SLICED,
        partition_by=(),
    )
    assert [(item.partition, item.first_seq, item.last_seq, item.tally.rows) for _, item in found] == [
        ("all", 5, 12, 8)
    ]


def test_removing_twice_removes_nothing_more_and_adds_nothing(sliced: Blocks) -> None:
    remove(sliced, Selection(5))
    once = ids(sliced)
    remove(sliced, Selection(5))
    assert ids(sliced) == once == list(range(5, 18))


def test_rows_without_an_event_time_are_never_too_old(driver: Driver, tmp_path: Path) -> None:
    blocks = Blocks(driver, tmp_path, schema=SLICED, event_time="at")
    blocks.commit([{**row, "at": None} if row["id"] % 2 else row for row in rows(6)])
    remove(blocks, Selection(6, event_time="at", before=micros(NOON + timedelta(days=9))))
    assert ids(blocks) == [1, 3, 5]


def test_dates_are_compared_as_days(driver: Driver, tmp_path: Path) -> None:
    schema = Schema.declare({"id": "long", "site": "string", "at": "date"})
    blocks = Blocks(driver, tmp_path, schema=schema, event_time="at")
    blocks.commit([{"id": back, "site": "a", "at": (NOON - timedelta(days=back)).date()} for back in range(4)])
    cutoff = micros(NOON.replace(hour=0) - timedelta(days=1))
    selection = Selection(4, event_time="at", before=cutoff)
    blocks.lake.ensure(TABLE, create=False, max_seq=4)
    blocks.lake.remove(TABLE, selection=selection, schema=schema, partition_by=BY)
    assert ids(blocks) == [0, 1]


def test_strange_values_of_partitions_are_spared_as_they_are(driver: Driver, tmp_path: Path) -> None:
    blocks = Blocks(driver, tmp_path, schema=SLICED)
    odd = ["it's", 'a "b" \\ c', ":v0", "{x}", ""]
    blocks.commit([{"id": id, "site": site} for id, site in enumerate(odd)])
    keys = ["site=it%27s", "site=a%20%22b%22%20%5C%20c", "site=%3Av0", "site=%7Bx%7D", "site="]
    remove(blocks, Selection(5, spared=tuple(Spared(key, (SequenceRange(0, 9),)) for key in keys[:4])))
    assert ids(blocks) == [0, 1, 2, 3]


def test_the_table_remembers_the_highest_number_whatever_goes(sliced: Blocks) -> None:
    remove(sliced, Selection(18))
    sliced.lake.ensure(TABLE, create=False, max_seq=7)
    sliced.driver.expire(TABLE)
    assert ids(sliced) == []
    assert sliced.state().max_seq == 18
    assert inventory.highest_seq(sliced.lake, sliced.state()) >= 18


def test_a_table_that_is_not_there_cannot_remember_a_number(sliced: Blocks) -> None:
    with pytest.raises(Retryable):
        sliced.lake.ensure("nothing_g1", create=False, max_seq=7)
    assert sliced.lake.load("nothing_g1") is None


def test_an_append_prepared_before_rows_went_lands_or_is_refused_and_never_both(sliced: Blocks) -> None:
    """I4: the table decides, whichever it is."""
    request = sliced.request(sliced.segment(rows(3, start=30)))
    remove(sliced, Selection(5))
    try:
        landed = sliced.lake.append(request)
    except Exception:
        landed = False
    assert sliced.verdict(request) is (Verdict.LANDED if landed else Verdict.VOID)
    assert ids(sliced) == [*range(5, 18), *([30, 31, 32] if landed else [])]


def test_whole_files_that_go_do_not_stand_in_an_appends_way(sliced: Blocks) -> None:
    request = sliced.request(sliced.segment(rows(3, start=30)))
    remove(sliced, Selection(9))
    assert sliced.lake.append(request) is True
    assert ids(sliced) == [*range(9, 18), 30, 31, 32]


def test_expiry_frees_room_and_keeps_what_came_after_a_base(sliced: Blocks) -> None:
    base = sliced.state().head
    remove(sliced, Selection(5))
    sliced.driver.compact(TABLE)
    before = inventory.stored_bytes(sliced.lake, TABLE)
    sliced.lake.expire(TABLE, keep_snapshots=2)
    state = sliced.state()
    assert state.since(base) is not None
    assert len(state.lineage) == 2
    sliced.lake.expire(TABLE, keep_snapshots=1)
    assert len(sliced.state().lineage) == 1
    assert 0 < inventory.stored_bytes(sliced.lake, TABLE) < before
    assert ids(sliced) == list(range(5, 18))
    assert inventory.stored_bytes(sliced.lake, "nothing_g1") == 0


@pytest.mark.spark
def test_no_data_file_holds_what_was_removed(spark_driver: SparkDriver, tmp_path: Path) -> None:
    """The bytes are looked for in every file of the table, undone from their compression."""
    import pyarrow.parquet as pq

    blocks = Blocks(spark_driver, tmp_path, schema=SLICED)
    blocks.commit([*rows(20), {"id": 99, "name": "somebody to forget", "site": "a"}])
    blocks.commit(rows(20, start=20))
    remove(blocks, Selection(99, where="name = 'somebody to forget'"))
    blocks.lake.sync(blocks.state(), since=None)
    blocks.lake.expire(TABLE)
    files = sorted((tmp_path / "lake").rglob("*.parquet"))
    assert files
    assert not [path for path in files if b"somebody to forget" in path.read_bytes()]
    assert not [path for path in files if "somebody to forget" in str(pq.read_table(path).to_pylist())]
    assert ids(blocks) == list(range(40))


def test_rows_of_before_the_cut_off_and_purged_rows_are_not_appended(driver: Driver, tmp_path: Path) -> None:
    blocks = Blocks(driver, tmp_path, schema=SLICED, event_time="at", identity=(("id",),))
    blocks.commit(rows(2, start=6))
    cutoff = micros(NOON + timedelta(hours=3))
    request = blocks.request(blocks.segment([*rows(8), {"id": 50, "name": "timeless", "site": "a", "at": None}]))
    purged = (request.range.after + 5,)  # the row with id 4
    assert blocks.lake.append(replace(request, event_cutoff=cutoff, purged=purged)) is True
    assert ids(blocks) == [6, 7, 3, 5, 50]


@pytest.mark.parametrize("what", ["old", "purged", "old and duplicate"])
def test_an_append_of_which_nothing_is_left_is_not_sent(driver: Driver, tmp_path: Path, what: str) -> None:
    blocks = Blocks(driver, tmp_path, schema=SLICED, event_time="at", identity=(("id",),))
    blocks.commit(rows(2, start=6))
    head = blocks.state().head
    came = rows(3) + (rows(2, start=6) if what == "old and duplicate" else [])
    request = blocks.request(blocks.segment(came))
    if what == "purged":
        request = replace(request, purged=tuple(range(request.range.after + 1, request.range.through + 1)))
    else:
        request = replace(request, event_cutoff=micros(NOON + timedelta(hours=5)))
    assert blocks.lake.append(request) is False
    assert blocks.state().head == head


def test_a_condition_finds_its_rows_anywhere(driver: Driver) -> None:
    table = pa.Table.from_pylist([{"id": 1, "name": "x"}, {"id": 2, "name": None}, {"id": 3, "name": "y"}])
    lake = driver.lake
    assert lake.matching(table, "name = 'y' OR id = 1", schema=SLICED) == [0, 2]
    assert lake.matching(table, "name IS NULL", schema=SLICED) == [1]
    assert lake.matching(table, "site IS NULL", schema=SLICED) == [0, 1, 2]
    assert lake.matching(table.slice(0, 0), "id = 1", schema=SLICED) == []
    with pytest.raises(InvalidSetting):
        lake.matching(table, "nothing = 1", schema=SLICED)


def test_a_column_of_after_the_rows_is_null_to_a_condition(sliced: Blocks) -> None:
    wider = SLICED.merge(Schema.declare({"later": "string"}).columns)
    sliced.lake.ensure(TABLE, wider)
    found = queries.selected_stats(
        sliced.lake,
        TABLE,
        snapshot=sliced.state().head,
        selection=Selection(18, where="later IS NULL AND id < 3"),
        schema=wider,
        partition_by=(),
    )
    assert sum((item.tally for _, item in found), Tally()).rows == 3
    assert [row[SEQ] for row in sliced.rows(EVERYTHING)] == list(range(1, 19))
