"""A process that seals what it captured need not parse it again; what it seals is what the parser would have made."""

from __future__ import annotations

import itertools
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from spooling import landing_of, rows_of

from floodmark.control import segments
from floodmark.errors import Permanent
from floodmark.rows.plain import ROWS_MAX
from floodmark.schema import SEGMENT
from floodmark.spool import sealing
from floodmark.store import Store, open_store
from floodmark.testing import MemoryLake

SCHEMA = {
    "id": "long",
    "small": "int",
    "text": "string",
    "ratio": "double",
    "half": "float",
    "on": "boolean",
    "at": "timestamp",
    "day": "date",
    "price": "decimal(12,2)",
    "doc": "json",
}
TIMES = st.datetimes().map(lambda at: at.isoformat()) | st.sampled_from(
    ["2026-01-31 12:00:00Z", "2026-01-31T12:00:00.5+02:00", "no time"]
)
LIKELY = {
    "id": st.integers(-(2**63), 2**63 - 1),
    "small": st.integers(-(2**31), 2**31 - 1),
    "text": st.text(max_size=5),
    "ratio": st.floats(),
    "half": st.floats(width=32),
    "on": st.booleans(),
    "at": TIMES,
    "day": st.dates().map(str) | st.just("no day"),
    "price": st.integers(-(10**9), 10**9) | st.floats(-1000, 1000),
    "doc": st.dictionaries(st.text(max_size=2), st.floats() | st.integers(), max_size=2),
}
ODD = st.none() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=3) | st.datetimes() | st.booleans()


@st.composite
def calls(draw: Any) -> list[list[dict[str, Any]]]:
    """Calls of a few columns each, mostly of values that fit, sometimes of any, and sometimes of a new column."""
    made = []
    for _ in range(draw(st.integers(1, 4))):
        names = draw(st.lists(st.sampled_from(sorted(LIKELY)), min_size=1, max_size=4, unique=True))
        new = [f"new{draw(st.integers(0, 1))}"] if draw(st.integers(0, 5)) == 0 else []
        odd = {name for name in names if draw(st.integers(0, 4)) == 0}
        kinds = {name: ODD if name in odd else LIKELY[name] for name in names} | dict.fromkeys(new, ODD)
        count = draw(st.integers(1, 3))
        rows = [{name: draw(kind) for name, kind in kinds.items()} for _ in range(count)]
        made.append(rows * (ROWS_MAX // count + 1))  # as many as are checked as whole columns
    return made


@pytest.fixture
def numbers() -> Any:
    return itertools.count()


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(calls=calls(), between=st.booleans())
def test_whatever_the_rows_memory_and_the_parser_give_the_same(
    store: Store, numbers: Any, calls: list[list[dict[str, Any]]], between: bool
) -> None:
    remembering, parsing = f"m{next(numbers)}", f"p{next(numbers)}"
    for dataset in (remembering, parsing):
        store.add_dataset(dataset, schema=SCHEMA)
    store.seal(remembering)
    for rows in calls:
        for dataset in (remembering, parsing):
            with suppress(Permanent):  # refused as a whole, by both
                store.capture(dataset, rows)
        if between:
            store.seal(remembering)
    for dataset in (remembering, parsing):
        store.seal(dataset)
    assert sealed(store, remembering) == sealed(store, parsing)
    schemas = {item.name: item.schema for item in store.datasets()}
    assert schemas[remembering] == schemas[parsing]
    assert len(store.quarantine.entries(remembering)) == len(store.quarantine.entries(parsing))


def sealed(store: Store, dataset: str) -> list[str]:
    """The rows of the segments with their content ids, in order, as text: then NaN equals itself."""
    waiting = store.engine.database.read(lambda c: segments.sealed(c, dataset))
    tables = [pq.read_table(store.path / one.path).drop_columns([SEGMENT]) for one in waiting]
    rows = pa.concat_tables(tables, promote_options="permissive") if tables else pa.table({})
    return [
        str(rows.select(sorted(rows.column_names)).schema.remove_metadata()),
        *(str(sorted(row.items())) for row in rows.to_pylist()),
    ]


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The lines that sealing parses."""
    found: list[bytes] = []
    parse = sealing.decode_envelope

    def watched(line: bytes) -> Any:
        found.append(line)
        return parse(line)

    monkeypatch.setattr(sealing, "decode_envelope", watched)
    return found


def batch(first: int = 0, **more: Any) -> list[dict[str, Any]]:
    return [{"id": first + n, "text": f"row {n}", "ratio": n / 7, **more} for n in range(ROWS_MAX + 4)]


def test_what_this_process_captured_is_not_parsed_again(store: Store, parsed: list[bytes]) -> None:
    store.add_dataset("events", schema=SCHEMA)
    store.flush("events")
    store.capture("events", batch())
    store.capture("events", batch(100, at="2026-01-31T12:00:00Z"))
    store.flush("events")
    assert parsed == []
    assert [row["id"] for row in rows_of(store)] == [*range(ROWS_MAX + 4), *range(100, 104 + ROWS_MAX)]
    assert store.engine.line_cache.size == 0


def test_a_process_that_never_seals_keeps_nothing_in_memory(store: Store) -> None:
    store.add_dataset("events", schema=SCHEMA)
    store.capture("events", batch())
    assert store.engine.line_cache.size == 0


def test_the_landing_log_decides_not_the_memory_of_it(store: Store, parsed: list[bytes]) -> None:
    store.add_dataset("events", schema=SCHEMA)
    store.flush("events")
    store.capture("events", batch())
    (file,) = landing_of(store)
    file.write_bytes(file.read_bytes().replace(b"row 1", b"ROW 1"))
    store.flush("events")
    assert len(parsed) == 1
    assert rows_of(store)[1]["text"] == "ROW 1"


@pytest.mark.parametrize("rows", [{"small": 2**40}, {"new": 1}])
def test_rows_that_were_fitted_to_an_older_schema_are_parsed(
    store: Store, lake: MemoryLake, parsed: list[bytes], rows: dict[str, Any]
) -> None:
    store.add_dataset("events", schema=SCHEMA)
    store.flush("events")
    store.capture("events", batch(small=1))
    with open_store(store.path, lake=lake) as other:
        other.capture("events", [rows])  # the dataset grows
    store.flush("events")
    assert len(parsed) == 2
    assert [row["small"] for row in rows_of(store) if row["text"]] == [1] * (ROWS_MAX + 4)


def test_memory_is_bounded_and_what_left_it_is_parsed(store: Store, parsed: list[bytes]) -> None:
    store.add_dataset("events", schema=SCHEMA)
    store.flush("events")
    store.engine.line_cache.bytes_max = 4_000
    for turn in range(10):
        store.capture("events", batch(100 * turn))
        assert store.engine.line_cache.size <= 4_000
    store.flush("events")
    assert 0 < len(parsed) < 10
    assert [row["id"] for row in rows_of(store)] == [100 * turn + n for turn in range(10) for n in range(ROWS_MAX + 4)]
