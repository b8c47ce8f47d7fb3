"""The Iceberg catalog, as Spark sees it and as Python sees it without a JVM.

Embedded stores use Iceberg's JDBC catalog on a SQLite file. PyIceberg reads the same file under the same
catalog name, so a table's head is known in a millisecond and without Spark.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from floodmark.commit.protocol import Snapshot, TableState
from floodmark.config import LAKE_NAMESPACE
from floodmark.control.database import sqlite_url
from floodmark.errors import FilesMissing, Retryable
from floodmark.lake.files import local_location
from floodmark.lake.places import check_answered, identity
from floodmark.lake.types import from_iceberg
from floodmark.schema import is_system_column

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog as IcebergCatalog
    from pyiceberg.io import FileIO
    from pyiceberg.table import Table as IcebergTable
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot as IcebergSnapshot
    from pyspark.sql import SparkSession

BLOCK_PROPERTY = "floodmark.block"
THROUGH_PROPERTY = "floodmark.through"
DROPPED_PROPERTY = "floodmark.dropped"
ROWS_PROPERTY = "floodmark.rows"
SEGMENTS_PROPERTY = "floodmark.segments"
BARRIER_PROPERTY = "floodmark.barrier"
SETTLED_PROPERTY = "floodmark.settled"
CHANGE_PROPERTY = "floodmark.change"
MAX_SEQ_PROPERTY = "floodmark.max-seq"
DECLARATION_PROPERTY = "floodmark.dataset"
NAMESPACE = LAKE_NAMESPACE
_POINTER = (
    "SELECT metadata_location FROM iceberg_tables "
    "WHERE catalog_name = :catalog AND table_namespace = :namespace AND table_name = :table"
)


@dataclass(slots=True)
class _Known:
    """A table as it was read, and of which metadata file."""

    table: IcebergTable
    file: tuple[int, ...]
    earlier: tuple[Snapshot, ...] = ()
    """The history as it was read the time before: most of it is the same."""
    state: TableState | None = None


@dataclass
class Catalog:
    """One catalog with one namespace of tables: the store's own, or one that rows are delivered to."""

    name: str
    spark_settings: dict[str, str] = field(repr=False)
    python_settings: dict[str, str] = field(repr=False)
    namespace: str = NAMESPACE
    _known: dict[str, _Known] = field(default_factory=dict, init=False, repr=False, compare=False)

    @classmethod
    def embedded(cls, *, name: str, lake: Path) -> Catalog:
        file, warehouse = lake / "catalog.db", local_location(lake)
        return cls(
            name=name,
            spark_settings={
                "type": "jdbc",
                "uri": f"jdbc:sqlite:{file}?busy_timeout=60000",
                "jdbc.schema-version": "V1",
                "warehouse": warehouse,
            },
            python_settings={"type": "sql", "uri": sqlite_url(file), "warehouse": warehouse},
        )

    def attach(self, spark: SparkSession) -> None:
        """Make the catalog known to a session.

        Caching is switched off, also where the user configured the catalog: a cached table would hide
        another process's commit, and a reader would take an old head for the newest.
        """
        prefix = f"spark.sql.catalog.{self.name}"
        spark.conf.set(prefix, "org.apache.iceberg.spark.SparkCatalog")
        for key, value in {**self.spark_settings, "cache-enabled": "false"}.items():
            spark.conf.set(f"{prefix}.{key}", value)

    def spark_name(self, table: str) -> str:
        return f"`{self.name}`.`{self.namespace}`.`{table}`"

    @cached_property
    def python(self) -> IcebergCatalog:
        """The same catalog without a JVM."""
        from pyiceberg.catalog import load_catalog

        return load_catalog(self.name, **self.python_settings)

    def load(self, table: str) -> IcebergTable:
        """The table as PyIceberg loads it, and with its errors.

        The catalog is read every time. The metadata file that it names is read once: under one name it never changes,
        and reading it takes the longer the more snapshots it lists, several times in every commit.
        """
        known = self._known.get(table)
        if known is not None:
            location = known.table.metadata_location
            if self.pointer(table) == location and identity(known.table.io, location) == known.file:
                return _copy(known.table)
        loaded = self.python.load_table((self.namespace, table))
        file = identity(loaded.io, loaded.metadata_location)
        if file is None:
            self._known.pop(table, None)
        else:
            earlier = known.state.lineage if known is not None and known.state is not None else ()
            self._known[table] = _Known(_copy(loaded), file, earlier)
        return loaded

    def file_io(self, location: str) -> FileIO:
        """How a file of this catalog is reached, where there is no table to ask."""
        from pyiceberg.io import load_file_io

        return load_file_io(dict(self.python_settings), location)

    def pointer(self, table: str) -> str | None:
        """The metadata file that the catalog names, if the catalog is a SQL database."""
        from sqlalchemy import text

        engine = getattr(self.python, "engine", None)
        if engine is None:
            return None
        here = {"catalog": self.name, "namespace": self.namespace, "table": table}
        with engine.connect() as connection:
            found = connection.execute(text(_POINTER), here).scalar_one_or_none()
        return None if found is None else str(found)

    def table(self, table: str) -> IcebergTable | None:
        """The table as PyIceberg loads it, freshly from the catalog; None if there is none."""
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError, RESTError, ValidationError
        from sqlalchemy.exc import SQLAlchemyError

        try:
            try:
                return self.load(table)
            except (OSError, ValueError, ValidationError):
                # Others may have committed since the catalog named the file, and removed it as an old version.
                return self.load(table)
        except (NoSuchTableError, NoSuchNamespaceError):
            return None
        except (SQLAlchemyError, RESTError) as error:
            raise Retryable(f"The catalog of the lake cannot be read: {error}.") from error
        except (OSError, ValueError, ValidationError) as error:  # not there, or cut off: it never reached the disk
            check_answered(self.python_settings.get("warehouse", ""), error)
            raise FilesMissing(
                f"The metadata of table {table!r} cannot be read: {error}.",
                hint="Restore the file; a lake directory that was moved must be moved back.",
            ) from error

    def state(self, table: str) -> TableState | None:
        """The table's metadata, all of it from one load."""
        loaded = self.table(table)
        if loaded is None:
            return None
        known = self._known.get(table)
        if known is None or known.table.metadata_location != loaded.metadata_location:
            return table_state(table, loaded)
        if known.state is None:
            known.state = table_state(table, loaded, known.earlier)
            known.earlier = ()
        return known.state


def _copy(table: IcebergTable) -> IcebergTable:
    """A copy of the load: a table may be refreshed by its user."""
    from pyiceberg.table import Table

    return Table(table.name(), table.metadata, table.metadata_location, table.io, table.catalog)


def table_state(name: str, loaded: IcebergTable, earlier: tuple[Snapshot, ...] = ()) -> TableState:
    """The state of a loaded table. A snapshot known from an earlier load is not parsed again: it never changes."""
    metadata = loaded.metadata
    known = {snapshot.id: snapshot for snapshot in earlier}
    return TableState(
        name=name,
        uuid=str(metadata.table_uuid),
        lineage=tuple(known.get(item.snapshot_id) or snapshot_of(item) for item in lineage(metadata)),
        columns=tuple(
            (field.name, from_iceberg(field.field_type))
            for field in metadata.schema().fields
            if not is_system_column(field.name)
        ),
        max_seq=int(metadata.properties.get(MAX_SEQ_PROPERTY, "0")),
        declaration=metadata.properties.get(DECLARATION_PROPERTY),
        location=metadata.location,
        bytes=_total(metadata, "total-files-size"),
        files=_total(metadata, "total-data-files"),
    )


def _total(metadata: TableMetadata, name: str) -> int:
    """What the newest snapshot says of its files together."""
    head = metadata.current_snapshot()
    return int((head.summary.additional_properties if head and head.summary else {}).get(name, "0"))


def lineage(metadata: TableMetadata) -> Iterator[IcebergSnapshot]:
    """The commits from the head back, as far as the history is still known."""
    known = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
    id = metadata.current_snapshot_id
    while id is not None and id in known:
        yield known[id]
        id = known[id].parent_snapshot_id


def snapshot_of(snapshot: IcebergSnapshot) -> Snapshot:
    """One commit, as a verdict needs it."""
    summary = snapshot.summary
    extra = summary.additional_properties if summary else {}
    through = extra.get(THROUGH_PROPERTY)
    return Snapshot(
        id=snapshot.snapshot_id,
        parent=snapshot.parent_snapshot_id,
        operation=summary.operation.value if summary else "unknown",
        added_files=int(extra.get("added-data-files", "0")),
        added_rows=int(extra.get("added-records", "0")),
        block=extra.get(BLOCK_PROPERTY),
        through=int(through) if through else None,
        dropped=int(extra.get(DROPPED_PROPERTY, "0")),
        settled=SETTLED_PROPERTY in extra,
        change=extra.get(CHANGE_PROPERTY),
        segments=frozenset(int(id) for id in extra.get(SEGMENTS_PROPERTY, "").split(",") if id),
        barrier=extra.get(BARRIER_PROPERTY),
        announced_rows=int(extra[ROWS_PROPERTY]) if ROWS_PROPERTY in extra else None,
        at=datetime.fromtimestamp(snapshot.timestamp_ms / 1000, UTC),
    )
