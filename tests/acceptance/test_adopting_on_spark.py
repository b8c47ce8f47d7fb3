"""Real tables and files without sequence numbers are adopted through Spark."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from acceptance.stores import make_store
from floodmark.errors import Permanent

pytestmark = pytest.mark.spark


@pytest.fixture
def store(tmp_path: Path, spark):
    with make_store(tmp_path / "store", spark) as made:
        yield made


def rows(store, dataset: str) -> list[int]:
    return [row["n"] for batch in store.read_since(dataset) for row in batch.table.to_pylist()]


def test_an_iceberg_table_is_adopted_once_at_the_version_it_was_begun_with(store, tmp_path: Path) -> None:
    spark = store.spark
    store.add_dataset("started")
    store.capture("started", [{"n": 0}])
    store.flush("started")  # the catalog is attached
    name = f"`{store.engine.lake.catalog.name}`.legacy.numbers"
    spark.sql(f"CREATE NAMESPACE `{store.engine.lake.catalog.name}`.legacy")
    spark.sql(f"CREATE TABLE {name} (n BIGINT, text STRING) USING iceberg")
    for start in (0, 100):
        spark.createDataFrame(pa.table({"n": list(range(start, start + 100)), "text": ["x"] * 100})).writeTo(
            name
        ).append()
    spark.sql(f"DELETE FROM {name} WHERE n = 50")
    store.add_sink("out", "blob", url=(tmp_path / "out").as_uri(), datasets=["numbers"], later=True)

    report = store.adopt(name, "numbers")
    first, second = store.export("out"), store.export("out")
    spark.createDataFrame(pa.table({"n": [999], "text": ["later"]})).writeTo(name).append()
    again = store.adopt(name, "numbers")

    assert (report.rows, first.rows, second.rows, again.rows) == (199, 199, 0, 0)
    assert sorted(rows(store, "numbers")) == [n for n in range(200) if n != 50]


@pytest.mark.parametrize("format", ["parquet", "csv"])
def test_files_are_adopted_once(store, tmp_path: Path, format: str) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    for index in range(3):
        table = pa.table({"n": list(range(index * 10, index * 10 + 10))})
        if format == "parquet":
            pq.write_table(table, folder / f"{index}.parquet")
        else:
            (folder / f"{index}.csv").write_text("\n".join(map(str, table["n"].to_pylist())) + "\n")
    if format == "csv":
        store.add_dataset("numbers", schema={"_c0": "string"})

    assert store.adopt(folder, "numbers", format=format).rows == 30
    assert store.adopt(folder, "numbers", format=format).rows == 0
    if format == "parquet":
        assert rows(store, "numbers") == list(range(30))


def test_what_cannot_be_read_is_told_with_the_way_out(store) -> None:
    with pytest.raises(Permanent, match="cannot be read") as refused:
        store.adopt("nowhere.at.all", "numbers")
    assert refused.value.hint
