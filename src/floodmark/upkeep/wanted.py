"""The row that a trace is after: by its content id, or by values of its columns. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from floodmark.errors import SchemaConflict
from floodmark.schema import CONTENT_ID, ListType, Schema, StructType

if TYPE_CHECKING:
    import pyarrow as pa

_ID = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a row must have to be the one: these values, or this content id."""

    values: Mapping[str, Any]

    @classmethod
    def of(cls, asked: Mapping[str, Any] | str, schema: Schema) -> Wanted:
        """`SchemaConflict` for a column that the dataset does not have, or a value that its type cannot hold."""
        if isinstance(asked, str):
            if not _ID.fullmatch(asked):
                raise SchemaConflict(f"{asked!r} is not a content id.", hint="It is 32 hexadecimal digits.")
            return cls({CONTENT_ID: asked})
        if not asked:
            raise SchemaConflict("No column is named.", hint="Name the columns that tell the row from others.")
        for name in asked:
            if name not in schema:
                known = ", ".join(schema.names)
                raise SchemaConflict(f"The dataset has no column {name!r}.", hint=f"It has {known}.")
        if any(isinstance(schema.column(name).type, ListType | StructType) for name in asked):
            return cls({CONTENT_ID: _id_of(asked, schema)})
        return cls({name: _fitted(name, value, schema) for name, value in asked.items()})

    def places(self, rows: pa.Table) -> list[int]:
        """Which rows of a table it is. A table without content ids is given them."""
        import pyarrow as pa
        import pyarrow.compute as pc

        from floodmark.rows import content_ids

        if not rows.num_rows:
            return []
        kept = pa.array([True] * rows.num_rows)
        for name, value in self.values.items():
            if name in rows.column_names:
                held = rows[name]
            elif name == CONTENT_ID:
                held = content_ids(rows)[0]
            else:
                held = pa.nulls(rows.num_rows)
            same = pc.is_null(held) if value is None else _equal(held, value)
            kept = pc.and_(kept, pc.fill_null(same, fill_value=False))
        return [place for place, mine in enumerate(kept.to_pylist()) if mine]


def _equal(held: Any, value: Any) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_null(held.type):
        return pa.array([False] * len(held))
    return pc.equal(held, pa.scalar(value, held.type))


def _fitted(name: str, value: Any, schema: Schema) -> Any:
    from floodmark.rows.fitting import fit_values

    array, faults = fit_values(schema.column(name).type, [value])
    if faults:
        raise SchemaConflict(
            f"{value!r} does not fit column {name!r} ({schema.column(name).text}): {faults[0]}.",
            hint="Write the value as capture takes it.",
        )
    return array[0].as_py()


def _id_of(row: Mapping[str, Any], schema: Schema) -> str:
    """Lists and structs are compared as a part of the whole row: its content id."""
    from floodmark.rows import content_ids, fit

    fitted = fit(schema, list(row), [[value] for value in row.values()], rows=1)
    if fitted.misfits:
        raise SchemaConflict(
            f"The row does not fit: {fitted.misfits[0].reason}.", hint="Give the whole row, as it was captured."
        )
    return str(content_ids(fitted.table)[0][0].as_py())
