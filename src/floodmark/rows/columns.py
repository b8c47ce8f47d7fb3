"""Fitting one column: values of Python or JSON to an Arrow array of one type, exactly or not at all. Pure.

pyarrow alone would make 1 of 1.5, a double of True, bytes of a text and a timestamp of an integer, and drop
the keys a struct does not know. So the values' Python types are looked at first, at C speed. Values of the
expected type go to pyarrow at once; anything else, and anything pyarrow refuses, is taken one by one, which
also finds which values do not fit and why.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from floodmark.rows.scalars import RULES, Rule, Unfit, decimal_rule, shown
from floodmark.schema.types import ColumnType, DecimalType, ListType, StructType, to_arrow

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
