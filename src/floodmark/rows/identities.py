"""The hash of a row's identity: what is left of a purged row, so that nobody brings it back. Pure.

It is the content hash of the identity's columns and the event time alone, so it does not depend on the engine, on the
order of columns, or on int → long and float → double.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from floodmark.rows.content import content_ids

if TYPE_CHECKING:
    import pyarrow as pa


def identity_hashes(table: pa.Table, identity: Sequence[Sequence[str]], event_time: str | None) -> list[str | None]:
    """Of each row: the first identity whose columns are all there, with the event time; None where none is."""
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
    return list(found.to_pylist())
