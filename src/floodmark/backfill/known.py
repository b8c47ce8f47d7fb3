"""Which rows of a source are already on their way: those whose identity waits in a segment that was there before.

A forecast, and no more: flush compares every row again with what is committed at its base, and alone decides. A row is
left out here only because its twin is certain to stay (B2). Where the forecast cannot see, it leaves nothing out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from floodmark.control import segments as segment_records
from floodmark.control.database import Database
from floodmark.control.datasets import Dataset
from floodmark.rows.identities import identity_hashes
from floodmark.spool.segments import SegmentStore

if TYPE_CHECKING:
    import pyarrow as pa

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
        own = pa.array(identity_hashes(rows, self.declared.identity, self.declared.event_time), pa.string())
        kept = rows.filter(pc.invert(pc.is_in(own, value_set=self.hashes, skip_nulls=True)))
        return kept, rows.num_rows - kept.num_rows


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
        found += identity_hashes(keys, declared.identity, declared.event_time)
    return Waiting(declared, pa.array([item for item in found if item is not None], pa.string()))
