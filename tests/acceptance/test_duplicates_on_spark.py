"""Duplicates are found where they can be, and not looked for where they cannot."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from acceptance.stores import make_store

pytestmark = pytest.mark.spark
START = datetime(2026, 1, 1, tzinfo=UTC)


def rows(first: int, last: int) -> pa.Table:
    ids = list(range(first, last))
    at = [START + timedelta(minutes=id) for id in ids]
    return pa.table({"id": ids, "at": pa.array(at, pa.timestamp("us", tz="UTC"))})


def test_by_metadata_by_broadcast_and_by_shuffle(tmp_path: Path, spark, monkeypatch) -> None:
    from floodmark.lake import spark as lake_module

    def flushed(*parts: pa.Table) -> tuple[int, int, int]:
        """Rows, duplicates, and how many jobs they took."""
        for part in parts:
            store.capture("events", part)
        before = store.engine.lake.jobs
        report = store.flush("events")
        return report.rows, report.duplicates, store.engine.lake.jobs - before

    with make_store(
        tmp_path / "store", spark, identity=["id"], event_time="at", partition_by=[], schema={"id": "long"}
    ) as store:
        *_, first = flushed(rows(0, 50), rows(50, 100))
        *_, apart = flushed(rows(100, 150), rows(150, 200))
        assert (first, apart) == (1, 1), "only the append: the batch is distinct, and nothing of its time is stored"
        assert flushed(rows(190, 210))[:2] == (10, 10)
        assert flushed(rows(210, 230), rows(220, 240))[:2] == (30, 10), "twice in the batch"
        assert flushed(pa.concat_tables([rows(240, 245), rows(240, 245)]))[:2] == (5, 5), "twice in a segment"
        untimed = pa.table({"id": [1000, 1001], "at": pa.array([None, None], pa.timestamp("us", tz="UTC"))})
        assert flushed(untimed)[:2] == (2, 0)
        assert flushed(untimed)[:2] == (0, 2), "rows without an event time are compared with such"
        monkeypatch.setattr(lake_module, "FEW_ROWS", 0)
        assert flushed(rows(200, 260))[:2] == (15, 45)
        found = [row["id"] for batch in store.read_since("events") for row in batch.table.to_pylist()]
        assert sorted(found) == [*range(260), 1000, 1001]
