"""JSON text, read without changing a number. Pure.

orjson is fast, and reads an integer beyond 64 bits, and any fraction, as a double. A text that has such a number is
read a second time, exactly:

| number in the text                                        | what it becomes                               |
|-----------------------------------------------------------|-----------------------------------------------|
| an integer                                                | an int, of any size                           |
| a fraction that a double writes back as the same number    | a float                                       |
| any other fraction                                        | an `ExactNumber`: a float that keeps its digits |

Of two values under one key in an object the last one counts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from decimal import Context, Decimal
from typing import Any, Self

import orjson

NUMBER_CHARACTERS_MAX = 1000
"""A longer number is no value of any column, and costs more than its length to read."""

_INTEGER_MAX = b"9223372036854775807"
_DIGIT = ord("0")
_EXACT = Context(prec=NUMBER_CHARACTERS_MAX)

# A double carries every number of 15 digits, so only longer ones can change; and those of an exponent so large that a
# double has none. Both are searched in a copy of the text in which all digits are the same, at the speed of memory.
_SHAPES = bytes.maketrans(b"123456789.E+", b"0000000000e-")
_LONG, _FAR, _FAR_BELOW = b"0" * 16, b"0e000", b"0e-000"
_LONG_NUMBER = re.compile(rb"0000000000000000" rb"0*(?:e-?0+)?")
_REST = re.compile(rb"[0-9.]*(?:[eE][+-]?[0-9]+)?")
_LINES_AT_ONCE = 256
"""How many lines are checked together. One number that programs write differently makes all of them slow."""
_BLANKS = b" \t\r\n"
_BEFORE_NUMBERS = frozenset(b" \t\r\n:,[-")


class ExactNumber(float):
    """A number of a JSON text that no double is: the nearest double, with all of its digits."""

    text: str
    """The number as JSON, in one form whatever form it came in."""

    def __new__(cls, text: str) -> Self:
        made = super().__new__(cls, text)
        made.text = str(_EXACT.normalize(Decimal(text))).replace("E+", "e").replace("E", "e")
        return made

    def __reduce__(self) -> tuple[type[ExactNumber], tuple[str]]:
        return ExactNumber, (self.text,)

    @property
    def decimal(self) -> Decimal:
        return Decimal(self.text)

    @property
    def is_whole(self) -> bool:
        """Whether it is an integer, however it is written."""
        return int(self.decimal.as_tuple().exponent) >= 0


def read_json(text: bytes) -> Any:
    """The value of a JSON text, every number as written; `ValueError` says what is wrong with the text."""
    value = orjson.loads(text)  # which is also stricter than the exact reader
    return read_exactly(text) if changes(text, value) else value


def changes(text: bytes, value: Any) -> bool:
    """Whether orjson, which read this value from the text, may have changed a number: never wrongly false."""
    shapes = text.translate(_SHAPES)
    return _has_suspects(shapes) and not _writes_back(text, value) and _has_inexact(text, shapes)


def lines_change(lines: list[bytes], values: list[Any]) -> bool:
    """The same for lines of JSON: checking many together is much cheaper than checking each."""
    for start in range(0, len(lines), _LINES_AT_ONCE):
        # A line feed is no part of a value, so that lines are a list but for the commas.
        text = b"[%b]" % b",".join(lines[start : start + _LINES_AT_ONCE])
        if changes(text, values[start : start + _LINES_AT_ONCE]):
            return True
    return False


def is_suspect(text: bytes) -> bool:
    """Whether the text has a number that a double might not be: cheap, never wrongly false, and often wrongly true."""
    return _has_suspects(text.translate(_SHAPES))


def _has_suspects(shapes: bytes) -> bool:
    return _LONG in shapes or _FAR in shapes or _FAR_BELOW in shapes


def _writes_back(text: bytes, value: Any) -> bool:
    """Whether orjson makes the same text of the value, blanks aside: then every number is as it was."""
    try:
        written = orjson.dumps(value)
    except TypeError:  # it reads deeper than it writes
        return False
    return _squeezed(written) == _squeezed(text)


def _squeezed(text: bytes) -> bytes:
    """The text without what programs write differently and means the same: blanks, and `e-05` for `e-5`."""
    return text.translate(None, _BLANKS).replace(b"e-0", b"e-").replace(b"e+", b"e")


def _has_inexact(text: bytes, shapes: bytes) -> bool:
    """Whether a number may change. What only looks like one, within a text in quotes, may be taken for it."""
    numbers = [text[slice(*found.span())] for found in _LONG_NUMBER.finditer(shapes)]
    for shape in (_FAR, _FAR_BELOW):
        numbers += _numbers_like(shape, shapes, text)
    try:
        written = orjson.dumps(list(map(float, numbers)))[1:-1].split(b",")
    except ValueError:  # a version, an address: within a text in quotes
        written = [b""] * len(numbers)
    # Most programs write a double as orjson does. Only numbers that differ are checked one by one.
    return not all(_is_exact(number) for number, same in zip(numbers, written, strict=False) if number != same)


def _numbers_like(shape: bytes, shapes: bytes, text: bytes) -> Iterator[bytes]:
    """The numbers of a text that have a rare shape."""
    at = shapes.find(shape)
    while at >= 0:
        while at and shapes[at - 1] == _DIGIT:
            at -= 1
        found = _REST.match(text, at)
        end = found.end() if found else at
        if at == 0 or text[at - 1] in _BEFORE_NUMBERS:
            yield text[at:end]
        at = shapes.find(shape, max(end, at + 1))


def _is_exact(number: bytes) -> bool:
    if number.isdigit():
        return len(number) < 19 or (len(number) == 19 and number <= _INTEGER_MAX)
    try:
        return len(number) <= NUMBER_CHARACTERS_MAX and _double_writes(number.decode())
    except ValueError:
        return False


def _double_writes(number: str) -> bool:
    double = float(number)
    return Decimal(repr(double)) == Decimal(number) if double - double == 0 else False


def read_exactly(text: bytes) -> Any:
    """The value of a text that orjson has read: slower, and every number as written."""
    try:
        return json.loads(text, parse_int=_integer, parse_float=_fraction)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _integer(number: str) -> int:
    return int(_bounded(number))


def _fraction(number: str) -> float:
    return float(number) if _double_writes(_bounded(number)) else ExactNumber(number)


def _bounded(number: str) -> str:
    if len(number) > NUMBER_CHARACTERS_MAX:
        raise ValueError(f"it has a number of {len(number):,} characters; the maximum is {NUMBER_CHARACTERS_MAX:,}")
    return number
