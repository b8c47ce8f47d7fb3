"""Whether what was settled is what was committed, range by range, from the records alone. Pure.

Two series run along the sequence numbers: the committed blocks, each with its tally of one partition, and the settled
chunks, each with the tally that its acknowledgement recorded. Tallies of disjoint ranges add up, so the two are
compared wherever a chunk ends between two blocks. A chunk that ends inside a block is compared together with those
behind it.

Rows may be missing on the side of the chunks for a reason that is on record: they were removed from the lake before
they left (retention with leave, purge), or the sink's row filter left them out.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from floodmark.control.inspection import ChunkRecord, Figures, Removal
from floodmark.sequence import RangeSet, SequenceRange, Tally


@dataclass(frozen=True, slots=True)
class Imbalance:
    """A range in which the two sides do not add up."""

    range: SequenceRange
    committed: Tally
    settled: Tally

    @property
    def what(self) -> str:
        if self.committed.rows == self.settled.rows:
            return f"As many rows were settled in {self.range} as were committed ({self.settled.rows}), and others."
        return f"{self.committed.rows} rows were committed in {self.range}, and {self.settled.rows} were settled."


def effective(chunks: Sequence[ChunkRecord]) -> list[ChunkRecord]:
    """The settled chunks that count, in order, out of those of all intents, oldest intent first.

    A channel that lost its watermark settles its ranges again; of chunks that overlap, the newest counts.
    """
    covered = RangeSet()
    counted: list[ChunkRecord] = []
    for chunk in reversed([chunk for chunk in chunks if chunk.state != "pending"]):
        if not any(item.intersect(chunk.range) for item in covered):
            covered.add(chunk.range)
            counted.append(chunk)
    return sorted(counted, key=lambda chunk: chunk.range)


def holes(chunks: Sequence[ChunkRecord], whole: SequenceRange) -> list[SequenceRange]:
    """Where no settled chunk is on record."""
    return RangeSet.of(chunk.range for chunk in chunks).missing_within(whole)


class Committed:
    """What the blocks hold of one partition, in order."""

    def __init__(self, figures: Sequence[Figures]) -> None:
        self._first = [item.first_seq for item in figures]
        self._last = [item.last_seq for item in figures]
        self._sums = list(accumulate((item.tally for item in figures), initial=Tally()))

    def within(self, span: SequenceRange) -> Tally | None:
        """What was committed in a range; None where it begins or ends inside a block's rows."""
        begin, end = bisect_right(self._last, span.after), bisect_right(self._first, span.through)
        if begin >= end:
            return Tally()
        if self._first[begin] <= span.after or self._last[end - 1] > span.through:
            return None
        return self._sums[end] - self._sums[begin]


def imbalances(
    chunks: Sequence[ChunkRecord],
    blocks: Committed,
    *,
    removed: Sequence[Removal] = (),
    filtered: bool = False,
) -> Iterator[Imbalance]:
    """Compare neighbouring chunks with the blocks at every cut that both have."""
    run: list[ChunkRecord] = []
    for chunk in chunks:
        if run and run[-1].range.through != chunk.range.after:
            run = []  # a hole: what lies in it is another matter
        run.append(chunk)
        span = SequenceRange(run[0].range.after, chunk.range.through)
        committed = blocks.within(span)
        if committed is None:
            continue
        settled = sum((item.tally for item in run), Tally())
        if not _adds_up(committed, settled, span, removed, filtered=filtered):
            yield Imbalance(span, committed, settled)
        run = []


def _adds_up(
    committed: Tally, settled: Tally, span: SequenceRange, removed: Sequence[Removal], *, filtered: bool
) -> bool:
    if committed == settled:
        return True
    fewer = committed.rows - settled.rows
    if filtered:
        return fewer >= 0
    gone = [item for item in removed if item.range.intersect(span)]
    # A removal names a range, and not which of its rows had left before: no more than its rows may be missing.
    return bool(gone) and 0 < fewer <= sum(item.tally.rows for item in gone)
