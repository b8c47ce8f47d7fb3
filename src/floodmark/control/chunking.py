"""Where a range is cut into chunks. Pure.

Boundaries are chosen at rows. Arithmetic on the numbers alone would cost by sequence: a partition first seen at number
10^9 would have hundreds of thousands of empty chunks.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from floodmark.sequence import SequenceRange


@dataclass(frozen=True, slots=True)
class Stretch:
    """Where a partition's rows stand: so many of them between two numbers."""

    rows: int
    first_seq: int
    last_seq: int

    def within(self, whole: SequenceRange) -> Stretch:
        """The part inside a range that it reaches into, with its share of the rows."""
        first, last = max(self.first_seq, whole.after + 1), min(self.last_seq, whole.through)
        share = -(-self.rows * (last - first + 1) // (self.last_seq - self.first_seq + 1))
        return Stretch(share, first, last)


def chunk_ranges(
    whole: SequenceRange,
    found: Sequence[Stretch],
    *,
    rows_max: int,
    fixed: Sequence[SequenceRange] = (),
) -> list[SequenceRange]:
    """Cut a range at rows, about `rows_max` to a chunk; an empty stretch belongs to the chunk behind it.

    Inside one block a stretch is cut evenly. `fixed` ranges are chunks as they are (they left before, and the
    destination still has them); what lies between them is cut as usual.
    """
    ranges: list[SequenceRange] = []
    after = whole.after
    for item in sorted(fixed):
        if item.after > after:
            ranges += _cut(SequenceRange(after, item.after), found, rows_max=rows_max)
        ranges.append(item)
        after = item.through
    if after < whole.through:
        ranges += _cut(SequenceRange(after, whole.through), found, rows_max=rows_max)
    return ranges


def _cut(whole: SequenceRange, found: Sequence[Stretch], *, rows_max: int) -> list[SequenceRange]:
    cuts: list[int] = []
    held = 0
    inside = [stretch for stretch in found if stretch.last_seq > whole.after and stretch.first_seq <= whole.through]
    for piece in (piece for stretch in inside for piece in _pieces(stretch, rows_max=rows_max)):
        if held and held + piece.rows > rows_max:
            cuts.append(piece.first_seq - 1)
            held = 0
        held += piece.rows
    edges = [whole.after, *(cut for cut in cuts if whole.after < cut < whole.through), whole.through]
    return [SequenceRange(after, through) for after, through in itertools.pairwise(edges)]


def exact_rows(ranges: Sequence[SequenceRange], found: Sequence[Stretch]) -> list[int | None]:
    """How many rows each range has, by what was committed; None where only the rows themselves can tell.

    Both rise. A stretch inside a range counts whole; one that is cut counts only if no number in it is missing.
    """
    counts: list[int | None] = []
    place = 0
    for range_ in ranges:
        while place < len(found) and found[place].last_seq <= range_.after:
            place += 1
        total: int | None = 0
        for stretch in itertools.islice(found, place, None):
            if stretch.first_seq > range_.through:
                break
            part = stretch.within(range_)
            cut = (part.first_seq, part.last_seq) != (stretch.first_seq, stretch.last_seq)
            dense = stretch.rows == stretch.last_seq - stretch.first_seq + 1
            total = None if total is None or (cut and not dense) else total + part.rows
        counts.append(total)
    return counts


def rows_through(found: Sequence[Stretch], *, rows_max: int) -> int | None:
    """The number at which about `rows_max` rows are reached; None if there are not so many."""
    held = 0
    for stretch in found:
        if held + stretch.rows >= rows_max:
            share = rows_max - held
            width = stretch.last_seq - stretch.first_seq + 1
            return stretch.first_seq + max(width * share // stretch.rows, 1) - 1
        held += stretch.rows
    return None


def _pieces(stretch: Stretch, *, rows_max: int) -> Iterator[Stretch]:
    """A stretch in even parts of at most about `rows_max` rows."""
    count = -(-stretch.rows // rows_max)
    width = -(-(stretch.last_seq - stretch.first_seq + 1) // count)
    for first in range(stretch.first_seq, stretch.last_seq + 1, width):
        yield Stretch(-(-stretch.rows // count), first, min(first + width - 1, stretch.last_seq))


def check_tiling(whole: SequenceRange, ranges: Sequence[SequenceRange]) -> None:
    edges = [whole.after, *(item.through for item in ranges)]
    if [item.after for item in ranges] != edges[:-1] or edges[-1] != whole.through:
        raise ValueError(f"chunks {[str(item) for item in ranges]} do not tile {whole}")
