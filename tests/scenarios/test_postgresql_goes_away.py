"""A control database on PostgreSQL whose connection, or whole server, is lost at any message: each row once.

A COMMIT whose answer is lost may have happened. What is repeated then reads first what is there (PROTOCOL: control
transactions).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from floodmark.errors import OutcomeUnknown, Retryable
from floodmark.maintenance.fold import Kept, fold_dataset
from floodmark.store import Store, init, open_store
from floodmark.testing import ManualClock, MemoryLake
from postgres import PostgresServer, postgres_server  # noqa: F401 - a fixture
from proxy import Proxy
from waiting import wait_until

pytestmark = pytest.mark.postgres
DATASET, SINK = "rows", "files"
TRIES_MAX = 5


class Line:
    """A store behind the proxy. Each step brings one row to its destination, however often it takes."""

    def __init__(self, server: PostgresServer, root: Path) -> None:
        # What a server that is killed has answered must be there when it is back.
        url = server.create_schema() + "%20-csynchronous_commit%3Don"
        self.proxy = Proxy(server.port).start()
        self.url = url.replace(f":{server.port}/", f":{self.proxy.port}/")
        self.root, self.lake, self.clock = root, MemoryLake(), ManualClock()
        self.sent: list[int] = []
        self.store = init(root / "store", control=self.url, lake=self.lake, clock=self.clock)
        self.store.add_dataset(DATASET, ["id"], schema={"id": "long"})
        self.store.add_sink(SINK, "blob", url=(root / "out").as_uri())

    def step(self) -> None:
        self.sent.append(len(self.sent))
        self.until_done(lambda: self.store.capture(DATASET, [{"id": self.sent[-1]}]))
        self.until_done(lambda: self.store.flush(DATASET))
        self.until_done(self.exported)

    def exported(self) -> None:
        report = self.store.export(SINK)
        if report.errors:
            raise Retryable(str(report.errors))

    def until_done(self, work: Callable[[], Any]) -> None:
        for _ in range(TRIES_MAX):
            try:
                work()
            except (Retryable, OutcomeUnknown):
                self.again()
            else:
                return
        pytest.fail(f"not done after {TRIES_MAX} tries")

    def again(self) -> None:
        self.store.close()
        wait_until(self._is_open_again)

    def _is_open_again(self) -> bool:
        try:
            self.store = open_store(self.root / "store", lake=self.lake, clock=self.clock)
        except Retryable:  # the server is not back yet
            return False
        return True

    def check(self) -> None:
        self.proxy.disarm()
        self.again()
        read = [row["id"] for batch in self.store.read_since(DATASET) for row in batch.table.to_pylist()]
        there = [
            n for path in (self.root / "out").glob("rows/*/*.parquet") for n in pq.read_table(path)["id"].to_pylist()
        ]
        assert sorted(read) == sorted(set(self.sent))
        assert sorted(there) == sorted(set(self.sent))
        assert self.store.fsck(deep=True).findings == ()
        assert self.store.audit(SINK, deep=True).sound

    def close(self) -> None:
        self.proxy.disarm()
        self.store.close()
        self.proxy.stop()


@pytest.fixture
def line(postgres_server: PostgresServer, tmp_path: Path) -> Iterator[Line]:  # noqa: F811
    made = Line(postgres_server, tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize("fate", ["before", "after"])
def test_a_connection_that_is_lost_at_any_commit_of_a_row_s_way_loses_and_doubles_nothing(line: Line, fate: str):
    """I5: lost before the server has COMMIT, or after it has answered it to nobody."""
    line.step()
    commits = 0
    for at in itertools.count(1):
        line.proxy.arm(at, fate)
        line.step()
        if not line.proxy.tripped:
            break
        commits = at
    assert commits > 5
    line.check()


def test_a_connection_that_is_lost_in_the_middle_of_any_transaction_loses_and_doubles_nothing(line: Line):
    line.step()
    messages = 0
    for at in itertools.count(1, 7):
        line.proxy.arm(at, "before", only=b"")
        line.step()
        if not line.proxy.tripped:
            break
        messages = at
    assert messages > 30
    line.check()


@pytest.mark.parametrize("fate", ["before", "after"])
def test_a_server_that_is_killed_at_a_commit_and_comes_back_has_every_row_once(
    line: Line,
    postgres_server: PostgresServer,  # noqa: F811
    fate: str,
):
    """As a failover does: every connection is gone, and what was answered is there."""
    line.step()
    for at in (1, 4, 7):
        line.proxy.arm(at, "before", action=None if fate == "after" else postgres_server.restart)
        line.step()
        if fate == "after":
            postgres_server.restart()
    line.check()


def test_folding_through_lost_answers_folds_once(line: Line):
    """U35"""
    for _ in range(12):
        line.step()
    kept = Kept(blocks=2, intents=2)
    line.clock.advance(86_400 * 30)
    for at in itertools.count(1):
        line.proxy.arm(at, "after")
        line.until_done(lambda: fold_dataset(line.store.engine, DATASET, kept=kept))
        if not line.proxy.tripped:
            break
    line.check()
    found = line.store.engine.database.read(lambda c: c.exec_driver_sql("SELECT count(*) FROM blocks").scalar_one())
    assert found == 3


def test_several_flushers_and_exporters_at_once_bring_every_row_once(line: Line):
    """Serial transactions on a server: whoever loses a race looks again."""
    from concurrent.futures import ThreadPoolExecutor

    others: list[Store] = [open_store(line.root / "store", lake=line.lake, clock=line.clock) for _ in range(3)]

    def work(store: Store, first: int) -> None:
        for number in range(first, first + 5):
            store.capture(DATASET, [{"id": number}])
            for task in (lambda: store.flush(DATASET), lambda: store.export(SINK)):
                for _ in range(TRIES_MAX):
                    try:
                        task()
                    except Retryable:
                        continue
                    break

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(work, others, [100, 200, 300]))
    for store in others:
        store.close()
    line.sent = [*range(100, 105), *range(200, 205), *range(300, 305)]
    line.until_done(lambda: line.store.flush(DATASET))
    line.until_done(line.exported)
    line.check()
