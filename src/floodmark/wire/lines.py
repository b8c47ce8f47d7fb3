"""Rows as lines of JSON: what every server reads. Pure.

A line for each row, in sequence order: the row's own columns flat in one object, its number and the first 64 bits of
its content id beside them:

    {"id":1,"at":"2026-01-31T12:00:00.000000Z","_origin_seq":41,"_origin_id":"a5a4c2f1d2a0b7c3"}

Every value is written so that the parser of captured rows reads the same value back. JSON alone does not tell a time
from a text, so the header names the types of those columns that a reader could not guess.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Any

import orjson

from floodmark.errors import MalformedChunk
from floodmark.jsonread import is_suspect, lines_change, read_json
from floodmark.rows.jsontext import INTEGER_MAX, INTEGER_MIN
from floodmark.schema import BINARY, BOOLEAN, JSON, LONG, STRING, ColumnType, DecimalType, ListType, Schema, StructType
from floodmark.schema.types import DATE, DOUBLE, FLOAT, TIMESTAMP, from_arrow
from floodmark.sequence import CHECKSUM_MODULUS, Tally
from floodmark.wire.bodies import Limits
from floodmark.wire.header import (
    ORIGIN_ID,
    ORIGIN_SEQ,
    ChunkHeader,
    check_count,
    check_digest,
    check_sequence,
    checked_tally,
    malformed,
)

if TYPE_CHECKING:
    import pyarrow as pa

_SIMPLE = frozenset({str, int, float, bool, type(None)})


# ── rows to lines ────────────────────────────────────────────────────────────────────────────────────────────────────


def types_lost_in_json(schema: Schema, rows: pa.Table) -> dict[str, str]:
    """The types of those columns in the table that a reader of the lines could not guess."""
    kinds = {name: _kind(schema, rows, name) for name in columns_with_values(rows)}
    return {name: str(kind) for name, kind in kinds.items() if kind not in {BOOLEAN, LONG, STRING}}


def encode_lines(rows: pa.Table, sequence: pa.ChunkedArray, ids: pa.ChunkedArray, *, schema: Schema) -> bytes:
    """The rows as lines of JSON, each with its number and the first 64 bits of its content id.

    The schema tells a json column from one of texts, which look the same in Arrow.
    """
    import pyarrow.compute as pc

    if not len(sequence) == len(ids) == rows.num_rows:
        raise ValueError(f"{rows.num_rows} rows, {len(sequence)} numbers and {len(ids)} ids")
    names = columns_with_values(rows)
    columns = [_json_values(_kind(schema, rows, name), rows.column(name)) for name in names]
    beside = [sequence.to_pylist(), pc.utf8_slice_codeunits(ids, 0, 16).to_pylist()]
    return _written([*names, ORIGIN_SEQ, ORIGIN_ID], [*columns, *beside])


def read_as_lines(rows: pa.Table, *, schema: Schema) -> tuple[list[str], list[Sequence[Any]]]:
    """The table's columns and values as a reader of its lines gets them."""
    names = columns_with_values(rows)
    if not names:
        return [], []
    columns, values, _ = columns_of(
        _written(names, [_json_values(_kind(schema, rows, name), rows.column(name)) for name in names]), None
    )
    return columns, values


def _written(names: Sequence[str], columns: Sequence[list[Any]]) -> bytes:
    import msgspec

    # One call for all lines, on objects whose fields are known: several times faster than a call for each dict.
    lines: bytes = msgspec.json.Encoder().encode_lines(list(map(_line_type(tuple(names)), *columns)))
    return lines


def columns_with_values(rows: pa.Table) -> list[str]:
    # Null is the absence of a value, and a column without any would only be guessed at.
    return [name for name in rows.column_names if rows.column(name).null_count < rows.num_rows]


def _kind(schema: Schema, rows: pa.Table, name: str) -> ColumnType:
    column = schema.get(name)
    kind = column.type if column is not None else from_arrow(rows.schema.field(name).type, column=name)
    if kind is None:
        raise ValueError(f"column {name!r} has values of Arrow's null type")
    return kind


@lru_cache(maxsize=256)
def _line_type(names: tuple[str, ...]) -> Callable[..., Any]:
    """What makes of one value for each name something that is written as an object with those keys."""
    try:
        return _line_struct(names)
    except ValueError:  # a key that would need escapes
        return lambda *values: dict(zip(names, values, strict=True))


def _line_struct(names: tuple[str, ...]) -> type[Any]:
    """A class whose instances are lines with those keys; a key that is not there is null."""
    import msgspec

    fields: list[Any] = [(f"field{index}", Any, None) for index in range(len(names))]
    renamed = {field[0]: name for field, name in zip(fields, names, strict=True)}
    made: type[Any] = msgspec.defstruct("Line", fields, rename=renamed, gc=False, forbid_unknown_fields=True)
    return made


def _json_values(kind: ColumnType, column: pa.ChunkedArray) -> list[Any]:
    """A column as values that are written as the JSON which stands for them. Arrow does the work where it can."""
    import pyarrow as pa
    import pyarrow.compute as pc

    values: list[Any]
    if kind == TIMESTAMP:
        # Without its zone, which is UTC: Arrow looks one up for every value otherwise, twenty times slower.
        texts = column.cast(pa.int64()).cast(pa.timestamp("us")).cast(pa.string())
        values = pc.binary_replace_slice(pc.binary_join_element_wise(texts, "Z", ""), 10, 11, "T").to_pylist()
    elif kind == DATE or isinstance(kind, DecimalType):
        values = column.cast(pa.string()).to_pylist()
    else:
        values = column.to_pylist()
        nested = kind == JSON or isinstance(kind, ListType | StructType)
        if nested or (kind in {FLOAT, DOUBLE} and not pc.all(pc.is_finite(column), min_count=0).as_py()):
            values = list(map(_plain(kind), values))
    return values


def _plain(kind: ColumnType) -> Callable[[Any], Any]:
    """What makes JSON of a single value of the type, at any depth."""
    import msgspec

    from floodmark.rows.jsontext import plain_json

    if kind == JSON:
        return lambda text: None if text is None else msgspec.Raw(text.encode())
    if isinstance(kind, ListType):
        element = _plain(kind.element)
        return lambda items: None if items is None else list(map(element, items))
    if isinstance(kind, StructType):
        fields = {name: _plain(field) for name, field in kind.fields}
        return lambda item: None if item is None else {name: one(item[name]) for name, one in fields.items()}
    if kind == BINARY:
        return lambda value: value  # msgspec writes base64, as captured bytes are
    return plain_json


# ── lines to rows ────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Lines:
    """The rows of a chunk, column by column, as the parser of captured rows takes them."""

    columns: list[str]
    values: list[Sequence[Any]]
    sequence: Sequence[int]
    tally: Tally


def decode_lines(content: bytes, header: ChunkHeader, limits: Limits | None = None) -> Lines:
    """The rows of a body, checked against its header; `MalformedChunk` where the two do not agree."""
    check_digest(content, header)
    columns, values, rows = columns_of(content, limits or Limits())
    check_count(rows, header)
    if not rows:
        return Lines([], [], (), checked_tally(Tally(), header))
    came = dict(zip(columns, values, strict=True))
    sequence, ids = came.pop(ORIGIN_SEQ, ()), came.pop(ORIGIN_ID, ())
    if not sequence or set(map(type, sequence)) != {int}:
        raise malformed(f"a row has no `{ORIGIN_SEQ}` that is a number")
    check_sequence(sequence, header)
    tally = Tally(len(ids), _checksum(ids))
    return Lines(list(came), list(came.values()), sequence, checked_tally(tally, header))


def columns_of(content: bytes, limits: Limits | None) -> tuple[list[str], list[Sequence[Any]], int]:
    """The lines column by column, and how many they are. Without limits they are our own."""
    if limits is not None:
        limits.check_rows(_line_count(content))
        limits.check_text(content)
    found = columns_alike(content, limits)
    if found is not None:
        return found
    from floodmark.rows.fit import rows_to_columns

    objects = parse_lines(content)
    if limits is not None:
        check_objects(objects, limits)
    return *rows_to_columns(objects), len(objects)


def columns_alike(content: bytes, limits: Limits | None = None) -> tuple[list[str], list[Sequence[Any]], int] | None:
    """The same for lines that all have the keys of the first, and simple values: the usual case, twice as fast.

    None for all others, and wherever this parser could read something else than the one that captured rows go through:
    numbers beyond 64 bits, and several objects in a line.
    """
    import msgspec

    first = content.partition(b"\n")[0]
    try:
        names = tuple(orjson.loads(first))
    except (ValueError, TypeError):
        return None  # the other parser says what is wrong, if anything is
    if limits is not None:
        limits.check_shape(_line_count(content), len(names))
    try:
        parse, as_tuple = _line_parser(names)
        lines = parse(content)
    except (ValueError, TypeError, RecursionError, msgspec.MsgspecError):
        return None
    if len(lines) != _line_count(content):
        return None
    if is_suspect(content) and msgspec.json.Encoder().encode_lines(lines).strip() != content.strip():
        return None
    values: list[Sequence[Any]] = list(zip(*map(as_tuple, lines), strict=True))
    return (list(names), values, len(lines)) if all(map(_is_read_alike, values)) else None


def _line_count(content: bytes) -> int:
    return content.count(b"\n") + (not content.endswith(b"\n"))


def check_objects(objects: Sequence[dict[str, Any]], limits: Limits) -> None:
    """Rows that are parsed, before they are laid side by side, where each has a place for every column."""
    names: set[str] = set()
    for item in objects:
        names.update(item)
    limits.check_shape(len(objects), len(names))
    limits.check_depths(chain.from_iterable(map(dict.values, objects)))


@lru_cache(maxsize=256)
def _line_parser(names: tuple[str, ...]) -> tuple[Callable[[bytes], list[Any]], Callable[[Any], tuple[Any, ...]]]:
    import msgspec

    line = _line_struct(names)
    return msgspec.json.Decoder(line).decode_lines, msgspec.structs.astuple


def _is_read_alike(column: Sequence[Any]) -> bool:
    kinds = set(map(type, column))
    if not kinds <= _SIMPLE:
        return False
    if int not in kinds:
        return True
    numbers = column if len(kinds) == 1 else [value for value in column if type(value) is int]
    return min(numbers) >= INTEGER_MIN and max(numbers) <= INTEGER_MAX


def parse_lines(content: bytes) -> list[dict[str, Any]]:
    """Each line's object; `MalformedChunk` names the first line that is none."""
    lines = content.split(b"\n")
    if not lines[-1]:
        lines.pop()
    try:
        objects = list(map(orjson.loads, lines))
        if lines_change(lines, objects):
            objects = list(map(read_json, lines))
    except ValueError:
        number = next(number for number, line in enumerate(lines, 1) if not _is_json(line))
        raise MalformedChunk(
            f"Line {number} is not JSON.", hint="Nothing was stored. Send one JSON object per line."
        ) from None
    if not set(map(type, objects)) <= {dict}:
        number = next(number for number, item in enumerate(objects, 1) if type(item) is not dict)
        raise MalformedChunk(
            f"Line {number} is not a JSON object.", hint="Nothing was stored. Send one JSON object per line."
        )
    return objects


def _is_json(line: bytes) -> bool:
    try:
        orjson.loads(line)
    except ValueError:
        return False
    return True


def _checksum(ids: Sequence[Any]) -> int:
    try:
        digits = "".join(ids)
        prefixes = bytes.fromhex(digits)  # which passes over blanks: hence the lengths
        if set(map(len, ids)) != {16} or len(prefixes) * 2 != len(digits):
            raise ValueError("not 16 hex digits each")
    except (TypeError, ValueError):
        raise malformed(f"a row has no `{ORIGIN_ID}` of 16 hex digits") from None
    numbers: tuple[int, ...] = struct.unpack(f">{len(ids)}Q", prefixes)
    return sum(numbers) % CHECKSUM_MODULUS
