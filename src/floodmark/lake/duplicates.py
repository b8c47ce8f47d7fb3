"""Which rows of a batch, or of files, are duplicates: found in this process where that means reading little, else by
Spark. When two rows are one is said in `rows.identities`; here are the committed rows that they are compared with.

Only the key's columns are read: of the batch, and of the data files that its span of event time reaches. Data files
never change, so what was read of one is kept, up to a bound: the next batch reads only what is new since.

The answer is exact, and the same as Spark's. Where this is not the way to it, there is none, and Spark is asked:
fallback identities, rows that are compared by content, types on whose equality engines disagree, deleted rows, too
much to read.
"""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import reduce
from operator import and_
from pathlib import Path
from typing import TYPE_CHECKING

from floodmark.commit.protocol import Append
from floodmark.lake.files import RangeReader, StoredColumn, StoredFile
from floodmark.lake.manifests import ListedFile, Manifests, is_reachable
from floodmark.lake.overlap import Overlap, overlap
from floodmark.lake.plan import stored_columns
from floodmark.lake.stored import FileKeys, bitmap_of, event_span_of, keys_in
from floodmark.lake.types import quoted, spark_type
from floodmark.rows.identities import Keyed, found_among, is_exact, key_columns, key_rows, repeated
from floodmark.schema import SEQ
from floodmark.sequence import SEQUENCE_MAX, SequenceRange

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.table import Table as IcebergTable
    from pyspark.sql import DataFrame, SparkSession

BATCH_ROWS_MAX = 200_000
COMMITTED_ROWS_MAX = 2_000_000
"""Of larger batches, and where more committed rows could be duplicates, Spark finds them sooner."""
FILES_AT_ONCE = 2
"""So many files are compared at the same time: planning is Python's work, reading and comparing is not."""
BITS = 32_768
"""How many rows Spark puts into one bitmap."""


# ── in this process ──────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class KeyCache:
    """The key columns of data files, those that were used last, up to so many bytes. May be used by many threads."""

    bytes_max: int = 64 << 20
    _held: OrderedDict[tuple[str, tuple[StoredColumn, ...]], pa.Table] = field(default_factory=OrderedDict)
    bytes: int = 0
    """How many they are now."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def keys(self, table: IcebergTable, file: ListedFile, columns: tuple[StoredColumn, ...]) -> pa.Table:
        """The columns of a file, from memory if it was read before."""
        place = (file.location, columns)
        with self._lock:
            if (found := self._held.get(place)) is not None:
                self._held.move_to_end(place)
                return found
        read = read_keys(table, file, columns)
        with self._lock:
            if place not in self._held and read.nbytes <= self.bytes_max:
                self._held[place] = read
                self.bytes += read.nbytes
            while self.bytes > self.bytes_max:
                self.bytes -= self._held.popitem(last=False)[1].nbytes
        return read


def duplicates_here(
    table: IcebergTable, request: Append, near: Overlap, *, distinct: bool, cache: KeyCache
) -> list[int] | None:
    """The numbers of the batch's rows that are committed, or are in the batch before; in order.

    `near` has the files that may have them. No two rows of a `distinct` batch have one key. None: ask Spark.
    """
    import pyarrow.compute as pc

    if not is_exact(request) or not is_little(len(request.range), near, distinct=distinct):
        return None
    theirs = _committed(table, request, near, cache)
    if theirs is None:
        return None
    if len(request.range) > BATCH_ROWS_MAX:
        return _found_by_parts(request, list(theirs))
    numbers, ours = _joined(_batch_keys(request))
    lost = found_among(ours, theirs, request)
    lost = lost if distinct else pc.or_(lost, repeated(ours, request))
    return [int(number) for number in numbers.filter(lost).to_pylist()]


def is_little(rows: int, near: Overlap, *, distinct: bool) -> bool:
    """Whether this process finds the duplicates of so many rows sooner than Spark, in bounded memory.

    A batch of any size is read part by part if its rows need not be compared with each other, and with few others.
    """
    return rows <= BATCH_ROWS_MAX or (distinct and near.rows <= BATCH_ROWS_MAX)


def _found_by_parts(request: Append, theirs: list[pa.Table]) -> list[int]:
    lost: list[int] = []
    for numbers, ours in _batch_keys(request):
        lost += numbers.filter(found_among(ours, theirs, request)).to_pylist()
    return lost


def stored_here(
    table: IcebergTable, snapshot: int, keys: FileKeys, manifests: Manifests, cache: KeyCache
) -> dict[Path, bytes] | None:
    """The bitmap of each file, empty where no row is committed; None: ask Spark."""
    if not is_exact(keys):
        return None

    def look(path: Path) -> bytes | None:
        ours = key_rows(keys_in(path, keys), keys)
        times = None if keys.event_time is None else ours[keys.event_time]
        span = None if times is None else event_span_of(times)
        timed = times is not None and not times.null_count
        near = overlap(table, keys, span, snapshot=snapshot, timed=timed, manifests=manifests)
        theirs = None if near is None else _committed(table, keys, near, cache)
        return None if theirs is None else bitmap_of(found_among(ours, theirs, keys))

    found: dict[Path, bytes] = {}
    with ThreadPoolExecutor(FILES_AT_ONCE, thread_name_prefix="stored") as pool:
        for path, bits in zip(keys.files, pool.map(look, keys.files), strict=True):
            if bits is None:
                pool.shutdown(wait=False, cancel_futures=True)
                return None
            found[path] = bits
    return found


def _committed(table: IcebergTable, keyed: Keyed, near: Overlap, cache: KeyCache) -> Iterator[pa.Table] | None:
    """The keys of the files that may have duplicates; None if that is too much, or more than reading is needed."""
    if near.rows > COMMITTED_ROWS_MAX:
        return None
    if not all(file.is_plain and is_reachable(table, file.location) for file in near.listed):
        return None
    names = key_columns(keyed)
    held = {} if near.snapshot is None else stored_columns(table, near.snapshot, {*names, SEQ})
    # A column that the snapshot does not have is null in all its rows: then none of them has this identity.
    if not {*keyed.identity[0]} <= held.keys():
        return iter(())
    columns = tuple(held.values())
    return (key_rows(cache.keys(table, file, columns), keyed) for file in near.listed)


def _batch_keys(request: Append) -> Iterator[tuple[pa.Array, pa.Table]]:
    """The number of each row of all segments, in order, and its key; row group by row group."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    for segment in sorted(request.segments, key=lambda one: one.offset):
        first = request.range.after + 1 + segment.offset
        with pq.ParquetFile(segment.path) as opened:
            held = set(opened.schema_arrow.names)
            names = [name for name in key_columns(request) if name in held]
            for group in range(opened.num_row_groups):
                count = opened.metadata.row_group(group).num_rows
                numbers = pa.array(range(first, first + count), pa.int64())
                rows = opened.read_row_group(group, columns=names)
                yield numbers, key_rows(rows.append_column(SEQ, numbers), request)
                first += count


def _joined(parts: Iterator[tuple[pa.Array, pa.Table]]) -> tuple[pa.Array, pa.Table]:
    import pyarrow as pa

    numbers, keys = zip(*parts, strict=True)
    return pa.concat_arrays(numbers), pa.concat_tables(keys)


def read_keys(table: IcebergTable, file: ListedFile, columns: tuple[StoredColumn, ...]) -> pa.Table:
    """Some columns of a data file; the sequence number must be among them, and does not come back."""
    stored = StoredFile(file.location, 1, SEQUENCE_MAX, file.rows, file.size)
    reader = RangeReader([stored], columns, {}, table.io.properties, threads=True)
    with contextlib.closing(reader):
        rows = reader.rows(SequenceRange(0, SEQUENCE_MAX))
    return rows.drop_columns([SEQ]).combine_chunks()


# ── by Spark ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def stored_on_spark(spark: SparkSession, committed: DataFrame, keys: FileKeys) -> dict[Path, bytes]:
    """The bitmaps of the files that have rows which are committed. One job."""
    from pyspark.sql import functions as F

    from floodmark.lake.transforms import SUSPECT, DuplicateKey

    key = DuplicateKey(keys.identity, keys.event_time)
    # Short names for the columns, so that nothing of the user's can be called the same.
    names = {name: f"_k{index}" for index, name in enumerate(keys.names)}
    ours = _file_keys(spark, keys).select(
        *[F.col(quoted(name)).alias(short) for name, short in names.items()],
        "_ingest_file",
        "_ingest_row",
        key.suspicion().alias(SUSPECT),
    )
    theirs = committed.select(
        *[F.col(quoted(name)).alias(f"{short}t") for name, short in names.items()],
        key.suspicion().alias(f"{SUSPECT}t"),
    )
    # The hash finds, the columns decide. All of them, also those of a fallback: a row that has more of them than its
    # duplicate is left to flush.
    same = [F.col(short).eqNullSafe(F.col(f"{short}t")) for short in names.values()]
    found = ours.join(
        theirs.hint("shuffle_hash"), reduce(and_, [F.col(SUSPECT) == F.col(f"{SUSPECT}t"), *same]), "left_semi"
    )
    place = F.col("_ingest_row") + 1
    maps = (
        found.groupBy("_ingest_file", F.bitmap_bucket_number(place).alias("bucket"))
        .agg(F.bitmap_construct_agg(F.bitmap_bit_position(place)).alias("bits"))
        .toArrow()
        .to_pylist()
    )
    result: dict[Path, bytearray] = {}
    for item in maps:
        bits = result.setdefault(keys.files[item["_ingest_file"]], bytearray())
        start = (item["bucket"] - 1) * BITS // 8
        bits.extend(bytes(max(0, start + BITS // 8 - len(bits))))
        bits[start : start + BITS // 8] = item["bits"]
    return {path: bytes(bits) for path, bits in result.items()}


def _file_keys(spark: SparkSession, keys: FileKeys) -> DataFrame:
    """The key's columns of all files, with the file's number and the row's place in it."""
    import pyarrow as pa
    from pyspark.sql import functions as F

    sources = keys.sources()
    kinds = ", ".join(
        f"{quoted(source)} {spark_type(keys.schema.column(name).type)}" for name, source in sources.items()
    )
    frame = spark.read.schema(kinds).parquet(*[f"file://{path}" for path in keys.files])
    placed = frame.select(
        *[F.col(quoted(source)).alias(name) for name, source in sources.items()],
        F.col("_metadata.row_index").alias("_ingest_row"),
        F.col("_metadata.file_path").alias("_ingest_path"),
    )
    if len(keys.files) == 1:
        return placed.withColumn("_ingest_file", F.lit(0))
    # The number is shuffled with every row, the path would be longer than the row.
    paths = [path for (path,) in placed.select("_ingest_path").distinct().collect()]
    numbers = pa.array([_number(keys.files, path) for path in paths], pa.int32())
    known = spark.createDataFrame(pa.table({"_ingest_path": pa.array(paths, pa.string()), "_ingest_file": numbers}))
    return placed.join(F.broadcast(known), "_ingest_path")


def _number(files: Sequence[Path], location: str) -> int:
    """Which of the files a location is, as Spark writes it."""
    from urllib.parse import unquote, urlparse

    return list(files).index(Path(unquote(urlparse(location).path)))
