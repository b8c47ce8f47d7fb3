"""The responses of a destination to a parcel, other than that it has stored it.

Separate from the contract, because Spark tasks import it: they never need the control database.
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
    """What a destination reports that it has of a channel beyond the watermark."""

    ranges: tuple[SequenceRange, ...] = ()
    """Ranges that are stored under their own names (objects). A retry must use the same boundaries."""
    end: int | None = None
    """The destination has everything up to this number (ledgers, tables)."""
    tally: Tally | None = None
    """Of everything up to `end`, if the destination counts rows."""
    given_up: tuple[SequenceRange, ...] = ()
    """Ranges up to `end`, in order, of which the destination never received a row."""
    given_up_rows: int = 0
    """The number of rows in them."""

    def never_got(self, seq: int) -> bool:
        """Whether the destination never received a row up to `end`."""
        index = bisect.bisect_left(self.given_up, seq, key=lambda span: span.through)
        return index < len(self.given_up) and seq in self.given_up[index]


class Refused(Permanent):
    """The destination will never accept these rows. `words` is its own message."""

    def __init__(self, message: str, *, words: str = "", hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.words = words or message


class Busy(Retryable):
    """The destination cannot accept rows now; `retry_after_seconds` is the wait that it asked for, if any."""

    def __init__(self, message: str, *, retry_after_seconds: float | None = None, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.retry_after_seconds = retry_after_seconds


class Oversized(Exception):
    """The parcel is larger than the sink's `chunk_bytes` and has more than one row; nothing was sent.

    Not an error: the tick splits the chunk, records the split, and delivers the halves.
    """


class Ahead(Retryable):
    """The destination has everything up to `holdings.end`, which is more than the sender has recorded."""

    def __init__(self, message: str, holdings: Holdings) -> None:
        super().__init__(message)
        self.holdings = holdings


class Task(Protocol):
    """Stores one range's rows, in this process or in a Spark task. It can be pickled."""

    @property
    def is_local(self) -> bool:
        """Whether it stores them on the disk of the machine on which it runs."""
        ...

    def __call__(self, range: SequenceRange, rows: pa.Table) -> dict[str, Any]:
        """Returns `{"bytes": …}`; raises what `Destination.deliver` raises."""
        ...


@dataclass(frozen=True, slots=True)
class StoredByTask:
    """Runs a task, and returns `oversized` as a result, not as an error."""

    task: Task

    def __call__(self, range: SequenceRange, rows: pa.Table) -> dict[str, Any]:
        try:
            return self.task(range, rows)
        except Oversized:
            return {"oversized": True}
