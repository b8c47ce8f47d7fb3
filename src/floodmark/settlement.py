"""Committed rows, settled again by a dataset's settle function. Pure.

Terms. A row is *changed* if the function gives it other values, *dropped* if it leaves it out. A changed row whose new
identity another row has *collapses* with it: of the two the one with the lower number stays, with its new values.

- U18 Like a block, a settlement is decided by the table: `verdict` reads its history. What an error or a crash left
  behind has landed, or can never land, or is made unable to (a settlement of nothing) by the process that finds it.
- B9 A row that is being delivered is not changed, nor is a row that would become its duplicate: the two
  are settled together, later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from floodmark.commit.protocol import Snapshot, TableState, Verdict
from floodmark.removal import Spared
from floodmark.schema import Schema

CHANGED_MAX = 50_000
"""How many rows are changed or dropped at once: the rest waits for the next time."""


@dataclass(frozen=True, slots=True)
class Resettling:
    """The rows of a snapshot up to the horizon, and the function that settles them."""

    table: str
    snapshot: int
    horizon: int
    schema: Schema
    settle: str | None
    """None: no function runs, and some rows are committed unchanged."""
    identity: tuple[tuple[str, ...], ...] = ()
    event_time: str | None = None
    partition_by: tuple[str, ...] = ()
    changed_max: int = CHANGED_MAX
    spared: tuple[Spared, ...] = ()
    """B9: what is not changed, whatever the function returns."""
    any_time: bool = False
    by_content: bool = False

    @property
    def key_time(self) -> str | None:
        """The column that is compared together with the identity, if one is."""
        return None if self.any_time else self.event_time


def _nothing(_operation: str | None) -> None:
    """There is nothing to commit."""


@dataclass(frozen=True, slots=True)
class Resettled:
    """What the function says, worked out and held until it is committed."""

    changed: tuple[int, ...] = ()
    """The numbers of rows that get other values and stay."""
    collapsed: tuple[int, ...] = ()
    """The numbers of rows that are another one."""
    dropped: tuple[int, ...] = ()
    waiting: int = 0
    """Rows that would be changed or dropped, and are left for the next time (B9)."""
    problem: str | None = None
    """Why its answer does not count."""
    commit: Callable[[str | None], None] = field(default=_nothing, compare=False)
    """One commit with all of it, under the name of an operation, which lands only if nothing was appended or settled
    since the snapshot. What it raises is no verdict."""

    @property
    def gone(self) -> tuple[int, ...]:
        return tuple(sorted({*self.collapsed, *self.dropped}))

    @property
    def touched(self) -> tuple[int, ...]:
        return tuple(sorted({*self.changed, *self.gone}))


ROUNDS_MAX = 10
"""How often rows are left for later because of rows that were left for later: past that, all of them are."""


@dataclass(frozen=True, slots=True)
class Collapsed:
    """What becomes of changed rows, once rows of one identity have become one."""

    changed: frozenset[int]
    gone: tuple[int, ...]
    """B8: the numbers of rows that are another one with a lower number."""
    later: frozenset[int]
    """B9: the numbers of rows that would become what a row is that stays: none of them is changed, either."""


Alike = Callable[[frozenset[int]], Iterable[Sequence[tuple[int, bool]]]]
"""For the rows that change: the groups of rows that are one row then, each with its number, and whether it stays as it
is whatever the function says."""


def collapse(changed: Iterable[int], alike: Alike) -> Collapsed:
    """Which of the rows that get other values do change, and which rows go because of that."""
    own, later = frozenset(changed), frozenset[int]()
    for _ in range(ROUNDS_MAX):
        if not own:
            break
        groups = [sorted(group) for group in alike(own)]
        more = {
            seq
            for group in groups
            if any(stays or seq in later for seq, stays in group)
            for seq, _ in group
            if seq in own
        }
        if not more:
            return Collapsed(own, tuple(sorted(seq for group in groups for seq in all_but_lowest(group))), later)
        own, later = own - more, later | more
    return Collapsed(frozenset(), (), own | later)


def all_but_lowest(group: Sequence[tuple[int, bool]]) -> list[int]:
    """B8: of rows that become one row, sorted by number, those that go."""
    return [seq for seq, _ in group[1:]]


def verdict(
    operation: str, *, table_uuid: str | None, base: int | None, state: TableState | None
) -> tuple[Verdict, Snapshot | None]:
    """U18: what became of a settlement, from one load of the table's metadata, and the commit if it has landed.

    `OPEN` means that since the base nothing was committed that prevents it: it may still land.
    """
    if state is None:
        return Verdict.VOID, None
    after_base = state.since(base)
    landed = next((one for one in after_base or state.lineage if one.change == operation), None)
    if landed is not None:
        return Verdict.LANDED, landed
    free = (
        state.uuid == table_uuid
        and after_base is not None
        and not any(_stands_in_the_way(snapshot) for snapshot in after_base)
    )
    return (Verdict.OPEN if free else Verdict.VOID), None


def _stands_in_the_way(snapshot: Snapshot) -> bool:
    """Rows that were appended do, and every other settlement. An append without rows does not conflict with it."""
    return snapshot.settled or (snapshot.operation == "append" and snapshot.barrier is None)
