"""The envelope: one JSON line of the landing log, which is one call's rows. Pure.

{"version":1,"columns":["id","at"],"rows":[[1,"2026-01-31T12:00:00+00:00"],[2,null]]}
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from floodmark.errors import Permanent, UnserialisableValue
from floodmark.jsonread import read_json
from floodmark.rows.jsontext import CAREFUL, STRICT, NotJson, plain_json, portable

VERSION = 1

_NONE = type(None)
_SIMPLE = frozenset({str, int, bool, float, dt.datetime, dt.date, _NONE})
_UTC = (None, dt.UTC)


class MalformedEnvelope(Permanent):
    """A line of the landing log that is not an envelope."""


@dataclass(frozen=True, slots=True)
class Envelope:
    """One call's rows, column by column."""

    columns: list[str]
    values: list[Sequence[Any]]
    rows: int


def encode_envelope(columns: Sequence[str], values: Sequence[Sequence[Any]], rows: int) -> bytes:
    """The rows as one line; `UnserialisableValue` names the column and row of a value that has no form."""
    if len(columns) != len(values) or any(len(column) != rows for column in values):
        raise ValueError("an envelope needs one value per column and row")
    option, portable_values = _prepared(columns, values)
    body = {"version": VERSION, "columns": columns, "rows": _row_major(portable_values, rows)}
    try:
        line = orjson.dumps(body, default=portable, option=option)
    except TypeError:
        # Find out which value it was; what only needed another form (an integer of more than 64 bits in a
        # decimal column) gets it on the way.
        body["rows"] = _row_major([_plain(*pair) for pair in zip(columns, values, strict=True)], rows)
        line = _dumped(body)
    return line + b"\n"


def row_payload(row: Mapping[str, Any]) -> bytes:
    """One row as it is kept in quarantine: an envelope, or, of a row that has no such form, what Python shows of it."""
    try:
        return encode_envelope(list(row), [[value] for value in row.values()], rows=1)
    except UnserialisableValue:
        return repr(row).encode(errors="backslashreplace")


def _row_major(values: Sequence[Sequence[Any]], rows: int) -> list[tuple[Any, ...]]:
    return list(zip(*values, strict=True)) if values else [()] * rows


def _prepared(columns: Sequence[str], values: Sequence[Sequence[Any]]) -> tuple[int, list[Sequence[Any]]]:
    """The columns with everything orjson would write wrongly made plain, and the option to write them with."""
    option = STRICT | orjson.OPT_NAIVE_UTC
    prepared: list[Sequence[Any]] = []
    for name, column in zip(columns, values, strict=True):
        kinds = set(map(type, column))
        if not kinds <= _SIMPLE or (float in kinds and not _all_finite(column, kinds)):
            # orjson writes NaN as null, at any depth, and no option forbids it.
            prepared.append(_plain(name, column))
        else:
            prepared.append(column)
        if dt.datetime in kinds and not {v.tzinfo for v in column if type(v) is dt.datetime} <= {*_UTC}:
            option = CAREFUL
    return option, prepared


def _all_finite(column: Sequence[Any], kinds: set[type]) -> bool:
    if kinds == {float}:
        return all(map(math.isfinite, column))
    return all(math.isfinite(value) for value in column if type(value) is float)


def _plain(name: str, column: Sequence[Any]) -> list[Any]:
    result = []
    for row, value in enumerate(column):
        try:
            result.append(plain_json(value))
            if type(result[-1]) not in _SIMPLE or isinstance(value, str):
                orjson.dumps(result[-1])
        except (NotJson, TypeError) as error:
            raise _unserialisable(name, row, value, error) from error
        except Exception as error:  # values run their own code: time zones, mappings, subclasses
            raise _unserialisable(name, row, value, error) from error
    return result


def _unserialisable(name: str, row: int, value: Any, error: Exception) -> UnserialisableValue:
    return UnserialisableValue(
        f"Row {row} has a value of type {type(value).__name__} in column {name!r} that cannot be stored: {error}.",
        hint="Convert it to text, a number, bytes, a date or time, or lists and dicts of these.",
    )


def _dumped(body: dict[str, Any]) -> bytes:
    try:
        return orjson.dumps(body)
    except TypeError as error:
        raise UnserialisableValue(
            f"The rows cannot be stored: {error}.", hint="Check the column names for unpaired surrogates."
        ) from error


def decode_envelope(line: bytes) -> Envelope:
    """Read a line; `MalformedEnvelope` says what is wrong with one that is not an envelope."""
    try:
        content = read_json(line)
    except ValueError as error:
        raise _malformed(f"it is not JSON: {error}") from error
    if type(content) is not dict or content.keys() != {"version", "columns", "rows"}:
        raise _malformed("it is not an object of version, columns and rows")
    version, columns, rows = content["version"], content["columns"], content["rows"]
    if type(version) is not int or version != VERSION:
        raise _malformed(f"its version is {str(version)[:40]!r}; this Floodmark reads version {VERSION}")
    if type(columns) is not list or not all(type(name) is str for name in columns):
        raise _malformed("its columns are not a list of names")
    if len(set(columns)) != len(columns):
        raise _malformed("it names a column twice")
    if type(rows) is not list or not set(map(type, rows)) <= {list}:
        raise _malformed("its rows are not a list of lists")
    if not set(map(len, rows)) <= {len(columns)}:
        ragged = next(index for index, row in enumerate(rows) if len(row) != len(columns))
        raise _malformed(f"row {ragged} has {len(rows[ragged])} values for {len(columns)} columns")
    values: list[Sequence[Any]] = list(zip(*rows, strict=True)) if rows else [()] * len(columns)
    return Envelope(columns, values, len(rows))


def _malformed(reason: str) -> MalformedEnvelope:
    return MalformedEnvelope(
        f"A line of the landing log is not an envelope: {reason}.",
        hint="It is in quarantine; `floodmark quarantine list` shows it.",
    )
