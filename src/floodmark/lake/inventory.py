"""The files of a table, from its metadata, and what they say: buckets, damage, the highest number, the room they take.

Each lake lists its files in its own way; what is concluded from a list is the same for every lake. Buckets are
described in `floodmark.compaction`. An *orphan* is a file in a table's own place that no snapshot of it refers to:
left by a commit that never came to its end, or rolled back after a power loss.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from floodmark.commit.protocol import TableState
from floodmark.compaction import Bucket, DataFile
from floodmark.lake.files import local_path
from floodmark.sequence import SEQUENCE_MAX, SequenceRange

if TYPE_CHECKING:
    from floodmark.lake.table import Lake


@dataclass(frozen=True, slots=True)
class TableFile:
    """A file of rows, or one that says which rows of others are deleted."""

    location: str
    first: int
    last: int
    """The range of its rows' numbers; all numbers, if it is not recorded."""
    rows: int
    bytes: int
    bucket: SequenceRange
    deletes: bool = False


@dataclass(frozen=True, slots=True)
class TableFiles:
    """What the head of a table refers to."""

    files: tuple[TableFile, ...] = ()
    manifests: int = 0
    """How many small lists of files a reader has to go through: those that joining makes fewer."""
    missing: tuple[str, ...] = ()
    """Not there, or not as long as they were written. Only if the check was requested."""

    @property
    def twice(self) -> tuple[str, ...]:
        """Files that the head refers to more than once: each of their rows is read as often."""
        counted = Counter(file.location for file in self.files)
        return tuple(sorted(location for location, times in counted.items() if times > 1))

    @property
    def highest_seq(self) -> int:
        """The highest number that a file says it has; 0 if none says."""
        return max((file.last for file in self.files if file.last != SEQUENCE_MAX), default=0)

    @property
    def buckets(self) -> list[Bucket]:
        """Bucket by bucket, those without a file of rows left out."""
        rows = [file for file in self.files if not file.deletes]
        deletes = Counter(file.bucket for file in self.files if file.deletes)
        found: dict[SequenceRange, list[DataFile]] = {}
        for file in sorted(rows, key=lambda file: file.first):
            found.setdefault(file.bucket, []).append(DataFile(file.first, file.last, file.rows, file.bytes))
        return [Bucket(bucket, tuple(files), deletes[bucket]) for bucket, files in sorted(found.items())]


@dataclass(frozen=True, slots=True)
class Orphan:
    """A file that nothing refers to."""

    location: str
    bytes: int


def total_bytes(orphans: Sequence[Orphan]) -> int:
    return sum(item.bytes for item in orphans)


def highest_seq(lake: Lake, state: TableState) -> int:
    """A number that no row visible in the state exceeds, as tight as the metadata allows.

    From the newest stamped commit still known; after an expiry from what the files say.
    """
    through = next((snapshot.through for snapshot in state.lineage if snapshot.through is not None), None)
    if through is None and state.lineage:
        through = lake.files(state).highest_seq
    return max(through or 0, state.max_seq)


def highest_known(state: TableState) -> int:
    """I1: how far numbers were given out, as far as the snapshots alone know it."""
    return max([state.max_seq, *(snapshot.through or 0 for snapshot in state.lineage)])


def kept_snapshots(state: TableState, keep_snapshots: int) -> list[int]:
    """The newest ones."""
    return [snapshot.id for snapshot in state.lineage[:keep_snapshots]]


def bucket_range(start: int, width: int) -> SequenceRange:
    """The numbers of a bucket, which begins at a multiple of its width; no row has number 0."""
    return SequenceRange(max(start - 1, 0), min(start + width - 1, SEQUENCE_MAX))


def stored_bytes(lake: Lake, table: str) -> int:
    """How much room the table's files take, those of old snapshots among them.

    On this machine what they take on the disk; elsewhere what the table says of them.
    """
    state = lake.load(table)
    if state is None:
        return 0
    home = local_path(state.location)
    return state.bytes if home is None else sum(_sizes(Path(home)))


def _sizes(home: Path) -> Iterator[int]:
    for directory, _, names in os.walk(home):
        for name in names:
            with contextlib.suppress(FileNotFoundError):  # a commit beside us has just finished with it
                yield (Path(directory) / name).stat().st_size
