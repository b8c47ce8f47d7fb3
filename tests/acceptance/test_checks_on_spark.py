"""Audit, trace and fsck on real Spark and Iceberg: files, a table of another catalog, and the lake's own files."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from stores import make_store

from floodmark.errors import InvalidSetting
from floodmark.lake.spark import SparkLake
from floodmark.store import Store, open_store
from floodmark.testing import crash_at

pytestmark = pytest.mark.spark
COLUMNS = {"id": "long", "at": "timestamp", "price": "decimal(10,2)", "extra": "json", "tags": "list<string>"}


@pytest.fixture
def store(spark: Any, tmp_path: Path) -> Iterator[Store]:
    """A store that has delivered two rounds of rows to files and to a table."""
    yield from delivered(spark, tmp_path)


@pytest.fixture(scope="module")
def sound(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """Another one like it, for all who change nothing of it."""
    yield from delivered(spark, tmp_path_factory.mktemp("sound"))


@pytest.fixture(scope="module")
def damaged(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """One whose destinations are damaged, each by its own test, which looks at that destination only."""
    yield from delivered(spark, tmp_path_factory.mktemp("damaged"))


def delivered(spark: Any, directory: Path) -> Iterator[Store]:
    root, home, catalog = directory / "store", directory / "central", f"central_{uuid.uuid4().hex[:8]}"
    make_store(root, spark, schema=COLUMNS, event_time="at", identity=["id"]).close()
    home.mkdir()
    with (root / "floodmark.toml").open("a") as settings:
        settings.write(f'\n[catalogs.{catalog}]\ntype = "sql"\nuri = "sqlite:///{home}/catalog.db"\n')
        settings.write(f'warehouse = "{home.as_uri()}"\n')
    with open_store(root, spark=spark) as made:
        made.add_sink("files", "blob", url=(directory / "out").as_uri(), chunk_rows=4)
        made.add_sink("lines", "blob", url=(directory / "lines").as_uri(), chunk_rows=4, format="jsonl.zst")
        made.add_sink("copy", "table", table=f"{catalog}.copies", chunk_rows=4)
        for first in (1, 11):
            made.capture("events", [row(id) for id in range(first, first + 10)])
            made.flush("events")
            made.export()
        yield made


def row(id: int) -> dict[str, Any]:
    return {
        "id": id,
        "site": f"s{id % 2}",
        "at": f"2026-01-01T00:00:{id:02}.5Z",
        "price": f"{id}.25",
        "extra": {"b": id, "a": [1, None]},
        "tags": ["x", str(id)],
    }


def kinds(store: Store, sink: str, *, deep: bool = False) -> list[str]:
    return [item.kind for item in store.audit(sink, deep=deep).findings]


def target(store: Store) -> str:
    name = next(item.settings["table"] for item in store.sinks() if item.name == "copy")
    return f"{name}.events"


def test_what_was_delivered_is_sound_row_by_row_also_after_compaction(sound: Store):
    sound.spark.sql(
        f"CALL `{sound.engine.lake.catalog.name}`.system.rewrite_data_files("
        "table => 'datasets.events_g1', options => map('rewrite-all', 'true'))"
    ).collect()
    for sink in ("files", "lines", "copy"):
        report = sound.audit(sink, deep=True)
        assert report.findings == ()
        assert [(item.settled, item.there) for item in report.channels] == [(10, 10), (10, 10)]


def test_a_cheap_audit_of_files_starts_no_spark_job(sound: Store):
    jobs = sound.engine.lake.jobs
    assert kinds(sound, "files") == []
    assert sound.engine.lake.jobs == jobs


def test_damage_among_objects_is_found(damaged: Store):
    first, second, *_ = sorted((damaged.path.parent / "out").rglob("*-*.parquet"))
    rows = pq.read_table(first)
    altered = rows.set_column(rows.schema.get_field_index("tags"), "tags", pa.array([["y"]] * len(rows)))
    pq.write_table(altered, first)
    second.unlink()
    assert kinds(damaged, "files") == ["object-missing"]
    assert sorted(kinds(damaged, "files", deep=True)) == ["object-missing", "rows-altered"]


ALTERED = """
    UPDATE {table} SET price = if(id = 7, 0, price), tags = if(id = 8, array('z'), tags) WHERE id IN (7, 8)
"""
"""One row of each partition, so that each has a finding of its own."""


def test_damage_in_a_table_is_found(damaged: Store):
    def happens(*statements: str) -> None:
        for statement in statements:
            damaged.spark.sql(statement.format(table=target(damaged)))

    happens(ALTERED)
    assert kinds(damaged, "copy") == [], "their numbers are there"
    assert kinds(damaged, "copy", deep=True) == ["rows-altered", "rows-altered"]
    happens("DELETE FROM {table} WHERE id IN (7, 8)", "INSERT INTO {table} SELECT * FROM {table} WHERE id = 10")
    for deep in (False, True):
        assert sorted(kinds(damaged, "copy", deep=deep)) == ["rows-doubled", "rows-missing", "rows-missing"]


def test_rows_that_the_lake_lost_are_found_by_counting(store: Store):
    store.spark.sql(f"DELETE FROM `{store.engine.lake.catalog.name}`.datasets.events_g1 WHERE id = 4")
    assert "lake-differs" in kinds(store, "files", deep=True)
    assert [item.kind for item in store.fsck(deep=True).findings] == ["lake-differs"]


def test_a_row_is_traced_by_identity_and_time_to_its_file_and_every_sink(sound: Store):
    found = sound.trace("events", {"id": 7, "at": "2026-01-01T00:00:07.5Z"})
    (committed,) = found.committed
    assert Path(committed.file.removeprefix("file:")).is_file()
    assert committed.segment is not None
    assert committed.partition == "site=s1"
    assert {step.sink: step.state for step in committed.sinks} == dict.fromkeys(("files", "lines", "copy"), "delivered")
    assert all(committed.seq in step.chunk for step in committed.sinks)
    assert sound.trace("events", row(7)).committed == found.committed, "by the whole row"
    assert sound.trace("events", {"price": "7.25"}).committed == found.committed
    assert not sound.trace("events", {"id": 700}).known


def test_a_sound_store_has_nothing_to_find(sound: Store):
    report = sound.fsck(deep=True)
    assert report.findings == ()


def test_a_block_left_by_a_crash_is_settled_by_a_repair(store: Store):
    store.capture("events", [row(30)])
    with crash_at("flush.appended"):
        store.flush("events")
    assert [item.kind for item in store.fsck().findings] == ["block-undecided"]
    report = store.fsck(repair=True, deep=True)
    assert report.sound
    assert len(store.trace("events", {"id": 30}).committed) == 1


def test_a_missing_data_file_is_found(sound: Store):
    file = Path(sound.trace("events", {"id": 7}).committed[0].file.removeprefix("file:"))
    away = file.rename(file.with_suffix(".away"))
    assert [item.kind for item in sound.fsck().findings] == ["file-missing"]
    assert "file-missing" in kinds(sound, "files")
    away.rename(file)


def test_a_table_that_was_rolled_back_is_found(store: Store):
    catalog = store.engine.lake.catalog.name
    state = store.engine.lake.load("events_g1")
    store.spark.sql(
        f"CALL `{catalog}`.system.rollback_to_snapshot('datasets.events_g1', {state.lineage[1].id})"
    ).collect()
    assert [item.kind for item in store.fsck().findings] == ["table-rolled-back"]


def test_a_new_process_audits_a_table_and_reads_it_by_sql(sound: Store):
    """Each is the first thing that the process asks of Spark."""
    script = (
        "import sys, floodmark\n"
        "with floodmark.open(sys.argv[1]) as store:\n"
        "    print('found', len(store.audit('copy').findings))\n"
        "    for row in store.sql(f'SELECT count(*) FROM {sys.argv[2]}').collect(): print('counted', row[0])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(sound.path), target(sound)],
        check=False,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.stdout.split() == ["found", "0", "counted", "20"], done.stderr[-2000:]


def test_a_query_sees_the_catalogs_of_the_settings(sound: Store, tmp_path: Path):
    """Also one that nothing was delivered to before; and one that cannot be reached disturbs only who asks for it."""
    name = f"fresh_{uuid.uuid4().hex[:8]}"
    with (sound.path / "floodmark.toml").open("a") as settings:
        settings.write(f'\n[catalogs.{name}]\ntype = "sql"\nuri = "sqlite:///{tmp_path}/fresh.db"\n')
        settings.write(f'warehouse = "{(tmp_path / "fresh").as_uri()}"\n')
        settings.write('\n[catalogs.far]\ntype = "rest"\nuri = "env:FLOODMARK_TEST_NOT_SET"\n')
    with open_store(sound.path, spark=sound.spark) as opened:
        assert opened.sql(f"SHOW NAMESPACES IN {name}").collect() == []
        assert opened.sql("SELECT count(*) FROM events").collect()[0][0] == 20
        with pytest.raises(InvalidSetting, match="FLOODMARK_TEST_NOT_SET"):
            opened.sql("SELECT * FROM far.n.t")


def test_a_dry_run_of_an_export_asks_nothing_of_spark(store: Store, tmp_path: Path):
    store.add_sink("more", "blob", url=(tmp_path / "more").as_uri(), chunk_rows=3)
    store.capture("events", [row(21), row(22), row(21), row(23), row(25)])  # one number is left free
    store.flush("events")

    def started() -> Any:
        raise AssertionError("Spark was started")

    lake = SparkLake(store.engine.lake.catalog, started)
    with open_store(store.path, lake=lake) as opened:
        forecast = opened.forecast_export("more")
    jobs = store.engine.lake.jobs
    assert store.forecast_export("more") == forecast
    assert store.engine.lake.jobs == jobs
    assert sum(item.rows for item in forecast) == 24
    assert store.export("more").rows == 24
