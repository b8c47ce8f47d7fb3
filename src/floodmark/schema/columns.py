"""A dataset's columns: declared, stored as text, and changed only by adding and widening. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import orjson

from floodmark.errors import Corrupt, FloodmarkError, SchemaConflict
from floodmark.schema.names import (
    check_column_name,
    name_key,
)
from floodmark.schema.types import (
    WIDER,
    ColumnType,
    ListType,
    StructType,
    from_arrow,
    holds,
    parse_type,
    to_arrow,
)

if TYPE_CHECKING:
    import pyarrow as pa

_VERSION = 1
_NOT_NULL = re.compile(r"\s+not\s+null\s*\Z", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Column:
    """A named, typed column; in a required one every row has a value."""

    name: str
    type: ColumnType
    required: bool = False

    def __post_init__(self) -> None:
        check_column_name(self.name)

    @classmethod
    def parse(cls, name: str, text: str) -> Column:
        """A column from its declared text: `long`, or `long not null`."""
        bare, marks = _NOT_NULL.subn("", text)
        try:
            return cls(name, parse_type(bare.strip()), required=marks > 0)
        except SchemaConflict as error:
            raise SchemaConflict(f"Column {name!r}: {error.message}", hint=error.hint) from error

    @property
    def text(self) -> str:
        """The type as it is declared, `not null` included."""
        return f"{self.type} not null" if self.required else str(self.type)

    def arrow(self) -> pa.Field:
        import pyarrow as pa

        return pa.field(self.name, to_arrow(self.type), nullable=not self.required)


@dataclass(frozen=True)
class Schema:
    """The columns of a dataset, in order. Their names differ in more than case."""

    columns: tuple[Column, ...] = ()

    def __post_init__(self) -> None:
        seen: dict[str, str] = {}
        for column in self.columns:
            for path in _paths(column.name, column.type):
                other = seen.get(name_key(path))
                if other is not None:
                    raise SchemaConflict(
                        f"Two columns are called {other!r} and {path!r}, which Spark and Iceberg do not distinguish.",
                        hint="Rename one of them. Names must differ in more than upper and lower case.",
                    )
                seen[name_key(path)] = path

    # ---- looking up ----

    def __iter__(self) -> Iterator[Column]:
        return iter(self.columns)

    def __len__(self) -> int:
        return len(self.columns)

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    @cached_property
    def _by_name(self) -> dict[str, Column]:
        return {column.name: column for column in self.columns}

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    def get(self, name: str) -> Column | None:
        return self._by_name.get(name)

    def column(self, name: str) -> Column:
        """The column of that name; `SchemaConflict` where there is none."""
        column = self._by_name.get(name)
        if column is None:
            raise SchemaConflict(
                f"There is no column {name!r}.",
                hint=f"The columns are {', '.join(self.names)}." if self.columns else "There are no columns yet.",
            )
        return column

    # ---- declaring and keeping ----

    @classmethod
    def declare(cls, spec: Schema | Mapping[str, str] | pa.Schema | None) -> Schema:
        """A schema from what a user declares: nothing, a mapping of name to text, or an Arrow schema."""
        if spec is None:
            return cls()
        if isinstance(spec, Schema):
            return spec
        if isinstance(spec, Mapping):
            return cls(tuple(_declared(name, text) for name, text in spec.items()))
        import pyarrow as pa

        if isinstance(spec, pa.Schema):
            return cls(tuple(columns_of_arrow(spec)))
        raise SchemaConflict(
            f"A schema cannot be declared with a {type(spec).__name__}.",
            hint='Give a mapping such as {"id": "long not null", "name": "string"}, or a pyarrow.Schema.',
        )

    @cached_property
    def text(self) -> str:
        """What `to_json` gives, made once."""
        return self.to_json()

    def to_json(self) -> str:
        """The schema as one stable line of text."""
        columns = [[column.name, column.text] for column in self.columns]
        return orjson.dumps({"version": _VERSION, "columns": columns}).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> Schema:
        """Read the text of `to_json`; anything else is `Corrupt`, because only Floodmark writes it."""
        try:
            content = orjson.loads(text)
            if content["version"] != _VERSION:
                raise ValueError(f"version {content['version']!r}")
            return cls(tuple(Column.parse(name, kind) for name, kind in content["columns"]))
        except (ValueError, TypeError, KeyError, FloodmarkError) as error:
            raise Corrupt(
                f"A stored schema cannot be read: {error}.", hint="Do not change the store, and run `floodmark fsck`."
            ) from error

    def arrow(self, names: Iterable[str] | None = None) -> pa.Schema:
        """The schema in canonical Arrow types: of all columns, or of the named ones in that order."""
        import pyarrow as pa

        columns = self.columns if names is None else [self.column(name) for name in names]
        return pa.schema([column.arrow() for column in columns])

    def typed(self, rows: pa.Table, names: Sequence[str]) -> pa.Table:
        """The named columns of rows, in that order, in canonical types; null where the rows have no such column."""
        import pyarrow as pa

        if not names:
            return rows.select([])
        wanted, held = self.arrow(names), set(rows.column_names)
        arrays = [
            rows[field.name].cast(field.type) if field.name in held else pa.nulls(rows.num_rows, field.type)
            for field in wanted
        ]
        return pa.Table.from_arrays(arrays, schema=wanted)

    # ---- evolving ----

    def merge(self, new: Iterable[Column]) -> Schema:
        """The schema with the columns of arriving rows added and widened as needed.

        The only changes are new nullable columns, at the end, and int → long and float → double. Rows that fit change
        nothing. Anything else is a `SchemaConflict`, and nothing has changed.
        """
        columns = {column.name: column for column in self.columns}
        for came in new:
            have = columns.get(came.name)
            if have is None:
                columns[came.name] = self._added(came)
            elif not holds(have.type, came.type):
                columns[came.name] = _widened(have, came)
        merged = tuple(columns.values())
        return self if merged == self.columns else Schema(merged)

    def _added(self, came: Column) -> Column:
        if came.required:
            raise SchemaConflict(
                f"Column {came.name!r} is new and not null, but the stored rows have no value for it.",
                hint=f'Declare it "{came.type}", without "not null".',
            )
        return came


def _declared(name: Any, text: Any) -> Column:
    if not isinstance(text, str):
        raise SchemaConflict(
            f"Column {name!r} is declared with a {type(text).__name__}.",
            hint='Declare its type as text, such as "long" or "string not null".',
        )
    return Column.parse(check_column_name(name), text)


def _widened(have: Column, came: Column) -> Column:
    if WIDER.get(have.type) == came.type:
        return replace(have, type=came.type)
    raise SchemaConflict(
        f"Column {have.name!r} is {have.type}, but the rows have {came.type}.",
        hint="A column type can only widen from int to long and from float to double. Convert the rows, or use a "
        "new column.",
    )


def _paths(name: str, kind: ColumnType) -> Iterator[str]:
    """Every dotted name of the column in Iceberg's index of names."""
    yield name
    if isinstance(kind, ListType):
        yield from _paths(f"{name}.element", kind.element)
    elif isinstance(kind, StructType):
        for field, inner in kind.fields:
            yield from _paths(f"{name}.{field}", inner)


def columns_of_arrow(arrow_schema: pa.Schema) -> list[Column]:
    """The columns of Arrow fields; a field of Arrow's null type gives none."""
    columns = []
    for field in arrow_schema:
        kind = from_arrow(field.type, column=field.name)
        if kind is not None:
            columns.append(Column(field.name, kind, required=not field.nullable))
    return columns
