"""A store's own lake, in its directory or where `[lake]` says, and the Spark session behind it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from floodmark.config import CatalogSettings, Settings
from floodmark.errors import Permanent
from floodmark.lake.catalogs import needed_jars, own_catalog, prepare
from floodmark.lake.executors import explained, python_there
from floodmark.lake.sparklog import log_file
from floodmark.lake.table import Lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from floodmark.lake.spark import SparkLake


def embedded_lake(
    root: Path, settings: Settings, *, spark: SparkSession | None = None, needs: Collection[str] = ()
) -> SparkLake:
    """The lake of the store at `root`, on a given session or on one that is started on first need, with the jars that
    it `needs` besides.
    """
    from floodmark.lake.spark import SparkLake

    def start() -> SparkSession:
        from floodmark.lake.session import start_session

        if spark is not None:
            return spark
        own = settings.spark
        return start_session(
            master=own.master,
            remote=own.remote,
            settings={"spark.driver.memory": own.driver_memory, **own.settings},
            log=log_file(root),
            needs={*needed_jars(settings), *needs},
        )

    return SparkLake(own_catalog(root, settings), start, catalogs=settings.catalogs)


def lakes_of_a_move(
    root: Path, old: Settings, new: Settings, *, spark: SparkSession | None = None
) -> tuple[SparkLake, SparkLake]:
    """The lake that the tables of a store leave, and the one they move to, on one session."""
    if new.lake is not None:
        prepare(own_catalog(root, new))
    needs = needed_jars(old) | needed_jars(new)
    return embedded_lake(root, old, spark=spark, needs=needs), embedded_lake(root, new, spark=spark, needs=needs)


def on_spark(lake: Lake) -> SparkLake:
    """The same lake, where it is one on Spark; else `Permanent`."""
    from floodmark.lake.spark import SparkLake

    if not isinstance(lake, SparkLake):
        raise Permanent("This store's lake is not on Spark: use read_since, or read_with_pending.")
    return lake


def try_spark(lake: Lake) -> str:
    """Start Spark, and let it read the catalog: this needs Java, the jars, memory and the settings; on a cluster, also
    the same Floodmark on its executors.
    """
    from floodmark.lake.session import sees_this_disk

    found = on_spark(lake)
    with explained():
        found.spark.sql(f"SHOW NAMESPACES IN `{found.catalog.name}`").collect()
    said = f"Spark {found.spark.version} started and reads the catalog"
    return said if sees_this_disk(found.spark) else f"{said}; its executors have {python_there(found.spark)}"


def session_with(lake: Lake, table: str | None, catalogs: Mapping[str, CatalogSettings]) -> SparkSession:
    """The lake's session, with the catalog of a table that is named as `catalog.namespace.table`."""
    from floodmark.lake.catalogs import attach_described

    spark = on_spark(lake).spark
    if table is not None:
        attach_described(spark, table, catalogs)
    return spark
