"""Which rows of a Parquet file are committed, found without Spark: for one identity, and where not too much is near.

Only the key's columns are read, of the file and of the data files that its span of event time reaches. A row without an
event time is not found this way: what is not found is for flush to decide.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from floodmark.lake.overlap import within_span
from floodmark.lake.stored import FileKeys, bitmap_of, event_span_of
from floodmark.rows.identities import is_plain
from floodmark.schema.types import DATE, to_arrow

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.table import Table as IcebergTable

ROWS_HERE_MAX = 2_000_000
"""So many committed rows are compared with one file in this process; more than that is for Spark."""
FILES_AT_ONCE = 2
"""So many files are compared at the same time: planning is Python's work, reading and comparing is not."""
_PLACE = "_ingest_place"


def stored_directly(table: IcebergTable, snapshot: int, keys: FileKeys) -> dict[Path, bytes] | None:
    """The bitmap of each file, empty where no row is committed; None if it is for Spark to find out."""
    kinds = [to_arrow(keys.schema.column(name).type) for name in keys.names]
    if len(keys.identity) != 1 or not all(map(is_plain, kinds)):
        return None
    if table.snapshot_by_id(snapshot) is None:  # it has expired: its plan would be empty, and say that nothing is there
        return None
    found: dict[Path, bytes] = {}
    with ThreadPoolExecutor(FILES_AT_ONCE, thread_name_prefix="stored") as pool:
        looked = pool.map(lambda path: _stored(table, snapshot, keys, path), keys.files)
        for path, bits in zip(keys.files, looked, strict=True):
            if bits is None:
                pool.shutdown(wait=False, cancel_futures=True)
                return None
            found[path] = bits
    return found


def _stored(table: IcebergTable, snapshot: int, keys: FileKeys, path: Path) -> bytes | None:
    from pyiceberg.expressions import AlwaysTrue

    ours = _file_rows(path, keys)
    near: Any = AlwaysTrue()
    if keys.event_time is not None:
        span = event_span_of(ours[keys.event_time])
        if span is None:
            return None
        near = within_span(keys.event_time, span, is_date=keys.schema.column(keys.event_time).type == DATE)
    scan = table.scan(row_filter=near, selected_fields=keys.names, snapshot_id=snapshot)
    if sum(task.file.record_count for task in scan.plan_files()) > ROWS_HERE_MAX:
        return None
    theirs = _typed(scan.to_arrow(), keys)
    found = _found_at_once(ours, theirs, keys)
    return _found_by_join(ours, theirs, keys) if found is None else found


def _file_rows(path: Path, keys: FileKeys) -> pa.Table:
    import pyarrow.parquet as pq

    sources = {source: name for name, source in keys.sources().items()}
    held = pq.read_table(path, columns=list(sources))
    return _typed(held.rename_columns([sources[name] for name in held.column_names]), keys)


def _typed(rows: pa.Table, keys: FileKeys) -> pa.Table:
    """In the dataset's own types: Iceberg's reader has wide texts."""
    import pyarrow as pa

    return pa.table({name: rows[name].cast(to_arrow(keys.schema.column(name).type)) for name in keys.names})


def _found_at_once(ours: pa.Table, theirs: pa.Table, keys: FileKeys) -> bytes | None:
    """By looking each identity up: a third of a join's time. None where that is not the whole answer."""
    import pyarrow as pa
    import pyarrow.compute as pc

    (names,) = keys.identity
    if len(names) > 1:
        return None
    column = ours[names[0]].combine_chunks()
    known = theirs[names[0]].combine_chunks()
    if keys.event_time is None or keys.event_time == names[0]:
        both = pc.is_in(column, value_set=known, skip_nulls=True)
    else:
        at = pc.index_in(column, value_set=known, skip_nulls=True)
        same = pc.equal(ours[keys.event_time].combine_chunks(), theirs[keys.event_time].combine_chunks().take(at))
        if pc.any(pc.and_(pc.is_valid(at), pc.invert(same))).as_py():
            return None  # one identity has several event times, and the first that is found is not the one
        both = pc.fill_null(same, fill_value=False)
    if not pc.any(both).as_py():
        return b""
    return bytes(pa.concat_arrays([both, pa.repeat(False, -len(both) % 8)]).buffers()[1])[: (len(both) + 7) // 8]


def _found_by_join(ours: pa.Table, theirs: pa.Table, keys: FileKeys) -> bytes:
    import pyarrow as pa

    placed = ours.append_column(_PLACE, pa.array(range(ours.num_rows), pa.int64()))
    both = placed.join(theirs, keys=list(keys.names), join_type="left semi")
    return bitmap_of(both[_PLACE].to_pylist(), ours.num_rows) if both.num_rows else b""
