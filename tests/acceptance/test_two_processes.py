"""Two real processes with their own JVMs flush one dataset at once, while a third one compacts it."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from stores import check_history, make_store, rows_of, said_by, start_process

ROUNDS = 25
ROWS = 4
COMPACT_AFTER = 5


def ended(process: subprocess.Popen[bytes]) -> bool:
    try:
        process.wait(0.5)
    except subprocess.TimeoutExpired:
        return False
    return True


@pytest.mark.spark
@pytest.mark.timeout(400)
def test_two_processes_and_a_compaction_lose_and_double_nothing(spark: Any, tmp_path: Path) -> None:
    """I2, I8, U1: every row once, only appends and compactions in the history, commit order is number order."""
    store = make_store(tmp_path / "store", spark)
    store.capture("events", [{"id": "first", "site": "here"}])
    store.flush("events")
    processes = [start_process(store.path, name, rounds=ROUNDS, rows=ROWS) for name in ("left", "right")]
    # Every snapshot stays, so that the whole history can be looked at in the end.
    upkeep = replace(store.settings.upkeep, files_min=2, snapshots_keep=10_000)
    store.settings = replace(store.settings, upkeep=upkeep)
    try:
        compactions = compacted = 0
        failures: list[str] = []
        for process in processes:
            while not ended(process):
                commits = len(store._lake.load("events_g1").lineage)
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
    blocks = check_history(store)
    contested = sum(block.state == "void" for block in blocks)
    print(f"{len(blocks)} blocks, {contested} refused and numbered anew, {compactions} compactions, failed: {failures}")
    assert compactions > 0
    store.close()
