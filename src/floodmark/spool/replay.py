"""Replay: what was quarantined is tried again under the schema of today."""

from __future__ import annotations

from dataclasses import dataclass

from floodmark.control import datasets, quarantine
from floodmark.control.datasets import Dataset
from floodmark.control.quarantine import Entry
from floodmark.engine import Engine
from floodmark.errors import Permanent, SchemaConflict
from floodmark.rows import Fit, MalformedEnvelope, fit
from floodmark.spool.ingest import fit_and_evolve, store
from floodmark.spool.payloads import decode_payload, kept_payload


@dataclass(frozen=True, slots=True)
class Quarantine:
    """A store's quarantine: what is held, and the two ways out of it."""

    engine: Engine

    def entries(self, dataset: str | None = None) -> list[Entry]:
        """What is held, oldest first."""
        return self.engine.database.read(lambda c: quarantine.entries(c, dataset=dataset))

    def show(self, id: str) -> tuple[Entry, bytes]:
        """One entry with its whole payload."""
        entry = self.engine.database.read(lambda c: quarantine.get(c, id))
        return entry, kept_payload(self.engine.root, entry)

    def replay(self, id: str) -> int:
        """Make an entry a segment, if it fits now; returns its rows. `SchemaConflict` says why it still does not.

        The entry leaves `held` in the transaction that registers its segment: replayed twice, it is stored once.
        """
        entry, payload = self.show(id)
        if entry.sink is not None:
            raise Permanent(
                f"Entry {entry.id} is a row that a sink could not deliver; the store has it.",
                hint="Send it again with `floodmark sink replay`.",
            )
        try:
            envelope = decode_payload(payload)
        except MalformedEnvelope as error:
            raise SchemaConflict(
                f"Entry {entry.id} is not an envelope of rows: {error.message}",
                hint="It cannot be replayed: capture the rows again, then discard it.",
            ) from error
        declared = self.engine.database.read(lambda c: datasets.get(c, entry.dataset))

        def fitting(current: Dataset) -> Fit:
            demands = current.demands(self.engine.settings.spool)
            fitted = fit(current.schema, envelope.columns, envelope.values, rows=envelope.rows, demands=demands)
            if fitted.misfits:
                raise SchemaConflict(f"Entry {entry.id} still does not fit: {fitted.misfits[0].reason}.")
            return fitted

        grown, fitted = fit_and_evolve(self.engine, declared, fitting)
        stored = store(
            self.engine,
            grown,
            fitted.table,
            also=lambda c: quarantine.decide(c, entry.id, state="replayed", now=self.engine.clock.now()),
        )
        return fitted.table.num_rows if stored else 0

    def discard(self, id: str) -> bool:
        """Give an entry up permanently; its record stays."""
        entry = self.engine.database.read(lambda c: quarantine.get(c, id))
        return self.engine.database.transact(
            lambda c: quarantine.decide(c, entry.id, state="discarded", now=self.engine.clock.now())
        )
