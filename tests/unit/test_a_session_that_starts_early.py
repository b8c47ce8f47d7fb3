"""A session may start before it is needed: once, in a thread of its own, and never where an application has one."""

from __future__ import annotations

import sys
import threading
import types
from typing import Any

import pytest

from floodmark.lake import spark_reading
from floodmark.lake.spark_reading import SparkReader
from waiting import wait_until


class Session:
    conf = types.SimpleNamespace(set=lambda *_: None)


class Starts:
    """Counts the starts; the first ones may fail."""

    def __init__(self, *, failures: int = 0) -> None:
        self.threads: list[str] = []
        self._failures = failures

    def __call__(self) -> Any:
        self.threads.append(threading.current_thread().name)
        if len(self.threads) <= self._failures:
            raise RuntimeError("no Java")
        return Session()


def reader(starts: Starts) -> SparkReader:
    catalog: Any = types.SimpleNamespace(attach=lambda _: None)
    return SparkReader(catalog, starts)


@pytest.fixture
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "pyspark", raising=False)


@pytest.mark.usefixtures("no_spark")
def test_it_starts_once_and_beside_the_caller() -> None:
    starts = Starts()
    lake = reader(starts)
    lake.prepare()
    lake.prepare()
    session = lake.spark
    wait_until(lambda: starts.threads)
    assert lake.spark is session
    assert len(starts.threads) == 1


@pytest.mark.usefixtures("no_spark")
def test_a_start_that_failed_is_tried_again_by_who_needs_it() -> None:
    starts = Starts(failures=2)
    lake = reader(starts)
    lake.prepare()
    wait_until(lambda: starts.threads)
    with pytest.raises(RuntimeError, match="no Java"):
        _ = lake.spark
    assert isinstance(lake.spark, Session)


def test_where_an_application_uses_spark_nothing_starts_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", sys.modules.get("pyspark") or types.ModuleType("pyspark"))
    made: list[Any] = []
    monkeypatch.setattr(threading, "Thread", lambda **options: made.append(options))
    reader(Starts()).prepare()
    assert made == []


class Connected:
    """A session of a Spark Connect server."""

    __module__ = "pyspark.sql.connect.session"

    def __init__(self, answer: Exception | None) -> None:
        self.answer, self.is_stopped = answer, False
        self.conf = types.SimpleNamespace(set=lambda *_: None, get=self._get)

    def _get(self, _: str) -> str:
        if self.answer is not None:
            raise self.answer
        return "UTC"

    def stop(self) -> None:
        self.is_stopped = True


@pytest.mark.parametrize(
    ("answer", "idle", "replaced"),
    [
        (RuntimeError("[INVALID_HANDLE.SESSION_CLOSED] The handle is invalid."), True, True),
        (RuntimeError("[INVALID_HANDLE.SESSION_CLOSED] The handle is invalid."), False, False),
        (RuntimeError("failed to connect to all addresses"), True, False),
        (None, True, False),
    ],
)
def test_a_session_that_its_server_has_closed_is_replaced(
    monkeypatch: pytest.MonkeyPatch, answer: Exception | None, idle: bool, replaced: bool
) -> None:
    """A server closes what was not used for an hour; it is asked only where nothing was done for a while."""
    monkeypatch.setattr(spark_reading, "IDLE_SECONDS", -1.0 if idle else 3600.0)
    made = [Connected(answer), Connected(None)]
    lake = reader(lambda: made.pop(0))  # type: ignore[arg-type, return-value]
    first = lake.spark
    assert (lake.spark is not first) == replaced
    assert first.is_stopped == replaced


def test_a_session_that_knows_that_it_is_closed_is_replaced_at_once() -> None:
    made = [Connected(None), Connected(None)]
    lake = reader(lambda: made.pop(0))  # type: ignore[arg-type, return-value]
    first = lake.spark
    first.stop()
    assert lake.spark is not first
