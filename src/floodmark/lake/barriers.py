"""An append without rows on Iceberg, and what the place of a table says when its metadata cannot be read. No JVM.

The append adds one data file without rows: Iceberg's check for appends since a base searches for added files, and an
append of no file at all would not be seen by it.
"""

from __future__ import annotations

import json
import re
import uuid
from typing import TYPE_CHECKING, Any

from floodmark.commit.protocol import Barrier
from floodmark.lake.catalog import BARRIER_PROPERTY, MAX_SEQ_PROPERTY, THROUGH_PROPERTY, Catalog, table_state
from floodmark.lake.places import files_below
from floodmark.lake.table import AppendRefused
from floodmark.schema import SEQ

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import DataFile
    from pyiceberg.partitioning import PartitionField
    from pyiceberg.table import Table as IcebergTable

_BUCKET = re.compile(rf"/data/{SEQ}_trunc(?:_[0-9]+)?=([0-9]+)/")


def raise_barrier(catalog: Catalog, request: Barrier) -> None:
    """Commit it on the head that was read: an append in between makes it fail."""
    table = catalog.table(request.table)
    if table is None or not table_state(request.table, table).may_append_on(request.base):
        raise AppendRefused(f"Block {request.block} may have been committed: rows were appended since.")
    file = _empty_file(table, request)
    properties = {BARRIER_PROPERTY: request.block, THROUGH_PROPERTY: str(request.through)}
    with (
        table.transaction() as transaction,
        transaction.update_snapshot(snapshot_properties=properties).fast_append() as append,
    ):
        append.append_data_file(file)


def _empty_file(table: IcebergTable, request: Barrier) -> DataFile:
    import pyarrow.parquet as pq
    from pyiceberg.io.pyarrow import schema_to_pyarrow
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
    from pyiceberg.typedef import Record

    values = [_partition_value(table, field, request.through) for field in table.spec().fields]
    folder = table.spec().partition_to_path(Record(*values), table.schema())
    parts = [table.location().rstrip("/"), "data", folder, f"barrier-{uuid.uuid4()}.parquet"]
    location = "/".join(part for part in parts if part)  # a table that is not partitioned has no folder
    output = table.io.new_output(location)
    with output.create() as stream:
        pq.write_table(schema_to_pyarrow(table.schema()).empty_table(), stream)
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=location,
        file_format=FileFormat.PARQUET,
        partition=Record(*values),
        record_count=0,
        file_size_in_bytes=len(table.io.new_input(location)),
        column_sizes={},
        value_counts={},
        null_value_counts={},
        nan_value_counts={},
        lower_bounds={},
        upper_bounds={},
        key_metadata=None,
        split_offsets=None,
        equality_ids=None,
        sort_order_id=None,
    )
    file.spec_id = table.spec().spec_id
    return file


def _partition_value(table: IcebergTable, field: PartitionField, through: int) -> Any:
    source = table.schema().find_field(field.source_id)
    return field.transform.transform(source.field_type)(through if source.name == SEQ else None)


def bound_of(catalog: Catalog, table: str, *, width: int) -> int | None:
    """Of a table whose metadata cannot be read: its data lies in directories by number, and old metadata says how far
    numbers had been given out when rows were removed. None if there are no such directories.
    """
    pointer = catalog.pointer(table)
    if pointer is None:
        return None
    home = pointer.rsplit("/", 2)[0]
    io = catalog.file_io(pointer)
    found = [file.location for file in files_below(io, home)]
    starts = [int(match[1]) for location in found if (match := _BUCKET.search(location)) is not None]
    if not starts:
        return None
    versions = [location for location in found if location.endswith(".metadata.json")]
    return max([max(starts) + width, *(_highest_in(io, location) for location in versions)])


def _highest_in(io: FileIO, location: str) -> int:
    """The highest number that one version of the metadata knows of; 0 if it cannot be read."""
    try:
        with io.new_input(location).open() as stream:
            held = json.loads(stream.read())
        numbers = [held.get("properties", {}).get(MAX_SEQ_PROPERTY, 0)]
        numbers += [item.get("summary", {}).get(THROUGH_PROPERTY, 0) for item in held.get("snapshots", [])]
        return max(int(number) for number in numbers)
    except (OSError, ValueError, AttributeError, TypeError):
        return 0
