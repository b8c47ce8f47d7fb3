"""Tables of several generations: where a dataset's table is at this moment.

- U22 A table is fenced in the records first, and then by its name. Only the second stops an append that is pending.
  So a read that finds no table under one name tries the other, and then reads the records, before it concludes
  that there is none.
"""

from __future__ import annotations

from typing import Protocol

from floodmark.commit.protocol import Base, TableState
from floodmark.control import datasets
from floodmark.control.database import Database
from floodmark.control.datasets import Dataset
from floodmark.errors import Retryable

LOOKS_MAX = 5
"""How often a table is searched for while its records change."""


class Loading(Protocol):
    """The part of a lake that looking needs."""

    def load(self, table: str) -> TableState | None: ...


def find_table(database: Database, lake: Loading, declared: Dataset) -> tuple[Dataset, TableState | None]:
    """The table of a dataset, under whichever name it has now, and the dataset as it was declared at that look.

    None only if there is none: nothing was ever committed.
    """
    dataset = declared.name
    for _ in range(LOOKS_MAX):
        # Fenced, the other name comes first: a flush that was late may have made an empty table under the old one.
        fenced, plain = declared.fenced_name, declared.table_name
        for name in (fenced, plain, fenced) if declared.fenced else (plain,):
            state = lake.load(name)
            if state is not None:
                return declared, state
        now = database.read(lambda c: datasets.get(c, dataset))  # U22
        if (now.generation, now.fenced) == (declared.generation, declared.fenced) and not now.fenced:
            return now, None
        declared = now
    raise being_rebuilt(dataset)


def table_of(database: Database, lake: Loading, declared: Dataset, base: Base) -> TableState | None:
    """The table that a block was reserved on, under whichever name it has now. It is known by its identity.

    One of the same name and another identity, or None, only if the block's own table is missing.
    """
    own = declared.of_generation(base.generation)
    other: TableState | None = None
    for name in (own.table_name, own.fenced_name):  # in this order: a table moves from the first to the second
        state = lake.load(name)
        if state is not None and state.uuid == base.table_uuid:
            return state
        other = other or state
    now = database.read(lambda c: datasets.get(c, declared.name))  # U22
    if now.fenced or now.generation != base.generation:
        raise being_rebuilt(declared.name)
    return other


def is_fenced(declared: Dataset, base: Base, state: TableState | None) -> bool:
    """U22: whether nothing can be appended any more to the table that a block was reserved on."""
    return state is not None and state.name == declared.of_generation(base.generation).fenced_name


def being_rebuilt(dataset: str) -> Retryable:
    return Retryable(
        f"Dataset {dataset!r} is being rebuilt, and its table will be replaced; nothing is lost.",
        hint=f"Try again later. If the rebuild was interrupted, run `floodmark rebuild {dataset}`: it continues.",
    )
