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

from floodmark.config import SpoolSettings
from floodmark.errors import InvalidName, SchemaConflict, UnserialisableValue
from floodmark.rows.arrowfit import conform
from floodmark.rows.fitting import Faults, fit_values
from floodmark.rows.identities import rows_without_identity
from floodmark.rows.inference import infer
from floodmark.rows.scalars import as_float32, shown
from floodmark.schema import Column, Schema
from floodmark.schema.names import check_column_name
from floodmark.schema.types import INT, STRING, WIDER, ColumnType, width


@dataclass(frozen=True, slots=True)
class Demands:
    """What is asked of rows beside the schema."""

    limits: SpoolSettings
    identity: tuple[tuple[str, ...], ...] = ()
    """A row must have one of these identities; empty where it need not."""

    def check_columns(self, schema: Schema, new: Sequence[str], *, taken: int | None = None) -> None:
        """`SchemaConflict` if the schema has no room for so many new columns. `taken`: what they take up."""
        if not new:
            return
        if len(new) > self.limits.new_columns_max:
            raise SchemaConflict(
                f"{len(new):,} new columns came at once, and new_columns_max is {self.limits.new_columns_max:,}.",
                hint="Put what has many keys into one column of objects, declare the columns, or raise "
                "new_columns_max in [spool] of floodmark.toml.",
            )
        total = sum(width(column.type) for column in schema) + (len(new) if taken is None else taken)
        if total > self.limits.columns_max:
            raise SchemaConflict(
                f"The dataset would have {total:,} columns, and columns_max is {self.limits.columns_max:,}.",
                hint="Put what has many keys into one column of objects, or raise columns_max in [spool] of "
                "floodmark.toml.",
            )


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


@dataclass(frozen=True, slots=True)
class FittedRows:
    """Rows that were fitted, and those that fit as the landing log takes them."""

    fit: Fit
    columns: list[str]
    values: list[Sequence[Any]]


def fit_rows(schema: Schema, rows: Any, demands: Demands) -> FittedRows:
    """Fit rows of Python. What is wrong with a name, or with too many of them, refuses the whole call."""
    columns, values = rows_to_columns(rows, schema, demands)
    fitted = fit(schema, columns, values, rows=len(rows), demands=demands)
    if fitted.kept is not None:
        values = [[column[row] for row in fitted.kept] for column in values]
    return FittedRows(fitted, columns, values)


def fit_each(schema: Schema, rows: list[dict[str, Any]], demands: Demands) -> FittedRows:
    """Fit rows of a text, of which nobody else has a copy: a bad name, or one too many, is its own row's fault."""
    try:
        return fit_rows(schema, rows, demands)
    except (InvalidName, SchemaConflict):
        reasons = _name_faults(schema, rows, demands)
    good = [row for row in range(len(rows)) if row not in reasons]
    inner = fit_rows(schema, [rows[row] for row in good], demands)
    kept = good if inner.fit.kept is None else [good[row] for row in inner.fit.kept]
    misfits = [replace(misfit, row=good[misfit.row]) for misfit in inner.fit.misfits]
    misfits += [Misfit(row, None, reason) for row, reason in reasons.items()]
    misfits.sort(key=operator.attrgetter("row"))
    return replace(inner, fit=replace(inner.fit, kept=kept, misfits=misfits))


def _name_faults(schema: Schema, rows: list[dict[str, Any]], demands: Demands) -> dict[int, str]:
    """Why rows cannot be stored under the names they have, given those before them that can."""
    new: list[str] = []
    grown = schema
    known: dict[tuple[str, ...], str | None] = {}
    faults: dict[int, str] = {}
    for index, row in enumerate(rows):
        names = tuple(row)
        if names not in known:
            unknown = [name for name in names if name not in grown]
            try:
                for name in unknown:
                    check_column_name(name)
                demands.check_columns(schema, [*new, *unknown])
                grown = grown.merge(Column(name, STRING) for name in unknown)
                new += unknown
                known[names] = None
            except (InvalidName, SchemaConflict) as error:
                known[names] = error.message.removesuffix(".")
        reason = known[names]
        if reason is not None:
            faults[index] = reason
    return faults


def fit(
    schema: Schema,
    columns: Sequence[str],
    values: Sequence[Sequence[Any]],
    rows: int,
    *,
    demands: Demands | None = None,
) -> Fit:
    """Fit rows, given column by column, to the schema.

    A bad or clashing column name, or one too many, refuses the whole call (`InvalidName`, `SchemaConflict`); a value
    that does not fit refuses its row. Columns the schema lacks get a type from the rows that otherwise fit.
    """
    _check_shape(columns, values, rows)
    if demands is not None:
        demands.check_columns(schema, [name for name in columns if name not in schema])
    work = _Fitting(schema, rows)
    came = dict(zip(columns, values, strict=True))
    for column in schema.columns:
        work.known(column, came.get(column.name))
    fitting = work.fitting()
    for name in columns:
        if name not in schema:
            work.unknown(name, came[name], fitting)
    if demands is not None and demands.identity and rows:
        work.demand(demands.identity)
    return work.result()


def _check_shape(columns: Sequence[str], values: Sequence[Sequence[Any]], rows: int) -> None:
    if len(columns) != len(values) or any(len(column) != rows for column in values):
        raise ValueError("fit needs one value per column and row")
    for name in columns:
        check_column_name(name)
    if len(set(columns)) != len(columns):
        twice = next(name for name in columns if list(columns).count(name) > 1)
        raise SchemaConflict(f"The column {twice!r} came twice.", hint="Give each column once.")


_NO_COLUMN = ""
"""Where a fault is kept that is no single column's: no column has an empty name."""


def _no_identity(identity: tuple[tuple[str, ...], ...]) -> str:
    return f"its identity ({', else '.join('+'.join(names) for names in identity)}) is null"


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

    def demand(self, identity: tuple[tuple[str, ...], ...]) -> None:
        missing = rows_without_identity(self.arrays, identity, self.rows)
        if missing:
            self.faults[_NO_COLUMN] = dict.fromkeys(missing, _no_identity(identity))

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
        found = [
            Misfit(row, name if name != _NO_COLUMN else None, reason)
            for name, faults in self.faults.items()
            for row, reason in faults.items()
        ]
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


def fit_table(schema: Schema, table: pa.Table | pa.RecordBatch, *, demands: Demands | None = None) -> Fit:
    """Fit an Arrow table to the schema.

    Types are the table's own, so a type that does not fit refuses the whole table with `SchemaConflict`. Rows
    are out only for a null in a required column, or for text that is not JSON in a json column.
    """
    conformed = conform(schema, table)
    if demands is not None:
        new = conformed.schema.columns[len(schema) :]
        taken = sum(width(column.type) for column in new)
        demands.check_columns(schema, [column.name for column in new], taken=taken)
    misfits = [
        Misfit(row, name, f"column {name!r} is {conformed.schema.column(name).text}: {reason}")
        for name, faults in conformed.faults.items()
        for row, reason in faults.items()
    ]
    if demands is not None and demands.identity:
        missing = rows_without_identity(conformed.arrays, demands.identity, table.num_rows)
        misfits += [Misfit(row, None, _no_identity(demands.identity)) for row in missing]
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


def rows_to_columns(
    rows: Any, schema: Schema | None = None, demands: Demands | None = None
) -> tuple[list[str], list[Sequence[Any]]]:
    """The rows' columns, in order of first appearance; null where a row does not have one.

    The demands on columns are checked before rows and columns are multiplied with each other.
    """
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
    if demands is not None and schema is not None:
        demands.check_columns(schema, [name for name in names if name not in schema])
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
