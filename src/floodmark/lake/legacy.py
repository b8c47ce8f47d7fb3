"""Tables and files that Spark reads to be adopted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from floodmark.errors import Permanent, Retryable, reason_of
from floodmark.lake.adoptable import Part

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

PART_ROWS_MAX = 200_000


@dataclass(frozen=True, slots=True)
class SparkLegacy:
    """A table or files that Spark can read, at one version of them."""

    name: str
    version: str
    frame: DataFrame
    file: str
    """The column that says which file a row is in."""
    place: str | None
    """… and where in it; None where Spark does not know: then a file is one part."""

    def parts(self) -> Iterator[Part]:
        from pyspark.sql import functions as F

        last = F.max(self.place) if self.place else F.lit(0)
        found = self.frame.groupBy(F.col(self.file).alias("file")).agg(last.alias("last")).orderBy("file")
        for file, last_place in found.collect():
            if self.place is None:
                yield Part(file, -1, 0)
                continue
            for after in range(-1, last_place, PART_ROWS_MAX):
                yield Part(file, after, min(after + PART_ROWS_MAX, last_place))

    def read(self, part: Part) -> pa.Table:
        from pyspark.sql import functions as F

        rows = self.frame.where(F.col(self.file) == part.file)
        if self.place is not None:
            place = F.col(self.place)
            rows = rows.where((place > part.after) & (place <= part.through)).orderBy(self.place)
        try:
            return rows.select(*[f"`{name}`" for name in self.frame.columns]).toArrow()
        except Exception as error:
            raise Retryable(
                f"{self.name} could not be read: {reason_of(error)}.", hint="Run the same command again: it continues."
            ) from error


def legacy_table(spark: SparkSession, table: str, *, version: str | None) -> SparkLegacy:
    """An Iceberg table, at its head or at the version that an earlier run began with."""
    try:
        location = next(
            row.data_type
            for row in spark.sql(f"DESCRIBE TABLE EXTENDED {table}").collect()
            if row.col_name == "Location"
        )
        heads = spark.sql(f"SELECT snapshot_id FROM {table}.refs WHERE name = 'main'").collect()  # noqa: S608 - a name
    except Exception as error:
        raise Permanent(
            f"The table {table!r} cannot be read: {reason_of(error)}.",
            hint="Name an Iceberg table as catalog.namespace.table, with [catalogs.NAME] in floodmark.toml; or give a "
            "path and its format.",
        ) from error
    if version is None:
        version = str(heads[0].snapshot_id) if heads else ""
    if not version:
        raise Permanent(f"The table {table!r} is empty.", hint="There is nothing to load.")
    frame = spark.read.option("versionAsOf", version).table(table)
    return SparkLegacy(f"table:{location}", version, frame, "_file", "_pos")


def legacy_files(spark: SparkSession, path: str, *, format: str) -> SparkLegacy:
    """Files of any format that Spark reads."""
    try:
        frame = spark.read.format(format).load(path)
        found = sorted(frame.inputFiles())
    except Exception as error:
        raise Permanent(
            f"{path!r} cannot be read as {format}: {reason_of(error)}.", hint="Correct the path or the format."
        ) from error
    # The list of the files is the version: what is added or taken away later makes it another one.
    return SparkLegacy(
        f"files:{path}",
        json.dumps(found),
        frame,
        "_metadata.file_path",
        "_metadata.row_index" if format == "parquet" else None,
    )
