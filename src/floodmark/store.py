"""Store: one place that ties the parts together. It has no logic."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from datetime import date, datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from sqlalchemy import Connection

from floodmark import config
from floodmark.clock import Clock, SystemClock
from floodmark.control import datasets as dataset_records
from floodmark.control import sinks as sink_records
from floodmark.control.datasets import Dataset
from floodmark.control.sinks import Sink
from floodmark.engine import attach_store, create_store, open_engine
from floodmark.errors import Permanent
from floodmark.schema import check_dataset_name
from floodmark.sequence import Cursor, SequenceRange

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from floodmark.commit.flush import FlushReport
    from floodmark.delivery.administration import Replayed, Skipped
    from floodmark.delivery.channel import ExportReport, Stop
    from floodmark.delivery.preview import Forecast
    from floodmark.delivery.rewind import Rewound
    from floodmark.delivery.tick import Exporter
    from floodmark.doctor import DoctorReport
    from floodmark.eventlog import EventLog
    from floodmark.lake.adoptable import LegacyData
    from floodmark.lake.table import Lake
    from floodmark.maintenance.audit import AuditReport
    from floodmark.maintenance.backup import BackupReport
    from floodmark.maintenance.compact import CompactReport
    from floodmark.maintenance.control_recovery import RebuiltRecords
    from floodmark.maintenance.fsck import FsckReport
    from floodmark.maintenance.purge import PurgeReport
    from floodmark.maintenance.rebuild import RebuildReport
    from floodmark.maintenance.remove_dataset import RemovedDataset
    from floodmark.maintenance.retain import RetainReport
    from floodmark.maintenance.trace import Trace
    from floodmark.pending import Part
    from floodmark.providers import Provider
    from floodmark.read import Batch
    from floodmark.sources.adopt import Adopter, AdoptReport
    from floodmark.sources.eventlog import FeedReport
    from floodmark.sources.units import BackfillReport
    from floodmark.spool.capture import Capture, Receipt, Texts
    from floodmark.spool.quarantine import Quarantine
    from floodmark.spool.sealing import SealReport
    from floodmark.status import Status


T = TypeVar("T")


class _once(Generic[T]):  # noqa: N801 - reads as a decorator
    """A part of a store that is made on first use, once, also if several threads ask for it at the same time."""

    def __init__(self, make: Callable[[Store], T]) -> None:
        self._make = make
        self.__doc__ = make.__doc__

    def __get__(self, store: Store | None, owner: type[Store] | None = None) -> T:
        if store is None:
            return self  # type: ignore[return-value]  # the class is looked at, not a store
        name = self._make.__name__
        with store._opening:  # noqa: SLF001 - a part of that class
            if name not in store.__dict__:
                store.__dict__[name] = self._make(store)
        part: T = store.__dict__[name]  # found there without this function from now on
        return part


class Store:
    """A store: control database, spool and lake in one directory.

    Open one with `floodmark.open`, make one with `floodmark.init`. It is a context manager; `close` gives its landing
    files up. Capture, status and quarantine never start Spark; flush and reads start it on first need.
    """

    def __init__(
        self,
        root: Path,
        settings: config.Settings,
        *,
        lake: Lake | None = None,
        clock: Clock | None = None,
        spark: SparkSession | None = None,
    ) -> None:
        from floodmark.maintenance.control_recovery import check_present

        def opened() -> Lake:
            from floodmark.lake.embedded import embedded_lake

            return embedded_lake(root, settings, spark=spark)

        if not settings.control.url:  # a server says itself what it does not have
            check_present(root)
        self._opening = threading.RLock()
        self.engine = open_engine(root, settings, lake or opened, clock=clock)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @_once
    def spool(self) -> Capture:
        """Where captured rows go, with the landing files that this process has open."""
        from floodmark.spool.capture import Capture

        return Capture(self.engine)

    @_once
    def quarantine(self) -> Quarantine:
        """Rows that did not fit, and what can be done with them."""
        from floodmark.spool.quarantine import Quarantine

        return Quarantine(self.engine)

    @_once
    def _exporter(self) -> Exporter:
        from floodmark.delivery.tick import Exporter

        return Exporter(self.engine)

    def close(self) -> None:
        """Give the landing files up and close the control database. The Spark session stays warm."""
        for part in ("spool", "_exporter"):
            if part in self.__dict__:
                getattr(self, part).close()
        self.engine.database.close()

    def check_writable(self) -> None:
        """`StoreReadOnly` if the store can only be read: no permission to write, or a read-only file system."""
        self.engine.database.check_writable()

    @property
    def path(self) -> Path:
        """The store's directory."""
        return self.engine.root

    @property
    def settings(self) -> config.Settings:
        """The store's settings, as they were when it was opened."""
        return self.engine.settings

    @property
    def store_id(self) -> str:
        """The store's permanent identity."""
        return self.settings.store_id

    # ── datasets ─────────────────────────────────────────────────────────────────────────────────────────────────

    def add_dataset(
        self,
        name: str,
        identity: Sequence[str] | Sequence[Sequence[str]] | None = None,
        *,
        event_time: str | None = None,
        partition_by: Sequence[str] = (),
        schema: Mapping[str, str] | pa.Schema | None = None,
        settle: str | None = None,
        identity_null: str | None = None,
        identity_scope: str | None = None,
    ) -> None:
        """Declare a dataset. Declaring it again may add columns; in any other way, `DatasetExists`.

        `identity` names the columns by which two rows are the same row (or a list of such lists: the first
        whose columns are all there counts). It is compared together with the `event_time`, which bounds where
        duplicates are searched: the same identity at another time is another row. With `identity_scope="all"` it is
        not, and every flush scans all committed rows. A row whose identity is null is the same as one that is
        equal in every column (`identity_null="content"`, the default), is never a duplicate (`"keep"`), or goes to
        quarantine (`"quarantine"`). `partition_by` slices the dataset for delivery. `schema` maps columns to types;
        columns that are not declared are added as they come.
        """
        from floodmark.datasets import declaration, declare

        self.settings.functions.check(settle)
        chosen = {"identity_null": identity_null, "identity_scope": identity_scope}
        new = declaration(
            name,
            identity=identity,
            event_time=event_time,
            partition_by=partition_by,
            schema=schema,
            settle=settle,
            **chosen,
        )
        asked = [item for item, value in chosen.items() if value is not None]
        declare(self.engine, new, asked=asked)

    def change_dataset(self, name: str, *, types: Mapping[str, str] | None = None, settle: str | None = None) -> None:
        """Correct the types of columns, for example after the first sender of a column sent another type; or give the
        dataset another settle function, or none (`settle=""`).

        A type is changed while no committed or waiting row has a value in the column; committed values are not
        converted. Identity, event time and partition columns keep their types. Rows in quarantine can be replayed
        afterwards. A settle function applies to the next commit; compaction settles committed rows with it again.
        """
        from floodmark.datasets import change_settle
        from floodmark.maintenance.column_types import change_types

        if settle is not None:
            change_settle(self.engine, name, settle or None)
        if types:
            change_types(self.engine, name, types)
            self.engine.corrected.add(name)

    def remove_dataset(self, name: str, *, give_up: bool = False, dry_run: bool = False) -> RemovedDataset:
        """Remove a dataset with its table, spool, quarantine and records; its name is not used again.

        Refused while a sink needs rows of it or rows are not committed, unless they are given up. After a crash, call
        it again. `dry_run` only reports what would go, and what depends on it.
        """
        from floodmark.maintenance.remove_dataset import remove_dataset

        return remove_dataset(self.engine, name, give_up=give_up, dry_run=dry_run)

    def pause_dataset(self, name: str) -> None:
        """Commit and deliver nothing of a dataset until it is resumed. Capture goes on: its rows wait in the spool."""
        self.engine.database.transact(lambda c: dataset_records.set_paused(c, name, at=self.engine.clock.now()))

    def resume_dataset(self, name: str) -> None:
        """Commit and deliver the rows of a paused dataset again."""
        self.engine.database.transact(lambda c: dataset_records.set_paused(c, name, at=None))

    def _declare_if_absent(self, new: Dataset) -> None:
        from floodmark.datasets import declare

        declare(self.engine, new, only_if_absent=True)

    def datasets(self) -> list[Dataset]:
        """The declared datasets, by name."""
        return self.engine.database.read(dataset_records.everyone)

    # ── rows in ──────────────────────────────────────────────────────────────────────────────────────────────────

    def capture(self, dataset: str, rows: Sequence[Mapping[str, Any]] | pa.Table | pa.RecordBatch) -> Receipt:
        """Store rows; they are durable on return. A list of dicts, or an Arrow table.

        If no row fits the dataset, `SchemaConflict` and nothing is stored. If only some do not, they go to
        quarantine, and the receipt counts them.
        """
        return self.spool.capture(dataset, rows)

    def capture_texts(self, dataset: str, texts: Texts) -> Receipt:
        """Store what was read from a file or a stream; durable on return.

        Nothing of it is refused: what is no row of the dataset goes to quarantine with the place it came from.
        """
        return self.spool.capture_texts(dataset, texts)

    def backfill(
        self,
        dataset: str,
        source: Any = None,
        *,
        format: str | None = None,
        since: str | date | datetime | None = None,
        until: str | date | datetime | None = None,
        map: Mapping[str, str] | None = None,
        select: str | None = None,
        source_id: str | None = None,
        provider: str | Provider | None = None,
        progress: Callable[[BackfillReport], None] | None = None,
    ) -> BackfillReport:
        """Load history beside live capture and commit it; run again, it continues and adds nothing twice.

        `source` is a path, pattern or directory of jsonl, csv or parquet files (also gzipped), an Iceberg table
        (`catalog.namespace.table`), a DataFrame, an Arrow table, or an iterable of dicts or tables; with a `provider`,
        the location that it reads. `since` and `until` bound the event time (from, and before), `map` renames columns
        (`{"old": "new"}`), `select` is a query over the view `source`, which Spark evaluates. Rows without an identity
        are loaded once for each `source_id`, which is the source's name and state if it is not given.
        """
        from floodmark.datasets import provided
        from floodmark.providers import find as find_provider
        from floodmark.sources.load import Backfiller
        from floodmark.sources.loading import Loader
        from floodmark.sources.shaping import Shape, moment

        found = find_provider(provider) if isinstance(provider, str) else provider
        if found is not None:
            self._declare_if_absent(provided(dataset, found.declaration))
        declared = self.engine.database.read(lambda c: dataset_records.get(c, dataset))
        shape = Shape(dict(map or {}), moment(since), moment(until), select)
        return Loader(Backfiller(self.engine, self.spool)).load(
            declared, source, shape, format=format, source_id=source_id, provider=found, progress=progress
        )

    def feed(self, dataset: str, log: EventLog | str | Path) -> FeedReport:
        """Take in every event that has arrived in an event log since the last time, each exactly once.

        The dataset is declared by the first feeding. From there its rows are like any others.
        """
        from floodmark.eventlog import EventLog
        from floodmark.sources.eventlog import event_dataset, feed

        self._declare_if_absent(event_dataset(check_dataset_name(dataset)))
        if isinstance(log, EventLog):
            return feed(self.engine, dataset, log)
        with EventLog.open(log) as opened:
            return feed(self.engine, dataset, opened)

    def seal(self, dataset: str) -> SealReport:
        """Turn the landing log into registered segments. Flush does this automatically."""
        from floodmark.commit.recovery import recover
        from floodmark.spool.sealing import seal

        recover(self.engine, dataset)
        return seal(self.engine, dataset)

    def flush(self, dataset: str | None = None, *, stop: Stop | None = None) -> FlushReport:
        """Stamp and commit everything acknowledged at this moment, of one dataset or of all.

        Setting `stop` ends it after the current commit; the rest waits in the spool. Of all datasets, those that are
        paused are left out; one that is named and paused raises `Paused`. Of all datasets, one that
        cannot be flushed stops none of the others: `problems` of the report names it. If none can be, the first one's
        error is raised.
        """
        from floodmark.commit.flush import flush, flush_all

        asked = None if stop is None else lambda: stop.is_set
        return flush_all(self.engine, stop=asked) if dataset is None else flush(self.engine, dataset, stop=asked)

    # ── rows out ─────────────────────────────────────────────────────────────────────────────────────────────────

    def read(
        self,
        dataset: str,
        columns: Sequence[str] | None = None,
        *,
        since: Cursor | str | None = None,
        until: Cursor | str | None = None,
        pending: bool = False,
    ) -> DataFrame:
        """A Spark DataFrame of the dataset, without system columns; with cursors, of exactly the rows between them.

        With `pending` it has also the rows that are captured and not committed yet, exactly once; it takes no cursor.
        """
        from floodmark.lake.embedded import on_spark
        from floodmark.pending import pending_view, refuse_cursors
        from floodmark.read import cursor_position, known_columns, view_of

        if pending:
            refuse_cursors(since, until)
            lake = on_spark(self.engine.lake)
            with pending_view(self.engine, dataset) as seen:
                names = known_columns(seen.view.dataset, columns)
                return lake.frame_with_pending(seen.as_append(), through=seen.view.horizon, columns=names)
        view = view_of(self.engine, dataset)
        within = None
        if since is not None or until is not None:
            after = cursor_position(self.engine, view, since)
            through = view.horizon if until is None else cursor_position(self.engine, view, until)
            within = SequenceRange(min(after, through), through)
        return on_spark(self.engine.lake).dataset_frame(
            table=view.table,
            schema=view.dataset.schema,
            snapshot=view.snapshot,
            columns=known_columns(view.dataset, columns),
            within=within,
        )

    def read_since(
        self,
        dataset: str,
        since: Cursor | str | None = None,
        *,
        partition: str | Mapping[str, Any] | None = None,
        columns: Sequence[str] | None = None,
    ) -> Iterator[Batch]:
        """What is new since a cursor, in sequence order: batches with the cursor to store after each."""
        from floodmark.read import read_since

        return read_since(self.engine, dataset, since=since, partition=partition, columns=columns)

    def read_with_pending(
        self,
        dataset: str,
        *,
        partition: str | Mapping[str, Any] | None = None,
        columns: Sequence[str] | None = None,
    ) -> Generator[Part]:
        """Every row that is captured at this moment, exactly once, as Arrow tables: committed rows in sequence order,
        then those that are not committed yet (`part.pending`). There is no cursor.
        """
        from floodmark.pending import read_with_pending

        return read_with_pending(self.engine, dataset, partition=partition, columns=columns)

    def cursor(self, dataset: str) -> Cursor:
        """The cursor of this moment: reading since it gives what comes from now on."""
        return Cursor(self.store_id, dataset, None, self.horizon(dataset))

    def horizon(self, dataset: str) -> int:
        """The number up to which every row that will ever exist is visible."""
        return self.engine.database.read(lambda c: dataset_records.get(c, dataset)).horizon

    def sql(self, query: str, *, pending: bool = False) -> DataFrame:
        """Run a SQL query in which every dataset is a view of its name, without system columns.

        Tables of the catalogs in the settings are `catalog.namespace.table`. With `pending` the datasets that the
        query names have also the rows that are captured and not committed yet, each dataset as of its own moment.
        """
        from floodmark.lake.catalogs import attach_mentioned

        for item in self.datasets():
            named = item.name.lower() in query.lower()  # pending rows of others would be read for nothing
            self.read(item.name, pending=pending and named).createOrReplaceTempView(item.name)
        attach_mentioned(self.spark, query, self.settings.catalogs)
        return self.spark.sql(query)

    # ── sinks ────────────────────────────────────────────────────────────────────────────────────────────────────

    def add_sink(self, name: str, kind: str, **settings: Any) -> None:
        """Add a destination: `add_sink("archive", "blob", url="s3://bucket/prefix", format="parquet")`.

        Kinds are `blob`, `forward`, `table` and `projection`, each with its own settings. All take `datasets`,
        `partitions`, `where` (a SQL row filter), `start` (`"beginning"`, `"now"`, or cursors), and `every` or `cron`.
        """
        from floodmark.delivery.administration import add_sink

        add_sink(self.engine, name, kind, settings)

    def change_sink(self, name: str, **settings: Any) -> None:
        """Change a sink's settings. They apply from the next range on: a pinned range keeps its settings."""
        from floodmark.delivery.administration import change_sink

        change_sink(self.engine, name, settings)

    def sinks(self) -> list[Sink]:
        """The sinks of this store, by name."""
        return self.engine.database.read(sink_records.everyone)

    def remove_sink(self, name: str) -> None:
        """Remove a sink. Delivered rows stay at the destination; a sink added under the same name is a new one."""
        from floodmark.delivery.administration import remove_sink

        remove_sink(self.engine, name)

    def rewind_sink(
        self, name: str, *, to: Sequence[Cursor | str] = (), resend: bool = False, dry_run: bool = False
    ) -> Rewound:
        """Let a sink begin again after cursors, or at its first row. What its destination has is not sent twice.

        A projection, and a server that is not a hub, would receive rows twice: `resend` says that this is meant.
        """
        from floodmark.delivery.rewind import rewind

        return rewind(self.engine, name, to=to, resend=resend, dry_run=dry_run)

    def pause_sink(self, name: str) -> None:
        """Deliver nothing to a sink until it is resumed; a range that is on its way is finished by whoever sends it."""
        from floodmark.delivery.administration import pause_sink

        pause_sink(self.engine, name)

    def resume_sink(self, name: str) -> None:
        """Deliver to a paused sink again, from where it stopped."""
        from floodmark.delivery.administration import resume_sink

        resume_sink(self.engine, name)

    def export(
        self,
        sink: str | None = None,
        *,
        stop: Stop | None = None,
        progress: Callable[[ExportReport], None] | None = None,
    ) -> ExportReport:
        """Deliver every committed row that the sink (or each sink) does not have yet, exactly once, in order.

        `progress` is called with the report as it grows; setting `stop` ends the export after the current chunk. A sink
        that is paused is left out, or raises `Paused` if it is named.
        """
        from floodmark.delivery.channel import together

        if sink is not None:
            return self._exporter.export(sink, stop=stop, progress=progress)
        names = [item.name for item in self.sinks() if item.paused_at is None]
        return together([self._exporter.export(name, stop=stop, progress=progress) for name in names])

    def forecast_export(self, sink: str) -> list[Forecast]:
        """What the next export of a sink would send: exactly the ranges and rows. Sends and pins nothing."""
        from floodmark.delivery.preview import forecast

        return forecast(self._exporter, sink)

    def rows_waiting(self, sink: str) -> int:
        """About how many rows a sink has still to get: what the blocks say, before its filter."""
        from floodmark.delivery.preview import rows_waiting

        return rows_waiting(self._exporter, sink)

    def skip(self, sink: str, *, dataset: str | None = None, partition: str | None = None) -> list[Skipped]:
        """Give up the chunk that a sink is stuck at: its rows go to quarantine, and the rest is delivered."""
        from floodmark.delivery.administration import skip

        return skip(self._exporter, sink, dataset=dataset, partition=partition)

    def replay(self, sink: str, *, id: str | None = None) -> Replayed:
        """Send the rows again that a sink's destination refused, or that were skipped."""
        from floodmark.delivery.administration import replay

        return replay(self._exporter, sink, id=id)

    def watermark(self, sink: str, dataset: str, *, partition: str | Mapping[str, Any] | None = None) -> int:
        """Up to which number the sink has everything of a dataset (of its least advanced partition, if several)."""
        from floodmark.control.deliveries import lowest_watermark

        def work(connection: Connection) -> int:
            key, _ = dataset_records.get(connection, dataset).slice(partition)
            return lowest_watermark(connection, sink_records.get(connection, sink).instance, dataset, key)

        return self.engine.database.read(work)

    # ── upkeep ───────────────────────────────────────────────────────────────────────────────────────────────────

    def adopt(
        self,
        source: str | Path,
        dataset: str,
        *,
        format: str | None = None,
        identity: Sequence[str] | Sequence[Sequence[str]] | None = None,
        event_time: str | None = None,
        partition_by: Sequence[str] = (),
        progress: Callable[[AdoptReport], None] | None = None,
    ) -> AdoptReport:
        """Make data without sequence numbers rows of a dataset, once; run again, it continues.

        `source` is an Iceberg table (`catalog.namespace.table`), or a path with its `format` (`parquet`, `csv`, …). The
        dataset is declared as given if it does not exist.
        """
        from floodmark.datasets import declaration
        from floodmark.sources.adopt import Adopter

        self._declare_if_absent(
            declaration(dataset, identity=identity, event_time=event_time, partition_by=partition_by)
        )
        adopter = Adopter(self.engine, self.spool)
        return adopter.adopt(dataset, self._legacy(adopter, dataset, str(source), format), progress=progress)

    def _legacy(self, adopter: Adopter, dataset: str, source: str, format: str | None) -> LegacyData:
        from floodmark.lake.embedded import session_with
        from floodmark.lake.legacy import legacy_files, legacy_table

        if format is not None:
            return legacy_files(self.spark, source, format=format)
        here = legacy_table(session_with(self.engine.lake, source, self.settings.catalogs), source, version=None)
        begun = adopter.begun_with(dataset, here.name)
        return here if begun in (None, here.version) else legacy_table(self.spark, source, version=begun)

    def compact(
        self,
        dataset: str | None = None,
        *,
        dry_run: bool = False,
        progress: Callable[[str], None] | None = None,
        apart: frozenset[str] = frozenset(),
    ) -> CompactReport:
        """Join small files, let old snapshots go and remove what nothing refers to, of one dataset or of all.

        Safe beside everything else. `[upkeep]` in the settings limits the work of one call; `dry_run` only reports.
        `apart` names steps that are left out: `expire`, `orphans`, `fold`.
        """
        from floodmark.maintenance.compact import compact

        return compact(self.engine, dataset, dry_run=dry_run, progress=progress, apart=apart)

    def retain(
        self,
        dataset: str,
        *,
        older_than: str | timedelta | None = None,
        by: str = "event_time",
        keep_rows: int | None = None,
        give_up: str | Sequence[str] | None = None,
        dry_run: bool = False,
    ) -> RetainReport:
        """Remove what is old: rows past an age (`"30d"`), by event time or by ingest time, or all but the newest rows.

        A row that a sink still needs stays, and the report names the sink; `give_up` names sinks that need not get
        what goes. `dry_run` only reports.
        """
        from floodmark.maintenance.retain import retain

        return retain(
            self.engine, dataset, older_than=older_than, by=by, keep_rows=keep_rows, give_up=give_up, dry_run=dry_run
        )

    def purge(self, dataset: str, where: str, *, dry_run: bool = False) -> PurgeReport:
        """Permanently remove the rows for which a SQL condition is true: from lake, spool and quarantine.

        The report says how many had already left to each sink. What is left of them here is a hash of each identity,
        so that no backfill restores them. `dry_run` only reports.
        """
        from floodmark.lake.sparklog import empty_log
        from floodmark.maintenance.purge import purge

        if not dry_run:
            self.spool.give_file_up(dataset)
        report = purge(self.engine, dataset, where=where, dry_run=dry_run)
        if not dry_run:
            empty_log(self.path)  # Spark's errors may quote a row
        return report

    def rebuild(
        self,
        dataset: str,
        *,
        bucket_width: int | None = None,
        format_version: int | None = None,
        warehouse: str | Path | None = None,
        sort: Sequence[str] | None = None,
        takeover: bool = False,
        progress: Callable[[RebuildReport], None] | None = None,
    ) -> RebuildReport:
        """Copy a dataset into a new table, perhaps of another layout or at another place, and switch to it.

        Flushes continue and wait only for the switch; readers, cursors and sinks do not notice. What is not
        given stays as it was. After a crash, run it again: it continues. `takeover` takes the work from a
        process that is still at it. The old table is removed by a later rebuild or compaction, a day after.
        """
        from floodmark.maintenance.rebuild import Rebuilder

        rebuilder = Rebuilder(self.engine, progress=progress or (lambda _: None))
        return rebuilder.rebuild(
            dataset,
            lambda layout: layout.changed(
                bucket_width=bucket_width,
                format_version=format_version,
                warehouse=None if warehouse is None else _url(warehouse),
                sort=None if sort is None else tuple(sort),
            ),
            takeover=takeover,
        )

    # ── looking ──────────────────────────────────────────────────────────────────────────────────────────────────

    def status(self) -> Status:
        """What the store holds, what waits, and how far each sink is. Starts no JVM."""
        from floodmark.status import read_status

        return read_status(self.engine, with_sinks=True)

    def audit(self, sink: str, *, deep: bool = False, progress: Callable[[str], None] | None = None) -> AuditReport:
        """Whether a sink's destination holds every row that was committed for it, each once; changes nothing.

        From records, counts and listings; with `deep` every object and row is read and its checksum made again. The
        result is recorded for `status` and the dashboard, where the store can be written.
        """
        from floodmark.maintenance.audit import Auditor
        from floodmark.maintenance.upkeep import record_audit

        report = Auditor(self.engine, progress).audit(sink, deep=deep)
        record_audit(self.engine, report)
        return report

    def trace(self, dataset: str, row: Mapping[str, Any] | str) -> Trace:
        """Where one row is and how it got there: by values of its columns (its identity), or by its content id.

        Name columns that identify the row, and the event time if there is one: they bound what is read.
        """
        from floodmark.maintenance.trace import trace

        return trace(self.engine, dataset, row)

    def backup(self, path: str | Path) -> BackupReport:
        """Copy the control database, the spool, the quarantine and the settings to a new directory, while all runs.

        The lake is not copied. A control database in PostgreSQL is not either: use its own tools, and before this.
        """
        from floodmark.maintenance.backup import backup

        return backup(self.engine, path)

    def fsck(
        self,
        *,
        repair: bool = False,
        deep: bool = False,
        give_up: Sequence[int] = (),
        retry: Sequence[int] = (),
        progress: Callable[[str], None] | None = None,
    ) -> FsckReport:
        """Whether control database, lake and spool agree; with `deep` the lake's rows are counted too.

        With `repair` what needs no user's decision is repaired, and the report says what was done. What needs one is
        among its `offers`: segments that cannot be committed. `give_up` names those whose acknowledged rows are to be
        lost, so that nothing waits for them; `retry` those that were set aside and are to be tried again.
        """
        from floodmark.maintenance.fsck import Fsck

        return Fsck(self.engine, progress).check(deep=deep, repair=repair, given_up=give_up, retried=retry)

    def doctor(self, *, spark: bool = True, progress: Callable[[str], None] | None = None) -> DoctorReport:
        """Whether this machine can run the store, and its sinks can be reached; nothing is changed or left there."""
        from floodmark.doctor import examine
        from floodmark.lake.embedded import try_spark

        start = (lambda: try_spark(self.engine.lake)) if spark else None
        return examine(self.engine, start_spark=start, progress=progress)

    @property
    def spark(self) -> SparkSession:
        """The Spark session, started on first need and not before."""
        from floodmark.lake.embedded import on_spark

        return on_spark(self.engine.lake).spark


def init(
    path: str | Path,
    *,
    control: str = "",
    lake: Lake | Mapping[str, str] | None = None,
    segments: str = "",
    spark: Mapping[str, Any] | None = None,
    clock: Clock | None = None,
) -> Store:
    """Make a new store in a directory. An existing one is refused, and left unchanged.

    `control` is the URL of a PostgreSQL database for its control records (`env:NAME` and `file:/path` name where the
    URL is kept). Without it they are in a SQLite file in the directory. `lake`, `segments` and `spark` are what
    `[lake]`, `spool.segments` and `[spark]` of the settings say. A lake can be given as an object too, for tests.
    """

    def prepare_lake(root: Path, settings: config.Settings) -> None:
        from floodmark.lake.catalogs import own_catalog, prepare

        prepare(own_catalog(root, settings))

    described = dict(lake) if isinstance(lake, Mapping) else None
    root = create_store(
        path, control=control, lake=described, segments=segments, spark=spark, prepare_lake=prepare_lake
    )
    return open_store(root, lake=None if isinstance(lake, Mapping) else lake, clock=clock)


def attach(
    path: str | Path,
    *,
    control: str,
    lake: Lake | Mapping[str, str] | None = None,
    spark: Mapping[str, Any] | None = None,
    clock: Clock | None = None,
) -> Store:
    """Make a directory on this host for a store that exists, and open it.

    The control database says which store it is, and where its tables and segments are. `lake` is what it does not
    hold, secrets, or what this host reaches by another address; `spark` is this host's own.
    """
    described = lake if isinstance(lake, Mapping) else {}
    root = attach_store(path, control=control, lake=described, spark=spark)
    return open_store(root, lake=None if isinstance(lake, Mapping) else lake, clock=clock)


def restore(backup: str | Path, path: str | Path, *, lake: Lake | None = None, clock: Clock | None = None) -> Store:
    """Make a store of a backup in a directory, and open it. A store that is there is refused."""
    from floodmark.maintenance.backup import restore as put_back

    return open_store(put_back(backup, path), lake=lake, clock=clock)


def open_store(
    path: str | Path,
    *,
    lake: Lake | None = None,
    clock: Clock | None = None,
    spark: SparkSession | None = None,
) -> Store:
    """Open a store: its directory, or the `floodmark.toml` in it."""
    file = config.settings_file(path)
    return Store(file.parent, config.load(file), lake=lake, clock=clock, spark=spark)


def rebuild_records(path: str | Path, *, lake: Lake | None = None, clock: Clock | None = None) -> RebuiltRecords:
    """Create a new control database of a store from its lake and spool; only where it is lost or damaged.

    The next flush finds everything that the tables and the spool show. Sinks, tokens and sources must be added again.
    """
    from floodmark.lake.embedded import embedded_lake
    from floodmark.maintenance.control_recovery import rebuild_records as make_records

    file = config.settings_file(path)
    settings = config.load(file)
    if settings.control.url:
        raise Permanent(
            "The control records of this store are in PostgreSQL.",
            hint="Restore that database from a backup: the next flush finds newer rows of the lake and the spool.",
        )
    return make_records(file.parent, lake or embedded_lake(file.parent, settings), clock or SystemClock())


def _url(place: str | Path) -> str:
    """A directory or URL as a URL."""
    from floodmark.lake.files import local_location

    return place if isinstance(place, str) and "://" in place else local_location(Path(place).expanduser().absolute())
