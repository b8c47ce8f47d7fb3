"""Rows as users see them, whatever they were stored as."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

    from floodmark.schema import Schema


def user_columns(rows: pa.Table, names: Sequence[str], schema: Schema) -> pa.Table:
    """The named columns in that order, in canonical types, null where the rows have no such column."""
    import pyarrow as pa

    wanted = schema.arrow(names)
    if not names:
        return rows.select([])
    arrays = [
        rows[field.name].cast(field.type) if field.name in rows.column_names else pa.nulls(rows.num_rows, field.type)
        for field in wanted
    ]
    return pa.Table.from_arrays(arrays, schema=wanted)
