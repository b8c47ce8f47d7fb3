"""Looking into a table without changing it: where one row stands, and whether the files it refers to are there.

Audit, trace and fsck ask; each implementation of a lake answers in its own way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from floodmark.commit import TableState
from floodmark.errors import FilesMissing
from floodmark.schema import CONTENT_ID, SEGMENT, SEQ

if TYPE_CHECKING:
    from floodmark.lake.memory import MemoryLake


@dataclass(frozen=True, slots=True)
class StoredRow:
    """One row where it stands."""

    seq: int
    content_id: str
    segment: int | None
    """The segment that brought it."""
    file: str
    """The data file that holds it."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """Those of its columns that were asked for."""


@dataclass(frozen=True, slots=True)
class FileReport:
    """What the head of a table refers to."""

    files: int = 0
    missing: tuple[str, ...] = ()
    """Not there, or not as long as they were written."""
    twice: tuple[str, ...] = ()
    """Data files that the head refers to more than once: each of their rows is read as often."""


# ── in memory ────────────────────────────────────────────────────────────────────────────────────────────────────────


def find_in_memory(
    lake: MemoryLake, table: str, *, snapshot: int, where: Mapping[str, Any], columns: tuple[str, ...], rows_max: int
) -> list[StoredRow]:
    found = []
    for file in lake.tables[table].files[snapshot]:
        if file not in lake.data:
            raise FilesMissing(f"Data file {file} of {table!r} is missing.")
        for row in lake.data[file].to_pylist():
            if all(row.get(name) == value for name, value in where.items()):
                values = {name: row.get(name) for name in columns}
                found.append(StoredRow(row[SEQ], row[CONTENT_ID], row.get(SEGMENT), f"memory:{file}", values))
    return sorted(found, key=lambda row: row.seq)[:rows_max]


def inspect_memory(lake: MemoryLake, state: TableState) -> FileReport:
    files = [] if state.head is None else list(lake.tables[state.name].files[state.head])
    return file_report(
        (f"memory:{file}" for file in files), {f"memory:{file}" for file in files if file not in lake.data}
    )


def file_report(files: Iterator[str], missing: set[str]) -> FileReport:
    counted = Counter(files)
    twice = tuple(sorted(file for file, times in counted.items() if times > 1))
    return FileReport(len(counted), tuple(sorted(missing)), twice)
