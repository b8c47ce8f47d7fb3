"""What delivery needs from a destination: the contract that every kind of sink keeps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from floodmark.control.deliveries import Channel
from floodmark.sequence import SequenceRange, Tally

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Parcel:
    """One chunk with its rows, in sequence order. The same range always holds the same rows."""

    channel: Channel
    range: SequenceRange
    rows: pa.Table
    """User columns only."""
    tally: Tally


class Destination(Protocol):
    """Somewhere rows go. Delivering the same parcel again must leave one copy of it there."""

    def open(self) -> None:
        """Make sure that this store may write here, before anything is pinned."""
        ...

    def deliver(self, parcel: Parcel) -> int:
        """Store a parcel durably; returns its bytes there.

        `DivergedHistory` if the destination holds other rows for the same range; `Retryable` if it cannot be reached
        now; `Permanent` if it will not take them, which blocks the sink with that reason.
        """
        ...
