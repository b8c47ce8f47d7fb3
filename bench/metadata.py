"""A table of 10^8, 10^9 and 10^10 rows, of which only the newest are there: what does metadata of that size cost?

The table is real, and so are its lists: one data file for each 2^20 numbers, as compaction leaves them, in manifests
that Iceberg's own `rewrite_manifests` has written. The data files of all but the newest rows do not exist: work that
opened one of them would fail. What each piece of work reads is counted by the file system: every file of metadata is
marked as never read before, and looked at after.
"""

from __future__ import annotations

import os
import shutil
import statistics
import struct
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection

from bench.fresh import IDENTITY
from bench.page import RATIOS
from bench.sample import START, renewed, rows, table
from bench.store import SCHEMA
from floodmark.commit.protocol import Base, PartitionRows, PartitionStats
from floodmark.compaction import Limits, choose
from floodmark.control import blocks, chunks, datasets, deliveries, segments, sinks
from floodmark.control.blocks import BatchLimits, Block
from floodmark.control.datasets import Dataset
from floodmark.control.deliveries import Channel
from floodmark.control.segments import SegmentContent
from floodmark.lake.catalog import BLOCK_PROPERTY, ROWS_PROPERTY, THROUGH_PROPERTY
from floodmark.lake.files import local_path
from floodmark.lake.manifests import Manifests
from floodmark.lake.plan import plan
from floodmark.lake.spark import SparkLake
from floodmark.maintenance.retain import retain, rows_to_keep
from floodmark.schema import SEQ
from floodmark.schema.partitions import WHOLE
from floodmark.sequence import SequenceRange, Tally
from floodmark.store import Store, init

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile, ManifestFile
    from pyiceberg.table import Table as IcebergTable

SIZES = (10**8, 10**9, 10**10)
WIDTH = 1 << 20
FILE_BYTES = 128 << 20
LISTED_AT_ONCE = 2_000
"""Files in a manifest as it is generated. Iceberg writes them anew."""
DATASET, SINK = "large", "files"
NEW_ROWS = 1_000
SEGMENTS, SEGMENT_ROWS = 512, 500
WARM_UP = 4
"""The JVM is as warm for the first size as for the others."""
TURNS = 7


def run(*, scale: float = 1.0) -> dict[str, Any]:
    found = {}
    for size in SIZES:
        count = int(size * scale)
        directory = Path(tempfile.mkdtemp(prefix="floodmark-metadata-"))
        try:
            with init(directory / "store") as store:
                found[f"{count:,}"] = _measured(store, directory, count)
        finally:
            shutil.rmtree(directory, ignore_errors=True)
    sizes = list(found.values())
    smallest, largest = sizes[0], sizes[-1]
    ratios = {
        name: round(figures["milliseconds"] / smallest[name]["milliseconds"], 2)
        for name, figures in largest.items()
        if isinstance(figures, dict)
    }
    return {"by stored rows": found, RATIOS: ratios}


def _measured(store: Store, directory: Path, count: int) -> dict[str, Any]:
    store.add_dataset(DATASET, schema=SCHEMA, **IDENTITY)
    store.add_sink(SINK, "blob", url=(directory / SINK).as_uri())
    store.capture(DATASET, rows(NEW_ROWS))
    store.flush(DATASET)
    store.export(SINK)
    horizon = _enlarge(store, count)
    scene = _Scene(store, horizon)
    scene.turns(WARM_UP)
    return {"rows": horizon, **scene.shape(), **scene.figures()}


# ── the table ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _enlarge(store: Store, count: int) -> int:
    """Add rows up to about this number: a block like any other, with its commit and its delivery, but without files.

    All go through the functions that record a commit and a delivery; only the data files are made up.
    """
    engine, lake = store.engine, _lake(store)
    declared = _declared(store)
    state = lake.load(declared.table_name)
    assert state is not None
    engine.database.transact(lambda c: blocks.raise_allocator(c, seen_through=WIDTH - 1))
    added = max(1, round(count / WIDTH)) * WIDTH
    tally = Tally(added, 1)
    block = engine.database.transact(lambda c: _reserved(c, Base(state.uuid, 1, state.head), tally))
    _commit_files(lake.catalog.table(declared.table_name), block)
    lake.rewrite(declared.table_name)
    lake.expire(declared.table_name, keep_snapshots=1)
    head = lake.load(declared.table_name).head
    stats = [PartitionStats(WHOLE, tally, block.range.after + 1, block.range.through)]

    def record(connection: Connection) -> None:
        now = engine.clock.now()
        blocks.record(connection, block, snapshot=head, synced_snapshot=head, rows=added, stats=stats, now=now)
        intent = deliveries.pin(
            connection,
            Channel(sinks.get(connection, SINK).instance, DATASET, WHOLE),
            id=uuid.uuid4().hex,
            horizon=block.range.through,
            settings={"chunk_rows": added, "columns": list(SCHEMA), "format": "parquet", "where": None},
            start=0,
            rows_max=added,
            now=now,
        )
        assert intent is not None
        chunks.plan(connection, intent, [intent.range])
        chunks.acknowledge(connection, intent, intent.range, tally, now=now)

    engine.database.transact(record)
    return block.range.through


def _lake(store: Store) -> SparkLake:
    assert isinstance(store.engine.lake, SparkLake)
    return store.engine.lake


def _declared(store: Store) -> Dataset:
    return store.engine.database.read(lambda c: datasets.get(c, DATASET))


def _reserved(connection: Connection, base: Base, tally: Tally) -> Block:
    now = START
    path = f"spool/{DATASET}/segments/1-large.parquet"
    segments.announce(connection, id=1, dataset=DATASET, path=path, owner="bench", now=now)
    parts = (PartitionRows(WHOLE, tally, 0, tally.rows - 1),)
    segments.register(connection, id=1, content=SegmentContent(path, tally.rows, 1, None, None, parts, 1))
    limits = BatchLimits(rows_max=tally.rows)
    made = blocks.reserve(
        connection, id=uuid.uuid4().hex, dataset=DATASET, base=base, seen_through=0, limits=limits, now=now
    )
    assert made is not None
    return made.block


def _commit_files(table: IcebergTable, block: Block) -> None:
    """One snapshot with all the files, in several manifests."""
    from pyiceberg.manifest import ManifestEntry, ManifestEntryStatus
    from pyiceberg.table.update.snapshot import _FastAppendFiles

    (real,) = [task.file for task in table.scan().plan_files()]
    starts = range(block.range.after + 1, block.range.through, WIDTH)

    class _ManyManifests(_FastAppendFiles):
        def _manifests(self) -> list[ManifestFile]:
            return [self._some(starts[at : at + LISTED_AT_ONCE]) for at in range(0, len(starts), LISTED_AT_ONCE)] + (
                self._existing_manifests()
            )

        def _some(self, some: range) -> ManifestFile:
            with self.new_manifest_writer(spec=self._transaction.table_metadata.spec()) as writer:
                for first in some:
                    writer.add(
                        ManifestEntry.from_args(
                            status=ManifestEntryStatus.ADDED,
                            snapshot_id=self._snapshot_id,
                            sequence_number=None,
                            file_sequence_number=None,
                            data_file=_file(table, real, first),
                        )
                    )
            return writer.to_manifest_file()

    properties = {
        BLOCK_PROPERTY: block.id,
        THROUGH_PROPERTY: str(block.range.through),
        ROWS_PROPERTY: str(len(block.range)),
    }
    with table.transaction() as transaction:
        from pyiceberg.table.snapshots import Operation

        many = _ManyManifests(Operation.APPEND, transaction, table.io, snapshot_properties=properties)
        with many:
            pass


def _file(table: IcebergTable, real: DataFile, first: int) -> DataFile:
    """A data file of a whole bucket, with the figures of a real one. Its times are those that the sample would have."""
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
    from pyiceberg.typedef import Record

    number, ts = (table.schema().find_field(name).field_id for name in (SEQ, "ts"))
    factor = WIDTH / real.record_count
    begin = int(START.timestamp() * 1_000_000)
    spans = {number: (first, first + WIDTH - 1), ts: (begin + 250_000 * first, begin + 250_000 * (first + WIDTH - 1))}
    bounds = [
        {**given, **{column: struct.pack("<q", span[place]) for column, span in spans.items()}}
        for place, given in enumerate((real.lower_bounds, real.upper_bounds))
    ]
    sizes = {column: int(size * factor) for column, size in (real.column_sizes or {}).items()}
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=f"{table.location()}/data/{SEQ}_trunc={first}/{uuid.uuid4()}-00001.parquet",
        file_format=FileFormat.PARQUET,
        partition=Record(first),
        record_count=WIDTH,
        file_size_in_bytes=FILE_BYTES,
        column_sizes=sizes,
        value_counts=dict.fromkeys(real.value_counts or {}, WIDTH),
        null_value_counts=dict(real.null_value_counts or {}),
        nan_value_counts=dict(real.nan_value_counts or {}),
        lower_bounds=bounds[0],
        upper_bounds=bounds[1],
        key_metadata=None,
        split_offsets=[4 + (2 << 20) * group for group in range(FILE_BYTES // (2 << 20))],
        equality_ids=None,
        sort_order_id=None,
    )
    file.spec_id = table.spec().spec_id
    return file


# ── what is measured ─────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class _Scene:
    """The store with its large table."""

    store: Store
    horizon: int
    later: int = 0
    spent: float | None = None
    """Of the last work, where only a part of it counts."""

    @property
    def table(self) -> str:
        return _declared(self.store).table_name

    def shape(self) -> dict[str, Any]:
        lake = _lake(self.store)
        state = lake.load(self.table)
        loaded = lake.catalog.table(self.table)
        listed = loaded.snapshot_by_id(state.head).manifests(loaded.io)
        return {
            "data files": len(lake.files(state).files),
            "manifests": len(listed),
            "bytes of manifests": sum(one.manifest_length for one in listed),
        }

    def turns(self, count: int) -> dict[str, list[dict[str, Any]]]:
        """Commits of a thousand rows, each with its delivery."""
        found: dict[str, list[dict[str, Any]]] = {"commit 1,000 rows": [], "deliver 1,000 rows": []}
        for _ in range(count):
            self.later += NEW_ROWS
            self.store.capture(DATASET, rows(NEW_ROWS, first=self.horizon + self.later, seed=7))
            found["commit 1,000 rows"].append(self._counted(lambda: self.store.flush(DATASET)))
            found["deliver 1,000 rows"].append(self._counted(lambda: self._deliver(NEW_ROWS)))
        return found

    def figures(self) -> dict[str, Any]:
        found: dict[str, Any] = {name: _summary(many) for name, many in self.turns(TURNS).items()}
        found[f"commit {SEGMENTS} segments"] = _summary([self._counted(self._commit_segments) for _ in range(2)][1:])
        self.store.export(SINK)
        found["deliver, nothing new"] = _summary([self._counted(lambda: self._deliver(0)) for _ in range(TURNS)])
        lake, engine = _lake(self.store), self.store.engine
        for name, work in {
            "plan 1,000 rows": self._plan,
            "plan a compaction": self._plan_compaction,
            "plan a retention by rows": lambda: rows_to_keep(engine, _declared(self.store), self._half()),
        }.items():
            lake.manifests = Manifests()
            found[f"{name}, first of a process"] = _summary([self._counted(work)])
            found[name] = _summary([self._counted(work) for _ in range(TURNS)])
        for name, by in {"event time": "event_time", "time of commit": "ingest_time"}.items():
            aged = partial(retain, engine, DATASET, older_than="36500d", by=by, dry_run=True)
            aged()
            found[f"plan a retention by {name}"] = _summary([self._counted(aged) for _ in range(3)])
        found["expire snapshots"] = _summary([self._counted(lambda: lake.expire(self.table, keep_snapshots=5))])
        return found

    def _deliver(self, count: int) -> None:
        report = self.store.export(SINK)
        if report.rows != count:
            raise SystemExit(f"{report.rows} rows were delivered: {report.errors}")

    def _commit_segments(self) -> None:
        """Segments as a hub makes them of the chunks of many senders: as many as one commit takes."""
        self.later += SEGMENTS * SEGMENT_ROWS
        some = table(SEGMENT_ROWS)
        for number in range(SEGMENTS):
            first = self.horizon + self.later - (SEGMENTS - number) * SEGMENT_ROWS
            self.store.capture(DATASET, renewed(some, first=first))
        start = time.perf_counter()
        done = self.store.flush(DATASET)
        self.spent = time.perf_counter() - start
        if (done.blocks, done.rows) != (1, SEGMENTS * SEGMENT_ROWS):
            raise SystemExit(f"{done.blocks} commits of {done.rows} rows")

    def _half(self) -> int:
        """About half of the rows, and whole buckets: of the one in which a rule's rows begin, the rows are read."""
        return self.later + (self.horizon + 1) // WIDTH // 2 * WIDTH

    def _plan(self) -> None:
        lake = _lake(self.store)
        state = lake.load(self.table)
        newest = state.lineage[0].through or 0
        found = plan(
            lake.catalog.table(self.table),
            snapshot=state.head,
            ranges=[SequenceRange(newest - NEW_ROWS, newest)],
            columns=None,
            partition_values={},
            manifests=lake.manifests,
        )
        if found is None or not found.files:
            raise SystemExit("no files were found")

    def _plan_compaction(self) -> None:
        engine = self.store.engine
        settings = engine.settings.upkeep
        files = engine.lake.files(engine.lake.load(self.table))
        limits = Limits(settings.file_bytes, settings.files_min, settings.bytes_max)
        choose(files.buckets, limits)

    def _counted(self, work: Callable[[], object]) -> dict[str, Any]:
        """The time of some work, and what it read of the table's metadata, and of data files."""
        home = Path(local_path(self.store.engine.lake.load(self.table).location) or "")
        marked = dict(_marked(home))
        jobs, start = self.store.engine.lake.jobs, time.perf_counter()
        work()
        spent, self.spent = self.spent or time.perf_counter() - start, None
        read = [path for path in marked if path.exists() and path.stat().st_atime_ns != 0]
        lists = [path for path in read if path.parent.name == "metadata"]
        return {
            "milliseconds": 1000 * spent,
            "lists read": len(lists),
            "bytes of lists read": sum(marked[path] for path in lists),
            "data files read": len(read) - len(lists),
            "Spark jobs": self.store.engine.lake.jobs - jobs,
        }


def _marked(home: Path) -> Iterator[tuple[Path, int]]:
    """The files there are, with their sizes, each as if it had never been read."""
    for path in home.rglob("*.*"):
        if path.suffix in {".avro", ".json", ".parquet"}:
            about = path.stat()
            os.utime(path, ns=(0, about.st_mtime_ns))
            yield path, about.st_size


def _summary(many: list[dict[str, Any]]) -> dict[str, Any]:
    times = [one["milliseconds"] for one in many]
    found = {"milliseconds": round(statistics.median(times), 1)}
    if len(many) > 1:
        found["slowest"] = round(max(times), 1)
    for key in ("lists read", "bytes of lists read", "data files read", "Spark jobs"):
        found[key] = statistics.median_high(one[key] for one in many)
    return found
