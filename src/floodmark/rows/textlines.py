"""JSON lines as rows: the one parser of files, streams and requests. Pure.

A line is an object, and the object a row. What is no row is a `Problem`, with the place that it came from and the line
itself, so that it can go to quarantine; it never keeps the lines around it from being rows. Blank lines do not count,
and a byte-order mark before the first line is passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from floodmark.jsonread import lines_change, read_json

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
HEAD_BYTES = 2000
"""How much of a line that is too long is stored."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A part of a text that is not a row of the dataset: it goes to quarantine unchanged."""

    place: str
    reason: str
    payload: bytes
    misfit: bool = False
    """It is a row, and does not fit the dataset."""


@dataclass(frozen=True, slots=True)
class ParsedLines:
    """Some lines: the rows with their line numbers, and the lines that are not rows."""

    rows: list[dict[str, Any]]
    numbers: Sequence[int]
    problems: list[Problem] = field(default_factory=list)
    count: int = 0
    """How many lines there are, blank ones too."""


@dataclass(frozen=True, slots=True)
class Overlong:
    """A line that was not held in memory, because it is too long."""

    head: bytes
    size: int
    """Its bytes, without the line feed."""
    taken: int
    """How many bytes of the text it is."""


Place = Callable[[int], str]
"""The name of a line in messages."""


def parse_lines(text: bytes, *, before: int, place: Place, line_bytes_max: int) -> ParsedLines:
    """The rows of whole lines, of which `before` others stand before."""
    if not before:
        text = text.removeprefix(BYTE_ORDER_MARK)
    lines = text.removesuffix(b"\n").split(b"\n")
    if len(text) <= line_bytes_max or max(map(len, lines)) <= line_bytes_max:
        try:
            values = list(map(orjson.loads, lines))
        except orjson.JSONDecodeError:
            values = [None]
        if set(map(type, values)) == {dict} and not lines_change(lines, values):
            return ParsedLines(values, range(before + 1, before + 1 + len(lines)), count=len(lines))
    return _parse_each(lines, before, place, line_bytes_max)


def _parse_each(lines: list[bytes], before: int, place: Place, line_bytes_max: int) -> ParsedLines:
    found = ParsedLines([], numbers := [], count=len(lines))
    for number, line in enumerate(lines, before + 1):
        if not line or line.isspace():
            continue
        if len(line) > line_bytes_max:
            found.problems.append(overlong(place(number), Overlong(line[:HEAD_BYTES], len(line), 0), line_bytes_max))
            continue
        row = row_of_text(line)
        if isinstance(row, str):
            found.problems.append(Problem(place(number), row, line))
            continue
        found.rows.append(row)
        numbers.append(number)
    return found


def row_of_text(text: bytes) -> dict[str, Any] | str:
    """The row of a text, or why it is not a row."""
    try:
        row = read_json(text)
    except orjson.JSONDecodeError as error:
        if "UTF-8" in error.msg:
            return "not UTF-8"
        return f"not JSON ({error.msg} at column {error.colno})"
    except ValueError as error:
        return f"not JSON ({error})"
    return row if type(row) is dict else not_an_object(row)


def not_an_object(value: Any) -> str:
    kinds = {list: "an array", str: "a text", bool: "true or false", int: "a number", float: "a number"}
    return f"not a JSON object: {kinds.get(type(value), 'null')}"


def overlong(place: str, line: Overlong, line_bytes_max: int) -> Problem:
    reason = f"the line has {line.size:,} bytes; line_bytes_max in [spool] of floodmark.toml is {line_bytes_max:,}"
    return Problem(place, reason, line.head)


def whole_lines(read: Callable[[], bytes], *, line_bytes_max: int) -> Iterator[bytes | Overlong]:
    """A stream cut at line feeds: whole lines, as many as one reading brought, or a line that is too long.

    A piece that ends no line gives nothing, as an empty text, so that the caller can look around. Time and memory are
    those of the bytes, however long a line is.
    """
    begun: list[bytes] = []
    size = 0
    head: bytes | None = None
    while block := read():
        end = block.rfind(b"\n") + 1
        if head is not None:
            # Skip the rest of a line that is too long.
            first = block.find(b"\n") + 1
            size += first or len(block)
            if not first:
                yield b""
                continue
            yield Overlong(head, size - 1, size)
            block, end, size, head = block[first:], end - first, 0, None
        if end:
            yield b"".join((*begun, block[:end]))
            begun, size = [], 0
        if len(block) > end:
            begun.append(block[end:])
            size += len(block) - end
            if size > line_bytes_max:
                head, begun = b"".join(begun)[:HEAD_BYTES], []
        if not end:
            yield b""
    if head is not None:
        yield Overlong(head, size, size)
    elif begun:
        yield b"".join(begun)
