"""A store delivers to a table of another catalog, on Spark and Iceberg, with all that others do to such a table."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from stores import make_store

from floodmark.store import Store, open_store
from floodmark.testing import crash_at


@dataclass
class World:
    """A store with a second catalog on SQLite, and a sink there."""

    store: Store
    spark: Any
    catalog: str
    count: int = 0

    @property
    def table(self) -> str:
        return f"{self.catalog}.copies.events"

    def commit(self, count: int, **more: Any) -> None:
        first, self.count = self.count + 1, self.count + count
        rows = [{"id": number, "site": f"s{number % 2}", **more} for number in range(first, first + count)]
        self.store.capture("events", rows)
        self.store.flush("events")

    def sql(self, text: str) -> list[Any]:
        return self.spark.sql(text.format(table=self.table)).collect()

    def call(self, procedure: str, options: str) -> None:
        self.sql(f"CALL {self.catalog}.system.{procedure}(table => 'copies.events', {options})")

    def ours(self) -> list[int]:
        found = self.sql(f"SELECT id FROM {{table}} WHERE _origin_store = '{self.store.store_id}'")
        return sorted(row[0] for row in found)


@pytest.fixture
def world(spark: Any, tmp_path: Path) -> World:
    root, home, catalog = tmp_path / "store", tmp_path / "central", f"central_{uuid.uuid4().hex[:8]}"
    make_store(root, spark, schema={"id": "int"}).close()
    home.mkdir()
    with (root / "floodmark.toml").open("a") as settings:
        settings.write(f'\n[catalogs.{catalog}]\ntype = "sql"\nuri = "sqlite:///{home}/catalog.db"\n')
        settings.write(f'warehouse = "{home.as_uri()}"\n')
    store = open_store(root, spark=spark)
    store.add_sink("copy", "table", table=f"{catalog}.copies", chunk_rows=4)
    return World(store, spark, catalog)


@pytest.mark.spark
def test_rows_arrive_once_beside_crashes_strangers_compaction_expiry_and_new_columns(world: World) -> None:
    store = world.store
    world.commit(6)
    with crash_at("table.appended", time=2):
        store.export("copy")
    world.sql(
        "INSERT INTO {table} (id, site, _origin_store, _origin_seq, _origin_partition) "
        "VALUES (1, 's1', 'another', 1, 'site=s1')"
    )
    world.call("rewrite_data_files", "options => map('rewrite-all', 'true')")
    world.commit(2)
    store.export("copy")
    assert world.ours() == [1, 2, 3, 4, 5, 6, 7, 8]
    report = store.export("copy")
    assert (report.rows, report.spark_jobs) == (0, 0)

    world.call("expire_snapshots", "older_than => TIMESTAMP '2100-01-01 00:00:00', retain_last => 1")
    world.sql("DELETE FROM {table} WHERE id < 3")
    world.commit(1, note="a new column")
    store.capture("events", [{"id": 2**40, "site": "s0"}])
    store.flush("events")
    store.export("copy")

    assert world.ours() == [3, 4, 5, 6, 7, 8, 9, 2**40]
    assert [row[0] for row in world.sql("SELECT note FROM {table} WHERE id = 9")] == ["a new column"]
    commits = world.sql("SELECT operation FROM {table}.snapshots WHERE summary['floodmark.chunk'] IS NOT NULL")
    assert {row[0] for row in commits} == {"append"}, "other engines' incremental readers go on"


@pytest.mark.spark
def test_a_store_that_lost_its_watermarks_goes_on_behind_what_is_there(world: World) -> None:
    world.commit(5)
    world.store.export("copy")
    for table in ("chunks", "intents", "watermarks"):
        world.store.engine.database.transact(lambda c, table=table: c.exec_driver_sql(f"DELETE FROM {table}"))
    world.call("rewrite_data_files", "options => map('rewrite-all', 'true')")
    world.call("expire_snapshots", "older_than => TIMESTAMP '2100-01-01 00:00:00', retain_last => 1")
    world.commit(2)
    with open_store(world.store.path, spark=world.spark) as again:
        assert again.export("copy").rows == 2
    assert world.ours() == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.spark
def test_another_process_finishes_what_a_killed_one_began(world: World) -> None:
    """The scenarios crash at every point of a delivery to tables, on the lake in memory."""
    world.commit(6)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_GATEWAY")}
    killed = subprocess.run(
        [sys.executable, "-m", "floodmark.cli", "-s", str(world.store.path), "export", "copy"],
        env={**environment, "FLOODMARK_FAULT": "table.appended:2"},
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr[-3000:]
    world.commit(1)
    world.store.export("copy")
    assert world.ours() == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.spark
def test_other_engines_read_the_copy_without_spark(world: World, tmp_path: Path) -> None:
    from pyiceberg.catalog import load_catalog

    world.commit(3)
    world.store.export("copy")
    home = tmp_path / "central"
    settings = {"type": "sql", "uri": f"sqlite:///{home}/catalog.db", "warehouse": home.as_uri()}
    rows = load_catalog(world.catalog, **settings).load_table(("copies", "events")).scan().to_arrow().to_pylist()
    assert sorted((row["id"], row["_origin_seq"], row["_origin_partition"]) for row in rows) == [
        (1, 1, "site=s1"),
        (2, 2, "site=s0"),
        (3, 3, "site=s1"),
    ]
