"""Generations of tables on Iceberg: copied by Spark, renamed in the catalog, dropped with their files."""

from __future__ import annotations

import contextlib
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from floodmark.errors import FilesMissing, Retryable, reason_of
from floodmark.lake.catalog import THROUGH_PROPERTY
from floodmark.lake.files import local_path
from floodmark.lake.generations import Copy
from floodmark.lake.reading import SparkReader
from floodmark.lake.table import AppendRefused
from floodmark.lake.types import quoted, spark_type
from floodmark.schema import CONTENT_ID, SEGMENT, SEQ, Column, Schema
from floodmark.schema.types import ListType, StructType
from floodmark.sequence import CHECKSUM_MODULUS, SequenceRange, Tally


def _value(column: Column, known: set[str]) -> Any:
    from pyspark.sql import functions as F

    if column.name not in known:
        return F.lit(None).cast(spark_type(column.type))
    held = F.col(quoted(column.name))
    return held if isinstance(column.type, ListType | StructType) else held.cast(spark_type(column.type))


@dataclass(slots=True)
class SparkGenerations(SparkReader):
    """Tables in one Iceberg catalog, as far as they take each other's place."""

    def copy(self, request: Copy) -> None:
        from pyspark.sql import functions as F

        from floodmark.lake.transforms import as_table, within

        state = self.load(request.target)
        if state is None or not state.may_append_on(request.base):
            raise AppendRefused(f"The copy of {request.within} cannot land: {request.target!r} has changed.")
        frame = self.frame(request.source, snapshot=request.snapshot).transform(within(request.within))
        known = set(frame.columns)
        missing = [column for column in request.schema if column.name not in known]
        whole = frame.withColumns({item.name: F.lit(None).cast(spark_type(item.type)) for item in missing})
        writer = (
            whole.transform(as_table(request.schema))
            .writeTo(self.catalog.spark_name(request.target))
            .option("isolation-level", "serializable")
            .option(f"snapshot-property.{THROUGH_PROPERTY}", str(request.through))
        )
        if request.base.snapshot is not None:
            writer = writer.option("validate-from-snapshot-id", str(request.base.snapshot))
        with self._action():
            writer.overwrite(F.lit(False))

    def clear(self, table: str, within: SequenceRange) -> None:
        name = self.catalog.spark_name(table)
        with self._action():
            self.spark.sql(f"DELETE FROM {name} WHERE {SEQ} > {within.after} AND {SEQ} <= {within.through}")  # noqa: S608 - numbers

    def tallies(
        self, table: str, *, snapshot: int, within: SequenceRange, width: int, schema: Schema
    ) -> dict[int, Tally]:
        from pyspark.sql import functions as F

        with self._reading(table, None):
            frame = self._selected(table, snapshot, within)
            known = set(frame.columns)
            # In the types of today: a number that was narrower in an old snapshot is the same number.
            values = [_value(column, known) for column in schema]
            whole = F.xxhash64(F.col(SEQ), F.col(CONTENT_ID), F.col(SEGMENT), *values)
            grouped = frame.groupBy(F.expr(f"{SEQ} div {width}")).agg(
                F.count(F.lit(1)), F.sum(whole.cast("decimal(38,0)"))
            )
            with self._action():
                counted = grouped.collect()
        return {int(bucket): Tally(rows, int(checksum) % CHECKSUM_MODULUS) for bucket, rows, checksum in counted}

    def rename(self, table: str, to: str) -> bool:
        """By the catalog itself: one change there, no file is touched, no JVM needed."""
        from pyiceberg.exceptions import NoSuchTableError, TableAlreadyExistsError

        space = self.catalog.namespace
        try:
            self.catalog.python.rename_table((space, table), (space, to))
        except TableAlreadyExistsError as error:
            raise Retryable(f"There is a table {to!r} already.") from error
        except NoSuchTableError:
            return False
        except Exception as error:
            # It may have happened all the same: who asked looks again.
            raise Retryable(f"Table {table!r} could not be renamed: {reason_of(error)}.") from error
        return True

    def drop(self, table: str) -> None:
        try:
            loaded = self.catalog.table(table)
        except FilesMissing:  # nobody knows any more which files were its own
            self.catalog.python.drop_table((self.catalog.namespace, table))
            return
        if loaded is None:
            return
        home = local_path(loaded.location())
        try:
            if home is None:
                self.spark.sql(f"DROP TABLE IF EXISTS {self.catalog.spark_name(table)} PURGE")
            else:
                self._drop_with_home(table, Path(home))
        except Exception as error:
            raise Retryable(f"Table {table!r} could not be dropped: {reason_of(error)}.") from error

    def _drop_with_home(self, table: str, home: Path) -> None:
        """The location is this table's alone: names of generations are never used again. So nothing is looked for."""
        from pyiceberg.exceptions import NoSuchTableError

        with contextlib.suppress(NoSuchTableError):
            self.catalog.python.drop_table((self.catalog.namespace, table))
        shutil.rmtree(home, ignore_errors=True)

    def location(self, table: str) -> str | None:
        loaded = self.catalog.table(table)
        return None if loaded is None else str(loaded.location())
