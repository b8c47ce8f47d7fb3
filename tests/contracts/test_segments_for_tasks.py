"""Tasks that do not see the driver's disk get a segment's rows from the bucket: all, once, each with its place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from floodmark.commit.protocol import BlockSegment
from floodmark.config import CatalogSettings
from floodmark.lake.spark_segments import ROWS_AT_ONCE, SEGMENT_PLACE, segment_batches
from floodmark.schema import CONTENT_ID, SEGMENT, Schema
from floodmark.segment_store import BucketSegments, bucket_of, folder
from s3 import SECRET, S3Server

KEY = f"{folder('rows')}/7-aa.parquet"
NOW = Schema.declare({"id": "long", "name": "string", "level": "double"})


def rows_of(segment: BlockSegment) -> list[dict[str, Any]]:
    batches = list(segment_batches(segment, NOW))
    assert all(batch.schema == batches[0].schema for batch in batches)
    return pa.Table.from_batches(batches).to_pylist()


@pytest.fixture(params=["disk", "bucket"])
def segment(request: pytest.FixtureRequest, tmp_path: Path) -> BlockSegment:
    """Older than a column, and than the widening of another."""
    count = ROWS_AT_ONCE + 5
    older = pa.table(
        {
            "id": pa.array(range(count), pa.int32()),
            "name": pa.array([f"n{number}" for number in range(count)]),
            CONTENT_ID: pa.array(["c"] * count),
            SEGMENT: pa.array([7] * count, pa.int64()),
        }
    )
    if request.param == "disk":
        pq.write_table(older, tmp_path / "7.parquet")
        return BlockSegment(7, str(tmp_path / "7.parquet"), count, 0)
    server: S3Server = request.getfixturevalue("s3_server")
    properties = {
        "s3.endpoint": server.endpoint,
        "s3.region": "us-east-1",
        "s3.access-key-id": "AKIDEXAMPLE",
        "s3.secret-access-key": SECRET,
    }
    place = f"s3://{server.create_bucket()}/store"
    store = BucketSegments(tmp_path, bucket_of(place, CatalogSettings("sql", "", None, properties)))
    pq.write_table(older, store.draft(KEY))
    store.store(KEY)
    (tmp_path / KEY).unlink()  # the machine of the task has no copy
    return BlockSegment(7, str(tmp_path / KEY), count, 0, None, store.bucket, KEY)


def test_every_row_comes_once_with_its_place_in_the_types_of_today(segment: BlockSegment) -> None:
    found = rows_of(segment)
    assert [row[SEGMENT_PLACE] for row in found] == list(range(ROWS_AT_ONCE + 5))
    assert [row["id"] for row in found] == list(range(ROWS_AT_ONCE + 5))
    assert {row[SEGMENT] for row in found} == {7}
    assert {row["level"] for row in found} == {None}
    assert next(iter(segment_batches(segment, NOW))).schema.field("id").type == pa.int64()


def test_a_segment_with_other_rows_than_were_registered_fails_the_task(segment: BlockSegment) -> None:
    """I11."""
    from dataclasses import replace

    with pytest.raises(ValueError, match="were registered"):
        rows_of(replace(segment, rows=segment.rows + 1))
