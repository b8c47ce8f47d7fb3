"""Work of our own, done by Spark's workers: a task each, on whatever machine Spark chooses, as often as it must.

To Spark it is a source of data that is read in as many parts as there are tasks. What a worker gives is passed on as it
comes, so a task may give more than fits into memory.
"""

from __future__ import annotations

import base64
import pickle
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from floodmark.lake.staging import reading_by_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

Task = TypeVar("Task")
Work = Callable[[Task], Iterator[NamedTuple]]
"""What a worker makes of a task: records of one kind."""


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
    spark.dataSource.register(_Tasks)
    asked = base64.b64encode(pickle.dumps((tasks, work))).decode()
    return spark.read.format(_Tasks.name()).options(asked=asked, columns=columns).load()


class _Tasks(DataSource):  # type: ignore[misc]
    """Tasks as Spark sees them."""

    @classmethod
    def name(cls) -> str:
        return "floodmark_tasks"

    def schema(self) -> str:
        return str(self.options["columns"])

    def reader(self, schema: Any) -> _Reader:
        from pyspark.sql.pandas.types import to_arrow_schema

        return _Reader(self.options["asked"], to_arrow_schema(schema))


class _Reader(DataSourceReader):  # type: ignore[misc]
    def __init__(self, asked: str, kinds: pa.Schema) -> None:
        self._tasks, self._work = pickle.loads(base64.b64decode(asked))  # noqa: S301 - our own, by way of Spark
        self._kinds = kinds

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(number) for number in range(len(self._tasks))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        for record in self._work(self._tasks[partition.value]):
            yield pa.RecordBatch.from_pylist([record._asdict()], schema=self._kinds)
