"""What an export would send, without sending or pinning anything."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection

from floodmark.control import chunks, deliveries
from floodmark.control.chunking import chunk_ranges
from floodmark.control.deliveries import Lag
from floodmark.delivery.channel import INTENT_CHUNKS_MAX
from floodmark.delivery.scope import Scope
from floodmark.delivery.tick import Exporter
from floodmark.sequence import SequenceRange


@dataclass(frozen=True, slots=True)
class Forecast:
    """One chunk that would leave."""

    dataset: str
    partition: str
    range: SequenceRange
    rows: int
    under_way: bool
    """Whether it is pinned already: an earlier export did not get it through, and it leaves with its old settings."""


def forecast(exporter: Exporter, name: str) -> list[Forecast]:
    """The chunks of the next tick, in order. Rows are counted as the sink's filter leaves them."""
    sink, lags = exporter.lags(name)
    scope = Scope.of(sink.settings)
    sources = exporter.sources(lags) if lags else {}
    found: list[Forecast] = []
    for lag in lags:
        channel, source = lag.channel, sources[lag.channel.dataset]
        spans = exporter.database.read(
            lambda c, lag=lag: _spans(c, lag, scope.start(lag.channel), sink.settings["chunk_rows"])  # type: ignore[misc]
        )
        found += [
            Forecast(
                channel.dataset,
                channel.partition,
                span,
                source.totals(channel, span, keep=sink.settings["where"]).rows,
                pinned,
            )
            for span, pinned in spans
        ]
    return found


def rows_waiting(exporter: Exporter, name: str) -> int:
    """About how many rows lie behind the watermarks; from the control database alone."""
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


def _spans(connection: Connection, lag: Lag, start: int, chunk_rows: int) -> list[tuple[SequenceRange, bool]]:
    intent = deliveries.open_intent(connection, lag.channel)
    spans: list[tuple[SequenceRange, bool]] = []
    after = start if lag.mark is None else lag.mark.seq
    if intent is not None:
        recorded = chunks.of_intent(connection, intent)
        pending = [chunk.range for chunk in recorded if chunk.state == "pending"]
        if not recorded:
            stretches = deliveries.stretches(connection, lag.channel, intent.range)
            pending = chunk_ranges(intent.range, stretches, rows_max=intent.settings["chunk_rows"])
        spans = [(span, True) for span in pending]
        after = intent.range.through
    while after < lag.last_seq:
        rest = SequenceRange(after, lag.horizon)
        through = deliveries.limit(connection, lag.channel, rest, rows_max=INTENT_CHUNKS_MAX * chunk_rows)
        whole = SequenceRange(after, through)
        stretches = deliveries.stretches(connection, lag.channel, whole)
        spans += [(span, False) for span in chunk_ranges(whole, stretches, rows_max=chunk_rows)]
        after = through
    return spans
