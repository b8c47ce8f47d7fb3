"""A store whose Spark is a Spark Connect server: no JVM in its own process, executors that are other processes. Its
records are in PostgreSQL, its tables behind a REST catalog.

A Connect client sends a command again when the server does not know its operation: every command may happen twice.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from store_process import end_session, everything_twice, sent_twice
from topologies import Elsewhere, in_soak_only

from postgres import PostgresServer, postgres_server  # noqa: F401 - a fixture
from rest import RestCatalog, rest_catalog  # noqa: F401 - a fixture
from s3 import S3Server
from spark_cluster import ConnectServer
from waiting import wait_until

pytestmark = pytest.mark.spark
READ = "task.segments_read"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectServer]:
    made = ConnectServer(tmp_path_factory.mktemp("connect"), tmp_path_factory.mktemp("stores"))
    yield made
    made.kill()


@pytest.fixture(scope="module")
def store(
    server: ConnectServer,
    postgres_server: PostgresServer,  # noqa: F811
    rest_catalog: RestCatalog,  # noqa: F811
    s3_server: S3Server,
) -> Iterator[Elsewhere]:
    made = Elsewhere(
        server.executors.stores,
        postgres=postgres_server,
        s3=s3_server,
        spark={"remote": server.remote},
        lake={"type": "rest", "uri": rest_catalog.uri},
        prepared=everything_twice,
    )
    yield made
    made.close()


def test_every_row_arrives_once_although_every_command_is_executed_twice(
    server: ConnectServer, store: Elsewhere
) -> None:
    store.capture(3)
    store.flush()
    store.compact()
    assert {"query", "sql_command", "write_operation_v2"} <= set(store.process.do(sent_twice))
    store.run()
    store.check()
    assert store.process.jvms == []
    assert len(server.executors.ids) == 2
    assert server.executors.noted == [], "a task opened a control database"


@in_soak_only
def test_a_session_that_the_server_has_forgotten_is_replaced(store: Elsewhere) -> None:
    store.lose_watermarks()
    store.reopen()
    store.capture(3)
    assert store.flush() == 3
    store.process.do(end_session)
    store.capture(3)
    assert store.flush() == 3


@in_soak_only
def test_a_server_that_dies_in_a_flush_and_comes_back_commits_every_row_once(
    server: ConnectServer, store: Elsewhere
) -> None:
    server.executors.strike(READ, "wait for another attempt")
    store.capture(7)
    store.process.begin("flush", "events")
    wait_until((server.executors.strikes / f"{READ}.waiting").exists)
    server.kill()
    (server.executors.strikes / f"{READ}.other").touch()
    server.start()
    store.process.answer()
    store.check()
