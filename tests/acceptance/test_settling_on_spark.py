"""Compaction on real Spark asks a dataset's settle function again, and whatever that answers nothing is lost."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from acceptance.stores import make_store
from floodmark.store import Store, open_store
from floodmark.testing import crash_at, kill_store

pytestmark = pytest.mark.spark
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
known: dict[str, str] = {}
"""What a provisional key turns out to be."""
mood: list[str] = []
"""How the function misbehaves, if it does."""


def settle(rows: Any) -> Any:
    from pyspark.sql import functions as F

    if mood == ["fails"]:
        raise OSError("not today")
    if mood == ["nonsense"]:
        return "rows"
    key = F.col("key")
    for old, new in known.items():
        key = F.when(F.col("key") == old, new).otherwise(key)
    settled = rows.withColumn("key", key)
    return settled.union(settled) if mood == ["doubles"] else settled


@pytest.fixture
def store(tmp_path: Path, spark: Any) -> Any:
    known.clear()
    mood.clear()
    with make_store(
        tmp_path / "store",
        spark,
        identity=["key"],
        identity_null="keep",
        event_time="at",
        partition_by=[],
        schema={"key": "string", "at": "timestamp"},
        settle=f"{__name__}:settle",
    ) as made:
        yield made


def captured(store: Store, *keys: str | None) -> None:
    store.capture("events", [{"key": key, "at": NOON} for key in keys])
    store.flush("events")


def keys(store: Store) -> list[str | None]:
    return [row["key"] for batch in store.read_since("events") for row in batch.table.to_pylist()]


def compacted(store: Store) -> Any:
    [report] = store.compact("events").datasets
    return report


def test_an_upgraded_identity_collapses_and_a_bad_answer_changes_nothing(store: Store) -> None:
    """B6, B7, B8: rows without an identity, and those that the function leaves alone, are never dropped."""
    captured(store, "a", None, "temporary 1", "b")
    captured(store, None, "temporary 2", "c")
    before = keys(store)

    known.update({"temporary 1": "final 1", "temporary 2": "a"})
    for wrong, said in (("fails", "not today"), ("nonsense", "instead of a DataFrame"), ("doubles", "copied one")):
        mood[:] = [wrong]
        report = compacted(store)
        assert (report.settled.changed, report.settled.collapsed) == (0, 0), wrong
        [problem] = report.problems
        assert said in problem
        assert keys(store) == before

    mood.clear()
    settled = compacted(store).settled
    assert (settled.changed, settled.collapsed, settled.dropped, settled.problem) == (1, 1, 0, None)
    assert keys(store) == ["a", None, "final 1", "b", None, "c"]
    captured(store, "final 1", "c", "d")
    assert keys(store) == ["a", None, "final 1", "b", None, "c", "d"]


def test_files_of_a_settlement_that_the_power_took_are_given_up_for_those_they_replaced(
    store: Store, spark: Any
) -> None:
    """U4: every row was on the disk before, and the function is asked again."""
    captured(store, "a", "temporary", "b")
    known.update({"temporary": "final"})
    written = set(store.path.rglob("*.parquet"))
    with crash_at("settle.committed"):
        store.compact("events")
    kill_store(store)
    new = set(store.path.rglob("*.parquet")) - written
    assert new
    for file in new:
        file.unlink()

    with open_store(store.path, spark=spark) as again:
        assert compacted(again).settled.changed == 1
        assert keys(again) == ["a", "final", "b"]
        captured(again, "final", "c")
        assert keys(again) == ["a", "final", "b", "c"]
