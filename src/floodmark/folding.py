"""Folding, without effects: which records of the past become one.

A control database records every commit and every delivery. Totals, numbers and times of the past are still asked for,
but not commit by commit: neighbours are joined into one record with the range, the rows and the checksum of all.

- U35 Folding changes no total: rows, checksums and counts of a joined record are the sums of what it replaces. What is
  undecided, open, given up or quarantined, and the newest records, stay as they are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from floodmark.sequence import SequenceRange

BLOCK_ROWS_MIN = 10_000
"""Blocks are joined up to so many rows in any case: a delivery cuts its chunks by them, evenly inside one."""
BLOCKS_MAX = 512
"""… or until about so many are left. A joined block then has this part of the dataset's rows."""
AGE_PART = 32
"""The commits of a joined block lie within this part of its age: retention by age removes rows later by no more."""
SPAN_MIN = timedelta(minutes=10)
"""… or within this time, if that is longer."""


@dataclass(frozen=True, slots=True)
class BlockSpan:
    """A block that may be joined with its neighbours."""

    id: str
    range: SequenceRange
    rows: int
    since: datetime
    """When its first commit began, and when its last one was recorded."""
    until: datetime
    final: bool = True
    """Whether nothing refers to it any more."""


@dataclass(frozen=True, slots=True)
class IntentSpan:
    """A closed intent that may be joined with its neighbours."""

    id: str
    range: SequenceRange
    settings: str
    chunks: int
    rows: int
    ends_with_rows: bool
    """Whether rows were delivered with its last chunk."""
    final: bool = True
    """Whether it is closed, and every chunk was acknowledged."""


def rows_per_block(rows: int) -> int:
    """Up to how many rows blocks of a dataset with so many rows are joined."""
    return max(BLOCK_ROWS_MIN, rows // BLOCKS_MAX)


def block_runs(
    blocks: Iterable[BlockSpan], *, rows_max: int, watermarks: Collection[int], now: datetime
) -> Iterator[list[BlockSpan]]:
    """Neighbours that become one block. In order; a block that stays alone is not among them.

    No watermark of a sink that still needs rows comes to lie inside: what it has to deliver would be an estimate.
    """
    run: list[BlockSpan] = []
    for block in blocks:
        if not block.final:
            yield from _worthwhile(run)
            run = []
            continue
        if run and not _may_join(run, block, rows_max=rows_max, watermarks=watermarks, now=now):
            yield from _worthwhile(run)
            run = []
        run.append(block)
    yield from _worthwhile(run)


def _may_join(
    run: Sequence[BlockSpan], block: BlockSpan, *, rows_max: int, watermarks: Collection[int], now: datetime
) -> bool:
    begin, end = run[0].since, max(block.until, run[-1].until)
    long = max(SPAN_MIN, (now - end) / AGE_PART)
    apart = any(run[-1].range.through <= mark < block.range.through for mark in watermarks)
    return sum(one.rows for one in run) + block.rows <= rows_max and end - begin <= long and not apart


def _worthwhile(run: list[BlockSpan]) -> Iterator[list[BlockSpan]]:
    if len(run) > 1:
        yield run


def intent_runs(intents: Iterable[IntentSpan]) -> Iterator[list[IntentSpan]]:
    """Neighbours that become one intent with one chunk. In order.

    A joined intent ends with rows, or has none: a parcel for a ledger reaches back to the end of the last rows that
    were delivered, over what had none.
    """
    chain: list[IntentSpan] = []
    for intent in intents:
        neighbours = bool(chain) and chain[-1].range.through == intent.range.after
        if chain and not (neighbours and chain[-1].settings == intent.settings and intent.final):
            yield from _pieces(chain)
            chain = []
        if intent.final:
            chain.append(intent)
    yield from _pieces(chain)


def _pieces(chain: list[IntentSpan]) -> Iterator[list[IntentSpan]]:
    last = max((place for place, intent in enumerate(chain, start=1) if intent.ends_with_rows), default=0)
    rest = chain[last:]
    for piece in (chain[:last], rest if not any(intent.rows for intent in rest) else []):
        if len(piece) > 1 or any(intent.chunks > 1 for intent in piece):
            yield piece
