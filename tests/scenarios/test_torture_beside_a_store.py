"""`floodmark torture` makes a scratch store beside the user's: like it, and with places of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest

from floodmark import config
from floodmark.errors import UnknownSink
from floodmark.lake.catalogs import configured
from floodmark.store import Store, init
from floodmark.testing import MemoryLake
from floodmark.torture import reading
from floodmark.torture.scratch import CHUNK_ROWS, HubAccess, make_store, plan


@pytest.fixture
def user(tmp_path: Path) -> Iterator[Store]:
    with init(tmp_path / "user", lake=MemoryLake()) as store:
        store.add_dataset("orders")
        yield store


def planned(user: Store, *names: str, folder: Path, hub: HubAccess | None = None):
    return plan(user, names, hub or HubAccess(), folder)


def test_each_sink_gets_a_place_of_its_own_below_the_users(user: Store, tmp_path: Path) -> None:
    user.add_sink("archive", "blob", url="s3://bucket/kept", region="eu-1", format="jsonl.gz", datasets=["orders"])
    user.add_sink("copy", "table", table="prod.events.orders", datasets=["orders"], every="1h")
    made = planned(user, folder=tmp_path)
    blob, table = made.sinks
    assert blob.settings["url"] == f"s3://bucket/kept/{made.dataset}"
    assert (blob.settings["format"], blob.settings["region"]) == ("jsonl.gz", "eu-1")
    assert blob.settings["chunk_rows"] == CHUNK_ROWS
    assert table.settings["table"] == f"prod.events.{made.dataset}_copy"
    assert not {"every", "where", "partitions", "start"} & {*blob.settings, *table.settings}
    assert "orders" not in {made.dataset, *table.settings["datasets"]}
    assert planned(user, folder=tmp_path).dataset != made.dataset
    make_store(tmp_path / "scratch", user.settings, {made.dataset: True}, made.sinks).close()


def test_a_projection_and_a_hub_without_a_dataset_are_left_out_with_a_sentence(user: Store, tmp_path: Path) -> None:
    user.add_sink("own", "projection", function="json:dumps")
    user.add_sink("central", "forward", url="http://127.0.0.1:9")
    made = planned(user, folder=tmp_path)
    assert made.sinks == ()
    assert ["--hub-store" in text or "function" in text for text in made.left_out] == [True, True]


def test_a_store_without_sinks_delivers_to_a_scratch_directory(user: Store, tmp_path: Path) -> None:
    (sink,) = planned(user, folder=tmp_path).sinks
    assert sink.settings["url"] == (tmp_path / "files").as_uri()


def test_a_sink_that_is_not_there_is_an_error(user: Store, tmp_path: Path) -> None:
    with pytest.raises(UnknownSink, match="none yet"):
        planned(user, "archive", folder=tmp_path)


def test_a_table_is_read_in_the_order_of_its_numbers_and_goes_with_its_files(user: Store, tmp_path: Path) -> None:
    """What no Spark session is needed for."""
    place = config.CatalogSettings("sql", f"sqlite:///{tmp_path}/prod.db", (tmp_path / "ware").as_uri())
    store = SimpleNamespace(settings=replace(user.settings, catalogs={"prod": place}))
    catalog = configured("prod", place, namespace="events").python
    catalog.create_namespace("events")
    rows = pa.table({"id": ["b", "a"], "_origin_seq": [2, 1]})
    catalog.create_table(("events", "torture_1"), rows.schema).append(rows)
    assert [row["id"] for row in reading.target_rows(store, "prod.events.torture_1")] == ["a", "b"]
    (tmp_path / "ware/events/torture_1/data/left.parquet").write_text("by an attempt that was killed")
    reading.drop_target(store, "prod.events.torture_1")
    assert [path for path in (tmp_path / "ware").rglob("*") if path.is_file()] == []
    assert reading.target_rows(store, "prod.events.torture_1") == []


def test_the_lake_is_read_without_spark_and_a_dataset_without_rows_is_empty(tmp_path: Path) -> None:
    with make_store(tmp_path / "scratch", None, {"made_up": True}, ()) as store:
        assert reading.lake_rows(store, "made_up") == []
