"""Fitting one column: values of Python or JSON to an Arrow array of one type, exactly or not at all. Pure.

pyarrow alone would make 1 of 1.5, a double of True, bytes of a text and a timestamp of an integer, and drop
the keys a struct does not know. So the values' Python types are looked at first, at C speed. Values of the
expected type go to pyarrow at once; anything else, and anything pyarrow refuses, is taken one by one, which
also finds which values do not fit and why.
"""

from __future__ import annotations

import binascii
import bisect
import datetime as dt
import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from floodmark.jsonread import ExactNumber
from floodmark.rows.jsontext import NOT_FINITE, NotJson, canonical_json
from floodmark.schema.types import (
    BINARY,
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    INT,
    JSON,
    LONG,
    STRING,
    TIMESTAMP,
    ColumnType,
    DecimalType,
    ListType,
    StructType,
    to_arrow,
)

# ── one value ────────────────────────────────────────────────────────────────────────────────────────────────────────
# What each simple type accepts: a rule per type for whole columns, and one for single values.
#
# A rule's builders take a column of values that all have the expected Python types, and raise where any value
# does not fit; `one` takes one value of any type and raises `Unfit` with the reason. Both must accept the same
# values and make the same of them: the tests compare them.


Build = Callable[[Sequence[Any]], pa.Array]


class Unfit(ValueError):
    """The value does not fit the type; the text says why."""


@dataclass(frozen=True)
class Rule:
    builders: tuple[tuple[frozenset[type] | None, Build], ...]
    """What takes columns of these Python types (None: of any), in order of preference."""
    one: Callable[[Any], Any]
    collect: Build
    """Makes the array of what `one` returned."""


_WORDS: dict[type, str] = {
    str: "text",
    int: "number",
    float: "number",
    Decimal: "number",
    bytes: "bytes",
    dict: "an object",
    list: "a list",
    type(None): "null",
    dt.date: "date",
    dt.datetime: "time",
}
"""What a value is called in messages: rows come from JSON more often than from Python."""


def shown(value: Any) -> str:
    """A value in a message: what it is, and as much of it as is short and safe to print."""
    kind = _WORDS.get(type(value), type(value).__name__)
    if isinstance(value, ExactNumber):
        return f"number {value.text if len(value.text) <= 45 else value.text[:42] + '…'}"
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 128:
        return f"{kind} of {value.bit_length()} bits"
    if isinstance(value, str | bytes) and len(value) > 40:
        return f"{kind} {value[:37]!r}…"
    if isinstance(value, str | bytes | int | float):
        return str(value).lower() if isinstance(value, bool) else f"{kind} {value!r}"
    if isinstance(value, Decimal | dt.date):
        # Without its zone, whose own code may fail.
        text = str(value.replace(tzinfo=None) if isinstance(value, dt.datetime) else value)
        return f"{kind} {text if len(text) <= 45 else text[:42] + '…'}"
    return kind


def _array(kind: ColumnType) -> Build:
    arrow_type = to_arrow(kind)
    return lambda values: pa.array(values, arrow_type)


def _types(*types: type) -> frozenset[type]:
    return frozenset(types)


# ---- booleans, integers, floats ----


def _one_boolean(value: Any) -> bool:
    if type(value) is not bool:
        raise Unfit(f"{shown(value)} is not true or false")
    return value


def _one_integer(bits: int) -> Callable[[Any], int]:
    def one(value: Any) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            raise Unfit(f"{shown(value)} is not an integer")
        if not -(1 << bits - 1) <= value < 1 << bits - 1:
            raise Unfit(f"{shown(value)} does not fit in {bits} bits")
        return int.__index__(value)

    return one


_DOUBLE_BITS_MAX = 1023
"""No longer integer is certain to be smaller than the largest double."""


def _one_double(value: Any) -> float:
    if isinstance(value, float):
        # A fraction of many digits is rounded: that is what doubles are. Whole numbers count things and name them.
        if isinstance(value, ExactNumber) and value.is_whole:
            raise Unfit(f"{shown(value)} cannot be stored exactly as a double")
        return float(value)
    if isinstance(value, str) and value in NOT_FINITE:
        return NOT_FINITE[value]
    if not isinstance(value, int) or isinstance(value, bool):
        raise Unfit(f"{shown(value)} is not a number")
    if value.bit_length() > _DOUBLE_BITS_MAX or int(float(value)) != value:
        raise Unfit(f"{shown(value)} cannot be stored exactly as a double")
    return float(value)


def as_float32(array: pa.Array) -> pa.Array | None:
    """The doubles as 32-bit floats, or None where one of them would change."""
    narrow = array.cast(pa.float32(), safe=False)
    same = pc.or_(pc.equal(narrow.cast(pa.float64()), array), pc.is_nan(array))
    return narrow if pc.all(same, min_count=0).as_py() else None


def _floats(values: Sequence[Any]) -> pa.Array:
    narrow = as_float32(pa.array(values, pa.float64()))
    if narrow is None:
        raise ValueError("not all are 32-bit floats")
    return narrow


def _one_float(value: Any) -> float:
    number = _one_double(value)
    if as_float32(pa.array([number], pa.float64())) is None:
        raise Unfit(f"{shown(value)} cannot be stored exactly as a 32-bit float: declare the column as double")
    return number


# ---- decimals ----

_NUMBER = r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,4})?"
_NUMBER_TEXT = re.compile(_NUMBER)
_EXACT = Context(prec=1000)


@lru_cache(maxsize=256)
def decimal_rule(kind: DecimalType) -> Rule:
    def one(value: Any) -> Decimal:
        number = _decimal(value)
        if not _fits_decimal(number, kind):
            raise Unfit(f"{shown(value)} does not fit without rounding")
        return number.quantize(Decimal(1).scaleb(-kind.scale), context=_EXACT)

    def from_texts(values: Sequence[Any]) -> pa.Array:
        texts = pa.array(values, pa.string())
        if not pc.all(pc.match_substring_regex(texts, f"^(?:{_NUMBER})$"), min_count=0).as_py():
            raise ValueError("not all are numbers")
        return texts.cast(to_arrow(kind))

    def from_floats(values: Sequence[Any]) -> pa.Array:
        return from_texts([None if value is None else repr(value) for value in values])

    collect = _array(kind)
    return Rule(
        ((_types(Decimal, int), collect), (_types(str), from_texts), (_types(float, int), from_floats)), one, collect
    )


def _decimal(value: Any) -> Decimal:
    if isinstance(value, str) and _NUMBER_TEXT.fullmatch(value):
        return Decimal(value)
    if isinstance(value, ExactNumber):
        return value.decimal
    # JSON has one kind of number: a float is the decimal number that it is written as, also in Python.
    if isinstance(value, Decimal | float) or (isinstance(value, int) and not isinstance(value, bool)):
        number = Decimal(float.__repr__(value) if isinstance(value, float) else value)
        if number.is_finite():
            return number
    raise Unfit(f"{shown(value)} is not a decimal number")


def _fits_decimal(number: Decimal, kind: DecimalType) -> bool:
    """Whether the digits have room, found without scaling: a hostile exponent would cost its own size."""
    if not number:
        return True
    digits = "".join(map(str, number.as_tuple().digits))
    last = number.adjusted() - len(digits.rstrip("0")) + 1
    return -last <= kind.scale and number.adjusted() < kind.precision - kind.scale


# ---- texts and bytes ----


def _one_string(value: Any) -> str:
    if not isinstance(value, str):
        raise Unfit(f"{shown(value)} is not text")
    text = str.__str__(value)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Unfit(f"{shown(value)} contains an unpaired surrogate") from None
    return text


def _one_binary(value: Any) -> bytes:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if not isinstance(value, str):
        raise Unfit(f"{shown(value)} is neither bytes nor base64 text")
    try:
        return binascii.a2b_base64(value, strict_mode=True)
    except ValueError as error:
        raise Unfit(f"{shown(value)} is not base64 ({error})") from error


def _binaries(values: Sequence[Any]) -> pa.Array:
    return pa.array([None if value is None else _one_binary(value) for value in values], pa.binary())


def _one_json(value: Any) -> str:
    try:
        return canonical_json(value)
    except NotJson as error:
        raise Unfit(f"{shown(value)} cannot be JSON: {error}") from error


def _jsons(values: Sequence[Any]) -> pa.Array:
    return pa.array([None if value is None else canonical_json(value) for value in values], pa.string())


# ---- dates and timestamps ----

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND = dt.timedelta(microseconds=1)
_DAY_MIN, _DAY_MAX = dt.date.min.toordinal() - 719163, dt.date.max.toordinal() - 719163
_MICROS_MIN, _MICROS_MAX = _DAY_MIN * 86_400_000_000, (_DAY_MAX + 1) * 86_400_000_000 - 1
_MICROS = pa.timestamp("us")
_MICROS_UTC = pa.timestamp("us", tz="UTC")
_ZONED = r"^.{11,}(Z|[+-][0-9]{2}(:?[0-9]{2})?)$"
# Looser than what Arrow takes: it only spares Arrow, which is slow on single values, the hopeless ones.
_LIKE_A_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}([ T][0-9:.]+(Z|[+-][0-9:]+)?)?")
_ZEROS_TOO_FINE = r"(\.[0-9]{6})0+"


def _in_range(array: pa.Array, ints: pa.DataType, low: int, high: int) -> pa.Array:
    """The array, if all of it lies in the years 1 to 9999: what Python and Spark both can show."""
    bounds = pc.min_max(array.view(ints))
    if bounds["min"].is_valid and not low <= bounds["min"].as_py() <= bounds["max"].as_py() <= high:
        raise ValueError("outside the years 1 to 9999")
    return array


def check_years(kind: ColumnType, array: pa.Array) -> None:
    """`ValueError` if the array, or what it nests, has a date or time outside the years 1 to 9999."""
    if kind == DATE:
        _in_range(array, pa.int32(), _DAY_MIN, _DAY_MAX)
    elif kind == TIMESTAMP:
        _in_range(array, pa.int64(), _MICROS_MIN, _MICROS_MAX)
    elif isinstance(kind, ListType):
        check_years(kind.element, array.flatten())
    elif isinstance(kind, StructType):
        for (_, field), child in zip(kind.fields, array.flatten(), strict=True):
            check_years(field, child)


def _dates(values: Sequence[Any]) -> pa.Array:
    texts = pa.array(values, pa.string())
    return _in_range(texts.cast(pa.date32()), pa.int32(), _DAY_MIN, _DAY_MAX)


def _one_date(value: Any) -> dt.date:
    if isinstance(value, dt.date) and not isinstance(value, dt.datetime):
        return dt.date(value.year, value.month, value.day)
    if not isinstance(value, str):
        raise Unfit(f"{shown(value)} is not a date")
    try:
        day: dt.date = _dates([value])[0].as_py()
    except (ValueError, OverflowError):
        raise Unfit(f"{shown(value)} is not a date such as 2026-01-31") from None
    return day


def _timestamps(values: Sequence[Any]) -> pa.Array:
    array = pa.array(values, _MICROS_UTC)
    return _in_range(array, pa.int64(), _MICROS_MIN, _MICROS_MAX)


def _timestamp_texts(values: Sequence[Any]) -> pa.Array:
    texts = pa.array(values, pa.string())
    try:
        array = texts.cast(_MICROS_UTC)
    except pa.ArrowInvalid:
        # Arrow takes texts that all have a zone or all have none, and fractions of six digits; some
        # platforms always write seven or nine.
        texts = pc.replace_substring_regex(texts, _ZEROS_TOO_FINE, r"\1")
        zoned = pc.match_substring_regex(texts, _ZONED)
        with_zone = pc.if_else(zoned, texts, None).cast(_MICROS_UTC)
        without = pc.if_else(zoned, None, texts).cast(_MICROS).cast(_MICROS_UTC)
        array = pc.coalesce(with_zone, without)
    return _in_range(array, pa.int64(), _MICROS_MIN, _MICROS_MAX)


def _one_timestamp(value: Any) -> int:
    if isinstance(value, dt.datetime):
        if getattr(value, "nanosecond", 0):
            raise Unfit(f"{shown(value)} is more precise than a microsecond")
        aware = value if value.utcoffset() is not None else value.replace(tzinfo=dt.UTC)
        micros = (aware - _EPOCH) // _MICROSECOND
    elif isinstance(value, str):
        try:
            if _LIKE_A_TIME.fullmatch(value) is None:
                raise ValueError("not even close")
            micros = _timestamp_texts([value])[0].value
        except ValueError:
            raise Unfit(
                f"{shown(value)} is not an ISO 8601 time of at most microseconds in the years 1 to 9999"
            ) from None
    else:
        raise Unfit(f"{shown(value)} is not a time")
    if not _MICROS_MIN <= micros <= _MICROS_MAX:
        raise Unfit(f"{shown(value)} is outside the years 1 to 9999 in UTC")
    return int(micros)


def _collect_timestamps(values: Sequence[Any]) -> pa.Array:
    return pa.array(values, pa.int64()).cast(_MICROS_UTC)


def _rule(
    kind: ColumnType,
    one: Callable[[Any], Any],
    *builders: tuple[frozenset[type] | None, Build],
    collect: Build | None = None,
) -> Rule:
    return Rule(builders, one, collect or _array(kind))


RULES: dict[ColumnType, Rule] = {
    BOOLEAN: _rule(BOOLEAN, _one_boolean, (_types(bool), _array(BOOLEAN))),
    INT: _rule(INT, _one_integer(32), (_types(int), _array(INT))),
    LONG: _rule(LONG, _one_integer(64), (_types(int), _array(LONG))),
    FLOAT: _rule(FLOAT, _one_float, (_types(float, int), _floats)),
    DOUBLE: _rule(DOUBLE, _one_double, (_types(float, int), _array(DOUBLE))),
    STRING: _rule(STRING, _one_string, (_types(str), _array(STRING))),
    BINARY: _rule(BINARY, _one_binary, (_types(bytes), _array(BINARY)), (_types(bytes, str), _binaries)),
    JSON: _rule(JSON, _one_json, (None, _jsons)),
    DATE: _rule(DATE, _one_date, (_types(dt.date), _array(DATE)), (_types(str), _dates)),
    TIMESTAMP: _rule(
        TIMESTAMP,
        _one_timestamp,
        (_types(dt.datetime), _timestamps),
        (_types(str), _timestamp_texts),
        collect=_collect_timestamps,
    ),
}


Faults = dict[int, str]
"""Why a value does not fit, by its position."""

_FEW = 16
_NONE = type(None)
_LISTS = frozenset({list, tuple, _NONE})
_DICTS = frozenset({dict, _NONE})


def fit_values(kind: ColumnType, values: Sequence[Any]) -> tuple[pa.Array, Faults]:
    """The values as an array of the type, null where one does not fit, and why those do not."""
    if isinstance(kind, ListType):
        return _fit_list(kind, values)
    if isinstance(kind, StructType):
        return _fit_struct(kind, values)
    rule = decimal_rule(kind) if isinstance(kind, DecimalType) else RULES[kind]
    return _fit_scalar(rule, values)


def _fit_scalar(rule: Rule, values: Sequence[Any]) -> tuple[pa.Array, Faults]:
    kinds = set(map(type, values))
    kinds.discard(_NONE)
    builders = [build for expected, build in rule.builders if expected is None or kinds <= expected]
    for build in builders:
        try:
            return build(values), {}
        except Exception:  # noqa: BLE001, S110 - whatever it was, a value is the cause and will be found
            pass
    if builders and len(values) > _FEW:
        return _fit_halves(rule, values)
    return fit_one_by_one(rule, values)


def _fit_halves(rule: Rule, values: Sequence[Any]) -> tuple[pa.Array, Faults]:
    """Each half for itself, so that one bad value among many does not make all of them slow."""
    middle = len(values) // 2
    left, faults = _fit_scalar(rule, values[:middle])
    right, right_faults = _fit_scalar(rule, values[middle:])
    faults.update((middle + position, reason) for position, reason in right_faults.items())
    return pa.concat_arrays([left, right]), faults


def fit_one_by_one(rule: Rule, values: Sequence[Any]) -> tuple[pa.Array, Faults]:
    fitting: list[Any] = [None] * len(values)
    faults: Faults = {}
    for position, value in enumerate(values):
        if value is None:
            continue
        try:
            fitting[position] = rule.one(value)
        except Unfit as unfit:
            faults[position] = str(unfit)
        except Exception as error:  # noqa: BLE001 - values run their own code: time zones, subclasses
            faults[position] = f"{shown(value)} cannot be read ({type(error).__name__})"
    return rule.collect(fitting), faults


def _fit_list(kind: ListType, values: Sequence[Any]) -> tuple[pa.Array, Faults]:
    faults: Faults = {}
    if not set(map(type, values)) <= _LISTS:
        faults = {
            position: f"{shown(value)} is not a list"
            for position, value in enumerate(values)
            if not isinstance(value, list | tuple | None)
        }
        values = [None if position in faults else value for position, value in enumerate(values)]
    offsets = [0, *itertools.accumulate(0 if value is None else len(value) for value in values)]
    items = list(itertools.chain.from_iterable(filter(None, values)))
    child, child_faults = fit_values(kind.element, items)
    for position, reason in child_faults.items():
        row = bisect.bisect_right(offsets, position) - 1
        faults.setdefault(row, f"element {position - offsets[row]}: {reason}")
    array = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), child, type=to_arrow(kind), mask=_null_mask(values))
    return array, faults


def _fit_struct(kind: StructType, values: Sequence[Any]) -> tuple[pa.Array, Faults]:
    faults: Faults = {}
    if not set(map(type, values)) <= _DICTS:
        faults = {
            position: f"{shown(value)} is not an object"
            for position, value in enumerate(values)
            if not isinstance(value, dict | None)
        }
    names = {name for name, _ in kind.fields}
    for position, value in enumerate(values):
        if value is not None and position not in faults and not value.keys() <= names:
            unknown = next(key for key in value if key not in names)
            faults[position] = f"the struct has no field {shown(unknown)}"
    if faults:
        values = [None if position in faults else value for position, value in enumerate(values)]
    children = []
    for name, field in kind.fields:
        child, child_faults = fit_values(field, [None if item is None else item.get(name) for item in values])
        children.append(child)
        for position, reason in child_faults.items():
            faults.setdefault(position, f"field {name!r}: {reason}")
    array = pa.StructArray.from_arrays(children, fields=list(to_arrow(kind)), mask=_null_mask(values))
    return array, faults


def _null_mask(values: Sequence[Any]) -> pa.Array:
    return pa.array([value is None for value in values], pa.bool_())
