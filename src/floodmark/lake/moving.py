"""Two lakes as one, while the tables of a store move from the old one to the new one.

A name belongs to one table: in the new lake, if it is there, else in the old one. New tables are made in the new lake.
So a rebuild, which copies a dataset into a table of a new name, moves it.

- U43 Before the new lake has a table, the old lake has a mark of the same name. A process that still uses the old lake
  finds the mark where it looks for the dataset's table, and fails. Without it, it would create a table there, and
  commit rows that no other process sees.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from floodmark import faults
from floodmark.commit.protocol import Append, Barrier, TableState
from floodmark.errors import FilesMissing, Permanent, Retryable
from floodmark.lake.table import Copy, Lake

MARK = "moved"
"""The declaration of a table that stands for one in another lake."""


class TablesMoved(Permanent):
    """The tables of the store are in another lake than the settings of this process say."""


def unmoved(state: TableState | None) -> TableState | None:
    """The state of a table; `TablesMoved` for a mark (U43)."""
    if state is not None and state.declaration == MARK:
        raise TablesMoved(
            f"The table {state.name!r} was moved to another lake, or is being moved there.",
            hint="Captured rows are safe. Run `floodmark move` again if it was interrupted, then restart this process.",
        )
    return state


@dataclass
class MovingLake:
    """The tables of two lakes. What is not here is asked of the lake that has the table: see `__getattr__`."""

    old: Lake
    new: Lake

    @property
    def jobs(self) -> int:
        return self.old.jobs + self.new.jobs

    def prepare(self) -> None:
        self.new.prepare()

    def load(self, table: str) -> TableState | None:
        return self.moved(table) or _loaded(self.old, table)

    def moved(self, table: str) -> TableState | None:
        """A table of the new lake. A mark there is from when the tables left it, and stands for one in the old lake."""
        return _loaded(self.new, table)

    def table_names(self) -> list[str]:
        return sorted({*self.old.table_names(), *self.new.table_names()})

    def ensure(self, table: str, *given: Any, create: bool = True, **more: Any) -> None:
        if create and self.load(table) is None:
            self._mark(table)
            self.new.ensure(table, *given, create=True, **more)
        else:
            self._home(table).ensure(table, *given, create=create, **more)

    def rename(self, table: str, to: str) -> bool:
        if self._home(table) is self.new:
            self._mark(to)
            return self.new.rename(table, to)
        return _loaded(self.old, table) is not None and self.old.rename(table, to)

    def append(self, request: Append | Copy | Barrier) -> bool:
        if isinstance(request, Copy) and self._home(request.source) is self.old:
            request = replace(request, origin=self.old)
        return self._home(request.table).append(request)

    def __getattr__(self, name: str) -> Any:
        """Everything else that a lake does is about one table, which is named first."""

        def asked(first: Any, *given: Any, **more: Any) -> Any:
            table = first if isinstance(first, str) else getattr(first, "table", None) or first.name
            return getattr(self._home(table), name)(first, *given, **more)

        return asked

    def _home(self, table: str) -> Lake:
        try:
            return self.old if self.moved(table) is None else self.new
        except FilesMissing:  # it is there, and damaged
            return self.new

    def _mark(self, table: str) -> None:
        """U43"""
        try:
            if self.old.load(table) is not None:
                raise Retryable(f"There is a table {table!r} already.", hint="Run it again.")
            self.old.ensure(table, declaration=MARK)
            self.old.load(table)
        except TablesMoved:
            faults.reach("move.marked")
            return
        raise Retryable(f"The old lake has no mark for {table!r}.", hint="Run it again.")


def _loaded(lake: Lake, table: str) -> TableState | None:
    try:
        return lake.load(table)
    except TablesMoved:
        return None
