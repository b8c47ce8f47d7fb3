"""What a backfill did."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BackfillReport:
    """The rows of one run: `read` is the sum of what became of them.

    While the run lasts, `new` counts what is in the spool and may still prove to be a duplicate. In the end it is what
    the blocks say.
    """

    dataset: str
    source: str
    read: int = 0
    new: int = 0
    """Committed."""
    already_stored: int = 0
    """Duplicates of committed rows, or of an earlier row of this source."""
    already_spooled: int = 0
    """Duplicates of rows that had been captured and waited for their commit."""
    quarantined: int = 0
    """Rows that do not fit the dataset, and what is no row at all."""
    without_identity: int = 0
    """Rows whose identity is null, among all that fit: they are compared as the dataset's `identity_null` says."""
    outside: int = 0
    """Rows that are not between `since` and `until`."""
    expired: int = 0
    """Rows whose like was removed before, by retention or a purge."""
    dropped: int = 0
    """Rows that the dataset's settle function dropped."""
    units: int = 0
    """Files, or other units, that this run has read."""
    units_loaded_before: int = 0
    bytes: int = 0
    """How much of the source was read."""
    bytes_total: int | None = None
