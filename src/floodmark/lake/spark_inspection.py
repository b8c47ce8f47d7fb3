"""Looking into a table on Iceberg: rows by Spark, files from the manifests and without a JVM."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from floodmark.commit.protocol import TableState
from floodmark.lake.inspection import FileReport, StoredRow, file_report
from floodmark.lake.types import quoted
from floodmark.schema import CONTENT_ID, SEGMENT, SEQ

if TYPE_CHECKING:
    from pyiceberg.table import Table as IcebergTable

    from floodmark.lake.reading import SparkReader


def find_on_spark(
    lake: SparkReader,
    table: str,
    *,
    snapshot: int,
    partition_values: Mapping[str, Any],
    columns: tuple[str, ...],
    rows_max: int,
) -> list[StoredRow]:
    """Iceberg prunes files by the bounds of the columns that are named, and Parquet its row groups: one small job."""
    from pyspark.sql import functions as F

    with lake._reading(table, None):  # noqa: SLF001 - the reader's other half
        frame = lake.frame(table, snapshot=snapshot)
    known = set(frame.columns)
    for name, value in partition_values.items():
        if name in known:
            held = F.col(quoted(name))
            if isinstance(value, frozenset):
                frame = frame.where(held.isin(sorted(value)))
            else:
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
    return file_report(iter(data), missing)


def _is_whole(io: Any, location: str, size: int) -> bool:
    try:
        return len(io.new_input(location)) == size
    except OSError:
        return False
