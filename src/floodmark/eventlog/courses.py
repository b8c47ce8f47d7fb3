"""The courses that a projection can take through a log: as events arrive, or in canonical order.

A course knows what comes next and how to write down how far it has come; it applies nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from itertools import islice
from typing import Protocol

import msgspec

from floodmark.eventlog.checkpoints import Applied, decode_checkpoint, encode_checkpoint
from floodmark.eventlog.history import History
from floodmark.eventlog.ingestion import IngestionLog

# A transaction, and the place of an event in it.
Place = tuple[str, int]


class Course(Protocol):
    """What a runner needs to know of a course."""

    def pending(self) -> Iterator[Place | None]:
        """What comes next; None for something to be passed over. Each is followed by `take`."""
        ...

    def take(self) -> None:
        """The last one that was pending is done."""
        ...

    def record(self) -> str:
        """How far the course has come, to be stored."""
        ...

    def left(self) -> int:
        """How much is still to come."""
        ...


class ArrivalCourse:
    """Local-ingestion order, by number while the number can be trusted (E11)."""

    def __init__(self, text: str | None, *, name: str, history: History, ingestion: IngestionLog) -> None:
        saved = None if text is None else decode_checkpoint(text, name=name, ingestion=ingestion)
        self._applied = Applied(saved, name=name, history=history, ingestion=ingestion)
        self._ingestion = ingestion
        self._current: tuple[int, str, Place | None] | None = None

    def pending(self) -> Iterator[Place | None]:
        for current in self._applied.pending():
            self._current = current
            yield current[2]

    def take(self) -> None:
        assert self._current is not None  # noqa: S101 - `pending` has just given it
        self._applied.take(*self._current)

    def record(self) -> str:
        return encode_checkpoint(self._applied.checkpoint())

    def left(self) -> int:
        return self._ingestion.last - self._applied.seq


class _Prefix(msgspec.Struct, frozen=True):
    """How much of the canonical order has been read, and which events those were."""

    count: int
    sha256: str
    topology_generation: int


class CanonicalCourse:
    """Canonical order, for as long as what was read is still its beginning."""

    def __init__(self, text: str | None, *, history: History) -> None:
        self._history = history
        self._places = [(t.id, ordinal) for t, ordinal, _ in history.event_keys()]
        self._count = 0
        self._digest = hashlib.sha256()
        # A topology that changed is the usual reason; files that merely arrived are another.
        self.begins_anew = text is not None and not self._go_on_from(text)

    def _go_on_from(self, text: str) -> bool:
        try:
            saved = msgspec.json.decode(text, type=_Prefix)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return False  # of a live projection, or damaged: nothing of it can be used
        for _ in islice(self._places, saved.count):
            self.take()
        if self._count == saved.count and self._digest.hexdigest() == saved.sha256:
            return True
        self._count, self._digest = 0, hashlib.sha256()
        return False

    def pending(self) -> Iterator[Place | None]:
        yield from islice(self._places, self._count, None)

    def take(self) -> None:
        transaction_id, ordinal = self._places[self._count]
        self._digest.update(self._history[transaction_id].events[ordinal].event_id.encode())
        self._count += 1

    def record(self) -> str:
        prefix = _Prefix(self._count, self._digest.hexdigest(), self._history.graph.merges)
        return msgspec.json.encode(prefix).decode()

    def left(self) -> int:
        return len(self._places) - self._count
