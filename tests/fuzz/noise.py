"""Bad input, made of good input: bytes and values that are almost right, and some that are nothing at all."""

from __future__ import annotations

import copy
import datetime as dt
import json
import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

PIECES = (
    b"",
    b"\0",
    b"\n",
    b"\r\n",
    b"\xff\xfe",
    b"\xc3\x28",
    b'"',
    b"\\",
    b"\\ud800",
    b"{",
    b"}]",
    b"[" * 2000,
    b"null",
    b"NaN",
    b"-0",
    b"1e999",
    b"9" * 5000,
    b"18446744073709551616",
    b"\xf0\x9f\x92\xa9",
    b"\x1b[31m",
    b"../../etc/passwd",
    b"%00%0a",
)
"""What parsers stumble over."""


def _flip(data: bytearray, at: int, length: int, piece: bytes) -> None:
    if data:
        data[at % len(data)] ^= 1 << (length % 8)


def _cut(data: bytearray, at: int, length: int, piece: bytes) -> None:
    del data[at % (len(data) + 1) :]


def _remove(data: bytearray, at: int, length: int, piece: bytes) -> None:
    start = at % (len(data) + 1)
    del data[start : start + length]


def _insert(data: bytearray, at: int, length: int, piece: bytes) -> None:
    start = at % (len(data) + 1)
    data[start:start] = piece


def _replace(data: bytearray, at: int, length: int, piece: bytes) -> None:
    start = at % (len(data) + 1)
    data[start : start + len(piece)] = piece


def _repeat(data: bytearray, at: int, length: int, piece: bytes) -> None:
    start = at % (len(data) + 1)
    data[start:start] = data[start : start + length]


def _swap(data: bytearray, at: int, length: int, piece: bytes) -> None:
    start = at % (len(data) + 1)
    data[:] = data[start:] + data[:start]


CHANGES: tuple[Callable[[bytearray, int, int, bytes], None], ...] = (
    _flip,
    _cut,
    _remove,
    _insert,
    _replace,
    _repeat,
    _swap,
)


@st.composite
def mutated(draw: Any, data: bytes, *, changes_max: int = 4) -> bytes:
    """The bytes with a few changes; sometimes nothing but noise."""
    if draw(st.integers(0, 19)) == 0:
        return draw(st.binary(max_size=200))
    changed = bytearray(data)
    pieces = st.sampled_from(PIECES) | st.binary(max_size=8)
    for _ in range(draw(st.integers(1, changes_max))):
        change = draw(st.sampled_from(CHANGES))
        change(changed, draw(st.integers(0, 1 << 20)), draw(st.integers(0, 64)), draw(pieces))
    return bytes(changed)


TEXTS = st.sampled_from(
    [
        "",
        " ",
        "a",
        "0",
        "\0",
        "\n",
        "a\nb",
        "\x1b[2J",
        "..",
        "../../x",
        "/",
        "`",
        "'; DROP TABLE datasets; --",
        "_ingest_seq",
        "_origin_id",
        "x" * 300,
        "x" * 70_000,
        "é",
        "é",
        "İ",
        "\u202e",
        "💩",
        "NaN",
        "null",
        "9" * 5000,
        "2026-01-01",
        "0001-01-01T00:00:00+14:00",
        "9999-12-31T23:59:59-14:00",
        "env:",
        "env:NOWHERE",
        "file:",
        "file:///\0",
        "%",
        "%s{0}",
    ]
) | st.text(max_size=20)
"""Texts that are text: no halves of characters."""

HALVES = st.sampled_from(["\ud800", "a\udcff", "\udfff\ud800"])
"""What Python makes of bytes that are no UTF-8."""

INTEGERS = st.sampled_from(
    [0, -1, 1, 2**31, -(2**31) - 1, 2**63 - 2, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 2**64, 10**40, 10**4000]
)

PLAIN = (
    st.none() | st.booleans() | INTEGERS.filter(lambda n: abs(n) < 2**64) | TEXTS | st.floats(allow_nan=False, width=64)
).filter(lambda value: not (isinstance(value, float) and not math.isfinite(value)))
"""Values that JSON has."""

JSON = st.recursive(
    PLAIN, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3), max_leaves=6
)


def deep(levels: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(levels):
        found = [found]
    return found


class Odd:
    """A value that is nothing that anybody knows, and answers questions with errors."""

    def __repr__(self) -> str:
        return "Odd()"

    def __bool__(self) -> bool:
        raise RuntimeError("do not ask")

    def __str__(self) -> str:
        raise RuntimeError("do not ask")

    def __len__(self) -> int:
        raise RuntimeError("do not ask")


class OddText(str):
    """A text that is not quite one."""

    __slots__ = ()

    def __str__(self) -> str:
        raise RuntimeError("do not ask")


class OddZone(dt.tzinfo):
    """A time zone that fails."""

    def __repr__(self) -> str:
        return "OddZone()"

    def utcoffset(self, _when: Any) -> Any:
        raise RuntimeError("do not ask")

    def dst(self, _when: Any) -> Any:
        return None

    def tzname(self, _when: Any) -> Any:
        return None


PYTHON = st.one_of(
    JSON,
    INTEGERS,
    HALVES,
    st.builds(OddZone).map(lambda zone: dt.datetime(2026, 1, 1, tzinfo=zone)),
    st.sampled_from(
        [
            math.nan,
            math.inf,
            Decimal("NaN"),
            Decimal("sNaN"),
            Decimal("1E+400000"),
            Decimal("1E-400000"),
            b"\xff",
            bytearray(b"x"),
            memoryview(b"abc"),
            {1, 2},
            frozenset(),
            object(),
            Odd(),
            OddText("x"),
            Odd,
            dt.datetime(1, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=14))),
            dt.datetime(9999, 12, 31, 23, tzinfo=dt.timezone(-dt.timedelta(hours=14))),
            dt.date.min,
            dt.time(1, 2, 3),
            dt.timedelta.max,
            complex(1, 2),
            range(3),
            (),
            (1, "a"),
            {1: 2},
            {None: 1},
            {"a": Odd()},
            [Odd()],
            deep(99),
            deep(250),
            deep(1500),
            ...,
            lambda: 1,
            iter(()),
        ]
    ),
)
"""Values of Python's that somebody may hand over."""


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path]
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inner:
        found += _places(item, (*path, key))
    return found


@st.composite
def altered(draw: Any, value: Any, replacements: st.SearchStrategy[Any] = JSON) -> Any:
    """A JSON value in which something is gone, came along, or became something else."""
    whole = [copy.deepcopy(value)]
    for _ in range(draw(st.integers(1, 3))):
        *path, key = draw(st.sampled_from([(0, *place) for place in _places(whole[0])]))
        inside: Any = whole
        for step in path:
            inside = inside[step]
        change = draw(st.sampled_from(["replace", "replace", "remove", "add"]))
        if change == "remove" and path:
            del inside[key]
        elif change == "add" and isinstance(inside[key], dict):
            inside[key][draw(TEXTS)] = draw(replacements)
        elif change == "add" and isinstance(inside[key], list):
            inside[key].append(draw(replacements))
        else:
            inside[key] = draw(replacements)
    return whole[0]


def dumped(value: Any) -> bytes:
    """JSON as a lenient writer writes it: with NaN, halves of characters and any depth."""
    return json.dumps(value, default=repr).encode()
