"""Schemas: types as text, names, additive change, identity and partition keys."""

from __future__ import annotations

import datetime as dt
import subprocess
import sys

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from floodmark.errors import Corrupt, FloodmarkError, InvalidName, InvalidSetting, SchemaConflict
from floodmark.schema import (
    DOUBLE,
    INT,
    JSON,
    LONG,
    STRING,
    Column,
    DecimalType,
    ListType,
    Schema,
    StructType,
    check_column_name,
    check_dataset_name,
    check_partition_columns,
    is_system_column,
    parse_identity,
    parse_partition_key,
    parse_type,
    partition_key,
)

names = st.text(st.characters(exclude_categories=["Cc", "Cs"], exclude_characters="`"), min_size=1, max_size=20).filter(
    lambda name: name == name.strip() and name
)
simple_types = st.sampled_from(
    [
        parse_type(t)
        for t in ("boolean", "int", "long", "float", "double", "string", "binary", "date", "timestamp", "json")
    ]
) | st.integers(1, 38).flatmap(lambda p: st.integers(0, p).map(lambda s: DecimalType(p, s)))
types = st.recursive(
    simple_types,
    lambda inner: (
        inner.map(ListType)
        | st.lists(st.tuples(names, inner), min_size=1, max_size=3, unique_by=lambda f: f[0].upper().lower()).map(
            lambda fields: StructType(tuple(fields))
        )
    ),
    max_leaves=6,
)


# ---- types ----


@given(types)
def test_a_type_is_its_text(kind):
    assert parse_type(str(kind)) == kind


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("LONG", "long"),
        (" decimal( 12 , 2 ) ", "decimal(12,2)"),
        ("list< struct< a : int , `b c`:list<json> > >", "list<struct<a:int,`b c`:list<json>>>"),
    ],
)
def test_blanks_and_capitals_do_not_matter(text, canonical):
    assert str(parse_type(text)) == canonical


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "a type is expected"),
        ("bigint", "Use long instead"),
        ("lnog", "The types are boolean, int"),
        ("decimal", "'(' is expected"),
        ("decimal(39,0)", "1 to 38 digits"),
        ("decimal(3,4)", "1 to 38 digits"),
        ("decimal(a,1)", "a number is expected"),
        ("list<int", "'>' is expected"),
        ("list<int>>", "nothing more is expected, at character 10"),
        ("struct<>", "a field's name is expected"),
        ("struct<a:int,A:int>", "does not distinguish"),
        ("struct<a int>", "':' is expected"),
        ("list<" * 100_000, "is too long"),
        ("list<" * 5000, "at most 32 levels deep"),
        ("long;drop table x", "nothing more is expected"),
    ],
)
def test_what_is_not_a_type_is_refused_with_its_place(text, reason):
    with pytest.raises(SchemaConflict) as caught:
        parse_type(text)
    assert reason in str(caught.value)


@given(st.text(max_size=60))
def test_no_text_breaks_the_grammar(text):
    try:
        kind = parse_type(text)
    except FloodmarkError:
        return
    assert parse_type(str(kind)) == kind


# ---- declaring ----


def test_a_schema_is_declared_by_a_mapping():
    schema = Schema.declare({"id": "long not null", "at": "timestamp", "tags": "list<string> NOT  NULL"})
    assert schema.names == ("id", "at", "tags")
    assert [column.required for column in schema] == [True, False, True]
    assert schema.column("tags").text == "list<string> not null"
    assert "at" in schema
    assert schema.get("nope") is None
    with pytest.raises(SchemaConflict, match="no column 'nope'"):
        schema.column("nope")


def test_a_schema_is_declared_by_nothing_or_itself():
    assert Schema.declare(None) == Schema()
    assert Schema.declare(Schema.declare({"a": "int"})) == Schema((Column("a", INT),))


@pytest.mark.parametrize("spec", [{"a": 1}, {"a": "nope"}, {"a": "int", "A": "int"}, ["a"], "a"])
def test_other_declarations_are_refused(spec):
    with pytest.raises(SchemaConflict):
        Schema.declare(spec)


@pytest.mark.parametrize(
    ("arrow", "text"),
    [
        (pa.bool_(), "boolean"),
        (pa.int8(), "int"),
        (pa.int16(), "int"),
        (pa.int32(), "int"),
        (pa.uint8(), "int"),
        (pa.uint16(), "int"),
        (pa.uint32(), "long"),
        (pa.int64(), "long"),
        (pa.uint64(), "decimal(20,0)"),
        (pa.float16(), "float"),
        (pa.float32(), "float"),
        (pa.float64(), "double"),
        (pa.decimal128(12, 2), "decimal(12,2)"),
        (pa.decimal256(38, 2), "decimal(38,2)"),
        (pa.string(), "string"),
        (pa.large_string(), "string"),
        (pa.string_view(), "string"),
        (pa.binary(), "binary"),
        (pa.large_binary(), "binary"),
        (pa.binary(4), "binary"),
        (pa.binary_view(), "binary"),
        (pa.date32(), "date"),
        (pa.date64(), "date"),
        (pa.timestamp("s"), "timestamp"),
        (pa.timestamp("ns", "Europe/Berlin"), "timestamp"),
        (pa.dictionary(pa.int8(), pa.string()), "string"),
        (pa.list_(pa.int64()), "list<long>"),
        (pa.large_list(pa.int64()), "list<long>"),
        (pa.list_(pa.int64(), 3), "list<long>"),
        (pa.struct([("a", pa.int8()), ("b", pa.list_(pa.string()))]), "struct<a:int,b:list<string>>"),
        (pa.json_(), "json"),
    ],
)
def test_arrow_types_have_their_column_types(arrow, text):
    schema = Schema.declare(pa.schema([pa.field("x", arrow, nullable=False), pa.field("none", pa.null())]))
    assert [column.text for column in schema] == [f"{text} not null"]


@pytest.mark.parametrize(
    "arrow",
    [
        pa.time64("us"),
        pa.duration("s"),
        pa.map_(pa.string(), pa.int8()),
        pa.decimal256(40, 2),
        pa.decimal128(5, -2),
        pa.struct([]),
        pa.list_(pa.null()),
        pa.uuid(),
        pa.list_view(pa.int8()),
        pa.struct([("a", pa.int8()), ("A", pa.int8())]),
    ],
)
def test_arrow_types_without_a_column_type_are_refused_by_name(arrow):
    with pytest.raises(SchemaConflict, match="'odd'"):
        Schema.declare(pa.schema([("odd", arrow)]))


def test_an_arrow_type_that_nests_too_deep_is_refused():
    deep = pa.int8()
    for _ in range(60):
        deep = pa.list_(deep)
    with pytest.raises(SchemaConflict, match="'odd'"):
        Schema.declare(pa.schema([("odd", deep)]))


@given(st.lists(st.tuples(names.map(lambda n: f"c{n}"[:200].strip()), types, st.booleans()), max_size=5))
def test_a_schema_survives_its_text_and_arrow(parts):
    try:
        schema = Schema(tuple(Column(*part) for part in parts))
    except SchemaConflict:
        return  # two of the names are one
    assert Schema.from_json(schema.to_json()) == schema
    assert schema.arrow().names == list(schema.names)
    assert Schema.declare(schema.arrow()).arrow() == schema.arrow()


def test_the_stored_text_never_drifts():
    schema = Schema.declare({"id": "long not null", "ö": "struct<a:decimal(3,1)>"})
    assert schema.to_json() == '{"version":1,"columns":[["id","long not null"],["ö","struct<a:decimal(3,1)>"]]}'


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"version":2,"columns":[]}',
        '{"version":1,"columns":[["a"]]}',
        '{"version":1,"columns":[["a","x"]]}',
        '{"version":1,"columns":[["a",1]]}',
    ],
)
def test_a_damaged_stored_schema_is_corruption(text):
    with pytest.raises(Corrupt):
        Schema.from_json(text)


def test_arrow_of_named_columns_keeps_their_order():
    schema = Schema.declare({"a": "int", "b": "timestamp", "c": "json not null"})
    assert schema.arrow(["c", "b"]) == pa.schema(
        [pa.field("c", pa.string(), nullable=False), pa.field("b", pa.timestamp("us", "UTC"))]
    )


def test_names_that_collide_in_icebergs_index_are_refused():
    with pytest.raises(SchemaConflict, match=r"a\.b"):
        Schema.declare({"a": "struct<b:int>", "a.b": "int"})


# ---- evolving ----


def test_new_columns_are_appended_and_widths_grow():
    schema = Schema.declare({"a": "int not null", "b": "float", "c": "string"})
    merged = schema.merge([Column("d", STRING), Column("a", LONG), Column("b", DOUBLE)])
    assert [(c.name, c.text) for c in merged] == [
        ("a", "long not null"), ("b", "double"), ("c", "string"), ("d", "string"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("have", "came"),
    [
        ("long", "int"),
        ("double", "float"),
        ("long", "long"),
        ("decimal(12,2)", "decimal(10,2)"),
        ("list<long>", "list<int>"),
        ("struct<a:long,b:string>", "struct<b:string>"),
    ],
)
def test_what_fits_as_it_is_changes_nothing(have, came):
    schema = Schema.declare({"x": have})
    assert schema.merge([Column("x", parse_type(came))]) is schema


@pytest.mark.parametrize(
    ("have", "came"),
    [
        ("string", "long"),
        ("long", "double"),
        ("int", "double"),
        ("double", "long"),
        ("decimal(10,2)", "decimal(12,2)"),
        ("decimal(10,2)", "decimal(10,3)"),
        ("list<int>", "list<long>"),
        ("struct<a:long>", "struct<a:long,b:string>"),
        ("json", "string"),
        ("timestamp", "date"),
    ],
)
def test_any_other_change_is_refused_naming_both_types(have, came):
    with pytest.raises(SchemaConflict) as caught:
        Schema.declare({"x": have}).merge([Column("x", parse_type(came))])
    assert "'x'" in caught.value.message
    assert f" {have}," in caught.value.message
    assert f" {came}." in caught.value.message
    assert caught.value.hint


def test_a_new_required_column_is_refused():
    with pytest.raises(SchemaConflict, match="not null"):
        Schema().merge([Column("x", LONG, required=True)])


@pytest.mark.parametrize("name", ["ID", "Id", "\u0131d"])
def test_a_name_that_differs_only_in_case_is_refused(name):
    with pytest.raises(SchemaConflict, match="do not distinguish"):
        Schema.declare({"id": "long"}).merge([Column(name, LONG)])


@given(st.lists(st.tuples(st.sampled_from("abc"), simple_types), max_size=6))
def test_merging_again_changes_nothing(parts):
    schema = Schema()
    try:
        for name, kind in parts:
            schema = schema.merge([Column(name, kind)])
    except SchemaConflict:
        return
    assert schema.merge(schema.columns) is schema
    assert schema.merge([Column(name, kind) for name, kind in parts]) is schema


# ---- names ----


@pytest.mark.parametrize("name", ["a", "A b", "größe", "a.b", "_x", "x" * 255, "ingest_id", "_rowid", "SELECT", "日本"])
def test_these_name_columns(name):
    assert check_column_name(name) == name


@pytest.mark.parametrize(
    "name",
    ["", " a", "a ", "a\n", "a\x00b", "a`b", "x" * 256, "_ingest_seq", "_INGEST_x", "_origin_store", "_row_id",
     "_Pos", "_metadata", "_change_type", "\ud800", 1, None, b"a"],
)  # fmt: skip
def test_these_do_not_and_the_reason_is_told(name):
    with pytest.raises(InvalidName) as caught:
        check_column_name(name)
    assert caught.value.hint


@pytest.mark.parametrize("name", ["a", "readings", "a1_b", "a" * 63])
def test_these_name_datasets(name):
    assert check_dataset_name(name) == name


@pytest.mark.parametrize("name", ["", "A", "1a", "_a", "a-b", "a.b", "a" * 64, "a\n", "ä", None, 1])
def test_these_do_not_name_datasets(name):
    with pytest.raises(InvalidName, match="cannot name a dataset"):
        check_dataset_name(name)


def test_system_columns_are_known():
    assert is_system_column("_ingest_seq")
    assert is_system_column("_ORIGIN_x")
    assert not is_system_column("ingest_seq")


# ---- identity ----


@pytest.mark.parametrize(
    ("value", "identity"),
    [
        (None, ()),
        ([], ()),
        (["a"], (("a",),)),
        (("a", "b"), (("a", "b"),)),
        ([["a"], ["b", "c"]], (("a",), ("b", "c"))),
    ],
)
def test_identities_are_read(value, identity):
    assert parse_identity(value) == identity


@pytest.mark.parametrize(
    "value", ["a", 1, {"a": 1}, [1], ["a", ["b"]], [[]], [["a"], []], ["a", "A"], [["a"], ["a"]], [["a", 1]]]
)
def test_other_identities_are_refused(value):
    with pytest.raises(InvalidSetting, match="identity"):
        parse_identity(value)


def test_an_identity_of_a_bad_name_is_refused():
    with pytest.raises(InvalidName):
        parse_identity(["_ingest_id"])


# ---- partition keys ----

KEYED = Schema.declare({"s": "string", "i": "int", "l": "long", "b": "boolean", "d": "date", "a/b=c!": "string"})
KEY_COLUMNS = ["s", "i", "l", "b", "d", "a/b=c!"]


@given(
    st.tuples(
        st.none() | st.text(st.characters(exclude_categories=["Cs"])),
        st.none() | st.integers(-(2**31), 2**31 - 1),
        st.none() | st.integers(-(2**63), 2**63 - 1),
        st.none() | st.booleans(),
        st.none() | st.dates(),
        st.none() | st.text(st.characters(exclude_categories=["Cs"])),
    )
)
def test_partition_keys_round_trip(values):
    key = partition_key(KEY_COLUMNS, values)
    assert parse_partition_key(KEY_COLUMNS, key, KEYED) == values
    assert set(key) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-%=/!")


@pytest.mark.parametrize(
    ("columns", "values", "key"),
    [
        ([], [], "all"),
        (["s"], ["a b/ü~"], "s=a%20b%2F%C3%BC%7E"),
        (["s"], [""], "s="),
        (["s"], [None], "s!"),
        (["b", "d"], [True, dt.date(2026, 1, 31)], "b=true/d=2026-01-31"),
        (["a/b=c!"], ["x"], "a%2Fb%3Dc%21=x"),
    ],
)
def test_partition_keys_look_like_this(columns, values, key):
    assert partition_key(columns, values) == key


@pytest.mark.parametrize(
    ("columns", "key"),
    [([], "s=a"), ([], ""), (["s"], "all"), (["s"], "t=a"), (["s"], "s=%41"), (["s"], "s=%ff"), (["s"], "s=a/i=1"),
     (["i"], "i=01"), (["i"], "i=x"), (["l"], "l=99999999999999999999"), (["b"], "b=True"), (["b"], "b=neither"),
     (["d"], "d=20260131"), (["s"], "s=~")],
)  # fmt: skip
def test_text_that_is_no_key_is_refused(columns, key):
    with pytest.raises(InvalidName, match="not a partition"):
        parse_partition_key(columns, key, KEYED)


def test_only_some_types_partition():
    check_partition_columns(KEY_COLUMNS, KEYED)
    schema = Schema((Column("x", DOUBLE), Column("j", JSON)))
    with pytest.raises(SchemaConflict, match="'x' cannot be a partition column"):
        check_partition_columns(["x"], schema)
    with pytest.raises(SchemaConflict, match="twice"):
        check_partition_columns(["s", "s"], KEYED)
    with pytest.raises(SchemaConflict, match="cannot be a partition column"):
        partition_key(["x"], [1.5])
    with pytest.raises(InvalidName):
        parse_partition_key(["x"], "x=1.5", schema)
    with pytest.raises(ValueError, match="partition columns"):
        partition_key(["s"], [])


def test_a_schema_costs_no_pyarrow():
    code = "import sys, floodmark.schema; sys.exit('pyarrow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
