"""Our record of a channel against what its destination says that it holds.

Asked where our own record is lost or may be an old one: the destination knows better then, if it counts up to there
what we count. Where it does not, the two histories have parted, and nothing more may leave.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection

from floodmark.control import deliveries, quarantine, removals, sinks
from floodmark.control.chunks import Chunk
from floodmark.control.deliveries import Channel, Intent, Watermark, chunk_ranges
from floodmark.delivery.context import Errand, Tick
from floodmark.delivery.outcomes import Holdings
from floodmark.errors import DivergedHistory, Retryable
from floodmark.sequence import SequenceRange, Tally

GIVEN_UP_BEFORE = "It was given up before; the destination never received it."
HELD_ROWS = 5_000
"""How many rows are put into quarantine at once."""


@dataclass(slots=True)
class Comparison:
    """One channel's record and its destination's, in one tick."""

    errand: Errand
    fixed: tuple[SequenceRange, ...] = ()
    """What the destination holds beyond the watermark under names of its own: those ranges are chunks as they are."""
    end: Watermark | None = None
    """Where the destination's ledger ends, if that was compared: parcels do not reach back below it."""
    there: Holdings | None = None
    """What the destination turned out to hold beyond our record, once it has been compared."""

    @property
    def tick(self) -> Tick:
        return self.errand.tick

    @property
    def channel(self) -> Channel:
        return self.errand.channel

    def ask(self) -> None:
        """Ask the destination what it holds: where our own record is lost or may be an old one, it knows better."""
        mark, opened = self.errand.read(
            lambda c: (deliveries.watermark(c, self.channel), deliveries.open_intent(c, self.channel))
        )
        destination = self.errand.connect({} if opened is None else opened.settings)
        if mark is not None and (self.channel, id(destination)) in self.tick.asked:
            return
        at = self.tick.scope.start(self.channel) if mark is None else mark.seq
        held = destination.held(self.channel, after=at)
        if held.end is not None and held.end > at and opened is None:
            self._fast_forward(held, mark=mark, at=at)
        elif mark is None and opened is None and held.ranges:
            held = self._behind_removals(held, at=at)
        self.fixed = held.ranges
        furthest = max((item.through for item in held.ranges), default=0)
        if not self.errand.look_up_to(furthest):
            raise self._diverged(furthest)
        self.tick.asked.add((self.channel, id(destination)))

    def _fast_forward(self, held: Holdings, *, mark: Watermark | None, at: int) -> None:
        """Go on behind what the destination has. What it never got, because it was given up, is held here again."""
        to = self.compared(held, since=mark or Watermark(at, Tally()))
        columns = list(self.errand.source.view.dataset.schema.names)
        pinned = {"columns": columns, "where": self.tick.sink.settings.get("where")}
        # First held, then passed: the other way round, a crash in between would leave rows that nobody knows of.
        for span in held.given_up:
            inside = span.intersect(SequenceRange(at, to.seq)) if to.seq > at else None
            if inside is not None:
                self._hold(inside, pinned)
        self.errand.transact(lambda c: deliveries.fast_forward(c, self.channel, seen=mark, to=to))

    def _hold(self, span: SequenceRange, pinned: dict[str, Any]) -> None:
        """Put the rows of a range into quarantine, a few at a time: it may have any number of them."""
        found = self.errand.read(lambda c: deliveries.stretches(c, self.channel, span))
        for part in chunk_ranges(span, found, rows_max=HELD_ROWS):
            rows = self.errand.source.rows(Intent("", self.channel, part, pinned), part).one_by_one()
            now = self.tick.clock.now()
            self.errand.transact(
                lambda c, rows=rows, now=now: quarantine.hold_given_up(  # type: ignore[misc]
                    c, self.channel, rows, reason=GIVEN_UP_BEFORE, now=now
                )
            )

    def _behind_removals(self, held: Holdings, *, at: int) -> Holdings:
        """Go on behind rows that are gone: they went because this sink had them (U10), and cannot be compared any more.

        They lie in whole objects: a watermark never stands inside of one.
        """
        proved = self.errand.read(lambda c: removals.proved_delivered(c, self.channel))
        end = max([proved, *(item.through for item in held.ranges if item.after < proved)])
        if proved <= at:
            return held
        self._fast_forward(Holdings(end=end), mark=None, at=at)
        return Holdings(tuple(item for item in held.ranges if item.after >= end))

    def compared(self, held: Holdings, *, since: Watermark) -> Watermark:
        """The destination's end, if what it counts up to there is what we count; else the histories have parted."""
        end = held.end or 0
        if not self.errand.look_up_to(end):
            raise self._diverged(end)
        tallies = [since.tally + counted for counted in self._counted(SequenceRange(since.seq, end))]
        if held.tally is not None and held.tally not in tallies:
            raise self._diverged(end, theirs=held.tally, ours=tallies[0])
        return Watermark(end, held.tally if held.tally is not None else tallies[0])

    def _counted(self, within: SequenceRange) -> list[Tally]:
        """What this store counts in a range: the rows in the lake and those that were removed, at one instant.

        What was removed before there was this sink never came to its destination (U19); unless an earlier sink had
        brought it there. So there is one sum for each of them.
        """
        row_filter = self.tick.sink.settings.get("where")

        def gone(connection: Connection) -> tuple[bool, int, list[Tally]]:
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

        before: tuple[bool, int, list[Tally]] = self.errand.read(gone)
        there = self.errand.source.afresh().totals(self.channel, within, row_filter=row_filter)
        # U12: rows go between `planned` and `removed`. If nothing of that happened meanwhile, each row counted once.
        if before[0] or self.errand.read(gone) != before:
            raise Retryable(f"Rows of {self.channel.dataset!r} are being removed at the moment.", hint="Export again.")
        return [there + removed for removed in before[2]]

    def _diverged(self, end: int, *, theirs: Tally | None = None, ours: Tally | None = None) -> DivergedHistory:
        where = f"{self.channel.dataset!r} ({self.channel.partition})"
        if theirs is None or ours is None:
            said = f"has {where} up to {end}, but this store ends at {self.errand.source.view.horizon}"
        else:
            said = f"counts {theirs.rows} rows of {where} up to {end}, but this store counts {ours.rows}"
            said += "" if theirs.rows != ours.rows else ", with another checksum"
        return DivergedHistory(
            f"The destination {said}: the histories diverged.",
            hint="Was this store restored from a backup, or copied? Deliver to a new place: another prefix, or "
            "another `origin` at the hub (`floodmark sink add … --start now` for new rows only).",
        )

    def proved(self, chunk: Chunk, held: Holdings) -> Holdings:
        """The destination has more than we recorded. If it counts as we do, what it has is settled."""
        mark = self.errand.read(lambda c: deliveries.watermark(c, self.channel))
        if mark is None or (held.end or 0) <= chunk.range.after:
            raise self._diverged(held.end or 0)
        self.compared(held, since=mark)
        return held
