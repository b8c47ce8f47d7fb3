"""Fitting rows to a dataset's schema: the one parser of the system. Pure.

Capture judges rows with these functions before it answers, and sealing parses the landing log with the same
ones, so what capture accepts is what is committed. A row fits as a whole or not at all; what a row that does
not fit would have changed in the schema is not changed.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from floodmark.errors import SchemaConflict, UnserialisableValue
from floodmark.rows.arrowfit import conform
from floodmark.rows.fitting import Faults, fit_values
from floodmark.rows.inference import infer
from floodmark.rows.scalars import as_float32, shown
from floodmark.schema import Column, Schema
from floodmark.schema.names import check_column_name
from floodmark.schema.types import INT, WIDER, ColumnType


@dataclass(frozen=True, slots=True)
class Misfit:
    """Why a row does not fit: one of its columns, and what is wrong there."""

    row: int
    column: str | None
    reason: str


@dataclass(frozen=True, slots=True)
class Fit:
    """The rows that fit, as a table in canonical Arrow types, and what became of the rest."""

    table: pa.Table
    """The fitting rows in order, with every column that came and that the schema has or now gets."""
    kept: list[int] | None
    """Which rows fit; None where all do."""
    misfits: list[Misfit]
    """Why the others do not, by row: one entry for each column that is wrong."""
    new_columns: tuple[Column, ...]
    widened: tuple[Column, ...]
    """Known columns with the wider type that these rows need."""
    schema: Schema
    """The schema with both: what the rows must be parsed with from here on."""

    @property
    def evolves(self) -> bool:
        return bool(self.new_columns or self.widened)


def fit(schema: Schema, columns: Sequence[str], values: Sequence[Sequence[Any]], rows: int) -> Fit:
    """Fit rows, given column by column, to the schema.

    A bad or clashing column name refuses the whole call (`InvalidName`, `SchemaConflict`); a value that does
    not fit refuses its row. Columns the schema lacks get a type from the rows that otherwise fit.
    """
    _check_shape(columns, values, rows)
    work = _Fitting(schema, rows)
    came = dict(zip(columns, values, strict=True))
    for column in schema.columns:
        work.known(column, came.get(column.name))
    fitting = work.fitting()
    for name in columns:
        if name not in schema:
            work.unknown(name, came[name], fitting)
    return work.result()


def _check_shape(columns: Sequence[str], values: Sequence[Sequence[Any]], rows: int) -> None:
    if len(columns) != len(values) or any(len(column) != rows for column in values):
        raise ValueError("fit needs one value per column and row")
    for name in columns:
        check_column_name(name)
    if len(set(columns)) != len(columns):
        twice = next(name for name in columns if list(columns).count(name) > 1)
        raise SchemaConflict(f"The column {twice!r} came twice.", hint="Give each column once.")


class _Fitting:
    """One call's way through: the arrays so far, all of full length, and why rows are out."""

    def __init__(self, schema: Schema, rows: int) -> None:
        self.schema = schema
        self.rows = rows
        self.arrays: dict[str, pa.Array] = {}
        self.faults: dict[str, Faults] = {}
        self.new: dict[str, ColumnType] = {}

    def known(self, column: Column, values: Sequence[Any] | None) -> None:
        if values is None:
            if column.required and self.rows:
                self.add_faults(column.name, column.text, dict.fromkeys(range(self.rows), "it is missing"))
            return
        # Built wide, and narrowed again at the end if the rows that fit allow it.
        array, faults = fit_values(WIDER.get(column.type, column.type), values)
        if column.required and array.null_count > len(faults):
            missing = (row for row, value in enumerate(values) if value is None)
            faults = {**dict.fromkeys(missing, "it is null"), **faults}
        self.arrays[column.name] = array
        self.add_faults(column.name, column.text, faults)

    def unknown(self, name: str, values: Sequence[Any], fitting: list[int] | None) -> None:
        candidates = values if fitting is None else [values[row] for row in fitting]
        kind = infer(candidates)
        if kind is None:
            # Where no row fits anyway there is nothing to infer from, and nothing wrong with this column.
            judged = enumerate(values) if candidates else ()
            self.add_faults(
                name,
                "new",
                {row: f"no column type holds a {type(value).__name__}" for row, value in judged if value is not None},
            )
            return
        self.arrays[name], faults = fit_values(kind, values)
        self.new[name] = kind
        self.add_faults(name, str(kind), faults)

    def add_faults(self, name: str, wanted: str, faults: Faults) -> None:
        if faults:
            self.faults[name] = {row: f"column {name!r} is {wanted}: {reason}" for row, reason in faults.items()}

    def fitting(self) -> list[int] | None:
        if not self.faults:
            return None
        out = set().union(*self.faults.values())
        return [row for row in range(self.rows) if row not in out]

    def result(self) -> Fit:
        kept = self.fitting()
        arrays, widened = self.arrays, []
        if kept is not None:
            indices = pa.array(kept, pa.int64())
            arrays = {name: array.take(indices) for name, array in arrays.items()}
        for column in self.schema.columns:
            if column.type in WIDER and column.name in arrays:
                narrow = _narrowed(arrays[column.name], column.type)
                if narrow is None:
                    widened.append(replace(column, type=WIDER[column.type]))
                else:
                    arrays[column.name] = narrow
        # Null means absent: a column that only rows which do not fit had a value for is not a column.
        new = [Column(name, kind) for name, kind in self.new.items() if not _all_null(arrays[name])]
        merged = self.schema.merge([*widened, *new])
        rows = self.rows if kept is None else len(kept)
        table = _table(merged, arrays, rows)
        return Fit(table, kept, self.misfits(), tuple(new), tuple(widened), merged)

    def misfits(self) -> list[Misfit]:
        found = [Misfit(row, name, reason) for name, faults in self.faults.items() for row, reason in faults.items()]
        found.sort(key=operator.attrgetter("row"))
        return found


def _narrowed(array: pa.Array, kind: ColumnType) -> pa.Array | None:
    if kind == INT:
        try:
            return array.cast(pa.int32())
        except pa.ArrowInvalid:
            return None
    return as_float32(array)


def _all_null(array: pa.Array) -> bool:
    return bool(array.null_count == len(array))


def _table(schema: Schema, arrays: Mapping[str, Any], rows: int) -> pa.Table:
    """The arrays as a table, in the schema's order."""
    names = [name for name in schema.names if name in arrays]
    if not names:
        return pa.table({"rows": pa.nulls(rows)}).select([])  # the one way to a table of rows of nothing
    return pa.Table.from_arrays([arrays[name] for name in names], schema=schema.arrow(names))


def fit_table(schema: Schema, table: pa.Table | pa.RecordBatch) -> Fit:
    """Fit an Arrow table to the schema.

    Types are the table's own, so a type that does not fit refuses the whole table with `SchemaConflict`. Rows
    are out only for a null in a required column, or for text that is not JSON in a json column.
    """
    conformed = conform(schema, table)
    misfits = [
        Misfit(row, name, f"column {name!r} is {conformed.schema.column(name).text}: {reason}")
        for name, faults in conformed.faults.items()
        for row, reason in faults.items()
    ]
    misfits.sort(key=operator.attrgetter("row"))
    arrays, rows, kept = conformed.arrays, table.num_rows, None
    if misfits:
        out = {misfit.row for misfit in misfits}
        kept = [row for row in range(rows) if row not in out]
        arrays = {name: array.take(pa.array(kept, pa.int64())) for name, array in arrays.items()}
        rows = len(kept)
    merged = conformed.schema
    return Fit(
        _table(merged, arrays, rows),
        kept,
        misfits,
        merged.columns[len(schema) :],
        tuple(now for was, now in zip(schema.columns, merged.columns, strict=False) if was != now),
        merged,
    )


def rows_to_columns(rows: Any) -> tuple[list[str], list[Sequence[Any]]]:
    """The rows' columns, in order of first appearance; null where a row does not have one."""
    if isinstance(rows, Mapping | str | bytes) or not isinstance(rows, Sequence):
        raise UnserialisableValue(
            f"Rows are a list of dicts, not a {type(rows).__name__}.", hint='Give [{"id": 1}, {"id": 2}].'
        )
    if not rows:
        return [], []
    if set(map(type, rows)) != {dict} and not all(isinstance(row, Mapping) for row in rows):
        index, row = next((i, row) for i, row in enumerate(rows) if not isinstance(row, Mapping))
        raise UnserialisableValue(
            f"Row {index} is not a dict but {shown(row)}.", hint="Give every row as a dict of column to value."
        )
    names = list(rows[0])
    if set(map(len, rows)) == {len(names)} and names:
        try:
            values = _same_columns(rows, names)
        except KeyError:
            values = None
        if values is not None:
            return _checked_keys(names), values
    names = _checked_keys(list(dict.fromkeys(name for row in rows for name in row)))
    return names, [[row.get(name) for row in rows] for name in names]


def _same_columns(rows: Sequence[Mapping[str, Any]], names: list[str]) -> list[Sequence[Any]]:
    if len(names) == 1:
        return [list(map(operator.itemgetter(names[0]), rows))]
    return list(zip(*map(operator.itemgetter(*names), rows), strict=True))


def _checked_keys(names: list[Any]) -> list[str]:
    for name in names:
        if not isinstance(name, str):
            raise UnserialisableValue(
                f"A row has the key {shown(name)}, but columns are named by text.", hint="Use str keys."
            )
    return list(map(str.__str__, names))


def reasons_by_row(misfits: Sequence[Misfit]) -> dict[int, str]:
    """One sentence for each row that does not fit, however many of its columns are wrong."""
    reasons: dict[int, list[str]] = {}
    for misfit in misfits:
        reasons.setdefault(misfit.row, []).append(misfit.reason)
    return {row: "; ".join(found) for row, found in reasons.items()}
