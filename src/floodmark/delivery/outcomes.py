"""What a destination says about a parcel, other than that it has it.

Apart from the contract itself, because tasks of Spark's import it: they never need the control database.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from floodmark.errors import Permanent, Retryable
from floodmark.sequence import SequenceRange, Tally

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Holdings:
    """What a destination holds of a channel beyond the watermark, as it says itself."""

    ranges: tuple[SequenceRange, ...] = ()
    """Ranges that are there under names of their own (objects). A retry must use the same boundaries."""
    end: int | None = None
    """Everything up to here is there (ledgers, tables)."""
    tally: Tally | None = None
    """Of everything up to `end`, where the destination keeps count."""
    given_up: tuple[SequenceRange, ...] = ()
    """Ranges up to `end`, in order, of which the destination knows that it never got a row."""
    given_up_rows: int = 0
    """How many rows those have."""

    def never_got(self, seq: int) -> bool:
        """Whether a row up to `end` is one that it never got."""
        index = bisect.bisect_left(self.given_up, seq, key=lambda span: span.through)
        return index < len(self.given_up) and seq in self.given_up[index]


class Refused(Permanent):
    """The destination will never take these rows. `words` are its own."""

    def __init__(self, message: str, *, words: str = "", hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.words = words or message


class Busy(Retryable):
    """The destination asks for patience; `retry_after_seconds` is what it asked for, if it said so."""

    def __init__(self, message: str, *, retry_after_seconds: float | None = None, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.retry_after_seconds = retry_after_seconds


class Oversized(Exception):
    """The parcel is larger than the sink's `chunk_bytes` and has more than one row; nothing was sent.

    Not an error: the tick splits the chunk, records that, and comes again with the halves.
    """


class Ahead(Retryable):
    """The destination has everything up to `holdings.end`, which is more than the sender had recorded."""

    def __init__(self, message: str, holdings: Holdings) -> None:
        super().__init__(message)
        self.holdings = holdings


class Task(Protocol):
    """Stores one range's rows, wherever it runs: in this process, or in a task of Spark's. It can be pickled."""

    def __call__(self, range: SequenceRange, rows: pa.Table) -> dict[str, Any]:
        """Returns `{"bytes": …}`; raises what `Destination.deliver` raises."""
        ...


@dataclass(frozen=True, slots=True)
class StoredByTask:
    """A task's work: too many bytes are an answer, not an error."""

    task: Task

    def __call__(self, range: SequenceRange, rows: pa.Table) -> dict[str, Any]:
        try:
            return self.task(range, rows)
        except Oversized:
            return {"oversized": True}
