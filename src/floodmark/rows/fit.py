"""Fitting rows to a dataset's schema: the one parser of the system. Pure.

Capture judges rows with these functions before it answers, and sealing parses the landing log with the same
ones, so what capture accepts is what is committed. A row fits as a whole or not at all; what a row that does
not fit would have changed in the schema is not changed.
"""

from __future__ import annotations

import datetime as dt
import itertools
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from floodmark.errors import InvalidName, SchemaConflict, UnserialisableValue
from floodmark.jsonread import read_json
from floodmark.rows.columns import Faults, as_float32, check_years, fit_values, shown
from floodmark.rows.identities import rows_without_identity
from floodmark.rows.jsontext import canonical_json
from floodmark.rows.plain import Demands
from floodmark.schema import Column, Schema
from floodmark.schema.names import check_column_name
from floodmark.schema.types import (
    BINARY,
    BOOLEAN,
    DATE,
    DECIMAL_DIGITS_MAX,
    DOUBLE,
    INT,
    JSON,
    LONG,
    STRING,
    TIMESTAMP,
    WIDER,
    ColumnType,
    DecimalType,
    ListType,
    from_arrow,
    to_arrow,
    width,
)

# ── The type of a new column, inferred from its values ───────────────────────────────────────────────────────────────


_SOME_DECIMAL = DecimalType(DECIMAL_DIGITS_MAX, 0)
_SOME_LIST = ListType(JSON)

# In this order: a bool is an int to Python, and a datetime a date.
_KINDS: tuple[tuple[Any, ColumnType], ...] = (
    (bool, BOOLEAN),
    (int, LONG),
    (float, DOUBLE),
    (str, STRING),
    ((bytes, bytearray, memoryview), BINARY),
    (dt.datetime, TIMESTAMP),
    (dt.date, DATE),
    (Decimal, _SOME_DECIMAL),
    ((list, tuple), _SOME_LIST),
    (Mapping, JSON),
)


def _kind_of(python_type: type) -> ColumnType | None:
    return next((kind for types, kind in _KINDS if issubclass(python_type, types)), None)


def infer(values: Sequence[Any]) -> ColumnType | None:
    """The type of a new column: the kind of its first value decides, and what does not fit it is a misfit.

    Integers among floats, and floats among integers, make doubles. A list of one simple kind is a list of
    it; other lists, and objects, are json. None where no value is of any kind, nulls foremost.
    """
    types = set(map(type, values))
    types.discard(type(None))
    kinds = {_kind_of(python_type) for python_type in types}
    kinds.discard(None)
    if not kinds:
        return None
    # Nulls first is common, values of no kind are not: the search is short.
    of_each = (_kind_of(type(value)) for value in values if value is not None)
    first = next(kind for kind in of_each if kind is not None)
    if first == _SOME_LIST:
        return _infer_list(values)
    return _numbers_widened(first, kinds, values)


def _infer_list(values: Sequence[Any]) -> ColumnType:
    items = list(itertools.chain.from_iterable(value for value in values if isinstance(value, list | tuple)))
    kinds = {_kind_of(python_type) for python_type in set(map(type, items)) - {type(None)}}
    simple = [kind for kind in kinds if kind is not None and kind not in {_SOME_LIST, JSON}]
    if kinds == {LONG, DOUBLE}:
        return ListType(DOUBLE)
    if len(kinds) != 1 or not simple:
        return JSON
    return ListType(_numbers_widened(simple[0], kinds, items))


def _numbers_widened(first: ColumnType, kinds: set[ColumnType | None], values: Iterable[Any]) -> ColumnType:
    if first == LONG and DOUBLE in kinds:
        return DOUBLE
    if first == _SOME_DECIMAL:
        return DecimalType(DECIMAL_DIGITS_MAX, _scale(values))
    return first


def _scale(values: Iterable[Any]) -> int:
    exponents = [value.as_tuple().exponent for value in values if isinstance(value, Decimal)]
    scales = [-exponent for exponent in exponents if isinstance(exponent, int)]
    return min(max([0, *scales]), DECIMAL_DIGITS_MAX)


# ── Fit ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


# ── Arrow tables as they come, in the types of a dataset: exactly or not at all ──────────────────────────────────────


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
        raise SchemaConflict(f"The column {twice!r} appears twice.", hint="Give each column once.")
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
            f"Column {column.name!r} is {column.type}, and its {array.type} values cannot be converted "
            f"without loss: {error}.",
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


# ── Fit ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Misfit:
    """Why a row does not fit: the column and the reason."""

    row: int
    column: str | None
    reason: str


@dataclass(frozen=True, slots=True)
class Fit:
    """The rows that fit, as a table in canonical Arrow types, and why the others do not."""

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
    """Fit rows from Python. An invalid name, or too many names, refuses the whole call."""
    columns, values = rows_to_columns(rows, schema, demands)
    fitted = fit(schema, columns, values, rows=len(rows), demands=demands)
    if fitted.kept is not None:
        values = [[column[row] for row in fitted.kept] for column in values]
    return FittedRows(fitted, columns, values)


def fit_each(schema: Schema, rows: list[dict[str, Any]], demands: Demands) -> FittedRows:
    """Fit rows from text, whose sender has no copy: an invalid name, or one too many, refuses only its own row."""
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
        raise SchemaConflict(f"The column {twice!r} appears twice.", hint="Give each column once.")


_NO_COLUMN = ""
"""Where a fault is kept that is no single column's: no column has an empty name."""


def _no_identity(identity: tuple[tuple[str, ...], ...]) -> str:
    return f"its identity ({', else '.join('+'.join(names) for names in identity)}) is null"


class _Fitting:
    """The state of one call: the arrays so far, all of full length, and why rows do not fit."""

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
            # Only rows that fit otherwise: the type was inferred from those, and nothing is known about the others.
            judged = range(len(values)) if fitting is None else fitting
            reasons = {row: f"no column type can store a {type(values[row]).__name__}" for row in judged}
            self.add_faults(name, "new", {row: why for row, why in reasons.items() if values[row] is not None})
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
        return pa.table({"rows": pa.nulls(rows)}).select([])  # the only way to make a table without columns
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
            f"Rows must be a list of dicts, not a {type(rows).__name__}.", hint='Give [{"id": 1}, {"id": 2}].'
        )
    if not rows:
        return [], []
    if set(map(type, rows)) != {dict} and not all(isinstance(row, Mapping) for row in rows):
        index, row = next((i, row) for i, row in enumerate(rows) if not isinstance(row, Mapping))
        raise UnserialisableValue(
            f"Row {index} is not a dict: {shown(row)}.", hint="Give every row as a dict of column to value."
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
                f"A row has the key {shown(name)}, but column names must be text.", hint="Use str keys."
            )
    return list(map(str.__str__, names))


def reasons_by_row(misfits: Sequence[Misfit]) -> dict[int, str]:
    """One sentence for each row that does not fit, also if several columns are wrong."""
    reasons: dict[int, list[str]] = {}
    for misfit in misfits:
        reasons.setdefault(misfit.row, []).append(misfit.reason)
    return {row: "; ".join(found) for row, found in reasons.items()}
