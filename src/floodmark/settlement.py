"""Committed rows, looked at once more by a dataset's settle function. Pure.

Terms. A row is *changed* if the function gives it other values, *dropped* if it leaves it out. A changed row whose new
identity another row has *collapses* with it: of the two the one with the lower number stays, with its new values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from floodmark.schema import Schema

CHANGED_MAX = 50_000
"""How many rows are changed or dropped at once: the rest waits for the next time."""


@dataclass(frozen=True, slots=True)
class Resettling:
    """The rows of a snapshot up to the horizon, and the function that is asked about them."""

    table: str
    snapshot: int
    horizon: int
    schema: Schema
    settle: str
    identity: tuple[tuple[str, ...], ...] = ()
    event_time: str | None = None
    partition_by: tuple[str, ...] = ()
    changed_max: int = CHANGED_MAX
    any_time: bool = False
    by_content: bool = False

    @property
    def key_time(self) -> str | None:
        """The column that is compared together with the identity, if one is."""
        return None if self.any_time else self.event_time


def _nothing() -> None:
    """There is nothing to commit."""


@dataclass(frozen=True, slots=True)
class Resettled:
    """What the function says, worked out and held until it is committed."""

    changed: int = 0
    """Rows that get other values."""
    collapsed: tuple[int, ...] = ()
    """The numbers of rows that are another one."""
    dropped: tuple[int, ...] = ()
    problem: str | None = None
    """Why its answer does not count."""
    commit: Callable[[], None] = field(default=_nothing, compare=False)
    """One commit with all of it, which lands only if nothing was appended since the snapshot."""

    @property
    def gone(self) -> tuple[int, ...]:
        return tuple(sorted({*self.collapsed, *self.dropped}))
