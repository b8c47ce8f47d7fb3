"""The hash of a row's identity: kept for a purged row, so that it cannot be loaded again. Pure.

It is the content hash of the identity's columns and the event time alone, so it does not depend on the engine, on the
order of columns, or on int → long and float → double.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from floodmark.rows.content import content_ids
from floodmark.schema.names import CONTENT_ID

if TYPE_CHECKING:
    import pyarrow as pa


def are_distinct(table: pa.Table, identity: Sequence[Sequence[str]]) -> bool:
    """Whether no two rows have one identity. Cheap, and never wrongly true: with fallbacks it is not even tried."""
    import pyarrow.compute as pc

    if len(identity) != 1 or not all(name in table.column_names for name in identity[0]):
        return False
    if not all(is_plain(table.schema.field(name).type) for name in identity[0]):
        return False  # engines disagree on what equal fractions are
    if len(identity[0]) == 1:
        column = table[identity[0][0]]
        return bool(pc.count_distinct(column, mode="only_valid").as_py() == len(column) - column.null_count)
    keys = table.select(list(identity[0])).drop_null()
    return bool(keys.group_by(list(identity[0])).aggregate([]).num_rows == keys.num_rows)


def rows_without_identity(arrays: Mapping[str, Any], identity: Sequence[Sequence[str]], rows: int) -> list[int]:
    """The places of the rows of which no identity is complete."""
    import pyarrow.compute as pc

    missing = None
    for names in identity:
        if not all(name in arrays for name in names):
            continue
        columns = [arrays[name] for name in names]
        if not any(column.null_count for column in columns):
            return []
        incomplete = functools.reduce(pc.or_, map(pc.is_null, columns))
        missing = incomplete if missing is None else pc.and_(missing, incomplete)
    if missing is None:
        return list(range(rows))
    return [int(place) for place in pc.indices_nonzero(missing).to_pylist()]


def is_plain(kind: pa.DataType) -> bool:
    """Whether every engine agrees if two values are equal."""
    from pyarrow import types

    return any(
        test(kind)
        for test in (
            types.is_string,
            types.is_integer,
            types.is_binary,
            types.is_boolean,
            types.is_date,
            types.is_timestamp,
        )
    )


def identity_hashes(
    table: pa.Table, identity: Sequence[Sequence[str]], event_time: str | None, *, by_content: bool = False
) -> list[str | None]:
    """Of each row: the first identity whose columns are all there, with the event time; None where none is.

    `by_content`: the row's content hash, if it is in the table, where none is.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    found = pa.nulls(table.num_rows, pa.string())
    for names in identity:
        if not all(name in table.column_names for name in names):
            continue
        columns = dict.fromkeys([*names, *([event_time] if event_time in table.column_names else [])])
        hashes, _ = content_ids(table.select([name for name in columns if name is not None]))
        whole = pa.array([True] * table.num_rows, pa.bool_())
        for name in names:
            whole = pc.and_(whole, pc.is_valid(table[name].combine_chunks()))
        found = pc.coalesce(found, pc.if_else(whole, hashes, None))
    if by_content and CONTENT_ID in table.column_names:
        found = pc.coalesce(found, table[CONTENT_ID].combine_chunks())
    return list(found.to_pylist())
