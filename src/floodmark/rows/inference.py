"""The type of a column that no schema has: told from its values. Pure."""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any

from floodmark.schema.types import (
    BINARY,
    BOOLEAN,
    DATE,
    DECIMAL_DIGITS_MAX,
    DOUBLE,
    JSON,
    LONG,
    STRING,
    TIMESTAMP,
    ColumnType,
    DecimalType,
    ListType,
)

_SOME_DECIMAL = DecimalType(DECIMAL_DIGITS_MAX, 0)
_SOME_LIST = ListType(JSON)

# In this order: a bool is an int to Python, and a datetime a date.
_KINDS: tuple[tuple[Any, ColumnType], ...] = (
    (bool, BOOLEAN),
    (int, LONG),
    (float, DOUBLE),
    (str, STRING),
    ((bytes, bytearray, memoryview), BINARY),
    (dt.datetime, TIMESTAMP),
    (dt.date, DATE),
    (Decimal, _SOME_DECIMAL),
    ((list, tuple), _SOME_LIST),
    (Mapping, JSON),
)


def _kind_of(python_type: type) -> ColumnType | None:
    return next((kind for types, kind in _KINDS if issubclass(python_type, types)), None)


def infer(values: Sequence[Any]) -> ColumnType | None:
    """The type of a new column: the kind of its first value decides, and what does not fit it is a misfit.

    Integers among floats, and floats among integers, make doubles. A list of one simple kind is a list of
    it; other lists, and objects, are json. None where no value is of any kind, nulls foremost.
    """
    types = set(map(type, values))
    types.discard(type(None))
    kinds = {_kind_of(python_type) for python_type in types}
    kinds.discard(None)
    if not kinds:
        return None
    # Nulls first is common, values of no kind are not: the search is short.
    of_each = (_kind_of(type(value)) for value in values if value is not None)
    first = next(kind for kind in of_each if kind is not None)
    if first == _SOME_LIST:
        return _infer_list(values)
    return _numbers_widened(first, kinds, values)


def _infer_list(values: Sequence[Any]) -> ColumnType:
    items = list(itertools.chain.from_iterable(value for value in values if isinstance(value, list | tuple)))
    kinds = {_kind_of(python_type) for python_type in set(map(type, items)) - {type(None)}}
    simple = [kind for kind in kinds if kind is not None and kind not in {_SOME_LIST, JSON}]
    if kinds == {LONG, DOUBLE}:
        return ListType(DOUBLE)
    if len(kinds) != 1 or not simple:
        return JSON
    return ListType(_numbers_widened(simple[0], kinds, items))


def _numbers_widened(first: ColumnType, kinds: set[ColumnType | None], values: Iterable[Any]) -> ColumnType:
    if first == LONG and DOUBLE in kinds:
        return DOUBLE
    if first == _SOME_DECIMAL:
        return DecimalType(DECIMAL_DIGITS_MAX, _scale(values))
    return first


def _scale(values: Iterable[Any]) -> int:
    exponents = [value.as_tuple().exponent for value in values if isinstance(value, Decimal)]
    scales = [-exponent for exponent in exponents if isinstance(exponent, int)]
    return min(max([0, *scales]), DECIMAL_DIGITS_MAX)
