"""Fitting rows: exactly or not at all, and the same from Python values as from the landing log."""

# ruff: noqa: DTZ001 - times without a zone are part of what is tested

from __future__ import annotations

import base64
import datetime as dt
import enum
import math
import uuid
import zoneinfo
from collections import OrderedDict
from decimal import Context, Decimal

import orjson
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floodmark.errors import FloodmarkError, InvalidName, SchemaConflict, UnserialisableValue
from floodmark.rows.columns import RULES, decimal_rule, fit_one_by_one, fit_values
from floodmark.rows.envelope import MalformedEnvelope, decode_envelope, encode_envelope
from floodmark.rows.fit import fit, fit_table, rows_to_columns
from floodmark.schema import DecimalType, ListType, Schema, StructType, parse_type

UTC = dt.UTC
AMSTERDAM = zoneinfo.ZoneInfo("Europe/Amsterdam")


def fit_column(text, values, **more):
    return fit(Schema.declare({"x": text, **more}), ["x"], [values], len(values))


def values_of(result):
    return result.table.column("x").to_pylist()


def through_log(columns, values, rows):
    envelope = decode_envelope(encode_envelope(columns, values, rows))
    assert envelope.rows == rows
    return envelope.columns, envelope.values, envelope.rows


# ---- what each type takes ----

NAN = float("nan")
BIG = 2**70

TAKEN = [
    ("boolean", True, True),
    ("int", 2**31 - 1, 2**31 - 1),
    ("long", -(2**63), -(2**63)),
    ("float", 1.5, 1.5),
    ("float", 3, 3.0),
    ("double", 0.1, 0.1),
    ("double", 2**53, 2.0**53),
    ("double", 2**60, 2.0**60),
    ("double", BIG, float(BIG)),
    ("double", "Infinity", math.inf),
    ("double", "-Infinity", -math.inf),
    ("double", math.inf, math.inf),
    ("decimal(5,2)", Decimal("1.5"), Decimal("1.50")),
    ("decimal(5,2)", Decimal("1.5000"), Decimal("1.50")),
    ("decimal(5,2)", Decimal("1E+2"), Decimal("100.00")),
    ("decimal(5,2)", Decimal("0E+50"), Decimal("0.00")),
    ("decimal(5,2)", 999, Decimal("999.00")),
    ("decimal(5,2)", "-1.25", Decimal("-1.25")),
    ("decimal(5,2)", "1e2", Decimal("100.00")),
    ("decimal(38,0)", 10**37, Decimal(10**37)),
    ("string", "ü\x00", "ü\x00"),
    ("binary", b"\x00\xff", b"\x00\xff"),
    ("binary", bytearray(b"ab"), b"ab"),
    ("binary", memoryview(b"ab"), b"ab"),
    ("binary", "AP8=", b"\x00\xff"),
    ("date", dt.date(2026, 1, 31), dt.date(2026, 1, 31)),
    ("date", "0001-01-01", dt.date(1, 1, 1)),
    ("timestamp", dt.datetime(2026, 1, 31, 12, 0, 0, 1), dt.datetime(2026, 1, 31, 12, 0, 0, 1, UTC)),
    ("timestamp", dt.datetime(2026, 7, 1, 12, tzinfo=AMSTERDAM), dt.datetime(2026, 7, 1, 10, tzinfo=UTC)),
    (
        "timestamp",
        dt.datetime(1920, 1, 1, tzinfo=AMSTERDAM),
        dt.datetime(1920, 1, 1, tzinfo=AMSTERDAM).astimezone(UTC),
    ),
    ("timestamp", "2026-01-31", dt.datetime(2026, 1, 31, tzinfo=UTC)),
    ("timestamp", "2026-01-31T12:00:00", dt.datetime(2026, 1, 31, 12, tzinfo=UTC)),
    ("timestamp", "2026-01-31 12:00:00.5+02:00", dt.datetime(2026, 1, 31, 10, 0, 0, 500000, UTC)),
    ("timestamp", "2026-01-31T12:00Z", dt.datetime(2026, 1, 31, 12, tzinfo=UTC)),
    ("timestamp", "2026-01-31T12:00:00.1234560Z", dt.datetime(2026, 1, 31, 12, 0, 0, 123456, UTC)),
    ("timestamp", "2026-01-31T12:00:00.123000000", dt.datetime(2026, 1, 31, 12, 0, 0, 123000, UTC)),
    ("json", {"b": 1, "a": [None, NAN]}, '{"a":[null,"NaN"],"b":1}'),
    ("json", "text", '"text"'),
    ("json", 1.0, "1.0"),
    ("json", NAN, '"NaN"'),
    ("json", False, "false"),
    ("json", [Decimal("1.50"), b"a", dt.date(2026, 1, 1)], '["1.50","YQ==","2026-01-01"]'),
    ("json", dt.datetime(2026, 7, 1, 12, tzinfo=AMSTERDAM), '"2026-07-01T10:00:00+00:00"'),
    ("json", {"a": (1, OrderedDict(b=uuid.UUID(int=1)))}, '{"a":[1,{"b":"00000000-0000-0000-0000-000000000001"}]}'),
    ("list<long>", [1, None, 2], [1, None, 2]),
    ("list<long>", (), []),
    ("list<decimal(38,0)>", [10**30], [Decimal(10**30)]),
    ("struct<a:long,b:string>", {"a": 1}, {"a": 1, "b": None}),
    ("struct<a:list<struct<b:timestamp>>>", {"a": [{"b": "2026-01-31"}, None, {}]},
     {"a": [{"b": dt.datetime(2026, 1, 31, tzinfo=UTC)}, None, {"b": None}]}),
]  # fmt: skip


@pytest.mark.parametrize(("text", "value", "expected"), TAKEN)
def test_taken(text, value, expected):
    columns, values, rows = ["x"], [[value, None]], 2
    direct = fit(Schema.declare({"x": text}), columns, values, rows)
    assert direct.misfits == []
    assert direct.kept is None
    assert values_of(direct) == [expected, None]
    assert not direct.evolves
    logged = fit(Schema.declare({"x": text}), *through_log(columns, values, rows))
    assert logged == direct


class Colour(enum.StrEnum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


class Precise(dt.datetime):
    nanosecond = 7


class BadZone(dt.tzinfo):
    def utcoffset(self, when):
        raise RuntimeError("no")


class Unprintable:
    def __repr__(self):
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("text", "value", "expected"),
    [
        ("string", Colour.RED, "red"),
        ("long", Level.HIGH, 3),
        ("json", {Colour.RED: Colour.RED}, '{"red":"red"}'),
        ("struct<red:long>", {Colour.RED: Level.HIGH}, {"red": 3}),
    ],
)
def test_subclasses_are_taken_for_what_they_hold(text, value, expected):
    assert values_of(fit_column(text, [value])) == [expected]
    schema = Schema.declare({"x": text})
    assert values_of(fit(schema, *through_log(["x"], [[value]], 1))) == [expected]


REFUSED = [
    ("boolean", 1),
    ("boolean", "true"),
    ("long", 1.0),
    ("long", True),
    ("long", "1"),
    ("long", 2**63),
    pytest.param("long", 10**5000, id="huge integer"),
    ("long", Decimal(1)),
    ("double", True),
    ("double", "1.5"),
    ("double", "nan"),
    ("double", 2**53 + 1),
    ("double", Decimal("1.5")),
    ("decimal(5,2)", 1.505),
    ("decimal(5,2)", math.inf),
    ("decimal(5,2)", True),
    ("decimal(5,2)", Decimal("1.255")),
    ("decimal(5,2)", Decimal(1000)),
    ("decimal(5,2)", Decimal("NaN")),
    ("decimal(5,2)", Decimal("sNaN")),
    ("decimal(5,2)", Decimal("1e999999")),
    ("decimal(5,2)", "1e9999"),
    ("decimal(5,2)", "1_0"),
    ("decimal(5,2)", " 1"),
    ("decimal(5,2)", "1\n"),
    ("decimal(5,2)", "٣"),
    ("decimal(5,2)", "Infinity"),
    ("decimal(5,2)", ""),
    ("decimal(38,0)", 10**38),
    ("string", 1),
    ("string", b"a"),
    ("string", "\ud800"),
    ("string", dt.date(2026, 1, 1)),
    ("binary", "not base64!"),
    ("binary", "YQ"),
    ("binary", "YQ==\n"),
    ("binary", 1),
    ("date", dt.datetime(2026, 1, 1)),
    ("date", "2026-1-1"),
    ("date", "2026-02-30"),
    ("date", "0000-01-01"),
    ("date", "2026-01-01T00:00:00"),
    ("date", 1),
    ("timestamp", 0),
    ("timestamp", 1.5),
    ("timestamp", dt.date(2026, 1, 1)),
    ("timestamp", Precise(2026, 1, 1)),
    ("timestamp", dt.datetime(2026, 1, 1, tzinfo=BadZone())),
    ("timestamp", dt.datetime(1, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=2)))),
    ("timestamp", "0000-12-31T23:00:00Z"),
    ("timestamp", "0001-01-01T00:00:00+02:00"),
    ("timestamp", "2026-01-31T12:00:00.1234567Z"),
    ("timestamp", "2026-02-30T00:00:00Z"),
    ("timestamp", "2026-01-31T24:00:00Z"),
    ("timestamp", "2026-01-31T12:00:00 Europe/Berlin"),
    ("timestamp", "yesterday"),
    ("timestamp", ""),
    ("json", {1: 2}),
    ("json", {"a": 10**1200}),
    ("json", {1, 2}),
    ("json", ["\ud800"]),
    ("json", Unprintable()),
    ("list<long>", [1, "2"]),
    ("list<long>", "12"),
    ("list<long>", {"a": 1}),
    ("list<int>", [2**31]),
    ("list<float>", [0.1]),
    ("struct<a:long>", {"a": "1"}),
    ("struct<a:long>", {"a": 1, "b": 2}),
    ("struct<a:long>", {1: 1}),
    ("struct<a:long>", [1]),
    ("string", Unprintable()),
]


@pytest.mark.parametrize(("text", "value"), REFUSED)
def test_refused(text, value):
    good = next(taken for kind, taken, _ in TAKEN if kind == text) if text in {t for t, _, _ in TAKEN} else None
    result = fit_column(text, [good, value, None])
    assert [(misfit.row, misfit.column) for misfit in result.misfits] == [(1, "x")]
    assert f"column 'x' is {text}: " in result.misfits[0].reason
    assert len(result.misfits[0].reason) < 300
    assert result.kept == [0, 2]
    assert result.table.num_rows == 2
    assert result.new_columns == result.widened == ()


def test_nesting_too_deep_is_a_misfit():
    deep = "x"
    for _ in range(100):
        deep = [deep]
    assert fit_column("json", [deep]).misfits == []
    assert fit(Schema.declare({"x": "json"}), *through_log(["x"], [[deep]], 1)) == fit_column("json", [deep])
    for levels in (1, 100, 10_000):
        for _ in range(levels):
            deep = {"a": deep}
        assert "nested deeper" in fit_column("json", [deep]).misfits[0].reason
    loop = []
    loop.append(loop)
    assert "nested deeper" in fit_column("json", [loop]).misfits[0].reason


# ---- widening, required, rows as a whole ----


def test_an_int_column_widens_for_a_value_that_needs_it():
    result = fit_column("int", [1, 2**31])
    assert [column.text for column in result.widened] == ["long"]
    assert result.table.schema.field("x").type == pa.int64()
    assert result.schema == Schema.declare({"x": "long"})
    assert fit_column("int", [1]).table.schema.field("x").type == pa.int32()


def test_a_float_column_widens_for_a_value_that_needs_it():
    assert [column.text for column in fit_column("float not null", [0.1]).widened] == ["double not null"]
    assert [column.text for column in fit_column("float", [1e300]).widened] == ["double"]
    exact = fit_column("float", [0.5, math.nan, math.inf, -0.0, None])
    assert exact.widened == ()
    assert exact.table.schema.field("x").type == pa.float32()


def test_a_row_that_does_not_fit_changes_no_schema():
    schema = Schema.declare({"n": "int", "ok": "boolean"})
    result = fit(schema, ["n", "ok", "new"], [[2**40, 1], ["no", True], [{"a": 1}, None]], 2)
    assert result.kept == [1]
    assert not result.evolves
    assert result.schema is schema
    assert result.table.to_pylist() == [{"n": 1, "ok": True}]
    assert result.table.schema.field("n").type == pa.int32()


def test_the_type_of_a_new_column_comes_from_rows_that_fit():
    result = fit(Schema.declare({"ok": "boolean"}), ["ok", "new"], [["no", True, True], [{"a": 1}, "x", 2]], 3)
    assert [(column.name, column.text) for column in result.new_columns] == [("new", "string")]
    assert result.kept == [1]


def test_null_or_nothing_in_a_required_column_is_a_misfit():
    schema = Schema.declare({"a": "long not null", "b": "string not null"})
    result = fit(schema, ["a"], [[1, None]], 2)
    assert [(misfit.row, misfit.column) for misfit in result.misfits] == [(0, "b"), (1, "a"), (1, "b")]
    assert result.table.num_rows == 0
    assert "long not null: it is null" in result.misfits[1].reason
    both = fit(schema, ["a", "b"], [[1, None, "x"], ["a", "b", "c"]], 3)
    assert [(m.row, m.reason[-10:]) for m in both.misfits] == [(1, "it is null"), (2, "an integer")]
    assert not both.table.schema.field("a").nullable


def test_columns_that_did_not_come_are_absent_and_order_is_the_schemas():
    schema = Schema.declare({"a": "long", "b": "long", "c": "long"})
    assert fit(schema, ["c", "a"], [[1], [None]], 1).table.column_names == ["a", "c"]


def test_rows_of_nothing_are_rows():
    result = fit(Schema(), [], [], 3)
    assert result.table.num_rows == 3
    assert result.table.num_columns == 0
    assert through_log([], [], 3) == ([], [], 3)
    assert fit(Schema.declare({"a": "long not null"}), [], [], 3).table.num_rows == 0
    only_misfits = fit(Schema(), ["x"], [[object(), None]], 2)
    assert only_misfits.table.num_rows == 1
    assert fit(Schema(), ["x"], [[]], 0).table.num_rows == 0


# ---- new columns ----


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([None, True], "boolean"),
        ([1, None], "long"),
        ([1, 1.5], "double"),
        ([1.5, 1], "double"),
        (["a"], "string"),
        ([b"a", bytearray(b"b")], "binary"),
        ([dt.datetime(2026, 1, 1)], "timestamp"),
        ([dt.date(2026, 1, 1)], "date"),
        ([Decimal("1.25"), Decimal(1)], "decimal(38,2)"),
        ([[1], [], None, [None, 2]], "list<long>"),
        ([[1], [1.5]], "list<double>"),
        ([(Decimal("1.5"),)], "list<decimal(38,1)>"),
        ([[]], "json"),
        ([[None]], "json"),
        ([[1, "a"]], "json"),
        ([[[1]]], "json"),
        ([[{}]], "json"),
        ([{"a": 1}, "x", 1], "json"),
    ],
)
def test_a_new_column_gets_its_type_from_its_values(values, text):
    result = fit(Schema(), ["x"], [values], len(values))
    assert [column.text for column in result.new_columns] == [text]
    assert result.misfits == []
    assert fit(result.schema, *through_log(["x"], [values], len(values))).table == result.table


@pytest.mark.parametrize(
    ("values", "text", "out"),
    [
        (["a", 1, "b", None, True], "string", [1, 4]),
        ([1, "a"], "long", [1]),
        ([True, 1], "boolean", [1]),
        ([1, 2**63], "long", [1]),
        ([dt.date(2026, 1, 1), dt.datetime(2026, 1, 1)], "date", [1]),
        ([uuid.uuid4(), 1], "long", [0]),
        ([Decimal("1e-50"), Decimal("0.5")], "decimal(38,38)", [0]),
        ([[1], "a"], "list<long>", [1]),
    ],
)
def test_the_first_kind_wins_and_the_others_do_not_fit(values, text, out):
    result = fit(Schema(), ["x"], [values], len(values))
    assert [column.text for column in result.new_columns] == [text]
    assert [misfit.row for misfit in result.misfits] == out


def test_null_means_absent():
    result = fit(Schema(), ["x", "y"], [[None, None], [1, 2]], 2)
    assert result.table.column_names == ["y"]


def test_values_of_no_kind_are_misfits():
    result = fit(Schema(), ["x"], [[uuid.uuid4(), None, object()]], 3)
    assert result.new_columns == ()
    assert [misfit.row for misfit in result.misfits] == [0, 2]
    assert "can store a UUID" in result.misfits[0].reason


@pytest.mark.parametrize("name", ["_ingest_seq", "", "a`", 1])
def test_a_bad_name_refuses_the_call(name):
    with pytest.raises(InvalidName):
        fit(Schema(), [name], [[None]], 1)


def test_clashing_names_refuse_the_call():
    with pytest.raises(SchemaConflict, match="do not distinguish"):
        fit(Schema.declare({"id": "long"}), ["ID"], [[1]], 1)
    with pytest.raises(SchemaConflict, match="appears twice"):
        fit(Schema(), ["a", "a"], [[1], [1]], 1)
    with pytest.raises(ValueError, match="one value per column"):
        fit(Schema(), ["a"], [[1]], 2)


# ---- properties ----

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
zones = (
    st.none()
    | st.just(UTC)
    | st.timezones()
    | st.integers(-86399, 86399).map(lambda s: dt.timezone(dt.timedelta(seconds=s)))
)
datetimes = st.datetimes(timezones=zones)
json_values = st.recursive(
    st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | texts
    | datetimes
    | st.dates()
    | st.binary(max_size=5)
    | st.decimals(),
    lambda inner: st.lists(inner | st.none(), max_size=3) | st.dictionaries(texts, inner | st.none(), max_size=3),
    max_leaves=5,
)
anything = json_values | st.integers() | st.text(max_size=5) | st.lists(st.integers(), max_size=2)


def decimals(kind):
    edge = 10 ** (kind.precision) - 1
    return st.integers(-edge, edge).map(lambda n: Decimal(n).scaleb(-kind.scale, context=Context(prec=99)))


def values_for(kind):
    """Values that fit the type, from the Python side."""
    if isinstance(kind, DecimalType):
        return decimals(kind)
    if isinstance(kind, ListType):
        return st.lists(st.none() | values_for(kind.element), max_size=3)
    if isinstance(kind, StructType):
        return st.fixed_dictionaries({}, optional={name: st.none() | values_for(field) for name, field in kind.fields})
    return {
        "boolean": st.booleans(),
        "int": st.integers(-(2**31), 2**31 - 1),
        "long": st.integers(-(2**63), 2**63 - 1),
        "float": st.floats(width=32) | st.integers(-(2**24), 2**24),
        "double": st.floats() | st.integers(-(2**53), 2**53) | st.sampled_from(["NaN", "Infinity"]),
        "string": texts,
        "binary": st.binary(max_size=8) | st.binary(max_size=8).map(lambda b: base64.b64encode(b).decode()),
        "date": st.dates() | st.dates().map(str),
        "timestamp": st.datetimes(dt.datetime(1, 1, 3), dt.datetime(9999, 12, 28), timezones=zones)
        | st.datetimes().map(str),
        "json": json_values,
    }[str(kind)]


SIMPLE = ["boolean", "int", "long", "float", "double", "string", "binary", "date", "timestamp", "json",
          "decimal(5,2)", "decimal(38,10)", "decimal(38,0)"]  # fmt: skip
types = st.recursive(
    st.sampled_from([parse_type(text) for text in SIMPLE]),
    lambda inner: inner.map(ListType) | st.tuples(inner, inner).map(lambda p: StructType((("a", p[0]), ("b c", p[1])))),
    max_leaves=4,
)


def same(left, right):
    """Table equality in which NaN is NaN."""
    return (
        left.schema == right.schema
        and left.num_rows == right.num_rows
        and repr(left.to_pydict()) == repr(right.to_pydict())
    )


@settings(max_examples=100)
@given(types.flatmap(lambda kind: st.tuples(st.just(kind), st.lists(st.none() | values_for(kind), max_size=6))))
def test_what_fits_is_the_same_through_the_landing_log(case):
    kind, values = case
    schema = Schema.declare({"x": str(kind)})
    direct = fit(schema, ["x"], [values], len(values))
    assert direct.misfits == []
    assert direct.widened == ()
    logged = fit(schema, *through_log(["x"], [values], len(values)))
    assert logged.misfits == []
    assert same(logged.table, direct.table)
    direct.table.validate(full=True)


@settings(max_examples=100)
@given(
    st.lists(st.sampled_from([None, *SIMPLE, "list<long>", "struct<a:json>"]), min_size=1, max_size=3).flatmap(
        lambda kinds: st.tuples(
            st.just(kinds),
            st.lists(
                st.tuples(*[st.none() | anything | values_for(parse_type(kind or "json")) for kind in kinds]),
                max_size=6,
            ),
        )
    )
)
def test_whatever_capture_accepts_is_what_sealing_commits(case):
    kinds, rows = case
    columns = [f"c{index}" for index in range(len(kinds))]
    schema = Schema.declare({name: kind for name, kind in zip(columns, kinds, strict=True) if kind})
    values = [[row[index] for row in rows] for index in range(len(kinds))]
    judged = fit(schema, columns, values, len(rows))
    kept = list(range(len(rows))) if judged.kept is None else judged.kept
    assert judged.table.num_rows == len(kept)
    assert sorted({misfit.row for misfit in judged.misfits} | set(kept)) == list(range(len(rows)))
    accepted = [[column[row] for row in kept] for column in values]
    sealed = fit(judged.schema, *through_log(columns, accepted, len(kept)))
    assert sealed.misfits == []
    assert not sealed.evolves
    assert same(sealed.table.select(judged.table.column_names), judged.table)


@settings(max_examples=100)
@given(
    st.sampled_from(SIMPLE).flatmap(
        lambda text: st.tuples(
            st.just(parse_type(text)), st.lists(st.none() | values_for(parse_type(text)) | anything, max_size=5)
        )
    )
)
def test_columns_and_single_values_are_judged_alike(case):
    kind, values = case
    rule = decimal_rule(kind) if isinstance(kind, DecimalType) else RULES[kind]
    whole, whole_faults = fit_values(kind, values)
    single, single_faults = fit_one_by_one(rule, values)
    assert whole_faults == single_faults
    assert repr(whole.to_pylist()) == repr(single.to_pylist())
    for position, value in enumerate(values):
        alone, faults = fit_values(kind, [value])
        assert bool(faults) == (position in whole_faults)
        assert repr(alone.to_pylist()) == repr(whole.slice(position, 1).to_pylist())


timestamp_texts = st.from_regex(
    r"\A[0-9]{4}-(0[1-9]|1[0-2])-([0-2][0-9]|30)"
    r"([T ]([01][0-9]|2[0-4])(:[0-5][0-9](:[0-5][0-9](\.[0-9]{0,10})?)?)?(Z|[+-][0-9]{2}(:?[0-9]{2})?)?)?\Z"
)


@settings(max_examples=100)
@given(st.lists(timestamp_texts, max_size=6))
def test_timestamp_texts_mean_the_same_together_and_alone(values):
    together, faults = fit_values(parse_type("timestamp"), values)
    for position, value in enumerate(values):
        alone, fault = fit_values(parse_type("timestamp"), [value])
        assert bool(fault) == (position in faults)
        assert alone[0] == together[position]
        try:
            expected = dt.datetime.fromisoformat(value)
        except ValueError:
            continue
        if not fault:
            expected = expected if expected.tzinfo else expected.replace(tzinfo=UTC)
            assert (expected - dt.datetime(1970, 1, 1, tzinfo=UTC)) // dt.timedelta(microseconds=1) == alone[0].value


@pytest.mark.parametrize(
    ("text", "good", "bad"),
    [
        ("timestamp", "2026-01-31", "soon"),
        ("long", 7, "7"),
        ("long", 7, 2**63),
        ("json", {"a": 1}, {1}),
        ("string", "a", "\ud800"),
    ],
)
@given(bad_rows=st.sets(st.integers(0, 99), max_size=6))
def test_bad_values_are_found_among_many(text, good, bad, bad_rows):
    values = [bad if row in bad_rows else good for row in range(100)]
    result = fit_column(text, values)
    assert [misfit.row for misfit in result.misfits] == sorted(bad_rows)
    assert values_of(result) == values_of(fit_column(text, [good] * (100 - len(bad_rows))))


# ---- the envelope ----


def test_the_envelope_looks_like_this():
    line = encode_envelope(
        ["id", "at", "x"],
        [[1, 2], [dt.datetime(2026, 1, 31, 12), dt.datetime(2026, 1, 31, tzinfo=AMSTERDAM)], [math.inf, b"a"]],
        2,
    )
    assert line == (
        b'{"version":1,"columns":["id","at","x"],"rows":[[1,"2026-01-31T12:00:00+00:00","Infinity"],'
        b'[2,"2026-01-30T23:00:00+00:00","YQ=="]]}\n'
    )


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (object(), "object"),
        ({1}, "set"),
        (1j, "complex"),
        ({1: 2}, "dict"),
        ([["\ud800"]], "list"),
        ("\ud800", "str"),
        pytest.param(10**5000, "int", id="huge integer"),
        (dt.datetime(1, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=1))), "datetime"),
        (dt.datetime(2026, 1, 1, tzinfo=BadZone()), "datetime"),
        (Unprintable(), "Unprintable"),
    ],
)
def test_a_value_that_cannot_be_stored_is_named(value, kind):
    with pytest.raises(UnserialisableValue) as caught:
        encode_envelope(["ok", "bad"], [[1, 2], [None, value]], 2)
    assert "Row 1" in caught.value.message
    assert f"type {kind} in column 'bad'" in caught.value.message


def test_nesting_too_deep_cannot_be_stored():
    deep = []
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(UnserialisableValue, match="nested deeper"):
        encode_envelope(["x"], [[deep]], 1)


def test_a_shape_that_is_none_is_a_mistake_of_the_caller():
    with pytest.raises(ValueError, match="one value per column"):
        encode_envelope(["a"], [[1]], 2)
    with pytest.raises(UnserialisableValue, match="column names"):
        encode_envelope(["\ud800"], [[1]], 1)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"", "not JSON"),
        (b"\xff", "not JSON"),
        (b'{"version":1', "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b'{"version":1,"columns":["a"],"rows":[[' + b"9" * 5000 + b"]]}", "not JSON"),
        (b'{"version":1,"columns":["a"],"rows":[[NaN]]}', "not JSON"),
        (b"[]", "not an object"),
        (b"{}", "not an object"),
        (b'{"version":1,"columns":[],"rows":[],"x":1}', "not an object"),
        (b'{"version":2,"columns":[],"rows":[]}', "version is '2'"),
        (b'{"version":true,"columns":[],"rows":[]}', "version"),
        (b'{"version":1.0,"columns":[],"rows":[]}', "version"),
        (b'{"version":1,"columns":{},"rows":[]}', "list of names"),
        (b'{"version":1,"columns":[1],"rows":[]}', "list of names"),
        (b'{"version":1,"columns":["a","a"],"rows":[]}', "twice"),
        (b'{"version":1,"columns":["a"],"rows":{}}', "list of lists"),
        (b'{"version":1,"columns":["a"],"rows":[1]}', "list of lists"),
        (b'{"version":1,"columns":["a"],"rows":[[1],[1,2]]}', "row 1 has 2 values"),
        (b'{"version":1,"columns":["a"],"rows":[[]]}', "row 0 has 0 values"),
    ],
)
def test_a_malformed_envelope_says_why(line, reason):
    with pytest.raises(MalformedEnvelope, match=reason):
        decode_envelope(line)


@given(st.binary(max_size=40) | json_values.map(lambda value: orjson.dumps(str(value)[:30])))
def test_no_line_breaks_the_reader(line):
    with pytest.raises(MalformedEnvelope):
        decode_envelope(line)


json_only = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)


@given(st.lists(json_only, max_size=4))
def test_json_values_come_back_as_they_were(values):
    assert [list(column) for column in through_log(["x"], [values], len(values))[1]] == [values]


# ---- rows to columns ----


def test_rows_become_columns():
    assert rows_to_columns([{"a": 1, "b": 2}, {"b": 4, "a": 3}]) == (["a", "b"], [(1, 3), (2, 4)])
    assert rows_to_columns([{"a": 1}, {"a": 2}]) == (["a"], [[1, 2]])
    assert rows_to_columns([{"a": 1}, {"b": 2}, {}]) == (["a", "b"], [[1, None, None], [None, 2, None]])
    assert rows_to_columns([{"a": 1}, OrderedDict(b=2)]) == (["a", "b"], [[1, None], [None, 2]])
    assert rows_to_columns([]) == ([], [])
    assert rows_to_columns([{}, {}]) == ([], [])
    names, _ = rows_to_columns([{Colour.RED: 1}])
    assert type(names[0]) is str


@given(st.lists(st.dictionaries(st.sampled_from("abc"), st.integers() | st.none(), max_size=3), max_size=5))
def test_columns_hold_what_the_rows_held(rows):
    names, values = rows_to_columns(rows)
    for index, row in enumerate(rows):
        held = {name: column[index] for name, column in zip(names, values, strict=True)}
        assert {k: v for k, v in held.items() if v is not None} == {k: v for k, v in row.items() if v is not None}


@pytest.mark.parametrize(
    "rows", [{"a": 1}, "abc", b"abc", 1, None, iter([{}]), [1], [{"a": 1}, None], [{1: 2}], [{"a": 1}, {None: 1}]]
)
def test_what_is_not_rows_is_refused(rows):
    with pytest.raises(UnserialisableValue):
        rows_to_columns(rows)


# ---- Arrow tables ----


def test_an_arrow_table_is_cast_to_canonical_types():
    table = pa.table(
        {
            "l": pa.array([1, None], pa.int16()),
            "s": pa.array(["a", "b"], pa.dictionary(pa.int8(), pa.large_string())),
            "t": pa.array([0, 1000], pa.timestamp("ns", "Europe/Berlin")),
            "d": pa.array([0, 86_400_000], pa.date64()),
            "u": pa.array([2**64 - 1, 0], pa.uint64()),
            "n": pa.nulls(2),
            "v": pa.array([[1], None], pa.list_(pa.int8(), 1)),
            "k": pa.array([{"b": b"x"}, {"b": None}], pa.struct([("b", pa.binary_view())])),
        }
    )
    schema = Schema.declare({"l": "long", "gone": "string"})
    result = fit_table(schema, table)
    assert [column.text for column in result.new_columns] == [
        "string", "timestamp", "date", "decimal(20,0)", "list<int>", "struct<b:binary>",
    ]  # fmt: skip
    assert result.kept is None
    assert result.table.schema == result.schema.arrow(result.table.column_names)
    assert result.table.to_pylist()[1] == {
        "l": None,
        "s": "b",
        "t": dt.datetime(1970, 1, 1, 0, 0, 0, 1, UTC),
        "d": dt.date(1970, 1, 2),
        "u": Decimal(0),
        "v": None,
        "k": {"b": None},
    }
    result.table.validate(full=True)


def test_an_arrow_table_widens_and_keeps_requirements():
    schema = Schema.declare({"a": "int", "b": "long not null"})
    result = fit_table(schema, pa.record_batch({"a": pa.array([1, 2, 3]), "b": pa.array([1, None, 3], pa.int8())}))
    assert [column.text for column in result.widened] == ["long"]
    assert [(misfit.row, misfit.column) for misfit in result.misfits] == [(1, "b")]
    assert result.table.to_pylist() == [{"a": 1, "b": 1}, {"a": 3, "b": 3}]
    assert fit_table(schema, pa.table({"a": [1]})).table.num_rows == 0
    assert fit_table(schema, pa.table({"a": [1], "b": pa.nulls(1)})).table.num_rows == 0


def test_json_text_in_an_arrow_table_is_validated():
    texts = ['{"b":1, "a":2}', "nope", None, '"x"', "1" * 1200, "[" * 5000, "NaN", "1" * 20 + "NaN"]
    result = fit_table(Schema.declare({"j": "json"}), pa.table({"j": texts}))
    assert [misfit.row for misfit in result.misfits] == [1, 4, 5, 6, 7]
    assert result.table.column("j").to_pylist() == ['{"a":2,"b":1}', None, '"x"']


def test_whole_numbers_go_into_a_double_column_if_they_are_exact():
    schema = Schema.declare({"x": "double"})
    assert fit_table(schema, pa.table({"x": [1, 2**53]})).table.column("x").to_pylist() == [1.0, 2.0**53]
    with pytest.raises(SchemaConflict, match="'x'"):
        fit_table(schema, pa.table({"x": [2**53 + 1]}))


@pytest.mark.parametrize(
    ("have", "array"),
    [
        ("timestamp", pa.array([1], pa.timestamp("ns"))),
        ("timestamp", pa.array([2**62], pa.timestamp("us"))),
        ("list<timestamp>", pa.array([[2**62]], pa.list_(pa.timestamp("us")))),
        (
            "struct<a:date>",
            pa.array([{"a": 2**30}], pa.struct([("a", pa.int32())])).cast(pa.struct([("a", pa.date32())])),
        ),
        ("date", pa.array([5], pa.date64())),
        ("string", pa.array([1])),
        (
            "string",
            pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xff")]),
        ),
        ("long", pa.array([1.5])),
        ("timestamp", pa.array(["2026-01-01"])),
    ],
)
def test_an_arrow_column_that_does_not_fit_refuses_the_table(have, array):
    with pytest.raises(SchemaConflict, match="'x'"):
        fit_table(Schema.declare({"x": have}), pa.table({"x": array}))


def test_arrow_names_are_checked():
    with pytest.raises(InvalidName):
        fit_table(Schema(), pa.table({"_ingest_seq": [1]}))
    with pytest.raises(SchemaConflict, match="twice"):
        fit_table(Schema(), pa.table([pa.array([1]), pa.array([1])], names=["a", "a"]))


@settings(max_examples=100)
@given(
    types.filter(lambda kind: str(kind) == "json" or "json" not in str(kind)).flatmap(
        lambda kind: st.tuples(st.just(kind), st.lists(st.none() | values_for(kind), max_size=5))
    )
)
def test_an_arrow_table_fits_like_the_values_it_holds(case):
    kind, values = case
    schema = Schema.declare({"x": str(kind)})
    table = fit(schema, ["x"], [values], len(values)).table
    again = fit_table(schema, table)
    assert same(again.table, table)
    assert again.misfits == []
    assert not again.evolves


@given(st.lists(anything, max_size=4))
def test_whatever_comes_only_floodmarks_errors_go_out(values):
    try:
        fit(Schema(), ["x"], [values], len(values))
        encode_envelope(["x"], [values], len(values))
    except FloodmarkError:
        pass
