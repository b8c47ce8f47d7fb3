"""A settle function over committed rows on Spark, and the one commit that follows from it.

The commit overwrites whole buckets, and says that it also overwrites everything above the horizon, where there is
nothing: so Iceberg, which looks for rows that came since the snapshot and would be overwritten, refuses it if any came.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any

from floodmark.errors import Retryable, reason_of
from floodmark.lake.catalog import SETTLED_PROPERTY
from floodmark.lake.settling import BadSettlement, answered, check_fixed, problem_of
from floodmark.lake.types import quoted, spark_type
from floodmark.schema import SEQ
from floodmark.settlement import Resettled, Resettling

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from floodmark.lake.reading import SparkReader


def resettle_on_spark(lake: SparkReader, request: Resettling) -> Resettled:
    rows = _rows(lake, request)
    try:
        answer = answered(request, rows)
        changed_numbers, dropped = _differences(request, rows, answer)
        if not changed_numbers and not dropped:
            return Resettled()
        # Held: what is committed must be what was checked, and the function may change its mind.
        changed = answer.join(_numbers(lake, changed_numbers), SEQ, "left_semi").localCheckpoint(eager=True)
        check_fixed(request, rows.join(_numbers(lake, changed_numbers), SEQ, "left_semi"), changed)
        if changed.count() != len(changed_numbers):
            raise BadSettlement("changed its mind in the middle")
    except Exception as error:  # noqa: BLE001 - B6: whatever it was, it has changed nothing
        return Resettled(problem=problem_of(request.settle, error))
    collapsed = _losers(lake, request, rows, changed, [*changed_numbers, *dropped])
    staying = changed.join(_numbers(lake, collapsed), SEQ, "left_anti")
    touched = {*changed_numbers, *dropped, *collapsed}

    def commit() -> None:
        _commit(lake, request, staying, touched=sorted(touched))

    own = set(changed_numbers)
    return Resettled(len(own - set(collapsed)), tuple(collapsed), tuple(dropped), commit=commit)


def _rows(lake: SparkReader, request: Resettling) -> DataFrame:
    from pyspark.sql import functions as F

    from floodmark.lake.transforms import as_table

    frame = lake.frame(request.table, snapshot=request.snapshot).where(F.col(SEQ) <= request.horizon)
    newer = [column for column in request.schema if column.name not in frame.columns]
    whole = frame.withColumns({c.name: F.lit(None).cast(spark_type(c.type)) for c in newer})
    return whole.transform(as_table(request.schema))


def _differences(request: Resettling, rows: DataFrame, answer: DataFrame) -> tuple[list[int], list[int]]:
    """The numbers of changed and of dropped rows, lowest first, at most so many."""
    from pyspark.sql import functions as F

    values = F.xxhash64(*[F.col(quoted(column.name)) for column in request.schema])
    before = rows.select(SEQ, values.alias("_before"))
    after = answer.select(SEQ, values.alias("_after"))
    other = before.join(after, SEQ, "full_outer").where(~F.col("_before").eqNullSafe(F.col("_after")))
    found = other.orderBy(SEQ).limit(request.changed_max).collect()
    if any(row["_before"] is None for row in found):
        raise BadSettlement("added a row, or changed a number")
    changed = [row[SEQ] for row in found if row["_after"] is not None]
    return changed, [row[SEQ] for row in found if row["_after"] is None]


def _losers(
    lake: SparkReader, request: Resettling, rows: DataFrame, changed: DataFrame, touched: Sequence[int]
) -> list[int]:
    """The numbers of rows that are another one with a lower number, where one of the two is changed."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    from floodmark.lake.transforms import KEY, DuplicateKey

    if not request.identity:
        return []
    exact = DuplicateKey(request.identity, request.key_time, request.by_content).exact().alias(KEY)
    ours = changed.select(SEQ, exact).where(F.col(KEY).isNotNull())
    others = rows.join(_numbers(lake, touched), SEQ, "left_anti").select(SEQ, exact)
    alike = ours.unionByName(others.join(ours.select(KEY), KEY, "left_semi").select(SEQ, KEY))
    place = F.row_number().over(Window.partitionBy(KEY).orderBy(SEQ))
    return sorted(row[SEQ] for row in alike.withColumn("_place", place).where("_place > 1").select(SEQ).collect())


def _commit(lake: SparkReader, request: Resettling, staying: DataFrame, *, touched: Sequence[int]) -> None:
    from pyspark.sql import functions as F

    number = F.col(SEQ)
    width = _bucket_width(lake, request.table)
    buckets = sorted({seq // width for seq in touched})
    inside = reduce(or_, [(number >= at * width) & (number < (at + 1) * width) for at in buckets])
    rest = _rows(lake, request).where(inside).join(_numbers(lake, touched), SEQ, "left_anti")
    try:
        (
            rest.unionByName(staying)
            .sortWithinPartitions(SEQ)
            .writeTo(lake.catalog.spark_name(request.table))
            .option("isolation-level", "serializable")
            .option("validate-from-snapshot-id", str(request.snapshot))
            .option(f"snapshot-property.{SETTLED_PROPERTY}", "true")
            .overwrite(inside | (number > request.horizon))
        )
    except Exception as error:
        raise Retryable(
            f"Rows of {request.table!r} could not be settled again: {reason_of(error)}.", hint="Compact it again."
        ) from error


def _bucket_width(lake: SparkReader, table: str) -> int:
    loaded = lake.catalog.table(table)
    if loaded is None:
        raise Retryable(f"The table {table!r} is not there.")
    transform: Any = loaded.spec().fields[0].transform
    return int(transform.width)


def _numbers(lake: SparkReader, numbers: Sequence[int]) -> DataFrame:
    import pyarrow as pa
    from pyspark.sql import functions as F

    return F.broadcast(lake.spark.createDataFrame(pa.table({SEQ: pa.array(numbers, pa.int64())})))
