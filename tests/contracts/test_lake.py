"""What every lake promises, told once and asked of each: the lake in memory and the lake on Spark and Iceberg."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lakes import (
    EDGES,
    EVERY_TYPE,
    EVERYTHING,
    FULL,
    NOON,
    SIMPLE,
    TABLE,
    TIMED,
    Blocks,
    Driver,
    SparkDriver,
    however_rows_are_compared,
    numbers,
    some,
)

from floodmark.commit import protocol
from floodmark.commit.protocol import Append, Verdict
from floodmark.errors import Corrupt, Retryable
from floodmark.lake import inventory, queries
from floodmark.rows.content import content_ids, partition_stats
from floodmark.schema import CONTENT_ID, SEGMENT, SEQ, Schema
from floodmark.sequence import SequenceRange

# ── the shape of tables ──────────────────────────────────────────────────────────────────────────────────────────────


def test_a_table_that_is_not_there_loads_as_none(driver: Driver) -> None:
    assert driver.lake.load("nothing_g1") is None


def test_ensure_makes_an_empty_table_with_the_columns_and_no_snapshot(blocks: Blocks) -> None:
    blocks.lake.ensure(TABLE, SIMPLE)
    state = blocks.state()
    assert state.head is None
    assert state.lineage == ()
    assert [(name, str(kind)) for name, kind in state.columns] == [("id", "long"), ("name", "string")]
    assert inventory.highest_seq(blocks.lake, state) == 0


def test_ensure_adds_and_widens_columns_without_a_snapshot_and_is_idempotent(blocks: Blocks) -> None:
    blocks.schema = Schema.declare({"id": "int", "ratio": "float"})
    blocks.commit([{"id": 1, "ratio": 0.5}])
    before = blocks.state()
    wider = Schema.declare({"id": "long", "ratio": "double", "note": "string"})
    for _ in range(2):
        blocks.lake.ensure(TABLE, wider)
    after = blocks.state()
    assert [(name, str(kind)) for name, kind in after.columns] == [
        ("id", "long"),
        ("ratio", "double"),
        ("note", "string"),
    ]
    assert (after.head, after.uuid) == (before.head, before.uuid)
    blocks.schema = wider
    blocks.commit([{"id": 2**40, "ratio": 0.1, "note": "wide"}])
    assert [(row["id"], row["ratio"], row["note"]) for row in blocks.rows()] == [(1, 0.5, None), (2**40, 0.1, "wide")]


def test_ensure_grows_structs_inside_lists(blocks: Blocks) -> None:
    blocks.schema = Schema.declare({"id": "long", "tags": "list<struct<a:int>>"})
    blocks.commit([{"id": 1, "tags": [{"a": 1}]}])
    # The table grows as a whole by the struct's new field; what was stored has none of it.
    blocks.schema = Schema.declare({"id": "long", "tags": "list<struct<a:int>>", "more": "struct<x:long,y:list<int>>"})
    blocks.commit([{"id": 2, "tags": [], "more": {"x": 7, "y": [1, None]}}])
    assert [row.get("more") for row in blocks.rows()] == [None, {"x": 7, "y": [1, None]}]


def test_ensure_never_narrows_or_removes(blocks: Blocks) -> None:
    blocks.lake.ensure(TABLE, Schema.declare({"id": "long", "ratio": "double", "note": "string"}))
    blocks.lake.ensure(TABLE, Schema.declare({"id": "int", "ratio": "float"}))
    assert [(name, str(kind)) for name, kind in blocks.state().columns] == [
        ("id", "long"),
        ("ratio", "double"),
        ("note", "string"),
    ]


def test_an_append_names_its_segments_if_they_are_few(blocks: Blocks, monkeypatch: pytest.MonkeyPatch) -> None:
    """U4: by them it is known whether what is lost of it is still in the spool."""
    request = blocks.commit([{"id": 1}], [{"id": 2}])
    assert blocks.state().lineage[0].segments == {segment.id for segment in request.segments}
    monkeypatch.setattr(protocol, "SEGMENTS_NAMED_MAX", 1)
    blocks.commit([{"id": 3}], [{"id": 4}])
    assert blocks.state().lineage[0].segments == set()


def test_a_column_without_values_may_be_dropped_and_come_back_with_another_type(blocks: Blocks) -> None:
    blocks.schema = Schema.declare({"id": "long", "note": "long"})
    blocks.commit([{"id": 1, "note": None}])
    before = blocks.state()
    for _ in range(2):  # one that is not there is no error
        blocks.lake.ensure(TABLE, create=False, drop=["note"])
        assert [name for name, _ in blocks.state().columns] == ["id"]
    blocks.schema = Schema.declare({"id": "long", "note": "string"})
    blocks.lake.ensure(TABLE, blocks.schema)
    after = blocks.state()
    assert ([(name, str(kind)) for name, kind in after.columns], after.head) == (
        [("id", "long"), ("note", "string")],
        before.head,
    )
    blocks.commit([{"id": 2, "note": "text"}])
    assert {row["id"]: row["note"] for row in blocks.rows()} == {1: None, 2: "text"}


def test_two_may_ensure_the_same_table_and_columns_at_once(blocks: Blocks) -> None:
    """Both come back, one table stands, and it has the columns of both."""
    from concurrent.futures import ThreadPoolExecutor

    first = Schema.declare({"id": "long", "left": "string"})
    second = Schema.declare({"id": "long", "right": "string"})
    with ThreadPoolExecutor(2) as both:
        for schema in (SIMPLE, SIMPLE), (first, second):
            list(both.map(lambda one: blocks.lake.ensure(TABLE, one), schema))
    assert {name for name, _ in blocks.state().columns} == {"id", "name", "left", "right"}


# ── the append ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_append_numbers_rows_by_block_segment_and_place_in_the_file(blocks: Blocks) -> None:
    """Row `i` of a segment gets `after + 1 + offset + i`, whatever the sizes of the segments."""
    blocks.through = 100
    blocks.commit(some(3), some(1, start=3), some(7, start=4))
    assert [(row["id"], row[SEQ]) for row in blocks.rows()] == [(index, 101 + index) for index in range(11)]


def test_more_segments_than_sixty_four_are_numbered_without_a_gap(blocks: Blocks) -> None:
    starts = list(itertools.accumulate((1 + index % 3 for index in range(70)), initial=0))
    parts = [some(1 + index % 3, start=starts[index]) for index in range(70)]
    blocks.commit(*parts)
    assert numbers(blocks.rows()) == {index: index + 1 for index in range(starts[-1])}


def test_a_segment_of_many_row_groups_is_numbered_by_place_in_the_file(blocks: Blocks) -> None:
    blocks.lake.ensure(TABLE, SIMPLE)
    request = blocks.request(blocks.segment(some(500), row_group_rows=64), blocks.segment(some(5, start=500)))
    assert pq.read_metadata(request.segments[0].path).num_row_groups == 8
    assert blocks.lake.append(request)
    assert numbers(blocks.rows()) == {index: index + 1 for index in range(505)}


def test_an_append_is_one_append_snapshot_that_names_its_block(blocks: Blocks) -> None:
    blocks.commit(some(3))
    request = blocks.commit(some(2, start=3))
    head, before = blocks.state().lineage
    assert (head.operation, head.added_rows, head.block, head.through) == ("append", 2, request.block, 5)
    assert head.brought_rows
    assert head.parent == before.id
    assert before.parent is None
    assert blocks.verdict(request) is Verdict.LANDED


@pytest.mark.spark
def test_rows_of_a_segment_that_has_no_numbers_in_the_block_fail_the_commit(
    spark_driver: SparkDriver, tmp_path: Path
) -> None:
    """I11: without a number a row is not left out, and does not land either."""
    blocks = Blocks(spark_driver, tmp_path)
    blocks.commit(some(2))
    segment = blocks.segment(some(2, start=2))
    request = blocks.request(replace(segment, id=segment.id + 100))
    with pytest.raises(Exception, match=r"(?i)null"):
        blocks.lake.append(request)
    assert [row["id"] for row in blocks.rows()] == [0, 1]
    assert blocks.verdict(request) is Verdict.OPEN


def test_rows_keep_their_content_id_and_segment(blocks: Blocks) -> None:
    request = blocks.commit(some(2), some(1, start=2))
    rows = blocks.rows()
    assert [row[SEGMENT] for row in rows] == [request.segments[0].id] * 2 + [request.segments[1].id]
    identifiers, _ = content_ids(pa.Table.from_pylist(some(3), SIMPLE.arrow()))
    assert [row[CONTENT_ID] for row in rows] == identifiers.to_pylist()


def test_an_append_on_an_old_base_is_refused_and_void(blocks: Blocks) -> None:
    """I2: what was prepared before another append can never land behind it."""
    blocks.commit(some(1))
    late = blocks.request(blocks.segment(some(2, start=1)))
    blocks.commit(some(3, start=3))
    with pytest.raises(Exception):
        blocks.lake.append(late)
    assert blocks.verdict(late) is Verdict.VOID
    assert sorted(numbers(blocks.rows())) == [0, 3, 4, 5]


def test_an_append_on_no_base_is_refused_by_a_table_with_rows(blocks: Blocks) -> None:
    blocks.lake.ensure(TABLE, SIMPLE)
    late = blocks.request(blocks.segment(some(2)))
    assert late.base.snapshot is None
    blocks.commit(some(3, start=2))
    with pytest.raises(Exception):
        blocks.lake.append(late)
    assert blocks.verdict(late) is Verdict.VOID


@pytest.mark.parametrize("first_rows", [0, 4], ids=["no base", "a base"])
def test_an_append_on_a_forgotten_base_is_refused(blocks: Blocks, first_rows: int) -> None:
    """History that no longer reaches back to the base could hide an append: it is not guessed at."""
    if first_rows:
        blocks.commit(some(first_rows))
    blocks.lake.ensure(TABLE, SIMPLE)
    late = blocks.request(blocks.segment(some(2, start=50)))
    blocks.commit(some(3, start=10))
    blocks.driver.compact(TABLE)
    blocks.driver.expire(TABLE)
    assert [snapshot.operation for snapshot in blocks.state().lineage] == ["replace"]
    with pytest.raises(Exception):
        blocks.lake.append(late)
    assert blocks.verdict(late) is Verdict.VOID
    assert len(blocks.rows()) == 3 + first_rows


def test_compaction_since_the_base_does_not_disturb_an_append(blocks: Blocks) -> None:
    blocks.commit(some(2))
    blocks.commit(some(2, start=2))
    request = blocks.request(blocks.segment(some(2, start=4)))
    blocks.driver.compact(TABLE)
    assert blocks.state().lineage[0].operation == "replace"
    assert blocks.verdict(request) is Verdict.OPEN
    assert blocks.lake.append(request)
    assert blocks.verdict(request) is Verdict.LANDED
    assert numbers(blocks.rows()) == {index: index + 1 for index in range(6)}


def test_a_delete_since_the_base_does_not_disturb_an_append(blocks: Blocks) -> None:
    blocks.commit(some(4))
    request = blocks.request(blocks.segment(some(2, start=4)))
    blocks.driver.delete(TABLE, SequenceRange(1, 3))
    assert not blocks.state().lineage[0].brought_rows
    assert blocks.verdict(request) is Verdict.OPEN
    assert blocks.lake.append(request)
    assert sorted(numbers(blocks.rows())) == [0, 3, 4, 5]


def test_the_same_block_sent_twice_lands_once(blocks: Blocks) -> None:
    """I4: the second request collides with the first; that is no verdict, and the table says that it landed."""
    request = blocks.commit(some(3))
    with pytest.raises(Exception):
        blocks.lake.append(request)
    assert blocks.verdict(request) is Verdict.LANDED
    assert len(numbers(blocks.rows())) == 3


@pytest.mark.parametrize("first_rows", [0, 3], ids=["no base", "a base"])
def test_the_base_of_a_dropped_table_is_not_accepted_by_its_successor(blocks: Blocks, first_rows: int) -> None:
    if first_rows:
        blocks.commit(some(first_rows))
    blocks.lake.ensure(TABLE, SIMPLE)
    request = blocks.request(blocks.segment(some(2, start=10)))
    blocks.driver.recreate(TABLE, SIMPLE)
    assert blocks.state().uuid != request.base.table_uuid
    assert blocks.verdict(request) is Verdict.VOID
    with pytest.raises(Exception):
        blocks.lake.append(request)
    assert blocks.rows() == []
    assert blocks.verdict(request) is Verdict.VOID


def test_a_segment_that_is_gone_is_retryable_and_nothing_is_sent(blocks: Blocks) -> None:
    blocks.lake.ensure(TABLE, SIMPLE)
    request = blocks.request(blocks.segment(some(2)), blocks.segment(some(2, start=2)))
    Path(request.segments[1].path).unlink()
    with pytest.raises(Retryable):
        blocks.lake.append(request)
    assert blocks.state().head is None


def test_a_segment_with_other_rows_than_reserved_is_refused(blocks: Blocks) -> None:
    """Rows read must equal rows reserved: else everything behind would be numbered wrong."""
    blocks.lake.ensure(TABLE, SIMPLE)
    request = blocks.request(blocks.segment(some(2)))
    short = replace(request, segments=tuple(replace(item, rows=3) for item in request.segments))
    with pytest.raises((Retryable, Corrupt)):
        blocks.lake.append(short)
    assert blocks.state().head is None


def test_a_column_that_came_to_the_table_after_the_request_was_made_is_null(blocks: Blocks) -> None:
    blocks.lake.ensure(TABLE, SIMPLE)
    request = blocks.request(blocks.segment(some(2)))
    blocks.lake.ensure(TABLE, Schema.declare({"id": "long", "name": "string", "extra": "list<string>"}))
    assert blocks.lake.append(request)
    assert numbers(blocks.rows()) == {0: 1, 1: 2}


# ── duplicates ───────────────────────────────────────────────────────────────────────────────────────────────────────


@however_rows_are_compared
def test_of_rows_with_one_identity_in_a_batch_the_first_stays(blocks: Blocks) -> None:
    blocks.identity = (("id",),)
    blocks.commit([{"id": 1, "name": "first"}, {"id": 2, "name": "two"}], [{"id": 1, "name": "again"}])
    assert [(row["name"], row[SEQ]) for row in blocks.rows()] == [("first", 1), ("two", 2)]
    assert blocks.state().lineage[0].added_rows == 2


def test_a_row_that_the_base_has_already_is_not_appended(blocks: Blocks) -> None:
    blocks.identity = (("id", "name"),)
    blocks.commit(some(3))
    request = blocks.commit([*some(2, start=2), {"id": 2, "name": "another name"}])
    rows = blocks.rows()
    assert [(row["id"], row["name"]) for row in rows[3:]] == [(3, "name 3"), (2, "another name")]
    assert [row[SEQ] for row in rows] == [1, 2, 3, request.range.after + 2, request.range.after + 3]


def test_what_came_after_the_base_is_not_looked_at(blocks: Blocks) -> None:
    """Deduplication reads exactly the base: a repeated request decides as the first one did."""
    blocks.identity = (("id",),)
    blocks.commit(some(2))
    request = blocks.request(blocks.segment(some(2, start=1)))
    assert blocks.lake.append(request) is True
    with pytest.raises(Exception):
        blocks.lake.append(request)  # refused: not "all of these are duplicates"
    assert sorted(numbers(blocks.rows())) == [0, 1, 2]


@however_rows_are_compared
def test_a_batch_of_duplicates_only_sends_nothing(blocks: Blocks) -> None:
    blocks.identity = (("id",),)
    blocks.commit(some(3))
    head = blocks.state().head
    request = blocks.request(blocks.segment(some(2)), blocks.segment(some(1, start=2)))
    assert blocks.lake.append(request) is False
    assert blocks.state().head == head


def test_the_first_identity_that_is_complete_counts(blocks: Blocks) -> None:
    blocks.identity = (("id",), ("name",))
    blocks.commit([{"id": 1, "name": "a"}, {"id": None, "name": "b"}])
    blocks.commit(
        [
            {"id": 1, "name": "other"},  # by id: a duplicate
            {"id": None, "name": "b"},  # by name: a duplicate
            {"id": 2, "name": "b"},  # by id: new, though the name is known
            {"id": None, "name": "a"},  # by name: new, for the row with that name goes by its id
        ]
    )
    assert [(row["id"], row["name"]) for row in blocks.rows()] == [(1, "a"), (None, "b"), (2, "b"), (None, "a")]


@however_rows_are_compared
def test_rows_without_an_identity_are_never_duplicates(blocks: Blocks) -> None:
    blocks.identity = (("id",),)
    nobody = {"id": None, "name": "nobody"}
    blocks.commit([nobody, nobody])
    blocks.commit([nobody], [nobody])
    assert [row["name"] for row in blocks.rows()] == ["nobody"] * 4


def test_rows_whose_identity_is_null_are_one_row_if_all_of_them_is_equal(blocks: Blocks) -> None:
    """B10. Without it, what is loaded twice is stored twice."""
    blocks.schema, blocks.identity, blocks.event_time = TIMED, (("id",),), "at"
    blocks.by_content = True
    nobody = {"id": None, "name": "nobody", "at": NOON}
    untimed = {"id": None, "name": "untimed", "at": None}
    named = {"id": 1, "name": "nobody", "at": NOON}
    blocks.commit([nobody, nobody, untimed, named])
    other, later = {**nobody, "name": "somebody"}, {**nobody, "at": NOON + timedelta(days=9)}
    blocks.commit([nobody, other, untimed], [later, named])
    assert [(row["id"], row["name"]) for row in blocks.rows()] == [
        (None, "nobody"),
        (None, "untimed"),
        (1, "nobody"),
        (None, "somebody"),
        (None, "nobody"),
    ]


@however_rows_are_compared
def test_an_identity_may_be_compared_at_any_event_time(blocks: Blocks) -> None:
    """The first row of an identity stays, however far its event time is from that of the next."""
    blocks.schema, blocks.identity, blocks.event_time = TIMED, (("id",),), "at"
    blocks.any_time = True
    blocks.commit([{"id": 1, "name": "noon", "at": NOON}, {"id": 1, "name": "later", "at": NOON + timedelta(days=1)}])
    blocks.commit(
        [{"id": 1, "name": "much later", "at": NOON + timedelta(days=900)}, {"id": 2, "name": "other", "at": NOON}],
        [{"id": 2, "name": "other again", "at": NOON + timedelta(days=5)}, {"id": 1, "name": "untimed", "at": None}],
    )
    assert [row["name"] for row in blocks.rows()] == ["noon", "other"]


def test_event_time_is_part_of_what_makes_two_rows_one(blocks: Blocks) -> None:
    """To the microsecond, and no time is a time of its own."""
    blocks.schema, blocks.identity, blocks.event_time = TIMED, (("id",),), "at"
    later = NOON + timedelta(microseconds=1)
    blocks.commit([{"id": 1, "name": "noon", "at": NOON}, {"id": 1, "name": "none", "at": None}])
    blocks.commit(
        [
            {"id": 1, "name": "noon again", "at": NOON},
            {"id": 1, "name": "later", "at": later},
            {"id": 1, "name": "later again", "at": later},
            {"id": 1, "name": "none again", "at": None},
        ]
    )
    assert [row["name"] for row in blocks.rows()] == ["noon", "none", "later"]


@however_rows_are_compared
def test_event_dates_bound_duplicates_as_times_do(blocks: Blocks) -> None:
    blocks.schema = Schema.declare({"id": "long", "name": "string", "on": "date"})
    blocks.identity, blocks.event_time = (("id",),), "on"
    days = [date(1969, 12, 31), date(1970, 1, 1), date(2026, 2, 28)]
    blocks.commit([{"id": 1, "name": f"{day}", "on": day} for day in days])
    blocks.commit([{"id": 1, "name": "again", "on": day} for day in days] + [{"id": 2, "name": "new", "on": days[0]}])
    assert [row["name"] for row in blocks.rows()] == ["1969-12-31", "1970-01-01", "2026-02-28", "new"]


def test_an_identity_column_that_the_base_has_not_yet_is_null_there(blocks: Blocks) -> None:
    blocks.commit([{"id": 1, "name": "old"}])
    blocks.schema = Schema.declare({"id": "long", "name": "string", "key": "string"})
    blocks.identity = (("key",), ("id",))
    blocks.commit([{"id": 1, "name": "by key", "key": "k"}, {"id": 1, "name": "by id"}])
    assert [row["name"] for row in blocks.rows()] == ["old", "by key"]


@however_rows_are_compared
def test_an_identity_column_that_was_widened_since_the_base_is_compared_by_value(blocks: Blocks) -> None:
    blocks.identity = (("id",),)
    blocks.schema = Schema.declare({"id": "int", "name": "string"})
    blocks.commit([{"id": 1, "name": "narrow"}])
    blocks.schema = SIMPLE
    blocks.commit([{"id": 1, "name": "again"}, {"id": 2**40, "name": "wide"}])
    assert [row["name"] for row in blocks.rows()] == ["narrow", "wide"]


@however_rows_are_compared
def test_identities_that_only_look_alike_are_different(blocks: Blocks) -> None:
    blocks.schema = Schema.declare({"id": "long", "a": "string", "b": "string"})
    blocks.identity = (("a", "b"),)
    pairs = [("x", "y,z"), ("x,y", "z"), ('x"', "y"), ("x", '"y'), ("", "xy"), ("xy", ""), ("X", "y"), ("é", "y")]
    blocks.commit([{"id": index, "a": a, "b": b} for index, (a, b) in enumerate(pairs)])
    blocks.commit([{"id": 100, "a": "x", "b": "y"}, {"id": 101, "a": "e\u0301", "b": "y"}])
    assert [row["id"] for row in blocks.rows()] == [*range(len(pairs)), 100, 101]


def test_an_identity_may_be_of_any_simple_type(blocks: Blocks) -> None:
    kinds = {
        "decimal(20,4)": [Decimal("1.0000"), Decimal("1.0001")],
        "binary": [b"\x00\xff", b"\x00"],
        "date": [date(2026, 1, 1), date(2026, 1, 2)],
        "boolean": [True, False],
        "timestamp": [NOON, NOON + timedelta(microseconds=1)],
        "double": [0.1, 0.1 + 2**-55],
        "json": ['{"a":1}', '{"a":2}'],
    }
    blocks.schema = Schema.declare({"id": "long", **{f"k {kind}": kind for kind in kinds}})
    blocks.identity = tuple((f"k {kind}",) for kind in kinds)
    rows = [
        {"id": index * 2 + place, f"k {kind}": value}
        for index, (kind, values) in enumerate(kinds.items())
        for place, value in enumerate(values)
    ]
    blocks.commit(rows)
    assert [row["id"] for row in blocks.rows()] == list(range(14))
    assert blocks.lake.append(blocks.request(blocks.segment(rows))) is False


def test_duplicates_that_cannot_be_looked_for_are_retryable_and_nothing_moves(blocks: Blocks) -> None:
    blocks.identity = (("id",),)
    blocks.commit(some(3))
    head = blocks.state().head
    assert blocks.driver.lose_data_files(TABLE, EVERYTHING) == 1
    with pytest.raises(Retryable):
        blocks.lake.append(blocks.request(blocks.segment(some(2, start=2))))
    assert blocks.state().head == head


@pytest.mark.spark
def test_duplicates_are_looked_for_only_in_files_of_the_batches_event_times(
    spark_driver: SparkDriver, tmp_path: Path
) -> None:
    """Deduplication opens no file outside the batch's span of event time: here those files are not even there."""
    blocks = Blocks(spark_driver, tmp_path, schema=TIMED, identity=(("id",),), event_time="at")
    for day in range(10):
        blocks.commit([{"id": day, "name": f"day {day}", "at": NOON + timedelta(days=day)}])
    assert spark_driver.lose_data_files(TABLE, SequenceRange(0, 7)) == 7
    blocks.commit(
        [
            {"id": 7, "name": "again", "at": NOON + timedelta(days=7)},
            {"id": 7, "name": "new", "at": NOON + timedelta(days=9)},
        ]
    )
    assert [row["name"] for row in blocks.rows(SequenceRange(7, 100))] == ["day 7", "day 8", "day 9", "new"]


# ── asking a snapshot ────────────────────────────────────────────────────────────────────────────────────────────────


def test_has_rows_is_exact_at_both_ends_and_of_its_snapshot(blocks: Blocks) -> None:
    blocks.through = 10
    blocks.commit(some(3))
    old = blocks.state().head
    blocks.commit(some(2, start=3))
    head = blocks.state().head
    assert old is not None
    assert head is not None
    answers = {
        (after, through): queries.has_rows(blocks.lake, TABLE, snapshot=head, within=SequenceRange(after, through))
        for after, through in [(0, 10), (10, 11), (9, 11), (14, 15), (15, 20), (12, 12)]
    }
    assert answers == {
        (0, 10): False,
        (10, 11): True,
        (9, 11): True,
        (14, 15): True,
        (15, 20): False,
        (12, 12): False,
    }
    assert not queries.has_rows(blocks.lake, TABLE, snapshot=old, within=SequenceRange(13, 20))


def test_figures_are_the_tallies_of_the_rows_by_partition(blocks: Blocks) -> None:
    """They equal what sealing counts, key for key, so either may stand for the other."""
    blocks.schema = Schema.declare({"id": "long", "site": "string", "on": "date", "flag": "boolean"})
    day = date(2026, 5, 1)
    rows = [
        {"id": index, "site": site, "on": on, "flag": flag}
        for index, (site, on, flag) in enumerate(
            [("a/b", day, True), (None, day, True), ("", None, False), ("a/b", day, True), ("é=1", None, None)] * 3
        )
    ]
    blocks.commit(rows[:4], rows[4:])
    table = pa.Table.from_pylist(rows, blocks.schema.arrow())
    _, prefixes = content_ids(table)
    head = blocks.state().head
    assert head is not None
    for partition_by in [(), ("site",), ("site", "on", "flag")]:
        wanted = partition_stats(table, prefixes, partition_by)
        found = queries.stats(blocks.lake, TABLE, snapshot=head, within=EVERYTHING, partition_by=partition_by)
        assert {item.partition: (item.tally, item.first_seq - 1, item.last_seq - 1) for item in found} == {
            item.partition: (item.tally, item.first_row, item.last_row) for item in wanted
        }
    part = queries.stats(blocks.lake, TABLE, snapshot=head, within=SequenceRange(2, 5), partition_by=())
    assert [(item.partition, item.tally.rows, item.first_seq, item.last_seq) for item in part] == [("all", 3, 3, 5)]
    assert queries.stats(blocks.lake, TABLE, snapshot=head, within=SequenceRange(50, 60), partition_by=()) == []


def test_the_highest_number_is_known_after_compaction_delete_and_expiry(blocks: Blocks) -> None:
    """I1: the allocator can always be raised above what the table holds, or held before a delete."""
    blocks.through = 1000
    blocks.commit(some(5))
    blocks.commit(some(2, start=5))
    assert inventory.highest_seq(blocks.lake, blocks.state()) == 1007
    blocks.driver.compact(TABLE)
    blocks.driver.expire(TABLE)
    assert [snapshot.operation for snapshot in blocks.state().lineage] == ["replace"]
    assert inventory.highest_seq(blocks.lake, blocks.state()) == 1007
    blocks.driver.delete(TABLE, SequenceRange(1003, 1007))
    blocks.driver.compact(TABLE)
    blocks.driver.expire(TABLE)
    assert [row[SEQ] for row in blocks.rows()] == [1001, 1002, 1003]
    assert inventory.highest_seq(blocks.lake, blocks.state()) == 1007


def test_segments_above_a_number_are_named_and_their_rows_counted(blocks: Blocks) -> None:
    first = blocks.commit(some(2), some(2, start=2))
    second = blocks.commit(some(2, start=4))
    blocks.driver.compact(TABLE)
    head = blocks.state().head
    assert head is not None
    ids = [segment.id for segment in (*first.segments, *second.segments)]
    found = {after: queries.segments_above(blocks.lake, TABLE, snapshot=head, after=after) for after in (0, 3, 4, 6)}
    assert found == {0: set(ids), 3: set(ids[1:]), 4: set(ids[2:]), 6: set()}
    counted = queries.segment_rows(blocks.lake, TABLE, snapshot=head, within=SequenceRange(1, 6))
    assert counted == dict(zip(ids, (1, 2, 2), strict=True))


def test_sync_finds_everything_or_says_that_it_is_corrupt(blocks: Blocks) -> None:
    """I7: only what is really there counts as durable."""
    blocks.lake.ensure(TABLE, SIMPLE)
    blocks.lake.sync(blocks.state(), since=None)
    blocks.commit(some(3))
    synced = blocks.state().head
    blocks.lake.sync(blocks.state(), since=None)
    blocks.commit(some(3, start=3))
    blocks.driver.compact(TABLE)
    blocks.lake.sync(blocks.state(), since=synced)
    blocks.commit(some(3, start=6))
    assert blocks.driver.lose_data_files(TABLE, SequenceRange(6, 9)) == 1
    with pytest.raises(Corrupt):
        blocks.lake.sync(blocks.state(), since=synced)


def test_sync_since_a_forgotten_snapshot_looks_at_everything(blocks: Blocks) -> None:
    blocks.commit(some(3))
    forgotten = blocks.state().head
    blocks.commit(some(3, start=3))
    blocks.commit(some(3, start=6))  # whose parent is known by name; what lies before that is not
    blocks.driver.expire(TABLE)
    blocks.lake.sync(blocks.state(), since=forgotten)
    assert blocks.driver.lose_data_files(TABLE, SequenceRange(0, 3)) == 1
    with pytest.raises(Corrupt):
        blocks.lake.sync(blocks.state(), since=forgotten)


@pytest.mark.spark
def test_every_file_of_a_commit_is_synced(spark_driver: SparkDriver, tmp_path: Path, monkeypatch: Any) -> None:
    """I7: data, manifests, manifest lists, metadata and the directories that name them."""
    from floodmark.lake import durable

    files: set[Path] = set()
    directories: set[Path] = set()
    monkeypatch.setattr(durable, "sync_file", files.add)
    monkeypatch.setattr(durable, "sync_directory", directories.add)
    blocks = Blocks(spark_driver, tmp_path)
    blocks.lake.ensure(TABLE, SIMPLE)
    home = tmp_path / "lake" / "datasets" / TABLE
    since = None
    for round in range(3):
        known = set(home.rglob("*")) if round else set()
        blocks.commit(some(3, start=3 * round))
        files.clear()
        blocks.lake.sync(blocks.state(), since=since)
        since = blocks.state().head
        new = {path for path in set(home.rglob("*")) - known if path.is_file() and not path.name.endswith(".crc")}
        reachable = {path for path in new if "metadata.json" not in path.name}
        assert reachable <= files, "a file of the commit was not synced"
        assert any(path.name.endswith("metadata.json") for path in files)
    assert {path.parent for path in files} <= directories
    assert tmp_path / "lake" in directories


# ── scanning ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_scan_gives_exactly_the_range_in_order(blocks: Blocks) -> None:
    for start in range(0, 12, 3):
        blocks.commit(some(3, start=start))
    blocks.driver.compact(TABLE)
    blocks.commit(some(3, start=12))
    for after, through in [(0, 15), (2, 3), (4, 13), (14, 15), (15, 99), (7, 7)]:
        found = [row[SEQ] for row in blocks.rows(SequenceRange(after, through))]
        assert found == list(range(after + 1, min(through, 15) + 1))


def test_a_scan_reads_the_snapshot_it_was_given(blocks: Blocks) -> None:
    blocks.commit(some(2))
    old = blocks.state().head
    assert old is not None
    blocks.commit(some(2, start=2))
    blocks.driver.delete(TABLE, SequenceRange(0, 1))
    parts = blocks.lake.scan(TABLE, snapshot=old, within=EVERYTHING)
    assert [row["id"] for part in parts for row in part.to_pylist()] == [0, 1]
    assert [row["id"] for row in blocks.rows()] == [1, 2, 3]


def test_a_scan_of_some_columns_has_those_and_the_number(blocks: Blocks) -> None:
    blocks.commit(some(2))
    assert blocks.rows(columns=("name",)) == [{"name": "name 0", SEQ: 1}, {"name": "name 1", SEQ: 2}]


def test_a_scan_filters_by_value_and_null_is_a_value(blocks: Blocks) -> None:
    blocks.schema = Schema.declare({"id": "long", "site": "string", "on": "date", "flag": "boolean", "n": "long"})
    day = date(2026, 5, 1)
    blocks.commit(
        [
            {"id": 1, "site": "a", "on": day, "flag": True, "n": 1},
            {"id": 2, "site": None, "on": None, "flag": None, "n": None},
            {"id": 3, "site": "", "on": day, "flag": False, "n": 2**40},
            {"id": 4, "site": "a'b\"`", "on": day, "flag": True, "n": -1},
        ]
    )

    def ids(**partition_values: Any) -> list[int]:
        return [row["id"] for row in blocks.rows(partition_values=partition_values)]

    assert ids(site="a") == [1]
    assert ids(site=None) == [2]
    assert ids(site="") == [3]
    assert ids(site="a'b\"`") == [4]
    assert ids(on=day, flag=True) == [1, 4]
    assert ids(on=None, flag=None, n=None) == [2]
    assert ids(n=2**40) == [3]
    assert ids(site="nobody") == []


def test_reading_goes_straight_through_compaction_delete_and_expiry(blocks: Blocks) -> None:
    for start in range(0, 9, 3):
        blocks.commit(some(3, start=start))
    blocks.driver.delete(TABLE, SequenceRange(3, 4))
    blocks.driver.compact(TABLE)
    blocks.driver.expire(TABLE)
    assert [row[SEQ] for row in blocks.rows(SequenceRange(2, 7))] == [3, 5, 6, 7]


# ── values and names ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_values_of_every_type_come_back_as_they_went_in(blocks: Blocks) -> None:
    blocks.schema = Schema.declare(EVERY_TYPE)
    nothing = dict.fromkeys(EVERY_TYPE)
    blocks.commit([FULL, nothing, EDGES])
    head = blocks.state().head
    assert head is not None
    (table,) = blocks.lake.scan(TABLE, snapshot=head, within=EVERYTHING)
    wanted = blocks.schema.arrow()
    found = [{name: table[name].cast(wanted.field(name).type)[row].as_py() for name in EVERY_TYPE} for row in range(3)]
    assert found == [FULL, nothing, EDGES]
    identifiers, _ = content_ids(pa.Table.from_pylist([FULL, nothing, EDGES], wanted))
    assert table[CONTENT_ID].to_pylist() == identifiers.to_pylist()


AWKWARD = (
    "two words",
    "a.dot",
    "select",
    "order",
    "Größe 🌊",
    "per%cent",
    "quo'te",
    'dou"ble',
    "semi;colon",
    "tab\tbed",
    "(x)",
    "a=b",
    "-",
    "1",
    "$x",
    "{x}",
    "at",
    "count",
    "place",
    "ours",
    "_rows",
    "_metadata",
    "_file",
    "_pos",
    "_deleted",
    "_partition",
    "col1",
    "k0",
    "index",
)


def test_columns_may_have_awkward_names(blocks: Blocks) -> None:
    usable = []
    for name in AWKWARD:
        try:
            Schema.declare({name: "string"})
        except Exception:  # refused at the door, which is fine too
            continue
        usable.append(name)
    assert {"two words", "a.dot", "select", "Größe 🌊"} <= set(usable)
    blocks.schema = Schema.declare({"id": "long", **dict.fromkeys(usable, "string")})
    blocks.identity = tuple((name,) for name in usable)
    row = {"id": 1, **{name: f"value of {name}" for name in usable}}
    blocks.commit([row])
    assert [{name: found[name] for name in blocks.schema.names} for found in blocks.rows()] == [row]
    assert blocks.lake.append(blocks.request(blocks.segment([row]))) is False
    for name in usable:
        assert len(blocks.rows(partition_values={name: f"value of {name}"}, columns=(name,))) == 1, name
    head = blocks.state().head
    assert head is not None
    (stats,) = queries.stats(blocks.lake, TABLE, snapshot=head, within=EVERYTHING, partition_by=tuple(usable))
    assert stats.tally.rows == 1


def test_awkward_columns_can_be_added_and_widened(blocks: Blocks) -> None:
    blocks.schema = Schema.declare({"a.b c": "int", "outer": "struct<`in ner`:int>"})
    blocks.commit([{"a.b c": 1, "outer": {"in ner": 1}}])
    blocks.schema = Schema.declare({"a.b c": "long", "outer": "struct<`in ner`:int>", "where": "double", "x.y": "date"})
    blocks.commit([{"a.b c": 2**40, "outer": {"in ner": 2}, "where": 0.25, "x.y": date(2026, 1, 1)}])
    assert [(row["a.b c"], row["outer"]["in ner"], row.get("where"), row.get("x.y")) for row in blocks.rows()] == [
        (1, 1, None, None),
        (2**40, 2, 0.25, date(2026, 1, 1)),
    ]


# ── other writers ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spark
@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO {table} (id, name) VALUES (1, 'unstamped')",
        f"INSERT INTO {{table}} (id, name, {SEQ}) VALUES (1, 'unstamped', NULL)",
        f"INSERT INTO {{table}} (id, name, {SEQ}) SELECT id, name, nullif(1, 1) FROM VALUES (1, 'x') AS t(id, name)",
    ],
    ids=["left out", "null", "computed null"],
)
def test_the_table_refuses_a_row_without_a_number_from_any_writer(spark_driver: SparkDriver, statement: str) -> None:
    """A row without a number would be new for ever."""
    spark_driver.lake.ensure(TABLE, SIMPLE)
    with pytest.raises(Exception):
        spark_driver.spark.sql(statement.format(table=spark_driver.name(TABLE)))
    state = spark_driver.lake.load(TABLE)
    assert state is not None
    assert state.head is None


@pytest.mark.spark
def test_the_table_refuses_a_frame_without_a_number(spark_driver: SparkDriver) -> None:
    spark_driver.lake.ensure(TABLE, SIMPLE)
    name = spark_driver.name(TABLE)
    unstamped = spark_driver.spark.createDataFrame([(1, "x")], "id bigint, name string")
    nulls = spark_driver.spark.createDataFrame(
        [(1, "x", None, "0" * 32, 1)],
        f"id bigint, name string, {SEQ} bigint, {CONTENT_ID} string, {SEGMENT} bigint",
    )
    for frame in (unstamped, nulls):
        with pytest.raises(Exception):
            frame.writeTo(name).append()
    assert spark_driver.lake.load(TABLE).head is None


# ── the settle function ──────────────────────────────────────────────────────────────────────────────────────────────


def settles_nothing(frame: Any) -> Any:
    return frame


def upper_names(frame: Any) -> Any:
    from pyspark.sql import functions as F

    return frame.withColumn("name", F.upper("name"))


def drops_rows(frame: Any) -> Any:
    return frame.where("id > 0")


def doubles_rows(frame: Any) -> Any:
    return frame.unionByName(frame)


def renumbers(frame: Any) -> Any:
    from pyspark.sql import functions as F

    return frame.withColumn(SEQ, F.col(SEQ) + 1)


def rehashes(frame: Any) -> Any:
    from pyspark.sql import functions as F

    return frame.withColumn(CONTENT_ID, F.lit("0" * 32))


def moves_in_time(frame: Any) -> Any:
    from pyspark.sql import functions as F

    return frame.withColumn("at", F.col("at") + F.expr("INTERVAL 1 SECOND"))


def fails(frame: Any) -> Any:
    raise RuntimeError("settling is not possible today")


def loses_a_column(frame: Any) -> Any:
    return frame.drop("name")


def returns_nothing(frame: Any) -> Any:
    return None


def knows_better(frame: Any) -> Any:
    """`NAME 9` turns out to be `name 2`."""
    from pyspark.sql import functions as F

    return frame.withColumn("name", F.when(F.col("name") == "NAME 9", "name 2").otherwise(F.col("name")))


def _settled(driver: SparkDriver, tmp_path: Path, function: Callable[..., Any] | str) -> tuple[Blocks, Append]:
    blocks = Blocks(driver, tmp_path, schema=TIMED, event_time="at")
    blocks.lake.ensure(TABLE, TIMED)
    rows = [{"id": index, "name": f"name {index}", "at": NOON} for index in range(3)]
    path = function if isinstance(function, str) else f"{__name__}:{function.__name__}"
    return blocks, replace(blocks.request(blocks.segment(rows)), settle=path)


@pytest.mark.spark
@pytest.mark.parametrize("function", [settles_nothing, upper_names])
def test_a_settle_function_may_change_values(
    spark_driver: SparkDriver, tmp_path: Path, function: Callable[..., Any]
) -> None:
    blocks, request = _settled(spark_driver, tmp_path, function)
    assert blocks.lake.append(request)
    shout = function is upper_names
    assert [row["name"] for row in blocks.rows()] == [f"{'NAME' if shout else 'name'} {i}" for i in range(3)]


@pytest.mark.spark
def test_a_settle_function_may_leave_rows_out_and_they_are_counted(spark_driver: SparkDriver, tmp_path: Path) -> None:
    """B5: the numbers of the others stay, and the commit itself remembers how many there were."""
    blocks, request = _settled(spark_driver, tmp_path, drops_rows)
    assert blocks.lake.append(request)
    assert [row[SEQ] for row in blocks.rows()] == [2, 3]
    assert request.settlement.dropped == blocks.state().lineage[0].dropped == 1


@pytest.mark.spark
@pytest.mark.parametrize(
    "function",
    [doubles_rows, renumbers, rehashes, moves_in_time, fails, loses_a_column, returns_nothing, "no.such:thing"],
)
def test_a_bad_settle_function_changes_nothing_and_is_told(
    spark_driver: SparkDriver, tmp_path: Path, function: Callable[..., Any] | str
) -> None:
    """B6: it may not change number, event time, content id or segment, nor double a row."""
    blocks, request = _settled(spark_driver, tmp_path, function)
    assert blocks.lake.append(request)
    assert "settle function" in (request.settlement.problem or "")
    assert [(row[SEQ], row["name"]) for row in blocks.rows()] == [(1, "name 0"), (2, "name 1"), (3, "name 2")]


@pytest.mark.spark
def test_an_identity_that_is_upgraded_collapses_into_the_committed_row(
    spark_driver: SparkDriver, tmp_path: Path
) -> None:
    blocks, first = _settled(spark_driver, tmp_path, settles_nothing)
    blocks.identity = (("name",),)
    assert blocks.lake.append(replace(first, identity=blocks.identity))
    later = [{"id": 8, "name": "NAME 9", "at": NOON}, {"id": 9, "name": "other", "at": NOON}]
    request = blocks.request(blocks.segment(later))
    assert blocks.lake.append(replace(request, settle=f"{__name__}:knows_better"))
    assert [(row["id"], row["name"]) for row in blocks.rows()] == [
        (0, "name 0"), (1, "name 1"), (2, "name 2"), (9, "other"),
    ]  # fmt: skip
    assert request.settlement.dropped == 0, "a duplicate is not dropped on purpose"
