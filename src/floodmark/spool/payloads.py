"""Payloads of quarantined rows and lines: in the control database where they fit, else in files of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from floodmark.control.quarantine import Entry
from floodmark.errors import Corrupt, reason_of
from floodmark.files import durable_write, make_directory, retryable_os_error
from floodmark.rows import Envelope, decode_envelope, rows_to_columns

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
