"""What the system needs from a lake: the contract that every implementation keeps.

A lake holds tables of stamped rows. It promises:

- `load` returns the metadata of one instant, never a cached or a mixed one.
- `append` is a compare-and-swap: it lands only if nothing was appended since the request's base, and at most once.
  What it raises is no verdict: an append that failed may have landed, or may still land.
- Rewriting files (compaction) is not an append and never makes one fail.
- `sync` returns only when everything reachable from the state has reached the disk and is really there.
- A `row_filter` is one SQL condition over user columns; rows of which it is not true are left out. `lake.filters` says
  what it may not contain.

`memory.MemoryLake` and `spark.SparkLake` pass one contract suite.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from floodmark.commit.protocol import Append, Barrier, PartitionStats, Snapshot, TableState
from floodmark.compaction import Bucket
from floodmark.lake.generations import Generations
from floodmark.lake.inspection import FileReport, StoredRow
from floodmark.lake.maintenance import Orphan
from floodmark.lake.stored import FileKeys
from floodmark.lake.targets import Target, TargetName
from floodmark.layout import Layout
from floodmark.removal import Selection
from floodmark.schema import Schema
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


class AppendRefused(Exception):
    """What a lake says when its compare-and-swap fails. To a client it is just another error: the table decides."""


class Lake(Generations, Protocol):
    """Tables of stamped rows."""

    @property
    def jobs(self) -> int:
        """How many actions this lake has started on its engine so far: none, where there is no engine."""
        ...

    def load(self, table: str) -> TableState | None:
        """The table's metadata from one load, or None if there is no such table."""
        ...

    def table_names(self) -> list[str]:
        """The names of all tables."""
        ...

    def ensure(
        self,
        table: str,
        schema: Schema,
        *,
        layout: Layout = PLAIN,
        create: bool = True,
        declaration: str | None = None,
    ) -> None:
        """Create the table, or add and widen columns, so that rows of the schema fit. Adds no snapshot.

        The layout is for a table that is created here. Without `create`, a table that is not there stays so. The
        table keeps the declaration, if one is given.
        """
        ...

    def append(self, request: Append) -> bool:
        """Stamp and append. True: it landed. False: nothing was left to append, and nothing was sent.

        Raises `Retryable` where the base or the segments could not be read (nothing was sent), and anything at
        all where the outcome must be read from the table.
        """
        ...

    def has_rows(self, table: str, *, snapshot: int, within: SequenceRange) -> bool:
        """Whether a row with a number in the range is visible in a snapshot."""
        ...

    def stats(
        self,
        table: str,
        *,
        snapshot: int,
        within: SequenceRange,
        partition_by: tuple[str, ...],
        partition_values: dict[str, Any] | None = None,
        row_filter: str | None = None,
    ) -> list[PartitionStats]:
        """Rows and checksums of a range, partition by partition, counted in a snapshot."""
        ...

    def highest_seq(self, state: TableState) -> int:
        """A number that no row visible in the state exceeds, as tight as the metadata allows."""
        ...

    def segments_above(self, table: str, *, snapshot: int, after: int) -> set[int]:
        """The ids of the segments that brought rows above a sequence number."""
        ...

    def segment_rows(self, table: str, *, snapshot: int, within: SequenceRange) -> dict[int, int]:
        """How many rows of a range each segment brought; segments without any are not named."""
        ...

    def barrier(self, request: Barrier) -> None:
        """Append nothing, by the same compare-and-swap: no append on this base can land any more (U34).

        What it raises is no verdict.
        """
        ...

    def numbers_bound(self, table: str, *, width: int) -> int | None:
        """Of a table whose metadata cannot be read: a number that none of its rows is above, as its place shows it.
        `width` is how many numbers share files there.

        None if nothing there says.
        """
        ...

    def sync(self, state: TableState, *, since: int | None) -> None:
        """Make every file durable that the state reaches and snapshot `since` did not; else `FilesMissing`."""
        ...

    def rollback(self, table: str, *, durable: int | None, droppable: Callable[[Snapshot], bool]) -> bool:
        """Take changes back whose files were lost: to the newest state of the table of which every file is there.

        What the snapshot `durable` (None: the beginning) reaches is known to be there. True if there is such a state,
        every commit behind it is `droppable`, and `durable` is still in its history; otherwise nothing changes. It
        is guarded against others who do the same. A change whose own record is lost cannot be asked; what is left of
        the history tells enough then.
        """
        ...

    def resettle(self, request: Resettling) -> Resettled:
        """Ask a settle function about committed rows; nothing is changed until what it returns is committed."""
        ...

    def supersede(self, table: str, *, snapshot: int, horizon: int, schema: Schema) -> None:
        """Commit some rows as they are, so that no settlement can land any more that was prepared on an earlier state.

        Lands only if nothing was appended or settled since the snapshot, which has rows. What it raises is no verdict.
        """
        ...

    def stored_rows(self, table: str, *, snapshot: int, keys: FileKeys) -> dict[Path, bytes]:
        """For each of the files a bit for each row, least bit first, set where its key is committed in the snapshot.

        A file without such rows may be left out. So may a row that only a fallback identity would find, and one
        without an event time where there is one: what is set is certain, what is not set is for flush to decide.
        """
        ...

    def scan(
        self,
        table: str,
        *,
        snapshot: int,
        within: SequenceRange,
        columns: tuple[str, ...] | None = None,
        partition_values: dict[str, Any] | None = None,
        row_filter: str | None = None,
    ) -> Iterator[Any]:
        """Arrow tables of the range's rows in sequence order, with `_ingest_seq`."""
        ...

    def check_filter(self, table: str, expression: str) -> None:
        """`Permanent` for a filter that cannot be used on the table's columns. A table that is not there has none."""
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
        partition_values: dict[str, Any] | None = None,
        row_filter: str | None = None,
    ) -> Iterator[tuple[SequenceRange, Tally, dict[str, Any]]]:
        """Do `work` on the rows of each range, in tasks side by side; each range with its tally and what `work` said.

        The ranges rise and do not overlap. `work` sees the named columns in that order, in the canonical types of the
        schema, rows in sequence order; a column that the table does not have is null. A range without rows has an
        empty tally and `{}`, and `work` is not called for it.

        All the work is done before the first result comes. Where `work` raises, its task leaves the rest of its ranges
        alone; the other tasks go on. First come the results of all ranges that were done, in order, and then the
        error of the lowest range that failed is raised, as it was raised in the task. A range that came neither
        with a result nor with that error may have been done, failed or never begun.
        """
        ...

    def find_rows(
        self,
        table: str,
        *,
        snapshot: int,
        partition_values: Mapping[str, Any],
        columns: tuple[str, ...] = (),
        rows_max: int = 100,
    ) -> list[StoredRow]:
        """The rows with these column values, in sequence order, at most so many; system columns may be named too.

        A frozenset stands for any of its values.

        It costs what the files cost that can hold such rows: name columns whose values the files' bounds tell apart.
        """
        ...

    def inspect_files(self, state: TableState) -> FileReport:
        """Look at every file that the head of the state refers to. Reads metadata only."""
        ...

    # ── what upkeep needs ────────────────────────────────────────────────────────────────────────────────────────

    def selected_stats(
        self,
        table: str,
        *,
        snapshot: int,
        selection: Selection,
        schema: Schema,
        partition_by: tuple[str, ...],
        cuts: Sequence[int] = (),
    ) -> list[tuple[SequenceRange, PartitionStats]]:
        """The rows that a selection names, counted for each partition and between every two of the rising `cuts`."""
        ...

    def remove(self, table: str, *, selection: Selection, schema: Schema, partition_by: tuple[str, ...]) -> None:
        """Delete the rows that a selection names, so that no current data file holds them. Doing it again is harmless.

        The table's `max_seq` must have been raised before. Not an append: a flush that is under way lands beside it,
        or is refused and begins again.
        """
        ...

    def raise_max_seq(self, table: str, seq: int) -> None:
        """Let the table itself remember that numbers up to this one were used, whatever rows go."""
        ...

    def expire(self, table: str, *, keep_snapshots: int = 1, since: int | None = None) -> int:
        """Forget all but the newest snapshots, with the files that only they reach; how many went.

        What came after `since` stays. The table itself remembers how far numbers were given out.
        """
        ...

    def buckets(self, state: TableState) -> list[Bucket]:
        """The files of the head, bucket by bucket. Reads metadata only."""
        ...

    def rewrite(self, table: str, *, within: SequenceRange, file_bytes: int, one_file: bool = False) -> None:
        """Join the files of a range that lies in one bucket, in order of their numbers; deletes are applied.

        `one_file` says that all of it fits into one file: that is cheaper.

        Every row keeps its number. Not an append: it never makes one fail. It may be done to several buckets at once.
        """
        ...

    def manifests(self, state: TableState) -> int:
        """How many small lists of files a reader of the head has to go through: those that joining makes fewer."""
        ...

    def rewrite_manifests(self, table: str) -> None:
        """Join the lists of files."""
        ...

    def orphans(self, table: str, *, before: datetime) -> list[Orphan]:
        """The files in the table's place that no snapshot refers to and that were last written before a moment."""
        ...

    def remove_orphans(self, orphans: Sequence[Orphan]) -> None:
        """Delete such files. One that is gone already is no error."""
        ...

    def stored_bytes(self, table: str) -> int:
        """How much room the table's files take, those of old snapshots among them."""
        ...

    def matching(self, rows: pa.Table, condition: str, *, schema: Schema) -> list[int]:
        """The places of the rows of which a condition is true; a column that the rows do not have is null."""
        ...

    def target(self, name: TargetName) -> Target:
        """Somebody else's table, to which this lake's rows are copied. `Permanent` if its catalog is not known."""
        ...
