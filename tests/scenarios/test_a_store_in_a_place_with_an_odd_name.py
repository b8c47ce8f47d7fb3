"""Blanks, percent signs and letters of any alphabet in a store's path change nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from floodmark.lake.files import local_location, local_path
from floodmark.store import init


@pytest.mark.parametrize("path", ["/a/b", "/a b/c%20d", "/ü/100%", "/a#b/c?d;e"])
def test_a_location_is_its_path_as_it_is(path: str) -> None:
    assert local_path(local_location(path)) == path
    assert local_path(f"file:{path}") == path
    assert local_path(path) == path
    assert local_path(f"s3:/{path}") is None


@pytest.mark.spark
def test_rows_are_committed_delivered_and_compacted_there(spark: object, tmp_path: Path) -> None:
    place = tmp_path / "my files %20 ü"
    place.mkdir()
    with init(place / "store") as store:
        store.add_dataset("m", schema={"n": "long"}, identity=["n"])
        store.add_sink("archive", "blob", url=(place / "out").as_uri())
        for first in (0, 3):
            store.capture("m", [{"n": n} for n in range(first, first + 5)])
            store.flush("m")
        assert store.export("archive").rows == 8
        assert store.compact("m").sound
        assert [n for batch in store.read_since("m") for n in batch.table["n"].to_pylist()] == list(range(8))
        assert store.audit("archive", deep=True).sound
        assert store.fsck().sound
    assert {path.name for path in tmp_path.iterdir()} == {place.name}
