"""Arrow tables as they come, in the types of a dataset: exactly or not at all. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from floodmark.errors import InvalidName, SchemaConflict
from floodmark.jsonread import read_json
from floodmark.rows.fitting import Faults
from floodmark.rows.jsontext import canonical_json
from floodmark.rows.scalars import check_years, shown
from floodmark.schema import Column, Schema
from floodmark.schema.names import check_column_name
from floodmark.schema.types import DOUBLE, INT, JSON, LONG, STRING, ColumnType, from_arrow, to_arrow


@dataclass(frozen=True, slots=True)
class Conformed:
    """A table's columns in canonical types, and the schema they then have. Rows with faults are still there."""

    schema: Schema
    arrays: dict[str, Any]
    faults: dict[str, Faults]


def conform(schema: Schema, table: pa.Table | pa.RecordBatch) -> Conformed:
    """The table in the schema's types, widened and with its new columns; `SchemaConflict` if that changes a value."""
    came = _columns_that_came(table.schema)
    merged = schema.merge(
        Column(name, kind) for name, kind in came.items() if kind is not None and not _converts(schema, name, kind)
    )
    arrays: dict[str, Any] = {}
    faults: dict[str, Faults] = {}
    for name in came:
        column = merged.get(name)
        if column is not None:
            arrays[name], wrong = _conformed(column, came[name], table.column(name))
            if wrong:
                faults[name] = wrong
    for column in merged.columns:
        if column.required and table.num_rows:
            missing = _nulls(arrays[column.name]) if column.name in arrays else range(table.num_rows)
            found = {**dict.fromkeys(missing, "it is null"), **faults.get(column.name, {})}
            if found:
                faults[column.name] = found
    return Conformed(merged, arrays, faults)


def _columns_that_came(arrow_schema: pa.Schema) -> dict[str, ColumnType | None]:
    try:
        names = [check_column_name(name) for name in arrow_schema.names]
    except UnicodeDecodeError as error:  # Arrow itself takes any bytes for a name
        raise InvalidName("A column's name is not UTF-8.", hint="Rename it in the rows.") from error
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise SchemaConflict(f"The column {twice!r} came twice.", hint="Give each column once.")
    return {field.name: from_arrow(field.type, column=field.name) for field in arrow_schema}


def _converts(schema: Schema, name: str, came: ColumnType) -> bool:
    """Whether values decide, and not the type: JSON text for json, whole numbers for doubles."""
    have = schema.get(name)
    if have is None:
        return False
    return (have.type == JSON and came == STRING) or (have.type == DOUBLE and came in {INT, LONG})


def _conformed(column: Column, came: ColumnType | None, array: Any) -> tuple[Any, Faults]:
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks() if array.num_chunks != 1 else array.chunk(0)
    try:
        array.validate(full=True)
        if isinstance(array.type, pa.BaseExtensionType):
            array = array.storage
        if pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        if column.type == JSON and came is not None:
            return _json_texts(array.cast(pa.string()))
        array = array.cast(to_arrow(column.type), safe=True)
        check_years(column.type, array)
    except (pa.ArrowException, ValueError) as error:
        raise SchemaConflict(
            f"Column {column.name!r} is {column.type}, and its {array.type} does not fit exactly: {error}.",
            hint="Round or convert it before it is captured.",
        ) from error
    return array, {}


def _json_texts(texts: Any) -> tuple[Any, Faults]:
    faults: Faults = {}
    canonical: list[str | None] = []
    for row, text in enumerate(texts.to_pylist()):
        try:
            canonical.append(None if text is None else _canonical_text(text))
        except ValueError as error:
            canonical.append(None)
            faults[row] = f"{shown(text)} is not JSON text ({error})"
    return pa.array(canonical, pa.string()), faults


def _canonical_text(text: str) -> str | None:
    value = read_json(text.encode())
    return None if value is None else canonical_json(value)


def _nulls(array: Any) -> list[int]:
    return list(pc.indices_nonzero(pc.is_null(array)).to_pylist()) if array.null_count else []
