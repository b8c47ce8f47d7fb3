"""A settle function over committed rows on Spark, and the one commit that follows from it.

The commit overwrites whole buckets, and says that it also overwrites everything above the horizon, where there is
nothing: so Iceberg, which checks for newer rows that would be overwritten, refuses it if there are any.

The last bucket that has rows is always among those it overwrites. So of two settlements that were prepared on one state
only one lands (U18), whichever rows they change; and a commit that rewrites that bucket unchanged, without a function,
keeps every other from landing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from floodmark.errors import Retryable, reason_of
from floodmark.lake.catalog import CHANGE_PROPERTY, SETTLED_PROPERTY
from floodmark.lake.settling import BadSettlement, answered, check_fixed, problem_of
from floodmark.lake.spark_maintenance import bucket_width
from floodmark.lake.spark_reading import is_spared
from floodmark.lake.types import quoted
from floodmark.schema import SEQ
from floodmark.settlement import Resettled, Resettling, collapse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from floodmark.lake.spark_reading import SparkReader


def resettle_on_spark(lake: SparkReader, request: Resettling) -> Resettled:
    rows = _rows(lake, request)
    if request.settle is None:
        return Resettled(commit=lambda operation: _commit(lake, request, rows, None, touched=(), operation=operation))
    try:
        answer = answered(request, rows)
        changed_numbers, dropped, waiting = _differences(request, rows, answer)
        if not changed_numbers and not dropped:
            return Resettled(waiting=waiting)
        # Kept: what is committed must be what was checked, and the function may change its mind.
        changed = answer.join(_numbers(lake, changed_numbers), SEQ, "left_semi").localCheckpoint(eager=True)
        check_fixed(request, rows.join(_numbers(lake, changed_numbers), SEQ, "left_semi"), changed)
        if changed.count() != len(changed_numbers):
            raise BadSettlement("returned different rows for the same input")
    except Exception as error:  # noqa: BLE001 - B6: whatever it was, it has changed nothing
        return Resettled(problem=problem_of(request.settle, error))
    found = collapse(changed_numbers, lambda own: _alike(lake, request, rows, changed, own=own, dropped=dropped))
    waiting += len(found.later)
    if not found.changed and not dropped:
        return Resettled(waiting=waiting)
    own, collapsed = sorted(found.changed), found.gone
    staying = changed.join(_numbers(lake, own), SEQ, "left_semi").join(_numbers(lake, collapsed), SEQ, "left_anti")
    touched = sorted({*own, *dropped, *collapsed})

    def commit(operation: str | None) -> None:
        rest = rows.join(_numbers(lake, touched), SEQ, "left_anti")
        _commit(lake, request, rest, staying, touched=touched, operation=operation)

    return Resettled(tuple(sorted(found.changed - {*collapsed})), collapsed, tuple(dropped), waiting, commit=commit)


def _rows(lake: SparkReader, request: Resettling) -> DataFrame:
    from pyspark.sql import functions as F

    from floodmark.lake.transforms import as_table, filled

    frame = lake.frame(request.table, snapshot=request.snapshot).where(F.col(SEQ) <= request.horizon)
    return frame.transform(filled(request.schema)).transform(as_table(request.schema))


def _differences(request: Resettling, rows: DataFrame, answer: DataFrame) -> tuple[list[int], list[int], int]:
    """The numbers of changed and of dropped rows, lowest first, at most so many; and how many others have to wait."""
    from pyspark.sql import functions as F

    values = F.xxhash64(*[F.col(quoted(column.name)) for column in request.schema])
    stays = is_spared(request.spared, request.schema, request.partition_by)
    before = rows.select(SEQ, values.alias("_before"), stays.alias("_stays"))
    after = answer.select(SEQ, values.alias("_after"))
    other = before.join(after, SEQ, "full_outer").where(~F.col("_before").eqNullSafe(F.col("_after")))
    free = other.where(~F.coalesce("_stays", F.lit(False)))
    found = free.orderBy(SEQ).limit(request.changed_max).collect()
    if any(row["_before"] is None for row in found):
        raise BadSettlement("added a row, or changed a sequence number")
    waiting = other.where("_stays").count() if request.spared else 0
    changed = [row[SEQ] for row in found if row["_after"] is not None]
    return changed, [row[SEQ] for row in found if row["_after"] is None], waiting


def _alike(
    lake: SparkReader,
    request: Resettling,
    rows: DataFrame,
    changed: DataFrame,
    *,
    own: Collection[int],
    dropped: Sequence[int],
) -> Iterable[list[tuple[int, bool]]]:
    """The rows that would be one row, at least one of which is changed."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    from floodmark.lake.transforms import KEY, DuplicateKey

    if not request.identity:
        return ()
    exact = DuplicateKey(request.identity, request.key_time, request.by_content).exact().alias(KEY)
    stays = is_spared(request.spared, request.schema, request.partition_by).alias("_stays")
    ours = changed.join(_numbers(lake, sorted(own)), SEQ, "left_semi").select(SEQ, exact, F.lit(False).alias("_stays"))
    ours = ours.where(F.col(KEY).isNotNull())
    others = rows.join(_numbers(lake, sorted({*own, *dropped})), SEQ, "left_anti").select(SEQ, exact, stays)
    alike = ours.unionByName(others.join(ours.select(KEY), KEY, "left_semi").select(SEQ, KEY, "_stays"))
    first = F.min(SEQ).over(Window.partitionBy(KEY))
    several = F.count(SEQ).over(Window.partitionBy(KEY)) > 1
    found = alike.select(SEQ, "_stays", first.alias("_first"), several.alias("_several")).where("_several").collect()
    groups: dict[int, list[tuple[int, bool]]] = {}
    for row in found:
        groups.setdefault(row["_first"], []).append((row[SEQ], row["_stays"]))
    return groups.values()


def _commit(
    lake: SparkReader,
    request: Resettling,
    rest: DataFrame,
    staying: DataFrame | None,
    *,
    touched: Iterable[int],
    operation: str | None,
) -> None:
    """Overwrite the buckets of these numbers, and the last one, with the rest of their rows and those that stay."""
    from pyspark.sql import functions as F

    number = F.col(SEQ)
    try:
        width = _bucket_width(lake, request.table)
        last = rest.agg(F.max(SEQ)).first()
        highest = max([*touched, *([last[0]] if last is not None and last[0] is not None else [])])
        buckets = sorted({seq // width for seq in [*touched, highest]})
        inside = reduce(or_, [(number >= at * width) & (number < (at + 1) * width) for at in buckets])
        whole = rest.where(inside)
        writer = (
            (whole if staying is None else whole.unionByName(staying))
            .sortWithinPartitions(SEQ)
            .writeTo(lake.catalog.spark_name(request.table))
            .option("isolation-level", "serializable")
            .option("validate-from-snapshot-id", str(request.snapshot))
            .option(f"snapshot-property.{SETTLED_PROPERTY}", "true")
        )
        if operation is not None:
            writer = writer.option(f"snapshot-property.{CHANGE_PROPERTY}", operation)
        writer.overwrite(inside | (number > request.horizon))
    except Exception as error:
        raise Retryable(
            f"Rows of {request.table!r} could not be settled again: {reason_of(error)}.", hint="Compact it again."
        ) from error


def _bucket_width(lake: SparkReader, table: str) -> int:
    loaded = lake.catalog.table(table)
    width = None if loaded is None else bucket_width(loaded)
    if width is None:
        raise Retryable(f"The table {table!r} does not exist.")
    return width


def _numbers(lake: SparkReader, numbers: Sequence[int]) -> DataFrame:
    import pyarrow as pa
    from pyspark.sql import functions as F

    return F.broadcast(lake.spark.createDataFrame(pa.table({SEQ: pa.array(numbers, pa.int64())})))
