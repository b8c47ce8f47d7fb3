"""A batch of a source, fitted to a dataset's schema. Pure, so that it happens in Spark's workers as well as here.

Fitting is what capture and sealing do, by the same functions. A table whose types do not fit as a whole is fitted row
by row, so that only the rows that are wrong go to quarantine.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from floodmark.backfill.texts import KindOf
from floodmark.backfill.units import Batch, Problem
from floodmark.errors import SchemaConflict, UnserialisableValue
from floodmark.rows import Fit, encode_envelope, fit, fit_table, reasons_by_row, rows_to_columns
from floodmark.schema import Schema
from floodmark.schema.types import ColumnType

if TYPE_CHECKING:
    import pyarrow as pa


def kinds(schema: Schema, renamed: Mapping[str, str]) -> KindOf:
    """The type that each column of a source is to become."""

    def kind_of(name: str) -> ColumnType | None:
        column = schema.get(renamed.get(name, name))
        return None if column is None else column.type

    return kind_of


def fit_batch(schema: Schema, batch: Batch, renamed: Mapping[str, str]) -> Fit:
    """The rows of a batch under the names they are to have."""
    if isinstance(batch.rows, list):
        return _fit_rows(schema, batch.rows, renamed)
    table = batch.rows.rename_columns([renamed.get(name, name) for name in batch.rows.column_names])
    try:
        return fit_table(schema, table)
    except SchemaConflict as conflict:
        try:
            return _fit_rows(schema, batch.rows.to_pylist(), renamed)
        except SchemaConflict:
            raise conflict from None


def _fit_rows(schema: Schema, rows: list[dict[str, Any]], renamed: Mapping[str, str]) -> Fit:
    columns, values = rows_to_columns(rows)
    return fit(schema, [renamed.get(name, name) for name in columns], values, rows=len(rows))


def misfits(fitted: Fit, batch: Batch, renamed: Mapping[str, str]) -> list[Problem]:
    """The rows that do not fit, each with its place, what is wrong with it, and as what it can be replayed."""
    found = reasons_by_row(fitted.misfits)
    return [
        Problem(batch.place(row), reason, _payload(batch.rows, row, renamed), misfit=True)
        for row, reason in found.items()
    ]


def _payload(rows: list[dict[str, Any]] | pa.Table, row: int, renamed: Mapping[str, str]) -> bytes:
    found = rows[row] if isinstance(rows, list) else rows.slice(row, 1).to_pylist()[0]
    named = {renamed.get(name, name): value for name, value in found.items()}
    try:
        return encode_envelope(list(named), [[value] for value in named.values()], rows=1)
    except UnserialisableValue:
        return repr(found).encode()
