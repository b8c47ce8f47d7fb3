"""Purging the quarantine: the payloads of entries whose row matches a condition.

An entry holds what is no row, or a row that a destination refused, so not every one can be judged. One that cannot,
because it is no envelope or a value that the condition asks for does not fit its column, is named and left to a person.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from floodmark.clock import Clock
from floodmark.control import quarantine
from floodmark.control.database import Database
from floodmark.control.datasets import Dataset
from floodmark.control.quarantine import Entry
from floodmark.errors import FloodmarkError
from floodmark.files import durable_remove
from floodmark.jsonread import read_json
from floodmark.lake.filters import check_text
from floodmark.lake.table import Lake
from floodmark.rows import fit
from floodmark.schema import Column, Schema
from floodmark.spool.payloads import decode_payload, kept_payload

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Judged:
    """The ids of entries."""

    matching: tuple[str, ...]
    not_evaluated: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class QuarantinePurge:
    """One store's quarantine, under a condition."""

    root: Path
    database: Database
    lake: Lake
    clock: Clock

    def find(self, declared: Dataset, where: str) -> Judged:
        """Which entries match, decided ones too: their payloads are still there."""
        used = sorted(check_text(where, declared.schema.names))
        entries = self.database.read(lambda c: quarantine.entries(c, dataset=declared.name, state=None))
        tables: list[pa.Table] = []
        owners: list[str] = []
        unclear: list[str] = []
        for entry in entries:
            if entry.payload is None and entry.payload_path is None:
                continue
            rows = self._rows(entry, declared.schema, used)
            if rows is None:
                unclear.append(entry.id)
            else:
                tables.append(rows)
                owners += [entry.id] * rows.num_rows
        matching = self._matching(tables, where, declared.schema)
        return Judged(tuple(dict.fromkeys(owners[place] for place in matching)), tuple(unclear))

    def purge(self, declared: Dataset, where: str) -> Judged:
        """Remove the payloads, and what the reasons quote of them. The record that there was an entry stays."""
        found = self.find(declared, where)
        entries = self.database.read(lambda c: quarantine.entries(c, dataset=declared.name, state=None))
        for entry in entries:
            if entry.id in found.matching and entry.payload_path is not None:
                durable_remove(self.root / entry.payload_path)
        if found.matching:
            self.database.transact(lambda c: quarantine.scrub(c, found.matching, now=self.clock.now()))
        return found

    def _matching(self, tables: Sequence[pa.Table], where: str, schema: Schema) -> list[int]:
        import pyarrow as pa

        if not tables:
            return []
        return self.lake.matching(pa.concat_tables(tables, promote_options="permissive"), where, schema=schema)

    def _rows(self, entry: Entry, schema: Schema, used: Sequence[str]) -> pa.Table | None:
        """The values that the condition asks for; None where one of them cannot be read."""
        import pyarrow as pa

        came = self._values(entry)
        if came is None:
            return None
        count = max((len(values) for values in came.values()), default=1)
        columns: dict[str, Any] = {"_ingest_entry": pa.nulls(count)}
        for name in used:
            kind = schema.column(name).type
            if name not in came:
                columns[name] = pa.nulls(count, schema.arrow((name,)).field(name).type)
                continue
            try:
                fitted = fit(Schema((Column(name, kind),)), [name], [came[name]], rows=count)
                if fitted.misfits:
                    return None
                columns[name] = fitted.table[name].cast(schema.arrow((name,)).field(name).type)
            except (FloodmarkError, pa.ArrowException, ValueError):
                return None
        return pa.table(columns)

    def _values(self, entry: Entry) -> dict[str, list[Any]] | None:
        try:
            payload = kept_payload(self.root, entry)
            if entry.sink is not None:
                row = read_json(payload)
                return {name: [value] for name, value in row.items()} if isinstance(row, dict) else None
            envelope = decode_payload(payload)
        except (ValueError, FloodmarkError):
            return None
        return {name: list(values) for name, values in zip(envelope.columns, envelope.values, strict=True)}
