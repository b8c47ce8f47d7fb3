"""What every lake promises to delivery: work on ranges of rows in tasks side by side, filters, and what they cost."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Callable, Iterator
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lakes import EDGES, EVERY_TYPE, EVERYTHING, FULL, TABLE, Blocks, MemoryDriver, SparkDriver, some, spark_lake

from floodmark.errors import DivergedHistory, Permanent, Retryable
from floodmark.lake import queries
from floodmark.lake.conditions import ALLOWED
from floodmark.lake.filters import check_filter
from floodmark.rows.content import content_ids, tally_of_ids
from floodmark.schema import Schema
from floodmark.sequence import SequenceRange, Tally

T = TypeVar("T")
SITES = Schema.declare({"id": "long", "site": "string", "on": "date", "amount": "double"})


WAYS = {"in this process": (True, 1000), "in tasks": (True, 0), "through Iceberg's reader": (False, 0)}
"""The ways in which Spark's lake reads: whether straight from the files, and up to how many rows without a job."""


class EveryWay(Blocks):
    """Blocks on Spark's lake, which is asked in every way in which it reads."""

    def rows(self, within: SequenceRange = EVERYTHING, **scan: Any) -> list[dict[str, Any]]:
        return alike(self, lambda: Blocks.rows(self, within, **scan))


@pytest.fixture(params=["memory", pytest.param("spark", marks=pytest.mark.spark)])
def ways(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Blocks]:
    """The lake in memory, and Spark's in each of its ways: all must give the same."""
    if request.param == "memory":
        yield Blocks(MemoryDriver(), tmp_path)
        return
    for made in spark_lake(request, tmp_path):
        yield EveryWay(made, tmp_path)


def each_way(blocks: Blocks) -> Iterator[str]:
    if not isinstance(blocks, EveryWay):
        yield "memory"
        return
    for way, (blocks.lake.direct, blocks.lake.rows_here_max) in WAYS.items():
        yield way


def alike(blocks: Blocks, ask: Callable[[], T]) -> T:
    """What every way of reading answers, or the error that each of them raises."""
    answers: dict[str, T] = {}
    errors: dict[str, Exception] = {}
    for way in each_way(blocks):
        try:
            answers[way] = ask()
        except Exception as error:
            errors[way] = error
    first, *others = (*answers.values(), *errors.values())
    if isinstance(first, Exception):
        assert {(type(error), str(error)) for error in errors.values()} == {(type(first), str(first))}
        raise first
    assert not errors, errors
    assert all(other == first for other in others), answers
    return first


def as_lists(within: SequenceRange, rows: Any) -> dict[str, Any]:
    """The rows themselves, as JSON has them: the work of most tests."""
    return {"within": [within.after, within.through], "names": rows.column_names, "rows": rows.to_pylist()}


# Workers do not find this module: what they run of it must travel with the task.
as_lists.__module__ = "__main__"


def ranges_of(*ends: int) -> list[SequenceRange]:
    return [SequenceRange(after, through) for after, through in pairwise(ends)]


def each(blocks: Blocks, ranges: list[SequenceRange], work: Any = None, **options: Any) -> list[Any]:
    head = options.pop("snapshot", None) or blocks.state().head
    options.setdefault("schema", blocks.schema)
    options.setdefault("columns", options["schema"].names)
    return alike(
        blocks,
        lambda: list(blocks.lake.each_range(TABLE, snapshot=head, ranges=ranges, work=work or as_lists, **options)),
    )


# ── ranges ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_each_range_gets_its_own_rows_in_order_with_their_tally(ways: Blocks) -> None:
    for start in range(0, 20, 4):
        ways.commit(some(4, start=start))
    ranges = ranges_of(0, 3, 4, 9, 17, 30)
    found = each(ways, ranges)
    assert [within for within, _, _ in found] == ranges
    identifiers, _ = content_ids(pa.Table.from_pylist(some(20), ways.schema.arrow()))
    for within, tally, answer in found:
        inside = range(within.after, min(within.through, 20))
        assert answer["within"] == [within.after, within.through]
        assert [row["id"] for row in answer["rows"]] == list(inside)
        assert tally == tally_of_ids(identifiers.take(pa.array(inside, pa.int64())))


def test_an_empty_range_has_an_empty_tally_and_no_work(ways: Blocks) -> None:
    ways.through = 10
    ways.commit(some(2))
    found = each(ways, ranges_of(0, 10, 12, 12, 500))
    assert [(tally.rows, bool(answer)) for _, tally, answer in found] == [(0, False), (2, True), (0, False), (0, False)]
    assert found[0][1:] == (Tally(), {})


def test_no_ranges_are_no_work(ways: Blocks) -> None:
    ways.commit(some(2))
    before = ways.lake.jobs
    assert each(ways, []) == []
    assert ways.lake.jobs == before


def test_ranges_that_overlap_are_refused(ways: Blocks) -> None:
    ways.commit(some(2))
    with pytest.raises(ValueError, match="rise"):
        each(ways, [SequenceRange(0, 2), SequenceRange(1, 3)])


def test_columns_come_in_the_order_asked_for_and_in_canonical_types(ways: Blocks) -> None:
    ways.commit(some(3))
    wider = Schema.declare({"name": "string", "extra": "list<struct<a:int>>", "id": "long"})

    def types(within: SequenceRange, rows: Any) -> dict[str, Any]:
        return {"schema": [[field.name, str(field.type)] for field in rows.schema], "rows": rows.to_pylist()}

    ((_, tally, answer),) = each(ways, ranges_of(0, 9), types, schema=wider, columns=("extra", "name", "id"))
    wanted = wider.arrow(("extra", "name", "id"))
    assert answer["schema"] == [[field.name, str(field.type)] for field in wanted]
    assert answer["rows"][2] == {"extra": None, "name": "name 2", "id": 2}
    assert tally.rows == 3


def test_an_error_of_the_work_arrives_as_itself_behind_the_results_of_the_others(ways: Blocks) -> None:
    ways.commit(some(8))

    def fails(within: SequenceRange, rows: Any) -> dict[str, Any]:
        from floodmark.errors import DivergedHistory

        if within.after == 2:
            raise DivergedHistory(f"Not {within}.", hint="Look at it.")
        return {"first": rows["id"][0].as_py()}

    def deliver(results: list[tuple[int, int]]) -> None:
        for within, _, answer in each_lazily(ways, ranges_of(0, 2, 4, 6, 8), fails):
            results.append((within.after, answer["first"]))

    for way in each_way(ways):
        results: list[tuple[int, int]] = []
        with pytest.raises(DivergedHistory) as raised:
            deliver(results)
        assert (raised.value.message, raised.value.hint) == ("Not (2, 4].", "Look at it.")
        assert (0, 0) in results
        assert (2, 2) not in results
        assert results == sorted(results)
        if way != "in this process":
            assert (6, 6) in results, "another task goes on"


def each_lazily(blocks: Blocks, ranges: list[SequenceRange], work: Any) -> Any:
    head = blocks.state().head
    assert head is not None
    return blocks.lake.each_range(
        TABLE, snapshot=head, ranges=ranges, work=work, columns=blocks.schema.names, schema=blocks.schema
    )


def test_of_several_errors_the_lowest_range_is_told(ways: Blocks) -> None:
    ways.commit(some(8))

    def fails(within: SequenceRange, rows: Any) -> dict[str, Any]:
        from floodmark.errors import Retryable

        raise Retryable(f"down at {within.after}")

    with pytest.raises(Retryable, match="down at 0"):
        each(ways, ranges_of(0, 2, 4, 6, 8), fails)


def test_an_error_that_is_not_ours_arrives_too(ways: Blocks) -> None:
    ways.commit(some(2))

    def fails(within: SequenceRange, rows: Any) -> dict[str, Any]:
        raise KeyError("no such thing")

    with pytest.raises(KeyError, match="no such thing"):
        each(ways, ranges_of(0, 2), fails)


# ── whatever has become of the files ─────────────────────────────────────────────────────────────────────────────────


def ids_by_range(found: list[Any]) -> list[list[int]]:
    return [[row["id"] for row in answer.get("rows", [])] for _, _, answer in found]


def test_ranges_go_straight_through_compaction(ways: Blocks) -> None:
    for start in range(0, 12, 3):
        ways.commit(some(3, start=start))
    before = each(ways, ranges_of(0, 4, 5, 12))
    ways.driver.compact(TABLE)
    assert each(ways, ranges_of(0, 4, 5, 12)) == before
    ways.commit(some(3, start=12))
    assert ids_by_range(each(ways, ranges_of(2, 7, 13, 15))) == [list(range(2, 7)), list(range(7, 13)), [13, 14]]


def test_rows_that_were_deleted_are_in_no_range(ways: Blocks) -> None:
    """Deletes lie in files of their own beside the rows: whoever reads only the rows would bring them back."""
    ways.commit(some(6))
    old = ways.state().head
    ways.driver.delete(TABLE, SequenceRange(1, 3))
    ways.commit(some(3, start=6))
    found = each(ways, ranges_of(0, 3, 5, 9))
    assert ids_by_range(found) == [[0], [3, 4], [5, 6, 7, 8]]
    assert [tally.rows for _, tally, _ in found] == [1, 2, 4]
    assert [row["id"] for row in ways.rows(SequenceRange(0, 5))] == [0, 3, 4]
    assert ids_by_range(each(ways, ranges_of(0, 3, 9), snapshot=old)) == [[0, 1, 2], [3, 4, 5]]
    ways.driver.compact(TABLE)
    assert each(ways, ranges_of(0, 3, 5, 9)) == found


def test_rows_of_before_a_column_have_null_in_it(ways: Blocks) -> None:
    ways.commit(some(2))
    ways.schema = Schema.declare({"id": "long", "name": "string", "note": "string", "tags": "list<struct<a:int>>"})
    ways.commit([{"id": 2, "name": "new", "note": "n", "tags": [{"a": 1}]}, {"id": 3}])
    ((_, _, answer),) = each(ways, ranges_of(0, 4))
    assert [(row["id"], row["note"], row["tags"]) for row in answer["rows"]] == [
        (0, None, None),
        (1, None, None),
        (2, "n", [{"a": 1}]),
        (3, None, None),
    ]
    for note, ids in {None: [0, 1, 3], "n": [2]}.items():
        assert ids_by_range(each(ways, ranges_of(0, 4), partition_values={"note": note})) == [ids]


def test_rows_of_before_a_column_was_widened_are_widened(ways: Blocks) -> None:
    ways.schema = Schema.declare({"id": "int", "ratio": "float"})
    ways.commit([{"id": 1, "ratio": 0.5}, {"id": None, "ratio": None}])
    narrow = ways.state().head
    ways.schema = Schema.declare({"id": "long", "ratio": "double"})
    ways.commit([{"id": 2**40, "ratio": 0.1}])
    wanted = [{"id": 1, "ratio": 0.5}, {"id": None, "ratio": None}, {"id": 2**40, "ratio": 0.1}]
    ((_, tally, answer),) = each(ways, ranges_of(0, 3))
    assert (answer["rows"], tally.rows) == (wanted, 3)
    ((_, _, answer),) = each(ways, ranges_of(0, 3), snapshot=narrow)
    assert answer["rows"] == wanted[:2]
    for id, found in {1: 1, 2**40: 1, 2: 0}.items():
        assert sum(tally.rows for _, tally, _ in each(ways, ranges_of(0, 3), partition_values={"id": id})) == found


def test_values_of_every_type_reach_the_work_as_they_went_in(ways: Blocks) -> None:
    ways.schema = Schema.declare(EVERY_TYPE)
    nothing = dict.fromkeys(EVERY_TYPE)
    ways.commit([FULL, nothing, EDGES])

    def hashed(within: SequenceRange, rows: Any) -> dict[str, Any]:
        from floodmark.rows.content import content_ids

        return {"ids": content_ids(rows)[0].to_pylist(), "types": [str(field.type) for field in rows.schema]}

    ((_, tally, answer),) = each(ways, ranges_of(0, 3), hashed)
    wanted = pa.Table.from_pylist([FULL, nothing, EDGES], ways.schema.arrow())
    identifiers, _ = content_ids(wanted)
    assert answer == {"ids": identifiers.to_pylist(), "types": [str(field.type) for field in wanted.schema]}
    assert tally == tally_of_ids(identifiers)


def test_columns_may_have_any_name(ways: Blocks) -> None:
    names = ("two words", "a.dot", "select", "Größe 🌊", "quo'te", "tab(bed)", "a=b", "1", "outcomes", "index", "id")
    ways.schema = Schema.declare({**dict.fromkeys(names, "string"), "in": "struct<`y z`:int,`a.b`:string>"})
    row = {**{name: f"value of {name}" for name in names}, "in": {"y z": 1, "a.b": "x"}}
    ways.commit([row])
    ((_, _, answer),) = each(ways, ranges_of(0, 1))
    assert answer["rows"] == [row]
    for name in names:
        ((_, tally, _),) = each(ways, ranges_of(0, 1), partition_values={name: f"value of {name}"}, columns=())
        assert tally.rows == 1, name


def test_no_column_at_all_is_a_table_of_rows(ways: Blocks) -> None:
    ways.commit(some(3))

    def count(within: SequenceRange, rows: Any) -> dict[str, Any]:
        return {"rows": rows.num_rows, "columns": rows.num_columns}

    ((_, _, answer),) = each(ways, ranges_of(0, 3), count, columns=())
    assert answer == {"rows": 3, "columns": 0}


@pytest.mark.spark
def test_a_struct_that_has_grown_is_left_to_icebergs_reader(spark_driver: SparkDriver, tmp_path: Path) -> None:
    blocks = Blocks(spark_driver, tmp_path, schema=Schema.declare({"id": "long", "data": "struct<a:int>"}))
    blocks.commit([{"id": 1, "data": {"a": 1}}])
    blocks.schema = Schema.declare({"id": "long", "data": "struct<a:int,b:string>"})
    blocks.commit([{"id": 2, "data": {"a": 2, "b": "x"}}])
    blocks.commit([{"id": 3, "data": None}])
    before = blocks.lake.jobs
    found = each(blocks, ranges_of(0, 1, 2, 3))
    assert [row["data"] for _, _, answer in found for row in answer["rows"]] == [
        {"a": 1, "b": None},
        {"a": 2, "b": "x"},
        None,
    ]
    assert blocks.lake.jobs == before + 1, "one job, for the range whose file is odd"
    assert [row["data"] for row in blocks.rows()][:2] == [{"a": 1, "b": None}, {"a": 2, "b": "x"}]


@pytest.mark.spark
def test_a_file_that_is_gone_is_told_in_a_sentence(spark_driver: SparkDriver, tmp_path: Path) -> None:
    blocks = Blocks(spark_driver, tmp_path)
    blocks.commit(some(3))
    blocks.commit(some(3, start=3))
    assert spark_driver.lose_data_files(TABLE, SequenceRange(3, 6)) == 1
    for read in (blocks.rows, lambda: each(blocks, ranges_of(0, 3, 6))):
        with pytest.raises(Retryable, match="could not be read") as raised:
            read()
        assert "\n" not in raised.value.message
    assert ids_by_range(each(blocks, ranges_of(0, 3))) == [[0, 1, 2]], "what does not need it is read"


# ── what it costs ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_actions_on_the_engine_are_counted(ways: Blocks) -> None:
    ways.commit(some(4))
    jobs = {"memory": 0, "in this process": 0, "in tasks": 1, "through Iceberg's reader": 1}
    for way in each_way(ways):
        before = ways.lake.jobs
        assert len(list(each_lazily(ways, ranges_of(0, 1, 2, 3, 4), as_lists))) == 4
        assert ways.lake.jobs - before == jobs[way]


@pytest.mark.spark
def test_a_few_rows_are_read_without_a_session(spark_driver: SparkDriver, tmp_path: Path) -> None:
    from floodmark.lake.spark import SparkLake

    Blocks(spark_driver, tmp_path).commit(some(5))

    def no_session() -> Any:
        raise AssertionError("a session was started")

    blocks = Blocks(SparkDriver(SparkLake(spark_driver.lake.catalog, no_session), None), tmp_path)
    assert [row["id"] for row in blocks.rows(SequenceRange(1, 3))] == [1, 2]
    assert ids_by_range(each(blocks, ranges_of(0, 2, 5))) == [[0, 1], [2, 3, 4]]
    assert blocks.lake.jobs == 0


@pytest.mark.spark
def test_only_the_row_groups_of_a_range_are_decoded(
    spark_driver: SparkDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = Blocks(spark_driver, tmp_path)
    blocks.lake.ensure(TABLE, blocks.schema)
    spark_driver.spark.sql(
        f"ALTER TABLE {spark_driver.name(TABLE)} SET TBLPROPERTIES ('write.parquet.row-group-size-bytes' = '4096', "
        "'write.parquet.page-row-limit' = '100')"
    )
    blocks.commit(some(20_000))
    read: list[int] = []
    real = pq.ParquetFile.read_row_group

    def counted(file: Any, group: int, *args: Any, **options: Any) -> Any:
        read.append(file.metadata.row_group(group).num_rows)
        return real(file, group, *args, **options)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", counted)
    assert [row["id"] for row in blocks.rows(SequenceRange(9_990, 10_010))] == list(range(9_990, 10_010))
    assert sum(read) <= 5_000
    read.clear()
    found = each(blocks, ranges_of(9_000, 9_500, 9_501, 10_000), columns=("id",))
    assert sum(tally.rows for _, tally, _ in found) == 1000
    assert sum(read) <= 5_000, "a row group that ranges share is decoded once"


# ── filters ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def sales(blocks: Blocks) -> Blocks:
    blocks.schema = SITES
    day = date(2026, 5, 1)
    blocks.commit(
        [
            {"id": 1, "site": "a", "on": day, "amount": 1.0},
            {"id": 2, "site": None, "on": None, "amount": 20.0},
            {"id": 3, "site": "", "on": day, "amount": None},
            {"id": 4, "site": "a'b\"`/=é", "on": day, "amount": 40.0},
            {"id": 5, "site": "a", "on": day, "amount": 50.0},
        ]
    )
    return blocks


FILTERS = {
    "amount > 10": [2, 4, 5],
    "site = 'a'": [1, 5],
    "site = 'a' AND amount > 10": [5],
    "site IS NULL OR amount IS NULL": [2, 3],
    "NOT (site = 'a')": [3, 4],
    "`amount` BETWEEN 1 AND 20": [1, 2],
    "site LIKE 'a%' OR id IN (3)": [1, 3, 4, 5],
    "true": [1, 2, 3, 4, 5],
    "cast(null as boolean)": [],
    "SITE = 'a'": [1, 5],
    "site = 'select' or id = 2": [2],
    "coalesce(site, '_ingest_seq') = '_ingest_seq'": [2],
}


def test_a_filter_leaves_out_rows_of_which_it_is_not_true(blocks: Blocks) -> None:
    sales(blocks)
    head = blocks.state().head
    assert head is not None
    for row_filter, wanted in FILTERS.items():
        queries.check_filter(blocks.lake, TABLE, row_filter)
        assert [row["id"] for row in blocks.rows(row_filter=row_filter)] == wanted, row_filter
        assert [row["id"] for row in blocks.rows(row_filter=row_filter, columns=("id",))] == wanted, row_filter
        counted = queries.stats(
            blocks.lake, TABLE, snapshot=head, within=EVERYTHING, partition_by=(), row_filter=row_filter
        )
        assert sum(item.tally.rows for item in counted) == len(wanted), row_filter
        found = each(blocks, ranges_of(0, 2, 5), row_filter=row_filter, columns=("id",))
        assert [row["id"] for _, _, answer in found for row in answer.get("rows", [])] == wanted, row_filter
        whole = sum((tally for _, tally, _ in found), Tally())
        assert whole == sum((item.tally for item in counted), Tally()), row_filter


def test_figures_of_one_partition_are_those_of_its_rows(blocks: Blocks) -> None:
    sales(blocks)
    head = blocks.state().head
    assert head is not None
    for site, ids in {"a": [1, 5], None: [2], "": [3], "nobody": []}.items():
        (stats,) = queries.stats(
            blocks.lake, TABLE, snapshot=head, within=EVERYTHING, partition_by=(), partition_values={"site": site}
        ) or [None]
        assert (stats.tally.rows if stats else 0) == len(ids)
        both = queries.stats(
            blocks.lake,
            TABLE,
            snapshot=head,
            within=EVERYTHING,
            partition_by=("site",),
            partition_values={"site": site},
            row_filter="id < 5",
        )
        assert sum(item.tally.rows for item in both) == len([id for id in ids if id < 5])


NO_FILTERS = (
    "",
    "nothing > 1",
    "site = ",
    "site = 'a' -- and more",
    "site = 'a'; DROP TABLE x",
    "_ingest_seq > 5",
    "`_ingest_segment` = 1",
    "_INGEST_ID like 'a%'",
    "id IN (SELECT 1)",
    "exists (select 1)",
    "id = (VALUES (1))",
    "count(*) > 1",
    "sum(amount) > 1",
    "rand() > 0.5",
    "random() > 0.5",
    "on < current_date",
    "on < current_date()",
    "current_timestamp > on",
    "_file LIKE 'x%'",
    "_pos = 1",
    "site = 'unclosed",
    "(id = 1",
    "id = 1) OR (id = 2",
)


def test_a_filter_that_cannot_be_used_is_permanent_and_named(blocks: Blocks) -> None:
    sales(blocks)
    for row_filter in NO_FILTERS:
        with pytest.raises(Permanent) as raised:
            queries.check_filter(blocks.lake, TABLE, row_filter)
        assert repr(row_filter) in raised.value.message
        assert "\n" not in raised.value.message
        with pytest.raises(Permanent):
            blocks.rows(row_filter=row_filter)
        with pytest.raises(Permanent):
            each(blocks, ranges_of(0, 5), row_filter=row_filter)


MORE_FILTERS = {
    "lower(site) = 'a' and length(site) = 1": [1, 5],
    "substring(site, 1, 1) = 'a' AND NOT startswith(site, 'a''')": [1, 5],
    "site = 'a\\'b\"`/=é'": [4],
    'site = "a\'b\\"`/=é"': [4],
    "site LIKE 'a\\'%' OR site RLIKE '^$'": [3, 4],
    "`Amount` / 2 > 10 AND amount % 20 = 0": [4],
    "-amount < -40": [5],
    "case when amount is null then 'none' when amount > 30 then 'much' else 'some' end = 'much'": [4, 5],
    "CASE id WHEN 1 THEN true ELSE false END": [1],
    "year(on) = 2026 AND month(on) = 5 AND extract(day from on) = 1": [1, 3, 4, 5],
    "on = DATE '2026-05-01'": [1, 3, 4, 5],
    "on > '2026-04-30' and on <= to_date('2026-05-01')": [1, 3, 4, 5],
    "cast(id as string) IN ('2', '3')": [2, 3],
    "cast(amount as int) = 1 or try_cast(site as int) = 7": [1],
    "site IS NOT DISTINCT FROM null": [2],
    "site <=> NULL OR id == 5": [2, 5],
    "coalesce(amount, 0) BETWEEN 0 AND 1 AND id NOT IN (1)": [3],
    "NOT site LIKE 'a%'": [3],
    "NOT NOT id = 3 OR id = 4 AND amount > 100": [3],
    "id + 1 * 2 = 3 OR (id - 1) - 1 = 2": [1, 4],
    "(amount > 30) IS TRUE": [4, 5],
    "(amount > 30) IS NOT TRUE": [1, 2, 3],
    "if(isnull(amount), 5, round(amount)) = 5": [3],
    "site = '${env:HOME}' or id = 1": [1],
    "site || 'x' = 'ax'": [1, 5],
    "site = 'now' or id = 1": [1],
    "pmod(id, 3) = 0": [3],
    "id IN (" + ", ".join(map(str, range(2, 3000))) + ")": [2, 3, 4, 5],
    " OR ".join(f"id = {number}" for number in range(4, 3000)): [4, 5],
}


def test_what_may_stand_in_a_filter_answers_alike_on_every_lake(blocks: Blocks) -> None:
    sales(blocks)
    found = {
        row_filter: [row["id"] for row in blocks.rows(row_filter=row_filter, columns=("id",))]
        for row_filter in MORE_FILTERS
    }
    assert found == MORE_FILTERS


def test_nothing_but_a_condition_over_columns_gets_to_an_engine(blocks: Blocks) -> None:
    """Each is refused by name, before an engine sees it: code, chance, the clock, the environment, other rows."""
    sales(blocks)
    for row_filter, named in {
        "`reflect`('java.lang.System', 'exit', 1) = site": "`reflect`",
        "`java_method`('java.lang.Runtime', 'getRuntime') = site": "`java_method`",
        "reflect('java.lang.System', 'exit', 1) = site": "reflect",
        "IDENTIFIER('reflect')('java.lang.System', 'exit', 1) = site": "IDENTIFIER",
        "`rand`() > 0.5": "`rand`",
        "system.builtin.rand() > 0.5": "system",
        "site.rand() > 0.5": "rand",
        "${env:HOME} = site": "[$]",
        "site = 'a' OR ${system:user.name} = 'x'": "[$]",
        "unix_timestamp() > id": "unix_timestamp",
        "on < DATE 'now'": "DATE 'now'",
        "on < TIMESTAMP 'today'": "TIMESTAMP 'today'",
        "site = concat('n', 'ow')": "concat",
        "site = 'n' || 'ow'": "[|][|]",
        "site = cast(X'6e6f77' as string)": "CAST",
        "exists(array(1), x -> x = 1)": "query",
        "array(1, 2)[0] = id": "array",
        "id = (SELECT 1)": "query",
        "/*+ BROADCAST(x) */ id = 1": "comment",
        "id = :secret": ":",
        "id = ?": "[?]",
        "count(*) > 1": "count",
        "sum(amount) OVER () > 1": "sum",
        "cast(id as struct<a:int>) is null": "struct",
        "now() > on": "now",
        "version() = site": "version",
        "input_file_name() = site": "input_file_name",
        "id = 1 LIMIT 1": "LIMIT",
        "(" * 100 + "id = 1" + ")" * 100: "nested",
    }.items():
        with pytest.raises(Permanent, match=named) as raised:
            queries.check_filter(blocks.lake, TABLE, row_filter)
        assert raised.value.hint
        with pytest.raises(Permanent, match="cannot be used"):
            blocks.rows(row_filter=row_filter)


def test_a_function_that_may_not_be_used_is_refused_with_the_list_of_those_that_may(blocks: Blocks) -> None:
    sales(blocks)
    with pytest.raises(Permanent, match="the function reflect may not be used") as raised:
        queries.check_filter(blocks.lake, TABLE, "reflect('java.lang.System', 'exit', 1) = site")
    assert "coalesce" in str(raised.value.hint)
    assert "year" in str(raised.value.hint)


@pytest.mark.spark
def test_a_word_for_the_present_time_is_refused_where_spark_would_take_it_for_one(
    spark_driver: SparkDriver, tmp_path: Path
) -> None:
    blocks = sales(Blocks(spark_driver, tmp_path))
    for row_filter in ("on < 'now'", "on = ' Today UTC'", "cast('yesterday' as date) < '2026-01-01'"):
        with pytest.raises(Permanent, match="the current time"):
            queries.check_filter(blocks.lake, TABLE, row_filter)
    queries.check_filter(blocks.lake, TABLE, "site = 'today'")


@pytest.mark.spark
def test_every_function_that_a_filter_may_use_is_one_of_sparks(spark_driver: SparkDriver) -> None:
    known = {row[0] for row in spark_driver.spark.sql("SHOW SYSTEM FUNCTIONS").collect()}
    assert set() == ALLOWED - known


@pytest.mark.spark
def test_the_text_that_spark_gets_means_what_was_written(spark_driver: SparkDriver) -> None:
    """Precedence, escapes and functions are Spark's: it would run the same for what was typed."""
    rows = spark_driver.spark.sql(
        "SELECT id AS id, string(id) AS site, DATE '2026-05-01' AS on, 1.5D AS amount FROM range(9)"
    )
    for row_filter in (*FILTERS, *(row_filter for row_filter in MORE_FILTERS if len(row_filter) < 1000)):
        made = check_filter(spark_driver.spark, row_filter, tuple((column.name, column.type) for column in SITES))
        if "${" in row_filter:
            assert "${" not in made
        else:
            assert optimized(rows.where(row_filter)) == optimized(rows.where(made)), row_filter


def optimized(frame: Any) -> str:
    """What Spark would run, without the numbers that it gives to expressions."""
    told = io.StringIO()
    with contextlib.redirect_stdout(told):
        frame.explain(extended=True)
    plan = told.getvalue().partition("== Optimized Logical Plan ==")[2].partition("== Physical Plan ==")[0]
    return re.sub(r"#\d+L?", "", plan)


def test_a_filter_that_fails_on_a_row_is_permanent_and_named(blocks: Blocks) -> None:
    sales(blocks)
    if isinstance(blocks.driver, MemoryDriver):
        return  # SQLite has no such failures: it answers null
    row_filter = "cast(site as int) > 1"
    queries.check_filter(blocks.lake, TABLE, row_filter)
    for read in (
        lambda: blocks.rows(row_filter=row_filter),
        lambda: each(blocks, ranges_of(0, 5), row_filter=row_filter),
    ):
        with pytest.raises(Permanent, match="cannot be used") as raised:
            read()
        assert repr(row_filter) in raised.value.message
        assert "\n" not in raised.value.message


def test_a_filter_may_be_given_before_the_table_is_there(blocks: Blocks) -> None:
    queries.check_filter(blocks.lake, "nothing_g1", "amount > 1")


def test_a_filter_may_use_a_column_that_came_after_the_snapshot(blocks: Blocks) -> None:
    """It is null in every row there: the same answer as in the rows themselves, read later."""
    blocks.commit(some(2))
    old = blocks.state().head
    wider = Schema.declare({"id": "long", "name": "string", "note": "string"})
    blocks.lake.ensure(TABLE, wider)
    assert old is not None
    for row_filter, wanted in {"note IS NULL": [0, 1], "note = 'x'": []}.items():
        parts = blocks.lake.scan(TABLE, snapshot=old, within=EVERYTHING, row_filter=row_filter)
        assert [row["id"] for part in parts for row in part.to_pylist()] == wanted
        found = each(blocks, ranges_of(0, 9), schema=wider, row_filter=row_filter)
        assert [row["id"] for _, _, answer in found for row in answer.get("rows", [])] == wanted


def test_one_partition_of_each_range_null_and_odd_values_too(ways: Blocks) -> None:
    sales(ways)
    for site, ids in {"a": [1, 5], None: [2], "": [3], "a'b\"`/=é": [4], "nobody": []}.items():
        found = each(ways, ranges_of(0, 3, 5), partition_values={"site": site}, columns=("id",))
        assert [row["id"] for _, _, answer in found for row in answer.get("rows", [])] == ids
        assert sum(tally.rows for _, tally, _ in found) == len(ids)
    found = each(ways, ranges_of(0, 5), partition_values={"on": date(2026, 5, 1), "site": "a"}, columns=("id", "on"))
    assert [row["id"] for _, _, answer in found for row in answer["rows"]] == [1, 5]
