"""Partition keys: the text that names one logical slice of a dataset. Pure.

`all` where a dataset has no partition columns; otherwise `column=value` parts joined by `/`, both sides
percent-encoded, and `column!` for null, so that the empty text and null are two slices. One slice has one
key and one key one slice: keys are compared as text, used in object names and sent to hubs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from floodmark.errors import InvalidName, SchemaConflict
from floodmark.schema.types import BOOLEAN, DATE, INT, LONG, STRING, ColumnType

if TYPE_CHECKING:
    from floodmark.schema.columns import Schema

WHOLE = "all"
"""The key of the one slice of a dataset without partition columns."""

PartitionValues = Mapping[str, Any]
"""The columns of a slice with their values."""

PARTITION_TYPES: tuple[ColumnType, ...] = (STRING, INT, LONG, BOOLEAN, DATE)


def partition_key(columns: Sequence[str], values: Sequence[Any]) -> str:
    """The key of the slice that holds the values of the partition columns."""
    if len(columns) != len(values):
        raise ValueError(f"{len(columns)} partition columns, but {len(values)} values")
    if not columns:
        return WHOLE
    return "/".join(_part(name, value) for name, value in zip(columns, values, strict=True))


def _part(name: str, value: Any) -> str:
    if value is None:
        return f"{_encoded(name)}!"
    return f"{_encoded(name)}={_encoded(value_text(name, value))}"


def value_text(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int):
        return str(value)
    if isinstance(value, date) and not isinstance(value, datetime):
        return value.isoformat()
    raise SchemaConflict(
        f"Column {name!r} cannot be a partition column: it has a value of type {type(value).__name__}.",
        hint=f"Partition by columns of type {', '.join(map(str, PARTITION_TYPES))}.",
    )


def _encoded(text: str) -> str:
    return quote(text, safe="").replace("~", "%7E")


def parse_partition_key(columns: Sequence[str], key: str, schema: Schema) -> tuple[Any, ...]:
    """The values of the partition columns that a key names; `InvalidName` for text that is no key here."""
    parts = key.split("/") if columns else []
    if len(parts) != len(columns):
        raise _not_a_key(columns, key)
    try:
        values = tuple(
            _parsed_part(part, name, schema.column(name).type) for part, name in zip(parts, columns, strict=True)
        )
    except (ValueError, UnicodeDecodeError) as error:
        raise _not_a_key(columns, key) from error
    # Several texts could decode to one slice (`%41` and `A`, `01` and `1`): only the canonical one is its key.
    if partition_key(columns, values) != key:
        raise _not_a_key(columns, key)
    return values


def _parsed_part(part: str, name: str, kind: ColumnType) -> Any:
    if part == f"{_encoded(name)}!":
        return None
    head, equals, text = part.partition("=")
    if not equals or head != _encoded(name):
        raise ValueError("not this column")
    if kind not in _PARSERS:
        raise ValueError("not a type that partitions")
    return _PARSERS[kind](unquote(text, errors="strict"))


def _integer(text: str) -> int:
    if re.fullmatch(r"-?[0-9]{1,19}", text) is None or not -(2**63) <= int(text) < 2**63:
        raise ValueError("not a 64-bit integer")
    return int(text)


def _boolean(text: str) -> bool:
    if text not in {"true", "false"}:
        raise ValueError("neither true nor false")
    return text == "true"


_PARSERS: dict[ColumnType, Callable[[str], Any]] = {
    STRING: str,
    INT: _integer,
    LONG: _integer,
    BOOLEAN: _boolean,
    DATE: date.fromisoformat,
}


def _not_a_key(columns: Sequence[str], key: str) -> InvalidName:
    example = "/".join(f"{_encoded(name)}=…" for name in columns) if columns else WHOLE
    shown = key if len(key) <= 80 else key[:77] + "…"
    return InvalidName(
        f"{shown!r} is not a partition of this dataset.",
        hint=f"Its partitions are written {example}; `floodmark status` lists them.",
    )


def check_partition_columns(columns: Sequence[str], schema: Schema) -> None:
    """`SchemaConflict` unless the columns are declared, distinct and of types that can partition."""
    if len(set(columns)) != len(columns):
        raise SchemaConflict("A partition column is listed twice.", hint="List each column once.")
    for name in columns:
        kind = schema.column(name).type
        if kind not in PARTITION_TYPES:
            raise SchemaConflict(
                f"Column {name!r} cannot be a partition column: it is {kind}.",
                hint=f"Partition by columns of type {', '.join(map(str, PARTITION_TYPES))}.",
            )
