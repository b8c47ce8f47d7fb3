"""One parser: what capture acknowledges is what flush commits, row for row, whichever way it came."""

from __future__ import annotations

import datetime as dt
import itertools
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from spooling import rows_of

from floodmark.errors import Permanent
from floodmark.schema import CONTENT_ID
from floodmark.store import Store
from floodmark.testing import MemoryLake

VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=6),
    st.binary(max_size=4),
    st.dates(),
    st.datetimes(),
    st.datetimes(timezones=st.just(dt.UTC)),
    st.decimals(allow_nan=True, places=2, min_value=-(10**9), max_value=10**9),
    st.lists(st.one_of(st.none(), st.integers(-5, 5), st.text(max_size=2)), max_size=3),
    st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=3) | st.floats(), max_size=3),
)
NAMES = ["declared", "number", "new", "other", "Ünïcode"]
ROW = st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=4)
SCHEMA = {"declared": "string", "number": "int"}


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(calls=st.lists(st.lists(ROW, min_size=1, max_size=4), min_size=1, max_size=4), between=st.booleans())
def test_receipts_add_up_to_what_is_committed_and_quarantined(
    store: Store, numbers: Any, calls: list[list[dict[str, Any]]], between: bool
) -> None:
    """Whatever the rows: `receipt.rows` are read back, `receipt.quarantined` are in quarantine, and none else."""
    dataset = f"d{next(numbers)}"
    store.add_dataset(dataset, schema=SCHEMA)
    taken = quarantined = 0
    for rows in calls:
        try:
            receipt = store.capture(dataset, rows)
        except Permanent:
            continue  # refused as a whole
        assert receipt.rows + receipt.quarantined == len(rows)
        taken, quarantined = taken + receipt.rows, quarantined + receipt.quarantined
        if between:
            store.seal(dataset)
    store.flush(dataset)
    assert len(rows_of(store, dataset)) == taken
    assert len(store.quarantine.entries(dataset)) == quarantined


@pytest.fixture
def numbers() -> Any:
    return itertools.count()


EVERY_KIND: list[dict[str, Any]] = [
    {
        "t": True,
        "n": -(2**63),
        "d": 0.1,
        "s": "žluťoučký \u2028 \x7f",
        "b": b"\x00\xff",
        "at": dt.datetime(2026, 1, 31, 12, 0, 0, 123456, tzinfo=dt.UTC),
        "day": dt.date(1969, 12, 31),
        "m": Decimal("12.30"),
        "l": [1, None, 3],
    },
    {"t": None, "n": 2**63 - 1, "d": 1e300, "s": "", "b": b"", "m": Decimal("-0.01"), "l": []},
    dict.fromkeys(["t", "n", "d", "s", "b", "at", "day", "m", "l"]),
]
TYPES = {
    "t": "boolean",
    "n": "long",
    "d": "double",
    "s": "string",
    "b": "binary",
    "at": "timestamp",
    "day": "date",
    "m": "decimal(10,2)",
    "l": "list<long>",
}


def test_arrow_and_dicts_make_the_same_rows(store: Store, lake: MemoryLake) -> None:
    """The content id is a function of the row, not of the way it came."""
    for name in ("dicts", "arrow"):
        store.add_dataset(name, schema=TYPES)
    store.capture("dicts", EVERY_KIND)
    [declared] = [item for item in store.datasets() if item.name == "arrow"]
    table = pa.Table.from_pylist(
        [{name: row.get(name) for name in TYPES} for row in EVERY_KIND], schema=declared.schema.arrow()
    )
    store.capture("arrow", table)
    store.capture("arrow", table.to_batches()[0])
    assert store.flush("dicts").rows == 3
    assert store.flush("arrow").rows == 6
    ids = {name: _content_ids(lake, f"{name}_g1") for name in ("dicts", "arrow")}
    assert ids["arrow"] == ids["dicts"] * 2
    assert rows_of(store, "arrow") == rows_of(store, "dicts") * 2
    assert rows_of(store, "dicts") == [{name: row.get(name) for name in TYPES} for row in EVERY_KIND]


def _content_ids(lake: MemoryLake, table: str) -> list[str]:
    state = lake.load(table)
    assert state is not None
    assert state.head is not None
    parts = [lake.data[file] for file in lake.tables[table].files[state.head]]
    return [id for part in parts for id in part[CONTENT_ID].to_pylist()]


def test_a_bad_row_in_an_arrow_table_is_quarantined_like_any_other(store: Store) -> None:
    store.add_dataset("events", schema={"j": "json"})
    receipt = store.capture("events", pa.table({"id": [1, 2, 3], "j": ["{}", "{", "[1]"]}))
    assert (receipt.rows, receipt.quarantined) == (2, 1)
    store.flush("events")
    assert [row["id"] for row in rows_of(store)] == [1, 3]
    [entry] = store.quarantine.entries("events")
    assert "not JSON" in entry.reason


def test_a_line_too_long_for_the_landing_log_becomes_a_segment(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sealing would have to hold all of it at once; the rows are the same."""
    monkeypatch.setattr("floodmark.spool.capture.LINE_BYTES_MAX", 100)
    store.add_dataset("events")
    rows = [{"id": id, "text": "x" * 20} for id in range(10)]
    assert store.capture("events", rows).rows == 10
    assert not (store.path / "spool/events/landing").exists()
    assert store.capture("events", [*rows, {"id": "bad", "text": "x"}]).quarantined == 1
    store.flush("events")
    assert rows_of(store) == rows * 2
    assert len(store.quarantine.entries("events")) == 1
