"""Looking into a table: where a row stands, and whether its files are there. One suite for every lake."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from lakes import EVERY_TYPE, FULL, NOON, TIMED, Blocks, Driver, some

from floodmark.schema import CONTENT_ID, ListType, Schema, StructType
from floodmark.sequence import SequenceRange


def found(blocks: Blocks, **where):
    columns = where.pop("columns", ())
    rows_max = where.pop("rows_max", 100)
    head = blocks.state().head
    assert head is not None
    return blocks.lake.find_rows(blocks.table, snapshot=head, where=where, columns=columns, rows_max=rows_max)


def test_a_row_is_found_with_its_number_its_segment_and_its_file(blocks: Blocks):
    blocks.commit(some(3), some(2, start=3))
    blocks.commit(some(4, start=5))
    row = found(blocks, id=4, columns=("name",))
    assert [(item.seq, item.segment, dict(item.values)) for item in row] == [(5, 2, {"name": "name 4"})]
    other = found(blocks, id=6)
    assert [item.seq for item in other] == [7]
    assert row[0].file != other[0].file


def test_a_row_is_found_by_its_content_id(blocks: Blocks):
    blocks.commit(some(3))
    (row,) = found(blocks, id=1)
    assert found(blocks, **{CONTENT_ID: row.content_id}) == [row]


def test_all_values_must_be_there_and_null_is_one(blocks: Blocks):
    blocks.commit([{"id": 1, "name": "a"}, {"id": 1}, {"id": 2, "name": "a"}])
    assert [row.seq for row in found(blocks, id=1, name="a")] == [1]
    assert [row.seq for row in found(blocks, id=1, name=None)] == [2]
    assert found(blocks, id=3) == []


def test_any_of_several_values_will_do(blocks: Blocks):
    blocks.commit(some(5))
    wanted = frozenset(row.content_id for row in (*found(blocks, id=1), *found(blocks, id=3)))
    assert [row.seq for row in found(blocks, **{CONTENT_ID: wanted})] == [2, 4]
    assert found(blocks, **{CONTENT_ID: frozenset({"0" * 32})}) == []


def test_rows_come_in_order_and_no_more_than_asked_for(blocks: Blocks):
    blocks.commit([{"id": 7, "name": str(index)} for index in range(6)])
    blocks.driver.compact(blocks.table)
    assert [row.seq for row in found(blocks, id=7, rows_max=4)] == [1, 2, 3, 4]


def test_a_column_that_no_row_has_yet_holds_no_value(blocks: Blocks):
    blocks.commit(some(1))
    assert found(blocks, weight=1) == []


def test_a_time_is_found_whatever_zone_the_session_has(blocks: Blocks):
    blocks.schema = TIMED
    blocks.commit([{"id": 1, "at": NOON}, {"id": 2, "at": NOON + timedelta(microseconds=1)}])
    assert [row.seq for row in found(blocks, at=NOON)] == [1]


def test_a_row_is_found_by_a_value_of_every_simple_type(blocks: Blocks):
    blocks.schema = Schema.declare(EVERY_TYPE)
    blocks.commit([FULL, {}])
    for column in blocks.schema:
        if not isinstance(column.type, ListType | StructType):
            assert [row.seq for row in found(blocks, **{column.name: FULL[column.name]})] == [1], column.name


def test_deleted_rows_are_not_found(blocks: Blocks):
    blocks.commit(some(3))
    blocks.driver.delete(blocks.table, SequenceRange(1, 2))
    assert found(blocks, id=1) == []
    assert [row.seq for row in found(blocks, id=2)] == [3]


def test_the_files_of_a_sound_table_are_all_there_once(blocks: Blocks):
    blocks.commit(some(3))
    blocks.commit(some(3, start=3))
    blocks.driver.compact(blocks.table)
    blocks.commit(some(3, start=6))
    report = blocks.lake.inspect_files(blocks.state())
    assert (report.missing, report.twice) == ((), ())
    assert report.files >= 2


def test_a_table_without_commits_has_no_files(blocks: Blocks):
    blocks.lake.ensure(blocks.table, blocks.schema)
    assert blocks.lake.inspect_files(blocks.state()).files == 0


def test_a_file_that_is_gone_is_missing(blocks: Blocks, driver: Driver):
    blocks.commit(some(3))
    blocks.commit(some(3, start=3))
    assert driver.lose_data_files(blocks.table, SequenceRange(3, 6)) == 1
    report = blocks.lake.inspect_files(blocks.state())
    assert len(report.missing) == 1
    assert report.files == 2


@pytest.mark.spark
def test_a_file_that_is_cut_off_is_missing_and_a_manifest_too(spark_driver, tmp_path: Path):
    blocks = Blocks(spark_driver, tmp_path)
    blocks.commit(some(3))
    (data,) = (tmp_path / "lake").rglob("data/**/*.parquet")
    data.write_bytes(data.read_bytes()[:-10])
    assert len(blocks.lake.inspect_files(blocks.state()).missing) == 1
    manifest = next(path for path in (tmp_path / "lake").rglob("*-m0.avro"))
    manifest.unlink()
    assert any("m0.avro" in file for file in blocks.lake.inspect_files(blocks.state()).missing)


@pytest.mark.spark
def test_a_data_file_that_was_added_twice_is_found(spark_driver, tmp_path: Path):
    blocks = Blocks(spark_driver, tmp_path)
    blocks.commit(some(3))
    (data,) = (tmp_path / "lake").rglob("data/**/*.parquet")
    table = spark_driver.lake.catalog.table(blocks.table)
    table.add_files([f"file:{data}"], check_duplicate_files=False)
    report = blocks.lake.inspect_files(blocks.state())
    assert len(report.twice) == 1
    assert len(blocks.rows()) == 6
