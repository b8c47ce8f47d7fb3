"""The content hash: one name per row for good, whatever the table around it looks like."""

# ruff: noqa: DTZ001 - times without a zone are part of what is tested

from __future__ import annotations

import datetime as dt
import hashlib
import io
import math
import struct
from collections import defaultdict
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floodmark.errors import SchemaConflict
from floodmark.rows import content
from floodmark.rows.content import PartitionRows, content_ids, partition_stats, tally
from floodmark.rows.fit import fit
from floodmark.schema import Schema, partition_key
from floodmark.sequence import Tally

SCHEMA = Schema.declare(
    {
        "t": "boolean",
        "i": "int",
        "l": "long",
        "f": "float",
        "g": "double",
        "d": "decimal(12,2)",
        "s": "string",
        "b": "binary",
        "day": "date",
        "at": "timestamp",
        "j": "json",
        "v": "list<decimal(5,2)>",
        "k": "struct<a:long,b:list<struct<c:timestamp,d:double>>,e:binary>",
    }
)
ROW = {
    "t": True,
    "i": -1,
    "l": 2**40,
    "f": 0.5,
    "g": 0.1,
    "d": Decimal("10.50"),
    "s": "grün",
    "b": b"\x00\xff",
    "day": dt.date(2026, 1, 31),
    "at": dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC),
    "j": {"b": 1, "a": None},
    "v": [Decimal("1.50"), None],
    "k": {"a": 1, "b": [{"c": dt.datetime(1970, 1, 1), "d": math.nan}, None], "e": b"\x01"},
}


def table_of(rows, schema=SCHEMA):
    names = [name for name in schema.names if any(name in row for row in rows)]
    result = fit(schema, names, [[row.get(name) for row in rows] for name in names], len(rows))
    assert result.misfits == []
    return result.table


def ids(table):
    return content_ids(table)[0].to_pylist()


# ---- the format, for good ----

GOLDEN = {
    "t": "395dc13489f8bdc3790fb3a2ee83a5f7",
    "i": "4e9e468120ee3bb143c327c80e48ab2e",
    "l": "04d124bd6fc0e16fac80d93b28319a9e",
    "f": "fab1a7e0c46bade6a2046b2373ca1c4b",
    "g": "9b92369b0bac88df4e09d2aab905840b",
    "d": "d598655f3ba4a3f2fa99b5e62224e7f6",
    "s": "c3c06d1322c89b25935cdc8083ada34f",
    "b": "68da2a8887afb32d3525683f2302190b",
    "day": "e429ccf143badcc6dd44ac357808cdad",
    "at": "9de2bd6642d0ded1d841d9ffce799800",
    "j": "c3c2ad3017fa85d4e22f46b12c268893",
    "v": "85e280691a861d801599217650e7974a",
    "k": "d5e0903e1a70eef61c20ecd9410151ec",
}


def test_the_format_is_as_documented():
    def name(text):
        return struct.pack("<I", len(text)) + text

    def sized(text):
        return struct.pack("<I", len(text)) + text

    expected = b"".join(
        [
            name(b"at") + b"T" + struct.pack("<q", 1769860800000000),
            name(b"b") + b"b" + sized(b"\x00\xff"),
            name(b"d") + b"d" + sized(b"10.5"),
            name(b"day") + b"D" + struct.pack("<q", 20484),
            name(b"f") + b"f" + struct.pack("<d", 0.5),
            name(b"g") + b"f" + struct.pack("<d", 0.1),
            name(b"i") + b"i" + struct.pack("<q", -1),
            name(b"j") + b"s" + sized(b'{"a":null,"b":1}'),
            name(b"k") + b"n" + sized(b'{"a":"i1","b":[{"c":"T0","d":"f9221120237041090560"},null],"e":"b01"}'),
            name(b"l") + b"i" + struct.pack("<q", 2**40),
            name(b"s") + b"s" + sized("grün".encode()),
            name(b"t") + b"t\x01",
            name(b"v") + b"n" + sized(b'["d1.5",null]'),
        ]
    )
    assert content.row_bytes(table_of([ROW])) == [expected]
    assert ids(table_of([ROW])) == [hashlib.blake2b(expected, digest_size=16).hexdigest()]


def test_ids_never_drift():
    assert ids(table_of([ROW])) == ["58874a40a8ba424aa541088b55ef550b"]
    assert {name: ids(table_of([{name: ROW[name]}]))[0] for name in ROW} == GOLDEN
    assert ids(fit(Schema(), [], [], 2).table) == ["cae66941d9efbd404e4d88758ea67670"] * 2


def test_prefixes_are_the_first_half_of_the_ids():
    table = table_of([{"l": n} for n in range(5)])
    texts, prefixes = content_ids(table)
    assert texts.type == pa.string()
    assert [f"{prefix:016x}" for prefix in prefixes] == [text[:16] for text in texts.to_pylist()]
    assert content_ids(table.slice(0, 0)) == (pa.array([], pa.string()), [])


# ---- what changes nothing ----

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
moments = st.datetimes(timezones=st.just(dt.UTC))
values = {
    "t": st.booleans(),
    "i": st.integers(-(2**31), 2**31 - 1),
    "l": st.integers(-(2**63), 2**63 - 1),
    "f": st.floats(width=32),
    "g": st.floats(),
    "d": st.integers(-(10**12) + 1, 10**12 - 1).map(lambda n: Decimal(n).scaleb(-2)),
    "s": texts,
    "b": st.binary(max_size=6),
    "day": st.dates(),
    "at": moments,
    "j": st.dictionaries(texts, st.integers(-5, 5), max_size=2),
    "v": st.lists(st.none() | st.integers(-99999, 99999).map(lambda n: Decimal(n).scaleb(-2)), max_size=3),
    "k": st.fixed_dictionaries(
        {},
        optional={
            "a": st.none() | st.integers(-9, 9),
            "b": st.none() | st.lists(st.fixed_dictionaries({}, optional={"c": moments, "d": st.floats()}), max_size=2),
            "e": st.none() | st.binary(max_size=2),
        },
    ),
}
rows = st.fixed_dictionaries({}, optional={name: st.none() | kind for name, kind in values.items()})
tables = st.lists(rows, min_size=1, max_size=5)


@given(tables, st.randoms(use_true_random=False))
def test_the_order_of_columns_changes_nothing(some, random):
    table = table_of(some)
    names = table.column_names
    random.shuffle(names)
    assert ids(table.select(names)) == ids(table)


@given(tables)
def test_null_and_absent_are_one_and_each_row_is_its_own(some):
    whole = ids(table_of([dict.fromkeys(SCHEMA.names, None) | row for row in some]))
    alone = [ids(table_of([{name: value for name, value in row.items() if value is not None}]))[0] for row in some]
    assert whole == alone


@given(tables)
def test_widening_changes_nothing(some):
    wider = Schema.declare({**{c.name: c.text for c in SCHEMA}, "i": "long", "f": "double", "d": "decimal(38,6)"})
    assert ids(table_of(some, wider)) == ids(table_of(some))


@given(tables)
def test_system_columns_change_nothing(some):
    table = table_of(some)
    for name in ("_ingest_seq", "_Ingest_Id", "_origin_seq"):
        stamped = table.append_column(name, pa.array(range(len(some)), pa.int64()))
        assert ids(stamped) == ids(table)


@settings(max_examples=30)
@given(tables)
def test_chunks_slices_and_parquet_change_nothing(some):
    table = table_of([{"l": 0, "v": [Decimal(1)]}, *some, {"s": "x"}])
    expected = ids(table)
    assert ids(pa.concat_tables([table.slice(0, 1), table.slice(1)])) == expected
    assert ids(table.slice(1)) == expected[1:]
    file = io.BytesIO()
    pq.write_table(table, file)
    assert ids(pq.read_table(file)) == expected


def test_a_struct_field_that_came_later_changes_nothing():
    before = pa.table({"k": pa.array([{"a": 1}], pa.struct([("a", pa.int64())]))})
    after = pa.table({"k": pa.array([{"a": 1}], pa.struct([("z", pa.string()), ("a", pa.int64())]))})
    assert ids(before) == ids(after)


def test_large_rows_are_hashed_in_small_slices(monkeypatch):
    table = table_of([{"s": "x" * 100, "l": n} for n in range(50)])
    expected = ids(table)
    monkeypatch.setattr(content, "SLICE_BYTES", 300)
    assert ids(table) == expected
    monkeypatch.setattr(content, "SLICE_ROWS", 7)
    assert ids(table) == expected


def test_every_nan_is_the_same():
    other = struct.unpack("<d", struct.pack("<Q", 0xFFF8000000000001))[0]
    assert len(set(ids(pa.table({"x": pa.array([math.nan, other, float("-nan")])})))) == 1


# ---- what changes everything ----


def meaning(row):
    """The row as it would be compared: nulls absent, NaN equal to itself, -0.0 not 0.0."""

    def plain(value):
        if isinstance(value, float):
            return "nan" if math.isnan(value) else struct.pack("<d", value)
        if isinstance(value, dict):
            return tuple(sorted((k, plain(v)) for k, v in value.items() if v is not None))
        if isinstance(value, list):
            return tuple(None if v is None else plain(v) for v in value)
        return value

    return tuple(sorted((name, repr(plain(value))) for name, value in row.items() if value is not None))


@settings(max_examples=100)
@given(st.lists(rows, min_size=2, max_size=8))
def test_rows_have_one_id_exactly_if_they_are_equal(some):
    stored = table_of(some)
    found = ids(stored)
    by_id, by_meaning = defaultdict(set), defaultdict(set)
    for index, row in enumerate(stored.to_pylist()):
        by_id[found[index]].add(index)
        by_meaning[meaning(row)].add(index)
    assert sorted(map(sorted, by_id.values())) == sorted(map(sorted, by_meaning.values()))


@given(rows, st.sampled_from(sorted(values)), st.data())
def test_any_changed_value_changes_the_id(row, name, data):
    other = {**row, name: data.draw(st.none() | values[name])}
    first, second = table_of([row, other]).to_pylist()
    assert (ids(table_of([row])) == ids(table_of([other]))) == (meaning(first) == meaning(second))


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ({"a": "a", "b": "bc"}, {"a": "ab", "b": "c"}),
        ({"a": "x"}, {"b": "x"}),
        ({"ab": "x"}, {"a": "bx"}),
        ({"a": ""}, {}),
        ({"a": "1"}, {"a": 1}),
        ({"a": 1}, {"a": 1.0}),
        ({"a": 1}, {"a": True}),
        ({"a": "x"}, {"a": b"x"}),
        ({"a": 0.0}, {"a": -0.0}),
        ({"a": dt.date(1970, 1, 2)}, {"a": 1}),
        ({"a": dt.datetime(1970, 1, 1)}, {"a": 0}),
        ({"a": [1]}, {"a": ["1"]}),
        ({"a": ["a,b"]}, {"a": ["a", "b"]}),
        ({"a": [None, 1]}, {"a": [1]}),
    ],
)
def test_rows_that_look_alike_are_told_apart(left, right):
    assert ids(fit(Schema(), list(left), [[v] for v in left.values()], 1).table) != ids(
        fit(Schema(), list(right), [[v] for v in right.values()], 1).table
    )


@pytest.mark.parametrize("kind", [pa.uint64(), pa.timestamp("ns"), pa.time64("us"), pa.list_(pa.duration("s"))])
def test_types_that_no_dataset_has_are_refused(kind):
    with pytest.raises(SchemaConflict, match="'x'"):
        content_ids(pa.table({"x": pa.array([[0]] if pa.types.is_list(kind) else [0], kind)}))


# ---- figures ----


def test_a_tally_is_the_count_and_the_sum():
    assert tally([]) == Tally()
    assert tally([2**64 - 1, 3]) == Tally(2, 2)


def test_a_table_without_partitions_is_one():
    table = table_of([{"l": 1}, {"l": 2}])
    assert partition_stats(table, [5, 2**64 - 1], []) == [PartitionRows("all", Tally(2, 4), 0, 1)]
    assert partition_stats(table.slice(0, 0), [], []) == []
    assert partition_stats(table.slice(0, 0), [], ["l"]) == []
    assert partition_stats(table, [1, 2], ["gone"]) == [PartitionRows("gone!", Tally(2, 3), 0, 1)]
    with pytest.raises(ValueError, match="prefixes"):
        partition_stats(table, [1], [])


@given(
    st.lists(
        st.tuples(
            st.fixed_dictionaries(
                {
                    "s": st.none() | st.sampled_from(["", "a", "ü/"]),
                    "t": st.none() | st.booleans(),
                    "day": st.none() | st.just(dt.date(2026, 1, 1)),
                    "l": st.none() | st.integers(0, 1),
                }
            ),
            st.integers(0, 2**64 - 1),
        ),
        max_size=12,
    ),
    st.permutations(["s", "t", "day", "l"]),
    st.integers(0, 4),
)
def test_figures_are_what_counting_one_by_one_gives(some, names, count):
    by = names[:count]
    table = table_of([row for row, _ in some])
    expected = {}
    for index, (row, prefix) in enumerate(some):
        key = partition_key(by, [row[name] for name in by])
        was = expected.get(key, PartitionRows(key, Tally(), index, index))
        expected[key] = PartitionRows(key, was.tally + Tally(1, prefix), was.first_row, index)
    assert partition_stats(table, [prefix for _, prefix in some], by) == list(expected.values())


def test_partition_columns_may_be_called_like_anything():
    table = pa.table({"prefix": ["a"], "row": ["b"], "k0": ["c"]})
    assert partition_stats(table, [7], ["row", "prefix", "k0"]) == [
        PartitionRows("row=b/prefix=a/k0=c", Tally(1, 7), 0, 0)
    ]
