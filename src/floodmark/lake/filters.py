"""Row filters: one SQL condition over a dataset's own columns, always with the same result for the same row.

A filter decides what a destination receives, so its result must never change. `lake.conditions` defines what may
be in one; the engine refuses what is still no condition: types that do not go together, wrong arguments.

A condition is written in Spark's SQL. The lake in memory gives it to SQLite (`testing.memory.conditions`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from floodmark.errors import InvalidSetting, reason_of
from floodmark.lake.conditions import (
    Extract,
    Inadmissible,
    Interval,
    Node,
    Number,
    Operation,
    Prefixed,
    Text,
    Typed,
    columns_of,
    makes_times,
    mentions_clock,
    parse,
    spark_sql,
)
from floodmark.lake.types import quoted, spark_type

if TYPE_CHECKING:
    from floodmark.schema.types import ColumnType


ARITHMETIC = frozenset({"+", "-", "*", "/", "%", "DIV", "||"})


def check_text(expression: str, columns: Collection[str] | None) -> frozenset[str]:
    """The columns that a filter uses; `InvalidSetting` for what no filter may hold. None: any column will do."""
    return columns_of(parsed(expression, columns))


def parsed(expression: str, columns: Collection[str] | None) -> Node:
    """The condition; `InvalidSetting` for what no filter may hold. None: any column will do."""
    try:
        node = parse(expression, columns)
        if isinstance(node, Number | Text | Typed | Interval | Extract) or (
            isinstance(node, Prefixed | Operation) and node.sign in ARITHMETIC
        ):
            raise Inadmissible("it is a value, not a condition")
        spark_sql(node)  # what no text can be made of is refused by every lake
    except Inadmissible as error:
        raise bad_filter(expression, str(error), hint=error.hint) from None
    return node


def bad_filter(expression: str, problem: str, *, hint: str | None = None) -> InvalidSetting:
    shown = expression if len(expression) <= 200 else expression[:197] + "…"
    return InvalidSetting(
        f"The filter {shown!r} cannot be used: {problem}.",
        hint=hint or "Write one SQL condition over the dataset's columns, such as: kind = 'sale' AND amount > 10.",
    )


def check_filter(spark: Any, expression: str, columns: Sequence[tuple[str, ColumnType]]) -> str:
    """The condition as text for Spark, once a session has analysed it with columns of those names and types.

    What an engine gets is made from the parsed condition, never from a user's text. No job.
    """
    node = parsed(expression, [name for name, _ in columns])
    kinds = {name: spark_type(kind) for name, kind in columns}
    if mentions_clock(node) and (makes_times(node) or any(_of_time(kinds[name]) for name in columns_of(node))):
        raise bad_filter(expression, "Spark replaces words such as now and today by the current time")
    condition = spark_sql(node)
    nulls = ", ".join(f"cast(null as {kind}) as {quoted(name)}" for name, kind in kinds.items())
    try:
        spark.sql(f"SELECT {nulls}").where(condition).schema  # noqa: B018 - analysed, not run
    except Exception as error:
        raise bad_filter(expression, reason_of(error)) from error
    return condition


def _of_time(kind: str) -> bool:
    return "date" in kind or "timestamp" in kind
