"""What every target promises, told once and asked of each: tables in memory, and tables of another Iceberg catalog."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pytest
from lakes import Blocks, MemoryDriver, SparkDriver, some, spark_lake

from floodmark.commit.protocol import Base
from floodmark.errors import FilesMissing, Permanent, Retryable, SchemaConflict
from floodmark.lake import queries
from floodmark.lake.targets import (
    ORIGIN_COLUMNS,
    ORIGIN_SEQ,
    Claim,
    Cut,
    Fate,
    Mark,
    Origin,
    Target,
    TargetAppend,
    TargetName,
    TargetState,
    check_claim,
    fate,
    missing_columns,
)
from floodmark.lake.types import spark_type
from floodmark.schema import INT, LONG, STRING, ColumnType, Schema
from floodmark.sequence import SequenceRange, Tally

ORIGIN = Origin("store-1", "events", "all")
CLAIM = Claim("store-1", "events")
SHAPE = Schema.declare({"id": "long", "name": "string"})
EVERYTHING = SequenceRange(0, 2**62)


class Hands(Protocol):
    """A target, and other people's hands on it."""

    target: Target
    driver: Any

    def rows(self) -> list[dict[str, Any]]: ...
    def create(self, columns: dict[str, ColumnType]) -> None: ...
    def add(self, numbers: list[int], *, store: str = "another", partition: str = "all") -> None: ...
    def compact(self) -> None: ...
    def delete(self, within: SequenceRange) -> None: ...
    def expire(self) -> None: ...
    def drop(self) -> None: ...
    def lose_data_files(self) -> None: ...


@dataclass
class MemoryHands:
    target: Any
    driver: MemoryDriver

    @property
    def lake(self) -> Any:
        return self.driver.lake

    @property
    def name(self) -> str:
        return str(self.target.name)

    def rows(self) -> list[dict[str, Any]]:
        return self.lake.targets.rows(self.name)

    def create(self, columns: dict[str, ColumnType]) -> None:
        self.lake.targets.create(self.name, columns)

    def add(self, numbers: list[int], *, store: str = "another", partition: str = "all") -> None:
        self.lake.targets.add(self.name, stranger(numbers, store, partition))

    def compact(self) -> None:
        self.lake.targets.compact(self.name)

    def delete(self, within: SequenceRange) -> None:
        self.lake.targets.delete(self.name, within)

    def expire(self) -> None:
        self.lake.targets.expire(self.name)

    def drop(self) -> None:
        self.lake.targets.drop(self.name)

    def lose_data_files(self) -> None:
        self.lake.targets.data.clear()


@dataclass
class SparkHands:
    target: Any
    driver: SparkDriver
    home: Path

    @property
    def spark(self) -> Any:
        return self.target.spark

    @property
    def name(self) -> str:
        return self.target.catalog.spark_name(self.target.name.table)

    def _call(self, procedure: str, options: str = "") -> None:
        table = f"{self.target.name.namespace}.{self.target.name.table}"
        self.spark.sql(f"CALL {self.target.name.catalog}.system.{procedure}(table => '{table}'{options})").collect()

    def rows(self) -> list[dict[str, Any]]:
        found = self.spark.read.table(self.name).orderBy(ORIGIN_SEQ).toArrow()
        return found.to_pylist()

    def create(self, columns: dict[str, ColumnType]) -> None:
        shape = ", ".join(f"{name} {spark_type(kind)}" for name, kind in columns.items())
        self.target.spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {self.target.name.catalog}.copies")
        self.spark.sql(f"CREATE OR REPLACE TABLE {self.name} ({shape}) USING iceberg")

    def add(self, numbers: list[int], *, store: str = "another", partition: str = "all") -> None:
        self.spark.createDataFrame(stranger(numbers, store, partition)).createOrReplaceTempView("strangers")
        columns = {column.name for column in self.target.load().columns}
        names = ", ".join(name for name in ("id", *ORIGIN_COLUMNS) if name in columns)
        self.spark.sql(f"INSERT INTO {self.name} ({names}) SELECT {names} FROM strangers")

    def compact(self) -> None:
        self._call("rewrite_data_files", ", options => map('rewrite-all', 'true')")

    def delete(self, within: SequenceRange) -> None:
        self.spark.sql(f"ALTER TABLE {self.name} SET TBLPROPERTIES ('write.delete.mode' = 'merge-on-read')")
        self.spark.sql(
            f"DELETE FROM {self.name} WHERE _origin_seq > {within.after} AND _origin_seq <= {within.through}"
        )

    def expire(self) -> None:
        self._call("expire_snapshots", ", older_than => TIMESTAMP '2100-01-01 00:00:00', retain_last => 1")

    def drop(self) -> None:
        self.spark.sql(f"DROP TABLE {self.name}")

    def lose_data_files(self) -> None:
        for path in self.home.rglob("data/*.parquet"):
            path.unlink()


def stranger(numbers: list[int], store: str, partition: str) -> pa.Table:
    return pa.table(
        {
            "id": pa.array([0] * len(numbers), pa.int64()),
            "_origin_store": pa.array([store] * len(numbers)),
            "_origin_seq": pa.array(numbers, pa.int64()),
            "_origin_partition": pa.array([partition] * len(numbers)),
        }
    )


KINDS = ["memory", pytest.param("described", marks=pytest.mark.spark)]
"""In memory, and in a catalog of the settings file."""
of_every_catalog = pytest.mark.parametrize(
    "hands", [*KINDS, pytest.param("of the session", marks=pytest.mark.spark)], indirect=True
)
"""… and in one that only the Spark session knows: it is found in another way, and its cache is on."""


@pytest.fixture(params=KINDS)
def hands(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Hands]:
    if request.param == "memory":
        driver = MemoryDriver()
        yield MemoryHands(driver.lake.target(TargetName("central", "copies", "events")), driver)
        return
    for spark_driver in spark_lake(request, tmp_path):
        yield spark_hands(spark_driver, tmp_path / "central", described=request.param == "described")


@pytest.fixture
def blocks(hands: Hands, tmp_path: Path) -> Blocks:
    """The rows of the lake that delivers."""
    return Blocks(hands.driver, tmp_path)


def spark_hands(driver: SparkDriver, home: Path, *, described: bool) -> SparkHands:
    from floodmark.config import CatalogSettings

    home.mkdir()
    lake = driver.lake
    catalog = f"central_{uuid.uuid4().hex[:12]}"
    if described:
        lake.catalogs = {catalog: CatalogSettings("sql", f"sqlite:///{home / 'catalog.db'}", home.as_uri())}
    else:
        settings = {
            "": "org.apache.iceberg.spark.SparkCatalog",
            ".type": "jdbc",
            ".uri": f"jdbc:sqlite:{home / 'catalog.db'}",
            ".jdbc.schema-version": "V1",
            ".warehouse": home.as_uri(),
        }
        for key, value in settings.items():
            lake.spark.conf.set(f"spark.sql.catalog.{catalog}{key}", value)
        lake.spark.sql(f"SHOW NAMESPACES IN {catalog}").collect()  # in use before us: its cache stays on
    return SparkHands(lake.target(TargetName(catalog, "copies", "events")), driver, home)


# ── short ways ───────────────────────────────────────────────────────────────────────────────────────────────────────


def cut_of(blocks: Blocks, after: int, through: int, **more: Any) -> Cut:
    head = blocks.state().head
    assert head is not None
    return Cut(blocks.table, head, SequenceRange(after, through), **{"columns": blocks.schema, **more})


def loaded(hands: Hands) -> TargetState:
    state = hands.target.load()
    assert state is not None
    return state


def send(hands: Hands, cut: Cut, *, head: int | None = None, fresh: bool = True) -> Mark:
    """Append a range on a head (the newest, if none is named)."""
    mark = Mark(ORIGIN, cut.range, queries.tally(hands.target.lake, cut), Tally(7, 9))
    on = loaded(hands).history.head if fresh else head
    hands.target.append(TargetAppend(mark, on, cut, cut.columns))
    return mark


def numbers(hands: Hands) -> list[int]:
    return [row[ORIGIN_SEQ] for row in hands.rows()]


# ── loading, shape ───────────────────────────────────────────────────────────────────────────────────────────────────


@of_every_catalog
def test_a_table_that_is_not_there_is_none_and_one_that_is_made_is_empty(hands: Hands):
    assert hands.target.load() is None
    hands.target.fit(SHAPE, CLAIM)
    state = loaded(hands)
    assert state.history.lineage == ()
    assert {column.name: column.type for column in state.columns} == {"id": LONG, "name": STRING, **ORIGIN_COLUMNS}
    assert check_claim(hands.target.name, state, CLAIM)
    assert not missing_columns(hands.target.name, state, SHAPE)
    hands.drop()
    assert hands.target.load() is None


def test_fit_adds_what_is_missing_and_no_snapshot(hands: Hands, blocks: Blocks):
    hands.create({**ORIGIN_COLUMNS, "id": INT, "note": STRING})
    hands.add([1])
    before = loaded(hands).history
    wider = Schema.declare({"id": "long", "name": "string", "tags": "list<string>", "at": "timestamp", "raw": "json"})
    assert missing_columns(hands.target.name, loaded(hands), wider)

    hands.target.fit(wider, replace(CLAIM, row_filter="name = 'it''s'"))
    hands.target.fit(wider, replace(CLAIM, row_filter="name = 'it''s'"))

    state = loaded(hands)
    assert (state.history.uuid, state.history.lineage) == (before.uuid, before.lineage)
    assert not missing_columns(hands.target.name, state, wider)
    assert check_claim(hands.target.name, state, replace(CLAIM, row_filter="name = 'it''s'"))
    with pytest.raises(Permanent):
        check_claim(hands.target.name, state, CLAIM)


def test_rows_of_every_type_arrive_as_they_are(hands: Hands, tmp_path: Path):
    schema = Schema.declare(
        {
            "flag": "boolean",
            "small": "int",
            "part": "float",
            "money": "decimal(12,2)",
            "data": "binary",
            "at": "timestamp",
            "raw": "json",
            "tags": "list<string>",
            "place": "struct<x:double,`odd name`:string>",
            "Mixed Case": "string",
        }
    )
    rows = [
        {
            "flag": True,
            "small": -1,
            "part": 0.5,
            "money": Decimal("12.30"),
            "data": b"\x00\xff",
            "at": datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC),
            "raw": '{"a":1}',
            "tags": ["x", None],
            "place": {"x": 1.5, "odd name": "y"},
            "Mixed Case": "z",
        },
        dict.fromkeys(schema.names),
    ]
    made = Blocks(hands.driver, tmp_path, schema=schema)
    made.commit(rows)
    hands.target.fit(schema, CLAIM)
    send(hands, cut_of(made, 0, 2))
    there = [{name: row[name] for name in schema.names} for row in hands.rows()]
    assert there == rows


def test_what_the_table_has_beyond_the_dataset_is_null_and_narrower_values_widen(hands: Hands, tmp_path: Path):
    made = Blocks(hands.driver, tmp_path, schema=Schema.declare({"id": "int"}))
    made.commit([{"id": 1}])
    hands.create({"note": STRING, **ORIGIN_COLUMNS, "id": LONG})
    send(hands, cut_of(made, 0, 1))
    assert [(row["id"], row.get("note"), row[ORIGIN_SEQ]) for row in hands.rows()] == [(1, None, 1)]


# ── the cut ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_cut_is_measured_and_copied_as_its_conditions_say(hands: Hands, blocks: Blocks):
    blocks.commit(some(4), some(4, start=4))
    hands.target.fit(SHAPE, CLAIM)
    whole = queries.tally(hands.target.lake, cut_of(blocks, 0, 8))
    assert (whole.rows, queries.last_seq(hands.target.lake, cut_of(blocks, 0, 8))) == (8, 8)
    parts = [queries.tally(hands.target.lake, cut_of(blocks, *edges)) for edges in ((0, 3), (3, 8))]
    assert parts[0] + parts[1] == whole
    some_of_them = [cut_of(blocks, 0, 8, row_filter=condition) for condition in ("id < 3", "NOT id < 3")]
    assert (
        queries.tally(hands.target.lake, some_of_them[0]) + queries.tally(hands.target.lake, some_of_them[1]) == whole
    )
    but_one = queries.tally(hands.target.lake, cut_of(blocks, 0, 8, without=frozenset({4})))
    assert but_one + queries.tally(hands.target.lake, cut_of(blocks, 3, 4)) == whole
    assert queries.tally(hands.target.lake, cut_of(blocks, 8, 99)) == Tally()
    assert queries.last_seq(hands.target.lake, cut_of(blocks, 8, 99)) == 0

    cut = cut_of(blocks, 1, 8, partition_values={"name": "name 3"})
    assert queries.last_seq(hands.target.lake, cut) == 4
    send(hands, cut)
    send(hands, cut_of(blocks, 4, 8, row_filter="id >= 6", without=frozenset({8})))
    assert [(row[ORIGIN_SEQ], row["id"]) for row in hands.rows()] == [(4, 3), (7, 6)]


def test_a_column_that_the_source_does_not_have_yet_is_null(hands: Hands, blocks: Blocks):
    blocks.commit(some(1))
    grown = blocks.schema.merge(Schema.declare({"later": "long"}).columns)
    hands.target.fit(grown, CLAIM)
    send(hands, cut_of(blocks, 0, 1, columns=grown))
    assert hands.rows()[0]["later"] is None


def test_rows_at_hand_are_appended_like_a_cut(hands: Hands, blocks: Blocks):
    hands.target.fit(SHAPE, CLAIM)
    rows = pa.table({"id": pa.array([5], pa.int64()), "name": ["five"], ORIGIN_SEQ: pa.array([3], pa.int64())})
    mark = Mark(ORIGIN, SequenceRange(2, 3), Tally(1, 1))
    hands.target.append(TargetAppend(mark, None, rows, SHAPE))
    assert [(row["id"], row[ORIGIN_SEQ], row["_origin_store"]) for row in hands.rows()] == [(5, 3, "store-1")]


# ── compare and swap, and what is known of it ────────────────────────────────────────────────────────────────────────


def test_a_commit_carries_its_mark_and_its_size(hands: Hands, blocks: Blocks):
    blocks.commit(some(3))
    hands.target.fit(SHAPE, CLAIM)
    mark = send(hands, cut_of(blocks, 0, 3))
    state = loaded(hands)
    landed = next(iter(state.chunks_of(ORIGIN)))
    assert landed.mark == mark
    assert landed.mark.totals == Tally(7, 9)
    assert landed.bytes > 0
    assert state.history.lineage[0].operation == "append"
    assert list(state.chunks_of(replace(ORIGIN, partition="other"))) == []


@pytest.mark.parametrize("partition", ["all", "site=a%2Fb/day=2026-01-01", "site!", "site=%C3%A4"])
def test_a_mark_is_read_back_whatever_its_partition(partition: str):
    mark = Mark(replace(ORIGIN, partition=partition), SequenceRange(3, 2**62), Tally(2**40, 2**64 - 1))
    assert Mark.parse(mark.properties) == mark
    assert Mark.parse({"floodmark.chunk": "nonsense"}) is None
    assert Mark.parse({}) is None


@of_every_catalog
def test_an_append_lands_only_on_the_head_it_was_prepared_for(hands: Hands, blocks: Blocks):
    blocks.commit(some(4))
    hands.target.fit(SHAPE, CLAIM)
    for head in (None, loaded(hands).history.head):
        assert head is None
    send(hands, cut_of(blocks, 0, 2))
    head = loaded(hands).history.head
    with pytest.raises(Exception):
        send(hands, cut_of(blocks, 0, 2), head=None, fresh=False)
    hands.add([1])
    with pytest.raises(Exception):
        send(hands, cut_of(blocks, 2, 4), head=head, fresh=False)
    hands.compact()
    send(hands, cut_of(blocks, 2, 4))
    ours = [row[ORIGIN_SEQ] for row in hands.rows() if row["_origin_store"] == "store-1"]
    assert ours == [1, 2, 3, 4]


def test_compaction_and_deletes_in_between_do_not_disturb_an_append(hands: Hands, blocks: Blocks):
    blocks.commit(some(4))
    hands.target.fit(SHAPE, CLAIM)
    send(hands, cut_of(blocks, 0, 2))
    head = loaded(hands).history.head
    hands.compact()
    hands.delete(SequenceRange(0, 1))
    send(hands, cut_of(blocks, 2, 4), head=head, fresh=False)
    assert numbers(hands) == [2, 3, 4]


@pytest.mark.parametrize("base_is", ["none", "a snapshot"])
def test_a_request_from_before_everything_known_is_refused(base_is: str, hands: Hands, blocks: Blocks):
    blocks.commit(some(6))
    hands.target.fit(SHAPE, CLAIM)
    if base_is == "a snapshot":
        hands.add([99])
    head = loaded(hands).history.head
    send(hands, cut_of(blocks, 0, 2))
    send(hands, cut_of(blocks, 2, 4))
    hands.compact()
    hands.expire()
    with pytest.raises(Exception):
        send(hands, cut_of(blocks, 0, 2), head=head, fresh=False)
    ours = [row[ORIGIN_SEQ] for row in hands.rows() if row["_origin_store"] == "store-1"]
    assert sorted(ours) == [1, 2, 3, 4]


def test_the_fate_of_a_chunk_through_the_target_s_life(hands: Hands, blocks: Blocks):
    blocks.commit(some(6))
    hands.target.fit(SHAPE, CLAIM)
    base = loaded(hands).base

    def told(mark: Mark, *, first_look: bool = False) -> Fate:
        return fate(mark, base=base, state=hands.target.load(), first_look=first_look)

    first = Mark(ORIGIN, SequenceRange(0, 3), queries.tally(hands.target.lake, cut_of(blocks, 0, 3)))
    assert told(first, first_look=True) is Fate.OPEN
    send(hands, cut_of(blocks, 0, 3))
    assert told(first) is Fate.DELIVERED
    assert told(replace(first, tally=Tally(1, 1))) is Fate.OTHER_ROWS
    assert told(replace(first, range=SequenceRange(0, 6))) is Fate.OTHER_RANGES
    assert told(replace(first, range=SequenceRange(3, 6))) is Fate.OPEN
    assert told(replace(first, origin=replace(ORIGIN, partition="b"))) is Fate.OPEN
    hands.delete(SequenceRange(0, 3))
    assert told(first) is Fate.DELIVERED, "a user's delete does not undo a delivery"
    hands.add([1])
    hands.compact()
    hands.expire()
    assert told(first) is Fate.ASK_ROWS
    assert told(replace(first, range=SequenceRange(3, 6))) is Fate.ASK_ROWS
    base = loaded(hands).base
    assert told(replace(first, range=SequenceRange(3, 6)), first_look=True) is Fate.ASK_ROWS
    assert told(replace(first, range=SequenceRange(3, 6))) is Fate.OPEN
    hands.drop()
    assert told(first) is Fate.OTHER_TABLE
    hands.target.fit(SHAPE, CLAIM)
    assert told(first) is Fate.OTHER_TABLE
    assert fate(first, base=Base("x", 0, None), state=hands.target.load(), first_look=False) is Fate.OTHER_TABLE


def test_rows_are_seen_by_store_partition_and_number(hands: Hands, blocks: Blocks):
    blocks.commit(some(4))
    hands.target.fit(SHAPE, CLAIM)
    empty = loaded(hands)
    assert hands.target.seen(empty, store="store-1", partition=None, within=EVERYTHING).tally.rows == 0
    send(hands, cut_of(blocks, 0, 4))
    hands.add([1, 2, 50])
    hands.add([60], store="store-1", partition="other")
    hands.delete(SequenceRange(3, 4))
    state = loaded(hands)

    def seen(store: str, partition: str | None, after: int, through: int) -> tuple[int, int]:
        found = hands.target.seen(state, store=store, partition=partition, within=SequenceRange(after, through))
        return found.tally.rows, found.last

    assert seen("store-1", "all", 0, 100) == (3, 3)
    assert seen("store-1", "all", 1, 2) == (1, 2)
    assert seen("store-1", None, 0, 100) == (4, 60)
    assert seen("another", "all", 0, 100) == (3, 50)
    assert seen("nobody", None, 0, 100) == (0, 0)


@of_every_catalog
def test_another_process_s_commit_is_seen_at_once(hands: Hands, blocks: Blocks):
    """Also in a catalog whose cache was on before we came."""
    blocks.commit(some(2))
    hands.target.fit(SHAPE, CLAIM)
    for count in range(1, 4):
        hands.add([count])
        assert len(loaded(hands).history.lineage) == count
    send(hands, cut_of(blocks, 0, 2))
    assert len(list(loaded(hands).chunks_of(ORIGIN))) == 1


# ── durability ───────────────────────────────────────────────────────────────────────────────────────────────────────


@of_every_catalog
def test_sync_covers_a_commit_and_notices_what_is_missing(hands: Hands, blocks: Blocks):
    blocks.commit(some(2))
    hands.target.fit(SHAPE, CLAIM)
    base = loaded(hands).history.head
    send(hands, cut_of(blocks, 0, 2))
    state = loaded(hands)
    hands.target.sync(state, since=base)
    hands.lose_data_files()
    with pytest.raises(FilesMissing):
        hands.target.sync(state, since=base)


# ── Spark alone ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.spark
def test_a_catalog_that_nobody_knows_is_named_with_the_section_it_needs(spark_driver: Any):
    with pytest.raises(Permanent, match=r"\[catalogs\.nowhere\]"):
        spark_driver.lake.target(TargetName("nowhere", "a", "b"))
    own = spark_driver.lake.catalog.name
    with pytest.raises(Permanent, match="namespace of the store"):
        spark_driver.lake.target(TargetName(own, "datasets", "b"))
    spark_driver.lake.target(TargetName(own, "copies", "b")).fit(SHAPE, CLAIM)


@pytest.mark.spark
def test_a_catalog_that_does_not_answer_is_asked_again_later(spark_driver: Any, tmp_path: Path):
    from floodmark.config import CatalogSettings

    missing = tmp_path / "nowhere" / "catalog.db"
    spark_driver.lake.catalogs = {
        "gone": CatalogSettings("sql", f"sqlite:///{missing}", tmp_path.as_uri()),
        "silent": CatalogSettings("rest", "http://127.0.0.1:9", None),
    }
    for name in ("gone", "silent"):
        with pytest.raises(Retryable, match=name):
            spark_driver.lake.target(TargetName(name, "a", "b")).load()


@pytest.mark.spark
def test_a_foreign_table_s_own_types_stand_in_nobody_s_way(spark_driver: Any, tmp_path: Path):
    hands = spark_hands(spark_driver, tmp_path / "central", described=True)
    made = Blocks(spark_driver, tmp_path)
    made.commit(some(1))
    hands.target.spark.sql(f"CREATE NAMESPACE {hands.target.name.catalog}.copies")
    hands.spark.sql(
        f"CREATE TABLE {hands.name} (_origin_store string, _origin_seq bigint, _origin_partition string, "
        "id bigint, name string, odd map<string, int>, local timestamp_ntz) USING iceberg"
    )
    send(hands, cut_of(made, 0, 1))
    assert hands.rows()[0]["odd"] is None
    state = loaded(hands)
    for name, kind in (("local", "timestamp"), ("odd", "string"), ("name", "long")):
        with pytest.raises(SchemaConflict, match=name):
            missing_columns(hands.target.name, state, Schema.declare({name: kind}))


@pytest.mark.spark
def test_a_column_that_needs_a_value_is_named(spark_driver: Any, tmp_path: Path):
    hands = spark_hands(spark_driver, tmp_path / "central", described=True)
    hands.create(dict(ORIGIN_COLUMNS))
    hands.spark.sql(
        f"CREATE OR REPLACE TABLE {hands.name} (_origin_store string, _origin_seq bigint not null, "
        "_origin_partition string, id bigint, owner string not null) USING iceberg"
    )
    with pytest.raises(SchemaConflict, match="'owner'"):
        missing_columns(hands.target.name, loaded(hands), SHAPE)
