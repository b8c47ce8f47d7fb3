"""What Spark does to rows on their way: pure `DataFrame → DataFrame` functions, no session, no action, no write."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from floodmark.lake.types import quoted
from floodmark.schema import CONTENT_ID, SEGMENT, SEQ, Schema
from floodmark.sequence import SequenceRange

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_ROW = "_ingest_row"
_OFFSET = "_ingest_offset"
KEY = "_ingest_key"
SUSPECT = "_ingest_suspect"

Transform = Callable[["DataFrame"], "DataFrame"]


def stamp(block: SequenceRange, offsets: DataFrame, schema: Schema) -> Transform:
    """Number the rows of a block's segments: `after + 1 + the segment's offset + the row's place in its file`.

    The place comes from the file itself, so tasks number their rows independently: dense, parallel, no shuffle.
    `offsets` has the columns `_ingest_segment` and `_ingest_offset`.
    """

    def transform(segments: DataFrame) -> DataFrame:
        placed = segments.select("*", F.col("_metadata.row_index").alias(_ROW))
        known = placed.join(F.broadcast(offsets.toDF(SEGMENT, _OFFSET)), SEGMENT)
        seq = (F.lit(block.after + 1) + F.col(_OFFSET) + F.col(_ROW)).cast("bigint")
        return known.withColumn(SEQ, seq).transform(as_table(schema))

    return transform


def as_table(schema: Schema) -> Transform:
    """The columns of the table, and nothing else: the contract of everything that is written."""
    user = [quoted(column.name) for column in schema]
    return lambda frame: frame.select(*user, F.col(SEQ), F.col(CONTENT_ID), F.col(SEGMENT))


def within(range_: SequenceRange) -> Transform:
    """The rows of a range. Files are pruned by it: the table is partitioned and ordered by the number."""
    return lambda frame: frame.where((F.col(SEQ) > range_.after) & (F.col(SEQ) <= range_.through))


def without_system_columns(frame: DataFrame, columns: Sequence[str]) -> DataFrame:
    return frame.select(*[quoted(name) for name in columns])


def within_event_span(event_time: str, span: tuple[int, int] | None, *, is_date: bool) -> Transform:
    """The committed rows that could equal a row of the batch: those in its span of event time, or without one.

    This bounds deduplication: files whose event times lie outside are not opened.
    """
    column = F.col(quoted(event_time))
    near = column.isNull()
    if span is not None:
        low, high = (_instant(micros, is_date=is_date) for micros in span)
        near = near | ((column >= low) & (column <= high))
    return lambda frame: frame.where(near)


def _instant(micros: int, *, is_date: bool) -> Column:
    if is_date:
        return F.date_from_unix_date(F.lit(micros // 86_400_000_000))
    return F.timestamp_micros(F.lit(micros))


def with_keys(identity: tuple[tuple[str, ...], ...], event_time: str | None) -> Transform:
    """Only what deduplication needs: the number, the exact key, and 64 bits of it to suspect by.

    The key is the first identity whose columns are all there, with the event time. A row without any has no key
    and is never a duplicate.
    """

    def transform(frame: DataFrame) -> DataFrame:
        when = [F.col(quoted(event_time))] if event_time else []
        keys = []
        for rank, names in enumerate(identity):
            columns = [F.col(quoted(name)) for name in names]
            complete = reduce(and_, [column.isNotNull() for column in columns])
            # The values as JSON, with the rank among them: no two different keys share a text.
            keys.append(F.when(complete, F.to_json(F.struct(F.lit(rank), *_named(columns), *_named(when, "t")))))
        keyed = frame.select(F.col(SEQ), F.coalesce(*keys).alias(KEY)).where(F.col(KEY).isNotNull())
        return keyed.select(SEQ, KEY, F.xxhash64(F.col(KEY)).alias(SUSPECT))

    return transform


def _named(columns: Sequence[Column], prefix: str = "c") -> list[Column]:
    return [column.alias(f"{prefix}{index}") for index, column in enumerate(columns)]


def suspects(batch: DataFrame, committed: DataFrame | None) -> DataFrame:
    """The 64-bit keys that occur twice in the batch, or in the batch and in the table. Few, as a rule: none."""
    twice = batch.groupBy(SUSPECT).count().where(F.col("count") > 1).select(SUSPECT)
    if committed is None:
        return twice
    stored = committed.select(SUSPECT).join(batch.select(SUSPECT), SUSPECT, "left_semi")
    return twice.unionByName(stored).distinct()


def losers(batch: DataFrame, committed: DataFrame | None, suspected: DataFrame) -> DataFrame:
    """The numbers of the batch's rows that are duplicates: of a committed row, else of an earlier row of the batch."""
    from pyspark.sql import Window

    ours = batch.join(suspected, SUSPECT, "left_semi").select(SEQ, KEY, F.lit(1).alias("ours"))
    if committed is not None:
        theirs = committed.join(suspected, SUSPECT, "left_semi").select(SEQ, KEY, F.lit(0).alias("ours"))
        ours = ours.unionByName(theirs)
    first = Window.partitionBy(KEY).orderBy("ours", SEQ)
    ranked = ours.withColumn("place", F.row_number().over(first))
    return ranked.where((F.col("ours") == 1) & (F.col("place") > 1)).select(SEQ)


def checksum_part() -> Column:
    """The first 64 bits of the content hash, as a number that can be added up without overflow."""
    return F.conv(F.substring(F.col(CONTENT_ID), 1, 16), 16, 10).cast("decimal(20,0)")
