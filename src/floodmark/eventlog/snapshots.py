"""Snapshots of a stream's state, valid only while the events that they cover are still its beginning.

A merge may put an event *before* the version that a snapshot was made at. A snapshot therefore carries a
digest of the events it covers, in order, and is simply not found any more when that does not fit.
"""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from floodmark.eventlog.history import History
from floodmark.files import durable_write, make_directory


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A state, and the version of the stream that it covers: read on from there."""

    version: int
    state: Any


class _Stored(msgspec.Struct, frozen=True):
    version: int
    covered: str
    state: Any


class Snapshots:
    """Snapshots in `<root>/.eventcore/snapshots`, local and disposable."""

    def __init__(self, root: Path) -> None:
        self._folder = root / ".eventcore" / "snapshots"

    def save(self, history: History, *, stream: str, name: str, state: Any) -> None:
        version = history.version(stream)
        stored = _Stored(version, _covered(history, stream, version), state)
        make_directory(self._folder)
        durable_write(self._path(stream, name), msgspec.json.encode(stored))

    def load(self, history: History, *, stream: str, name: str) -> Snapshot | None:
        with contextlib.suppress(OSError, msgspec.DecodeError, UnicodeDecodeError):
            stored = msgspec.json.decode(self._path(stream, name).read_bytes(), type=_Stored)
            if _covered(history, stream, stored.version) == stored.covered:
                return Snapshot(stored.version, stored.state)
        return None

    def _path(self, stream: str, name: str) -> Path:
        key = hashlib.sha256(f"{stream}\0{name}".encode()).hexdigest()
        return self._folder / f"floodmark-{key}.json"


def _covered(history: History, stream: str, version: int) -> str:
    digest = hashlib.sha256()
    left = version
    for transaction in history.writers(stream):
        for event in transaction.events:
            if event.stream == stream and left:
                digest.update(event.event_id.encode())
                left -= 1
    return digest.hexdigest() if not left else ""
