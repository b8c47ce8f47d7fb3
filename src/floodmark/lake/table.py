"""What the system needs from a lake: the contract that every implementation keeps.

A lake holds tables of stamped rows. It promises:

- `load` returns the metadata of one instant, never a cached or a mixed one.
- `append` is a compare-and-swap: it lands only if nothing was appended since the request's base, and at most once.
  What it raises is no verdict: an append that failed may have landed, or may still land.
- Rewriting files (compaction) is not an append and never makes one fail.
- `sync` returns only when everything reachable from the state has reached the disk and is really there.
- A `row_filter` is one SQL condition over user columns; rows of which it is not true are left out. `lake.filters` says
  what it may not contain.

The contract is narrow: what can be built on it once, for every lake, is in `lake.queries` (questions about rows),
`lake.inventory` (questions about files) and beside its callers. `testing.memory.MemoryLake` and `spark.SparkLake` pass
one contract suite.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from floodmark.commit.protocol import Append, Barrier, Base, Snapshot, TableState
from floodmark.lake.inventory import Orphan, TableFiles
from floodmark.lake.queries import Checksum, Group
from floodmark.lake.stored import FileKeys
from floodmark.lake.targets import Target, TargetName
from floodmark.layout import Layout
from floodmark.removal import Selection
from floodmark.schema import PartitionValues, Schema
from floodmark.sequence import SequenceRange, Tally
from floodmark.settlement import Resettled, Resettling

if TYPE_CHECKING:
    import pyarrow as pa

Work = Callable[[SequenceRange, "pa.Table"], dict[str, Any]]
"""What a task does with the rows of one range. What it returns is small, and survives JSON.

It runs in another process, perhaps on another machine, perhaps more than once for one range: it must carry all it
needs, be picklable, and doing it again must change nothing.
"""


PLAIN = Layout()
NO_COLUMNS = Schema()


class AppendRefused(Exception):
    """What a lake says when its compare-and-swap fails. To a client it is just another error: the table decides."""


@dataclass(frozen=True, slots=True)
class Copy:
    """A request to copy the rows of a range from a snapshot of one table to the end of another.

    U21: it is a compare-and-swap append, like a block's. All columns are copied, system columns included. The range
    must have rows.
    """

    source: str
    snapshot: int
    table: str
    """The one that rows are copied to."""
    base: Base
    """That table as it was when the copy was prepared."""
    within: SequenceRange
    through: int
    """The highest number that the table knows of with this copy."""
    schema: Schema
    origin: Lake | None = None
    """The lake that has the source, if it is another one: tables move from it."""


class Lake(Protocol):
    """Tables of stamped rows."""

    @property
    def jobs(self) -> int:
        """How many actions this lake has started on its engine so far: none, where there is no engine."""
        ...

    @property
    def tasks_here(self) -> bool:
        """Whether the work of `each_range` can write to this machine's disk: not where it is done by other machines."""
        ...

    def prepare(self) -> None:
        """Rows will be appended soon: what takes long to start, starts now. Returns at once, and never fails."""
        ...

    # ── tables ───────────────────────────────────────────────────────────────────────────────────────────────────

    def load(self, table: str) -> TableState | None:
        """The table's metadata from one load, or None if there is no such table. `TablesMoved` if it is elsewhere."""
        ...

    def table_names(self) -> list[str]:
        """The names of all tables."""
        ...

    def ensure(
        self,
        table: str,
        schema: Schema = NO_COLUMNS,
        *,
        layout: Layout = PLAIN,
        create: bool = True,
        declaration: str | None = None,
        max_seq: int = 0,
        drop: Collection[str] = (),
    ) -> None:
        """Create the table, or add and widen columns, so that rows of the schema fit. Adds no snapshot.

        The layout is for a table that is created here. Without `create`, a table that is not there stays so. Columns
        to `drop` go first, those that are there: no row has a value in them (U42). The table keeps the declaration, if
        one is given. It also remembers that numbers up to `max_seq` were used, whatever rows go; this never goes back,
        and is `Retryable` where there is no table to remember it.
        """
        ...

    def rename(self, table: str, to: str) -> bool:
        """Give a table another name; it keeps its identity and its files. False if there is no such table.

        A name that is taken, `Retryable`: nothing was changed.
        """
        ...

    def drop(self, table: str) -> None:
        """Remove a table with all its files, if it is there."""
        ...

    def target(self, name: TargetName) -> Target:
        """A foreign table, to which this lake's rows are copied. `Permanent` if its catalog is not known."""
        ...

    # ── commits ──────────────────────────────────────────────────────────────────────────────────────────────────

    def append(self, request: Append | Copy | Barrier) -> bool:
        """Append to a table: a block's rows, stamped; rows of another table (U21); or nothing, so that no append on
        this base can land any more (U34). True: it landed. False: nothing was left to append, and nothing was sent.

        Raises `Retryable` where the base or the rows could not be read (nothing was sent), and anything at all where
        the outcome must be read from the table.
        """
        ...

    def resettle(self, request: Resettling) -> Resettled:
        """Run a settle function over committed rows; nothing changes until the result is committed.

        Without a function that commit writes some rows unchanged: it lands under the same condition, and no other
        settlement that was prepared on an earlier state can land after it. Then the snapshot must have rows.
        """
        ...

    def remove(self, table: str, *, selection: Selection, schema: Schema, partition_by: tuple[str, ...]) -> None:
        """Delete the rows that a selection names. Doing it again is harmless. What it raises is no verdict.

        No current data file holds them afterwards, if `ensure` has raised the table's `max_seq` before. Not an append:
        a flush in progress lands beside it, or is refused and begins again.
        """
        ...

    def rewrite(
        self, table: str, *, within: SequenceRange | None = None, file_bytes: int = 0, one_file: bool = False
    ) -> None:
        """Join the files of a range that lies in one bucket, in order of their numbers; deletes are applied. Without
        a range, join the lists of files.

        `one_file` says that all of it fits into one file: that is cheaper.

        Every row keeps its number. Not an append: it never makes one fail. It may be done to several buckets at once.
        """
        ...

    def expire(self, table: str, *, keep_snapshots: int = 1) -> int:
        """Forget all but the newest snapshots, with the files that only they refer to; how many were removed.

        The table itself remembers how far numbers were given out.
        """
        ...

    # ── rows ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def scan(
        self,
        table: str,
        *,
        snapshot: int,
        within: SequenceRange,
        columns: tuple[str, ...] | None = None,
        partition_values: PartitionValues | None = None,
        row_filter: str | None = None,
        rows_max: int | None = None,
    ) -> Iterator[pa.Table]:
        """Arrow tables of the range's rows in sequence order, the first so many, with `_ingest_seq`.

        A frozenset among the values stands for any of its own. A column that the snapshot does not have is null. The
        column `queries.FILE` is the location of a row's data file.
        """
        ...

    def aggregate(
        self,
        table: str,
        *,
        snapshot: int,
        selection: Selection,
        schema: Schema | None = None,
        by: tuple[str, ...] = (),
        partition_values: PartitionValues | None = None,
        cuts: Sequence[int] = (),
        width: int | None = None,
        checksum: Checksum = Checksum.CONTENT,
    ) -> list[Group]:
        """Count the rows that a selection names: apart for the values of some columns, between every two of the rising
        `cuts`, or by buckets of `width` numbers. In no order; groups without rows are not among them.

        `by` are the partition's columns where the selection spares partitions. The schema says which columns there
        are beside those of the table.
        """
        ...

    def each_range(
        self,
        table: str,
        *,
        snapshot: int,
        ranges: Sequence[SequenceRange],
        columns: tuple[str, ...],
        schema: Schema,
        work: Work,
        partition_values: PartitionValues | None = None,
        row_filter: str | None = None,
    ) -> Iterator[tuple[SequenceRange, Tally, dict[str, Any]]]:
        """Do `work` on the rows of each range, in tasks side by side; each range with its tally and what `work` said.

        The ranges rise and do not overlap. `work` sees the named columns in that order, in the canonical types of the
        schema, rows in sequence order; a column that the table does not have is null. A range without rows has an
        empty tally and `{}`, and `work` is not called for it.

        All the work is done before the first result comes. Where `work` raises, its task leaves the rest of its ranges
        alone; the other tasks continue. First come the results of all ranges that were done, in order, and then the
        error of the lowest range that failed is raised, as it was raised in the task. A range that came neither
        with a result nor with that error may have been done, failed or never begun.
        """
        ...

    def stored_rows(self, table: str, *, snapshot: int, keys: FileKeys) -> dict[Path, bytes]:
        """For each of the files a bit for each row, least bit first, set where its key is committed in the snapshot.

        A file without such rows may be left out. So may a row that only a fallback identity would find, and one
        without an event time where there is one: what is set is certain, what is not set is for flush to decide.
        """
        ...

    def matching(self, rows: pa.Table, condition: str, *, schema: Schema) -> list[int]:
        """The places of the rows of which a condition is true; a column that the rows do not have is null.

        `Permanent` for a condition that cannot be used on the schema's columns, also where there are no rows.
        """
        ...

    # ── files ────────────────────────────────────────────────────────────────────────────────────────────────────

    def files(self, state: TableState, *, check: bool = False) -> TableFiles:
        """The files of the head. Reads metadata only.

        What cannot be read is `FilesMissing`; with `check` it is among the missing ones, and every file is checked.
        """
        ...

    def sync(self, state: TableState, *, since: int | None) -> None:
        """Make every file durable that the state reaches and snapshot `since` did not; else `FilesMissing`."""
        ...

    def rollback(self, table: str, *, durable: int | None, droppable: Callable[[Snapshot], bool]) -> bool:
        """Take changes back whose files were lost: to the newest state of the table of which every file is there.

        What the snapshot `durable` (None: the beginning) reaches is known to be there. True if there is such a state,
        every commit after it is `droppable`, and `durable` is still in its history; otherwise nothing changes. It
        is guarded against others who do the same. A change whose own record is lost cannot be checked; the rest of
        the history is enough then.
        """
        ...

    def numbers_bound(self, table: str, *, width: int) -> int | None:
        """Of a table whose metadata cannot be read: a number that none of its rows is above, as its place shows it.
        `width` is how many numbers share files there.

        None if nothing there says.
        """
        ...

    def orphans(self, table: str, *, before: datetime, remove: bool = False) -> list[Orphan]:
        """The files in the table's place that no snapshot refers to and that were last written before a moment.

        With `remove` they are deleted. One that was removed already is no error.
        """
        ...
