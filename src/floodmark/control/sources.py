"""Sources that are loaded step by step: how far each got.

The position moves in the transaction that registers the step's segment, and only from the ordinal the step
was prepared for: a step that is repeated, or done by two at once, is registered once.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, select, update

from floodmark.control.schema import sources
from floodmark.errors import Permanent


@dataclass(frozen=True, slots=True)
class Source:
    """A source of one dataset, and where its next step begins."""

    id: str
    dataset: str
    position: str
    next_ordinal: int


def begin(connection: Connection, *, id: str, dataset: str, position: str) -> Source:
    """The source as it stands; a new one starts at `position`."""
    row = connection.execute(select(sources).where(sources.c.id == id)).one_or_none()
    if row is None:
        connection.execute(
            sources.insert().values(id=id, dataset=dataset, position=position, next_ordinal=0, state="open")
        )
        return Source(id, dataset, position, 0)
    if row.dataset != dataset:
        raise Permanent(
            f"The source {id} already feeds dataset {row.dataset!r}.", hint="A source feeds one dataset of a store."
        )
    return Source(row.id, row.dataset, row.position, row.next_ordinal)


def advance(connection: Connection, source: Source, *, position: str) -> bool:
    """Move the position behind a step; false if another process has done that step."""
    changed = connection.execute(
        update(sources)
        .where(sources.c.id == source.id, sources.c.next_ordinal == source.next_ordinal)
        .values(position=position, next_ordinal=source.next_ordinal + 1)
    )
    return changed.rowcount == 1
