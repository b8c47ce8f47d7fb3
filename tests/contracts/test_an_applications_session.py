"""An application's own Spark session, with settings that would lose or change rows: what is committed is the same."""

from __future__ import annotations

import uuid
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from lakes import EDGES, EVERY_TYPE, FULL, NOON, SIMPLE, TABLE, TIMED, Blocks, SparkDriver, some

from floodmark.errors import InvalidSetting
from floodmark.lake.catalog import Catalog
from floodmark.lake.spark import SparkLake
from floodmark.schema import SEQ, Schema

pytestmark = pytest.mark.spark

HOSTILE = {
    "spark.sql.files.ignoreCorruptFiles": "true",
    "spark.sql.files.ignoreMissingFiles": "true",
    "spark.sql.session.timeZone": "America/St_Johns",
    "spark.sql.ansi.enabled": "false",
    "spark.sql.caseSensitive": "true",
    "spark.sql.parquet.datetimeRebaseModeInRead": "LEGACY",
    "spark.sql.parquet.int96RebaseModeInRead": "LEGACY",
    "spark.sql.parquet.mergeSchema": "true",
    "spark.sql.parquet.filterPushdown": "false",
}


@pytest.fixture
def session(spark: Any) -> Any:
    """A session that the application made, as far as the store can tell."""
    made = spark.newSession()
    for key, value in HOSTILE.items():
        made.conf.set(key, value)
    return made


@pytest.fixture
def blocks(session: Any, tmp_path: Path) -> Blocks:
    home = tmp_path / "lake"
    home.mkdir()
    lake = SparkLake(Catalog.embedded(name=f"lake_{uuid.uuid4().hex[:12]}", lake=home), lambda: session)
    return Blocks(SparkDriver(lake, session), tmp_path)


def test_a_segment_that_cannot_be_read_fails_the_commit_and_no_row_of_it_is_left_out(blocks: Blocks):
    """I11: the session would pass over the rest of the file without a word."""
    blocks.lake.ensure(TABLE, SIMPLE)
    segment = blocks.segment(some(3000), row_group_rows=500)
    path = Path(segment.path)
    column = pq.ParquetFile(path).metadata.row_group(3).column(0)
    content = bytearray(path.read_bytes())
    begin = column.data_page_offset
    content[begin : begin + column.total_compressed_size] = b"\xff" * column.total_compressed_size
    path.write_bytes(bytes(content))
    with pytest.raises(Exception):
        blocks.lake.append(blocks.request(segment))
    assert blocks.state().head is None


def test_values_of_every_type_are_those_that_were_captured(blocks: Blocks):
    blocks.schema = Schema.declare(EVERY_TYPE)
    nothing = dict.fromkeys(EVERY_TYPE)
    blocks.commit([FULL, nothing, EDGES])
    rows = blocks.rows()
    assert [row[SEQ] for row in rows] == [1, 2, 3]
    assert [{name: row[name] for name in EVERY_TYPE} for row in rows] == [FULL, nothing, EDGES]


def test_duplicates_are_the_same_ones_and_a_microsecond_makes_a_difference(blocks: Blocks):
    """Also in the hour that the session's zone has twice."""
    blocks.schema, blocks.identity, blocks.event_time = TIMED, (("id",),), "at"
    autumn = NOON.replace(month=11, hour=4, minute=30)
    first = [{"id": 1, "at": autumn}, {"id": 2, "at": NOON}]
    blocks.commit(first)
    again = [
        {"id": 1, "at": autumn},
        {"id": 1, "at": autumn + timedelta(hours=1)},
        {"id": 2, "at": NOON + timedelta(microseconds=1)},
        {"id": 2, "at": NOON},
    ]
    assert blocks.lake.append(blocks.request(blocks.segment(again))) is True
    assert [(row["id"], row["at"]) for row in blocks.rows()] == [
        (1, autumn),
        (2, NOON),
        (1, autumn + timedelta(hours=1)),
        (2, NOON + timedelta(microseconds=1)),
    ]


def test_rows_that_the_reader_left_out_fail_the_commit(blocks: Blocks, monkeypatch: pytest.MonkeyPatch):
    """I11: what Spark read is compared with what was reserved, in the job that writes it."""
    blocks.lake.ensure(TABLE, SIMPLE)
    real = SparkLake._segment_rows

    def without_one(lake: SparkLake, request):
        rows, place = real(lake, request)
        return rows.where("id <> 7"), place

    monkeypatch.setattr(SparkLake, "_segment_rows", without_one)
    with pytest.raises(Exception, match="than were reserved"):
        blocks.lake.append(blocks.request(blocks.segment(some(10))))
    assert blocks.state().head is None


def test_a_commit_says_how_many_rows_it_was_to_bring(blocks: Blocks):
    """I11: whoever records it compares."""
    blocks.identity = (("id",),)
    blocks.commit(some(3))
    blocks.lake.append(blocks.request(blocks.segment(some(5))))
    newest, oldest = blocks.state().lineage
    assert (oldest.announced_rows, oldest.added_rows) == (3, 3)
    assert (newest.announced_rows, newest.added_rows) == (2, 2)


@pytest.mark.parametrize(
    ("key", "good"),
    [("spark.sql.legacy.timeParserPolicy", "CORRECTED"), ("spark.sql.storeAssignmentPolicy", "ANSI")],
)
def test_a_setting_under_which_nothing_can_be_committed_is_refused_by_name(
    blocks: Blocks, session: Any, key: str, good: str
):
    blocks.lake.ensure(TABLE, SIMPLE)
    request = blocks.request(blocks.segment(some(1)))
    session.conf.set(key, "LEGACY")
    with pytest.raises(InvalidSetting, match=key) as caught:
        blocks.lake.append(request)
    assert good in caught.value.hint
    session.conf.set(key, good)
    assert blocks.lake.append(request) is True
