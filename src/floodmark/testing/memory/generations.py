"""Generations of tables in the lake in memory. Copies can be held back or lose their answer, like appends."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from floodmark.errors import Retryable
from floodmark.lake.generations import Copy
from floodmark.lake.table import AppendRefused
from floodmark.schema import SEQ
from floodmark.sequence import SequenceRange, Tally
from floodmark.testing.memory.reading import selected

if TYPE_CHECKING:
    import pyarrow as pa

    from floodmark.testing.memory.lake import MemoryLake
    from floodmark.testing.memory.tables import MemoryTable


def copied(lake: MemoryLake, request: Copy) -> pa.Table:
    """The rows that a copy brings."""
    return selected(lake, request.source, request.snapshot, request.within)


def land_copy(lake: MemoryLake, request: Copy, rows: pa.Table) -> None:
    """The compare-and-swap: refused if the table of that name is another one, or anything was appended since."""
    state = lake.load(request.target)
    if state is None or not state.may_append_on(request.base):
        raise AppendRefused("found conflicting files")
    found = lake.tables[request.target]
    files = (*found.head_files, *lake.store_by_bucket(request.target, rows))
    lake.commit(found, operation="append", files=files, added_rows=rows.num_rows, through=request.through)


def tallies_of(rows: pa.Table, *, width: int) -> dict[int, Tally]:
    found: dict[int, Tally] = {}
    for row in rows.to_pylist():
        held = repr(sorted((name, value) for name, value in row.items() if value is not None))
        checksum = int.from_bytes(hashlib.blake2b(held.encode(), digest_size=8).digest())
        found[row[SEQ] // width] = found.get(row[SEQ] // width, Tally()) + Tally(1, checksum)
    return found


def outside(rows: pa.Table, within: SequenceRange) -> pa.Table:
    return rows.filter(pc.or_(pc.less_equal(rows[SEQ], within.after), pc.greater(rows[SEQ], within.through)))


def cleared(lake: MemoryLake, table: MemoryTable, within: SequenceRange) -> None:
    """Take the rows of a range out of a table."""
    files, _ = lake.pruned(table, lambda part: outside(part, within))
    lake.commit(table, operation="delete", files=files, added_rows=0, added_files=0)


def renamed(lake: MemoryLake, table: str, to: str) -> bool:
    if table not in lake.tables:
        return False
    if to in lake.tables:
        raise Retryable(f"There is a table {to!r} already.")
    lake.tables[to] = lake.tables.pop(table)
    return True
