"""What this process has counted since it began: events that leave no record, for the metrics.

Counting costs a dictionary lookup and needs no metrics library, so any part may do it.
"""

from __future__ import annotations

import threading
from collections import Counter

NAMES_MAX = 10_000
"""How many different things are counted: a bound on memory."""

COMMIT_CONFLICTS = "commit_conflicts"
"""A block that another commit came before: its rows were committed with the next one. By dataset."""
DELIVERY_RETRIES = "delivery_retries"
"""A request that was sent again within one export, after a wait. By sink."""

_counts: Counter[tuple[str, str]] = Counter()
_lock = threading.Lock()


def count(meter: str, subject: str) -> None:
    """One more."""
    with _lock:
        if (meter, subject) in _counts or len(_counts) < NAMES_MAX:
            _counts[meter, subject] += 1


def counted(meter: str) -> dict[str, int]:
    """So far, by subject."""
    with _lock:
        return {subject: number for (name, subject), number in sorted(_counts.items()) if name == meter}
