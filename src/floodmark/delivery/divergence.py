"""Compares our record of a channel with what its destination reports that it has.

This is needed if our record is lost or may be outdated: the destination then has the newer record, provided that its
totals equal ours. If they differ, the histories diverged, and nothing more may be sent.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection

from floodmark.control import deliveries, quarantine, removals, sinks
from floodmark.control.chunks import Chunk
from floodmark.control.deliveries import Channel, Intent, Watermark, chunk_ranges
from floodmark.delivery.context import ChannelTask, Tick
from floodmark.delivery.outcomes import Holdings
from floodmark.errors import DivergedHistory, Retryable
from floodmark.sequence import SequenceRange, Tally

GIVEN_UP_BEFORE = "It was given up before; the destination never received it."
QUARANTINE_ROWS = 5_000
"""How many rows are quarantined in one transaction."""


@dataclass(slots=True)
class Comparison:
    """The record of one channel and that of its destination, in one tick."""

    task: ChannelTask
    fixed: tuple[SequenceRange, ...] = ()
    """Ranges beyond the watermark that the destination has under their own names: each is one chunk, unchanged."""
    end: Watermark | None = None
    """The end of the destination's ledger, if it was compared: parcels do not begin below it."""
    there: Holdings | None = None
    """What the destination has beyond our record, after the comparison."""

    @property
    def tick(self) -> Tick:
        return self.task.tick

    @property
    def channel(self) -> Channel:
        return self.task.channel

    def ask(self) -> None:
        """Ask the destination what it has: our own record may be lost or outdated."""
        mark, opened = self.task.read(
            lambda c: (deliveries.watermark(c, self.channel), deliveries.open_intent(c, self.channel))
        )
        destination = self.task.connect({} if opened is None else opened.settings)
        if mark is not None and (self.channel, id(destination)) in self.tick.asked:
            return
        at = self.tick.scope.start(self.channel) if mark is None else mark.seq
        holdings = destination.held(self.channel, after=at)
        if holdings.end is not None and holdings.end > at and opened is None:
            self._fast_forward(holdings, mark=mark, at=at)
        elif mark is None and opened is None and holdings.ranges:
            holdings = self._behind_removals(holdings, at=at)
        self.fixed = holdings.ranges
        furthest = max((item.through for item in holdings.ranges), default=0)
        if not self.task.refresh_up_to(furthest):
            raise self._diverged(furthest)
        self.tick.asked.add((self.channel, id(destination)))

    def _fast_forward(self, holdings: Holdings, *, mark: Watermark | None, at: int) -> None:
        """Continue after what the destination has. Rows that it never received are quarantined here again."""
        to = self.compared(holdings, since=mark or Watermark(at, Tally()))
        columns = list(self.task.source.view.dataset.schema.names)
        pinned = {"columns": columns, "where": self.tick.sink.settings.get("where")}
        # First quarantine, then advance: in the other order a crash in between would leave rows that no record names.
        for span in holdings.given_up:
            inside = span.intersect(SequenceRange(at, to.seq)) if to.seq > at else None
            if inside is not None:
                self._quarantine(inside, pinned)
        self.task.transact(lambda c: deliveries.fast_forward(c, self.channel, seen=mark, to=to))

    def _quarantine(self, span: SequenceRange, pinned: dict[str, Any]) -> None:
        """Quarantine the rows of a range in parts: it may have any number of rows."""
        found = self.task.read(lambda c: deliveries.stretches(c, self.channel, span))
        for part in chunk_ranges(span, found, rows_max=QUARANTINE_ROWS):
            rows = self.task.source.rows(Intent("", self.channel, part, pinned), part).one_by_one()
            now = self.tick.clock.now()
            self.task.transact(
                lambda c, rows=rows, now=now: quarantine.hold_given_up(  # type: ignore[misc]
                    c, self.channel, rows, reason=GIVEN_UP_BEFORE, now=now
                )
            )

    def _behind_removals(self, holdings: Holdings, *, at: int) -> Holdings:
        """Continue after removed rows: they were removed because this sink had them (U10), and cannot be compared.

        They are in complete objects: a watermark is never inside one.
        """
        proved = self.task.read(lambda c: removals.proved_delivered(c, self.channel))
        end = max([proved, *(item.through for item in holdings.ranges if item.after < proved)])
        if proved <= at:
            return holdings
        self._fast_forward(Holdings(end=end), mark=None, at=at)
        return Holdings(tuple(item for item in holdings.ranges if item.after >= end))

    def compared(self, holdings: Holdings, *, since: Watermark) -> Watermark:
        """The destination's end, if its totals up to there equal ours; otherwise the histories diverged."""
        end = holdings.end or 0
        if not self.task.refresh_up_to(end):
            raise self._diverged(end)
        tallies = [since.tally + counted for counted in self._counted(SequenceRange(since.seq, end))]
        if holdings.tally is not None and holdings.tally not in tallies:
            raise self._diverged(end, theirs=holdings.tally, ours=tallies[0])
        return Watermark(end, holdings.tally if holdings.tally is not None else tallies[0])

    def _counted(self, within: SequenceRange) -> list[Tally]:
        """What this store counts in a range: the rows in the lake and those that were removed, at one instant.

        Rows that were removed before this sink was added were never delivered by it (U19), but an earlier sink may have
        delivered them. So there is one sum for each sink of this destination.
        """
        row_filter = self.tick.sink.settings.get("where")

        def removed_rows(connection: Connection) -> tuple[bool, int, list[Tally]]:
            return (
                removals.under_way(connection, self.channel, after=within.after),
                removals.moment(connection, self.channel.dataset),
                [
                    removals.removed_within(
                        connection,
                        replace(self.channel, sink=sink.instance),
                        within,
                        condition=row_filter,
                        added=sink.number,
                    )
                    for sink in sinks.same_destination(connection, self.channel.sink)
                ],
            )

        before: tuple[bool, int, list[Tally]] = self.task.read(removed_rows)
        there = self.task.source.afresh().totals(self.channel, within, row_filter=row_filter)
        # U12: rows are removed between `planned` and `removed`. If no removal ran meanwhile, each row was counted once.
        if before[0] or self.task.read(removed_rows) != before:
            raise Retryable(f"Rows of {self.channel.dataset!r} are being removed at the moment.", hint="Export again.")
        return [there + removed for removed in before[2]]

    def _diverged(self, end: int, *, theirs: Tally | None = None, ours: Tally | None = None) -> DivergedHistory:
        where = f"{self.channel.dataset!r} ({self.channel.partition})"
        if theirs is None or ours is None:
            difference = f"has {where} up to {end}, but this store ends at {self.task.source.view.horizon}"
        else:
            difference = f"counts {theirs.rows} rows of {where} up to {end}, but this store counts {ours.rows}"
            difference += "" if theirs.rows != ours.rows else ", with another checksum"
        return DivergedHistory(
            f"The destination {difference}: the histories diverged.",
            hint="Was this store restored from a backup, or copied? Deliver to a new place: another prefix, or "
            "another `origin` at the hub (`floodmark sink add … --start now` for new rows only).",
        )

    def proved(self, chunk: Chunk, holdings: Holdings) -> Holdings:
        """The destination has more than we recorded. If its totals equal ours, what it has counts as delivered."""
        mark = self.task.read(lambda c: deliveries.watermark(c, self.channel))
        if mark is None or (holdings.end or 0) <= chunk.range.after:
            raise self._diverged(holdings.end or 0)
        self.compared(holdings, since=mark)
        return holdings
