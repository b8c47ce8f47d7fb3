"""Two real processes with their own JVMs flush one dataset and deliver it at once, while a third one compacts it."""

from __future__ import annotations

import json
import subprocess
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from stores import check_history, make_store, rows_of, said_by, start_process

from floodmark.store import Store

ROUNDS = 6
ROWS = 4
COMPACT_AFTER = 3


def ended(process: subprocess.Popen[bytes]) -> bool:
    try:
        process.wait(0.5)
    except subprocess.TimeoutExpired:
        return False
    return True


def check_archive(store: Store, folder: Path) -> None:
    """Every row of the table is in one object, and each partition is in the order of its numbers."""
    assert store.export("archive").errors == {}
    assert store.export("archive").rows == 0
    objects = sorted(folder.glob("events/*/*.jsonl"), key=lambda path: (path.parent, int(path.stem.split("-")[0])))
    delivered: dict[str, list[str]] = defaultdict(list)
    for path in objects:
        delivered[path.parent.name] += [json.loads(line)["id"] for line in path.read_text().splitlines()]
    stored: dict[str, list[str]] = defaultdict(list)
    for batch in store.read_since("events"):
        for row in batch.table.to_pylist():
            stored[f"site={row['site']}"].append(row["id"])
    assert delivered == stored
    assert store.audit("archive", deep=True).sound


@pytest.mark.spark
@pytest.mark.timeout(400)
def test_two_processes_and_a_compaction_lose_and_double_nothing(spark: Any, tmp_path: Path) -> None:
    """I2, I8, U1, D1, D4: every row once, in the table and in the archive, and in one order."""
    store = make_store(tmp_path / "store", spark)
    store.add_sink("archive", "blob", url=(tmp_path / "archive").as_uri(), format="jsonl", chunk_rows=3)
    store.capture("events", [{"id": "first", "site": "here"}])
    store.flush("events")
    processes = [
        start_process(store.path, name, rounds=ROUNDS, rows=ROWS, sinks=("archive",)) for name in ("left", "right")
    ]
    # Every snapshot stays, so that the whole history can be looked at in the end.
    upkeep = replace(store.settings.upkeep, files_min=2, snapshots_keep=10_000)
    store.engine.settings = replace(store.settings, upkeep=upkeep)
    try:
        compactions = compacted = 0
        failures: list[str] = []
        for process in processes:
            while not ended(process):
                commits = len(store.engine.lake.load("events_g1").lineage)
                if commits - compacted < COMPACT_AFTER:
                    continue
                compacted = commits
                report = store.compact("events")
                compactions += sum(len(item.compacted) for item in report.datasets)
                # A commit got in its way too often: the next run tries again.
                failures += [text for item in report.datasets for text in (*item.problems, *map(str, item.failed))]
        for process in processes:
            assert process.wait() == 0, said_by(store.path, process.args[3]).read_text()[-3000:]
    finally:
        for process in processes:
            process.kill()
    store.flush("events")
    wanted = [f"{name}-{round}-{row}" for name in ("left", "right") for round in range(ROUNDS) for row in range(ROWS)]
    assert sorted(rows_of(store)) == sorted([*wanted, "first"])
    assert store.read("events").count() == len(wanted) + 1
    check_archive(store, tmp_path / "archive")
    blocks = check_history(store)
    contested = sum(block.state == "void" for block in blocks)
    print(f"{len(blocks)} blocks, {contested} refused and numbered anew, {compactions} compactions, failed: {failures}")
    assert compactions > 0
    store.close()
