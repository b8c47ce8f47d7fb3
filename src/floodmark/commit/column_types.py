"""Columns whose type was corrected in the records, and not yet in the table.

The records come first: from then on every block is reserved with the new type. They change only while the table has no
value of the column, so the table's column can be dropped at any time later; the next `ensure` adds it with its new type
(U42). Whoever finds such a column completes the correction: the command itself, or the next flush.
"""

from __future__ import annotations

from floodmark import faults
from floodmark.commit.protocol import TableState
from floodmark.control.datasets import Dataset
from floodmark.engine import Engine
from floodmark.errors import Corrupt
from floodmark.lake.types import physical, quoted
from floodmark.removal import Selection
from floodmark.schema.types import WIDER, ColumnType, ListType, StructType
from floodmark.sequence import SEQUENCE_MAX


def drop_corrected_columns(engine: Engine, declared: Dataset, state: TableState) -> bool:
    """Drop the table's columns of another type than the records have; whether there were any."""
    found = [
        name
        for name, kind in state.columns
        if name in declared.schema and not _fits(physical(kind), physical(declared.schema.column(name).type))
    ]
    for name in found:
        rows = values_in(engine, declared, state, name)
        if rows:  # nobody writes values of the old type after the correction: somebody else changed the table
            raise Corrupt(
                f"Column {name!r} of table {state.name!r} has another type than dataset {declared.name!r} declares, "
                f"and {rows:,} rows have a value in it.",
                hint="Was the table changed by another program? Leave the store unchanged, and run `floodmark fsck`.",
            )
        engine.lake.drop_column(state.name, name)
        faults.reach("column.dropped")
    return bool(found)


def values_in(engine: Engine, declared: Dataset, state: TableState, column: str) -> int:
    """How many committed rows have a value in a column."""
    if state.head is None or column not in dict(state.columns):
        return 0
    groups = engine.lake.aggregate(
        state.name,
        snapshot=state.head,
        selection=Selection(SEQUENCE_MAX, where=f"{quoted(column)} IS NOT NULL"),
        schema=declared.schema,
    )
    return sum(group.tally.rows for group in groups)


def _fits(have: ColumnType, want: ColumnType) -> bool:
    """Whether the table has the type, or `ensure` widens it."""
    match have, want:
        case ListType(inner), ListType(wanted):
            return _fits(inner, wanted)
        case StructType(fields), StructType(wanted_fields):
            known = dict(fields)
            return all(name not in known or _fits(known[name], kind) for name, kind in wanted_fields)
    return have == want or WIDER.get(have) == want or WIDER.get(want) == have
