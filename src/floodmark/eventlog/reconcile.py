"""Reconciling: the application resolves a fork, and one merge transaction records it.

The merge's parents are the heads of all branches, so that its events come after everything they decide on;
the head of this replica's own chain joins them where it is not above one of them already (E4). Nothing that
exists is changed. A decision made on two replicas at once is itself a fork, and the next decision settles
that; each decision has all its branches above it, so this ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from floodmark.errors import Permanent
from floodmark.eventlog.dag import is_ancestor
from floodmark.eventlog.forks import Fork
from floodmark.eventlog.history import History
from floodmark.eventlog.transactions import Event
from floodmark.files import durable_write


@dataclass(frozen=True, slots=True)
class Unresolvable:
    """The result of a resolver that cannot resolve the fork; the fork stays open, with this reason."""

    reason: str


Resolver = Callable[[Fork], Iterable[Event] | Unresolvable]


@dataclass(frozen=True, slots=True)
class ReconcileReport:
    """The forks that were decided, by the ids of their merge transactions, and those that were not."""

    resolved: tuple[str, ...]
    declined: tuple[Fork, ...]


def merge_parents(history: History, fork: Fork, *, replica: str) -> tuple[str, ...]:
    """The branches' heads, and the head of our own chain if none of them descends from it."""
    chosen = {head for branch in fork.branches for head in branch.heads}
    own = next((t for t in reversed(history.order) if history[t].replica == replica), None)
    if own is None or any(head == own or is_ancestor(history.graph, own, of=head) for head in chosen):
        return tuple(sorted(chosen))
    ours = min(h for h in history.heads if h == own or is_ancestor(history.graph, own, of=h))
    return tuple(sorted(chosen | {ours}))


def answer_of(resolver: Resolver, fork: Fork) -> list[Event] | Unresolvable:
    answer = resolver(fork)
    if isinstance(answer, Unresolvable):
        return answer
    events = list(answer) if isinstance(answer, Iterable) else [answer]
    if not all(isinstance(event, Event) for event in events):
        raise Permanent(
            f"The resolver returned {answer!r} for the fork on {', '.join(fork.streams)}.",
            hint="Return a list of events (it may be empty), or Unresolvable with a reason.",
        )
    return events


class Refusals:
    """Why forks were declined on this replica; local, for users only."""

    def __init__(self, root: Path) -> None:
        self._path = root / ".eventcore" / "declined.json"
        self.reasons: dict[str, str] = {}
        try:
            self.reasons = msgspec.json.decode(self._path.read_bytes(), type=dict[str, str])
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            # Losing a reason is harmless: the fork itself is found again from the files.
            self.reasons = {}

    def remember(self, key: str, reason: str) -> None:
        self.reasons[key] = reason
        durable_write(self._path, msgspec.json.encode(self.reasons))
