"""A store in a process of its own, told step by step what to do: the driver of its Spark session, and killed as one."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from collections.abc import Callable
from multiprocessing.connection import Connection
from operator import methodcaller
from pathlib import Path
from typing import Any, TypeVar

import pytest

from floodmark.store import Store
from spark_cluster import children, words

Found = TypeVar("Found")
ANSWER_SECONDS_MAX = 300


class StoreProcess:
    """Runs functions of a store elsewhere. What they return, and what they raise, comes back."""

    def __init__(self, root: Path) -> None:
        context = multiprocessing.get_context("spawn")
        self._here, there = context.Pipe()
        self._process = context.Process(target=_serve, args=(str(root), there), daemon=True)
        self._process.start()
        there.close()

    @property
    def pid(self) -> int:
        return self._process.pid or 0

    @property
    def jvms(self) -> list[int]:
        """The JVMs that the process has started."""
        return [pid for pid in children(self.pid) if words(pid).partition(b"\0")[0].endswith(b"java")]

    def do(self, work: Callable[..., Found], *arguments: Any) -> Found:
        """Call a function of a module with the store; EOFError if the process dies of it."""
        self._here.send((work, arguments))
        failed, found = self.answer()
        if failed:
            raise found
        return found  # type: ignore[no-any-return]

    def answer(self) -> tuple[bool, Any]:
        """Whether what the process was told to do failed, and what came of it."""
        if not self._here.poll(ANSWER_SECONDS_MAX):
            pytest.fail(f"There was no answer within {ANSWER_SECONDS_MAX} s.")
        return self._here.recv()  # type: ignore[no-any-return]

    def call(self, method: str, *arguments: Any, **named: Any) -> Any:
        """Call a method of the store."""
        return self.do(methodcaller(method, *arguments, **named))

    def begin(self, method: str, *arguments: Any) -> None:
        """Call a method of the store, and do not wait for its answer."""
        self._here.send((methodcaller(method, *arguments), ()))

    def stop(self) -> None:
        self._process.kill()
        self._process.join(60)


def _serve(root: str, calls: Connection) -> None:
    for name in [name for name in os.environ if name.startswith("PYSPARK")]:
        del os.environ[name]  # of a session of the process that started this one
    from floodmark.store import open_store

    with open_store(root) as store:
        while True:
            try:
                work, arguments = calls.recv()
            except EOFError:
                return
            try:
                answer = (False, work(store, *arguments))
            except BaseException as error:
                answer = (True, error)
            try:
                calls.send(answer)
            except Exception as error:
                calls.send((True, RuntimeError(f"{answer[1]!r} cannot be sent: {error}")))


# ── what it is told to do ────────────────────────────────────────────────────────────────────────────────────────────


def die_at(_: Store, point: str) -> None:
    """The process is killed on reaching a fault point."""
    from floodmark import faults

    faults.arm(point, faults.kill_process)


def always_in_tasks(store: Store) -> None:
    """Let Spark's tasks do what few rows would not be worth."""
    from floodmark.delivery import channel

    channel.PARALLEL_ROWS_MIN = 1
    store.engine.lake.rows_here_max = 0  # type: ignore[attr-defined]


def rows_read(store: Store, dataset: str) -> list[dict[str, Any]]:
    """The rows of a dataset in their order, without Spark."""
    return [row for batch in store.read_since(dataset) for row in batch.table.to_pylist()]


def rows_by_spark(store: Store, dataset: str) -> list[dict[str, Any]]:
    return [row.asDict() for row in store.read(dataset).collect()]


def use_python(store: Store, program: str) -> str:
    """Let executors use another Python; which one it was."""
    context = store.spark.sparkContext
    before, context.pythonExec = context.pythonExec, program
    return str(before)


def expire_all_but_one(store: Store, dataset: str) -> None:
    from floodmark.read import view_of

    store.engine.lake.expire(view_of(store.engine, dataset).table, keep_snapshots=1)


def forget_deliveries(store: Store, sink: str) -> None:
    """Delete what the store has recorded of a sink's deliveries."""
    instance = next(item.instance for item in store.sinks() if item.name == sink)
    for statement in (
        f"DELETE FROM chunks WHERE intent IN (SELECT id FROM intents WHERE sink = '{instance}')",
        f"DELETE FROM intents WHERE sink = '{instance}'",
        f"DELETE FROM watermarks WHERE sink = '{instance}'",
    ):
        store.engine.database.transact(lambda c, statement=statement: c.exec_driver_sql(statement))


# ── over Spark Connect ───────────────────────────────────────────────────────────────────────────────────────────────

_sent: list[str] = []


def everything_twice(store: Store) -> None:
    """From now on everything that is sent to the server is executed twice there: the first answer was lost."""
    always_in_tasks(store)
    from pyspark.sql.connect.client import SparkConnectClient
    from pyspark.sql.connect.proto import ExecutePlanRequest

    once = SparkConnectClient._execute_and_fetch

    def twice(self: Any, request: ExecutePlanRequest, *arguments: Any, **named: Any) -> Any:
        plan = request.plan
        _sent.append(plan.command.WhichOneof("command_type") if plan.HasField("command") else "query")
        copy = ExecutePlanRequest()
        copy.CopyFrom(request)
        with contextlib.suppress(Exception):
            once(self, copy, *arguments, **named)
        return once(self, request, *arguments, **named)

    SparkConnectClient._execute_and_fetch = twice


def sent_twice(_: Store) -> list[str]:
    return sorted(set(_sent))


def end_session(store: Store) -> None:
    """The server forgets the session, as it does when it was not used for an hour."""
    from floodmark.lake import spark_reading

    spark_reading.IDLE_SECONDS = -1.0
    store.spark.client.release_session()
