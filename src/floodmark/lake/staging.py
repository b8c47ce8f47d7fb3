"""Sources that Spark reads: DataFrames, Iceberg tables, queries, and large texts; staged as Parquet files.

A frame need not give the same rows in the same order twice, and cannot be read on from its middle. Its files can.
"""

from __future__ import annotations

import base64
import contextlib
import pickle
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from floodmark.errors import InvalidSetting, Permanent, Retryable, reason_of
from floodmark.files import PRIVATE_DIRECTORY, sync_directory, sync_file
from floodmark.lake.legacy import legacy_table
from floodmark.lake.session import sees_this_disk
from floodmark.lake.types import quoted
from floodmark.schema.names import is_system_column

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

VIEW = "source"
"""What a query calls the source."""
_TIMESTAMPS = "spark.sql.parquet.outputTimestampType"


@dataclass(frozen=True, slots=True)
class FrameShape:
    """What Spark does to a frame before it is written down."""

    select: str | None = None
    renamed: Mapping[str, str] | None = None
    event_time: str | None = None
    since: int | None = None
    until: int | None = None
    """Bounds of the event time, in microseconds."""


def table_frame(spark: SparkSession, table: str) -> tuple[str, str, DataFrame]:
    """An Iceberg table at its head: what it is, in which state, and its rows."""
    found = legacy_table(spark, table, version=None)
    return found.name, found.version, found.frame


def files_frame(spark: SparkSession, paths: Sequence[Path], *, format: str) -> DataFrame:
    reader = spark.read
    names = [f"file://{path}" for path in paths]
    if format == "parquet":
        return reader.parquet(*names)
    if format == "csv":
        return reader.csv(names, header=True, inferSchema=True, multiLine=True, escape='"')
    return reader.json(names)


def frame_of(spark: SparkSession, rows: Any) -> DataFrame:
    """Rows in memory."""
    import pyarrow as pa

    if not isinstance(rows, list) and not hasattr(rows, "num_rows"):
        raise InvalidSetting(
            f"A query over a {type(rows).__name__} is not possible.",
            hint="Give a path, a list, an Arrow table or a DataFrame.",
        )
    table = pa.Table.from_pylist(rows) if isinstance(rows, list) else rows
    return spark.createDataFrame(table if isinstance(table, pa.Table) else pa.Table.from_batches([table]))


def stage(frame: DataFrame, directory: Path, shape: FrameShape) -> None:
    """Write a frame into `part-*.parquet`, each durable. The directory is emptied first."""
    spark = frame.sparkSession
    if not sees_this_disk(spark):
        raise Permanent(
            "Rows of a DataFrame, a table or a large file cannot be loaded over Spark Connect or a cluster of [spark].",
            hint="Give the rows from Python in batches, or run the backfill with [spark] master = local[*].",
        )
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(PRIVATE_DIRECTORY, parents=True)
    raw = directory / "raw"
    with reading_by_spark(), _query(spark, frame, shape.select) as rows, _exact_timestamps(spark):
        shaped = _shaped(rows, shape)
        shaped.write.parquet(f"file://{raw}", compression="lz4")
    for number, path in enumerate(sorted(raw.glob("*.parquet"))):
        sync_file(path)
        path.rename(directory / f"part-{number:05}.parquet")
    shutil.rmtree(raw)
    sync_directory(directory)
    sync_directory(directory.parent)


@contextlib.contextmanager
def reading_by_spark() -> Iterator[None]:
    """Report errors of Spark's reading of a source."""
    try:
        yield
    except InvalidSetting:
        raise
    except Exception as error:
        state = getattr(error, "getSqlState", lambda: None)()
        if state is not None and state.startswith("22"):  # a value that the query cannot deal with
            raise Permanent(
                f"The source cannot be converted: {reason_of(error)}.", hint="Correct the query; nothing was stored."
            ) from error
        raise Retryable(
            f"The source could not be read by Spark: {reason_of(error)}.",
            hint="Run it again: loaded rows stay loaded.",
        ) from error


@contextlib.contextmanager
def _query(spark: SparkSession, frame: DataFrame, select: str | None) -> Iterator[DataFrame]:
    own = frame.select(*[quoted(name) for name in frame.columns if not is_system_column(name)])
    if select is None:
        yield own
        return
    own.createOrReplaceTempView(VIEW)
    try:
        try:
            rows = spark.sql(select)
            rows.schema  # noqa: B018 - over Spark Connect a query is analysed only when its result is used
        except Exception as error:
            raise InvalidSetting(
                f"The query cannot be used: {reason_of(error)}.",
                hint="It selects from the view `source`, which has the rows to load.",
            ) from error
        yield rows
    finally:
        spark.catalog.dropTempView(VIEW)


@contextlib.contextmanager
def _exact_timestamps(spark: SparkSession) -> Iterator[None]:
    """Spark's own default is a type without a zone, which readers take for nanoseconds."""
    before = spark.conf.get(_TIMESTAMPS)
    spark.conf.set(_TIMESTAMPS, "TIMESTAMP_MICROS")
    try:
        yield
    finally:
        spark.conf.set(_TIMESTAMPS, before)


def _shaped(rows: DataFrame, shape: FrameShape) -> DataFrame:
    from pyspark.sql import functions as F

    renamed = rows.withColumnsRenamed(dict(shape.renamed or {}))
    kinds = dict(renamed.dtypes)
    if shape.event_time is None or kinds.get(shape.event_time) != "timestamp":
        return renamed  # a value that is no timestamp yet is checked once it is one
    column = F.col(quoted(shape.event_time))
    if shape.since is not None:
        renamed = renamed.where(column >= F.timestamp_micros(F.lit(shape.since)))
    if shape.until is not None:
        renamed = renamed.where(column < F.timestamp_micros(F.lit(shape.until)))
    return renamed


# ── work on Spark's workers ──────────────────────────────────────────────────────────────────────────────────────────
# Our own readers, run by Spark's workers: a task each, on whatever machine Spark chooses, as often as it must. To Spark
# it is a source of data that is read in as many parts as there are tasks. What a worker gives is passed on as it comes,
# so a task may give more than fits into memory.


Task = TypeVar("Task")
Work = Callable[[Task], Iterator[NamedTuple]]
"""What a worker makes of a task: records of one kind."""


def gathered(spark: SparkSession, tasks: Sequence[Task], work: Work[Task], *, columns: str) -> list[Row]:
    """What `work` says of each task, in order: a few figures, and never rows."""
    with reading_by_spark():
        return list(_frame_of_tasks(spark, tasks, work, columns=columns).collect())


def written(
    spark: SparkSession, tasks: Sequence[Task], work: Work[Task], directory: Path, *, columns: str
) -> list[Path]:
    """What `work` makes of each task, as Parquet files in order: one for each task that gave anything."""
    with reading_by_spark():
        _frame_of_tasks(spark, tasks, work, columns=columns).write.parquet(f"file://{directory}", compression="none")
    return sorted(directory.glob("part-*.parquet"))  # named by the number of the task


def _frame_of_tasks(spark: SparkSession, tasks: Sequence[Task], work: Work[Task], *, columns: str) -> DataFrame:
    spark.dataSource.register(_Tasks)
    asked = base64.b64encode(pickle.dumps((tasks, work))).decode()
    return spark.read.format(_Tasks.name()).options(asked=asked, columns=columns).load()


class _Tasks(DataSource):  # type: ignore[misc]  # pyspark declares no types for it
    """Tasks as Spark sees them."""

    @classmethod
    def name(cls) -> str:
        return "floodmark_tasks"

    def schema(self) -> str:
        return str(self.options["columns"])

    def reader(self, schema: Any) -> _Reader:
        from pyspark.sql.pandas.types import to_arrow_schema

        return _Reader(self.options["asked"], to_arrow_schema(schema))


class _Reader(DataSourceReader):  # type: ignore[misc]  # the same
    def __init__(self, asked: str, kinds: pa.Schema) -> None:
        self._tasks, self._work = pickle.loads(base64.b64decode(asked))  # noqa: S301 - our own, by way of Spark
        self._kinds = kinds

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(number) for number in range(len(self._tasks))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        for record in self._work(self._tasks[partition.value]):
            yield pa.RecordBatch.from_pylist([record._asdict()], schema=self._kinds)
