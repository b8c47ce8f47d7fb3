"""Generations of a dataset's table, and the rebuild that makes the next one.

    rebuilds      (none) ──take_over──▶ open ──take_over──▶ open, next epoch ──switch──▶ done
    generations   staging ──switch──▶ current ──switch of the next──▶ retired ──forget──▶ removed

- U20 One rebuild per dataset. Whoever takes it over raises its epoch, and every epoch has a generation number of its
  own that was never used before. The staging table is called by that number, so what a slower rebuilder still has
  under way finds no table of the name it was sent to.
- U23 The pointer is switched by the epoch that compared the tables, from the generation it compared with, while the
  dataset is fenced and no block is undecided. Else nothing is changed.
- U24 A fence and a removal that has still to delete rows exclude each other: rows that go from a table which nobody
  reads any more would still be in its successor.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, func, select, update

from floodmark.control import blocks as block_records
from floodmark.control import datasets as dataset_records
from floodmark.control import removals
from floodmark.control.blocks import BlockUndecided
from floodmark.control.database import next_event
from floodmark.control.schema import datasets, generations, rebuilds
from floodmark.errors import Retryable
from floodmark.layout import Layout


class TakenOver(Retryable):
    """Another process continues this rebuild."""


class NumberTaken(Exception):
    """The generation number was given to another rebuilder meanwhile."""


class RemovalUnderWay(Retryable):
    """Rows are being removed from the table: that comes to its end first."""


@dataclass(frozen=True, slots=True)
class Rebuild:
    """A rebuild that has not ended, as one epoch sees it."""

    id: str
    dataset: str
    epoch: int
    generation: int
    """The number of its staging table."""
    layout: Layout


@dataclass(frozen=True, slots=True)
class Generation:
    """One table of a dataset, past or present."""

    generation: int
    state: str
    location: str | None
    retired_at: datetime | None


def unfinished(connection: Connection, dataset: str) -> Rebuild | None:
    """The unfinished rebuild. There is at most one."""
    row = connection.execute(
        select(rebuilds).where(rebuilds.c.dataset == dataset, rebuilds.c.state == "open")
    ).one_or_none()
    if row is None:
        return None
    return Rebuild(row.id, row.dataset, row.epoch, row.generation, Layout.from_json(row.settings))


def highest(connection: Connection, dataset: str) -> int:
    """The highest generation number in the records."""
    recorded = connection.execute(
        select(func.coalesce(func.max(generations.c.generation), 0)).where(generations.c.dataset == dataset)
    ).scalar_one()
    return max(int(recorded), dataset_records.get(connection, dataset).generation)


def everyone(connection: Connection, dataset: str) -> list[Generation]:
    found = connection.execute(
        select(generations).where(generations.c.dataset == dataset).order_by(generations.c.generation)
    )
    return [
        Generation(
            row.generation,
            row.state,
            row.location,
            None if row.retired_at is None else datetime.fromisoformat(row.retired_at),
        )
        for row in found
    ]


def take_over(
    connection: Connection, *, id: str, dataset: str, generation: int, layout: Layout, now: datetime
) -> Rebuild:
    """U20: begin a rebuild, or raise the epoch of the open one; its layout is kept."""
    if generation <= highest(connection, dataset):
        raise NumberTaken
    found = unfinished(connection, dataset)
    if found is None:
        # A purge that is half done would be undone by the copy.
        check_no_removal(connection, dataset, states=("planned", "removed"))
        found = Rebuild(id, dataset, 1, generation, layout)
        connection.execute(
            rebuilds.insert().values(
                id=id,
                dataset=dataset,
                state="open",
                epoch=1,
                settings=layout.to_json(),
                generation=generation,
                started_at=now.isoformat(),
            )
        )
    else:
        found = Rebuild(found.id, dataset, found.epoch + 1, generation, found.layout)
        connection.execute(
            update(rebuilds).where(rebuilds.c.id == found.id).values(epoch=found.epoch, generation=generation)
        )
    connection.execute(generations.insert().values(dataset=dataset, generation=generation, state="staging"))
    return found


def check_no_removal(connection: Connection, dataset: str, *, states: Collection[str]) -> None:
    """`RemovalUnderWay` if a removal is unfinished, in one of these states."""
    found = removals.unfinished(connection, dataset)
    if found is not None and found.state in states:
        raise RemovalUnderWay(f"Rows of {dataset!r} are being removed.", hint="Run it again.")


def is_staging(connection: Connection, dataset: str, generation: int) -> bool:
    """Whether the open rebuild of a dataset has this number."""
    found = unfinished(connection, dataset)
    return found is not None and found.generation == generation


def check_mine(connection: Connection, rebuild: Rebuild) -> None:
    """`TakenOver` if a later epoch has begun, or the rebuild has ended."""
    found = unfinished(connection, rebuild.dataset)
    if found is None or (found.id, found.epoch) != (rebuild.id, rebuild.epoch):
        raise TakenOver(
            f"The rebuild of {rebuild.dataset!r} was taken over by another process.",
            hint="Nothing more to do in this process.",
        )


def fence(connection: Connection, rebuild: Rebuild) -> None:
    """Prevent new flushes. The table is renamed next: only that stops a flush in progress."""
    check_mine(connection, rebuild)
    check_no_removal(connection, rebuild.dataset, states=("planned",))  # U24
    connection.execute(update(datasets).where(datasets.c.name == rebuild.dataset).values(fenced=True))


def switch(
    connection: Connection,
    rebuild: Rebuild,
    *,
    old: int,
    synced_snapshot: int | None,
    locations: tuple[str | None, str | None],
    now: datetime,
) -> None:
    """U23: make the staging table the dataset's, and the old one retired. `locations`: the old one's, the new one's."""
    check_mine(connection, rebuild)
    if block_records.undecided(connection, rebuild.dataset) is not None:
        raise BlockUndecided(f"A block of {rebuild.dataset!r} is undecided.", hint="Run it again.")
    changed = connection.execute(
        update(datasets)
        .where(datasets.c.name == rebuild.dataset, datasets.c.generation == old, datasets.c.fenced)
        .values(
            generation=rebuild.generation,
            fenced=False,
            layout=rebuild.layout.to_json(),
            synced_snapshot=synced_snapshot,
            changed=next_event(connection),  # U17: what was counted in the old table is counted again
        )
    )
    if changed.rowcount != 1:
        raise TakenOver(f"Dataset {rebuild.dataset!r} is no longer at generation {old}.", hint="Run it again.")
    here = generations.c.dataset == rebuild.dataset
    if connection.execute(select(generations.c.state).where(here, generations.c.generation == old)).first() is None:
        connection.execute(generations.insert().values(dataset=rebuild.dataset, generation=old, state="current"))
    # The staging numbers of earlier epochs, too: a slow rebuilder may have made a table of such a name.
    connection.execute(
        update(generations)
        .where(here, generations.c.state.in_(("current", "staging")), generations.c.generation != rebuild.generation)
        .values(state="retired", retired_at=now.isoformat())
    )
    connection.execute(update(generations).where(here, generations.c.generation == old).values(location=locations[0]))
    connection.execute(
        update(generations)
        .where(here, generations.c.generation == rebuild.generation)
        .values(state="current", location=locations[1])
    )
    connection.execute(update(rebuilds).where(rebuilds.c.id == rebuild.id).values(state="done"))


def remember_retired(connection: Connection, dataset: str, generation: int, *, now: datetime) -> None:
    """Record an existing table that is not in rebuilt records."""
    connection.execute(
        generations.insert().values(dataset=dataset, generation=generation, state="retired", retired_at=now.isoformat())
    )


def forget(connection: Connection, dataset: str, generation: int) -> None:
    """Record that a retired generation's table was removed."""
    connection.execute(
        update(generations)
        .where(
            generations.c.dataset == dataset,
            generations.c.generation == generation,
            generations.c.state == "retired",
        )
        .values(state="removed")
    )


def retired_tables(connection: Connection, dataset: str) -> list[str]:
    """The names under which tables of retired generations may still be."""
    declared = dataset_records.get(connection, dataset)
    found = [
        declared.of_generation(item.generation) for item in everyone(connection, dataset) if item.state == "retired"
    ]
    return [name for one in found for name in (one.table_name, one.fenced_name)]
