"""Looking into a table in memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from floodmark.commit.protocol import TableState
from floodmark.errors import FilesMissing
from floodmark.lake.inspection import FileReport, StoredRow, file_report
from floodmark.schema import CONTENT_ID, SEGMENT, SEQ

if TYPE_CHECKING:
    from floodmark.testing.memory.lake import MemoryLake


def find_in_memory(
    lake: MemoryLake,
    table: str,
    *,
    snapshot: int,
    partition_values: Mapping[str, Any],
    columns: tuple[str, ...],
    rows_max: int,
) -> list[StoredRow]:
    found = []
    for file in lake.files_of(table, snapshot):
        if file not in lake.data:
            raise FilesMissing(f"Data file {file} of {table!r} is missing.")
        for row in lake.data[file].to_pylist():
            if all(
                row.get(name) in value if isinstance(value, frozenset) else row.get(name) == value
                for name, value in partition_values.items()
            ):
                values = {name: row.get(name) for name in columns}
                found.append(StoredRow(row[SEQ], row[CONTENT_ID], row.get(SEGMENT), f"memory:{file}", values))
    return sorted(found, key=lambda row: row.seq)[:rows_max]


def inspect_memory(lake: MemoryLake, state: TableState) -> FileReport:
    files = [] if state.head is None else list(lake.tables[state.name].files[state.head])
    return file_report(
        (f"memory:{file}" for file in files), {f"memory:{file}" for file in files if file not in lake.data}
    )
