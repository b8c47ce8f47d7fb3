"""How senders share a hub: the places for requests in a worker, and the room for rows that wait to be committed.

H6. A sender gets more only while it holds less than is free. So the last free place goes to a sender that holds none;
one that takes all it can get leaves half; and k of them, as soon as each has given back what it took while they were
fewer, leave a (k+1)th part. Nobody has a fixed share, which others could not use while it is idle.

Each worker counts alone, and asks nobody. Room is shared by all workers: where w of them count, k senders that take all
they can get leave a (kw+1)th part of it.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field

from floodmark.errors import SpoolFull

GENERATIONS = 16
"""The room is counted in so many parts."""
FILE_BYTES = 2 << 10
"""What a file of one row has beside the row. Beyond that a file is about as large as the body that its rows came in."""


def may_take(held: int, *, free: int) -> bool:
    """H6: whether a sender gets more."""
    return held < free


@dataclass(slots=True)
class Places:
    """The requests that a worker has in memory. For one thread."""

    most: int
    most_each: int
    _held: Counter[Hashable] = field(default_factory=Counter)

    def take(self, sender: Hashable) -> bool:
        """Take a place; false if this sender has its share."""
        held = self._held[sender]
        if held >= self.most_each or not may_take(held, free=self.most - self._held.total()):
            return False
        self._held[sender] += 1
        return True

    def leave(self, sender: Hashable) -> None:
        self._held[sender] -= 1
        if not self._held[sender]:
            del self._held[sender]

    @property
    def taken(self) -> int:
        return self._held.total()


@dataclass(slots=True)
class Waiting:
    """The bytes of each sender that may still wait in one dataset, as far as they came through this worker.

    Rows are committed in the order in which they were stored: if n bytes wait, they are the newest n. So what came
    before the newest n bytes of this worker waits no more. That is counted by generations: a little more than waits.
    """

    _generations: list[Counter[Hashable]] = field(default_factory=list)
    _bytes_each: int = 0

    def add(self, sender: Hashable, size: int) -> None:
        if not self._generations or self._generations[-1].total() >= self._bytes_each:
            self._generations.append(Counter())
        self._generations[-1][sender] += size

    def of(self, sender: Hashable, *, waiting: int, most: int) -> int:
        """What a sender has waiting, where so many bytes wait in all, and so many may."""
        self._bytes_each = most // GENERATIONS
        while self._generations and sum(one.total() for one in self._generations[1:]) >= waiting:
            self._generations.pop(0)
        return sum(one[sender] for one in self._generations)


@dataclass(slots=True)
class Room:
    """The room for rows that wait, by dataset. Threads share it."""

    _waiting: dict[str, Waiting] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def check(self, dataset: str, sender: Hashable, waiting: int, most: int) -> None:
        """`SpoolFull` if the sender has its share, where so many bytes wait, and so many may."""
        with self._lock:
            held = self._waiting.setdefault(dataset, Waiting()).of(sender, waiting=waiting, most=most)
        free = most - waiting
        if not may_take(held, free=free):
            raise SpoolFull(
                f"{held:,} bytes of this sender wait in the spool of {dataset!r}, and {free:,} are left for all.",
                hint="Nothing was stored. Send the same request again later.",
            )

    def add(self, dataset: str, sender: Hashable, size: int) -> None:
        """A body of a sender was stored."""
        with self._lock:
            self._waiting.setdefault(dataset, Waiting()).add(sender, size + FILE_BYTES)
