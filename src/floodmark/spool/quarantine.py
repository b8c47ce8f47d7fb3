"""Quarantine: how rows and lines that do not fit are kept, and the two ways out.

A payload is in the control database where it fits, else in a file of its own. An entry is replayed under the schema of
today, or discarded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from floodmark.control import datasets, quarantine
from floodmark.control.datasets import Dataset
from floodmark.control.quarantine import Entry
from floodmark.engine import Engine
from floodmark.errors import Corrupt, Permanent, SchemaConflict, reason_of
from floodmark.files import durable_write, make_directory, retryable_os_error
from floodmark.rows.envelope import Envelope, MalformedEnvelope, decode_envelope

if TYPE_CHECKING:
    from floodmark.rows.fit import Fit

ENTRIES_MAX = 20
"""So many entries one call leaves in quarantine; more rows than that share them."""
INLINE_PAYLOAD_MAX = 64 << 10
"""A longer payload is stored in a separate file, not in the control database."""


def keep_payload(root: Path, dataset: str, *, name: str, payload: bytes) -> tuple[str | None, str | None]:
    """Where the payload is stored durably: (its text, None), or (None, the path of its file)."""
    text = _database_text(payload)
    if text is not None:
        return text, None
    path = f"quarantine/{dataset}/{name}.jsonl"
    try:
        make_directory((root / path).parent, private=True)
        durable_write(root / path, payload, private=True)
    except OSError as error:
        raise retryable_os_error(error, doing=f"Keeping a quarantined payload of {dataset!r}") from error
    return None, path


@dataclass(frozen=True, slots=True)
class Sender:
    """Who a request came from, and how many entries it may still leave in quarantine, read only if it leaves any."""

    token: str
    room: Callable[[], int]


@dataclass(frozen=True, slots=True)
class Misfit:
    """What of a call does not fit: one row, or several for the same reason, each on a line of its own."""

    reason: str
    payload: bytes
    rows: int = 1
    place: str = ""
    """Where the first of it came from, for people."""
    is_row: bool = True
    """It is a row, and may fit some day; else it is something that never was one."""


def grouped(misfits: Sequence[Misfit]) -> list[Misfit]:
    """The same misfits as a few entries, where there are many: one call must not fill the control database.

    The text before the first colon of a reason names column and type; after it is the value, which differs per row.
    Rows are not put together with what is none: then they could not be replayed.
    """
    if len(misfits) <= ENTRIES_MAX:
        return list(misfits)
    groups: dict[tuple[bool, str], list[Misfit]] = {}
    for misfit in misfits:
        key = (misfit.is_row, misfit.reason.partition(":")[0])
        if key not in groups and len(groups) >= ENTRIES_MAX - 2:
            key = (misfit.is_row, "")
        groups.setdefault(key, []).append(misfit)
    return [_together(group) for group in groups.values()]


def _together(group: Sequence[Misfit]) -> Misfit:
    first, rows = group[0], sum(one.rows for one in group)
    if len(group) == 1:
        return first
    payload = b"".join(one.payload.rstrip(b"\n") + b"\n" for one in group)
    reason = f"{first.reason} (and {rows - first.rows:,} more rows of the same request)"
    return replace(first, reason=reason, payload=payload, rows=rows)


def decode_payload(payload: bytes) -> Envelope:
    """The rows of an entry; `MalformedEnvelope` says what is wrong with what is none."""
    lines = payload.rstrip(b"\n").split(b"\n")
    if len(lines) == 1:
        return decode_envelope(payload)
    from floodmark.rows.fit import rows_to_columns  # with Arrow, which a list of entries does not need

    rows: list[dict[str, Any]] = []
    for line in lines:
        part = decode_envelope(line)
        found = zip(*part.values, strict=True) if part.columns else [()] * part.rows
        rows += [dict(zip(part.columns, values, strict=True)) for values in found]
    columns, values = rows_to_columns(rows)
    return Envelope(columns, values, len(rows))


def kept_payload(root: Path, entry: Entry) -> bytes:
    """A payload again, from the record or its file; `Corrupt` where its file cannot be read."""
    if entry.payload_path is None:
        return (entry.payload or "").encode()
    try:
        return (root / entry.payload_path).read_bytes()
    except (OSError, ValueError) as error:
        raise Corrupt(
            f"The payload of the quarantined entry {entry.id} cannot be read: {reason_of(error)}.",
            hint=f"Restore the file {entry.payload_path!r} of the store, or discard the entry.",
        ) from error


def _database_text(payload: bytes) -> str | None:
    """The payload as the control database can hold it; None if it is too long, or not text that PostgreSQL takes."""
    if len(payload) > INLINE_PAYLOAD_MAX or b"\0" in payload:
        return None
    try:
        return payload.decode()
    except UnicodeDecodeError:
        return None


# ── The two ways out ─────────────────────────────────────────────────────────────────────────────────────────────────


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
        from floodmark.rows.fit import fit
        from floodmark.spool.ingest import fit_and_evolve, store

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
