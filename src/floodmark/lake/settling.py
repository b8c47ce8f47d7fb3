"""A dataset's own function over the rows of a flush: `DataFrame → DataFrame`, and what it may not do.

It may change values, among them provisional identities, and it may leave rows out. It may not touch what others rely
on: a row's number, content id, segment, event time and partition; and it may not add rows. A function that does, or
that fails, has changed nothing: the rows are committed unchanged, and the problem is reported (B6).
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from floodmark.commit.protocol import Append
from floodmark.errors import Permanent, reason_of
from floodmark.schema import CONTENT_ID, SEGMENT, SEQ
from floodmark.settlement import Resettling

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame


class BadSettlement(Exception):
    """A settle function broke its contract."""


def settle_function(path: str) -> Callable[[Any], Any]:
    """The function named `package.module:function`."""
    module, _, name = path.partition(":")
    try:
        found: Callable[[Any], Any] = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise Permanent(f"The settle function {path!r} cannot be imported: {error}.") from error
    return found


def fixed_columns(request: Append | Resettling) -> tuple[str, ...]:
    """The columns that must not change."""
    event_time = (request.event_time,) if request.event_time else ()
    return tuple(dict.fromkeys([SEQ, CONTENT_ID, SEGMENT, *event_time, *request.partition_by]))


def problem_of(path: str, error: BaseException) -> str:
    """The reported problem of a function whose result was rejected."""
    what = str(error) if isinstance(error, BadSettlement) else f"failed: {reason_of(error)}"
    return f"The settle function {path!r} {what}. The rows were committed unchanged."


def settled_frame(request: Append, rows: DataFrame) -> tuple[DataFrame, int]:
    """The rows as the function has them, and how many there are.

    Computed once: a function that looks something up may return another result the next time, and what is
    committed must be what was checked.
    """
    settled = answered(request, rows).localCheckpoint(eager=True)
    return settled, check_fixed(request, rows, settled)


def answered(request: Append | Resettling, rows: DataFrame) -> DataFrame:
    """What the function returns, if it has the shape of what it was given."""
    from floodmark.lake.transforms import as_table

    answer = settle_function(request.settle or "")(rows)
    if not hasattr(answer, "sparkSession"):
        raise BadSettlement(f"returned a {type(answer).__name__} instead of a DataFrame")
    lost = sorted(set(rows.columns) - set(answer.columns))
    if lost:
        raise BadSettlement(f"removed the column {lost[0]!r}")
    settled: DataFrame = answer.transform(as_table(request.schema))
    if [field.dataType for field in settled.schema] != [field.dataType for field in rows.schema]:
        raise BadSettlement("changed the type of a column")
    return settled


def check_fixed(request: Append | Resettling, rows: DataFrame, settled: DataFrame) -> int:
    """How many rows there are, each of which is as it was where it must be."""
    kept, same, distinct = _compared(rows, settled, fixed_columns(request))
    if kept != same or kept != distinct:
        raise BadSettlement("changed the number, event time, partition, content id or segment of a row, or copied one")
    return kept


def _compared(rows: DataFrame, settled: DataFrame, fixed: tuple[str, ...]) -> tuple[int, int, int]:
    """How many rows there are, how many of them are as they were, and how many different numbers they have."""
    from pyspark.sql import functions as F

    from floodmark.lake.types import quoted

    columns = [F.col(quoted(name)) for name in fixed]
    before = rows.select(F.col(SEQ).alias("_before"), F.struct(*columns).alias("_was"))
    after = settled.select(F.col(SEQ), F.struct(*columns).alias("_is"))
    counted = after.join(before, F.col(SEQ) == F.col("_before"), "left").agg(
        F.count(F.lit(1)), F.count(F.when(F.col("_was").eqNullSafe(F.col("_is")), 1)), F.countDistinct(SEQ)
    )
    kept, same, distinct = counted.first()
    return kept, same, distinct


def settled_table(request: Append | Resettling, rows: pa.Table) -> pa.Table:
    """The same for the lake in memory: the function gets an Arrow table, and returns one."""
    answer = settle_function(request.settle or "")(rows)
    lost = sorted(set(rows.column_names) - set(getattr(answer, "column_names", ())))
    if lost:
        raise BadSettlement(f"removed the column {lost[0]!r}")
    settled = answer.select(rows.column_names)
    fixed = [name for name in fixed_columns(request) if name in rows.column_names]
    was = {row[SEQ]: row for row in rows.select(fixed).to_pylist()}
    numbers = settled[SEQ].to_pylist()
    if len(set(numbers)) < len(numbers) or any(was.get(row[SEQ]) != row for row in settled.select(fixed).to_pylist()):
        raise BadSettlement("changed the number, event time, partition, content id or segment of a row, or copied one")
    return settled
