"""Reading by sequence: exactly what is new since a cursor, in order, touching only files that can hold it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from floodmark.control import blocks, datasets, removals
from floodmark.control.datasets import Dataset
from floodmark.engine import Engine
from floodmark.errors import InvalidCursor, SchemaConflict
from floodmark.lake.generations import find_table
from floodmark.schema import CONTENT_ID, SEQ
from floodmark.sequence import Cursor, SequenceRange

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_ROWS_MAX = 100_000


@dataclass(frozen=True, slots=True)
class Batch:
    """Some rows in sequence order, and the cursor to store once they are dealt with."""

    table: pa.Table
    """The rows, without system columns."""
    cursor: Cursor
    _sequence: tuple[int, ...] | pa.ChunkedArray

    def pairs(self) -> Iterator[tuple[dict[str, Any], Cursor]]:
        """Each row with the cursor right after it."""
        for row, seq in zip(self.table.to_pylist(), self._sequence, strict=True):
            number = seq if isinstance(seq, int) else seq.as_py()
            yield row, Cursor(self.cursor.store_id, self.cursor.dataset, self.cursor.partition, number)


@dataclass(frozen=True, slots=True)
class View:
    """One instant of a dataset: horizon first, then fresh metadata, then that snapshot by its id.

    In this order (I9) everything up to the horizon is in the snapshot. Read the other way round, a commit in
    between would raise the horizon over rows that the older snapshot does not have.
    """

    dataset: Dataset
    snapshot: int | None
    columns: frozenset[str] = frozenset()
    """What the table has: a column that was declared since the last commit is not among them."""
    removals: int | None = None
    """How many removals of rows the records knew before the snapshot was read."""
    found_as: str | None = None
    """What the table was called: while it is fenced, it has another name."""

    @property
    def table(self) -> str:
        return self.found_as or self.dataset.table_name

    @property
    def horizon(self) -> int:
        return self.dataset.horizon


def view_of(engine: Engine, dataset: str) -> View:
    declared, removed = engine.database.read(  # I9: the horizon first
        lambda c: (datasets.get(c, dataset), removals.moment(c, dataset))
    )
    declared, state = find_table(engine.database, engine.lake, declared)
    if state is None:
        return View(declared, None, removals=removed)
    return View(declared, state.head, frozenset(name for name, _ in state.columns), removed, state.name)


def cursor_position(engine: Engine, view: View, cursor: Cursor | str | None, *, partition: str | None = None) -> int:
    """The sequence number of a cursor; anything that is not one of ours for this dataset is refused."""
    if cursor is None:
        return 0
    if isinstance(cursor, str):
        cursor = Cursor.parse(cursor)
    name = view.dataset.name
    if not isinstance(cursor, Cursor):
        raise InvalidCursor(f"The cursor must be a Cursor or its text, not a {type(cursor).__name__}.")
    if cursor.store_id != engine.store_id:
        raise InvalidCursor("The cursor belongs to another store.", hint="A cursor is valid for one store.")
    if cursor.dataset != name:
        raise InvalidCursor(f"The cursor belongs to dataset {cursor.dataset!r}, not {name!r}.")
    if cursor.partition != partition:
        raise InvalidCursor(
            f"The cursor was made for {_slice(cursor.partition)}, and this reads {_slice(partition)}.",
            hint="Read the same slice again, or start without a cursor.",
        )
    if not isinstance(cursor.seq, int) or cursor.seq < 0:
        raise InvalidCursor(f"The cursor of {name!r} has an invalid sequence number.")
    if cursor.seq > view.horizon:
        # Taking it would skip the rows between the horizon and the cursor when they come.
        raise InvalidCursor(
            f"The cursor is at {cursor.seq}, and {name!r} ends at {view.horizon}.",
            hint="Was the store restored from a backup? Start again from an older cursor, or without one.",
        )
    return cursor.seq


def read_since(
    engine: Engine,
    dataset: str,
    *,
    since: Cursor | str | None = None,
    partition: str | Mapping[str, Any] | None = None,
    columns: Sequence[str] | None = None,
) -> Iterator[Batch]:
    """What is new since a cursor, in sequence order, in batches of bounded size."""
    view = view_of(engine, dataset)
    partition, partition_values = view.dataset.slice(partition)
    after = cursor_position(engine, view, since, partition=partition)
    wanted = known_columns(view.dataset, columns)
    if view.snapshot is None or after >= view.horizon:
        return
    for window in row_windows(engine, dataset, SequenceRange(after, view.horizon)):
        parts = rows_within(engine, view, window, None if columns is None else wanted, partition_values)
        for number, rows in enumerate(parts, start=1):
            # After the last part the whole window is read; after another, only as far as its last row.
            through = window.through if number == len(parts) else rows[SEQ][-1].as_py()
            cursor = Cursor(engine.store_id, dataset, partition, through)
            yield Batch(view.dataset.schema.typed(rows, wanted), cursor, rows[SEQ])


def rows_within(
    engine: Engine,
    view: View,
    within: SequenceRange,
    columns: tuple[str, ...] | None = None,
    partition_values: Mapping[str, Any] | None = None,
) -> list[pa.Table]:
    """The rows of a range in sequence order, with those of the columns that the table has; all, if none is named."""
    if view.snapshot is None:
        return []
    known = {*view.columns, CONTENT_ID}
    scanned = engine.lake.scan(
        view.table,
        snapshot=view.snapshot,
        within=within,
        columns=None if columns is None else tuple(name for name in columns if name in known),
        partition_values=partition_values,
    )
    return list(scanned)


def row_windows(
    engine: Engine, dataset: str, within: SequenceRange, *, rows_max: int | None = None
) -> Iterator[SequenceRange]:
    """Cut a range where its rows are: the blocks say which stretches have any, so gaps cost nothing."""
    rows_max = rows_max or BATCH_ROWS_MAX
    after = within.after
    window_rows = 0
    for block in engine.database.read(lambda c: blocks.committed_within(c, dataset, within)):
        part = block.range.intersect(within)
        if part is None:
            continue
        if window_rows and window_rows + len(part) > rows_max:
            yield SequenceRange(after, part.after)
            after, window_rows = part.after, 0
        while part.through - part.after > rows_max:
            cut = part.after + rows_max
            yield SequenceRange(after, cut)
            after, part = cut, SequenceRange(cut, part.through)
        window_rows += len(part)
    if after < within.through:
        yield SequenceRange(after, within.through)


def known_columns(dataset: Dataset, columns: Sequence[str] | None) -> tuple[str, ...]:
    """The requested columns, in that order; all columns if none is requested."""
    if columns is None:
        return dataset.schema.names
    for name in columns:
        if name not in dataset.schema:
            raise SchemaConflict(
                f"Dataset {dataset.name!r} has no column {name!r}.", hint=f"It has {', '.join(dataset.schema.names)}."
            )
    if len(set(columns)) < len(columns):
        raise SchemaConflict("A column is requested twice.", hint="Name each column once.")
    return tuple(columns)


def _slice(partition: str | None) -> str:
    return "the whole dataset" if partition is None else f"partition {partition!r}"
