"""A store on a standalone Spark cluster: records in PostgreSQL, tables and segments in a bucket, executors that are
processes on other hosts and share nothing with the driver but the bucket.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from store_process import use_python
from topologies import Elsewhere, in_soak_only

from floodmark.errors import EnvironmentProblem
from postgres import PostgresServer, postgres_server  # noqa: F401 - a fixture
from s3 import S3Server
from spark_cluster import EXECUTORS, SMALL_JOBS, Executors, children, may_hide, ports, standalone
from waiting import wait_until

pytestmark = pytest.mark.spark
READ, DONE = "task.segments_read", "task.range_done"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Executors]]:
    """A master and two workers, and the address of the master."""
    stores = tmp_path_factory.mktemp("stores")
    with standalone(tmp_path_factory.mktemp("cluster"), stores) as made:
        yield made


@pytest.fixture(scope="module")
def executors(cluster: tuple[str, Executors]) -> Executors:
    return cluster[1]


@pytest.fixture(scope="module")
def store(
    cluster: tuple[str, Executors],
    executors: Executors,
    postgres_server: PostgresServer,  # noqa: F811
    s3_server: S3Server,
) -> Iterator[Elsewhere]:
    spark = {"master": cluster[0], "driver_memory": "512m", "settings": {**EXECUTORS, **SMALL_JOBS}}
    made = Elsewhere(executors.stores, postgres=postgres_server, s3=s3_server, spark=spark)
    yield made
    made.close()


def test_every_row_arrives_once_through_executors_that_see_neither_disk_nor_database(
    executors: Executors,
    store: Elsewhere,
    postgres_server: PostgresServer,  # noqa: F811
) -> None:
    store.run()
    store.check(deep=True)

    assert len(executors.ids) == 2
    assert executors.noted == [], "a task opened a control database"
    there = [pid for executor in executors.ids for pid in (executor, *children(executor))]
    assert not [pid for pid in there if postgres_server.port in ports(pid)]
    assert any(postgres_server.port in ports(pid) for pid in store.process.jvms), "the driver's JVM reads the catalog"
    if may_hide(executors.stores):
        assert list(executors.stores.iterdir())
        for pid in executors.ids:
            assert list(Path(f"/proc/{pid}/root{executors.stores}").iterdir()) == []


def test_executors_and_tasks_that_die_in_a_flush_and_in_an_export_write_nothing_twice(
    executors: Executors, store: Elsewhere
) -> None:
    """A task dies after its effect: the object is stored, the rows of the segment are read and partly written."""
    for deed in ("kill the executor", "kill the task"):
        executors.strike(READ, deed)
        rows = store.capture(8)
        assert store.flush() == len(rows)
        assert executors.struck(READ), deed
        executors.strike(DONE, deed)
        assert store.export("files") == {"files": len(rows)}
        assert executors.struck(DONE), deed
    store.check_rows("files")


@in_soak_only
def test_a_task_that_runs_on_two_hosts_at_once_writes_nothing_twice(executors: Executors, store: Elsewhere) -> None:
    """The first attempt goes on when the second has got as far: both of them write."""
    executors.strike(READ, "wait for another attempt")
    store.capture(5)
    assert store.flush() == 5
    executors.strike(DONE, "wait for another attempt")
    store.export("files")
    assert all((executors.strikes / f"{point}.other").exists() for point in (READ, DONE))
    store.check_rows("files")


@in_soak_only
def test_executors_without_floodmark_are_told_by_name_and_nothing_is_committed(
    executors: Executors, store: Elsewhere
) -> None:
    bare = executors.folder / "python-without-floodmark"
    bare.write_text(f'#!/bin/sh\nWITHOUT_FLOODMARK=1 exec {sys.executable} "$@"\n')
    bare.chmod(0o755)
    rows = store.capture(3)
    before = store.process.do(use_python, str(bare))
    with pytest.raises(EnvironmentProblem, match="does not have the module 'floodmark'") as caught:
        store.flush()
    assert "PYSPARK_PYTHON" in str(caught.value.hint)
    told = {one.name: one for one in store.process.call("doctor", spark=True).checks}["spark"]
    assert (told.state, "'floodmark'" in told.what) == ("wrong", True)
    store.process.do(use_python, before)
    assert store.flush() == len(rows)
    told = {one.name: one for one in store.process.call("doctor", spark=True).checks}["spark"]
    assert told.state == "ok"
    assert "with floodmark" in told.what


@in_soak_only
def test_another_driver_finishes_what_a_killed_one_began_while_its_tasks_were_running(
    executors: Executors, store: Elsewhere
) -> None:
    store.lose_watermarks()
    executors.strike(READ, "wait for another attempt")
    store.capture(7)
    store.process.begin("flush", "events")
    wait_until((executors.strikes / f"{READ}.waiting").exists)
    store.reopen()
    (executors.strikes / f"{READ}.other").touch()
    store.check()
