"""What stands where rows are delivered to, and in the control database: compared and told, never taken on trust."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from noise import JSON, TEXTS, altered, dumped, mutated
from sqlalchemy import select, update
from trying import fresh, inputs, refusal, rows_of, scratch, scratch_store

from floodmark.control import schema as control
from floodmark.store import Store, open_store
from floodmark.testing import MemoryLake

FORMATS = ("parquet", "jsonl", "jsonl.gz", "jsonl.zst")


@pytest.fixture(scope="module")
def delivered() -> Any:
    """A store whose rows are at a place in each format."""
    with scratch_store() as store:
        store.add_dataset("orders", ["id"])
        for start in (0, 5):
            store.capture("orders", [{"id": number, "text": f"row {number}"} for number in range(start, start + 5)])
            store.flush("orders")
        yield store


OBJECTS = st.sampled_from(
    ["5-10.%s", "10-15.%s", "0-999999999999999999999999.%s", "3-7.%s", "00-5.%s", "5-5.%s", "7-5.%s", "x.%s", ".0-5.%s"]
)


def at(store: Store, format: str) -> tuple[str, Path]:
    name = fresh("place")
    place = store.path.parent / name
    store.add_sink(name, "blob", url=f"file://{place}", format=format, chunk_rows=5)
    return name, place


@pytest.mark.parametrize("format", FORMATS)
@given(data=st.data())
@inputs(4)
def test_objects_that_were_changed_are_told_and_never_replaced(
    delivered: Store, format: str, data: st.DataObject
) -> None:
    name, place = at(delivered, format)
    delivered.export(name)
    whole = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
    path = sorted(whole)[data.draw(st.integers(0, 59)) % len(whole)]
    how = data.draw(st.sampled_from(["mutate"] * 4 + ["claim", "remove", "directory", "add"]))
    if how == "mutate":
        path.write_bytes(data.draw(mutated(whole[path])))
    elif how == "claim":
        path = next(item for item in whole if item.name.startswith("_"))
        path.write_bytes(dumped(data.draw(altered(json.loads(whole[path])))))
    elif how == "add":
        folder = place / "orders" / "all"
        path = folder / (data.draw(OBJECTS) % format)
        with suppress(FileExistsError):
            path.write_bytes(data.draw(st.binary(max_size=30)))
    else:
        path.unlink()
        if how == "directory":
            path.mkdir()
    for deep in (False, True):
        refusal("objects at a destination", lambda deep=deep: delivered.audit(name, deep=deep))
    before = {item: item.read_bytes() for item in place.rglob("*") if item.is_file()}
    if data.draw(st.booleans()):
        delivered.capture("orders", [{"id": int(fresh("1")), "text": "more"}])
    refusal("objects at a destination", lambda: delivered.flush("orders"))
    refusal("objects at a destination", lambda: delivered.export(name))
    for item, content in before.items():
        assert item.read_bytes() == content
    delivered.status()
    delivered.remove_sink(name)
    shutil.rmtree(place, ignore_errors=True)


@pytest.mark.parametrize("format", FORMATS)
@given(data=st.data())
@inputs(4)
def test_objects_that_are_there_before_the_first_delivery_are_compared(
    delivered: Store, format: str, data: st.DataObject
) -> None:
    """As after a control database was restored: names are the only memory, and anybody may have written them."""
    template, whole = at(delivered, format)
    delivered.export(template)
    name, place = at(delivered, format)
    source = sorted(path for path in (whole / "orders" / "all").iterdir() if path.is_file())
    folder = place / "orders" / "all"
    folder.mkdir(parents=True)
    for path in source[:2]:
        content = path.read_bytes()
        if data.draw(st.booleans()):
            content = data.draw(mutated(content))
        called = data.draw(st.sampled_from([path.name] * 3) | OBJECTS.map(lambda text: text % format))
        (folder / called).write_bytes(content)
    before = {item: item.read_bytes() for item in place.rglob("*") if item.is_file()}
    _, error = refusal("objects at a destination", lambda: delivered.export(name))
    for item, content in before.items():
        assert item.read_bytes() == content
    if error is None:
        refusal("objects at a destination", lambda: delivered.audit(name, deep=True))
    for sink in (name, template):
        delivered.remove_sink(sink)
    shutil.rmtree(place, ignore_errors=True)
    shutil.rmtree(whole, ignore_errors=True)


# ── the control database ─────────────────────────────────────────────────────────────────────────────────────────────

COLUMNS = [
    control.metadata.tables[table].columns[column]
    for table, column in (
        ("datasets", "identity_columns"),
        ("datasets", "partition_by"),
        ("datasets", "columns"),
        ("datasets", "layout"),
        ("datasets", "event_time"),
        ("datasets", "settle"),
        ("sinks", "kind"),
        ("sinks", "settings"),
        ("sinks", "state"),
        ("partitions", "checksum"),
        ("segments", "path"),
        ("segments", "owner"),
        ("quarantine", "payload"),
        ("quarantine", "payload_path"),
        ("quarantine", "reason"),
    )
]
"""Texts that are more than names: those that somebody could think of correcting by hand."""
VALUES = st.one_of(TEXTS, JSON.map(lambda value: dumped(value).decode()))


@pytest.fixture(scope="module")
def template() -> Any:
    with scratch() as place:
        lake = MemoryLake()
        from floodmark.store import init

        with init(place / "store", lake=lake) as store:
            store.add_dataset("orders", ["id"], partition_by=["site"], event_time="at")
            store.add_sink("files", "blob", url=f"file://{place}/files", format="jsonl")
            store.capture("orders", [{"id": 1, "site": "a", "at": "2026-01-01T00:00:00Z"}])
            store.flush("orders")
            store.export("files")
            store.capture("orders", [{"id": 2, "site": "b"}, {"id": 3, "site": 4}])
            store.seal("orders")
            store.capture("orders", [{"id": 4, "site": "b"}])
        yield place / "store"


@given(data=st.data())
@inputs(4)
def test_a_record_that_was_changed_by_hand_is_told(template: Path, data: st.DataObject) -> None:
    with scratch() as place:
        path = Path(shutil.copytree(template, place / "store"))
        with open_store(path, lake=MemoryLake()) as store:
            column = data.draw(st.sampled_from(COLUMNS))
            value = data.draw(VALUES | st.none())
            changed = update(column.table).values({column.name: value})

            def work(connection: Any) -> int:
                held = connection.execute(select(column)).scalars().first()
                if isinstance(held, str) and data.draw(st.booleans()):
                    mutation = data.draw(mutated(held.encode())).decode("utf-8", "replace")
                    return connection.execute(update(column.table).values({column.name: mutation})).rowcount
                return connection.execute(changed).rowcount

            with suppress(Exception):  # some of it the database itself refuses
                store.engine.database.transact(work)
        for ask in (
            lambda store: store.status(),
            lambda store: store.fsck(),
            lambda store: store.flush(),
            lambda store: rows_of(store, "orders"),
            lambda store: store.export("files"),
            lambda store: store.audit("files"),
            lambda store: [store.quarantine.show(entry.id) for entry in store.quarantine.entries()],
            lambda store: store.capture("orders", [{"id": 9, "site": "z"}]),
        ):

            def use(ask: Any = ask) -> None:
                with open_store(path, lake=MemoryLake()) as store:
                    ask(store)

            refusal("control records", use)
