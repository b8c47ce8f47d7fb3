"""Spark writes the lake's files without fsync: until ours, a power cut may take any. The spool still has the rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from floodmark.errors import FilesMissing
from floodmark.store import Store, init, open_store
from floodmark.testing import crash_at, kill_store

pytestmark = pytest.mark.spark


def numbers(store: Store) -> list[int]:
    return [row["n"] for batch in store.read_since("m") for row, _ in batch.pairs()]


def newest(directory: Path, pattern: str) -> Path:
    return max(directory.glob(pattern), key=lambda path: path.stat().st_mtime_ns)


LOST = {
    "the metadata file is empty": ("metadata/*.metadata.json", 0),
    "the manifest list is gone": ("metadata/snap-*.avro", None),
    "a manifest is empty": ("metadata/*-m0.avro", 0),
    "a data file is cut off": ("data/**/*.parquet", 100),
}
"""Each kind of file, and each kind of damage, once: here, or below a rewrite in `test_compacting_on_spark.py`."""


@pytest.mark.parametrize("loss", LOST)
def test_a_commit_whose_files_the_power_cut_took_is_taken_back_and_sent_again(spark, tmp_path: Path, loss) -> None:
    """I7: a segment outlives the way of its rows to the disk."""
    store = init(tmp_path / "store")
    store.add_dataset("m", schema={"n": "long"})
    store.capture("m", [{"n": 1}, {"n": 2}])
    store.flush("m")
    store.capture("m", [{"n": 3}])
    with crash_at("flush.appended"):
        store.flush("m")
    kill_store(store)
    pattern, size = LOST[loss]
    file = newest(tmp_path / "store" / "lake" / "datasets" / "m_g1", pattern)
    if size is None:
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:size])

    with open_store(tmp_path / "store") as again:
        again.capture("m", [{"n": 4}])
        again.flush("m")

        assert numbers(again) == [1, 2, 3, 4]
        assert again.status().datasets[0].undecided_block is None


def test_files_missing_from_a_commit_that_was_recorded_are_an_error_and_nothing_is_taken_back(spark, tmp_path) -> None:
    store = init(tmp_path / "store")
    store.add_dataset("m", schema={"n": "long"})
    store.capture("m", [{"n": 1}])
    store.flush("m")
    kill_store(store)
    newest(tmp_path / "store" / "lake" / "datasets" / "m_g1", "metadata/*.metadata.json").unlink()

    with open_store(tmp_path / "store") as again:
        again.capture("m", [{"n": 2}])
        with pytest.raises(FilesMissing, match="metadata of table 'm_g1' cannot be read"):
            again.flush("m")
        assert again.status().datasets[0].horizon == 1
