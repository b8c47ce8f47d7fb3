"""Retention and purge on real Spark and Iceberg: rows and bytes go, flush and delivery go on."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from floodmark.store import Store, init, open_store

pytestmark = pytest.mark.spark
SCHEMA = {"id": "long", "who": "string", "site": "string", "at": "timestamp"}
FORGET = "somebody to forget"


@pytest.fixture
def store(spark: Any, tmp_path: Path):
    init(tmp_path / "store").close()
    with open_store(tmp_path / "store", spark=spark) as opened:
        opened.add_dataset("events", identity=["id"], event_time="at", partition_by=["site"], schema=SCHEMA)
        opened.add_sink("out", "blob", url=(tmp_path / "out").as_uri(), chunk_rows=10)
        yield opened


def row(id: int, *, days: int = 0, who: str = "ann") -> dict[str, Any]:
    at = datetime.now(UTC) - timedelta(days=days)
    return {"id": id, "who": who, "site": "ab"[id % 2], "at": at.replace(hour=12, minute=0, second=0, microsecond=0)}


def ids(store: Store) -> list[int]:
    return sorted(item["id"] for batch in store.read_since("events") for item in batch.table.to_pylist())


def holding(store: Store) -> list[Path]:
    return [path for path in store.path.rglob("*") if path.is_file() and _holds(path)]


def _holds(path: Path) -> bool:
    content = str(pq.read_table(path).to_pylist()) if path.suffix == ".parquet" else ""
    return FORGET in content or FORGET.encode() in path.read_bytes()


def test_old_rows_and_their_bytes_go_once_the_sink_has_them(store: Store) -> None:
    # Texts that do not compress: else what a commit adds of metadata is more than a few rows' room.
    old = [row(id, days=40, who=secrets.token_hex(2000)) for id in range(200)]
    store.capture("events", old + [row(id) for id in range(200, 210)])
    store.flush("events")
    held = store.retain("events", older_than="30d")
    assert (held.rows, [item.sink for item in held.held_back_by]) == (0, ["out"])
    store.export("out")
    report = store.retain("events", older_than="30d")
    assert report.rows == 200
    assert report.bytes_freed > 200 * 1000
    assert ids(store) == list(range(200, 210))
    flushed = store.capture("events", [row(1, days=40), row(300)]) and store.flush("events")
    assert (flushed.rows, flushed.expired) == (1, 1)
    assert store.export("out").rows == 1
    assert store.export("out").rows == 0


def test_purged_rows_are_in_no_file_of_the_store_and_do_not_come_back(store: Store) -> None:
    gone = [row(id, who=FORGET) for id in (7, 8)]
    store.capture("events", [row(id) for id in range(5)] + gone[:1])
    store.flush("events")
    store.export("out")
    store.capture("events", pa.Table.from_pylist([row(20), gone[1]]))
    assert holding(store)
    report = store.purge("events", f"who = '{FORGET}'")
    assert (report.rows, report.spool_rows, report.identities) == (1, 1, 2)
    assert [(item.sink, item.rows) for item in report.already_delivered] == [("out", 1)]
    assert holding(store) == []
    store.capture("events", [*gone, row(30)])
    flushed = store.flush("events")
    assert (flushed.rows, flushed.expired) == (2, 2)
    assert ids(store) == [0, 1, 2, 3, 4, 20, 30]
    assert store.export("out").rows == 2
