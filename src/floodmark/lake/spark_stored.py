"""Which rows of Parquet files are committed: in this process where not too much is near a file, else by Spark.

Only the key's columns are read, of a file and of the data files that its span of event time reaches. A row without an
event time is not found in this process: what is not found is for flush to decide.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from operator import and_
from pathlib import Path
from typing import TYPE_CHECKING

from floodmark.lake.overlap import within_span
from floodmark.lake.stored import FileKeys, bitmap_of, event_span_of, key_rows
from floodmark.lake.types import quoted, spark_type
from floodmark.rows.identities import is_plain
from floodmark.schema import Schema
from floodmark.schema.types import DATE, to_arrow

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.table import Table as IcebergTable
    from pyspark.sql import DataFrame, SparkSession

ROWS_HERE_MAX = 2_000_000
"""So many committed rows are compared with one file in this process; more than that is for Spark."""
FILES_AT_ONCE = 2
"""So many files are compared at the same time: planning is Python's work, reading and comparing is not."""
BITS = 32_768
"""How many rows Spark puts into one bitmap."""
_PLACE = "_ingest_place"


# ── in this process ───────────────────────────────────────────────────────────────────────────────────────────────────


def stored_directly(table: IcebergTable, snapshot: int, keys: FileKeys) -> dict[Path, bytes] | None:
    """The bitmap of each file, empty where no row is committed; None if it is for Spark to find out."""
    kinds = [to_arrow(keys.schema.column(name).type) for name in keys.names]
    if len(keys.identity) != 1 or not all(map(is_plain, kinds)):
        return None
    if table.snapshot_by_id(snapshot) is None:  # it has expired: its plan would be empty, and say that nothing is there
        return None
    found: dict[Path, bytes] = {}
    with ThreadPoolExecutor(FILES_AT_ONCE, thread_name_prefix="stored") as pool:
        looked = pool.map(lambda path: _stored(table, snapshot, keys, path), keys.files)
        for path, bits in zip(keys.files, looked, strict=True):
            if bits is None:
                pool.shutdown(wait=False, cancel_futures=True)
                return None
            found[path] = bits
    return found


def _stored(table: IcebergTable, snapshot: int, keys: FileKeys, path: Path) -> bytes | None:
    from pyiceberg.expressions import AlwaysTrue

    ours = _typed(key_rows(path, keys), keys)
    near: BooleanExpression = AlwaysTrue()
    if keys.event_time is not None:
        span = event_span_of(ours[keys.event_time])
        if span is None:
            return None
        near = within_span(keys.event_time, span, is_date=keys.schema.column(keys.event_time).type == DATE)
    scan = table.scan(row_filter=near, selected_fields=keys.names, snapshot_id=snapshot)
    if sum(task.file.record_count for task in scan.plan_files()) > ROWS_HERE_MAX:
        return None
    theirs = _typed(scan.to_arrow(), keys)
    found = _found_at_once(ours, theirs, keys)
    return _found_by_join(ours, theirs, keys) if found is None else found


def _typed(rows: pa.Table, keys: FileKeys) -> pa.Table:
    """In the dataset's own types: Iceberg's reader has wide texts."""
    import pyarrow as pa

    return pa.table({name: rows[name].cast(to_arrow(keys.schema.column(name).type)) for name in keys.names})


def _found_at_once(ours: pa.Table, theirs: pa.Table, keys: FileKeys) -> bytes | None:
    """By looking each identity up: a third of a join's time. None where that is not the whole answer."""
    import pyarrow as pa
    import pyarrow.compute as pc

    (names,) = keys.identity
    if len(names) > 1:
        return None
    column = ours[names[0]].combine_chunks()
    known = theirs[names[0]].combine_chunks()
    if keys.event_time is None or keys.event_time == names[0]:
        both = pc.is_in(column, value_set=known, skip_nulls=True)
    else:
        at = pc.index_in(column, value_set=known, skip_nulls=True)
        same = pc.equal(ours[keys.event_time].combine_chunks(), theirs[keys.event_time].combine_chunks().take(at))
        if pc.any(pc.and_(pc.is_valid(at), pc.invert(same))).as_py():
            return None  # one identity has several event times, and the first that is found is not the one
        both = pc.fill_null(same, fill_value=False)
    if not pc.any(both).as_py():
        return b""
    return bytes(pa.concat_arrays([both, pa.repeat(False, -len(both) % 8)]).buffers()[1])[: (len(both) + 7) // 8]


def _found_by_join(ours: pa.Table, theirs: pa.Table, keys: FileKeys) -> bytes:
    import pyarrow as pa

    placed = ours.append_column(_PLACE, pa.array(range(ours.num_rows), pa.int64()))
    both = placed.join(theirs, keys=list(keys.names), join_type="left semi")
    return bitmap_of(both[_PLACE].to_pylist(), ours.num_rows) if both.num_rows else b""


# ── by Spark ──────────────────────────────────────────────────────────────────────────────────────────────────────────


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
    kinds = ", ".join(f"{quoted(source)} {_kind(keys.schema, name)}" for name, source in sources.items())
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


def _kind(schema: Schema, name: str) -> str:
    return spark_type(schema.column(name).type)
