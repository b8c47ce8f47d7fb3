"""One channel's way through a tick: ask → pin → plan → ship → acknowledge → advance.

The order of every step is the point (D1 to D4 in `control.deliveries` and `control.chunks`): whatever dies in between,
the next tick, by this process or another, finds an open intent and sends exactly the same ranges.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from sqlalchemy import Connection

from floodmark import faults
from floodmark.control import chunks, deliveries
from floodmark.control.chunking import chunk_ranges
from floodmark.control.chunks import Chunk
from floodmark.control.deliveries import Channel, Intent
from floodmark.delivery.comparing import Comparison
from floodmark.delivery.destination import CopyingDestination, ParallelDestination
from floodmark.delivery.shared import Errand, Tick
from floodmark.delivery.shipping import Shipment
from floodmark.delivery.source import RowSource

PARALLEL_ROWS_MIN = 200_000
"""From so many rows on, tasks of Spark's store chunks at once. Fewer are quicker here: a task costs time to start."""
INTENT_CHUNKS_MAX = 64
"""How many chunks are pinned at once: what is acknowledged is looked through with every acknowledgement."""


def deliver(tick: Tick, channel: Channel, source: RowSource) -> None:
    """Bring one channel up to the horizon of this tick."""
    errand = Errand(tick, channel, source)
    ChannelRun(errand, Comparison(errand)).run()


@dataclass(slots=True)
class ChannelRun:
    """One channel in one tick."""

    errand: Errand
    comparison: Comparison

    def run(self) -> None:
        """Deliver everything up to the horizon of this tick."""
        while not self.errand.tick.stop.is_set:
            self.comparison.ask()
            intent = self._pin()
            if intent is None:
                return
            # D7: it may be another exporter's, pinned after a later look than ours. Our snapshot lacks its newest rows,
            # and their chunks would be settled as empty: delivered for ever, and never sent.
            self.errand.look_up_to(intent.range.through)
            self._fulfil(intent)

    def _pin(self) -> Intent | None:
        """D1: what leaves, and how, is settled before anything does."""
        tick, channel, view = self.errand.tick, self.errand.channel, self.errand.source.view
        settings = {key: tick.sink.settings[key] for key in tick.kind.pinned}
        settings |= {"columns": list(view.dataset.schema.names), "where": tick.sink.settings.get("where")}
        intent_id = uuid.uuid4().hex
        faults.reach("delivery.pinning")
        intent = tick.database.transact(
            lambda c: deliveries.pin(
                c,
                channel,
                id=intent_id,
                horizon=view.horizon,
                settings=settings,
                start=tick.scope.start(channel),
                rows_max=INTENT_CHUNKS_MAX * tick.sink.settings["chunk_rows"],
                uncut=self.comparison.fixed,
                removals_seen=view.removals,
                now=tick.clock.now(),
            ),
            landed=lambda c: deliveries.open_intent(c, channel) is not None,
        )
        faults.reach("delivery.pinned")
        return intent

    def _fulfil(self, intent: Intent) -> None:
        """Ship the intent's pending chunks in order."""
        destination = self.errand.connect(intent.settings)
        planned, rows = self.errand.transact(lambda c: self._plan(c, intent))
        faults.reach("delivery.planned")
        pending = [chunk for chunk in planned if chunk.state == "pending"]
        shipment = Shipment(self.errand, self.comparison, intent, destination)
        if not pending:
            self.errand.transact(lambda c: chunks.advance(c, intent))
        elif isinstance(destination, CopyingDestination):
            shipment.copy(destination, pending)
        elif isinstance(destination, ParallelDestination) and rows >= PARALLEL_ROWS_MIN and len(pending) > 1:
            shipment.in_parallel(destination.task(self.errand.channel), pending)
        else:
            shipment.in_turn(pending)

    def _plan(self, connection: Connection, intent: Intent) -> tuple[list[Chunk], int]:
        """The intent's chunks, and about how many rows it has."""
        found = deliveries.stretches(connection, self.errand.channel, intent.range)
        recorded = chunks.of_intent(connection, intent)
        if not recorded:
            fixed = [item for item in self.comparison.fixed if intent.range.intersect(item) == item]
            rows_max = intent.settings["chunk_rows"]
            ranges = chunk_ranges(intent.range, found, rows_max=rows_max, fixed=fixed)
            recorded = chunks.plan(connection, intent, ranges)
        return recorded, sum(stretch.rows for stretch in found)
