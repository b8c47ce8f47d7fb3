"""What an export would send, without sending or pinning anything."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from sqlalchemy import Connection

from floodmark.control import chunks, deliveries, inspection
from floodmark.control.deliveries import Lag, Stretch, chunk_ranges, exact_rows
from floodmark.delivery.channel import INTENT_CHUNKS_MAX
from floodmark.delivery.scope import Scope
from floodmark.delivery.source import RowSource
from floodmark.delivery.tick import Exporter
from floodmark.sequence import SequenceRange


@dataclass(frozen=True, slots=True)
class Forecast:
    """One chunk that would be sent."""

    dataset: str
    partition: str
    range: SequenceRange
    rows: int
    under_way: bool
    """Whether it is pinned already: an earlier export failed to deliver it, and it is sent with its old settings."""


def forecast(exporter: Exporter, name: str) -> list[Forecast]:
    """The chunks of the next tick, in order. Rows are counted after the sink's filter.

    Without a filter the records have the number of rows, unless duplicates or removals have left gaps where a chunk
    ends. Otherwise the rows are counted in the lake, once for all chunks of a channel.
    """
    sink, lags = exporter.lags(name)
    start = Scope.of(sink.settings).start
    found: list[Forecast] = []
    sources: dict[str, RowSource] = {}
    for lag in lags:
        channel = lag.channel
        planned, rows = exporter.database.read(partial(_planned, lag=lag, start=start(channel), settings=sink.settings))
        for row_filter in dict.fromkeys(item.row_filter for item in planned):
            asked = [at for at, item in enumerate(planned) if item.row_filter == row_filter and rows[at] is None]
            if not asked:
                continue
            if channel.dataset not in sources:
                sources |= exporter.sources([lag])
            counted = sources[channel.dataset].counts(
                channel, [planned[at].range for at in asked], row_filter=row_filter
            )
            for at, count in zip(asked, counted, strict=True):
                rows[at] = count
        found += [
            Forecast(channel.dataset, channel.partition, item.range, count or 0, item.pinned)
            for item, count in zip(planned, rows, strict=True)
        ]
    return found


def rows_waiting(exporter: Exporter, name: str) -> int:
    """About how many rows are above the watermarks; from the control database alone."""
    sink, lags = exporter.lags(name)
    scope = Scope.of(sink.settings)

    def work(connection: Connection) -> int:
        total = 0
        for lag in lags:
            after = scope.start(lag.channel) if lag.mark is None else lag.mark.seq
            found = deliveries.stretches(connection, lag.channel, SequenceRange(after, max(after, lag.horizon)))
            total += sum(stretch.rows for stretch in found)
        return total

    return exporter.database.read(work)


@dataclass(frozen=True, slots=True)
class _Planned:
    """A chunk that would be sent, and its filter."""

    range: SequenceRange
    pinned: bool
    row_filter: str | None


def _planned(
    connection: Connection, lag: Lag, start: int, settings: Mapping[str, Any]
) -> tuple[list[_Planned], list[int | None]]:
    """The chunks of a channel, and the number of rows of each, where the records have it."""
    planned = list(_chunks(connection, lag, start, settings))
    ranges = [item.range for item in planned]
    if not ranges:
        return [], []
    whole = SequenceRange(ranges[0].after, ranges[-1].through)
    gone = inspection.removals_of(connection, lag.channel.dataset, lag.channel.partition)
    if any(item.range.intersect(whole) for item in gone):
        return planned, [None] * len(planned)
    rows = exact_rows(ranges, _committed(connection, lag, whole))
    return planned, [None if item.row_filter is not None else count for item, count in zip(planned, rows, strict=True)]


def _committed(connection: Connection, lag: Lag, whole: SequenceRange) -> list[Stretch]:
    found: list[Stretch] = []
    after = whole.after
    while after < whole.through:
        more = deliveries.whole_stretches(connection, lag.channel, SequenceRange(after, whole.through))
        found += more
        after = more[-1].last_seq if len(more) == deliveries.STRETCHES_MAX else whole.through
    return found


def _chunks(connection: Connection, lag: Lag, start: int, settings: Mapping[str, Any]) -> Iterator[_Planned]:
    intent = deliveries.open_intent(connection, lag.channel)
    after = start if lag.mark is None else lag.mark.seq
    if intent is not None:
        recorded = chunks.of_intent(connection, intent)
        pending = [chunk.range for chunk in recorded if chunk.state == "pending"]
        if not recorded:
            stretches = deliveries.stretches(connection, lag.channel, intent.range)
            pending = chunk_ranges(intent.range, stretches, rows_max=intent.settings["chunk_rows"])
        for span in pending:
            yield _Planned(span, pinned=True, row_filter=intent.settings.get("where"))
        after = intent.range.through
    chunk_rows = settings["chunk_rows"]
    while after < lag.last_seq:
        rest = SequenceRange(after, lag.horizon)
        through = deliveries.limit(connection, lag.channel, rest, rows_max=INTENT_CHUNKS_MAX * chunk_rows)
        whole = SequenceRange(after, through)
        stretches = deliveries.stretches(connection, lag.channel, whole)
        for span in chunk_ranges(whole, stretches, rows_max=chunk_rows):
            yield _Planned(span, pinned=False, row_filter=settings["where"])
        after = through
