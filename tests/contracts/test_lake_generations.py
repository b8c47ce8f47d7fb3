"""What every lake promises about tables that take each other's place: copies, names, layouts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from lakes import EVERYTHING, SIMPLE, TABLE, Blocks, Driver, SparkDriver, some

from floodmark.commit.protocol import Base, Verdict
from floodmark.errors import Retryable
from floodmark.lake import inventory, queries
from floodmark.lake.table import Copy
from floodmark.layout import Layout
from floodmark.removal import Selection
from floodmark.schema import CONTENT_ID, SEGMENT, SEQ, Schema
from floodmark.sequence import SequenceRange

NEXT = "events_g2"


def copy_of(blocks: Blocks, within: SequenceRange = EVERYTHING, **other: Any) -> Copy:
    target = blocks.lake.load(NEXT)
    assert target is not None
    head = blocks.state().head
    assert head is not None
    made = Copy(
        source=TABLE,
        snapshot=head,
        table=NEXT,
        base=Base(target.uuid, 2, target.head),
        within=within,
        through=min(within.through, blocks.through),
        schema=blocks.schema,
    )
    return replace(made, **other)


def rows_in(blocks: Blocks, table: str) -> list[dict[str, Any]]:
    state = blocks.lake.load(table)
    assert state is not None
    if state.head is None:
        return []
    return [row for part in blocks.lake.scan(table, snapshot=state.head, within=EVERYTHING) for row in part.to_pylist()]


def tallies(blocks: Blocks, table: str, within: SequenceRange = EVERYTHING, width: int = 4) -> dict[int, Any]:
    state = blocks.lake.load(table)
    assert state is not None
    if state.head is None:
        return {}
    return queries.tallies(blocks.lake, table, snapshot=state.head, within=within, width=width, schema=blocks.schema)


@pytest.fixture
def two(blocks: Blocks) -> Blocks:
    """A table with nine rows in two blocks, and an empty one beside it."""
    blocks.commit(some(5))
    blocks.commit(some(4, start=5))
    blocks.lake.ensure(NEXT, SIMPLE, layout=Layout(bucket_width=2048))
    return blocks


def test_a_copy_has_every_row_with_its_number_content_id_and_segment(two: Blocks) -> None:
    two.lake.append(copy_of(two, SequenceRange(0, 3)))
    two.lake.append(copy_of(two, SequenceRange(3, 9)))
    assert rows_in(two, NEXT) == rows_in(two, TABLE)
    assert {CONTENT_ID, SEGMENT, SEQ} <= rows_in(two, NEXT)[0].keys()
    state = two.lake.load(NEXT)
    assert state is not None
    assert [item.operation for item in state.lineage] == ["append", "append"]
    assert [item.block for item in state.lineage] == [None, None], "no block is recognised by a copy of its rows"
    assert inventory.highest_seq(two.lake, state) == 9
    assert queries.segments_above(two.lake, NEXT, snapshot=state.head, after=0) == {1, 2}


def test_a_copy_lands_at_most_once_and_only_on_its_base(two: Blocks) -> None:
    """U21"""
    request = copy_of(two, SequenceRange(0, 5))
    two.lake.append(request)
    with pytest.raises(Exception, match=r".+"):
        two.lake.append(request)
    assert len(rows_in(two, NEXT)) == 5


def test_a_copy_does_not_land_in_a_table_that_has_another_name_by_now(two: Blocks) -> None:
    """U20, U21: nor in another one that has the name it was sent to."""
    request = copy_of(two, SequenceRange(0, 5))
    assert two.lake.rename(NEXT, "events_g3")
    with pytest.raises(Exception, match=r".+"):
        two.lake.append(request)
    two.lake.ensure(NEXT, SIMPLE)
    with pytest.raises(Exception, match=r".+"):
        two.lake.append(request)
    assert (rows_in(two, NEXT), rows_in(two, "events_g3")) == ([], [])


def test_an_append_does_not_land_in_a_table_that_was_renamed(two: Blocks) -> None:
    """U22: requests name their table, and it is not made anew for them."""
    request = two.request(two.segment(some(2, start=20)))
    assert two.lake.rename(TABLE, f"{TABLE}_fenced")
    two.lake.ensure(TABLE, SIMPLE, create=False)
    assert two.lake.load(TABLE) is None
    with pytest.raises(Exception, match=r".+"):
        two.lake.append(request)
    assert len(rows_in(two, f"{TABLE}_fenced")) == 9
    assert two.verdict(request) is Verdict.VOID


def test_a_renamed_table_keeps_its_identity_history_and_rows(two: Blocks) -> None:
    before = two.state()
    assert two.lake.rename(TABLE, f"{TABLE}_fenced")
    after = two.lake.load(f"{TABLE}_fenced")
    assert after is not None
    assert (after.uuid, after.lineage) == (before.uuid, before.lineage)
    assert two.lake.load(TABLE) is None
    two.lake.sync(after, since=None)
    assert queries.has_rows(two.lake, after.name, snapshot=after.head, within=SequenceRange(8, 9))


def test_a_table_that_is_not_there_is_not_renamed_and_a_name_is_not_given_twice(two: Blocks) -> None:
    assert two.lake.rename("events_g7", "events_g8") is False
    with pytest.raises(Retryable):
        two.lake.rename(TABLE, NEXT)
    assert len(rows_in(two, TABLE)) == 9


def test_who_holds_a_table_that_was_renamed_is_told_to_do_it_again(two: Blocks) -> None:
    state = two.state()
    two.lake.rename(TABLE, f"{TABLE}_fenced")
    with pytest.raises(Retryable):
        list(two.lake.scan(TABLE, snapshot=state.head, within=EVERYTHING))
    with pytest.raises(Retryable):
        queries.has_rows(two.lake, TABLE, snapshot=state.head, within=EVERYTHING)
    with pytest.raises(Retryable):
        queries.stats(two.lake, TABLE, snapshot=state.head, within=EVERYTHING, partition_by=())
    with pytest.raises(Retryable):
        two.lake.sync(state, since=None)


def test_tallies_tell_buckets_apart_and_find_what_differs(two: Blocks) -> None:
    """U23"""
    two.lake.append(copy_of(two, SequenceRange(0, 9)))
    assert tallies(two, NEXT) == tallies(two, TABLE)
    assert {key: item.rows for key, item in tallies(two, TABLE).items()} == {0: 3, 1: 4, 2: 2}
    assert {key: item.rows for key, item in tallies(two, TABLE, SequenceRange(2, 5)).items()} == {0: 1, 1: 2}
    wider = Schema.declare({"id": "long", "name": "string", "note": "string"})
    assert tallies(two, TABLE) == queries.tallies(
        two.lake, TABLE, snapshot=two.state().head, within=EVERYTHING, width=4, schema=wider
    ), "a column that is null everywhere makes no difference"
    two.lake.remove(NEXT, selection=Selection(5, after=4), schema=SIMPLE, partition_by=())
    assert [row["id"] for row in rows_in(two, NEXT)] == [0, 1, 2, 3, 5, 6, 7, 8]
    different = {key for key, item in tallies(two, TABLE).items() if tallies(two, NEXT).get(key) != item}
    assert different == {1}
    two.lake.append(copy_of(two, SequenceRange(4, 5), through=9))
    assert tallies(two, NEXT) == tallies(two, TABLE)
    state = two.lake.load(NEXT)
    assert state is not None
    assert inventory.highest_seq(two.lake, state) == 9


def test_a_copy_fills_columns_that_the_old_table_does_not_have_yet(two: Blocks) -> None:
    wider = Schema.declare({"id": "long", "name": "string", "note": "string"})
    two.lake.ensure(NEXT, wider)
    two.lake.append(copy_of(two, schema=wider))
    assert [(row["id"], row.get("note")) for row in rows_in(two, NEXT)] == [(id, None) for id in range(9)]


def test_a_dropped_table_is_gone_with_its_files(two: Blocks) -> None:
    two.lake.append(copy_of(two))
    two.lake.drop(TABLE)
    two.lake.drop(TABLE)
    assert two.lake.load(TABLE) is None
    assert inventory.stored_bytes(two.lake, TABLE) == 0
    assert len(rows_in(two, NEXT)) == 9


def test_rows_are_appended_and_read_in_a_table_of_any_layout(driver: Driver, tmp_path: Path) -> None:
    layout = Layout(bucket_width=1024, format_version=3, warehouse=f"file://{tmp_path}/else where", sort=("name",))
    blocks = Blocks(driver, tmp_path)
    blocks.lake.ensure(TABLE, SIMPLE, layout=layout)
    blocks.commit([{"id": id, "name": f"{9 - id}"} for id in range(9)])
    blocks.commit(some(2, start=9))
    assert [row["id"] for row in blocks.rows()] == list(range(11))
    assert [row["id"] for row in blocks.rows(SequenceRange(3, 6))] == [3, 4, 5]
    assert "else" in blocks.state().location


@pytest.mark.spark
def test_a_layout_is_what_iceberg_has(spark_driver: SparkDriver, tmp_path: Path) -> None:
    home = tmp_path / "it's else where"
    layout = Layout(bucket_width=4096, format_version=3, warehouse=f"file://{home}", sort=("id",))
    blocks = Blocks(spark_driver, tmp_path)
    blocks.lake.ensure(TABLE, SIMPLE, layout=layout)
    blocks.commit(some(3))
    blocks.lake.sync(blocks.state(), since=None)
    metadata = spark_driver.lake.catalog.table(TABLE).metadata
    assert metadata.format_version == 3
    assert str(metadata.partition_specs[-1].fields[0].transform) == "truncate[4096]"
    assert [field.source_id for field in metadata.sort_orders[-1].fields] == [1, 3]
    assert list((home / "datasets" / TABLE / "data").rglob("*.parquet"))
    blocks.lake.drop(TABLE)
    assert not (home / "datasets" / TABLE).exists()
