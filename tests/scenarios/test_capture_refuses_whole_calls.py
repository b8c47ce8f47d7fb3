"""What capture refuses it refuses as a whole: a clear error, and not a byte more in the spool than before."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from spooling import contents, ids_of, numbered, rows_of

from floodmark.errors import (
    DatasetExists,
    FloodmarkError,
    InvalidName,
    SchemaConflict,
    SpoolFull,
    UnknownDataset,
    UnserialisableValue,
)
from floodmark.store import Store
from floodmark.testing import crash_at, kill_store


class Odd:
    """A value of no kind that a column has."""


REFUSED: dict[str, tuple[Any, type[FloodmarkError], str]] = {
    "a dict that is not in a list": ({"id": 1}, UnserialisableValue, "list of dicts"),
    "a text": ("id", UnserialisableValue, "list of dicts"),
    "a number": (7, UnserialisableValue, "list of dicts"),
    "a row that is not a dict": ([{"id": 1}, 7], UnserialisableValue, "Row 1"),
    "a key that is not text": ([{1: 1}], UnserialisableValue, "column names must be text"),
    "an object among good rows": ([{"id": 1}, {"id": 2, "x": Odd()}], UnserialisableValue, "'x'"),
    "a set": ([{"id": 1, "x": {1}}], FloodmarkError, "x"),
    "a function deep inside": ([{"id": 1, "x": {"y": [print]}}], FloodmarkError, "x"),
    "unpaired surrogate": ([{"id": 1, "x": "\ud800"}], FloodmarkError, "x"),
    "text for a number in every row": ([{"id": "one"}, {"id": "two"}], SchemaConflict, "column 'id' is long"),
    "a name that no column can have": ([{"": 1}], InvalidName, "column"),
    "a system column's name": ([{"id": 1, "_ingest_seq": 5}], InvalidName, "_ingest_seq"),
    "names that differ in case only": ([{"id": 1, "ID": 2}], FloodmarkError, "ID"),
    "an Arrow table of another type": (pa.table({"id": ["one"]}), SchemaConflict, "id"),
    "an Arrow table with a column twice": (
        pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["id", "id"]),
        SchemaConflict,
        "twice",
    ),
}


@pytest.fixture(autouse=True)
def _events(store: Store) -> None:
    store.add_dataset("events", schema={"id": "long"})


@pytest.mark.parametrize("case", REFUSED)
def test_a_call_that_cannot_be_stored_leaves_no_trace(store: Store, case: str) -> None:
    """The spool, the schema and the rows are as they were, and the next call is unharmed."""
    rows, kind, words = REFUSED[case]
    store.capture("events", numbered(1))
    before, declared = contents(store.path / "spool"), store.datasets()
    with pytest.raises(kind, match=words) as caught:
        store.capture("events", rows)
    assert caught.value.message
    assert contents(store.path / "spool") == before
    assert store.datasets() == declared
    store.capture("events", numbered(2))
    store.flush("events")
    assert ids_of(store) == [1, 2]
    assert store.quarantine.entries() == []


@pytest.mark.parametrize("name", ["event", "", "../events", "EVENTS", "events\x00"])
def test_an_unknown_dataset_is_told_with_those_there_are(store: Store, name: str) -> None:
    before = contents(store.path)
    with pytest.raises(UnknownDataset, match="events"):
        store.capture(name, numbered(1))
    assert contents(store.path / "spool") == {key[6:]: it for key, it in before.items() if key.startswith("spool/")}


def test_an_empty_call_stores_nothing(store: Store) -> None:
    assert store.capture("events", []).rows == 0
    assert store.capture("events", pa.table({"id": pa.array([], pa.int64())})).rows == 0
    assert contents(store.path / "spool") == {}


def test_rows_of_nothing_are_rows(store: Store) -> None:
    """A row whose columns are all absent is as acknowledged as any other."""
    receipts = [store.capture("events", rows) for rows in ([{}], [{"id": 1}, {}], [{}, {}])]
    assert sum(receipt.rows for receipt in receipts) == 5
    assert store.flush("events").rows == 5
    assert sorted(str(row["id"]) for row in rows_of(store)) == ["1", "None", "None", "None", "None"]


def test_a_dataset_of_nothing_but_empty_rows_counts_them(store: Store) -> None:
    store.add_dataset("ticks")
    store.capture("ticks", [{}, {}])
    store.capture("ticks", [{}])
    assert store.flush("ticks").rows == 3
    assert store.status().datasets[1].rows == 3


# ── back-pressure ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def narrow(store: Store, reopen: Callable[[], Store]) -> Store:
    """The store, opened with room for a kilobyte in each spool."""
    store.close()
    settings = store.path / "floodmark.toml"
    settings.write_text(settings.read_text().replace("[spool]", "[spool]\nbacklog_bytes_max = 1000"))
    return reopen()


def fill(store: Store, start: int = 0) -> int:
    """Capture until the spool is full; returns the first row that was not taken."""
    for id in range(start, start + 1000):
        try:
            store.capture("events", numbered(id))
        except SpoolFull:
            return id
    raise AssertionError("the spool has no end")


def test_a_full_spool_refuses_and_says_so_until_a_flush_makes_room(narrow: Store) -> None:
    """The producer hears of it before the disk does; nothing of the refused call is stored."""
    refused = fill(narrow)
    assert 5 < refused < 50
    before = contents(narrow.path / "spool")
    with pytest.raises(SpoolFull, match=r"limit is 1,000") as caught:
        narrow.capture("events", pa.table({"id": [refused]}))
    assert "Nothing of this call was stored" in str(caught.value)
    assert contents(narrow.path / "spool") == before
    narrow.flush("events")
    assert narrow.capture("events", numbered(refused)).rows == 1
    narrow.flush("events")
    assert ids_of(narrow) == list(range(refused + 1))


def test_sealed_rows_wait_as_well(narrow: Store) -> None:
    """Sealing makes no room: only what is committed has left the spool."""
    narrow.capture("events", [{"id": id, "text": f"{id * 7919 % 1000003:x}" * 3} for id in range(200)])
    narrow.seal("events")
    with pytest.raises(SpoolFull):
        narrow.capture("events", numbered(200))
    narrow.flush("events")
    assert narrow.capture("events", numbered(200)).rows == 1


def test_room_made_by_another_process_is_noticed_at_once(narrow: Store, reopen: Callable[[], Store]) -> None:
    refused = fill(narrow)
    reopen().flush("events")
    assert narrow.capture("events", numbered(refused)).rows == 1


def test_what_other_processes_captured_counts_after_a_second(
    narrow: Store, reopen: Callable[[], Store], clock: Any
) -> None:
    narrow.capture("events", numbered(0))
    fill(reopen(), 1)
    clock.advance(1.1)
    with pytest.raises(SpoolFull):
        narrow.capture("events", numbered(1000))


def test_a_file_that_is_gone_does_not_widen_the_spool(store: Store, reopen: Callable[[], Store]) -> None:
    """Its record outlives it when a sealer dies in between; the bytes of other files still count."""
    store.capture("events", [{"id": id} for id in range(500)])
    kill_store(store)
    other = reopen()
    with crash_at("seal.landing_removed"):
        other.seal("events")
    other.flush("events")
    other.capture("events", numbered(1000))
    waiting = sum(path.stat().st_size for path in (other.path / "spool/events/landing").iterdir())
    assert other.spool.backlog_bytes("events") == waiting > 0


# ── schemas that grow ────────────────────────────────────────────────────────────────────────────────────────────


def columns(store: Store, dataset: str = "events") -> dict[str, str]:
    found = next(item for item in store.datasets() if item.name == dataset)
    return {column.name: str(column.type) for column in found.schema.columns}


def test_a_new_column_is_added_before_its_first_row_is_stored(store: Store) -> None:
    """Nothing vanishes for want of a declaration: older rows have null there, and the type is the rows' own."""
    store.capture("events", numbered(1))
    store.flush("events")
    store.capture("events", [{"id": 2, "name": "b", "price": 1.5}])
    assert columns(store) == {"id": "long", "name": "string", "price": "double"}
    store.flush("events")
    assert rows_of(store) == [{"id": 1, "name": None, "price": None}, {"id": 2, "name": "b", "price": 1.5}]


def test_a_column_is_widened_in_place(store: Store) -> None:
    store.add_dataset("small", schema={"n": "int", "f": "float"})
    store.capture("small", [{"n": 1, "f": 0.5}])
    store.flush("small")
    store.capture("small", [{"n": 2**40, "f": 0.1}])
    assert columns(store, "small") == {"n": "long", "f": "double"}
    store.flush("small")
    assert rows_of(store, "small") == [{"n": 1, "f": 0.5}, {"n": 2**40, "f": 0.1}]


@pytest.mark.parametrize("rows", [[{"id": 1.5}], [{"id": "1x"}], [{"id": True}], [{"id": [1]}]], ids=str)
def test_any_other_change_of_type_is_refused_with_its_column(store: Store, rows: list[dict[str, Any]]) -> None:
    """And everything else stays as it was, new columns of the same call included."""
    before = store.datasets()
    with pytest.raises(SchemaConflict, match="'id'"):
        store.capture("events", [{**row, "new": 1} for row in rows])
    assert store.datasets() == before
    assert contents(store.path / "spool") == {}


def test_of_two_writers_with_other_ideas_of_a_new_column_the_second_is_told(
    store: Store, reopen: Callable[[], Store]
) -> None:
    """Neither has seen the other's schema; the first decides, and the second's rows are not stored."""
    other = reopen()
    for writer in (store, other):
        writer.capture("events", numbered(1))
    store.capture("events", [{"id": 2, "x": "text"}])
    with pytest.raises(SchemaConflict, match="'x'"):
        other.capture("events", [{"id": 3, "x": 7}])
    other.capture("events", [{"id": 4, "x": "also text"}])
    store.flush("events")
    assert ids_of(store) == [1, 1, 2, 4]


@pytest.mark.parametrize("form", ["dicts", "arrow"])
def test_a_writer_that_has_not_seen_a_new_column_takes_it_as_it_is_now(
    store: Store, reopen: Callable[[], Store], form: str
) -> None:
    """Whole numbers fit a column of doubles, also for a process that believes the column to be new."""
    other = reopen()
    other.capture("events", numbered(1))
    store.capture("events", [{"id": 2, "x": 1.5}])
    rows = [{"id": 3, "x": 7}]
    assert other.capture("events", rows if form == "dicts" else pa.Table.from_pylist(rows)).rows == 1
    store.flush("events")
    assert {row["id"]: row["x"] for row in rows_of(store)} == {1: None, 2: 1.5, 3: 7.0}


def test_two_threads_that_bring_new_columns_at_once_both_get_them(store: Store) -> None:
    together = threading.Barrier(2)
    outcome: list[int] = []

    def capture(name: str) -> None:
        together.wait()
        outcome.append(store.capture("events", [{"id": 1, name: 1}]).rows)

    threads = [threading.Thread(target=capture, args=(name,)) for name in ("left", "right")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcome == [1, 1]
    assert set(columns(store)) == {"id", "left", "right"}
    store.flush("events")
    assert sum(row["left"] or 0 for row in rows_of(store)) == sum(row["right"] or 0 for row in rows_of(store)) == 1


def test_declaring_a_dataset_again_may_add_columns_and_nothing_else(store: Store) -> None:
    """A producer can give a column its type before the first row that has it."""
    store.add_dataset("m", identity=["id"], schema={"id": "string"})
    store.add_dataset("m", identity=["id"], schema={"id": "string", "at": "timestamp"})
    assert columns(store, "m") == {"id": "string", "at": "timestamp"}
    before = store.datasets()
    for other in ({"identity": ["at"]}, {"identity": ["id"], "schema": {"id": "long"}}):
        with pytest.raises(DatasetExists, match="declared differently"):
            store.add_dataset("m", **other)
    assert store.datasets() == before


def test_a_row_that_does_not_fit_is_not_blamed_for_a_new_column_that_only_it_has(store: Store) -> None:
    """Types are inferred from rows that fit: of a column that none of them has, nothing is known."""
    receipt = store.capture("events", [{"id": "x", "fresh": 1}, {"id": 2}])
    assert (receipt.rows, receipt.quarantined) == (1, 1)
    assert receipt.reasons == ("column 'id' is long: text 'x' is not an integer",)
    assert columns(store, "events") == {"id": "long"}
