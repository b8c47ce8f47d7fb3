"""Duplicates of a batch are found in this process as Spark finds them: exactly, or not at all."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from floodmark.commit.protocol import Append, Base, BlockSegment
from floodmark.lake import duplicates
from floodmark.lake.duplicates import KeyCache, duplicates_here
from floodmark.lake.manifests import Manifests
from floodmark.lake.overlap import Overlap, overlap
from floodmark.rows.identities import near_in_time
from floodmark.schema import SEQ, Schema
from floodmark.sequence import SequenceRange
from seeds import SEED

SCHEMA = Schema.declare({"id": "string", "site": "long", "at": "timestamp", "ratio": "double"})
START = datetime(2026, 1, 1, tzinfo=UTC)
Row = tuple[str | None, int | None, int | None]
"""id, site, hour of the event"""


def at(hour: int | None) -> datetime | None:
    return None if hour is None else START + timedelta(hours=hour)


def arrow(rows: Sequence[Row]) -> pa.Table:
    columns = list(zip(*rows, strict=True)) if rows else [(), (), ()]
    values = {"id": columns[0], "site": columns[1], "at": [at(hour) for hour in columns[2]], "ratio": [0.5] * len(rows)}
    return pa.table(values, schema=SCHEMA.arrow(SCHEMA.names))


class Lake:
    """A table with numbered rows, and segments that wait beside it."""

    def __init__(self, home: Path) -> None:
        from pyiceberg.catalog.sql import SqlCatalog

        self.home = home
        catalog = SqlCatalog("c", uri=f"sqlite:///{home}/c.db", warehouse=f"file://{home}/w")
        catalog.create_namespace("n")
        numbered = arrow([]).append_column(pa.field(SEQ, pa.int64()), pa.array([], pa.int64()))
        self.table = catalog.create_table("n.t", schema=numbered.schema)
        self.through = 0
        self.manifests = Manifests()

    def commit(self, rows: Sequence[Row]) -> None:
        numbers = pa.array(range(self.through + 1, self.through + 1 + len(rows)), pa.int64())
        self.table.append(arrow(rows).append_column(pa.field(SEQ, pa.int64()), numbers))
        self.through += len(rows)

    def request(self, *segments: Sequence[Row], **options: Any) -> Append:
        made, offset = [], 0
        for id, rows in enumerate(segments):
            path = self.home / f"segment-{id}.parquet"
            pq.write_table(arrow(rows), path)
            made.append(BlockSegment(id, str(path), len(rows), offset))
            offset += len(rows)
        hours = [hour for rows in segments for *_, hour in rows if hour is not None]
        micros = [int(START.timestamp() * 1e6) + hour * 3_600_000_000 for hour in hours]
        whole = {
            "identity": (("id",),),
            "event_time": "at",
            "event_span": (min(micros), max(micros)) if micros else None,
            **options,
        }
        base = Base("uuid", 1, self.table.current_snapshot().snapshot_id)
        return Append("t", "b", SequenceRange(self.through, self.through + offset), base, tuple(made), SCHEMA, **whole)

    def near(self, request: Append) -> Overlap:
        found = overlap(
            self.table,
            request,
            request.event_span,
            snapshot=request.base.snapshot,
            timed=False,
            manifests=self.manifests,
        )
        assert found is not None
        return found

    def duplicates(self, request: Append, *, distinct: bool = False, cache: KeyCache | None = None) -> list[int] | None:
        return duplicates_here(self.table, request, self.near(request), distinct=distinct, cache=cache or KeyCache())


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    made = Lake(tmp_path)
    made.commit([("a", 1, 1), ("b", 1, 2), ("c", 2, None)])
    made.commit([("d", 1, 50), (None, 1, 51)])
    return made


def test_rows_that_are_committed_and_rows_that_come_twice(lake: Lake) -> None:
    request = lake.request([("a", 9, 1), ("x", 1, 2)], [("x", 2, 2), ("y", 1, 1), ("c", 1, None)])
    assert lake.duplicates(request) == [6, 8, 10]


def test_the_event_time_is_a_part_of_the_key(lake: Lake) -> None:
    request = lake.request([("a", 1, 2), ("b", 1, 2), ("c", 1, 1)])
    assert lake.duplicates(request) == [7]
    assert lake.duplicates(replace(request, any_time=True)) == [6, 7, 8]


def test_rows_without_an_identity_are_nobodys_duplicate(lake: Lake) -> None:
    assert lake.duplicates(lake.request([(None, 1, 51), (None, 1, 51)])) == []


def test_identities_of_several_columns(lake: Lake) -> None:
    request = lake.request([("a", 2, 1), ("a", 1, 1), (None, 1, 1)], identity=(("id", "site"),))
    assert lake.duplicates(request) == [7]


def test_a_column_that_is_newer_than_the_segment(lake: Lake) -> None:
    request = lake.request([("a", 1, 1)])
    path = Path(request.segments[0].path)
    pq.write_table(pq.read_table(path).drop_columns(["at"]), path)
    assert lake.duplicates(request) == []
    pq.write_table(pq.read_table(path).drop_columns(["id"]), path)
    assert lake.duplicates(request) == []


@pytest.mark.parametrize(
    "options", [{"identity": (("id",), ("site",))}, {"identity": (("ratio",),)}, {"identity": (("newer",),)}]
)
def test_what_is_for_spark_to_find_out(lake: Lake, options: dict[str, Any]) -> None:
    assert lake.duplicates(lake.request([("a", 1, 1)], **options)) is None


def test_what_is_too_much_is_for_spark(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    request = lake.request([("a", 1, 1), ("a", 1, 1)])
    assert lake.duplicates(request) == [6, 7]
    monkeypatch.setattr(duplicates, "COMMITTED_ROWS_MAX", 2)
    assert lake.duplicates(request) is None
    monkeypatch.undo()
    monkeypatch.setattr(duplicates, "BATCH_ROWS_MAX", 1)
    assert lake.duplicates(request) is None


def test_a_large_batch_of_distinct_rows_is_compared_part_by_part_with_a_few_committed_ones(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[Row] = [("a", 1, 1), *((f"n{n}", 1, 1) for n in range(6)), ("b", 1, 2), ("e", 1, 2)]
    request = lake.request(rows, [("d", 1, 50), ("f", 1, 50)])
    for segment in request.segments:  # several row groups
        pq.write_table(pq.read_table(segment.path), segment.path, row_group_size=2)
    found = lake.duplicates(request, distinct=True)
    assert found == [6, 13, 15]
    monkeypatch.setattr(duplicates, "BATCH_ROWS_MAX", 10)
    assert lake.duplicates(request, distinct=True) == found
    assert lake.duplicates(request) is None  # they might be twice in the batch
    monkeypatch.setattr(duplicates, "BATCH_ROWS_MAX", 1)
    assert lake.duplicates(request, distinct=True) is None  # too many committed ones


def test_a_file_with_deleted_rows_is_for_spark(lake: Lake) -> None:
    request = lake.request([("a", 1, 1)])
    near = lake.near(request)
    deleted = replace(near, listed=tuple(file._replace(is_plain=False) for file in near.listed))
    assert duplicates_here(lake.table, request, deleted, distinct=True, cache=KeyCache()) is None


def test_a_file_is_read_once(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    real = duplicates.read_keys

    def counted(table: Any, file: Any, columns: Any) -> pa.Table:
        read.append(file.location)
        return real(table, file, columns)

    monkeypatch.setattr(duplicates, "read_keys", counted)
    cache = KeyCache()
    for _ in range(3):
        assert lake.duplicates(lake.request([("a", 1, 1)]), cache=cache) == [6]
    assert len(read) == 1
    lake.commit([("e", 1, 1)])
    assert lake.duplicates(lake.request([("e", 1, 1)]), cache=cache) == [7]
    assert len(read) == 2


def test_rows_of_other_times_are_not_compared() -> None:
    stored = arrow([*((f"row {hour}", 1, hour) for hour in range(100)), ("timeless", 1, None)])

    def compared(*hours: int | None) -> list[str]:
        (part,) = near_in_time(arrow([("x", 1, hour) for hour in hours]), [stored], "at")
        return part["id"].to_pylist()

    assert compared(30, 32) == ["row 30", "row 31", "row 32"]
    assert compared(30, None) == ["row 30", "timeless"]
    assert compared(None) == ["timeless"]
    assert compared(200) == []
    assert compared(0, 99) == stored["id"].to_pylist()  # not worth a copy


def test_what_is_kept_of_files_is_bounded(lake: Lake) -> None:
    cache = KeyCache(bytes_max=400)
    for number in range(20):
        lake.commit([(f"row {number}", 1, 3)])
        assert lake.duplicates(lake.request([(f"row {number}", 1, 3)]), cache=cache) == [lake.through + 1]
        assert cache.bytes <= 400


def test_any_batch_against_any_table(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    lake = Lake(tmp_path)
    lake.commit([("0", 0, 0)])
    committed: list[Row] = [("0", 0, 0)]
    cache = KeyCache(bytes_max=2_000)

    def some(count: int) -> list[Row]:
        return [
            (
                chance.choice([None, *map(str, range(12))]),
                chance.choice([None, 0, 1]),
                chance.choice([None, 0, 1, 2, 90]),
            )
            for _ in range(count)
        ]

    for _ in range(60):
        identity = chance.choice([("id",), ("id", "site"), ("site", "id")])
        scope = chance.random() < 0.3
        segments = [some(chance.randrange(1, 6)) for _ in range(chance.randrange(1, 4))]
        request = lake.request(*segments, identity=(identity,), any_time=scope)

        def key(row: Row, identity: tuple[str, ...] = identity, scope: bool = scope) -> tuple[Any, ...] | None:
            named = dict(zip(("id", "site"), row[:2], strict=True))
            parts = [named[name] for name in identity]
            return None if None in parts else (*parts, None if scope else row[2])

        seen, expected = {key(row) for row in committed}, []
        for number, row in enumerate([row for rows in segments for row in rows], lake.through + 1):
            if key(row) is not None and key(row) in seen:
                expected.append(number)
            seen.add(key(row))
        assert lake.duplicates(request, cache=cache) == expected
        new = some(chance.randrange(1, 5))
        lake.commit(new)
        committed += new
