"""Check that a chunk's rows match its header, in every body format. Pure."""

from __future__ import annotations

import bisect
import operator
from collections.abc import Sequence

from floodmark.sequence import Tally
from floodmark.wire.bodies import digest_of
from floodmark.wire.header import ChunkHeader, malformed

ORIGIN_SEQ = "_origin_seq"
"""Beside a row's own columns: its number at the origin."""
ORIGIN_ID = "_origin_id"
"""The first 64 bits of its content id."""


def check_digest(content: bytes, header: ChunkHeader) -> None:
    if digest_of(content) != header.digest:
        raise malformed("its body does not match the digest")


def check_count(rows: int, header: ChunkHeader) -> None:
    if rows != header.tally.rows:
        raise malformed(f"it has {rows:,} rows; its header says {header.tally.rows:,}")


def check_sequence(sequence: Sequence[int], header: ChunkHeader) -> None:
    if sequence[0] not in header.range or sequence[-1] not in header.range:
        raise malformed(f"a row's `{ORIGIN_SEQ}` is outside the range {header.range}")
    if not all(map(operator.lt, sequence, sequence[1:])):
        raise malformed(f"`{ORIGIN_SEQ}` does not increase from row to row")
    for item in header.given_up:
        first = bisect.bisect_right(sequence, item.range.after)
        if first < len(sequence) and sequence[first] <= item.range.through:
            raise malformed("a row is both sent and given up")


def checked_tally(tally: Tally, header: ChunkHeader) -> Tally:
    if tally != header.tally:
        raise malformed("the checksum of its rows does not match the header")
    return tally
