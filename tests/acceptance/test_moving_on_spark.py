"""A whole store moves from its directory to PostgreSQL and a bucket, and back, on Spark."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from floodmark.cli.entry import run
from floodmark.lake.embedded import lakes_of_a_move
from floodmark.lake.moving import TablesMoved
from floodmark.maintenance.move import move_control
from floodmark.maintenance.move_lake import move_lake
from floodmark.store import Store, init, open_store
from floodmark.testing import crash_at
from postgres import PostgresServer, postgres_server  # noqa: F401 - a fixture
from s3 import SECRET, S3Server

pytestmark = pytest.mark.spark


def rows(store: Store) -> list[int]:
    return [row["id"] for batch in store.read_since("rows") for row in batch.table.to_pylist()]


def capture(store: Store, *numbers: int) -> None:
    store.capture("rows", [{"id": number, "name": f"name {number}"} for number in numbers])


def test_a_store_moves_to_postgresql_and_a_bucket_and_back(
    spark: Any,
    s3_server: S3Server,
    postgres_server: PostgresServer,  # noqa: F811
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """U43, U44: interrupted after the fence of the old table, and run again by the command, each way."""
    home, bucket = tmp_path / "store", s3_server.create_bucket()
    reached = {"s3.endpoint": s3_server.endpoint, "s3.region": "us-east-1", "s3.path-style-access": "true"}
    reached |= {"s3.access-key-id": "AKIDEXAMPLE", "s3.secret-access-key": SECRET}
    there = {"lake": {"warehouse": f"s3://{bucket}/lake", **reached}, "segments": f"s3://{bucket}/segments"}
    back = {"lake": {"type": "embedded"}, "segments": "directory"}
    init(home).close()
    with open_store(home, spark=spark) as store:
        store.add_dataset("rows", ["id"], schema={"id": "long", "name": "string"})
        store.add_sink("out", "blob", url=(tmp_path / "out").as_uri(), format="jsonl")
        capture(store, 0, 1, 2)
        store.flush("rows")
        store.export("out")
        capture(store, 3, 4)
        store.flush("rows")
        capture(store, 5)
        store.seal("rows")
    move_control(home, postgres_server.create_schema())
    known = 5
    for to in (there, back):
        with open_store(home, spark=spark) as running:
            cursor = [batch.cursor for batch in running.read_since("rows")][-1]
            with crash_at("rebuild.renamed"):
                move_lake(home, lakes=partial(lakes_of_a_move, spark=spark), **to)  # type: ignore[arg-type]
            capfd.readouterr()
            options = [f"--lake={key}={value}" for key, value in to["lake"].items() if "." in key]  # type: ignore[union-attr]
            options += ["--lake-type=embedded"] if to == back else [f"--warehouse=s3://{bucket}/lake"]
            assert run(["-s", str(home), "move", "--json", f"--segments={to['segments']}", *options]) == 0
            report = json.loads(capfd.readouterr().out)
            assert (report["datasets"], report["rows"], report["segments_copied"]) == (1, known, 1)
            assert report["findings"] == []
            with pytest.raises(TablesMoved):
                rows(running)
        with open_store(home, spark=spark) as store:
            assert rows(store) == list(range(known))
            assert list(store.read_since("rows", cursor)) == []
            capture(store, known - 1, known + 1)  # one that is stored, one that is new
            assert store.flush("rows").rows == 2
            known += 2
            store.export("out")
            assert rows(store) == list(range(known))
            assert store.audit("out", deep=True).sound
            assert store.fsck(deep=True).sound
            capture(store, known)
            store.seal("rows")
    move_control(home, "sqlite")
    with open_store(home, spark=spark) as store:
        store.flush("rows")
        store.export("out")
        assert rows(store) == list(range(known + 1))
        assert sorted(row["id"] for row in store.read("rows").collect()) == list(range(known + 1))
        assert store.audit("out", deep=True).sound
    assert [key for key in s3_server.keys(bucket) if key.endswith((".parquet", ".jsonl"))] == []
