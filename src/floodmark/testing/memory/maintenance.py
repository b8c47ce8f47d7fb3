"""Compaction, expiry and orphans of tables in memory."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from floodmark.commit.protocol import TableState
from floodmark.compaction import Bucket, DataFile
from floodmark.errors import FilesMissing
from floodmark.lake.maintenance import Orphan, highest_known, kept_snapshots
from floodmark.schema import SEQ
from floodmark.sequence import SequenceRange

if TYPE_CHECKING:
    from floodmark.testing.memory.lake import MemoryLake


def buckets_in_memory(lake: MemoryLake, state: TableState) -> list[Bucket]:
    width = lake.width_of(state.name)
    found: dict[int, list[DataFile]] = {}
    for _, part in _files(lake, state):
        span = pc.min_max(part[SEQ])
        first, last = span["min"].as_py(), span["max"].as_py()
        found.setdefault(first // width, []).append(DataFile(first, last, part.num_rows, part.nbytes))
    return [
        Bucket(bucket_range(place * width, width), tuple(sorted(files, key=lambda file: file.first)))
        for place, files in sorted(found.items())
    ]


def bucket_range(start: int, width: int) -> SequenceRange:
    """The numbers of a bucket, which begins at a multiple of its width; number 0 is nobody's."""
    return SequenceRange(max(start - 1, 0), start + width - 1)


def rewritten(lake: MemoryLake, state: TableState, within: SequenceRange, *, file_bytes: int) -> tuple[int, ...] | None:
    """The head's files with those of a range joined, in order of their numbers; None if none lies there."""
    kept: list[int] = []
    joined: list[pa.Table] = []
    for file, part in _files(lake, state):
        span = pc.min_max(part[SEQ])
        if span["max"].as_py() <= within.after or span["min"].as_py() > within.through:
            kept.append(file)
        else:
            joined.append(part)
    if not joined:
        return None
    rows = pa.concat_tables(joined, promote_options="permissive").sort_by(SEQ)
    rows_each = max(1, rows.num_rows * file_bytes // max(1, rows.nbytes))
    parts = [rows.slice(start, rows_each) for start in range(0, rows.num_rows, rows_each)]
    return (*kept, *(lake.store(part.combine_chunks()) for part in parts))


def expired(lake: MemoryLake, table: str, *, keep_snapshots: int, since: int | None) -> int:
    """Forget old snapshots, with the files that only they reach; how many."""
    found, state = lake.table(table), lake.load(table)
    if state is None:
        return 0
    kept = kept_snapshots(state, keep_snapshots=keep_snapshots, since=since)
    found.max_seq = highest_known(state)  # I1: what the old ones alone know stays
    gone = [id for id in found.snapshots if id not in kept]
    found.snapshots = {id: snapshot for id, snapshot in found.snapshots.items() if id in kept}
    for file in {file for id in gone for file in found.files[id]} - lake.reached():
        lake.data.pop(file, None)
    return len(gone)


def orphans_in_memory(lake: MemoryLake, *, before: datetime) -> list[Orphan]:
    wanted = lake.reached()
    return [
        Orphan(f"memory:{file}", part.nbytes)
        for file, part in lake.data.items()
        if file not in wanted and lake.born[file] < before
    ]


def _files(lake: MemoryLake, state: TableState) -> list[tuple[int, pa.Table]]:
    files = () if state.head is None else lake.files_of(state.name, state.head)
    if any(file not in lake.data for file in files):
        raise FilesMissing(f"A data file of {state.name!r} is missing.")
    return [(file, lake.data[file]) for file in files]
