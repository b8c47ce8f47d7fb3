"""Reading events: their data from the files, their coordinates from the history and the numbering."""

from __future__ import annotations

import fnmatch
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from uuid import UUID

import orjson

from floodmark.errors import Corrupt, InvalidCursor
from floodmark.eventlog.directory import EventsDirectory
from floodmark.eventlog.history import History
from floodmark.eventlog.identifiers import position_of, seq_of
from floodmark.eventlog.ingestion import IngestionLog
from floodmark.eventlog.transactions import SUFFIX, EventKey, EventLine, InvalidTransaction, RecordedEvent, parse

# Events of one transaction are read together, and a live reader reads what was just appended.
_CACHED_TRANSACTIONS = 256


@dataclass(frozen=True, slots=True)
class Filter:
    """A filter of events; all given conditions must be true.

    `pattern` is a glob over the stream's name; `*` crosses `/`, `[!a]` negates.
    """

    prefix: str | None = None
    pattern: str | None = None
    type: str | None = None

    def matcher(self) -> Callable[[EventKey], bool]:
        glob = re.compile(fnmatch.translate(self.pattern)).match if self.pattern is not None else None

        def matches(event: EventKey) -> bool:
            return (
                (self.prefix is None or event.stream.startswith(self.prefix))
                and (glob is None or glob(event.stream) is not None)
                and (self.type is None or event.type == self.type)
            )

        return matches


class EventReader:
    """Turns places in the history into recorded events."""

    def __init__(self, directory: EventsDirectory) -> None:
        self._directory = directory
        self._lines: OrderedDict[str, list[EventLine]] = OrderedDict()

    def event(
        self, history: History, ingestion: IngestionLog, transaction_id: str, ordinal: int, seq: int | None = None
    ) -> RecordedEvent:
        transaction = history[transaction_id]
        key = transaction.events[ordinal]
        line = self._body(transaction_id)[ordinal]
        before = sum(event.stream == key.stream for event in transaction.events[:ordinal])
        number = ingestion.seq(key.event_id) if seq is None else seq
        return RecordedEvent(
            stream=key.stream,
            data=orjson.loads(memoryview(line.event_data)),
            type=key.type,
            metadata=orjson.loads(memoryview(line.metadata)),
            event_id=key.event_id,
            transaction_id=transaction_id,
            replica_id=transaction.replica,
            parents=transaction.parents,
            created_at=transaction.created_at,
            depth=history.graph.depth[transaction_id],
            ordinal=ordinal,
            version=history.first_version(key.stream, transaction_id) + before,
            seq=number,
            position=None if number is None else position_of(number),
        )

    def forget(self) -> None:
        self._lines.clear()

    def _body(self, transaction_id: str) -> list[EventLine]:
        lines = self._lines.get(transaction_id)
        if lines is None:
            try:
                _, lines = parse(self._directory.read(transaction_id), name=transaction_id)
            except (OSError, InvalidTransaction) as error:
                raise Corrupt(
                    f"events/{transaction_id}{SUFFIX} was valid when the log was opened and is now invalid: {error}.",
                    hint="Call refresh() to continue without it. `floodmark log fsck` shows the problem.",
                ) from error
            self._lines[transaction_id] = lines
            if len(self._lines) > _CACHED_TRANSACTIONS:
                self._lines.popitem(last=False)
        return lines


def numbered_places(
    history: History, ingestion: IngestionLog, *, after: int, wanted: Filter
) -> Iterator[tuple[int, str, int]]:
    """(seq, transaction, ordinal) in local-ingestion order; the filter comes before any limit."""
    matches = wanted.matcher()
    for seq, event_id in ingestion.after(after):
        place = history.place(event_id)
        if place is not None and matches(history[place[0]].events[place[1]]):
            yield seq, *place


def unnumbered_places(history: History, ingestion: IngestionLog, wanted: Filter) -> Iterator[tuple[str, int]]:
    """(transaction, ordinal) of events without a number, in canonical order."""
    matches = wanted.matcher()
    for transaction, ordinal, key in history.event_keys():
        if ingestion.seq(key.event_id) is None and matches(key):
            yield transaction.id, ordinal


def seq_after(after: UUID | str | int | None, *, identity: str) -> int:
    """The number that a reader names: a position, a bare number, or a cursor bound to one numbering."""
    if after is None:
        return 0
    if isinstance(after, int):
        return after
    try:
        if isinstance(after, str) and "@" in after:
            number, _, owner = after.partition("@")
            if owner != identity:
                raise InvalidCursor(
                    f"The cursor {after[:80]!r} belongs to another replica or numbering of this log; the "
                    f"current one is {identity}.",
                    hint="Positions are valid on one replica, until its ingestion log is lost. Read from the start.",
                )
            return int(number)
        return seq_of(after if isinstance(after, UUID) else UUID(after))
    except ValueError as error:
        raise InvalidCursor(
            f"{str(after)[:80]!r} is not a position of an event log.",
            hint="Use the `position` of an event that this log returned.",
        ) from error
