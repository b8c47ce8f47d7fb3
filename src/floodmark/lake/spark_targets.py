"""Targets on Iceberg through Spark: the copy runs wholly in Spark, from the lake's table to a foreign table.

Metadata is read without a JVM where the catalog is described in the settings file. A catalog that only the Spark
session knows is read through Spark, in one load: the session says where the table's metadata file is, and that file
never changes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from floodmark.commit.protocol import TableState
from floodmark.config import CatalogSettings
from floodmark.errors import FloodmarkError, Permanent, Retryable, SchemaConflict, reason_of
from floodmark.lake.catalog import Catalog, lineage, snapshot_of
from floodmark.lake.catalogs import configured, loaded
from floodmark.lake.durable import sync_commits
from floodmark.lake.executors import explained
from floodmark.lake.targets import (
    ORIGIN_COLUMNS,
    ORIGIN_PARTITION,
    ORIGIN_SEQ,
    ORIGIN_STORE,
    Census,
    Claim,
    Cut,
    Landed,
    Mark,
    Measure,
    Origin,
    TargetAppend,
    TargetColumn,
    TargetName,
    TargetState,
)
from floodmark.lake.types import evolution, from_iceberg, quoted, spark_type
from floodmark.schema import CONTENT_ID, SEQ, Schema
from floodmark.sequence import SequenceRange, Tally

if TYPE_CHECKING:
    from pyiceberg.table import Table as IcebergTable
    from pyiceberg.table.snapshots import Snapshot as IcebergSnapshot
    from pyiceberg.types import NestedField
    from pyspark.sql import DataFrame, SparkSession

    from floodmark.lake.spark import SparkLake

TABLE_PROPERTIES = {
    "format-version": "2",
    "write.distribution-mode": "none",
    "write.parquet.compression-codec": "zstd",
    "write.metadata.delete-after-commit.enabled": "true",
}
CHANGES_MAX = 5
"""How often a table's shape is tried to be changed beside others who do the same."""


class TargetCatalog(Protocol):
    """Where a target's metadata comes from."""

    def attach(self, spark: SparkSession) -> None: ...
    def spark_name(self, table: str) -> str: ...
    def load(self, table: str) -> IcebergTable | None: ...


@dataclass(frozen=True, slots=True)
class DescribedCatalog:
    """A catalog of the settings file, or the lake's own."""

    catalog: Catalog

    def attach(self, spark: SparkSession) -> None:
        self.catalog.attach(spark)

    def spark_name(self, table: str) -> str:
        return self.catalog.spark_name(table)

    def load(self, table: str) -> IcebergTable | None:
        return loaded(self.catalog, table)


@dataclass(frozen=True, slots=True)
class SessionCatalog:
    """A catalog that only the Spark session knows."""

    name: str
    namespace: str
    lake: SparkLake

    def attach(self, spark: SparkSession) -> None:
        # Too late for a catalog that was used before: hence the REFRESH of each load.
        spark.conf.set(f"spark.sql.catalog.{self.name}.cache-enabled", "false")

    def spark_name(self, table: str) -> str:
        return f"`{self.name}`.`{self.namespace}`.`{table}`"

    def load(self, table: str) -> IcebergTable | None:
        """The table by its metadata file. One load: whatever is read from the file is of one instant."""
        from pyiceberg.table import StaticTable
        from pyspark.errors import AnalysisException

        name = self.spark_name(table)
        try:
            self.lake.spark.sql(f"REFRESH TABLE {name}")
            log = self.lake.spark.sql(f"SELECT file FROM {name}.metadata_log_entries").collect()  # noqa: S608 - names
        except AnalysisException as error:
            if (error.getCondition() or "").startswith(("TABLE_OR_VIEW_NOT_FOUND", "SCHEMA_NOT_FOUND")):
                return None
            raise Permanent(f"Spark cannot use {name}: {reason_of(error)}.", hint=self._way_out()) from error
        except Exception as error:
            raise Retryable(f"Spark did not describe {name}: {reason_of(error)}.") from error
        try:
            return StaticTable.from_metadata(log[-1][0])
        except Exception as error:
            raise Permanent(
                f"The metadata of {name} at {log[-1][0]} cannot be read without Spark: {reason_of(error)}.",
                hint=self._way_out(),
            ) from error

    def _way_out(self) -> str:
        return f"Describe the catalog in floodmark.toml: [catalogs.{self.name}] with type, uri and warehouse."


@dataclass(slots=True)
class SparkTargets:
    """The tables that one lake's rows are copied to."""

    lake: SparkLake
    settings: Mapping[str, CatalogSettings]
    _catalogs: dict[tuple[str, str], TargetCatalog] = field(default_factory=dict)
    _attached: dict[str, SparkSession] = field(default_factory=dict)
    """The catalogs that a session knows: a new one knows none."""

    def target(self, name: TargetName) -> SparkTarget:
        key = (name.catalog, name.namespace)
        if key not in self._catalogs:
            self._catalogs[key] = self._catalog(name)
        return SparkTarget(name, self._catalogs[key], self)

    def session(self, name: TargetName) -> SparkSession:
        """The lake's session, which knows the catalog."""
        session = self.lake.spark
        if self._attached.get(name.catalog) is not session:
            self._catalogs[name.catalog, name.namespace].attach(session)
            self._attached[name.catalog] = session
        return session

    def _catalog(self, name: TargetName) -> TargetCatalog:
        described = self.settings.get(name.catalog)
        if described is not None:
            return DescribedCatalog(configured(name.catalog, described, namespace=name.namespace))
        own = self.lake.catalog
        if name.catalog == own.name:
            if name.namespace == own.namespace:
                raise Permanent(
                    f"{name} is in the namespace of the store.", hint="Deliver to another namespace of the catalog."
                )
            return DescribedCatalog(Catalog(own.name, own.spark_settings, own.python_settings, name.namespace))
        if self.lake.spark.conf.get(f"spark.sql.catalog.{name.catalog}", None) is None:
            raise Permanent(
                f"The catalog {name.catalog!r} of {name} is not known.",
                hint=f"Describe it in floodmark.toml: [catalogs.{name.catalog}] with type, uri and warehouse; or "
                f"configure spark.sql.catalog.{name.catalog} in the Spark session.",
            )
        return SessionCatalog(name.catalog, name.namespace, self.lake)


@dataclass(frozen=True, slots=True)
class SparkTarget:
    """One table."""

    name: TargetName
    catalog: TargetCatalog
    targets: SparkTargets

    @property
    def lake(self) -> SparkLake:
        return self.targets.lake

    @property
    def spark(self) -> SparkSession:
        return self.targets.session(self.name)

    @property
    def _spark_name(self) -> str:
        return self.catalog.spark_name(self.name.table)

    def load(self) -> TargetState | None:
        table = self.catalog.load(self.name.table)
        return None if table is None else target_state(str(self.name), table)

    def sync(self, state: TargetState, *, since: int | None) -> None:
        sync_commits(state.handle, state.history, since=since)

    # ── shape ────────────────────────────────────────────────────────────────────────────────────────────────────

    def fit(self, columns: Schema, claim: Claim) -> None:
        for attempt in range(CHANGES_MAX):
            statements = self._changes(self.load(), columns, claim)
            if not statements:
                return
            try:
                with explained():
                    for statement in statements:
                        self.spark.sql(statement)
            except FloodmarkError:
                raise
            except Exception as error:
                # Another process may have made the same change just now: read again before giving up.
                if attempt == CHANGES_MAX - 1:
                    raise Retryable(
                        f"Table {self.name} could not be created or changed: {reason_of(error)}."
                    ) from error

    def _changes(self, state: TargetState | None, columns: Schema, claim: Claim) -> list[str]:
        key, value = claim.property
        if state is None:
            return self._creation(columns, {**TABLE_PROPERTIES, key: value})
        have = tuple((column.name, column.type) for column in state.columns if column.type is not None)
        changes = evolution(self._spark_name, have, columns)
        if state.properties.get(key) != value:
            changes.append(f"ALTER TABLE {self._spark_name} SET TBLPROPERTIES ({_text(key)} = {_text(value)})")
        return changes

    def _creation(self, columns: Schema, properties: Mapping[str, str]) -> list[str]:
        """Not partitioned: the rows of one small partition lie far apart by number, and each stretch of numbers would
        make a file. In the order of numbers within each file, a range is found by the files' bounds as well.
        """
        shape = [f"{quoted(column.name)} {spark_type(column.type)}" for column in columns]
        shape += [f"{name} {spark_type(kind)}" for name, kind in ORIGIN_COLUMNS.items()]
        shape[-2] += " not null"
        shown = ", ".join(f"{_text(key)} = {_text(value)}" for key, value in properties.items())
        return [
            f"CREATE NAMESPACE IF NOT EXISTS `{self.name.catalog}`.`{self.name.namespace}`",
            f"CREATE TABLE IF NOT EXISTS {self._spark_name} ({', '.join(shape)}) USING iceberg TBLPROPERTIES ({shown})",
            f"ALTER TABLE {self._spark_name} WRITE LOCALLY ORDERED BY {ORIGIN_SEQ}",
        ]

    # ── rows ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def append(self, request: TargetAppend) -> None:
        from pyspark.errors import AnalysisException
        from pyspark.sql import functions as F

        writer = (
            self._rows(request)
            .writeTo(self._spark_name)
            .option("isolation-level", "serializable")
            .options(**{f"snapshot-property.{key}": value for key, value in request.mark.properties.items()})
        )
        if request.head is not None:
            writer = writer.option("validate-from-snapshot-id", str(request.head))
        try:
            with self.lake.action():
                writer.overwrite(F.lit(False))
        except AnalysisException as error:
            if (error.getCondition() or "").startswith("INCOMPATIBLE_DATA_FOR_TABLE"):
                raise SchemaConflict(
                    f"The rows do not fit table {self.name}: {reason_of(error)}.",
                    hint="Change the table's columns, or deliver to another table.",
                ) from error
            raise

    def seen(self, state: TargetState, *, store: str, partition: str | None, within: SequenceRange) -> Measure:
        from pyspark.sql import functions as F

        if state.history.head is None:
            return Measure(Tally(), 0)
        there = self._there(state, store=store, partition=partition, within=within)
        try:
            with self.lake.action():
                rows, last = there.agg(F.count(F.lit(1)), F.max(ORIGIN_SEQ)).collect()[0]
        except Exception as error:
            raise Retryable(f"The rows of table {self.name} could not be read: {reason_of(error)}.") from error
        return Measure(Tally(rows, 0), last or 0)

    def census(self, state: TargetState, *, store: str, partition: str, within: SequenceRange) -> Census:
        from pyspark.sql import functions as F

        if state.history.head is None:
            return Census(0, 0)
        there = self._there(state, store=store, partition=partition, within=within)
        with self.lake.reading(str(self.name), None), self.lake.action():
            rows, numbers = there.agg(F.count(F.lit(1)), F.countDistinct(ORIGIN_SEQ)).collect()[0]
        return Census(rows, numbers)

    def unlike(self, state: TargetState, cut: Cut, origin: Origin, *, count_max: int) -> list[int]:
        from pyspark.sql import functions as F

        here = self._source(cut).drop(CONTENT_ID).withColumnRenamed(SEQ, ORIGIN_SEQ)
        if state.history.head is None:
            there = here.limit(0)
        else:
            there = self._there(state, store=origin.store, partition=origin.partition, within=cut.range)
        known = set(there.columns)
        # In the types of the source: a target's column may be wider.
        same = [
            (F.col(quoted(item.name)) if item.name in known else F.lit(None)).cast(item.dataType).alias(item.name)
            for item in here.schema.fields
        ]
        lost = here.exceptAll(there.select(*same)).select(ORIGIN_SEQ).orderBy(ORIGIN_SEQ).limit(count_max)
        with self.lake.reading(str(self.name), None), self.lake.action():
            return [row[0] for row in lost.collect()]

    def _there(self, state: TargetState, *, store: str, partition: str | None, within: SequenceRange) -> DataFrame:
        """The rows of a store at a load, of one partition or of all."""
        from pyspark.sql import functions as F

        # The session first: a column can be named only once there is one.
        there = self.spark.read.option("versionAsOf", str(state.history.head)).table(self._spark_name)
        number = F.col(ORIGIN_SEQ)
        there = there.where((F.col(ORIGIN_STORE) == store) & (number > within.after) & (number <= within.through))
        return there if partition is None else there.where(F.col(ORIGIN_PARTITION) == partition)

    def _source(self, cut: Cut) -> DataFrame:
        """The rows of a range in the lake, with the columns that are wanted and the system's."""
        from pyspark.sql import functions as F

        from floodmark.lake.transforms import filled

        frame = self.lake.selected(
            cut.table, cut.snapshot, cut.range, cut.partition_values, cut.row_filter, cut.columns
        )
        if cut.without:
            frame = frame.where(~F.col(SEQ).isin(sorted(cut.without)))
        names = [quoted(column.name) for column in cut.columns]
        return frame.transform(filled(cut.columns)).select(*names, SEQ, CONTENT_ID)

    def _rows(self, request: TargetAppend) -> DataFrame:
        """The rows as the target takes them: what it has beyond the dataset is null."""
        from pyspark.sql import functions as F

        if isinstance(request.rows, Cut):
            frame = self._source(request.rows).withColumnRenamed(SEQ, ORIGIN_SEQ)
        else:
            frame = self.spark.createDataFrame(request.rows)
        origin = request.mark.origin
        sent = {name: F.col(quoted(name)) for name in request.columns.names} | {
            ORIGIN_STORE: F.lit(origin.store),
            ORIGIN_SEQ: F.col(ORIGIN_SEQ),
            ORIGIN_PARTITION: F.lit(origin.partition),
        }
        shape = self.spark.table(self._spark_name).schema.fields
        return frame.select(*[sent.get(item.name, F.lit(None).cast(item.dataType)).alias(item.name) for item in shape])


def target_state(name: str, table: IcebergTable) -> TargetState:
    """What a sink needs to know, all of it from one load."""
    metadata = table.metadata
    history = list(lineage(metadata))
    landed = {snapshot.snapshot_id: found for snapshot in history if (found := _landed(snapshot)) is not None}
    return TargetState(
        TableState(name, str(metadata.table_uuid), tuple(snapshot_of(item) for item in history), columns=()),
        landed,
        tuple(_column(item) for item in metadata.schema().fields),
        dict(metadata.properties),
        table,
    )


def _landed(snapshot: IcebergSnapshot) -> Landed | None:
    summary = snapshot.summary.additional_properties if snapshot.summary else {}
    mark = Mark.parse(summary)
    if mark is None:
        return None
    size = int(summary.get("added-files-size", "0"))
    return Landed(mark, size, snapshot.snapshot_id, snapshot.parent_snapshot_id)


def _column(item: NestedField) -> TargetColumn:
    """A column, also of a type that no dataset has: then it is compared with nothing."""
    text = str(item.field_type)
    try:
        # A time without a zone is not an instant, though both are written alike here.
        kind = None if re.search(r"\btimestamp\b", text) else from_iceberg(item.field_type)
    except (FloodmarkError, ValueError):
        kind = None
    return TargetColumn(item.name, kind, text, required=item.required)


def _text(value: str) -> str:
    """A text in SQL."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
