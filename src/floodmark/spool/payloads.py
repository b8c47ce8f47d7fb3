"""Payloads of quarantined rows and lines: in the control database where they fit, else in files of their own."""

from __future__ import annotations

from pathlib import Path

from floodmark.control.quarantine import Entry
from floodmark.errors import Corrupt, reason_of
from floodmark.files import durable_write, make_directory, retryable_os_error

INLINE_PAYLOAD_MAX = 64 << 10
"""A longer payload stands in a file of its own, not in the control database."""


def keep_payload(root: Path, dataset: str, *, name: str, payload: bytes) -> tuple[str | None, str | None]:
    """Where the payload stands from now on, durably: (its text, None), or (None, the path of its file)."""
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


def kept_payload(root: Path, entry: Entry) -> bytes:
    """A payload again, from wherever it stands; `Corrupt` where its file cannot be read."""
    if entry.payload_path is None:
        return (entry.payload or "").encode()
    try:
        return (root / entry.payload_path).read_bytes()
    except (OSError, ValueError) as error:
        raise Corrupt(
            f"The payload of the quarantined entry {entry.id} cannot be read: {reason_of(error)}.",
            hint=f"It should stand in {entry.payload_path!r} below the store: restore it, or discard the entry.",
        ) from error


def _database_text(payload: bytes) -> str | None:
    """The payload as the control database can hold it; None if it is too long, or not text that PostgreSQL takes."""
    if len(payload) > INLINE_PAYLOAD_MAX or b"\0" in payload:
        return None
    try:
        return payload.decode()
    except UnicodeDecodeError:
        return None
