"""Compaction on real Spark and Iceberg: files, snapshots and metadata become few; flush and delivery go on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from floodmark.layout import Layout
from floodmark.sequence import SequenceRange
from floodmark.store import Store, init, open_store
from floodmark.testing import kill_store

pytestmark = pytest.mark.spark


def opened(root: Path, spark: Any, **upkeep: Any) -> Store:
    store = open_store(root, spark=spark)
    wanted = {"files_min": 2, "snapshots_keep": 1, "snapshots_age_seconds": 0, "manifests_max": 2, **upkeep}
    store.engine.settings = replace(store.settings, upkeep=replace(store.settings.upkeep, **wanted))
    return store


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with init(tmp_path / "store") as made:
        made.add_dataset("m", identity=["n"], schema={"n": "long", "text": "string"})
        made.add_sink("out", "blob", url=(tmp_path / "out").as_uri(), chunk_rows=50)
    return tmp_path / "store"


@pytest.fixture
def store(root: Path, spark: Any) -> Iterator[Store]:
    with opened(root, spark) as made:
        yield made


def flushed(store: Store, numbers: range) -> None:
    store.capture("m", [{"n": n, "text": f"row {n}"} for n in numbers])
    store.flush("m")


def numbers(store: Store) -> list[int]:
    return [row["n"] for batch in store.read_since("m") for row in batch.table.to_pylist()]


def exported(directory: Path) -> list[int]:
    return sorted(n for path in directory.rglob("*.parquet") for n in pq.read_table(path)["n"].to_pylist())


def data_files(root: Path) -> list[Path]:
    return sorted((root / "lake" / "datasets" / "m_g1" / "data").rglob("*.parquet"))


def test_many_small_flushes_become_one_file_and_nobody_notices(store: Store, tmp_path: Path) -> None:
    """U1, U2, U6: a sink that lags behind gets exactly what it had still to get."""
    for start in range(0, 60, 20):
        flushed(store, range(start, start + 20))
    assert store.export("out").rows == 60
    reader = list(store.read_since("m"))[-1].cursor
    for start in range(60, 120, 20):
        flushed(store, range(start, start + 20))
    (done,) = store.compact("m").datasets
    assert [(item.files_before, item.files_after) for item in done.compacted] == [(6, 1)]
    assert (done.failed, done.problems) == ((), ())
    assert done.snapshots_expired >= 6
    (file,) = data_files(store.path)
    assert pq.read_table(file)["_ingest_seq"].to_pylist() == list(range(1, 121))
    assert store.engine.lake.manifests(store.engine.lake.load("m_g1")) <= 2
    assert numbers(store) == list(range(120))
    assert [row["n"] for b in store.read_since("m", reader) for row in b.table.to_pylist()] == list(range(60, 120))
    assert store.export("out").rows == 60
    assert store.export("out").rows == 0
    assert exported(tmp_path / "out") == list(range(120))
    assert store.compact("m").datasets[0].idle
    store.capture("m", [{"n": 5, "text": "again"}, {"n": 500, "text": "new"}])
    flushed_again = store.flush("m")
    assert (flushed_again.rows, flushed_again.duplicates) == (1, 1)
    assert store.export("out").rows == 1
    assert store.fsck(deep=True).sound


LOST = {
    "two metadata files are gone": ("metadata/*.metadata.json", None, 2),
    "the manifest list is cut off": ("metadata/snap-*.avro", 40, 1),
    "a data file is gone": ("data/**/*.parquet", None, 1),
}
"""Each kind of file, and each kind of damage, once: here, or below a commit in `test_power_loss.py`."""


@pytest.mark.parametrize("loss", LOST)
def test_a_rewrite_whose_files_the_power_cut_took_is_taken_back(root: Path, spark: Any, loss: str) -> None:
    """U4: the files it had read are still there."""
    store = opened(root, spark)
    flushed(store, range(3))
    flushed(store, range(3, 6))
    pattern, size, count = LOST[loss]
    for _ in range(count):  # as a compaction does, whose process dies before it has made them durable
        store.engine.lake.rewrite("m_g1", within=SequenceRange(0, 6), file_bytes=1 << 20)
    kill_store(store)
    table = root / "lake" / "datasets" / "m_g1"
    for file in sorted(table.glob(pattern), key=lambda path: path.stat().st_mtime_ns)[-count:]:
        if size is None:
            file.unlink()
        else:
            file.write_bytes(file.read_bytes()[:size])
    with opened(root, spark) as again:
        flushed(again, range(6, 9))
        assert numbers(again) == list(range(9))
        assert again.compact("m").sound
        assert numbers(again) == list(range(9))
        assert again.fsck().sound


def test_a_damaged_file_stops_its_own_bucket_only(root: Path, spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("floodmark.layout.BUCKET_WIDTH_MIN", 1)
    with opened(root, spark, files_min=100, buckets_at_once=2) as store:
        store.engine.lake.ensure("m_g1", store.datasets()[0].schema, layout=Layout(bucket_width=10))
        for start in range(0, 30, 3):
            flushed(store, range(start, start + 3))
        damaged = next(path for path in data_files(root) if pq.read_table(path)["n"].to_pylist()[0] == 12)
        content = damaged.read_bytes()
        damaged.write_bytes(b"nothing")
        (done,) = store.compact("m").datasets
        assert [item.range.after for item in done.failed] == [9]
        assert [item.range.after for item in done.compacted] == [0, 19]
        damaged.write_bytes(content)
        (done,) = store.compact("m").datasets
        assert [item.range.after for item in done.compacted] == [9]
        assert numbers(store) == list(range(30))
