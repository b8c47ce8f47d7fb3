"""Which rows of a block flush leaves out: those from before the event-time cut-off, and those that were purged.

It depends on the segments, the dataset's cut-off and its purged identities alone. Those two change only while no
block is undecided (U13), so a block that is sent again, by whomever, leaves out the same rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from floodmark.control import removals
from floodmark.control.database import Database
from floodmark.control.datasets import Dataset
from floodmark.control.segments import Segment
from floodmark.errors import Retryable
from floodmark.rows.identities import identity_hashes
from floodmark.schema import CONTENT_ID
from floodmark.segment_store import SegmentStore

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Exclusions:
    """What of a block is not committed, beside duplicates."""

    purged: tuple[int, ...] = ()
    """Sequence numbers."""
    expired: int = 0
    """How many rows there are of both kinds together."""


def exclusions_of(
    database: Database, files: SegmentStore, declared: Dataset, segments: Sequence[Segment], *, after: int
) -> Exclusions:
    """Check the segments of a block; usually their recorded figures are enough."""
    old = _could_be_old(declared, segments)
    purges = _has_purged(database, declared)
    if not old and not purges:
        return Exclusions()
    gone: list[int] = []
    count = 0
    for segment in segments:
        rows = _columns(files.path(segment.path), declared)
        expired = _expired(rows, declared)
        purged = _purged(database, rows, declared) if purges else []
        start = after + 1 + (segment.block_offset or 0)
        gone += [start + place for place in purged]
        count += len(set(purged) | set(expired))
    return Exclusions(tuple(gone), count)


def excluded_places(database: Database, path: Path, declared: Dataset) -> list[int]:
    """The places of the rows in a segment's file that flush would leave out."""
    purges = _has_purged(database, declared)
    if not purges and declared.event_cutoff is None:
        return []
    rows = _columns(path, declared)
    return sorted({*_expired(rows, declared), *(_purged(database, rows, declared) if purges else ())})


def _has_purged(database: Database, declared: Dataset) -> bool:
    return bool(declared.identity) and database.read(lambda c: removals.has_purged(c, declared.name))


def _could_be_old(declared: Dataset, segments: Sequence[Segment]) -> bool:
    cutoff = declared.event_cutoff
    return cutoff is not None and any(s.event_min is not None and s.event_min < cutoff for s in segments)


def _columns(path: Path, declared: Dataset) -> pa.Table:
    import pyarrow as pa
    import pyarrow.parquet as pq

    wanted = {name for names in declared.identity for name in names} | {declared.event_time}
    wanted |= {CONTENT_ID} if declared.by_content else set()
    try:
        held = pq.read_schema(path).names
        return pq.read_table(path, columns=[name for name in held if name in wanted])
    except (OSError, pa.ArrowInvalid) as error:
        raise Retryable(
            f"A segment of {declared.name!r} cannot be read: {error}.", hint="Nothing was committed; flush again."
        ) from error


def _expired(rows: pa.Table, declared: Dataset) -> list[int]:
    if declared.event_cutoff is None or declared.event_time not in rows.column_names:
        return []
    return places_before(rows[declared.event_time], declared.event_cutoff)


def places_before(times: pa.ChunkedArray, cutoff: int) -> list[int]:
    """The places of the event times before a cut-off; none of them null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_date(times.type):
        times = times.cast(pa.timestamp("us", tz="UTC"))
    old = pc.fill_null(pc.less(times.cast(pa.int64()), cutoff), fill_value=False)
    return [int(place) for place in pc.indices_nonzero(old).to_pylist()]


def _purged(database: Database, rows: pa.Table, declared: Dataset) -> list[int]:
    hashes = identity_hashes(rows, declared.identity, declared.key_time, by_content=declared.by_content)
    wanted = {item for item in hashes if item is not None}
    found = database.read(lambda c: removals.purged_among(c, declared.name, wanted))
    return [place for place, item in enumerate(hashes) if item in found]
