"""The rows of pinned ranges, from one instant of a dataset.

Several partitions of a dataset that have a few new rows each share one scan of the lake: a scan of one row costs as
much as a scan of many.
"""

from __future__ import annotations

import bisect
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from floodmark.control.deliveries import Channel, Intent
from floodmark.control.quarantine import GivenUp
from floodmark.delivery import destination
from floodmark.errors import Retryable
from floodmark.lake import queries
from floodmark.lake.table import Lake
from floodmark.read import View
from floodmark.rows.content import tally_of_ids
from floodmark.rows.jsontext import canonical_json
from floodmark.schema import CONTENT_ID, SEQ, Schema, parse_partition_key
from floodmark.sequence import SequenceRange, Tally

if TYPE_CHECKING:
    import pyarrow as pa

SCAN_ROWS_MAX = 100_000
"""The maximum number of rows of one scan."""


@dataclass(frozen=True, slots=True)
class Piece:
    """The rows of one range, in sequence order; slices of it share its memory."""

    table: pa.Table
    """User columns."""
    sequence: pa.ChunkedArray
    ids: pa.ChunkedArray

    @property
    def rows(self) -> int:
        return len(self.sequence)

    @property
    def tally(self) -> Tally:
        return tally_of_ids(self.ids) if self.rows else Tally()

    def within(self, span: SequenceRange) -> Piece:
        first = bisect.bisect_right(self.sequence, span.after, key=_number)
        return self.slice(first, bisect.bisect_right(self.sequence, span.through, key=_number) - first)

    def slice(self, first: int, count: int) -> Piece:
        return Piece(self.table.slice(first, count), self.sequence.slice(first, count), self.ids.slice(first, count))

    def middle(self) -> int:
        """The number of the last row of the first half."""
        return int(self.sequence[self.rows // 2 - 1].as_py())

    def one_by_one(self) -> list[GivenUp]:
        """Its rows as entries for the quarantine."""
        rows = zip(self.sequence.to_pylist(), self.table.to_pylist(), strict=True)
        return [
            GivenUp(int(seq), self.slice(index, 1).tally, canonical_json(row)) for index, (seq, row) in enumerate(rows)
        ]


@dataclass(slots=True)
class RowSource:
    """One dataset at one instant: horizon first, then fresh metadata, then that snapshot by its id (I9)."""

    lake: Lake
    view: View
    shared: SequenceRange | None = None
    """A range that is fetched once for all partitions, because it has few rows."""
    _fetched: dict[str | None, Piece] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def afresh(self) -> RowSource:
        """The same dataset with the present snapshot of its table."""
        state = self.lake.load(self.view.table)
        return RowSource(self.lake, replace(self.view, snapshot=None if state is None else state.head))

    def place(self, intent: Intent) -> destination.Source:
        """Where the rows of an intent are."""
        schema = self.view.dataset.schema
        columns = [name for name in intent.settings["columns"] if name in schema]
        return destination.Source(
            table=self.view.table,
            snapshot=self._snapshot(),
            columns=Schema(tuple(schema.column(name) for name in columns)),
            partition_values=self.values_of(intent.channel) or None,
            row_filter=intent.settings.get("where"),
        )

    def rows(self, intent: Intent, span: SequenceRange) -> Piece:
        """The rows of a range of an intent, with the columns that were pinned, without columns added since."""
        row_filter = intent.settings.get("where")
        columns = tuple(name for name in intent.settings["columns"] if name in self.view.dataset.schema)
        if self.shared is not None and self.shared.intersect(span) == span:
            with self._lock:
                if row_filter not in self._fetched:
                    self._fetched[row_filter] = self._scan(self.shared, partition_values=None, row_filter=row_filter)
            found = _where(self._fetched[row_filter].within(span), self.values_of(intent.channel))
        else:
            found = self._scan(span, partition_values=self.values_of(intent.channel) or None, row_filter=row_filter)
        return Piece(self.view.dataset.schema.typed(found.table, columns), found.sequence, found.ids)

    def values_of(self, channel: Channel) -> dict[str, Any]:
        by = self.view.dataset.partition_by
        return dict(zip(by, parse_partition_key(by, channel.partition, self.view.dataset.schema), strict=True))

    def totals(self, channel: Channel, within: SequenceRange, *, row_filter: str | None) -> Tally:
        """The tally of the rows of a range that a sink delivers, counted in the lake."""
        stats = queries.stats(
            self.lake,
            self.view.table,
            snapshot=self._snapshot(),
            within=within,
            partition_by=self.view.dataset.partition_by,
            partition_values=self.values_of(channel) or None,
            row_filter=row_filter,
        )
        return sum((item.tally for item in stats), Tally())

    def counts(self, channel: Channel, ranges: Sequence[SequenceRange], *, row_filter: str | None) -> list[int]:
        """How many rows a sink delivers of each range, in one scan. The ranges are in ascending order."""
        counted = self.lake.each_range(
            self.view.table,
            snapshot=self._snapshot(),
            ranges=ranges,
            columns=(),
            schema=self.view.dataset.schema,
            work=only_counted,
            partition_values=self.values_of(channel) or None,
            row_filter=row_filter,
        )
        return [tally.rows for _, tally, _ in counted]

    def _scan(self, span: SequenceRange, *, partition_values: dict[str, Any] | None, row_filter: str | None) -> Piece:
        import pyarrow as pa

        tables = list(
            self.lake.scan(
                self.view.table,
                snapshot=self._snapshot(),
                within=span,
                partition_values=partition_values,
                row_filter=row_filter,
            )
        )
        if not tables:
            tables = [pa.schema([(SEQ, pa.int64()), (CONTENT_ID, pa.string())]).empty_table()]
        rows = pa.concat_tables(tables, promote_options="permissive").combine_chunks()
        return Piece(rows.drop_columns([SEQ, CONTENT_ID]), rows[SEQ], rows[CONTENT_ID])

    def _snapshot(self) -> int:
        if self.view.snapshot is None:
            raise Retryable(f"The table of {self.view.dataset.name!r} does not exist yet.")
        return self.view.snapshot


def only_counted(_range: SequenceRange, _rows: pa.Table) -> dict[str, Any]:
    """For a range of which only the tally is needed."""
    return {}


def _where(piece: Piece, values: dict[str, Any]) -> Piece:
    import pyarrow as pa
    import pyarrow.compute as pc

    for name, value in values.items():
        column = piece.table[name] if name in piece.table.column_names else pa.nulls(piece.rows, pa.string())
        matches = pc.is_null(column) if value is None else pc.equal(column, pa.scalar(value, column.type))
        piece = Piece(piece.table.filter(matches), piece.sequence.filter(matches), piece.ids.filter(matches))
    return piece


def _number(scalar: pa.Int64Scalar) -> int:
    return int(scalar.as_py())
