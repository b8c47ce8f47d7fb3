"""DataFrames for users: a dataset without system columns, whole or between two sequence numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from floodmark.lake.spark import SparkLake
from floodmark.lake.transforms import within as rows_within
from floodmark.lake.types import quoted, spark_type

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from floodmark.schema import Schema
    from floodmark.sequence import SequenceRange


def dataset_frame(
    lake: SparkLake,
    *,
    table: str,
    schema: Schema,
    snapshot: int | None,
    columns: tuple[str, ...],
    within: SequenceRange | None,
) -> DataFrame:
    """The rows of one snapshot, as users see them. A dataset without any commit is empty, with its columns."""
    if snapshot is None:
        return lake.spark.range(0).selectExpr(*[_null(schema, name) for name in columns])
    frame = lake.frame(table, snapshot=snapshot)
    if within is not None:
        frame = frame.transform(rows_within(within))
    known = set(frame.columns)
    # A column that was declared after the last commit is not in the table yet: it is null everywhere.
    return frame.selectExpr(*[quoted(name) if name in known else _null(schema, name) for name in columns])


def _null(schema: Schema, name: str) -> str:
    return f"cast(null as {spark_type(schema.column(name).type)}) as {quoted(name)}"
