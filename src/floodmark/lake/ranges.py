"""Ranges of rows in Spark tasks, in one of two ways that give the same rows.

*Directly*: Spark only schedules. Each task reads the row groups that its ranges need from the data files themselves.
No row passes through the JVM, so this is the fast way, and it is used whenever the files need only reading (`plan`).

*Through Iceberg's reader*: the rows come from Spark, with deletes applied, filters evaluated and schemas reconciled,
and are handed to Python in batches. A range that a direct task finds odd after all is done again this way.

Either way there are few tasks, about one for each core, for a Python task is dear to start. A handful of rows is not
worth one: it is read and worked on in this process.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from math import ceil
from typing import TYPE_CHECKING, Any

from floodmark.lake.executors import begin_task, installed
from floodmark.lake.files import cut_all, in_order
from floodmark.lake.plan import Plan
from floodmark.lake.tasks import RangeOutcome, RangeWork, packed, unpacked
from floodmark.lake.types import quoted
from floodmark.schema import CONTENT_ID, SEQ
from floodmark.sequence import RangeSet, SequenceRange

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

TASK_ROWS_MAX = 250_000
"""How many rows a task that reads through Iceberg holds at once, unless a single range has more."""


# ── directly ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class FileTask:
    """Some neighbouring ranges, and the files that hold them."""

    work: RangeWork
    places: range
    plan: Plan

    def run(self) -> list[RangeOutcome]:
        with contextlib.closing(self.plan.reader()) as reader:
            return self.work.each(self.places, reader.rows)


def file_tasks(work: RangeWork, plan: Plan, *, tasks: int) -> list[FileTask]:
    return [
        FileTask(work, places, plan.within(_hull(work, places)))
        for places in work.dealt([plan.rows(item) for item in work.ranges], tasks=tasks)
    ]


def from_files(spark: SparkSession, tasks: Sequence[FileTask]) -> list[RangeOutcome]:
    """Run the tasks on Spark: each row of a frame is the number of one."""
    import pyarrow as pa

    version = installed()

    def run(numbers: pa.Array) -> pa.Array:
        begin_task(version)
        return pa.array([packed(tasks[number].run()) for number in numbers.to_pylist()], pa.binary())

    run.__annotations__ = {"numbers": pa.Array, "return": pa.Array}
    numbers = spark.range(len(tasks), numPartitions=len(tasks))
    return _collected(numbers.select(_function(run)("id").alias("outcomes")))


# ── through Iceberg's reader ─────────────────────────────────────────────────────────────────────────────────────────


def row_tasks(work: RangeWork, plan: Plan | None, *, cores: int) -> list[range]:
    """Which ranges go together. Without a plan, the numbers in a range say how many rows it has at most."""
    rows = [float(len(item)) if plan is None else plan.rows(item) for item in work.ranges]
    return work.dealt(rows, tasks=max(cores, ceil(sum(rows) / TASK_ROWS_MAX)))


def from_rows(frame: DataFrame, work: RangeWork, tasks: Sequence[range]) -> list[RangeOutcome]:
    """Run the tasks on the rows of a frame, each task in its own partition."""
    from pyspark.sql import functions as F

    stored = [name for name in work.columns if name in frame.columns]
    names = [*stored, SEQ, CONTENT_ID]
    run = _function(_on_batches(work, names))
    parts = [
        frame.where(_inside([work.ranges[index] for index in places])).select(*[quoted(name) for name in names])
        for places in tasks
    ]
    together = reduce(lambda left, right: left.unionAll(right), [part.coalesce(1) for part in parts])
    answered = together.select(run(*[F.col(quoted(name)) for name in names]).alias("outcomes"))
    found = _collected(answered.where(F.col("outcomes").isNotNull()))
    answered_for = {item.index for item in found}
    # No row, no answer: a partition without rows says nothing.
    return [*found, *(RangeOutcome(at, answer={}) for at in range(len(work.ranges)) if at not in answered_for)]


def _on_batches(work: RangeWork, names: Sequence[str]) -> Callable[..., Iterator[pa.Array]]:
    """A function over a partition's batches. It has to return a value for each row: null, but for the very last."""
    import pyarrow as pa

    version = installed()

    def run(batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
        begin_task(version)
        held: dict[int, list[pa.Table]] = {}
        waiting = 0
        for arrays in batches:
            if waiting:
                yield pa.nulls(waiting, pa.binary())
            rows = pa.Table.from_arrays(list(arrays), names=list(names))
            waiting = rows.num_rows
            for index, part in cut_all(rows, work.ranges):
                held.setdefault(index, []).append(part)
        if waiting:
            places = {work.ranges[index]: index for index in held}
            outcomes = work.each(sorted(held), lambda within: in_order(held.pop(places[within])))
            yield pa.array([*[None] * (waiting - 1), packed(outcomes)], pa.binary())

    run.__annotations__ = {"batches": Iterator[tuple[pa.Array, ...]], "return": Iterator[pa.Array]}
    return run


def _inside(ranges: Sequence[SequenceRange]) -> Column:
    """The rows of some ranges: neighbours are one condition, so that files are pruned by it as by one range."""
    from pyspark.sql import functions as F

    number = F.col(SEQ)
    stretches = [(number > item.after) & (number <= item.through) for item in RangeSet.of(ranges)]
    return reduce(lambda left, right: left | right, stretches, F.lit(False)) if stretches else F.lit(False)


# ── Python tasks ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _hull(work: RangeWork, places: range) -> SequenceRange:
    return SequenceRange(work.ranges[places[0]].after, work.ranges[places[-1]].through)


def _function(run: Callable[..., Any]) -> Any:
    """A function for Spark that is called once for a partition, and never twice because it appears twice in a plan."""
    from pyspark.sql.functions import arrow_udf

    return arrow_udf(run, "binary").asNondeterministic()


def _collected(frame: DataFrame) -> list[RangeOutcome]:
    return [outcome for raw in frame.toArrow()["outcomes"].to_pylist() for outcome in unpacked(raw)]


def cores(spark: SparkSession) -> int:
    """How many tasks run side by side."""
    from pyspark.errors import PySparkException
    from pyspark.sql import functions as F

    try:
        return int(spark.sparkContext.defaultParallelism)
    except (AttributeError, PySparkException):  # over Spark Connect there is no context: count what a plain range gets
        return int(spark.range(1 << 16).select(F.spark_partition_id()).distinct().count())
