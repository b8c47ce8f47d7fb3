"""Two real processes of one store forward the same rows at once, to one hub of real processes."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from stores import make_store, rows_of, said_by, start_script
from tests.chaos.hubs import HubMember, answers

from floodmark.store import Store
from waiting import wait_until

ROUNDS = 3
ROWS = 15
NAMES = ("left", "right")
WAIT_SECONDS_MAX = 200


def commit(store: Store, *, round: int) -> None:
    store.capture("events", [{"id": f"{round}-{row}", "site": "here"} for row in range(ROWS)])
    store.flush("events")


@pytest.fixture
def central(spark: Any, tmp_path: Path) -> Iterator[Store]:
    with make_store(tmp_path / "central", spark) as store:
        yield store


@pytest.fixture
def hub(central: Store, tmp_path: Path) -> Iterator[HubMember]:
    made = HubMember(central.path, folder=tmp_path, seed=0, began=time.monotonic())
    made.step(trouble=False)
    wait_until(lambda: answers(made.port), seconds_max=WAIT_SECONDS_MAX)
    yield made
    made.close()


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_two_processes_that_forward_one_store_at_once_bring_every_row_once(
    spark: Any, tmp_path: Path, central: Store, hub: HubMember
) -> None:
    """D1, D4, H1, H2: one row is one chunk here, so both send the same chunks all the time."""
    edge = make_store(tmp_path / "edge", spark)
    edge.add_sink("central", "forward", url=hub.url, chunk_rows=1, concurrency=1)
    meeting = tmp_path / "meeting"
    meeting.mkdir()
    commit(edge, round=0)
    processes = [
        start_script(edge.path, name, "forwarding_process.py", name, str(meeting), str(ROUNDS), listens=True)
        for name in NAMES
    ]

    def story() -> str:
        return "\n".join(path.read_text(errors="replace")[-2000:] for path in sorted(tmp_path.glob("*.log")))

    try:
        for round in range(ROUNDS):
            if round:
                commit(edge, round=round)
            ready = [meeting / f"{name}-{round}.ready" for name in NAMES]
            wait_until(
                lambda ready=ready: all(path.exists() for path in ready), seconds_max=WAIT_SECONDS_MAX, story=story
            )
            for process in processes:
                assert process.stdin is not None
                process.stdin.write(b"go\n")
                process.stdin.flush()
        for name, process in zip(NAMES, processes, strict=True):
            assert process.wait(WAIT_SECONDS_MAX) == 0, said_by(edge.path, name).read_text()[-3000:]
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    told = [[json.loads((meeting / f"{name}-{n}.json").read_text()) for name in NAMES] for n in range(ROUNDS)]
    together = [max(one["began"] for one in pair) < min(one["ended"] for one in pair) for pair in told]
    assert any(together), told

    assert edge.export("central").errors == {}
    central.flush("events")
    assert rows_of(central) == rows_of(edge) == [f"{round}-{row}" for round in range(ROUNDS) for row in range(ROWS)]
    assert sum(one["rows"] for pair in told for one in pair) <= ROUNDS * ROWS
    assert edge.audit("central").sound
    edge.close()
