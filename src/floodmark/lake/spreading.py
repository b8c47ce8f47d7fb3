"""Work of our own, done by Spark's workers: a task each, on whatever machine Spark chooses, as often as it must."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from floodmark.lake.staging import reading_by_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

Task = TypeVar("Task")
Work = Callable[[Task], Iterator[tuple[Any, ...]]]
"""What a worker makes of a task: records, which must fit into its memory."""


def gathered(spark: SparkSession, tasks: Sequence[Task], work: Work[Task], *, columns: str) -> list[Row]:
    """What `work` says of each task, in order: a few figures, and never rows."""
    with reading_by_spark():
        return list(_spread(spark, tasks, work, columns=columns).collect())


def written(
    spark: SparkSession, tasks: Sequence[Task], work: Work[Task], directory: Path, *, columns: str
) -> list[Path]:
    """What `work` makes of each task, as Parquet files in order: one for each task that gave anything."""
    with reading_by_spark():
        _spread(spark, tasks, work, columns=columns).write.parquet(f"file://{directory}", compression="none")
    return sorted(directory.glob("part-*.parquet"))  # named by the number of the task


def _spread(spark: SparkSession, tasks: Sequence[Task], work: Work[Task], *, columns: str) -> DataFrame:
    from pyspark.sql import functions as F

    # Not `mapInArrow`, which asks for pandas. And a range in as many parts as it has numbers has one in each, in order.
    done = F.udf(lambda number: list(work(tasks[number])), f"array<struct<{columns}>>", useArrow=False)
    return spark.range(0, len(tasks), 1, len(tasks)).select(F.inline(done(F.col("id"))))
