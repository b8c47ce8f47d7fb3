"""The rows of segments for tasks that do not see this machine's disk: read from the bucket by the tasks, or sent along.

Each row comes with its place in its segment: it is what the row is numbered by.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import TYPE_CHECKING

from floodmark import faults
from floodmark.commit.protocol import Append, BlockSegment
from floodmark.lake.executors import begin_task, installed
from floodmark.lake.types import segment_ddl
from floodmark.schema import CONTENT_ID, SEGMENT, Schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

SEGMENT_PLACE = "_ingest_segment_place"
ROWS_AT_ONCE = 16_384


def segments_in_bucket(spark: SparkSession, request: Append, *, tasks: int) -> DataFrame:
    """Each task reads some of the segments, each whole and once, straight from the bucket."""
    segments, schema, version = request.segments, request.schema, installed()

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        begin_task(version)
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from segment_batches(segments[number], schema)
        faults.reach("task.segments_read")

    numbers = spark.range(len(segments), numPartitions=max(1, min(len(segments), tasks)))
    return numbers.mapInArrow(read, f"{segment_ddl(schema)}, {SEGMENT_PLACE} bigint")


def segments_from_here(spark: SparkSession, request: Append) -> DataFrame:
    """The rows travel with the job."""
    import pyarrow as pa

    parts = [batch for segment in request.segments for batch in segment_batches(segment, request.schema)]
    return spark.createDataFrame(pa.Table.from_batches(parts, _columns(request.schema)))


def segment_batches(segment: BlockSegment, schema: Schema) -> Iterator[pa.RecordBatch]:
    """The rows of a segment in the types of today; columns that it is older than are null."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    wanted = _columns(schema)
    source = segment.path if segment.bucket is None else io.BytesIO(segment.bucket.read(segment.key))
    with pq.ParquetFile(source) as file:
        start = 0
        for batch in file.iter_batches(batch_size=ROWS_AT_ONCE, use_threads=False):
            rows = pa.Table.from_batches([batch])
            places = pa.array(range(start, start + rows.num_rows), pa.int64())
            start += rows.num_rows
            rows = rows.append_column(SEGMENT_PLACE, places)
            held = set(rows.column_names)
            arrays = [
                rows[item.name].cast(item.type) if item.name in held else pa.nulls(rows.num_rows, item.type)
                for item in wanted
            ]
            yield from pa.Table.from_arrays(arrays, schema=wanted).to_batches()
    if start != segment.rows:  # I11
        raise ValueError(f"segment {segment.id} has {start} rows, and {segment.rows} were registered")


def _columns(schema: Schema) -> pa.Schema:
    import pyarrow as pa

    own = [(CONTENT_ID, pa.string()), (SEGMENT, pa.int64()), (SEGMENT_PLACE, pa.int64())]
    return pa.schema([*schema.arrow(), *(pa.field(*item) for item in own)])
