"""Column types as Spark and Iceberg write them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from floodmark.schema import CONTENT_ID, SEGMENT, SEQ, Schema
from floodmark.schema.types import (
    TIMESTAMP,
    WIDER,
    ColumnType,
    DecimalType,
    ListType,
    StructType,
    parse_type,
    physical,
)

if TYPE_CHECKING:
    from pyiceberg.types import IcebergType

    from floodmark.schema import Schema

_SPARK = {"long": "bigint", "json": "string"}


def quoted(name: str) -> str:
    """A name that Spark accepts unchanged. Column names contain no backtick."""
    return f"`{name}`"


def spark_type(kind: ColumnType) -> str:
    match kind:
        case ListType(element):
            return f"array<{spark_type(element)}>"
        case StructType(fields):
            return f"struct<{', '.join(f'{quoted(name)}: {spark_type(inner)}' for name, inner in fields)}>"
        case DecimalType():
            return str(kind)
        case _:
            return _SPARK.get(str(kind), str(kind))


def segment_ddl(schema: Schema) -> str:
    """The columns of a segment file. All nullable: columns that a file is older than read as null."""
    columns = [f"{quoted(column.name)} {spark_type(column.type)}" for column in schema]
    return ", ".join([*columns, f"{CONTENT_ID} string", f"{SEGMENT} bigint"])


def table_ddl(schema: Schema) -> str:
    """The columns of a table. `_ingest_seq` is NOT NULL, so that no unstamped row can be appended by anyone."""
    columns = [
        f"{quoted(column.name)} {spark_type(column.type)}{' not null' if column.required else ''}" for column in schema
    ]
    return ", ".join([*columns, f"{SEQ} bigint not null", f"{CONTENT_ID} string", f"{SEGMENT} bigint"])


def from_iceberg(kind: IcebergType) -> ColumnType:
    """A type as PyIceberg shows it."""
    from pyiceberg import types

    match kind:
        case types.ListType():
            return ListType(from_iceberg(kind.element_type))
        case types.StructType():
            return StructType(tuple((field.name, from_iceberg(field.field_type)) for field in kind.fields))
        case types.DecimalType():
            return DecimalType(kind.precision, kind.scale)
        case types.TimestamptzType():
            return TIMESTAMP
        case _:
            return parse_type(str(kind))


def evolution(table: str, have: tuple[tuple[str, ColumnType], ...], want: Schema) -> list[str]:
    """The statements that make a table fit a schema: columns added, columns widened, nothing else."""
    known = dict(have)
    statements = []
    for column in want:
        path = quoted(column.name)
        if column.name not in known:
            statements.append(f"ALTER TABLE {table} ADD COLUMN {path} {spark_type(column.type)}")
        else:
            statements += _differences(table, path, physical(known[column.name]), physical(column.type))
    return statements


def _differences(table: str, path: str, have: ColumnType, want: ColumnType) -> list[str]:
    match have, want:
        case ListType(inner), ListType(wanted):
            return _differences(table, f"{path}.element", inner, wanted)
        case StructType(fields), StructType(wanted_fields):
            known = dict(fields)
            statements = []
            for name, kind in wanted_fields:
                inner_path = f"{path}.{quoted(name)}"
                if name not in known:
                    statements.append(f"ALTER TABLE {table} ADD COLUMN {inner_path} {spark_type(kind)}")
                else:
                    statements += _differences(table, inner_path, known[name], kind)
            return statements
        case _ if WIDER.get(have) == want:
            return [f"ALTER TABLE {table} ALTER COLUMN {path} TYPE {spark_type(want)}"]
        case _:
            return []
