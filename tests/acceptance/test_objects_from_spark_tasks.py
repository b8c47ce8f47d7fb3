"""Tasks of a real Spark session write a blob sink's objects, in a directory and on a real S3 server."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from stores import make_store

from floodmark.delivery import channel
from floodmark.delivery.sinks.blob import KIND
from floodmark.delivery.sinks.objects import ObjectPlace, place_of
from floodmark.store import Store
from floodmark.testing import crash_at

ROWS = 3_000
SCHEMA = {"id": "long", "site": "string", "at": "timestamp", "ratio": "double", "raw": "binary", "more": "json"}


@pytest.fixture
def store(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    # Few rows are delivered by this process itself; here a few must do for the tasks.
    monkeypatch.setattr(channel, "PARALLEL_ROWS_MIN", 1)
    with make_store(tmp_path / "store", spark, schema=SCHEMA) as made:
        made.capture("events", pa.Table.from_pylist([row(n) for n in range(ROWS)]))
        made.flush("events")
        yield made


def row(n: int) -> dict[str, Any]:
    return {
        "id": n,
        "site": ("a/b", "é", None)[n % 3],
        "at": datetime(2026, 1, 1, tzinfo=UTC) + timedelta(milliseconds=n),
        "ratio": math.inf if n % 7 == 0 else n / 8,
        "raw": n.to_bytes(4),
        "more": orjson.dumps({"n": n}).decode(),
    }


@pytest.fixture(params=["local", "s3"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    if request.param == "local":
        return {"url": (tmp_path / "out").as_uri()}
    server = request.getfixturevalue("s3_server")
    return server.settings(f"s3://{server.create_bucket()}/out")


def in_order(place: ObjectPlace, folder: str) -> list[bytes]:
    names = sorted(place.list(folder), key=lambda name: int(name.split("-")[0]))
    return [place.read(f"{folder}/{name}") or b"" for name in names]


SLICES = {"site=a%2Fb": 0, "site=%C3%A9": 1, "site!": 2}


@pytest.mark.spark
def test_tasks_write_what_this_process_would_have_written(
    store: Store, where: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same objects, byte for byte: whoever repeats a delivery recognises them without looking at rows."""
    store.add_sink("tasks", "blob", chunk_rows=400, **where)
    by_tasks = store.export("tasks")
    monkeypatch.setattr(channel, "PARALLEL_ROWS_MIN", 1 << 60)
    other = {**where, "url": f"{where['url']}-2"}
    store.add_sink("here", "blob", chunk_rows=400, **other)
    here = store.export("here")

    assert (by_tasks.blocked, by_tasks.errors, by_tasks.rows, by_tasks.chunks) == (None, {}, ROWS, 9)
    assert (here.rows, here.bytes) == (by_tasks.rows, by_tasks.bytes)
    one, two = place_of({**KIND.defaults, **where}), place_of({**KIND.defaults, **other})
    for name, first in SLICES.items():
        contents = in_order(one, f"events/{name}")
        assert contents == in_order(two, f"events/{name}")
        tables = [pq.read_table(pa.BufferReader(content)) for content in contents]
        assert [n for table in tables for n in table["id"].to_pylist()] == list(range(first, ROWS, 3))
        assert tables[0].to_pylist()[1] == row(first + 3)


@pytest.mark.spark
@pytest.mark.parametrize("where", ["s3"], indirect=True)
def test_tasks_split_large_chunks_and_meet_their_own_objects_after_a_crash(store: Store, where: dict[str, Any]) -> None:
    # One channel at a time: a thread that "dies" would leave the others alive.
    store.add_sink("lines", "blob", format="jsonl.zst", chunk_rows=400, chunk_bytes=10_000, concurrency=1, **where)
    with crash_at("delivery.shipped"):  # objects are there, and no record says so
        store.export("lines")
    place = place_of({**KIND.defaults, **where})
    left = {name: in_order(place, f"events/{name}") for name in SLICES}
    assert any(left.values())

    again = store.export("lines")

    assert (again.blocked, again.rows) == (None, ROWS)
    before = {name: in_order(place, f"events/{name}") for name in SLICES}
    assert all(set(left[name]) <= set(before[name]) for name in SLICES)
    for name, first in SLICES.items():
        lines = [
            orjson.loads(line)
            for content in before[name]
            for line in pa.CompressedInputStream(pa.BufferReader(content), "zstd").read().splitlines()
        ]
        assert [line["id"] for line in lines] == list(range(first, ROWS, 3))
        assert lines[0]["more"] == {"n": first}
        assert len(before[name]) > 4


@pytest.mark.spark
@pytest.mark.parametrize("where", ["local"], indirect=True)
def test_what_a_task_is_refused_is_told_as_if_it_had_been_here(store: Store, where: dict[str, Any]) -> None:
    store.add_sink("stuck", "blob", chunk_rows=400, **where)
    place = place_of({**KIND.defaults, **where})
    ranges = sorted(chunk.range for chunk in store.forecast_export("stuck") if chunk.partition == "site!")
    place.create(f"events/site!/{ranges[0].after}-{ranges[0].through}.parquet", b"not ours")

    report = store.export("stuck")

    assert report.blocked is not None
    assert "is not what this sink wrote" in report.blocked
    assert "Traceback" not in report.blocked
    assert in_order(place, "events/site!")[0] == b"not ours"
