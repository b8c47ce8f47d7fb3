"""Sources that are loaded step by step: how far each got.

The position moves in the transaction that registers the step's segment, and only from the ordinal the step
was prepared for: a step that is repeated, or done by two at once, is registered once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Connection, select, update

from floodmark.control.schema import Record, sources
from floodmark.errors import Permanent


@dataclass(frozen=True, slots=True)
class Source:
    """A source of one dataset, and where its next step begins."""

    id: str
    dataset: str
    position: str
    next_ordinal: int


def begin(connection: Connection, *, id: str, dataset: str, position: str) -> Source:
    """The recorded source; a new one starts at `position`."""
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
    return _source(row)


def advance(connection: Connection, source: Source, *, position: str) -> bool:
    """Move the position after a step; false if another process has done that step."""
    changed = connection.execute(
        update(sources)
        .where(sources.c.id == source.id, sources.c.next_ordinal == source.next_ordinal)
        .values(position=position, next_ordinal=source.next_ordinal + 1)
    )
    return changed.rowcount == 1


def of_dataset(connection: Connection, dataset: str) -> dict[str, Source]:
    """All sources of a dataset, by id."""
    return {row.id: _source(row) for row in connection.execute(select(sources).where(sources.c.dataset == dataset))}


def _found(connection: Connection, ids: list[str]) -> dict[str, Source]:
    result: dict[str, Source] = {}
    for start in range(0, len(ids), 500):
        query = select(sources).where(sources.c.id.in_(ids[start : start + 500]))
        result |= {row.id: _source(row) for row in connection.execute(query)}
    return result


def _source(row: Record) -> Source:
    return Source(row.id, row.dataset, row.position, row.next_ordinal)


def advance_all(connection: Connection, dataset: str, moves: Mapping[str, tuple[Source | None, str]]) -> bool:
    """Move several positions behind one step, all or none; a source that is not known yet begins here.

    False, and nothing is changed, if one of them does not stand where the step was prepared for (B1).
    """
    now = _found(connection, sorted(moves))
    if any(_ordinal(now.get(id)) != _ordinal(seen) for id, (seen, _) in moves.items()):
        return False
    for id, (_, position) in moves.items():
        advance(connection, begin(connection, id=id, dataset=dataset, position=position), position=position)
    return True


def _ordinal(source: Source | None) -> int | None:
    return None if source is None else source.next_ordinal
