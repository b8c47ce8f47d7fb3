"""Which files of a table are worth rewriting. Pure.

Terms. A *bucket* is a stretch of sequence numbers whose rows share files; no file holds rows of two. A file is *small*
while it is well below the size that files should have. The *newest* bucket is still being written to.

Work is bounded and comes to an end (U6): a bucket is rewritten only if that at least halves the number of its small
files, and what a rewrite leaves never qualifies again unchanged. In the newest bucket the large files in front of small
ones are not rewritten until the files after them are as large, so that a row is rewritten a few times in all, and not
at every run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from floodmark.sequence import SequenceRange

SMALL = 0.75
"""Below this share of the wanted size a file is small."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """One file: the range of its rows' numbers, and its size."""

    first: int
    last: int
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Bucket:
    """The files of one stretch of numbers."""

    range: SequenceRange
    files: tuple[DataFile, ...]
    """In the order of their first numbers."""
    delete_files: int = 0
    """Files that say which rows of others are deleted: those rows still take room, and cost every reader time."""

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)


@dataclass(frozen=True, slots=True)
class Limits:
    """How files should be, and how much one run does."""

    file_bytes: int = 128 << 20
    """The size that files should have."""
    files_min: int = 8
    """How many small files the newest bucket must have before it is touched."""
    bytes_max: int = 4 << 30
    """How much one run rewrites. One bucket is always done, whatever its size."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What becomes of one bucket: the range to rewrite in it, or why it is not rewritten."""

    bucket: Bucket
    rewrite: SequenceRange | None = None
    reason: str = ""

    @property
    def files(self) -> tuple[DataFile, ...]:
        """The files to rewrite."""
        return () if self.rewrite is None else _touched(self.bucket, self.rewrite)

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)


def choose(buckets: Sequence[Bucket], limits: Limits) -> list[Choice]:
    """What to rewrite in one run, the largest gain first, then what stays, with its reason."""
    ordered = sorted(buckets, key=lambda bucket: bucket.range)
    judged = [_judged(bucket, limits, newest=bucket is ordered[-1]) for bucket in ordered]
    due = sorted((item for item in judged if item.rewrite), key=lambda item: (-len(item.files), item.bucket.range))
    taken: list[Choice] = []
    left: list[Choice] = []
    size = 0
    for item in due:
        if taken and size + item.bytes > limits.bytes_max:
            left.append(Choice(item.bucket, reason="left for the next run: per-run byte limit reached"))
            continue
        taken.append(item)
        size += item.bytes
    return [*taken, *left, *(item for item in judged if not item.rewrite)]


def _judged(bucket: Bucket, limits: Limits, *, newest: bool) -> Choice:
    if bucket.delete_files:
        return Choice(bucket, bucket.range)
    small = [file for file in bucket.files if file.bytes < SMALL * limits.file_bytes]
    if newest:
        small = without_large_in_front(small)
        if len(small) < limits.files_min:
            return Choice(
                bucket, reason=f"still being written to, and has fewer than {limits.files_min} small files to join"
            )
    if not is_halved(small, limits):
        return Choice(bucket, reason="its files are large enough")
    return Choice(bucket, SequenceRange(small[0].first - 1, max(file.last for file in small)))


def is_halved(small: Sequence[DataFile], limits: Limits) -> bool:
    """U6: whether joining them leaves at most half as many files."""
    wanted = ceil(sum(file.bytes for file in small) / limits.file_bytes)
    return len(small) >= 2 and wanted * 2 <= len(small)


def without_large_in_front(files: list[DataFile]) -> list[DataFile]:
    """Without those in front that are larger than everything after them."""
    rest = sum(file.bytes for file in files)
    for place, file in enumerate(files):
        rest -= file.bytes
        if file.bytes <= rest:
            return files[place:]
    return []


def _touched(bucket: Bucket, within: SequenceRange) -> tuple[DataFile, ...]:
    return tuple(file for file in bucket.files if file.first <= within.through and file.last > within.after)
