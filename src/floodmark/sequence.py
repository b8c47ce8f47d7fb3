"""Sequence numbers, ranges of them, and the cursor a reader keeps. Pure: no I/O, no Spark.

A sequence number is an int64 from 1, given to each row once, at its stamping commit. A range is always
`(after, through]`: "I have seen everything up to `after`" is what a reader knows, and the next range then
starts where the last one ended, without arithmetic.
"""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import total_ordering

from floodmark.errors import Corrupt, InvalidCursor

SEQUENCE_MAX = 2**63 - 2
"""The highest number that is ever handed out; one below int64's end, so that `through + 1` always exists."""


@total_ordering
@dataclass(frozen=True, slots=True)
class SequenceRange:
    """The sequence numbers above `after`, up to and including `through`."""

    after: int
    through: int

    def __post_init__(self) -> None:
        if not 0 <= self.after <= self.through <= SEQUENCE_MAX:
            raise ValueError(f"not a sequence range: ({self.after}, {self.through}]")

    def __len__(self) -> int:
        return self.through - self.after

    def __contains__(self, seq: object) -> bool:
        return isinstance(seq, int) and self.after < seq <= self.through

    def __lt__(self, other: SequenceRange) -> bool:
        return (self.after, self.through) < (other.after, other.through)

    def __str__(self) -> str:
        return f"({self.after}, {self.through}]"

    @property
    def empty(self) -> bool:
        return self.after == self.through

    def intersect(self, other: SequenceRange) -> SequenceRange | None:
        """What both hold, or None where they share nothing."""
        after, through = max(self.after, other.after), min(self.through, other.through)
        return SequenceRange(after, through) if after < through else None


@dataclass(slots=True)
class RangeSet:
    """A set of sequence numbers as disjoint ranges in order; touching ranges are merged."""

    ranges: list[SequenceRange] = field(default_factory=list)

    @classmethod
    def of(cls, ranges: Iterable[SequenceRange]) -> RangeSet:
        result = cls()
        for item in ranges:
            result.add(item)
        return result

    def add(self, new: SequenceRange) -> None:
        if new.empty:
            return
        before = [r for r in self.ranges if r.through < new.after]
        behind = [r for r in self.ranges if r.after > new.through]
        touching = self.ranges[len(before) : len(self.ranges) - len(behind)]
        merged = SequenceRange(
            min([new.after, *(r.after for r in touching)]), max([new.through, *(r.through for r in touching)])
        )
        self.ranges = [*before, merged, *behind]

    def __contains__(self, seq: object) -> bool:
        return any(seq in item for item in self.ranges)

    def __len__(self) -> int:
        return sum(len(item) for item in self.ranges)

    def __iter__(self) -> Iterator[SequenceRange]:
        return iter(self.ranges)

    def missing_within(self, whole: SequenceRange) -> list[SequenceRange]:
        """The holes of this set inside a range."""
        holes, position = [], whole.after
        for item in self.ranges:
            part = item.intersect(whole)
            if part is None:
                continue
            if part.after > position:
                holes.append(SequenceRange(position, part.after))
            position = part.through
        if position < whole.through:
            holes.append(SequenceRange(position, whole.through))
        return holes


_CURSOR_VERSION = 1
_CURSOR_PREFIX = "fm"


@dataclass(frozen=True, slots=True)
class Cursor:
    """How far a reader got in one dataset (or one partition of it) of one store.

    Store its text (`str(cursor)`) and hand it back as `since=`. The text is opaque and versioned: it is
    bound to the store and the dataset it came from, and anything else is refused rather than guessed at.
    """

    store_id: str
    dataset: str
    partition: str | None
    seq: int

    def __str__(self) -> str:
        payload = json.dumps(
            [self.store_id, self.dataset, self.partition, self.seq], ensure_ascii=False, separators=(",", ":")
        ).encode()
        sealed = payload + zlib.crc32(payload).to_bytes(4, "big")
        return f"{_CURSOR_PREFIX}{_CURSOR_VERSION}.{base64.urlsafe_b64encode(sealed).decode().rstrip('=')}"

    @classmethod
    def parse(cls, text: str) -> Cursor:
        """Read a cursor's text; `InvalidCursor` says what is wrong with anything else."""
        head, dot, body = text.strip().partition(".")
        version = head.removeprefix(_CURSOR_PREFIX)
        if not dot or head == version or not version.isascii() or not version.isdigit():
            raise InvalidCursor(
                f"{_shown(text)} is not a cursor.",
                hint="Use the text that read_since or `floodmark read` handed out, unchanged.",
            )
        if version != str(_CURSOR_VERSION):  # compared as text: a number of thousands of digits is not even read
            raise InvalidCursor(
                f"The cursor is of version {version[:20]}; this Floodmark reads version {_CURSOR_VERSION}.",
                hint="Read with the Floodmark version that made it, or a newer one.",
            )
        try:
            sealed = base64.b64decode(body + "=" * (-len(body) % 4), altchars=b"-_", validate=True)
            payload, checksum = sealed[:-4], sealed[-4:]
            if len(checksum) != 4 or zlib.crc32(payload).to_bytes(4, "big") != checksum:
                raise ValueError("its check digits do not match")
            store_id, dataset, partition, seq = json.loads(payload)
            cursor = cls(store_id=store_id, dataset=dataset, partition=partition, seq=seq)
            cursor._check()
        except (ValueError, TypeError, binascii.Error, RecursionError) as error:
            raise InvalidCursor(
                f"The cursor {_shown(text)} is damaged.",
                hint="Use the text that read_since or `floodmark read` handed out, unchanged.",
            ) from error
        return cursor

    def _check(self) -> None:
        texts = (self.store_id, self.dataset, *(() if self.partition is None else (self.partition,)))
        if not all(isinstance(text, str) for text in texts):
            raise TypeError("names are texts")
        for text in texts:
            text.encode()  # half a character would be refused only where the name is written or shown
        if type(self.seq) is not int or not 0 <= self.seq <= SEQUENCE_MAX:
            raise ValueError("not a sequence number")


def _shown(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:37] + "…")


CHECKSUM_MODULUS = 2**64
_KEEP = "Do not change the store, and run `floodmark fsck`."


@dataclass(frozen=True, slots=True)
class Tally:
    """How many rows, and their order-free checksum: the sum of the first 64 bits of each `_ingest_id`.

    Two tallies of disjoint ranges add up, which is what lets ranges be compared without their rows.
    """

    rows: int = 0
    checksum: int = 0

    def __add__(self, other: Tally) -> Tally:
        return Tally(self.rows + other.rows, (self.checksum + other.checksum) % CHECKSUM_MODULUS)

    def __sub__(self, other: Tally) -> Tally:
        return Tally(self.rows - other.rows, (self.checksum - other.checksum) % CHECKSUM_MODULUS)

    @property
    def checksum_text(self) -> str:
        return f"{self.checksum:016x}"

    @classmethod
    def of(cls, rows: int, checksum_text: str) -> Tally:
        try:
            return cls(rows, int(checksum_text, 16))
        except (ValueError, TypeError) as error:
            raise Corrupt("A recorded checksum is no number.", hint=_KEEP) from error
