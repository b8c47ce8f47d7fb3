"""Reading tables of the lake: by Spark, and without it where the data files need only reading.

A range of rows is read in one of two ways, which give the same rows (`lake.ranges` says when which). Every action on
Spark is counted, so that an export can say how many it needed.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from floodmark.commit.protocol import PartitionStats, TableState
from floodmark.errors import FloodmarkError, Retryable, reason_of
from floodmark.lake.catalog import Catalog
from floodmark.lake.files import Odd
from floodmark.lake.filters import bad_filter, check_filter, check_text
from floodmark.lake.inspection import StoredRow
from floodmark.lake.plan import Plan, plan
from floodmark.lake.ranges import FileTask, cores, file_tasks, from_files, from_rows, row_tasks
from floodmark.lake.spark_inspection import find_on_spark
from floodmark.lake.table import Work
from floodmark.lake.tasks import RangeOutcome, RangeWork
from floodmark.lake.types import quoted
from floodmark.schema import SEGMENT, SEQ, Schema, partition_key
from floodmark.sequence import CHECKSUM_MODULUS, SEQUENCE_MAX, SequenceRange, Tally

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

BYTES_HERE_MAX = 32 << 20
"""Up to how many bytes of files ranges are worked on in this process, however few rows that is."""


@dataclass(slots=True)
class SparkReader:
    """Tables in one Iceberg catalog, as far as they are only read."""

    catalog: Catalog
    start: Callable[[], SparkSession]
    """Starts the session on first need, and not before: metadata is read without a JVM."""
    direct: bool = True
    """Whether files that need only reading are read without Spark's reader."""
    rows_here_max: int = 20_000
    """Up to how many rows ranges are worked on in this process: a task would take longer to start than to finish."""
    jobs: int = field(default=0, init=False)
    """How many actions were started on Spark."""
    _counting: threading.Lock = field(default_factory=threading.Lock, init=False)
    _tasks_at_once: int | None = field(default=None, init=False)
    _session: SparkSession | None = field(default=None, init=False)

    @property
    def spark(self) -> SparkSession:
        if self._session is None:
            session = self.start()
            self.catalog.attach(session)
            # Also in a session that the application made: a union of one-partition frames is to keep its partitions.
            session.conf.set("spark.sql.unionOutputPartitioning", "false")
            self._session = session
        return self._session

    def load(self, table: str) -> TableState | None:
        return self.catalog.state(table)

    def frame(self, table: str, *, snapshot: int) -> DataFrame:
        """One snapshot of a table, by its id, system columns included."""
        return self.spark.read.option("versionAsOf", str(snapshot)).table(self.catalog.spark_name(table))

    def has_rows(self, table: str, *, snapshot: int, within: SequenceRange) -> bool:
        with self._reading(table, None):
            frame = self._selected(table, snapshot, within).select(SEQ)
            with self._action():
                return not frame.isEmpty()

    def stats(
        self,
        table: str,
        *,
        snapshot: int,
        within: SequenceRange,
        partition_by: tuple[str, ...],
        partition_values: dict[str, Any] | None = None,
        row_filter: str | None = None,
    ) -> list[PartitionStats]:
        from pyspark.sql import functions as F

        from floodmark.lake import transforms

        with self._reading(table, row_filter):
            grouped = (
                self._selected(table, snapshot, within, partition_values, row_filter)
                .groupBy(*[quoted(name) for name in partition_by])
                .agg(F.count(F.lit(1)), F.sum(transforms.checksum_part()), F.min(SEQ), F.max(SEQ))
            )
            with self._action():
                counted = grouped.collect()
        found = []
        for row in counted:
            *values, rows, checksum, first, last = row  # by place: a user's column may be called anything
            if rows:
                tally = Tally(rows, int(checksum) % CHECKSUM_MODULUS)
                found.append(PartitionStats(partition_key(partition_by, values), tally, first, last))
        return sorted(found, key=lambda item: item.partition)

    def segments_above(self, table: str, *, snapshot: int, after: int) -> set[int]:
        with self._reading(table, None):
            above = self._selected(table, snapshot, SequenceRange(after, SEQUENCE_MAX))
            with self._action():
                found = above.select(SEGMENT).distinct().collect()
        return {row[SEGMENT] for row in found}

    def segment_rows(self, table: str, *, snapshot: int, within: SequenceRange) -> dict[int, int]:
        counted = self._selected(table, snapshot, within).groupBy(SEGMENT).count()
        with self._action():
            return {row[SEGMENT]: row["count"] for row in counted.collect()}

    def scan(
        self,
        table: str,
        *,
        snapshot: int,
        within: SequenceRange,
        columns: tuple[str, ...] | None = None,
        partition_values: dict[str, Any] | None = None,
        row_filter: str | None = None,
    ) -> Iterator[pa.Table]:
        """From the data files where they need only reading: no job, no JVM, a fraction of the time. Else by Spark."""
        rows = self._read(table, snapshot, within, columns, partition_values) if row_filter is None else None
        if rows is None:
            with self._reading(table, row_filter):
                frame = self._selected(table, snapshot, within, partition_values, row_filter)
                if columns is not None:
                    frame = frame.select(*[quoted(name) for name in columns], SEQ)
                with self._action():
                    rows = frame.toArrow()
                rows = rows.sort_by(SEQ)
        if rows.num_rows:
            yield rows

    def _read(
        self,
        table: str,
        snapshot: int,
        within: SequenceRange,
        columns: tuple[str, ...] | None,
        partition_values: dict[str, Any] | None,
    ) -> pa.Table | None:
        planned = self._plan(table, snapshot, [within], columns, partition_values)
        if planned is None:
            return None
        wanted = [column.name for column in planned.columns] if columns is None else [*columns, SEQ]
        try:
            with contextlib.closing(planned.reader(threads=True)) as reader:
                return reader.rows(within).select(wanted)
        except (Odd, KeyError):
            return None

    def each_range(
        self,
        table: str,
        *,
        snapshot: int,
        ranges: Sequence[SequenceRange],
        columns: tuple[str, ...],
        schema: Schema,
        work: Work,
        partition_values: dict[str, Any] | None = None,
        row_filter: str | None = None,
    ) -> Iterator[tuple[SequenceRange, Tally, dict[str, Any]]]:
        job = RangeWork(tuple(ranges), columns, schema, work)
        if not ranges:
            return
        planned = self._plan(table, snapshot, ranges, columns, partition_values)
        with self._reading(table, row_filter):
            if planned is None or row_filter is not None:
                outcomes = [RangeOutcome(index, odd=True) for index in range(len(ranges))]
            else:
                outcomes = self._from_files(job, planned)
            odd = [outcome.index for outcome in outcomes if outcome.odd]
            if odd:
                part = replace(job, ranges=tuple(ranges[index] for index in odd))
                hull = SequenceRange(part.ranges[0].after, part.ranges[-1].through)
                frame = self._selected(table, snapshot, hull, partition_values, row_filter, schema)
                again = self._from_rows(frame, part, planned)
                outcomes = [item for item in outcomes if not item.odd]
                outcomes += [replace(item, index=odd[item.index]) for item in again]
        yield from job.told(outcomes)

    def _plan(
        self,
        table: str,
        snapshot: int,
        ranges: Sequence[SequenceRange],
        columns: tuple[str, ...] | None,
        partition_values: dict[str, Any] | None,
    ) -> Plan | None:
        loaded = self.catalog.table(table) if self.direct else None
        if loaded is None:
            return None
        return plan(loaded, snapshot=snapshot, ranges=ranges, columns=columns, partition_values=partition_values or {})

    def _from_files(self, job: RangeWork, planned: Plan) -> list[RangeOutcome]:
        rows, bytes_ = (sum(map(size, job.ranges)) for size in (planned.rows, planned.bytes))
        if rows <= self.rows_here_max and bytes_ <= BYTES_HERE_MAX:
            return FileTask(job, range(len(job.ranges)), planned).run()
        tasks = file_tasks(job, planned, tasks=self._cores())
        with self._action():
            return from_files(self.spark, tasks)

    def _from_rows(self, frame: DataFrame, job: RangeWork, planned: Plan | None) -> list[RangeOutcome]:
        tasks = row_tasks(job, planned, cores=self._cores())
        with self._action():
            return from_rows(frame, job, tasks)

    def _cores(self) -> int:
        if self._tasks_at_once is None:
            self._tasks_at_once = cores(self.spark)
        return self._tasks_at_once

    def find_rows(
        self,
        table: str,
        *,
        snapshot: int,
        partition_values: Mapping[str, Any],
        columns: tuple[str, ...] = (),
        rows_max: int = 100,
    ) -> list[StoredRow]:
        return find_on_spark(
            self, table, snapshot=snapshot, partition_values=partition_values, columns=columns, rows_max=rows_max
        )

    def check_filter(self, table: str, expression: str) -> None:
        state = self.load(table)
        if state is None:
            check_text(expression, None)
        else:
            check_filter(self.spark, expression, state.columns)

    def _selected(
        self,
        table: str,
        snapshot: int,
        within: SequenceRange,
        partition_values: dict[str, Any] | None = None,
        row_filter: str | None = None,
        schema: Schema | None = None,
    ) -> DataFrame:
        """The rows of a range that the conditions let through. A column of after the snapshot is null to them."""
        from floodmark.lake import transforms

        frame = self.frame(table, snapshot=snapshot).transform(transforms.within(within))
        if not partition_values and row_filter is None:
            return frame
        state = self.load(table)
        known = dict(state.columns if state else ()) | {column.name: column.type for column in schema or ()}
        if row_filter is not None:
            row_filter = check_filter(self.spark, row_filter, tuple(known.items()))
        return frame.transform(transforms.selected(partition_values or {}, row_filter, known))

    @contextlib.contextmanager
    def _action(self) -> Iterator[None]:
        with self._counting:
            self.jobs += 1
        yield

    @contextlib.contextmanager
    def _reading(self, table: str, row_filter: str | None) -> Iterator[None]:
        try:
            yield
        except FloodmarkError:
            raise
        except Exception as error:
            state = getattr(error, "getSqlState", lambda: None)()
            if (
                row_filter is not None and state is not None and state.startswith("22")
            ):  # a value that it cannot deal with
                raise bad_filter(row_filter, reason_of(error)) from error
            raise Retryable(
                f"Rows of table {table!r} could not be read: {reason_of(error)}.",
                hint="Doing it again changes nothing that was done already.",
            ) from error
