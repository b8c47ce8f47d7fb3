"""A real process is killed (SIGKILL) in the middle of a flush on Spark; another one finishes its work."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from stores import check_history, make_store, rows_of, said_by, start_process

from floodmark.store import open_store

POINTS = {"flush.appending": False, "flush.synced": True}
"""Before its commit has landed, and behind it. The scenarios crash at every point on the lake in memory; `python -m
tests.chaos` kills a process at each of them."""


@pytest.mark.spark
@pytest.mark.parametrize("point", POINTS)
def test_another_process_finishes_what_a_killed_one_began(spark: Any, tmp_path: Path, point: str) -> None:
    """I4, I7: with a compaction and new captures in between, every acknowledged row is there once."""
    store = make_store(tmp_path / "store", spark)
    for round in range(2):
        store.capture("events", [{"id": f"before-{round}", "site": "here"}])
        store.flush("events")
    killed = start_process(store.path, "killed", rounds=1, rows=3, fault=point)
    assert killed.wait(180) == -signal.SIGKILL, said_by(store.path, "killed").read_text()[-3000:]
    # Its commit is seen at once by a session that has read the table before: nothing is cached.
    table = store.spark.table(store.engine.lake.catalog.spark_name("events_g1"))
    assert table.count() == (5 if POINTS[point] else 2)
    assert len(rows_of(store)) == 2, "nobody has recorded it yet"
    store.spark.sql(
        f"CALL `{store.engine.lake.catalog.name}`.system.rewrite_data_files("
        "table => 'datasets.events_g1', options => map('rewrite-all', 'true'))"
    ).collect()
    store.capture("events", [{"id": "after", "site": "here"}])
    store.flush("events")
    wanted = ["before-0", "before-1", "killed-0-0", "killed-0-1", "killed-0-2", "after"]
    assert sorted(rows_of(store)) == sorted(wanted)
    assert sorted(row["id"] for row in store.read("events").collect()) == sorted(wanted)
    store.close()
    with open_store(store.path, spark=spark) as again:
        assert again.flush("events").rows == 0
        check_history(again)
