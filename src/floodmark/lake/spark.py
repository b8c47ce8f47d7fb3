"""The lake on Apache Iceberg, through Spark. The only writer of data files.

`append` is a compare-and-swap: Iceberg validates, at commit, that no data file was added since the base snapshot.
The call is an overwrite of nothing (`overwrite(false)`), which Iceberg records as an ordinary `append`, so other
engines' incremental readers keep working. Compaction in between adds no rows and does not disturb it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from floodmark.commit.protocol import (
    Append,
    Barrier,
    Snapshot,
    TableState,
    may_be_expired,
    named_segments,
)
from floodmark.config import CatalogSettings
from floodmark.errors import Corrupt, FilesMissing, FloodmarkError, Retryable, reason_of
from floodmark.lake.barriers import bound_of, raise_barrier
from floodmark.lake.catalog import (
    BLOCK_PROPERTY,
    DECLARATION_PROPERTY,
    DROPPED_PROPERTY,
    ROWS_PROPERTY,
    SEGMENTS_PROPERTY,
    THROUGH_PROPERTY,
    table_state,
)
from floodmark.lake.duplicates import KeyCache, duplicates_here, stored_here, stored_on_spark
from floodmark.lake.durable import sync_commits, sync_metadata
from floodmark.lake.executors import explained
from floodmark.lake.inventory import Orphan, TableFiles
from floodmark.lake.overlap import NAMED, TIMED, Overlap, is_absent, is_distinct, looked_through, overlap
from floodmark.lake.places import check_answered
from floodmark.lake.rollback import rollback
from floodmark.lake.session import check_settings, is_own, sees_this_disk
from floodmark.lake.settling import problem_of, settled_frame
from floodmark.lake.spark_maintenance import (
    METADATA_VERSIONS,
    checked_files,
    drop_table,
    expire_snapshots,
    files_of,
    orphans_of,
    raise_max_seq,
    remove_files,
    remove_selected,
    rename_table,
    rewrite_files,
    rewrite_manifests,
)
from floodmark.lake.spark_reading import SparkReader
from floodmark.lake.spark_segments import SEGMENT_PLACE, segments_from_here, segments_in_bucket
from floodmark.lake.spark_settling import resettle_on_spark
from floodmark.lake.stored import FileKeys
from floodmark.lake.table import NO_COLUMNS, PLAIN, AppendRefused, Copy
from floodmark.lake.targets import Target, TargetName
from floodmark.lake.types import evolution, quoted, segment_ddl, spark_type, table_ddl
from floodmark.layout import Layout
from floodmark.removal import Selection
from floodmark.schema import CONTENT_ID, SEGMENT, SEQ, Schema
from floodmark.schema.types import DATE
from floodmark.sequence import SEQUENCE_MAX, SequenceRange
from floodmark.settlement import Resettled, Resettling

if TYPE_CHECKING:
    from pyiceberg.table import Table as IcebergTable
    from pyspark.sql import DataFrame

    from floodmark.lake.spark_targets import SparkTargets

TABLE_PROPERTIES = {
    "write.distribution-mode": "none",
    "write.parquet.compression-codec": "zstd",
    "write.parquet.compression-level": "1",
    # Small row groups: a thousand new rows out of a compacted file must not cost a whole file's read. Out of 250,000
    # rows they took 72 ms with groups of 8 MiB, 37 with 4 and 25 with 2; a flush took the same time with all three.
    "write.parquet.row-group-size-bytes": str(2 << 20),
    # … and in such groups a dictionary of unique texts never grows too large, so it would be built for nothing.
    "write.parquet.dict-size-bytes": str(32 << 10),
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": str(METADATA_VERSIONS),
    "commit.manifest.min-count-to-merge": "20",
    # The content hash is random: its bounds prune nothing.
    f"write.metadata.metrics.column.{CONTENT_ID}": "counts",
}
WHOLE_FILES = {
    "ignoreCorruptFiles": "false",
    "ignoreMissingFiles": "false",
    "datetimeRebaseMode": "CORRECTED",
    "int96RebaseMode": "CORRECTED",
    "mergeSchema": "false",
}
"""How segments are read: a session's settings of these names would leave rows out, or change old dates."""
AS_READ = {"use-table-distribution-and-ordering": "false", "fanout-enabled": "true"}
"""Rows are written as they come. They may come from two buckets in turn, so a task keeps a file open for each."""
EVOLUTION_RACES_MAX = 5
FEW_ROWS_NEW = 20_000
"""So many new rows are one task's: to start another costs more."""
FEW_ROWS = 200_000
"""So many committed rows are sent to every task, 8 bytes of each, rather than that the batch is shuffled."""


@dataclass(frozen=True, slots=True)
class _Look:
    """What is known of the duplicates of a batch before Spark is asked."""

    distinct: bool
    """No two of its rows have one key."""
    by_content: bool
    """Some have no identity, and are compared by content."""
    near: Overlap | None
    """The files that may have duplicates; None: any."""
    above: int = 0
    """Only rows above this number can be duplicates."""
    lost: list[int] | None = None
    """The numbers of all duplicates; None: ask Spark."""


@dataclass(slots=True)
class SparkLake(SparkReader):
    """Tables in one Iceberg catalog."""

    catalogs: Mapping[str, CatalogSettings] = field(default_factory=dict)
    """Other catalogs: those with the tables that table sinks deliver to."""
    _targets: SparkTargets | None = field(default=None, init=False)
    _keys: KeyCache = field(default_factory=KeyCache, init=False)

    # ── metadata, without a JVM ──────────────────────────────────────────────────────────────────────────────────

    def files(self, state: TableState, *, check: bool = False) -> TableFiles:
        table = self.catalog.table(state.name)
        if table is None:
            return TableFiles()
        try:
            return checked_files(table, state) if check else files_of(table, state, self.manifests)
        except (OSError, ValueError, EOFError) as error:
            self._check_current(state, error)
            raise FilesMissing(
                f"The manifests of table {state.name!r} cannot be read: {error}.", hint="Run `floodmark fsck`."
            ) from error

    def numbers_bound(self, table: str, *, width: int) -> int | None:
        return bound_of(self.catalog, table, width=width)

    def sync(self, state: TableState, *, since: int | None) -> None:
        table = self.catalog.table(state.name)
        if table is None:  # renamed since: another read finds it, or that it was dropped
            raise Retryable(f"Table {state.name!r} no longer exists.", hint="Run it again.")
        try:
            sync_commits(table, state, since=since)
        except FilesMissing as error:
            self._check_current(state, error)
            raise

    def _check_current(self, state: TableState, error: Exception) -> None:
        """`Retryable` if files are missing because the state expired: nothing is damaged."""
        check_answered(state.location, error)
        now = self.load(state.name)
        if now is None or now.head != state.head:
            raise Retryable(f"Table {state.name!r} changed while it was read.", hint="Run it again.") from error

    def rollback(self, table: str, *, durable: int | None, droppable: Callable[[Snapshot], bool]) -> bool:
        return rollback(self.catalog, table, durable=durable, droppable=droppable)

    def target(self, name: TargetName) -> Target:
        from floodmark.lake.spark_targets import SparkTargets

        if self._targets is None:
            self._targets = SparkTargets(self, self.catalogs)
        return self._targets.target(name)

    # ── upkeep ───────────────────────────────────────────────────────────────────────────────────────────────────

    def remove(self, table: str, *, selection: Selection, schema: Schema, partition_by: tuple[str, ...]) -> None:
        with self.reading(table, selection.where), self.action():
            remove_selected(self, table, selection=selection, schema=schema, partition_by=partition_by)

    def expire(self, table: str, *, keep_snapshots: int = 1) -> int:
        return expire_snapshots(self, table, keep_snapshots=keep_snapshots)

    def rewrite(
        self, table: str, *, within: SequenceRange | None = None, file_bytes: int = 0, one_file: bool = False
    ) -> None:
        if within is None:
            rewrite_manifests(self, table)
        else:
            rewrite_files(self, table, within=within, file_bytes=file_bytes, one_file=one_file)

    def orphans(self, table: str, *, before: datetime, remove: bool = False) -> list[Orphan]:
        loaded = self.catalog.table(table)
        with self.reading(table, None):
            found = [] if loaded is None else orphans_of(loaded, before=before)
        if remove:
            remove_files(found, self.catalog.python_settings)
        return found

    def rename(self, table: str, to: str) -> bool:
        return rename_table(self.catalog, table, to)

    def drop(self, table: str) -> None:
        drop_table(self, table)

    # ── shape ────────────────────────────────────────────────────────────────────────────────────────────────────

    def table_names(self) -> list[str]:
        from pyiceberg.exceptions import NoSuchNamespaceError

        try:
            return sorted(name for *_, name in self.catalog.python.list_tables(self.catalog.namespace))
        except NoSuchNamespaceError:
            return []

    def ensure(
        self,
        table: str,
        schema: Schema = NO_COLUMNS,
        *,
        layout: Layout = PLAIN,
        create: bool = True,
        declaration: str | None = None,
        max_seq: int = 0,
        drop: Collection[str] = (),
    ) -> None:
        for column in drop:
            self._drop_column(table, column)
        self._shape(table, schema, layout, create=create, declaration=declaration)
        if max_seq:
            raise_max_seq(self, table, max_seq)

    def _shape(self, table: str, schema: Schema, layout: Layout, *, create: bool, declaration: str | None) -> None:
        for attempt in range(EVOLUTION_RACES_MAX):
            state = self.load(table)
            if state is None and not create:
                return
            name = self.catalog.spark_name(table)
            statements = evolution(name, state.columns, schema) if state else self._creation(table, schema, layout)
            declared = declaration is None or (state is not None and state.declaration == declaration)
            if not statements and declared:
                return
            try:
                with explained():
                    for statement in statements:
                        self.spark.sql(statement)
                if not declared:
                    self._keep_declaration(table, declaration or "")
                sync_metadata(self.catalog.table(table))  # the next commit can be rolled back to it
            except FloodmarkError:
                raise  # no Java, no jars: the error explains it, and a retry changes nothing
            except Exception as error:
                # Another process may have made the same change just now: read again before giving up.
                if attempt == EVOLUTION_RACES_MAX - 1:
                    raise Retryable(f"Table {table!r} could not be created or changed: {reason_of(error)}.") from error

    def _drop_column(self, table: str, column: str) -> None:
        self.spark.sql(f"ALTER TABLE {self.catalog.spark_name(table)} DROP COLUMN IF EXISTS {quoted(column)}")
        sync_metadata(self.catalog.table(table))

    def _keep_declaration(self, table: str, text: str) -> None:
        """By the catalog itself: a text of any kind needs no quoting there, and no JVM."""
        loaded = self.catalog.table(table)
        if loaded is None:
            return
        if loaded.format_version > 2:  # PyIceberg reads such a table, and cannot write it
            literal = text.replace("\\", "\\\\").replace("'", "\\'")
            name = self.catalog.spark_name(table)
            self.spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('{DECLARATION_PROPERTY}' = '{literal}')")
            return
        with loaded.transaction() as transaction:
            transaction.set_properties({DECLARATION_PROPERTY: text})

    def _creation(self, table: str, schema: Schema, layout: Layout) -> list[str]:
        name = self.catalog.spark_name(table)
        wanted = {"format-version": str(layout.format_version), **TABLE_PROPERTIES}
        properties = ", ".join(f"'{key}'='{value}'" for key, value in wanted.items())
        shape = f"({table_ddl(schema)}) USING iceberg PARTITIONED BY (truncate({layout.bucket_width}, {SEQ}))"
        order = ", ".join([*map(quoted, layout.sort), SEQ])
        place = _location(self.catalog.namespace, table, layout)
        return [
            f"CREATE NAMESPACE IF NOT EXISTS `{self.catalog.name}`.`{self.catalog.namespace}`",
            f"CREATE TABLE IF NOT EXISTS {name} {shape}{place} TBLPROPERTIES ({properties})",
            f"ALTER TABLE {name} WRITE LOCALLY ORDERED BY {order}",
        ]

    # ── the append ───────────────────────────────────────────────────────────────────────────────────────────────

    def append(self, request: Append | Copy | Barrier) -> bool:
        match request:
            case Append():
                return self._append_block(request)
            case Copy():
                self._append_copy(request)
            case Barrier():
                raise_barrier(self.catalog, request)
        return True

    def _append_copy(self, request: Copy) -> None:

        from floodmark.lake.transforms import as_table, filled, within

        self._check_base(request, request.within)
        origin = self if request.origin is None else cast("SparkLake", request.origin)
        frame = origin.frame(request.source, snapshot=request.snapshot).transform(within(request.within))
        rows = frame.transform(filled(request.schema)).transform(as_table(request.schema))
        self._write(rows, request, {THROUGH_PROPERTY: str(request.through)}, options={})

    def _write(
        self, rows: DataFrame, request: Append | Copy, properties: Mapping[str, str], *, options: Mapping[str, str]
    ) -> None:
        """The compare-and-swap."""
        from pyspark.sql import functions as F

        writer = (
            rows.writeTo(self.catalog.spark_name(request.table))
            .option("isolation-level", "serializable")
            .options(**options)
            .options(**{f"snapshot-property.{key}": value for key, value in properties.items()})
        )
        if request.base.snapshot is not None:
            writer = writer.option("validate-from-snapshot-id", str(request.base.snapshot))
        with self.action():
            writer.overwrite(F.lit(False))

    def _append_block(self, request: Append) -> bool:
        notes = _check_segments(request)
        self._check_base(request, request.range)
        with contextlib.ExitStack() as frames, ThreadPoolExecutor(1, thread_name_prefix="duplicates") as beside:
            # Spark plans how to read the segments meanwhile.
            looking = beside.submit(self._look, request, notes) if request.identity else None
            stamped = self._stamped(request)
            if len(request.range) <= FEW_ROWS_NEW:
                stamped = stamped.coalesce(1)  # one task, one file
            rows, count = self._without_excluded(request, stamped, frames)
            kept: DataFrame | None = rows if count else None
            if kept is not None and looking is not None:
                kept, count = self._new_rows(request, kept, frames, looking.result(), count=count)
            if kept is not None:
                kept, count = self._settled(request, kept, frames, count=count)
            if kept is None:
                return False
            properties = {
                BLOCK_PROPERTY: request.block,
                THROUGH_PROPERTY: str(request.range.through),
                DROPPED_PROPERTY: str(request.settlement.dropped),
                ROWS_PROPERTY: str(count),
                SEGMENTS_PROPERTY: ",".join(map(str, named_segments(request))),
            }
            self._write(kept, request, properties, options=self._order_options(request))
        return True

    def _order_options(self, request: Append) -> Mapping[str, str]:
        """How the rows of a block are put in order: as they are read, unless the table has an order of its own.

        Every segment is read in order, so to sort all of them again would only take memory for all of them. Where rows
        were joined or settled, their order is restored there.
        """
        table = self.catalog.table(request.table)
        if table is None or [field.source_id for field in table.sort_order().fields] != [
            table.schema().find_field(SEQ).field_id
        ]:
            return {}
        return AS_READ

    def _check_base(self, request: Append | Copy, range: SequenceRange) -> None:
        """Refuse a block that can no longer land, before Spark does the work.

        Iceberg's own check comes with the commit. This one is for what Iceberg would let pass: it takes the base of
        a dropped table for one of its empty successor, and no base for a table whose appends it has forgotten.
        """
        state = self.load(request.table)
        if state is None or not state.may_append_on(request.base):
            raise AppendRefused(
                f"Block {range} cannot be committed: {request.table!r} is another table, or not at its base."
            )

    def _stamped(self, request: Append) -> DataFrame:
        import pyarrow as pa
        from pyspark.sql import functions as F

        from floodmark.lake.transforms import checked, stamp

        check_settings(self.spark)
        segments, place = self._segment_rows(request)
        first = request.range.after + 1
        starts = {one.id: first + one.offset for one in request.segments}
        rows = segments.transform(stamp(starts, request.schema, place=place))
        if is_own(self.spark) or place == SEGMENT_PLACE:  # what we read ourselves, we count
            return rows
        # I11: an application's session may have settings that we do not know. What it reads is counted in the same
        # job.
        reserved = self.spark.createDataFrame(pa.table({"reserved": pa.array([len(request.range)], pa.int64())}))
        read = segments.agg(F.count(F.col(SEGMENT)).alias("read"))
        return rows.transform(checked(reserved.crossJoin(read), request.schema))

    def _segment_rows(self, request: Append) -> tuple[DataFrame, str]:
        """The rows of the segments, whatever the session's own settings are, and which column is their place in the
        segment. What cannot be read fails the job.

        Tasks on other machines do not see this machine's disk: they read from the bucket, or get the rows from here.
        """
        if all(segment.bucket is not None for segment in request.segments):
            return segments_in_bucket(self.spark, request, tasks=self._cores()), SEGMENT_PLACE
        if not sees_this_disk(self.spark):
            return segments_from_here(self.spark, request), SEGMENT_PLACE
        reader = self.spark.read.schema(segment_ddl(request.schema)).options(**WHOLE_FILES)
        return reader.parquet(*[segment.path for segment in request.segments]), "_metadata.row_index"

    def _settled(
        self, request: Append, rows: DataFrame, frames: contextlib.ExitStack, *, count: int
    ) -> tuple[DataFrame | None, int]:
        """Run the dataset's settle function on the remaining rows, and compare again: it may change identities.

        What it leaves is always some of what is left without it (B5): so if nothing is left before the
        function runs, that holds for every attempt.
        """
        if request.settle is None:
            return rows, count
        try:
            with self.action(), self.action():
                settled, kept = settled_frame(request, rows)
        except Exception as error:  # noqa: BLE001 - B6: whatever it was, it has changed nothing
            request.settlement.problem = problem_of(request.settle, error)
            return rows, count
        request.settlement.dropped = count - kept
        settled = settled.sortWithinPartitions(SEQ)  # the function may have done anything with their order
        if kept == 0 or not request.identity:
            return (settled if kept else None), kept
        return self._without_duplicates(request, settled, frames, count=kept, by_content=request.by_content)

    def _without_excluded(
        self, request: Append, rows: DataFrame, frames: contextlib.ExitStack
    ) -> tuple[DataFrame, int]:
        """The rows without those from before the cut-off and those that were purged, and how many are left."""
        from floodmark.lake.transforms import not_before, not_numbered

        kept = rows
        if may_be_expired(request) and request.event_time is not None and request.event_cutoff is not None:
            kind = request.schema.column(request.event_time).type
            kept = kept.transform(not_before(request.event_time, request.event_cutoff, is_date=kind == DATE))
        if request.purged:
            kept = kept.transform(not_numbered(self._numbers(request.purged)))
        if kept is rows:
            return rows, len(request.range)
        numbers = _kept(kept.select(SEQ), frames)
        with self.action():
            return kept, numbers.count()

    def _numbers(self, numbers: Sequence[int]) -> DataFrame:
        import pyarrow as pa

        return self.spark.createDataFrame(pa.table({SEQ: pa.array(numbers, pa.int64())}))

    def _look(self, request: Append, notes: Sequence[dict[bytes, bytes]]) -> _Look:
        """What is known of a batch's duplicates without Spark."""
        distinct = is_distinct(request.segments, notes, any_time=request.any_time)
        by_content = request.by_content and not all(NAMED in item for item in notes)
        if is_absent(request, notes):
            return _Look(distinct, by_content, Overlap(0, 0))
        table = self.catalog.table(request.table)
        near, above = self._overlap(request, notes, table)
        lost = None
        if near is not None and table is not None and not by_content:
            lost = self._duplicates_here(request, table, near, distinct=distinct)
        return _Look(distinct, by_content, near, above, lost)

    def _new_rows(
        self, request: Append, rows: DataFrame, frames: contextlib.ExitStack, look: _Look, *, count: int
    ) -> tuple[DataFrame | None, int]:
        """The rows without duplicates, which are found with as little work as what is known of the segments allows."""
        if look.lost is not None and count == len(request.range):
            return self._without(rows, look.lost, count=count)
        return self._without_duplicates(
            request,
            rows,
            frames,
            count=count,
            distinct=look.distinct,
            near=look.near,
            above=look.above,
            by_content=look.by_content,
        )

    def _overlap(
        self, request: Append, notes: Sequence[dict[bytes, bytes]], table: IcebergTable | None
    ) -> tuple[Overlap | None, int]:
        """How much could hold duplicates of a batch, and above which number all of that is."""
        if table is None:
            return None, 0
        if request.base.snapshot is None:
            return Overlap(0, 0), 0
        state = table_state(request.table, table)
        above = looked_through(request, notes, state)
        snapshot = state.standing_for(request.base.snapshot)
        timed = all(TIMED in item for item in notes)
        near = overlap(
            table, request, request.event_span, snapshot=snapshot, timed=timed, above=above, manifests=self.manifests
        )
        return near, above

    def _duplicates_here(
        self, request: Append, table: IcebergTable, near: Overlap, *, distinct: bool
    ) -> list[int] | None:
        """The numbers of the duplicates, where Spark is not needed to find them; None where it is."""
        if not self.direct:
            return None
        try:
            return duplicates_here(table, request, near, distinct=distinct, cache=self._keys)
        except Exception:  # noqa: BLE001 - whatever it was, Spark is used instead, and says it with more authority
            return None

    def _without(self, rows: DataFrame, numbers: Sequence[int], *, count: int) -> tuple[DataFrame | None, int]:
        from floodmark.lake.transforms import NUMBERS_NAMED_MAX, not_among, not_numbered

        left = count - len(numbers)
        if not left:
            return None, 0
        few = len(numbers) <= NUMBERS_NAMED_MAX
        return rows.transform(not_among(numbers) if few else not_numbered(self._numbers(numbers))), left

    def _without_duplicates(
        self,
        request: Append,
        rows: DataFrame,
        frames: contextlib.ExitStack,
        *,
        count: int,
        distinct: bool = False,
        near: Overlap | None = None,
        above: int = 0,
        by_content: bool = False,
        through: int = SEQUENCE_MAX,
    ) -> tuple[DataFrame | None, int]:
        """The rows without those that are already committed at the base, or twice in the batch; None if none is left.

        Suspicion is cheap (64 bits of each key, only the key's columns are read) and finds nothing as a rule; only
        what it finds is compared exactly. Where the batch is known to be `distinct`, and nothing committed is `near`
        it, there is nothing to suspect. Committed rows up to the number `above` are known to have no duplicate in it;
        those beyond `through` do not count.
        """
        from floodmark.lake.transforms import DuplicateKey, losers, suspects

        key = DuplicateKey(request.identity, request.key_time, by_content)
        alone = near is not None and near.files == 0
        if distinct and (alone or request.base.snapshot is None):
            return rows, count
        committed = None if alone else self._committed(request, SequenceRange(above, through))
        few = near is not None and near.rows <= FEW_ROWS
        try:
            suspected = _kept(suspects(rows, committed, key, distinct=distinct, few=few), frames)
            with self.action():
                suspicions = suspected.count()
            if suspicions == 0:
                return rows, count
            out = _kept(losers(rows, committed, key, suspected), frames)
            with self.action():
                lost = out.count()
        except Exception as error:
            raise Retryable(
                f"The committed rows of {request.table!r} could not be read to find duplicates: {reason_of(error)}.",
                hint="Nothing was committed; the rows are safe in the spool.",
            ) from error
        left = rows.join(out, SEQ, "left_anti").sortWithinPartitions(SEQ)  # a join may have shuffled them
        return (None if lost == count else left), count - lost

    def _committed(self, request: Append, numbers: SequenceRange) -> DataFrame | None:
        """The rows at the base that could equal one of the batch."""
        from floodmark.lake.transforms import within

        if request.base.snapshot is None:
            return None
        state = self.load(request.table)
        snapshot = None if state is None else state.standing_for(request.base.snapshot)
        if snapshot is None:  # renamed since: a search in nothing would find no duplicates
            raise Retryable(f"Table {request.table!r} no longer exists.", hint="Run it again.")
        return self._like(request.table, snapshot, request, request.event_span).transform(within(numbers))

    def _like(self, table: str, snapshot: int, key: Append | FileKeys, event_span: tuple[int, int] | None) -> DataFrame:
        """The rows of a snapshot that could have one of some keys: those in their span of event time."""
        from pyspark.sql import functions as F

        from floodmark.lake.transforms import within_event_span

        frame = self.frame(table, snapshot=snapshot)
        known = set(frame.columns)
        identity = {name for names in key.identity for name in names}
        for name in identity | ({key.key_time} if key.key_time else set()):
            # In the types of the batch: a column was narrower in an old snapshot, or newer than it and null in every
            # row there.
            source = quoted(name) if name in known else "null"
            kind = _spark_type(key.schema.get(name))
            frame = frame.withColumn(name, F.expr(f"cast({source} as {kind})"))
        if key.key_time is None:
            return frame
        column = key.schema.get(key.key_time)
        is_date = column is not None and column.type == DATE
        return frame.transform(within_event_span(key.key_time, event_span, is_date=is_date))

    # ── rows that wait ───────────────────────────────────────────────────────────────────────────────────────────

    def frame_with_pending(self, waiting: Append, *, through: int, columns: tuple[str, ...]) -> DataFrame:
        """The committed rows up to a number, and those that wait and are no duplicates of them; as users see them.

        The rows that wait are kept by Spark as long as the frame is: their files may be removed on return.
        """
        from floodmark.lake.transforms import cast_to

        committed = self.dataset_frame(
            table=waiting.table,
            schema=waiting.schema,
            snapshot=waiting.base.snapshot,
            columns=columns,
            within=SequenceRange(0, through),
        )
        pending = self._pending(waiting, through) if waiting.segments else None
        if pending is None:
            return committed
        pending = pending.select(*map(quoted, columns))
        return committed.transform(cast_to(pending.schema)).union(pending)

    def _pending(self, waiting: Append, through: int) -> DataFrame | None:
        notes = _check_segments(waiting)
        with contextlib.ExitStack() as frames, self.reading(waiting.table, None):
            rows: DataFrame | None = self._stamped(waiting)
            if rows is not None and waiting.identity:
                rows, _ = self._without_duplicates(
                    waiting,
                    rows,
                    frames,
                    count=len(waiting.range),
                    distinct=is_distinct(waiting.segments, notes, any_time=waiting.any_time),
                    by_content=waiting.by_content and not all(NAMED in item for item in notes),
                    through=through,
                )
            with self.action():
                return None if rows is None else rows.localCheckpoint()

    def resettle(self, request: Resettling) -> Resettled:
        with self.reading(request.table, None), self.action():
            return resettle_on_spark(self, request)

    def stored_rows(self, table: str, *, snapshot: int, keys: FileKeys) -> dict[Path, bytes]:
        found = self._stored_here(table, snapshot, keys)
        if found is not None:
            return found
        with self.reading(table, None), self.action():
            committed = self._like(table, snapshot, keys, keys.event_span())
            return stored_on_spark(self.spark, committed, keys)

    def _stored_here(self, table: str, snapshot: int, keys: FileKeys) -> dict[Path, bytes] | None:
        """Where only reading is needed, no job is: a fraction of the time."""
        loaded = self.catalog.table(table) if self.direct else None
        try:
            return None if loaded is None else stored_here(loaded, snapshot, keys, self.manifests, self._keys)
        except Exception:  # noqa: BLE001 - whatever it was, Spark is used instead
            return None


def _location(namespace: str, table: str, layout: Layout) -> str:
    """The location of a table that is not stored beside the catalog."""
    if layout.warehouse is None:
        return ""
    home = f"{layout.warehouse.rstrip('/')}/{namespace}/{table}".replace("\\", "\\\\").replace("'", "\\'")
    return f" LOCATION '{home}'"


def _kept(frame: DataFrame, frames: contextlib.ExitStack) -> DataFrame:
    """Keep a small frame that is used more than once, until the stack is left."""
    frame = frame.persist()
    frames.callback(frame.unpersist)
    return frame


def _check_segments(request: Append) -> list[dict[bytes, bytes]]:
    """Rows read must equal rows reserved: a segment that lost some would shift all rows after it.

    What the files say about themselves comes back.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    notes = []
    for segment in request.segments:
        try:
            about = pq.read_metadata(segment.path)
        except (OSError, pa.ArrowInvalid) as error:
            raise Retryable(
                f"Segment {segment.id} cannot be read: {error}.",
                hint="Nothing was committed. Do not change the store, and run `floodmark fsck`.",
            ) from error
        if about.num_rows != segment.rows:
            raise Corrupt(
                f"Segment {segment.id} has {about.num_rows} rows, and {segment.rows} were registered.",
                hint="Nothing was committed. Do not change the store, and run `floodmark fsck`.",
            )
        notes.append(dict(about.metadata or {}))
    return notes


def _spark_type(column: Any) -> str:

    return "string" if column is None else spark_type(column.type)
