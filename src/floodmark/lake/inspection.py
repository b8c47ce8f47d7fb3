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
from floodmark.lake.types import quoted
from floodmark.schema import CONTENT_ID, SEGMENT, SEQ

if TYPE_CHECKING:
    from pyiceberg.table import Table as IcebergTable

    from floodmark.lake.memory import MemoryLake
    from floodmark.lake.reading import SparkReader


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
    return _report((f"memory:{file}" for file in files), {f"memory:{file}" for file in files if file not in lake.data})


# ── on Iceberg ───────────────────────────────────────────────────────────────────────────────────────────────────────


def find_on_spark(
    lake: SparkReader, table: str, *, snapshot: int, where: Mapping[str, Any], columns: tuple[str, ...], rows_max: int
) -> list[StoredRow]:
    """Iceberg prunes files by the bounds of the columns in `where`, and Parquet its row groups: one small job."""
    from pyspark.sql import functions as F

    frame = lake.frame(table, snapshot=snapshot)
    known = set(frame.columns)
    for name, value in where.items():
        if name in known:
            held = F.col(quoted(name))
            frame = frame.where(held.isNull() if value is None else held == F.lit(value))
        elif value is not None:  # a column that no row has a value in yet
            return []
    wanted = [quoted(name) for name in columns if name in known]
    frame = frame.select(SEQ, CONTENT_ID, SEGMENT, "_file", *wanted).orderBy(SEQ).limit(rows_max)
    with lake._reading(table, None), lake._action():  # noqa: SLF001 - the reader's other half
        rows = frame.collect()
    present = [name for name in columns if name in known]
    return [
        StoredRow(seq, content, segment, file, dict(zip(present, values, strict=True)))
        for seq, content, segment, file, *values in rows
    ]


def inspect_iceberg(table: IcebergTable, state: TableState) -> FileReport:
    """Every file that the head reaches, from its manifests and without a JVM."""
    snapshot = table.snapshot_by_id(state.lineage[0].id) if state.lineage else None
    if snapshot is None:
        return FileReport()
    missing: set[str] = set()
    data: list[str] = []
    try:
        for manifest in snapshot.manifests(table.io):
            if not _is_whole(table.io, manifest.manifest_path, manifest.manifest_length):
                missing.add(manifest.manifest_path)
                continue
            for entry in manifest.fetch_manifest_entry(table.io):
                file = entry.data_file
                if not _is_whole(table.io, file.file_path, file.file_size_in_bytes):
                    missing.add(file.file_path)
                data.append(file.file_path)
    except (OSError, ValueError, EOFError):
        missing.add(snapshot.manifest_list)
    return _report(iter(data), missing)


def _is_whole(io: Any, location: str, size: int) -> bool:
    try:
        return len(io.new_input(location)) == size
    except OSError:
        return False


def _report(files: Iterator[str], missing: set[str]) -> FileReport:
    counted = Counter(files)
    twice = tuple(sorted(file for file, times in counted.items() if times > 1))
    return FileReport(len(counted), tuple(sorted(missing)), twice)
