"""A batch of a source, fitted to a dataset's schema. Pure, so that it happens in Spark's workers as well as here.

Fitting is what capture and sealing do, by the same functions. A table whose types do not fit as a whole is fitted row
by row, so that only the rows that are wrong go to quarantine.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from floodmark.backfill.texts import KindOf
from floodmark.backfill.units import Batch, Problem
from floodmark.errors import SchemaConflict
from floodmark.rows import Demands, Fit, fit_each, fit_table, reasons_by_row, row_payload
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


def fit_batch(schema: Schema, batch: Batch, renamed: Mapping[str, str], demands: Demands) -> Fit:
    """The rows of a batch under the names they are to have."""
    if isinstance(batch.rows, list):
        rows = [_renamed(row, renamed) for row in batch.rows] if renamed else batch.rows
        return fit_each(schema, rows, demands).fit
    table = batch.rows.rename_columns([renamed.get(name, name) for name in batch.rows.column_names])
    try:
        return fit_table(schema, table, demands=demands)
    except SchemaConflict:
        if len(set(table.column_names)) != table.num_columns:
            raise  # as rows, one of two columns would be lost
        return fit_each(schema, table.to_pylist(), demands).fit


def _renamed(row: Mapping[str, Any], renamed: Mapping[str, str]) -> dict[str, Any]:
    named = {renamed.get(name, name): value for name, value in row.items()}
    if len(named) != len(row):
        twice = next(new for old, new in renamed.items() if old in row and new in row)
        raise SchemaConflict(f"The column {twice!r} came twice.", hint="Rename the other one too.")
    return named


def misfits(fitted: Fit, batch: Batch, renamed: Mapping[str, str]) -> list[Problem]:
    """The rows that do not fit, each with its place, what is wrong with it, and as what it can be replayed."""
    found = reasons_by_row(fitted.misfits)
    return [
        Problem(batch.place(row), reason, _payload(batch.rows, row, renamed), misfit=True)
        for row, reason in found.items()
    ]


def _payload(rows: list[dict[str, Any]] | pa.Table, row: int, renamed: Mapping[str, str]) -> bytes:
    found = rows[row] if isinstance(rows, list) else rows.slice(row, 1).to_pylist()[0]
    return row_payload({renamed.get(name, name): value for name, value in found.items()})
