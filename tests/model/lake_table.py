"""An Iceberg table as the models see it: its commits in order, how far back they are known, and its rows."""

from __future__ import annotations

from typing import NamedTuple

Row = tuple[int, int]
"""(number, segment)"""


class Commit(NamedTuple):
    """One snapshot. A commit's name is its place; so a head is a number of commits."""

    operation: str
    block: int = 0
    """The block whose id the snapshot carries; 0 for none."""
    after: int = 0
    through: int = 0

    @property
    def brought_rows(self) -> bool:
        """Whether an append that was prepared before it is refused."""
        return self.operation in {"append", "overwrite"}


class Base(NamedTuple):
    """What a commit was prepared against."""

    table: int
    head: int


class Table(NamedTuple):
    """One load of this value is one load of the metadata."""

    uuid: int = 1
    commits: tuple[Commit, ...] = ()
    forgotten: int = 0
    """So many of the oldest commits have expired."""
    rows: tuple[Row, ...] = ()
    max_seq: int = 0
    """The property that is raised before deletes."""
    landed_through: int = 0
    """The highest number that was ever appended. Nobody can ask for it: it is here to check the order."""

    @property
    def base(self) -> Base:
        return Base(self.uuid, len(self.commits))

    def since(self, head: int) -> tuple[Commit, ...] | None:
        """The commits after a head; None if the history no longer reaches back to it."""
        return self.commits[head:] if self.forgotten <= head <= len(self.commits) else None

    def may_append_on(self, base: Base) -> bool:
        after = self.since(base.head)
        return self.uuid == base.table and after is not None and not any(commit.brought_rows for commit in after)

    def highest(self) -> int:
        """What the allocator is told: the newest commit's mark, else the highest number that is visible."""
        known = [commit.through for commit in self.commits[self.forgotten :] if commit.through]
        visible = known[-1] if known else max((number for number, _ in self.rows), default=0)
        return max(visible, self.max_seq)

    def append(self, rows: tuple[Row, ...], *, block: int, after: int, through: int) -> Table:
        return self._replace(
            commits=(*self.commits, Commit("append", block, after, through)),
            rows=tuple(sorted(self.rows + rows)),
            landed_through=max(self.landed_through, through),
        )

    def delete(self, through: int, *, operation: str) -> Table:
        return self._replace(
            commits=(*self.commits, Commit(operation)),
            rows=tuple(row for row in self.rows if row[0] > through),
            max_seq=max(self.max_seq, through),
        )
