"""A rebuild on real Spark and Iceberg, while two other processes flush: the table is elsewhere, and nobody noticed."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import pytest
from stores import make_store, rows_of, said_by, start_process

from floodmark import faults
from floodmark.maintenance.rebuild import remove_retired

pytestmark = pytest.mark.spark
ROUNDS = 4
ROWS = 3


@pytest.mark.timeout(400)
def test_a_dataset_moves_to_another_place_while_two_processes_flush(spark: Any, tmp_path: Path) -> None:
    """U20, U22, U23: every row once with its number, the location is another one, cursors and watermarks stand."""
    store = make_store(tmp_path / "store", spark)
    store.add_sink("out", "blob", url=(tmp_path / "out").as_uri(), chunk_rows=10, format="jsonl")
    store.capture("events", [{"id": f"first-{row}", "site": "here"} for row in range(50)])
    store.flush("events")
    store.export("out")
    cursor = store.cursor("events")
    before = {row["id"]: at.seq for batch in store.read_since("events") for row, at in batch.pairs()}
    processes = [start_process(store.path, name, rounds=ROUNDS, rows=ROWS) for name in ("left", "right")]
    reports = []
    try:
        _until_one_has_committed(store, processes)
        reports.append(store.rebuild("events", warehouse=tmp_path / "else where", bucket_width=1024, format_version=3))
        reports.append(store.rebuild("events", sort=["site"]))
        for process in processes:
            assert process.wait() == 0, said_by(store.path, process.args[3]).read_text()[-3000:]
    finally:
        for process in processes:
            process.kill()
    store.flush("events")
    here = f"{tmp_path}/else where/datasets/events_g"
    assert [urlparse(report.location).path.startswith(here) for report in reports] == [True, True]
    assert reports[0].previous_location != reports[0].location != reports[1].location
    assert list((tmp_path / "else where").rglob("*.parquet"))
    wanted = [f"{name}-{round}-{row}" for name in ("left", "right") for round in range(ROUNDS) for row in range(ROWS)]
    assert sorted(rows_of(store)) == sorted([*wanted, *before])
    after = {row["id"]: at.seq for batch in store.read_since("events") for row, at in batch.pairs()}
    assert {id: seq for id, seq in after.items() if id in before} == before
    assert store.read("events").count() == len(after)
    assert sum(batch.table.num_rows for batch in store.read_since("events", cursor)) == len(wanted)
    assert store.export("out").rows == len(wanted)
    jobs = store.engine.lake.jobs
    assert (store.export("out").rows, store.engine.lake.jobs) == (0, jobs)
    metadata = store.engine.lake.catalog.table(store.datasets()[0].table_name).metadata
    assert (metadata.format_version, str(metadata.partition_specs[-1].fields[0].transform)) == (3, "truncate[1024]")
    assert store.fsck(deep=True).findings == ()
    store.close()


def _until_one_has_committed(store: Any, processes: list[Any]) -> None:
    while store.horizon("events") == 50 and any(process.poll() is None for process in processes):
        try:
            processes[0].wait(0.2)
        except Exception:
            continue


def test_what_retention_removes_meanwhile_goes_from_the_copy_and_retired_tables_go_with_their_files(
    spark: Any, tmp_path: Path
) -> None:
    store = make_store(tmp_path / "store", spark)
    store.capture("events", [{"id": str(row), "site": "here"} for row in range(20)])
    store.flush("events")
    faults.arm("rebuild.copied", faults.nth_time(1, lambda: store.retain("events", keep_rows=5)))
    report = store.rebuild("events")
    assert (report.rows, report.buckets_repaired) == (5, 1)
    assert rows_of(store) == [str(row) for row in range(15, 20)]
    home = Path(urlparse(report.previous_location).path)
    assert home.is_dir()
    assert remove_retired(store.engine, "events", grace=timedelta(0)) == (1,)
    assert not home.exists()
    assert rows_of(store) == [str(row) for row in range(15, 20)]
    store.close()
