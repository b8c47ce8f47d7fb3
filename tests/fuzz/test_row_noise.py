"""Rows and tables of any kind: taken and delivered as they were counted, or refused and not stored."""

from __future__ import annotations

import contextlib
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from noise import HALVES, JSON, PYTHON, TEXTS, altered
from trying import Stand, fresh, inputs, refusal, rows_of

from floodmark.store import Store

KEYS = TEXTS | HALVES | st.sampled_from(["id", "text", "at", "price", "tags", "one"])
ROWS = st.one_of(
    st.lists(st.dictionaries(KEYS, PYTHON, max_size=3), min_size=1, max_size=4),
    st.lists(st.dictionaries(KEYS, JSON, max_size=3) | PYTHON, max_size=3),
    st.lists(st.fixed_dictionaries({"id": st.integers(0, 9)}, optional={"text": PYTHON, "at": PYTHON}), min_size=1),
    altered([{"id": 1, "text": "x"}, {"id": 2, "text": "y"}], PYTHON),
    PYTHON,
)
SCHEMAS = st.sampled_from(
    [
        None,
        {"id": "long", "text": "string"},
        {"id": "int not null", "at": "timestamp", "text": "json"},
        {"text": "list<struct<a:decimal(5,2),b:list<json>>>", "at": "date", "id": "double"},
        {"text": "binary", "id": "decimal(38,0)", "at": "float"},
        {"text": "struct<a:json,b:string>", "id": "boolean"},
    ]
)


def waiting(store: Store, dataset: str) -> tuple[int, int]:
    return store.spool.backlog_bytes(dataset), len(store.quarantine.entries(dataset))


def tried(store: Store, dataset: str, kind: str, rows: Any) -> None:
    before = waiting(store, dataset)
    receipt, error = refusal(kind, lambda: store.capture(dataset, rows))
    if error is not None:
        assert waiting(store, dataset) == before
    report, failed = refusal(kind, lambda: store.flush(dataset))
    assert failed is None, failed
    assert report is not None
    assert len(rows_of(store, dataset)) == (receipt.rows if receipt is not None else 0)
    assert len(store.quarantine.entries(dataset)) == before[1] + (receipt.quarantined if receipt is not None else 0)


@given(rows=ROWS, schema=SCHEMAS)
@inputs(30)
def test_rows_are_stored_as_counted_or_not_at_all(stands: Stand, rows: Any, schema: Any) -> None:
    stand = stands.again()
    dataset = fresh("rows")
    stand.add_dataset(dataset, schema=schema)
    tried(stand, dataset, "captured rows", rows)


# ── Arrow ────────────────────────────────────────────────────────────────────────────────────────────────────────────

TYPES = st.recursive(
    st.sampled_from(
        [
            pa.null(),
            pa.bool_(),
            pa.int8(),
            pa.uint64(),
            pa.int64(),
            pa.float16(),
            pa.float64(),
            pa.string(),
            pa.large_string(),
            pa.string_view(),
            pa.binary(),
            pa.binary(3),
            pa.date32(),
            pa.date64(),
            pa.timestamp("ns", tz="Europe/Paris"),
            pa.timestamp("s"),
            pa.time64("us"),
            pa.duration("s"),
            pa.decimal128(38, 2),
            pa.decimal256(70, 1),
            pa.month_day_nano_interval(),
            pa.dictionary(pa.int8(), pa.string()),
            pa.json_(pa.string()),
            pa.uuid(),
        ]
    ),
    lambda inner: st.one_of(
        inner.map(pa.list_),
        inner.map(pa.large_list),
        inner.map(pa.list_view),
        inner.map(lambda kind: pa.list_(kind, 2)),
        inner.map(lambda kind: pa.struct([("a", kind), ("b", pa.int64())])),
        inner.map(lambda kind: pa.struct([pa.field("a", kind), pa.field("A", kind)])),
        inner.map(lambda kind: pa.map_(pa.string(), kind)),
    ),
    max_leaves=3,
)
NAMES = st.sampled_from(["id", "text", "at", "ID", "", "_ingest_seq", "a.b", "x" * 300, "a`b", "\n", "id "]) | TEXTS
SAMPLES: list[Any] = [
    None,
    True,
    1,
    -5,
    2**40,
    1.5,
    float("nan"),
    "x",
    "{}",
    "2026-01-01",
    b"abc",
    [1, 2],
    ["a", None],
    {"a": 1, "b": 2},
    [("k", None)],
]


def column_of(kind: pa.DataType, picks: list[int]) -> pa.Array:
    """An array of the type, with as many of the values as it will have."""
    storage = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
    values = []
    for pick in picks:
        value = SAMPLES[pick % len(SAMPLES)]
        try:
            pa.array([value], storage)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            value = None
        values.append(value)
    with contextlib.suppress(pa.ArrowException, TypeError, ValueError, NotImplementedError):
        made = pa.array(values, storage)
        return pa.ExtensionArray.from_storage(kind, made) if storage is not kind else made
    return pa.nulls(len(picks), pa.int64())


@st.composite
def tables(draw: Any) -> Any:
    rows = draw(st.integers(0, 4))
    fields = draw(st.lists(st.tuples(NAMES, TYPES), max_size=4))
    arrays = [column_of(kind, draw(st.lists(st.integers(0, 99), min_size=rows, max_size=rows))) for _, kind in fields]
    names = [name for name, _ in fields]
    made = pa.Table.from_arrays(arrays, names=names) if arrays else pa.table({})
    if arrays and draw(st.booleans()):
        return made.combine_chunks().to_batches()[0] if made.num_rows else made
    return made


@given(table=tables(), schema=SCHEMAS)
@inputs(25)
def test_tables_are_stored_as_counted_or_not_at_all(stands: Stand, table: Any, schema: Any) -> None:
    stand = stands.again()
    dataset = fresh("tables")
    stand.add_dataset(dataset, schema=schema)
    tried(stand, dataset, "Arrow tables", table)


def test_arrays_that_are_no_arrays_are_refused(stands: Stand) -> None:
    """What no library makes, and a buffer from elsewhere may hold."""
    stand = stands.again()
    no_text = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"\xff\xfe")]
    )
    stand.add_dataset("torn")
    tried(stand, "torn", "Arrow tables", pa.Table.from_arrays([no_text], names=["text"]))
    assert rows_of(stand, "torn") == []
