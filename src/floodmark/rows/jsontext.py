"""Python values as JSON: what each becomes, and one canonical text per value. Pure.

The landing log and `json` columns share these rules, so that a value is the same whether it was judged as
the Python value that was captured or as the JSON value that sealing read back:

| value                     | in JSON                                        |
|---------------------------|------------------------------------------------|
| datetime                  | RFC 3339 text in UTC (a naive one is UTC)       |
| date, time                | ISO text                                       |
| Decimal, UUID             | text                                           |
| bytes                     | base64 text                                    |
| NaN, ±Infinity            | the texts `NaN`, `Infinity`, `-Infinity`        |
| a number beyond 64 bits   | a number, with all of its digits               |
"""

from __future__ import annotations

import base64
import datetime as dt
import enum
import math
import uuid
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import orjson

from floodmark.jsonread import NUMBER_CHARACTERS_MAX, ExactNumber

DEPTH_MAX = 100
"""How deep a value nests at most: well inside what JSON parsers take, envelope included."""

INTEGER_MIN, INTEGER_MAX = -(2**63), 2**64 - 1
"""The integers that a JSON parser reads as such; many make a double of any other."""
_BITS_MAX = 3 * NUMBER_CHARACTERS_MAX
"""An integer of more bits would be longer than a number may be."""

STRICT = orjson.OPT_PASSTHROUGH_SUBCLASS | orjson.OPT_PASSTHROUGH_DATACLASS
# orjson writes an offset's minutes and drops its seconds, which moves the instant (Amsterdam before 1937):
# where a datetime may carry such a zone it comes to `portable` instead.
CAREFUL = STRICT | orjson.OPT_PASSTHROUGH_DATETIME
_CANONICAL = CAREFUL | orjson.OPT_SORT_KEYS

_PLAIN = frozenset({str, int, bool, type(None)})


class NotJson(ValueError):
    """A value that JSON cannot hold; the text says why."""


def float_text(value: float) -> str:
    """How JSON, which has no number for it, carries a float that is not finite."""
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def portable(value: Any) -> Any:
    """What a value that JSON has no form for becomes; `TypeError` where it has none."""
    for kind, convert in _CONVERSIONS:
        if isinstance(value, kind):
            return convert(value)
    raise TypeError(f"a {type(value).__name__} cannot be stored as JSON")


def _utc_text(value: dt.datetime) -> str:
    if value.utcoffset() is None:
        return value.replace(tzinfo=dt.UTC).isoformat()
    try:
        return value.astimezone(dt.UTC).isoformat()
    except OverflowError as error:
        raise TypeError("a datetime before the year 1 or after 9999 in UTC cannot be stored") from error


_CONVERSIONS: tuple[tuple[Any, Any], ...] = (
    (enum.Enum, lambda value: value.value),
    (ExactNumber, lambda value: orjson.Fragment(value.text)),
    (str, str.__str__),
    (int, int.__index__),
    (float, lambda value: float(value) if math.isfinite(value) else float_text(value)),
    (dt.datetime, _utc_text),
    (dt.date, lambda value: value.isoformat()),
    (dt.time, lambda value: value.isoformat()),
    (Decimal, str),
    (uuid.UUID, str),
    (bytes | bytearray | memoryview, lambda value: base64.b64encode(bytes(value)).decode()),
    (list | tuple, list),
    (Mapping, dict),
)


def plain_json(value: Any, *, depth: int = 1) -> Any:
    """A copy of the value in which everything is what orjson can write; `NotJson` where something cannot be."""
    kind = type(value)
    if kind is int:
        return value if INTEGER_MIN <= value <= INTEGER_MAX else _big_integer(value)
    if kind in _PLAIN:
        return value
    if kind is float:
        return value if math.isfinite(value) else float_text(value)
    if depth > DEPTH_MAX:
        raise NotJson(f"it is nested deeper than {DEPTH_MAX} levels")
    if kind is dict:
        if not all(isinstance(key, str) for key in value):
            raise NotJson("an object's keys must be text")
        return {str.__str__(key): plain_json(item, depth=depth + 1) for key, item in value.items()}
    if kind is list or kind is tuple:
        return [plain_json(item, depth=depth + 1) for item in value]
    try:
        converted = portable(value)
    except TypeError as error:
        raise NotJson(str(error)) from error
    return converted if type(converted) is orjson.Fragment else plain_json(converted, depth=depth + 1)


def _big_integer(value: int) -> orjson.Fragment:
    if value.bit_length() > _BITS_MAX:
        raise NotJson(f"an integer of {value.bit_length():,} bits has more than {NUMBER_CHARACTERS_MAX:,} digits")
    return orjson.Fragment(str(value))


def canonical_json(value: Any) -> str:
    """The one JSON text of a value: keys sorted, no blanks. `NotJson` says what it cannot hold."""
    try:
        text = orjson.dumps(value, default=portable, option=_CANONICAL)
    except TypeError:
        return _carefully(value)
    # orjson writes NaN as null, and takes more depth than the landing log's envelope leaves: look closer
    # where either may be the case.
    if b"null" in text or text.count(b"[") + text.count(b"{") > DEPTH_MAX:
        return _carefully(value)
    return text.decode()


def _carefully(value: Any) -> str:
    try:
        text = orjson.dumps(plain_json(value), option=_CANONICAL)
    except TypeError as error:
        raise NotJson(str(error)) from error
    # In a row null is the absence of a value, so nothing that is a value may be written like it.
    if text == b"null":
        raise NotJson("it is null")
    return text.decode()
