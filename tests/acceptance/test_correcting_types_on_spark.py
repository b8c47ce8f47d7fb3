"""A column's type is corrected on real Spark and Iceberg: every reader and sink goes on with the new type."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from floodmark.errors import SchemaConflict
from floodmark.store import init, open_store
from floodmark.testing import crash_at

pytestmark = pytest.mark.spark


def test_after_a_purge_the_column_is_read_written_and_delivered_with_its_new_type(spark: Any, tmp_path: Path) -> None:
    """U42: the command dies before the table is changed, and the next flush completes it."""
    init(tmp_path / "store").close()
    with open_store(tmp_path / "store", spark=spark) as store:
        store.add_dataset("orders", identity=["id"], schema={"id": "long"})
        store.add_sink("out", "blob", url=(tmp_path / "out").as_uri())
        store.capture("orders", [{"id": 1}, {"id": 2, "price": "cheap"}, {"id": 3}])
        store.flush("orders")
        store.export("out")
        with pytest.raises(SchemaConflict, match="1 committed rows"):
            store.change_dataset("orders", types={"price": "decimal(9,2)"})
        store.purge("orders", where="price IS NOT NULL")
        with crash_at("column.changed"):
            store.change_dataset("orders", types={"price": "decimal(9,2)"})
        store.capture("orders", [{"id": 4, "price": "4.50"}])
        assert store.flush("orders").rows == 1
        expected = {1: None, 3: None, 4: Decimal("4.50")}
        direct = [row for batch in store.read_since("orders") for row in batch.table.to_pylist()]
        assert {row["id"]: row["price"] for row in direct} == expected
        assert {row["id"]: row["price"] for row in store.read("orders").collect()} == expected
        assert store.sql("SELECT sum(price) AS total FROM orders").collect()[0]["total"] == Decimal("4.50")
        assert store.export("out").rows == 1
        store.compact("orders")
        assert {row["id"]: row["price"] for row in store.read("orders").collect()} == expected
        assert store.fsck(deep=True).sound
