"""Jobs of maintenance have a pool of their own in Spark's scheduler: a commit's task never waits for all of theirs."""

from __future__ import annotations

import contextlib
import types
from typing import Any

import pytest

from floodmark.lake import session as sessions
from floodmark.lake.session import beside_commits
from floodmark.lake.spark_maintenance import rewrite_files, rewrite_manifests
from floodmark.sequence import SequenceRange

POOL = "spark.scheduler.pool"


class Session:
    """Notes in which pool each statement runs."""

    def __init__(self) -> None:
        self._properties: dict[str, str | None] = {}
        self.sparkContext = types.SimpleNamespace(
            getLocalProperty=self._properties.get, setLocalProperty=self._properties.__setitem__
        )
        self.pools: list[str | None] = []

    @property
    def pool(self) -> str | None:
        return self._properties.get(POOL)

    def sql(self, _: str) -> Any:
        self.pools.append(self.pool)
        return types.SimpleNamespace(collect=list)


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Session:
    made = Session()
    monkeypatch.setattr(sessions, "_own", [made])
    return made


def test_a_thread_is_in_the_pool_only_while_it_maintains(session: Any) -> None:
    with beside_commits(session):
        assert session.pool == "maintenance"
    assert session.pool is None
    with pytest.raises(RuntimeError), beside_commits(session):
        raise RuntimeError("failed")
    assert session.pool is None


def test_the_pools_of_an_application_are_its_own_affair(session: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "_own", [])
    session.sparkContext.setLocalProperty(POOL, "theirs")
    with beside_commits(session):
        assert session.pool == "theirs"


def test_what_rewrites_files_and_manifests_runs_there(session: Session) -> None:
    lake: Any = types.SimpleNamespace(
        spark=session,
        action=contextlib.nullcontext,
        catalog=types.SimpleNamespace(name="c", namespace="n", table=lambda _: None),
    )
    rewrite_manifests(lake, "t")
    rewrite_files(lake, "t", within=SequenceRange(0, 9), file_bytes=1, one_file=True)
    assert session.pools == ["maintenance"] * 2
    assert session.pool is None


def test_a_session_of_ours_shares_its_tasks_fairly() -> None:
    assert sessions._SETTINGS["spark.scheduler.mode"] == "FAIR"
