"""Reading tables of the lake: by Spark, and without it where the data files need only reading.

A range of rows is read in one of two ways, which give the same rows (`lake.ranges` says when which). Every action on
Spark is counted, so that an export can say how many it needed.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from floodmark.commit.protocol import TableState
from floodmark.errors import FloodmarkError, Retryable, reason_of
from floodmark.lake.catalog import Catalog
from floodmark.lake.executors import explained
from floodmark.lake.files import Odd
from floodmark.lake.filters import bad_filter, check_filter
from floodmark.lake.manifests import Manifests
from floodmark.lake.moving import unmoved
from floodmark.lake.plan import Plan, plan
from floodmark.lake.queries import FILE, Checksum, Group
from floodmark.lake.ranges import FileTask, cores, file_tasks, from_files, from_rows, row_tasks
from floodmark.lake.session import is_connected, is_lost, sees_this_disk
from floodmark.lake.table import Work
from floodmark.lake.tasks import RangeOutcome, RangeWork
from floodmark.lake.types import quoted, spark_type
from floodmark.removal import Selection, Spared
from floodmark.schema import CONTENT_ID, SEGMENT, SEQ, Column, PartitionValues, Schema, parse_partition_key
from floodmark.schema.types import DATE, ListType, StructType
from floodmark.sequence import CHECKSUM_MODULUS, SequenceRange, Tally

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame, SparkSession

PLACE = "_ingest_place"
DAY_MICROSECONDS = 86_400_000_000
IDLE_SECONDS = 60.0
"""After so long without work, whether a session of a server still exists is asked before it is used."""
BYTES_HERE_MAX = 32 << 20
"""Up to how many bytes of files ranges are worked on in this process, however few rows that is."""


@dataclass(slots=True)
class SparkReader:
    """Tables in one Iceberg catalog, read-only."""

    catalog: Catalog
    start: Callable[[], SparkSession]
    """Starts the session on first need, and not before: metadata is read without a JVM."""
    direct: bool = True
    """Whether files that need only reading are read without Spark's reader."""
    rows_here_max: int = 20_000
    """Up to how many rows ranges are worked on in this process: a task would take longer to start than to finish."""
    jobs: int = field(default=0, init=False)
    """How many actions were started on Spark."""
    manifests: Manifests = field(default_factory=Manifests, init=False)
    _counting: threading.Lock = field(default_factory=threading.Lock, init=False)
    _tasks_at_once: int | None = field(default=None, init=False)
    _session: SparkSession | None = field(default=None, init=False)
    _used: float = field(default=0.0, init=False)
    """When the session was last asked for, on a clock of the process."""
    _starting: threading.Lock = field(default_factory=threading.Lock, init=False)
    _prepared: bool = field(default=False, init=False)

    @property
    def spark(self) -> SparkSession:
        with self._starting:
            idle = time.monotonic() - self._used > IDLE_SECONDS
            if self._session is not None and is_lost(self._session, ask=idle):
                self._session = None
            self._used = time.monotonic()
            if self._session is None:
                session = self.start()
                self.catalog.attach(session)
                # Also in a session that the application made: a union of one-partition frames is to keep its
                # partitions.
                session.conf.set("spark.sql.unionOutputPartitioning", "false")
                self._session = session
            return self._session

    @property
    def tasks_here(self) -> bool:
        return sees_this_disk(self.spark)

    def prepare(self) -> None:
        # Where an application uses Spark itself, the session is its own, and known to the thread that calls us only.
        if not self._prepared and "pyspark" not in sys.modules:
            self._prepared = True
            threading.Thread(target=self._start_early, name="spark-start", daemon=True).start()

    def _start_early(self) -> None:
        with contextlib.suppress(Exception):  # whoever needs the session tries again, and says what is wrong
            _ = self.spark

    def load(self, table: str) -> TableState | None:
        return unmoved(self.catalog.state(table))

    def frame(self, table: str, *, snapshot: int) -> DataFrame:
        """One snapshot of a table, by its id, system columns included."""
        return self.spark.read.option("versionAsOf", str(snapshot)).table(self.catalog.spark_name(table))

    def dataset_frame(
        self,
        *,
        table: str,
        schema: Schema,
        snapshot: int | None,
        columns: tuple[str, ...],
        within: SequenceRange | None,
    ) -> DataFrame:
        """The rows of one snapshot, as users see them: without system columns, whole or between two numbers.

        A dataset without any commit is empty, with its columns. A column that was declared after the last commit is
        not in the table yet: it is null everywhere.
        """
        from floodmark.lake import transforms

        frame = self.spark.range(0).drop("id") if snapshot is None else self.frame(table, snapshot=snapshot)
        if snapshot is not None and within is not None:
            frame = frame.transform(transforms.within(within))
        return frame.transform(transforms.filled(schema)).select(*[quoted(name) for name in columns])

    def scan(
        self,
        table: str,
        *,
        snapshot: int,
        within: SequenceRange,
        columns: tuple[str, ...] | None = None,
        partition_values: PartitionValues | None = None,
        row_filter: str | None = None,
        rows_max: int | None = None,
    ) -> Iterator[pa.Table]:
        """From the data files where they need only reading: no job, no JVM, much faster. Otherwise by Spark."""
        rows = self._read(table, snapshot, within, columns, partition_values) if row_filter is None else None
        if rows is None:
            with self.reading(table, row_filter):
                frame = self.selected(
                    table, snapshot, within, partition_values, row_filter, file=FILE in (columns or ())
                )
                if columns is not None:
                    frame = frame.select(*_columns(frame, columns), SEQ)
                if rows_max is not None:
                    frame = frame.orderBy(SEQ).limit(rows_max)
                with self.action():
                    rows = frame.toArrow()
                rows = rows.sort_by(SEQ)
        if rows.num_rows:
            yield rows.slice(0, rows_max)

    def aggregate(
        self,
        table: str,
        *,
        snapshot: int,
        selection: Selection,
        schema: Schema | None = None,
        by: tuple[str, ...] = (),
        partition_values: PartitionValues | None = None,
        cuts: Sequence[int] = (),
        width: int | None = None,
        checksum: Checksum = Checksum.CONTENT,
    ) -> list[Group]:
        """One job, however many groups there are."""
        from pyspark.sql import functions as F

        from floodmark.lake.transforms import filled

        with self.reading(table, selection.where):
            frame = self.selected(table, snapshot, selection.range, partition_values, schema=schema)
            frame = frame.transform(filled(schema or Schema()))
            if not selection.is_range:
                frame = frame.transform(chosen(self.spark, selection, self._schema(table, schema), by))
            placed = [] if width is None and not cuts else [F.expr(_place(cuts, width))]
            grouped = frame.groupBy(*placed, *[quoted(name) for name in by]).agg(
                F.count(F.lit(1)), F.sum(_checksum(checksum, schema)), F.min(SEQ), F.max(SEQ)
            )
            with self.action():
                counted = grouped.collect()
        found = []
        for row in counted:
            *key, rows, total, first, last = row  # by place: a user's column may be called anything
            if rows:
                place = int(key.pop(0)) if placed else 0
                found.append(Group(tuple(key), place, Tally(rows, int(total) % CHECKSUM_MODULUS), first, last))
        return found

    def _read(
        self,
        table: str,
        snapshot: int,
        within: SequenceRange,
        columns: tuple[str, ...] | None,
        partition_values: PartitionValues | None,
    ) -> pa.Table | None:
        many = any(isinstance(value, frozenset) for value in (partition_values or {}).values())
        if many or FILE in (columns or ()):  # to be found anywhere: Iceberg prunes files by the bounds of such columns
            return None
        planned = self._plan(table, snapshot, [within], columns, partition_values)
        if planned is None:
            return None
        wanted = [column.name for column in planned.columns] if columns is None else [*columns, SEQ]
        try:
            with contextlib.closing(planned.reader(threads=True)) as reader:
                return reader.rows(within).select(wanted)
        except (Odd, KeyError, OSError):  # Spark says with more authority what is wrong with a file
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
        partition_values: PartitionValues | None = None,
        row_filter: str | None = None,
    ) -> Iterator[tuple[SequenceRange, Tally, dict[str, Any]]]:
        job = RangeWork(tuple(ranges), columns, schema, work)
        if not ranges:
            return
        planned = self._plan(table, snapshot, ranges, columns, partition_values)
        with self.reading(table, row_filter):
            if planned is None or row_filter is not None:
                outcomes = [RangeOutcome(index, odd=True) for index in range(len(ranges))]
            else:
                outcomes = self._from_files(job, planned)
            odd = [outcome.index for outcome in outcomes if outcome.odd]
            if odd:
                part = replace(job, ranges=tuple(ranges[index] for index in odd))
                hull = SequenceRange(part.ranges[0].after, part.ranges[-1].through)
                frame = self.selected(table, snapshot, hull, partition_values, row_filter, schema)
                again = self._from_rows(frame, part, planned)
                outcomes = [item for item in outcomes if not item.odd]
                outcomes += [replace(item, index=odd[item.index]) for item in again]
        yield from job.results(outcomes)

    def _plan(
        self,
        table: str,
        snapshot: int,
        ranges: Sequence[SequenceRange],
        columns: tuple[str, ...] | None,
        partition_values: PartitionValues | None,
    ) -> Plan | None:
        loaded = self.catalog.table(table) if self.direct else None
        if loaded is None:
            return None
        return plan(
            loaded,
            snapshot=snapshot,
            ranges=ranges,
            columns=columns,
            partition_values=partition_values or {},
            manifests=self.manifests,
        )

    def _from_files(self, job: RangeWork, planned: Plan) -> list[RangeOutcome]:
        rows, bytes_ = (sum(map(size, job.ranges)) for size in (planned.rows, planned.bytes))
        if rows <= self.rows_here_max and bytes_ <= BYTES_HERE_MAX:
            return FileTask(job, range(len(job.ranges)), planned).run()
        tasks = file_tasks(job, planned, tasks=self._cores())
        with self.action():
            return from_files(self.spark, tasks)

    def _from_rows(self, frame: DataFrame, job: RangeWork, planned: Plan | None) -> list[RangeOutcome]:
        tasks = row_tasks(job, planned, cores=self._cores())
        with self.action():
            return from_rows(frame, job, tasks)

    def _cores(self) -> int:
        """How many tasks run side by side. On a cluster executors come and go; a server is asked once, by a job."""
        if self._tasks_at_once is None or not is_connected(self.spark):
            self._tasks_at_once = cores(self.spark)
        return self._tasks_at_once

    def matching(self, rows: pa.Table, condition: str, *, schema: Schema) -> list[int]:
        import pyarrow as pa

        with self.reading("spool", condition):
            known = check_filter(self.spark, condition, tuple((column.name, column.type) for column in schema))
            if not rows.num_rows:
                return []
            columns = {
                field.name: rows[field.name].cast(field.type)
                if field.name in rows.column_names
                else pa.nulls(rows.num_rows, field.type)
                for field in schema.arrow()
            }
            places = pa.array(range(rows.num_rows), pa.int64())
            frame = self.spark.createDataFrame(pa.table({**columns, PLACE: places}))
            with self.action():
                return sorted(row[PLACE] for row in frame.where(known).select(PLACE).collect())

    def selected(
        self,
        table: str,
        snapshot: int,
        within: SequenceRange,
        partition_values: PartitionValues | None = None,
        row_filter: str | None = None,
        schema: Schema | None = None,
        *,
        file: bool = False,
    ) -> DataFrame:
        """The rows of a range that the conditions let through. A column of after the snapshot is null to them.

        With `file` each row says which data file it is in.
        """
        from floodmark.lake import transforms

        frame = self.frame(table, snapshot=snapshot)
        frame = (frame.select("*", FILE) if file else frame).transform(transforms.within(within))
        if not partition_values and row_filter is None:
            return frame
        whole = self._schema(table, schema)
        if row_filter is not None:
            row_filter = check_filter(self.spark, row_filter, tuple((column.name, column.type) for column in whole))
        return frame.transform(transforms.selected(partition_values or {}, row_filter, whole))

    def _schema(self, table: str, schema: Schema | None) -> Schema:
        """The columns of the current table, and those of a schema."""
        state = self.load(table)
        known = {name: Column(name, kind) for name, kind in (state.columns if state else ())}
        return Schema(tuple((known | {column.name: column for column in schema or ()}).values()))

    @contextlib.contextmanager
    def action(self) -> Iterator[None]:
        """Count an action on Spark."""
        with self._counting:
            self.jobs += 1
        with explained():
            yield

    @contextlib.contextmanager
    def reading(self, table: str, row_filter: str | None) -> Iterator[None]:
        """Raise the cause of a failed read: the filter, or an error that a retry may fix."""
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
                hint="It is safe to run it again.",
            ) from error


def _columns(frame: DataFrame, columns: Sequence[str]) -> list[SparkColumn]:
    from pyspark.sql import functions as F

    known = set(frame.columns)
    return [F.col(quoted(name)) if name in known else F.lit(None).alias(name) for name in columns]


def _place(cuts: Sequence[int], width: int | None) -> str:
    if width is not None:
        return f"{SEQ} div {width}"
    return f"size(filter(array({', '.join(map(str, cuts))}), cut -> cut < {SEQ}))"


def _checksum(kind: Checksum, schema: Schema | None) -> SparkColumn:
    from pyspark.sql import functions as F

    from floodmark.lake.transforms import checksum_part

    match kind:
        case Checksum.NONE:
            return F.lit(0)
        case Checksum.CONTENT:
            return checksum_part()
        case Checksum.ROW:
            values = [_value(column) for column in schema or ()]
            return F.xxhash64(F.col(SEQ), F.col(CONTENT_ID), F.col(SEGMENT), *values).cast("decimal(38,0)")


def _value(column: Column) -> SparkColumn:
    """In the types of today: a number that was narrower in an old snapshot is the same number."""
    from pyspark.sql import functions as F

    value = F.col(quoted(column.name))
    return value if isinstance(column.type, ListType | StructType) else value.cast(spark_type(column.type))


# ── the rows that a selection names ──────────────────────────────────────────────────────────────────────────────────


def chosen(
    spark: SparkSession, selection: Selection, schema: Schema, partition_by: tuple[str, ...]
) -> Callable[[DataFrame], DataFrame]:
    """The rows that a selection names. A column that the frame does not have is null in all of them."""
    from floodmark.lake.transforms import filled

    named = " AND ".join(conditions(spark, selection, schema))
    spared = is_spared(selection.spared, schema, partition_by)
    return lambda frame: frame.transform(filled(schema)).where(named).where(~spared)


def conditions(spark: SparkSession, selection: Selection, schema: Schema) -> list[str]:
    """What must be true of a row in any partition. The number comes first: files are pruned by it."""
    parts = [f"{SEQ} > {selection.after} AND {SEQ} <= {selection.through}"]
    if selection.before is not None and selection.event_time is not None:
        parts.append(f"{quoted(selection.event_time)} < {_instant(selection, schema)}")
    if selection.numbers is not None:
        parts.append(f"{SEQ} IN ({', '.join(map(str, selection.numbers)) or 'NULL'})")
    if selection.without:
        parts.append(f"{SEQ} NOT IN ({', '.join(map(str, selection.without))})")
    if selection.where is not None:
        known = tuple((column.name, column.type) for column in schema)
        parts.append(f"({check_filter(spark, selection.where, known)})")
    return parts


def _instant(selection: Selection, schema: Schema) -> str:
    if schema.column(selection.event_time or "").type == DATE:
        return f"date_from_unix_date({(selection.before or 0) // DAY_MICROSECONDS})"
    return f"timestamp_micros({selection.before})"


def is_spared(spared: Sequence[Spared], schema: Schema, partition_by: tuple[str, ...]) -> SparkColumn:
    """Whether a row stays, whatever else is said of it."""
    from pyspark.sql import functions as F

    found = F.lit(False)
    for item in spared:
        same = F.expr(in_ranges(item))
        for name, value in zip(partition_by, parse_partition_key(partition_by, item.partition, schema), strict=True):
            same = same & F.col(quoted(name)).eqNullSafe(F.lit(value))
        found = found | same
    return found


def in_ranges(item: Spared) -> str:
    return "(" + " OR ".join(f"({SEQ} > {one.after} AND {SEQ} <= {one.through})" for one in item.ranges) + ")"
