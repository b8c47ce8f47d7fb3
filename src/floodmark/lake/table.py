"""What the system needs from a lake: the contract that every implementation keeps.

A lake holds tables of stamped rows. It promises:

- `load` returns the metadata of one instant, never a cached or a mixed one.
- `append` is a compare-and-swap: it lands only if nothing was appended since the request's base, and at most once.
  What it raises is no verdict: an append that failed may have landed, or may still land.
- Rewriting files (compaction) is not an append and never makes one fail.
- `sync` returns only when everything reachable from the state has reached the disk and is really there.

`memory.MemoryLake` and `spark.SparkLake` pass one contract suite.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from floodmark.commit import Append, Base, PartitionFigures, TableState
from floodmark.schema import Schema
from floodmark.sequence import SequenceRange


class AppendRefused(Exception):
    """What a lake says when its compare-and-swap fails. To a client it is just another error: the table decides."""


class Lake(Protocol):
    """Tables of stamped rows."""

    def load(self, table: str) -> TableState | None:
        """The table's metadata from one load, or None if there is no such table."""
        ...

    def ensure(self, table: str, schema: Schema) -> None:
        """Create the table, or add and widen columns, so that rows of the schema fit. Adds no snapshot."""
        ...

    def append(self, request: Append) -> bool:
        """Stamp and append. True: it landed. False: nothing was left to append, and nothing was sent.

        Raises `Retryable` where the base or the segments could not be read (nothing was sent), and anything at
        all where the outcome must be read from the table.
        """
        ...

    def has_rows(self, table: str, *, snapshot: int, within: SequenceRange) -> bool:
        """Whether a row with a number in the range is visible in a snapshot."""
        ...

    def figures(
        self, table: str, *, snapshot: int, within: SequenceRange, partition_by: tuple[str, ...]
    ) -> list[PartitionFigures]:
        """Rows and checksums of a range, partition by partition, counted in a snapshot."""
        ...

    def highest_seq(self, state: TableState) -> int:
        """A number that no row visible in the state exceeds, as tight as the metadata allows."""
        ...

    def segments_above(self, table: str, *, snapshot: int, after: int) -> set[int]:
        """The ids of the segments that brought rows above a sequence number."""
        ...

    def sync(self, state: TableState, *, since: int | None) -> None:
        """Make every file durable that the state reaches and snapshot `since` did not; else `FilesMissing`."""
        ...

    def roll_back(self, table: str, *, block: str, base: Base) -> bool:
        """Take a block's commit back, whose files were lost; guarded, and only to the state it was built on.

        False if the head is not that commit, or if anything else came since the base: nothing was changed.
        """
        ...

    def scan(
        self,
        table: str,
        *,
        snapshot: int,
        within: SequenceRange,
        columns: tuple[str, ...] | None = None,
        where: dict[str, Any] | None = None,
    ) -> Iterator[Any]:
        """Arrow tables of the range's rows in sequence order, with `_ingest_seq`; `where` holds column values."""
        ...
