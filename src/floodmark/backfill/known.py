"""Which rows of a source are there already: those whose identity waits in a segment, or is committed.

A forecast, and no more: flush compares every row again with what is committed at its base, and alone decides. A row is
left out here only because its twin is certain to stay (B2, B10). Where the forecast cannot see, it leaves nothing out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from floodmark.backfill.units import Batch, Unit
from floodmark.control import segments as segment_records
from floodmark.control.database import Database
from floodmark.control.datasets import Dataset
from floodmark.errors import Retryable
from floodmark.lake.overlap import ABSENT
from floodmark.lake.stored import FileKeys
from floodmark.lake.table import Lake
from floodmark.rows.identities import identity_hashes
from floodmark.spool.segments import SegmentStore

if TYPE_CHECKING:
    import pyarrow as pa

STORED_ROWS_MIN = 50_000
"""Of fewer rows it takes longer to look than to store them and let flush find the duplicates."""
WAITING_ROWS_MAX = 1_000_000
"""Of more rows in the spool than this the identities are not held in memory: flush finds the duplicates."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """The identities that waited in the spool when a backfill began."""

    declared: Dataset
    hashes: Any = None

    def without(self, rows: pa.Table) -> tuple[pa.Table, int]:
        """The rows whose identity does not wait, and how many do."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if self.hashes is None or rows.num_rows == 0:
            return rows, 0
        own = pa.array(identity_hashes(rows, self.declared.identity, self.declared.key_time), pa.string())
        kept = rows.filter(pc.invert(pc.is_in(own, value_set=self.hashes, skip_nulls=True)))
        return kept, rows.num_rows - kept.num_rows


@dataclass(frozen=True, slots=True)
class Stored:
    """Which rows of Parquet files were committed when a backfill began: a bit for each row."""

    bitmaps: dict[Path, bytes] = field(default_factory=dict)
    snapshot: int | None = None
    """The snapshot that was looked at."""
    files: frozenset[Path] = frozenset()
    """The files of which every row was looked for, and is not in the snapshot where its bit is not set."""
    asked: tuple[str, ...] = ()
    """The files' columns that a row must have to be looked for: of one without an event time nothing is certain, nor
    of one without an identity, if such rows are compared by their content."""

    def notes(self, batch: Batch, file: Path | None) -> dict[bytes, bytes]:
        """What is certain of a batch that is left: flush need not look into the same snapshot again."""
        if file not in self.files or isinstance(batch.rows, list):
            return {}
        if any(batch.rows[name].null_count for name in self.asked):
            return {}
        return {ABSENT: str(self.snapshot).encode()}

    def without(self, batch: Batch, file: Path | None) -> tuple[Batch, int]:
        """The batch without what is committed, and how many rows that were."""
        import pyarrow as pa
        import pyarrow.compute as pc

        bits = self.bitmaps.get(file) if file is not None else None
        if bits is None or isinstance(batch.rows, list):
            return batch, 0
        known = min(max(8 * len(bits) - batch.first, 0), batch.count)
        mask = pa.Array.from_buffers(pa.bool_(), known, [None, pa.py_buffer(bits)], offset=batch.first)
        kept = pc.indices_nonzero(pc.invert(pa.concat_arrays([mask, pa.repeat(False, batch.count - known)])))
        if len(kept) == batch.count:
            return batch, 0
        rest = replace(batch, rows=batch.rows.take(kept), place=lambda row: batch.place(kept[row].as_py()))
        return rest, batch.count - rest.count


def stored_rows(lake: Lake, declared: Dataset, units: Sequence[Unit], renamed: Mapping[str, str]) -> Stored:
    """Look for the rows of Parquet files in the table as it is now; for few rows flush alone is faster."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not declared.identity or declared.settle is not None:
        return Stored()
    try:
        state = lake.load(declared.table_name)
        if state is None or state.head is None:
            return Stored()
        every = FileKeys((), declared.identity, declared.key_time, declared.schema, renamed)
        about = {unit.file: pq.read_metadata(unit.file) for unit in units if unit.file is not None}
        files = tuple(path for path, item in about.items() if every.fits(item.schema.to_arrow_schema()))
        if sum(about[path].num_rows for path in files) < STORED_ROWS_MIN:
            return Stored()
        found = lake.stored_rows(state.name, snapshot=state.head, keys=replace(every, files=files))
        # With fallbacks a bit that is not set proves nothing: a row may have more identities than its twin.
        certain = frozenset(files if len(declared.identity) == 1 else ())
        sources = every.sources()
        by_content = declared.identity[0] if declared.by_content else ()
        never_null = [*by_content, *([declared.key_time] if declared.key_time else [])]
        return Stored(found, state.head, certain, tuple(sources[name] for name in never_null))
    except (OSError, pa.ArrowInvalid, Retryable):
        return Stored()  # what cannot be seen is not judged


def waiting_identities(database: Database, segments: SegmentStore, declared: Dataset) -> Waiting:
    """What waits at this moment. With a settle function identities may still change, so none is compared (B2)."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    count, rows, _ = database.read(lambda c: segment_records.backlog(c, declared.name))
    if not declared.identity or declared.settle is not None or not count or rows > WAITING_ROWS_MAX:
        return Waiting(declared)
    wanted = {name for names in declared.identity for name in names} | {declared.event_time}
    found: list[str | None] = []
    for path in database.read(lambda c: segment_records.sealed_paths(c, declared.name)).values():
        try:
            held = pq.read_schema(segments.path(path)).names
            keys = pq.read_table(segments.path(path), columns=[name for name in held if name in wanted])
        except (OSError, pa.ArrowInvalid):
            continue  # committed a moment ago, or unreadable: not for a forecast to judge
        found += identity_hashes(keys, declared.identity, declared.key_time)
    return Waiting(declared, pa.array([item for item in found if item is not None], pa.string()))
