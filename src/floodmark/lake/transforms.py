"""Spark's transformations of rows: pure `DataFrame → DataFrame` functions, no session, no action, no write."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Any

from pyspark.sql import Window
from pyspark.sql import functions as F

from floodmark.lake.types import quoted, spark_type
from floodmark.schema import CONTENT_ID, SEGMENT, SEQ, Schema
from floodmark.sequence import SequenceRange

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType


_RESERVED = "_ingest_reserved"
_READ = "_ingest_read"
ROWS_DIFFER = "floodmark: fewer or more rows were read from the segments than were reserved"
KEY = "_ingest_key"
SUSPECT = "_ingest_suspect"

NUMBERS_NAMED_MAX = 5_000
"""More numbers than that are sent as a table."""

Transform = Callable[["DataFrame"], "DataFrame"]

# By default a time is written to the millisecond, and in a zone whose hours repeat in autumn.
_EXACT = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS", "timeZone": "UTC"}


def stamp(starts: Mapping[int, int], schema: Schema, *, place: str = "_metadata.row_index") -> Transform:
    """Number the rows of a block's segments: the first number of each segment, plus the row's place in its file.

    The place comes from the file itself, or from `place`, so tasks number their rows independently: dense, parallel, no
    shuffle. A segment without a first number has no numbers, and the table takes no row without one.
    """
    # One literal, which Spark passes to the code that it generates: single numbers would be written into it, and the
    # JVM would compile it anew for every flush.
    known = ", ".join(f"{segment}L, {first}L" for segment, first in starts.items())
    number = f"map({known})[{SEGMENT}] + {place} AS {SEQ}"
    return lambda segments: segments.selectExpr(*[quoted(item.name) for item in schema], number, CONTENT_ID, SEGMENT)


def checked(counts: DataFrame, schema: Schema) -> Transform:
    """I11: a difference between the rows that were reserved and those that were read fails the job that writes them,
    before anything is committed. `counts` is one row with both.
    """

    def transform(rows: DataFrame) -> DataFrame:
        differs = F.raise_error(F.lit(ROWS_DIFFER)).cast("bigint")
        known = rows.crossJoin(F.broadcast(counts.toDF(_RESERVED, _READ)))
        number = F.when(F.col(_READ) == F.col(_RESERVED), F.col(SEQ)).otherwise(differs)
        return known.withColumn(SEQ, number).transform(as_table(schema))

    return transform


def as_table(schema: Schema) -> Transform:
    """The columns of the table, and nothing else: the contract of everything that is written."""
    user = [quoted(column.name) for column in schema]
    return lambda frame: frame.select(*user, F.col(SEQ), F.col(CONTENT_ID), F.col(SEGMENT))


def filled(schema: Schema) -> Transform:
    """With a null in every row for each column that is newer than the frame's snapshot."""

    def transform(frame: DataFrame) -> DataFrame:
        known = set(frame.columns)
        newer = {item.name: F.lit(None).cast(spark_type(item.type)) for item in schema if item.name not in known}
        return frame.withColumns(newer) if newer else frame

    return transform


def cast_to(types: StructType) -> Transform:
    """In other types, of the same columns: one was narrower in an old snapshot, or was corrected since."""
    columns = [F.col(quoted(item.name)).cast(item.dataType).alias(item.name) for item in types]
    return lambda frame: frame.select(*columns)


def within(range_: SequenceRange) -> Transform:
    """The rows of a range. Files are pruned by it: the table is partitioned and ordered by the number."""
    return lambda frame: frame.where((F.col(SEQ) > range_.after) & (F.col(SEQ) <= range_.through))


def selected(partition_values: Mapping[str, Any], row_filter: str | None, schema: Schema) -> Transform:
    """The rows that have the values and of which the condition is true.

    A column of the schema that the frame does not have (it is newer than its snapshot) is null to both. A frozenset
    stands for any of its values.
    """

    def transform(frame: DataFrame) -> DataFrame:
        whole = frame.transform(filled(schema))
        for name, value in partition_values.items():
            column = F.col(quoted(name)) if name in whole.columns else F.lit(None)
            several = isinstance(value, frozenset)
            whole = whole.where(column.isin(sorted(value)) if several else column.eqNullSafe(F.lit(value)))
        if row_filter is not None:
            whole = whole.where(row_filter)
        return whole.select(*[quoted(name) for name in frame.columns]) if whole.columns != frame.columns else whole

    return transform


def within_event_span(event_time: str, span: tuple[int, int] | None, *, is_date: bool) -> Transform:
    """The committed rows that could equal a row of the batch: those in its span of event time, or without one.

    This bounds deduplication: files whose event times are outside are not opened.
    """
    column = F.col(quoted(event_time))
    near = column.isNull()
    if span is not None:
        low, high = (_instant(micros, is_date=is_date) for micros in span)
        near = near | ((column >= low) & (column <= high))
    return lambda frame: frame.where(near)


def not_before(event_time: str, cutoff: int, *, is_date: bool) -> Transform:
    """The rows that are not too old. A row without an event time never is."""
    column = F.col(quoted(event_time))
    return lambda frame: frame.where(column.isNull() | (column >= _instant(cutoff, is_date=is_date)))


def not_among(numbers: Sequence[int]) -> Transform:
    """The rows without those that have one of a few numbers."""
    # As one set, for the reason that `stamp` has. Spark makes one of eleven numbers or more; no row has these.
    padded = [*numbers, *range(-11, 0)]
    return lambda frame: frame.where(F.expr(f"{SEQ} not in ({', '.join(f'{number}L' for number in padded)})"))


def not_numbered(numbers: DataFrame) -> Transform:
    """The rows without those whose numbers are listed."""
    return lambda frame: frame.join(F.broadcast(numbers), SEQ, "left_anti").select(*[quoted(c) for c in frame.columns])


def _instant(micros: int, *, is_date: bool) -> Column:
    if is_date:
        return F.date_from_unix_date(F.lit(micros // 86_400_000_000))
    return F.timestamp_micros(F.lit(micros))


@dataclass(frozen=True, slots=True)
class DuplicateKey:
    """What makes two rows the same row: the first identity whose columns are all there, and the event time.

    A row without any complete identity goes by its content hash (B10), or has no key and is never a duplicate.
    """

    identity: tuple[tuple[str, ...], ...]
    event_time: str | None
    by_content: bool = False

    def suspicion(self) -> Column:
        """64 bits of the key: equal keys have equal bits, and few others do."""
        return F.coalesce(*[F.when(ready, F.xxhash64(*parts)) for ready, parts in self._ranked()])

    def exact(self) -> Column:
        """The key as a text; no two different keys share one."""
        texts = [F.when(ready, F.to_json(F.struct(*_named(parts)), _EXACT)) for ready, parts in self._ranked()]
        return F.coalesce(*texts)

    def _ranked(self) -> Iterator[tuple[Column, list[Column]]]:
        when = [F.col(quoted(self.event_time))] if self.event_time else []
        for rank, names in enumerate(self.identity):
            columns = [F.col(quoted(name)) for name in names]
            yield reduce(and_, [column.isNotNull() for column in columns]), [F.lit(rank), *columns, *when]
        if self.by_content:
            yield F.lit(True), [F.lit(len(self.identity)), F.col(CONTENT_ID), *when]


def _named(columns: Sequence[Column]) -> list[Column]:
    return [column.alias(f"k{index}") for index, column in enumerate(columns)]


def suspects(
    batch: DataFrame, committed: DataFrame | None, key: DuplicateKey, *, distinct: bool = False, few: bool = False
) -> DataFrame:
    """The suspicion bits that occur twice in the batch, or in the batch and in the table. As a rule: none.

    Only the key's columns are read for it, and only 8 bytes a row are shuffled: none where the batch is known to be
    `distinct` and the committed rows are `few`.
    """
    ours = batch.select(key.suspicion().alias(SUSPECT)).where(F.col(SUSPECT).isNotNull())
    twice = ours.groupBy(SUSPECT).count().where(F.col("count") > 1).select(SUSPECT)
    if committed is None:
        return twice
    theirs = committed.select(key.suspicion().alias(SUSPECT))
    both = ours.join(F.broadcast(theirs), SUSPECT, "left_semi") if few else theirs.join(ours, SUSPECT, "left_semi")
    return both if distinct else twice.unionByName(both)


def losers(batch: DataFrame, committed: DataFrame | None, key: DuplicateKey, suspected: DataFrame) -> DataFrame:
    """The numbers of the batch's rows that are duplicates: of a committed row, else of an earlier row of the batch."""

    def suspicious(frame: DataFrame, *, ours: bool) -> DataFrame:
        keyed = frame.select(SEQ, key.exact().alias(KEY), key.suspicion().alias(SUSPECT), F.lit(ours).alias("ours"))
        return keyed.join(suspected, SUSPECT, "left_semi")

    rows = suspicious(batch, ours=True)
    if committed is not None:
        rows = rows.unionByName(suspicious(committed, ours=False))
    first = Window.partitionBy(KEY).orderBy("ours", SEQ)
    ranked = rows.withColumn("place", F.row_number().over(first))
    return ranked.where(F.col("ours") & (F.col("place") > 1)).select(SEQ)


def checksum_part() -> Column:
    """The first 64 bits of the content hash, as a number that can be added up without overflow."""
    return F.conv(F.substring(F.col(CONTENT_ID), 1, 16), 16, 10).cast("decimal(20,0)")
