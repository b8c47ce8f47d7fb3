"""Which rows of Parquet files are committed, found by Spark."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import and_
from pathlib import Path
from typing import TYPE_CHECKING

from floodmark.lake.stored import FileKeys
from floodmark.lake.types import quoted, spark_type
from floodmark.schema import Schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BITS = 32_768
"""How many rows Spark puts into one bitmap."""


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
    # twin is left to flush.
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
