"""Columns of text, as CSV has them, in the types of a dataset. Pure.

A column whose every value can be read becomes one of its type. Any other stays as it is, with the values that can be
read as what they are: fitting then says which rows are wrong, and why.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from floodmark.schema.types import BOOLEAN, DOUBLE, FLOAT, INT, JSON, LONG, STRING, ColumnType

if TYPE_CHECKING:
    import pyarrow as pa

_NUMBERS = frozenset({INT, LONG, FLOAT, DOUBLE})
_TRUTHS = {"true": True, "1": True, "false": False, "0": False}


KindOf = Callable[[str], ColumnType | None]
"""The type of the dataset's column that a column of the source becomes; None if it has none yet."""


def typed_columns(table: pa.Table, kind_of: KindOf, guessed: pa.Schema | None) -> pa.Table | list[dict[str, Any]]:
    """The table with its texts read as the dataset's types (or, for a column it lacks, as the guessed ones)."""
    import pyarrow as pa

    columns: dict[str, Any] = {}
    readable = True
    for name in table.column_names:
        texts = table[name]
        if not pa.types.is_string(texts.type):
            columns[name] = texts
            continue
        kind = kind_of(name)
        columns[name], whole = _known(texts, kind) if kind else _guessed(texts, name, guessed)
        readable = readable and whole
    if readable:
        return pa.table(columns)
    lists = [values if isinstance(values, list) else values.to_pylist() for values in columns.values()]
    return [dict(zip(columns, row, strict=True)) for row in zip(*lists, strict=True)]


def _guessed(texts: Any, name: str, guessed: pa.Schema | None) -> tuple[Any, bool]:
    import pyarrow as pa

    if guessed is None or name not in guessed.names or pa.types.is_null(guessed.field(name).type):
        return texts, True
    try:
        return texts.cast(guessed.field(name).type), True
    except pa.ArrowInvalid:
        return texts, True  # a later block is less regular than the first: the rows that do not fit are told


def _known(texts: Any, kind: ColumnType) -> tuple[Any, bool]:
    import pyarrow as pa

    from floodmark.rows.fitting import fit_values
    from floodmark.schema.types import to_arrow

    if kind in {STRING, JSON}:
        return texts, True  # JSON stands in a file as its text
    if kind in _NUMBERS or kind == BOOLEAN:
        try:
            return texts.cast(to_arrow(kind)), True
        except pa.ArrowInvalid:
            return [value_of(text, kind) for text in texts.to_pylist()], False
    array, faults = fit_values(kind, texts.to_pylist())
    return (texts.to_pylist(), False) if faults else (array, True)


def value_of(text: str | None, kind: ColumnType | None) -> Any:
    """The number or truth that a text is, where its column holds such; the text itself, if it is none."""
    if text is None or (kind not in _NUMBERS and kind != BOOLEAN):
        return text
    if kind == BOOLEAN:
        return _TRUTHS.get(text.strip().lower(), text)
    try:
        return int(text) if kind in {INT, LONG} else float(text)
    except ValueError:
        return text
