"""The two lakes that the contract suites ask, other people's hands on their tables, and blocks to append."""

from __future__ import annotations

import itertools
import shutil
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from floodmark.commit.protocol import Append, Base, BlockSegment, TableState, Verdict, verdict
from floodmark.lake import queries
from floodmark.lake.table import Lake
from floodmark.rows.content import content_ids
from floodmark.schema import CONTENT_ID, SEGMENT, SEQ, Schema
from floodmark.sequence import SequenceRange
from floodmark.testing.memory.lake import MemoryLake

TABLE = "events_g1"
EVERYTHING = SequenceRange(0, 2**62)
SIMPLE = Schema.declare({"id": "long", "name": "string"})
TIMED = Schema.declare({"id": "long", "name": "string", "at": "timestamp"})
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


# ── the two lakes, and what happens to tables beside appends ─────────────────────────────────────────────────────────


class Driver(Protocol):
    """A lake, and other people's hands on its tables."""

    lake: Lake

    def compact(self, table: str) -> None: ...
    def delete(self, table: str, within: SequenceRange) -> None: ...
    def expire(self, table: str) -> None: ...
    def recreate(self, table: str, schema: Schema) -> None: ...
    def lose_data_files(self, table: str, within: SequenceRange) -> int: ...


@dataclass
class MemoryDriver:
    lake: MemoryLake = field(default_factory=MemoryLake)

    def compact(self, table: str) -> None:
        self.lake.compact(table)

    def delete(self, table: str, within: SequenceRange) -> None:
        self.lake.delete(table, within)

    def expire(self, table: str) -> None:
        self.lake.expire(table, keep_snapshots=1)

    def recreate(self, table: str, schema: Schema) -> None:
        self.lake.recreate(table)

    def lose_data_files(self, table: str, within: SequenceRange) -> int:
        files = self.lake.files_of(table, self.lake.load(table).head)
        lost = [id for id in files if any(seq in within for seq in self.lake.data[id][SEQ].to_pylist())]
        for id in lost:
            del self.lake.data[id]
        return len(lost)


@dataclass
class SparkDriver:
    lake: Any
    spark: Any

    @property
    def catalog(self) -> str:
        return self.lake.catalog.name

    def name(self, table: str) -> str:
        return self.lake.catalog.spark_name(table)

    def compact(self, table: str) -> None:
        self.spark.sql(
            f"CALL `{self.catalog}`.system.rewrite_data_files("
            f"table => 'datasets.{table}', options => map('rewrite-all', 'true'))"
        ).collect()

    def delete(self, table: str, within: SequenceRange) -> None:
        name = self.name(table)
        self.spark.sql(
            f"ALTER TABLE {name} SET TBLPROPERTIES "
            f"('write.delete.mode' = 'merge-on-read', 'floodmark.max-seq' = '{within.through}')"
        )
        self.spark.sql(f"DELETE FROM {name} WHERE {SEQ} > {within.after} AND {SEQ} <= {within.through}")

    def expire(self, table: str) -> None:
        self.spark.sql(
            f"CALL `{self.catalog}`.system.expire_snapshots("
            f"table => 'datasets.{table}', older_than => TIMESTAMP '2100-01-01 00:00:00', retain_last => 1)"
        ).collect()

    def recreate(self, table: str, schema: Schema) -> None:
        self.spark.sql(f"DROP TABLE {self.name(table)}")
        self.lake.ensure(table, schema)

    def lose_data_files(self, table: str, within: SequenceRange) -> int:
        from pyspark.sql import functions as F

        rows = self.spark.table(self.name(table)).where(f"{SEQ} > {within.after} AND {SEQ} <= {within.through}")
        found = [row[0] for row in rows.select(F.input_file_name()).distinct().collect()]
        for location in found:
            Path(location.removeprefix("file:").replace("//", "/")).unlink()
        return len(found)


@pytest.fixture(params=["memory", pytest.param("spark", marks=pytest.mark.spark)])
def driver(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Driver]:
    if request.param == "memory":
        yield MemoryDriver()
        return
    for made in spark_lake(request, tmp_path):
        made.lake.direct = request.param != "spark alone"
        yield made


however_rows_are_compared = pytest.mark.parametrize(
    "driver",
    ["memory", *(pytest.param(kind, marks=pytest.mark.spark) for kind in ("spark", "spark alone"))],
    indirect=True,
)
"""With Spark also without what is otherwise read and compared in the process itself."""


@pytest.fixture
def spark_driver(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SparkDriver]:
    yield from spark_lake(request, tmp_path)


def spark_lake(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SparkDriver]:
    from floodmark.lake.catalog import Catalog
    from floodmark.lake.spark import SparkLake

    spark = request.getfixturevalue("spark")
    home = tmp_path / "lake"
    home.mkdir()
    lake = SparkLake(Catalog.embedded(name=f"lake_{uuid.uuid4().hex[:12]}", lake=home), lambda: spark)
    yield SparkDriver(lake, spark)
    shutil.rmtree(home, ignore_errors=True)


# ── making blocks ────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Blocks:
    """Makes segments and appends of them, numbered one after the other as a flush would."""

    driver: Driver
    directory: Path
    schema: Schema = SIMPLE
    table: str = TABLE
    identity: tuple[tuple[str, ...], ...] = ()
    event_time: str | None = None
    any_time: bool = False
    by_content: bool = False
    through: int = 0
    ids: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    @property
    def lake(self) -> Lake:
        return self.driver.lake

    def segment(self, rows: Sequence[dict[str, Any]], *, row_group_rows: int = 1000) -> BlockSegment:
        id = next(self.ids)
        path = self.directory / f"segment-{id}.parquet"
        names = [name for name in self.schema.names if any(name in row for row in rows)]
        table = pa.Table.from_pylist([{name: row.get(name) for name in names} for row in rows], self.arrow(names))
        identifiers, _ = content_ids(table)
        stamped = table.append_column(CONTENT_ID, identifiers).append_column(
            SEGMENT, pa.repeat(pa.scalar(id, pa.int64()), len(rows))
        )
        pq.write_table(stamped, path, row_group_size=row_group_rows)
        return BlockSegment(id, str(path), len(rows), 0)

    def arrow(self, names: Sequence[str]) -> pa.Schema:
        return self.schema.arrow(names)

    def request(self, *segments: BlockSegment, base: Base | None = None, after: int | None = None) -> Append:
        start = after = self.through if after is None else after
        placed = []
        for segment in segments:
            placed.append(replace(segment, offset=start - after))
            start += segment.rows
        self.through = max(self.through, start)
        return Append(
            table=self.table,
            block=uuid.uuid4().hex,
            range=SequenceRange(after, start),
            base=base or self.base(),
            segments=tuple(placed),
            schema=self.schema,
            identity=self.identity,
            event_time=self.event_time,
            event_span=self._span(segments),
            any_time=self.any_time,
            by_content=self.by_content,
        )

    def _span(self, segments: Sequence[BlockSegment]) -> tuple[int, int] | None:
        if self.event_time is None:
            return None
        micros: list[int] = []
        for segment in segments:
            column = pq.read_table(segment.path, columns=[self.event_time])[self.event_time]
            column = column.cast(pa.timestamp("us", tz="UTC")) if pa.types.is_date(column.type) else column
            micros += [value for value in column.cast(pa.int64()).to_pylist() if value is not None]
        return (min(micros), max(micros)) if micros else None

    def base(self) -> Base:
        state = self.state()
        return Base(state.uuid, 1, state.head)

    def state(self) -> TableState:
        state = self.lake.load(self.table)
        assert state is not None
        return state

    def commit(self, *parts: Sequence[dict[str, Any]]) -> Append:
        """Append a block of segments, which is expected to land."""
        self.lake.ensure(self.table, self.schema)
        request = self.request(*[self.segment(part) for part in parts])
        assert self.lake.append(request) is True
        return request

    def rows(self, within: SequenceRange = EVERYTHING, **scan: Any) -> list[dict[str, Any]]:
        head = self.state().head
        if head is None:
            return []
        parts = self.lake.scan(self.table, snapshot=head, within=within, **scan)
        return [row for part in parts for row in part.to_pylist()]

    def verdict(self, request: Append) -> Verdict:
        state = self.lake.load(self.table)
        visible = False
        if state is not None and state.uuid == request.base.table_uuid and state.head is not None:
            visible = queries.has_rows(self.lake, self.table, snapshot=state.head, within=request.range)
        return verdict(block=request.block, base=request.base, fenced=False, state=state, row_visible=visible)


@pytest.fixture
def blocks(driver: Driver, tmp_path: Path) -> Blocks:
    return Blocks(driver, tmp_path)


def some(count: int, *, start: int = 0) -> list[dict[str, Any]]:
    return [{"id": start + index, "name": f"name {start + index}"} for index in range(count)]


def numbers(rows: Sequence[dict[str, Any]]) -> dict[int, int]:
    """The sequence number of each id; an id that is there twice fails."""
    found = {row["id"]: row[SEQ] for row in rows}
    assert len(found) == len(rows), "a row is there twice"
    return found


# ── values ───────────────────────────────────────────────────────────────────────────────────────────────────────────

EVERY_TYPE = {
    "a boolean": "boolean",
    "an int": "int",
    "a long": "long",
    "a float": "float",
    "a double": "double",
    "a string": "string",
    "a binary": "binary",
    "a date": "date",
    "a timestamp": "timestamp",
    "a json": "json",
    "a decimal": "decimal(38,9)",
    "a small decimal": "decimal(5,2)",
    "a list": "list<long>",
    "a struct": "struct<x:int,`y z`:list<struct<when:timestamp,what:json>>,d:decimal(10,3)>",
}
FULL = {
    "a boolean": True,
    "an int": -(2**31),
    "a long": 2**63 - 1,
    "a float": 0.5,
    "a double": 1e-300,
    "a string": "naïve 🌊\n\t\"quoted\" \\ 'single'",
    "a binary": b"\x00\xff\n",
    "a date": date(1900, 1, 1),
    "a timestamp": datetime(1850, 6, 1, 1, 2, 3, 456789, tzinfo=UTC),
    "a json": '{"b":[1,2,{"c":null}],"a":"é"}',
    "a decimal": Decimal("12345678901234567890123456789.123456789"),
    "a small decimal": Decimal("-999.99"),
    "a list": [1, None, -3],
    "a struct": {"x": 1, "y z": [{"when": NOON, "what": "[1]"}, None], "d": Decimal("1.500")},
}
EDGES = {
    "a boolean": False,
    "an int": 2**31 - 1,
    "a long": -(2**63),
    "a float": -0.0,
    "a double": float("inf"),
    "a string": "",
    "a binary": b"",
    "a date": date(9999, 12, 31),
    "a timestamp": datetime(2026, 3, 29, 1, 30, tzinfo=UTC),
    "a json": "null",
    "a decimal": Decimal("0E-9"),
    "a small decimal": Decimal("0.01"),
    "a list": [],
    "a struct": {"x": None, "y z": [], "d": None},
}
