"""Adopt: data that has no sequence numbers becomes rows of a dataset, once.

Rows without a number would be new to every consumer for ever. Adopting reads them part by part in a fixed order; each
part is a step of the loader (`sources.steps`), and flush stamps it like anything else. A crash leaves a part stored or
not begun (U40), and the next run continues after it, on the same version of the source. What was adopted to its end is
not adopted again, whatever has been added to it since.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from sqlalchemy import Connection

from floodmark import faults
from floodmark.commit.flush import flush
from floodmark.control import sources
from floodmark.control.sources import Source
from floodmark.engine import Engine
from floodmark.lake.adoptable import LegacyData
from floodmark.sources.steps import Step, StepLoader
from floodmark.spool.capture import Capture, Receipt

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


@dataclass(slots=True, kw_only=True)
class _Part(Step):
    """A part of the data as a step."""

    receipt: Receipt


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
        position = json.loads(self._source(dataset, data.name).position)
        report = AdoptReport(dataset, already=position["next"])
        if position["done"]:
            return report

        def note_stored(part: _Part) -> None:
            nonlocal report
            faults.reach("adopt.stored")
            rows, quarantined = report.rows + part.receipt.rows, report.quarantined + part.receipt.quarantined
            report = replace(report, rows=rows, quarantined=quarantined, parts=report.parts + 1)
            if progress is not None:
                progress(report)

        StepLoader(self.engine, dataset, data.name, note_stored, self.capture).load(lambda: self._read(dataset, data))
        flush(self.engine, dataset)
        return report

    def _read(self, dataset: str, data: LegacyData) -> Iterator[_Part]:
        """The parts that are not adopted yet."""
        source = self._source(dataset, data.name)
        parts = list(data.parts())
        for index in range(json.loads(source.position)["next"], len(parts)):
            rows = data.read(parts[index])
            faults.reach("adopt.read")
            fitted = self.capture.prepare_table(dataset, rows)
            after = json.dumps({"version": data.version, "next": index + 1, "done": index == len(parts) - 1})
            yield _Part(
                dataset=fitted.dataset,
                tables=[fitted.table],
                quarantined=fitted.quarantined,
                moves={source.id: (source, after)},
                receipt=fitted.receipt,
            )
            source = replace(source, next_ordinal=source.next_ordinal + 1)

    def _source(self, dataset: str, name: str) -> Source:
        def work(connection: Connection) -> Source:
            return sources.begin(connection, id=f"adopt:{name}", dataset=dataset, position=_BEGIN)

        return self.engine.database.transact(work)
