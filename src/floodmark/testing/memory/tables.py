"""Tables in memory: immutable files, and the snapshots that reach them.

As in a real table nothing is ever changed in place: a commit is a new list of files, and the head moves to it. Whoever
commits holds the lock, from the look at the head that it decides on.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Generic, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from floodmark.clock import Clock, SystemClock
from floodmark.commit.protocol import Snapshot
from floodmark.errors import FilesMissing, Retryable
from floodmark.lake.queries import FILE
from floodmark.layout import Layout
from floodmark.schema import SEQ, Schema
from floodmark.sequence import SequenceRange
from floodmark.testing.memory.rows import inside


@dataclass(slots=True)
class MemoryTable:
    """One table. Its files are known by their numbers."""

    uuid: str
    schema: Schema
    snapshots: dict[int, Snapshot] = field(default_factory=dict)
    files: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """For each snapshot the data files it reaches."""
    head: int | None = None
    max_seq: int = 0
    layout: Layout = field(default_factory=Layout)
    location: str = ""
    declaration: str | None = None
    manifests: int = 0
    """How many lists of files a reader of the head would have to go through."""

    @property
    def head_files(self) -> tuple[int, ...]:
        return self.files.get(self.head or 0, ())

    def lineage(self) -> Iterator[Snapshot]:
        """The head and what came before it, as far as it has not expired."""
        id = self.head
        while id is not None and id in self.snapshots:
            yield self.snapshots[id]
            id = self.snapshots[id].parent


Table = TypeVar("Table", bound=MemoryTable)


@dataclass(slots=True)
class MemoryTables(Generic[Table]):
    """Tables, and the disk that their files are on."""

    tables: dict[str, Table] = field(default_factory=dict)
    data: dict[int, pa.Table] = field(default_factory=dict)
    durable: set[int] = field(default_factory=set)
    """The files that a `sync` has covered: what is left after a power loss."""
    born: dict[int, datetime] = field(default_factory=dict)
    """When each file was made."""
    clock: Clock = field(default_factory=SystemClock)
    """Says when commits and files were made."""
    rows_read: int = 0
    files_read: int = 0
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    """The names of files and snapshots to come."""
    lock: threading.RLock = field(default_factory=threading.RLock)

    # ── looking ──────────────────────────────────────────────────────────────────────────────────────────────────

    def table(self, name: str) -> Table:
        """A table; `Retryable` if it is gone."""
        if name not in self.tables:
            raise Retryable(f"There is no table {name!r} any more.", hint="Do it again.")
        return self.tables[name]

    def width_of(self, table: str) -> int:
        """How many numbers share files."""
        return self.table(table).layout.bucket_width

    def files_of(self, table: str, snapshot: int) -> tuple[int, ...]:
        """The data files that a snapshot reaches; `Retryable` if it has expired."""
        if snapshot not in self.table(table).snapshots:
            raise Retryable(f"A snapshot of {table!r} expired while it was read.", hint="Do it again.")
        return self.tables[table].files[snapshot]

    def reached(self) -> set[int]:
        """The files that a snapshot of any table reaches."""
        return {file for table in self.tables.values() for id in table.snapshots for file in table.files[id]}

    def read(self, file: int) -> pa.Table:
        """The rows of a file."""
        if file not in self.data:
            raise FilesMissing(f"Data file {file} is missing.")
        return self.data[file]

    def parts(self, table: str, snapshot: int, within: SequenceRange, *, named: bool = False) -> Iterator[pa.Table]:
        """The rows of a range, file by file as they lie there, `named` with the file. What is read is counted."""
        with self.lock:
            files = [(file, self.data.get(file)) for file in self.files_of(table, snapshot)]
        for file, part in files:
            if part is None:
                raise FilesMissing(f"A data file of {table!r} is missing.")
            span = pc.min_max(part[SEQ])
            if span["max"].as_py() <= within.after or span["min"].as_py() > within.through:
                continue
            self.files_read += 1
            self.rows_read += part.num_rows
            rows = inside(part, within)
            yield rows.append_column(FILE, pa.array([f"memory:{file}"] * rows.num_rows)) if named else rows

    # ── writing ──────────────────────────────────────────────────────────────────────────────────────────────────

    def store(self, rows: pa.Table) -> int:
        """Write a file that nothing refers to yet."""
        file = next(self.numbers)
        self.data[file] = rows
        self.born[file] = self.clock.now()
        return file

    def store_by_bucket(self, table: str, rows: pa.Table) -> tuple[int, ...]:
        """Write rows as an append does: a file for each bucket."""
        if rows.num_rows == 0:
            return ()
        places = pc.divide(rows[SEQ], self.width_of(table))
        parts = [rows.filter(pc.equal(places, place)) for place in sorted(set(places.to_pylist()))]
        return tuple(self.store(part) for part in parts)

    def pruned(self, table: MemoryTable, left: Callable[[pa.Table], pa.Table]) -> tuple[tuple[int, ...], int]:
        """The head's files with what is `left` of each, and how many of them were written anew for that."""
        kept, written = [], 0
        for file in table.head_files:
            part = self.data[file]
            rest = left(part)
            if rest.num_rows == part.num_rows:
                kept.append(file)
            elif rest.num_rows:
                kept.append(self.store(rest))
                written += 1
        return tuple(kept), written

    def commit(
        self,
        table: MemoryTable,
        *,
        operation: str,
        files: tuple[int, ...],
        added_rows: int,
        added_files: int = 1,
        block: str | None = None,
        through: int | None = None,
        dropped: int = 0,
        settled: bool = False,
        change: str | None = None,
        segments: frozenset[int] = frozenset(),
        barrier: str | None = None,
    ) -> Snapshot:
        """Make these files the table's."""
        id = next(self.numbers)
        made = table.snapshots[id] = Snapshot(
            id=id,
            parent=table.head,
            operation=operation,
            added_files=added_files,
            added_rows=added_rows,
            block=block,
            through=through,
            dropped=dropped,
            settled=settled,
            change=change,
            segments=segments,
            barrier=barrier,
            at=self.clock.now(),
        )
        table.files[id] = files
        table.head = id
        table.manifests += 1
        return made

    def lose_power(self) -> None:
        """Forget every file that no `sync` has covered."""
        self.data = {file: part for file, part in self.data.items() if file in self.durable}
