"""The type of a column that its first sender fixed is corrected by the owner, without a value changed or lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from worlds import DATASET, TABLE, World, dies

from floodmark.errors import Corrupt, SchemaChanged, SchemaConflict
from floodmark.maintenance import column_types
from floodmark.spool.capture import Texts
from floodmark.store import Store
from floodmark.testing import kill_store


@pytest.fixture
def world(quick_path: Path) -> Iterator[World]:
    made = World.make(quick_path / "store", identity=["id"])
    yield made
    made.close()


def type_of(store: Store, column: str) -> str:
    (found,) = store.datasets()
    return found.schema.column(column).text


def prices(store: Store) -> dict[int, object]:
    store.flush(DATASET)
    return {row["id"]: row.get("price") for batch in store.read_since(DATASET) for row in batch.table.to_pylist()}


def sent(store: Store, *rows: dict[str, object]) -> int:
    """Rows as a request brings them: what does not fit goes to quarantine. How many did."""
    return store.spool.capture_texts(DATASET, Texts(list(rows), lambda row: f"row {row}")).quarantined


def test_before_the_first_row_a_type_is_simply_changed(world: World):
    store = world.open()
    store.add_dataset(DATASET, ["id"], partition_by=["site"], schema={"id": "long", "price": "string"})
    store.change_dataset(DATASET, types={"price": "decimal(9,2)"})
    assert type_of(store, "price") == "decimal(9,2)"
    store.capture(DATASET, [{"id": 1, "price": "1.50"}])
    assert str(prices(store)[1]) == "1.50"


@pytest.mark.parametrize("point", [None, "column.changed", "column.dropped"])
def test_after_a_purge_of_the_wrong_values_the_type_is_corrected_and_quarantine_replayed(
    world: World, point: str | None
):
    """U42: also if the command dies after the records are changed."""
    store = world.open()
    store.capture(DATASET, [{"id": 1, "site": "a"}, {"id": 2, "price": "cheap"}])
    store.flush(DATASET)
    assert sent(store, {"id": 3, "price": 3}) == 1, "what differs from the first sender's type is quarantined"
    with pytest.raises(SchemaConflict, match="1 committed rows of 'events' have a value in column 'price'") as told:
        store.change_dataset(DATASET, types={"price": "long"})
    assert "floodmark purge events --where" in (told.value.hint or "")
    assert type_of(store, "price") == "string"
    store.purge(DATASET, where="price IS NOT NULL")
    if point is None:
        store.change_dataset(DATASET, types={"price": "long"})
    else:
        assert dies(lambda: store.change_dataset(DATASET, types={"price": "long"}), at=point)
        kill_store(store)
        store = world.open()
    assert type_of(store, "price") == "long"
    (entry,) = store.quarantine.entries(DATASET)
    assert store.quarantine.replay(entry.id) == 1
    store.capture(DATASET, [{"id": 4, "price": 4}])
    assert prices(store) == {1: None, 3: 3, 4: 4}
    assert dict(world.lake.load(TABLE).columns)["price"].name == "long"
    assert store.fsck(deep=True).sound


def test_doing_it_again_completes_what_was_interrupted(world: World):
    """U42"""
    store = world.open()
    store.capture(DATASET, [{"id": 1, "price": "x"}, {"id": 2}])
    store.flush(DATASET)
    store.purge(DATASET, where="price IS NOT NULL")
    assert dies(lambda: store.change_dataset(DATASET, types={"price": "long"}), at="column.changed")
    store.change_dataset(DATASET, types={"price": "long"})
    assert dict(world.lake.load(TABLE).columns)["price"].name == "long"


def test_values_that_wait_are_not_converted_either(world: World):
    store = world.open()
    store.capture(DATASET, [{"id": 1, "price": "x"}])
    with pytest.raises(SchemaConflict, match="wait for their commit, as string") as told:
        store.change_dataset(DATASET, types={"price": "long"})
    assert "floodmark flush events" in (told.value.hint or "")
    assert prices(store) == {1: "x"}


@pytest.mark.parametrize(
    ("column", "why"), [("id", "the identity"), ("site", "the partition"), ("at", "the event time")]
)
def test_what_decides_what_a_row_is_keeps_its_type(quick_path: Path, column: str, why: str):
    world = World.make(quick_path / "store", identity=["id"], event_time="at", schema={"id": "long", "at": "timestamp"})
    with world.open() as store, pytest.raises(SchemaConflict, match=f"'{column}'.* cannot be changed: .*{why}"):
        store.change_dataset(DATASET, types={column: "date" if column == "at" else "double"})


@pytest.mark.parametrize("types", [{"nope": "long"}, {"price": "wrong"}, {"price": "long not null"}])
def test_what_is_no_column_or_no_type_is_refused_and_nothing_changes(world: World, types: dict[str, str]):
    store = world.open()
    store.add_dataset(DATASET, ["id"], partition_by=["site"], schema={"id": "long", "price": "string"})
    with pytest.raises(SchemaConflict):
        store.change_dataset(DATASET, types=types)
    assert type_of(store, "price") == "string"


def test_a_widening_keeps_the_values(world: World):
    store = world.open()
    store.add_dataset(DATASET, ["id"], partition_by=["site"], schema={"id": "long", "price": "int"})
    store.capture(DATASET, [{"id": 1, "price": 1}])
    store.flush(DATASET)
    store.change_dataset(DATASET, types={"price": "long"})
    store.capture(DATASET, [{"id": 2, "price": 2**40}])
    assert prices(store) == {1: 1, 2: 2**40}


def test_a_process_that_remembers_the_old_type_stores_nothing_of_it(world: World):
    """U42: its typed rows are refused once, then fitted to the new type; its lines are judged when they are sealed."""
    other, store = world.open(), world.open()
    other.add_dataset(DATASET, ["id"], partition_by=["site"], schema={"id": "long", "price": "string"})
    other.capture(DATASET, [{"id": 1}])
    store.change_dataset(DATASET, types={"price": "long"})
    old = pa.table({"id": [2], "price": ["x"]})
    with pytest.raises(SchemaChanged, match="was changed to long in the meantime"):
        other.capture(DATASET, old)
    with pytest.raises(SchemaConflict):
        other.capture(DATASET, old)
    other.capture(DATASET, pa.table({"id": [3], "price": [3]}))
    assert prices(store) == {1: None, 3: 3}
    assert world.segment_files() == []


def test_a_line_that_was_acknowledged_with_the_old_type_goes_to_quarantine(world: World):
    other, store = world.open(), world.open()
    other.add_dataset(DATASET, ["id"], partition_by=["site"], schema={"id": "long", "price": "string"})
    other.capture(DATASET, [{"id": 1}])
    store.change_dataset(DATASET, types={"price": "long"})
    other.capture(DATASET, [{"id": 2, "price": "x"}])
    assert prices(store) == {1: None}
    assert ["price" in entry.reason for entry in store.quarantine.entries(DATASET)] == [True]


def test_a_flush_beside_the_correction_is_noticed(world: World, monkeypatch: pytest.MonkeyPatch):
    """U42: what is committed after the look is looked at."""
    store = world.open()
    store.capture(DATASET, [{"id": 1, "price": "x"}])
    store.flush(DATASET)
    store.purge(DATASET, where="price IS NOT NULL")
    real = column_types.values_in

    def values_in(*arguments: Any) -> int:
        found = real(*arguments)
        monkeypatch.setattr(column_types, "values_in", real)
        other = world.open()
        other.capture(DATASET, [{"id": 2, "price": "y"}])
        other.flush(DATASET)
        return found

    monkeypatch.setattr(column_types, "values_in", values_in)
    with pytest.raises(SchemaConflict, match="1 committed rows"):
        store.change_dataset(DATASET, types={"price": "long"})
    assert prices(store) == {2: "y"}


def test_a_column_that_a_stranger_changed_is_not_dropped(world: World):
    """U42: values of another type than the records have are damage."""
    store = world.open()
    store.capture(DATASET, [{"id": 1, "price": "x"}])
    store.flush(DATASET)
    changed = """UPDATE datasets SET columns = replace(columns, '"price","string"', '"price","long"')"""
    store.engine.database.transact(lambda c: c.exec_driver_sql(changed))
    store = world.open()
    store.capture(DATASET, [{"id": 2, "price": 2}])
    with pytest.raises(Corrupt, match="1 rows have a value in it"):
        store.flush(DATASET)


def test_a_table_that_a_sink_filled_with_the_old_type_is_named_and_the_others_go_on(world: World, tmp_path: Path):
    """What was delivered stays; the target's column is for its owner to change."""
    store = world.open()
    store.add_sink("copies", "table", table="central.copies")
    store.add_sink("files", "blob", url=(tmp_path / "out").as_uri(), format="jsonl")
    store.capture(DATASET, [{"id": 1, "site": "a", "price": "x"}])
    store.flush(DATASET)
    assert (store.export("copies").rows, store.export("files").rows) == (1, 1)
    store.purge(DATASET, where="price IS NOT NULL")
    store.change_dataset(DATASET, types={"price": "long"})
    store.capture(DATASET, [{"id": 2, "site": "a", "price": 2}])
    store.flush(DATASET)
    assert store.export("files").rows == 1
    report = store.export("copies")
    assert report.rows == 0
    assert "Column 'price' is long in the dataset, and 'price' is string in table" in str(report)
    assert [row["price"] for row in world.lake.targets.rows(f"central.copies.{DATASET}")] == ["x"]
