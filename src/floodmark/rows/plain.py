"""Rows that fit as they are, recognised value by value: a single row needs no Arrow table to be checked. Pure.

A yes is certain: `rows.fit` would take the same rows, all of them, unchanged and without a new column. What is not
certain here (other types, other names, long lists of rows) is left to it.
"""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from floodmark.config import SpoolSettings
from floodmark.errors import SchemaConflict
from floodmark.schema import Schema
from floodmark.schema.types import BOOLEAN, DOUBLE, INT, LONG, STRING, TIMESTAMP, ColumnType, width

ROWS_MAX = 16
"""For more rows, checking whole columns at once is faster."""

_TIME = re.compile(
    r"[1-9][0-9]{3}-[0-9]{2}-[0-9]{2}[T ]([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?"
    r"(Z|[+-](0[0-9]|1[0-4]):[0-5][0-9])?"
)
Check = Callable[[Any], bool]


def _is_text(value: Any) -> bool:
    if type(value) is not str:
        return False
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:  # half of a pair
            return False
    return True


def _is_integer(bits: int) -> Check:
    low, high = -(1 << bits - 1), 1 << bits - 1
    return lambda value: type(value) is int and low <= value < high


def _is_time(value: Any) -> bool:
    if type(value) is not str or _TIME.fullmatch(value) is None or value.startswith("9999"):
        return False
    try:
        dt.datetime.fromisoformat(value)
    except ValueError:  # the thirtieth of February
        return False
    return True


_CHECKS: dict[ColumnType, Check] = {
    STRING: _is_text,
    INT: _is_integer(32),
    LONG: _is_integer(64),
    DOUBLE: lambda value: type(value) is float and math.isfinite(value),
    BOOLEAN: lambda value: type(value) is bool,
    TIMESTAMP: _is_time,
}


@dataclass(frozen=True, slots=True)
class Demands:
    """What is asked of rows beside the schema."""

    limits: SpoolSettings
    identity: tuple[tuple[str, ...], ...] = ()
    """A row must have one of these identities; empty where it need not."""

    def check_columns(self, schema: Schema, new: Sequence[str], *, taken: int | None = None) -> None:
        """`SchemaConflict` if the schema has no room for so many new columns. `taken`: what they take up."""
        if not new:
            return
        if len(new) > self.limits.new_columns_max:
            raise SchemaConflict(
                f"{len(new):,} new columns in one call; new_columns_max is {self.limits.new_columns_max:,}.",
                hint="Put objects with many keys into one json column, declare the columns, or increase "
                "new_columns_max in [spool] of floodmark.toml.",
            )
        total = sum(width(column.type) for column in schema) + (len(new) if taken is None else taken)
        if total > self.limits.columns_max:
            raise SchemaConflict(
                f"The dataset would have {total:,} columns; columns_max is {self.limits.columns_max:,}.",
                hint="Put objects with many keys into one json column, or increase columns_max in [spool] of "
                "floodmark.toml.",
            )


@dataclass(slots=True)
class PlainRows:
    """What rows of one schema and one list of identities must be like."""

    schema: Schema
    identity: tuple[tuple[str, ...], ...]
    """A row must have one of these; empty where it need not."""
    _checks: dict[str, Check] = field(init=False)
    _required: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        self._checks = {item.name: _CHECKS[item.type] for item in self.schema if item.type in _CHECKS}
        self._required = frozenset(item.name for item in self.schema if item.required)

    def columns(self, rows: Any) -> tuple[list[str], list[Sequence[Any]]] | None:
        """The names and, column by column, the values of rows that fit; None if that is not certain."""
        if type(rows) is not list or not 0 < len(rows) <= ROWS_MAX or set(map(type, rows)) != {dict}:
            return None
        names = list(rows[0])
        if not names or any(list(row) != names for row in rows):
            return None
        values: list[Sequence[Any]] = [[row[name] for row in rows] for name in names]
        whole = set()
        for name, column in zip(names, values, strict=True):
            check = self._checks.get(name)
            if check is None or not all(value is None or check(value) for value in column):
                return None
            if None not in column:
                whole.add(name)
        if not self._required <= whole:
            return None
        if self.identity and not any(whole.issuperset(one) for one in self.identity):
            return None
        return names, values
