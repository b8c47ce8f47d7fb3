"""Adopt: data that has no sequence numbers becomes rows of a dataset, once.

Rows without a number would be new to every consumer for ever. Adopting reads them part by part in a fixed order; each
part becomes a segment in the transaction that moves the source's position, and flush stamps it like anything else. A
crash leaves a part stored or not begun, and the next run continues after it, on the same version of the source. What
was adopted to its end is not adopted again, whatever has been added to it since.

- U40 A part of a source is registered once: its segment and the source's position move in one transaction.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy import Connection

from floodmark import faults
from floodmark.commit.flush import flush
from floodmark.control import sources
from floodmark.control.segments import SourceStep
from floodmark.control.sources import Source
from floodmark.engine import Engine
from floodmark.lake.adoptable import LegacyData, Part
from floodmark.spool.capture import Capture

FLUSH_ROWS = 2_000_000
"""So many rows may wait in the spool before they are committed."""
_BEGIN = json.dumps({"version": None, "next": 0, "done": False})


@dataclass(frozen=True, slots=True)
class AdoptReport:
    """What one run adopted."""

    dataset: str
    rows: int = 0
    quarantined: int = 0
    parts: int = 0
    already: int = 0
    """Parts that an earlier run had adopted."""


@dataclass(frozen=True, slots=True)
class Adopter:
    """Adopts data into one store."""

    engine: Engine
    capture: Capture

    def begun_with(self, dataset: str, name: str) -> str | None:
        """The version that an earlier run began with: a later one uses the same."""
        source = self._source(dataset, name)
        found = json.loads(source.position)["version"]
        return None if found is None else str(found)

    def adopt(
        self, dataset: str, data: LegacyData, *, progress: Callable[[AdoptReport], None] | None = None
    ) -> AdoptReport:
        """Take everything in that is not in yet."""
        waiting = 0
        report = AdoptReport(dataset)
        source = self._source(dataset, data.name)
        position = json.loads(source.position)
        if position["done"]:
            return AdoptReport(dataset, already=position["next"])
        parts = list(data.parts())
        report = AdoptReport(dataset, already=position["next"])
        for index in range(position["next"], len(parts)):
            source = self._source(dataset, data.name)
            done = self._take(source, data, parts[index], index=index, last=index == len(parts) - 1)
            if done is None:
                continue  # another process has it
            report = AdoptReport(
                dataset, report.rows + done[0], report.quarantined + done[1], report.parts + 1, report.already
            )
            waiting += done[0]
            if waiting >= FLUSH_ROWS:
                flush(self.engine, dataset)
                waiting = 0
            if progress is not None:
                progress(report)
        flush(self.engine, dataset)
        return report

    def _take(self, source: Source, data: LegacyData, part: Part, *, index: int, last: bool) -> tuple[int, int] | None:
        """U40: the part's segment and the position behind it, together."""
        if json.loads(source.position)["next"] != index:
            return None
        after = json.dumps({"version": data.version, "next": index + 1, "done": last})
        rows = data.read(part)
        faults.reach("adopt.read")
        receipt = self.capture.capture_step(
            source.dataset,
            rows,
            SourceStep(source.id, source.next_ordinal),
            also=lambda c: sources.advance(c, source, position=after),
        )
        faults.reach("adopt.stored")
        return None if receipt is None else (receipt.rows, receipt.quarantined)

    def _source(self, dataset: str, name: str) -> Source:
        def work(connection: Connection) -> Source:
            return sources.begin(connection, id=f"adopt:{name}", dataset=dataset, position=_BEGIN)

        return self.engine.database.transact(work)
