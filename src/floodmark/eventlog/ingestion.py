"""Local-ingestion order: which events this replica has seen, in the order in which it first saw them.

Terms
    number, seq      from 1, given to an event when this replica first sees it, never given twice.
    position         the number as a UUID; what readers remember.
    identity         of this numbering. Positions of another numbering mean nothing here.
    absent           numbered, but its file is gone (another branch is checked out, say).

Invariants
    E6  A position leaves the process only after the line that gave it is durable. A line lost in a power cut
        was therefore never relied on, and its number may go to another event.
    E7  One identity, one numbering: whenever a number that somebody may hold could now mean another event
        (the log was deleted, replaced, damaged in the middle, or copied with its tree), the identity changes.
    E8  An event that a reader may have passed over because its file was gone gets a fresh number when
        the file is back. Before a reader passes it, its absence is on disk.

Transitions
    load     reads the log; a torn last line is dropped, glued and unfinished lines are repaired
    assign   numbers events and appends their lines
    sync     makes the lines durable, before a position is handed out (E6)
"""

from __future__ import annotations

import hashlib
import os
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Set as AbstractSet
from operator import itemgetter
from pathlib import Path
from typing import Annotated

import msgspec

from floodmark import faults
from floodmark.files import durable_write

_OBJECT = re.compile(rb'\{\s*"event_id"\s*:\s*"([0-9a-f-]{36})"\s*,\s*"seq"\s*:\s*([0-9]{1,19})\s*\}')

_SEQ_MAX = 2**63 - 1
"""A position has room for no more."""


class _Line(msgspec.Struct, frozen=True, gc=False):
    event_id: str
    seq: Annotated[int, msgspec.Meta(le=_SEQ_MAX)]


class _Identity(msgspec.Struct, frozen=True):
    """The numbering's identity, and the part of the log that it was last seen with."""

    identity: str
    replica_id: str
    bytes: int
    sha256: str
    # Whether the log existed before the identity: positions stored by other tools then refer to it.
    adopted: bool = False


_number = itemgetter(0)
_decode_lines = msgspec.json.Decoder(list[_Line]).decode


class IngestionLog:
    """The numbering of one replica."""

    def __init__(self, root: Path, *, replica: str, read_only: bool, make_identity: Callable[[], str]) -> None:
        self.path = root / "index" / "ingestion.log"
        self._name = str(self.path)
        self._identity_path = root / "index" / "ingestion.identity"
        self._absent_path = root / "index" / "absent.json"
        self._replica = replica
        self._read_only = read_only
        self._make_identity = make_identity
        self._descriptor: int | None = None
        self._inode = 0
        self._unsynced = False
        self.repaired: str | None = None
        self.load()

    # Reading

    def load(self) -> None:
        """Read the log from disk, repairing it if this is the writer."""
        self._close_descriptor()
        existed = self.path.exists()
        raw = self.path.read_bytes() if existed else b""
        entries, clean, lost = _parse(raw)
        self.entries = entries
        self._lasts: dict[str, int] = {event_id: seq for seq, event_id in entries}
        self.last = entries[-1][0] if entries else 0
        self.renumbered = _named_twice(entries, self._lasts)
        if clean != raw and not self._read_only:
            self.repaired = "an incomplete line was dropped" if not lost else "unreadable lines were dropped"
            durable_write(self.path, clean)
        self._size = len(clean)
        self._torn = False
        self._stamp = _stamp(self._name)
        absent = self._load_absent()
        self._choose_identity(clean, existed=existed, lost=lost or absent is None)
        self.absent = absent or set()
        if absent is None and not self._read_only:
            # After the new identity: until that is durable, the damage must still be there to be seen.
            durable_write(self._absent_path, b"[]")

    def _load_absent(self) -> set[str] | None:
        """None if it cannot be read: an event that was passed over may be back already, and nothing tells which (E8).

        The numbering then gets a new identity, so that readers go by what they have applied.
        """
        try:
            return set(msgspec.json.decode(self._absent_path.read_bytes(), type=list[str]))
        except FileNotFoundError:
            return set()
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            return None

    def _choose_identity(self, content: bytes, *, existed: bool, lost: bool) -> None:
        known = self._load_identity()
        stands = (
            known is not None
            and existed
            and not lost
            and known.replica_id == self._replica
            and len(content) >= known.bytes
            and hashlib.sha256(content[: known.bytes]).hexdigest() == known.sha256
        )
        if known is not None and stands:
            self.identity, self.adopted = known.identity, known.adopted
        else:
            self.identity, self.adopted = self._make_identity(), known is None and existed and not lost
            self.save_identity(content)

    def _load_identity(self) -> _Identity | None:
        try:
            return msgspec.json.decode(self._identity_path.read_bytes(), type=_Identity)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            return None

    def save_identity(self, content: bytes | None = None) -> None:
        """Bind the identity to the log's current content, so that another log in its place is detected (E7)."""
        if self._read_only:
            return
        if content is None:
            self.sync()
            content = self.path.read_bytes()[: self._size] if self._size else b""
        digest = hashlib.sha256(content).hexdigest()
        record = _Identity(self.identity, self._replica, len(content), digest, self.adopted)
        durable_write(self._identity_path, msgspec.json.encode(record))

    def changed_on_disk(self) -> bool:
        """Whether another process has written to the log since this one last read it."""
        return _stamp(self._name) != self._stamp

    def seq(self, event_id: str) -> int | None:
        return self._lasts.get(event_id)

    def entry_at(self, seq: int) -> str | None:
        """The event that was given this number."""
        place = bisect_left(self.entries, seq, key=_number)
        found = place < len(self.entries) and self.entries[place][0] == seq
        return self.entries[place][1] if found else None

    def entries_after(self, seq: int) -> Iterator[tuple[int, str]]:
        """Every number above `seq` with its event, including replaced numbers."""
        for place in range(bisect_right(self.entries, seq, key=_number), len(self.entries)):
            yield self.entries[place]

    def after(self, seq: int) -> Iterator[tuple[int, str]]:
        """Numbers and events above `seq`; for an event with two numbers, only the later."""
        for number, event_id in self.entries_after(seq):
            if self._lasts[event_id] == number:
                yield number, event_id

    def numbers_of(self, event_id: str) -> Iterator[int]:
        """Every number that the event was ever given."""
        last = self._lasts.get(event_id)
        if last is None:
            return iter(())
        if event_id not in self.renumbered:
            return iter((last,))
        return (seq for seq, numbered in self.entries if numbered == event_id)

    def __len__(self) -> int:
        return len(self._lasts)

    def event_ids(self) -> AbstractSet[str]:
        return self._lasts.keys()

    # Writing

    def assign(self, event_ids: list[str]) -> None:
        """Number events, in this order; their lines are durable after the next `sync`."""
        if not event_ids:
            return
        numbered = list(enumerate(event_ids, self.last + 1))
        lines = _encode(numbered)
        descriptor = self._open_descriptor()
        if self._torn:
            # The rest of an incomplete write would otherwise be part of this line.
            os.ftruncate(descriptor, self._size)
        # Until it is complete; a full disk may stop it at any byte.
        self._torn = True
        _write_all(descriptor, lines)
        self._torn = False
        faults.reach("eventlog.ingested")
        self._unsynced = True
        self._size += len(lines)
        self._stamp = (self._inode, self._size)
        for seq, event_id in numbered:
            if event_id in self._lasts:
                self.renumbered.add(event_id)
            self._lasts[event_id] = seq
        self.entries.extend(numbered)
        self.last += len(numbered)

    def sync(self) -> None:
        if self._unsynced and self._descriptor is not None:
            os.fsync(self._descriptor)
            self._unsynced = False

    def set_absent(self, absent: set[str]) -> None:
        """Record on disk which numbered events currently have no file (E8)."""
        if absent != self.absent:
            if not self._read_only:
                durable_write(self._absent_path, msgspec.json.encode(sorted(absent)))
            self.absent = absent

    def close(self) -> None:
        self.sync()
        self._close_descriptor()

    def _open_descriptor(self) -> int:
        if self._descriptor is None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._descriptor = os.open(self.path, flags, 0o644)
            self._inode = os.fstat(self._descriptor).st_ino
        return self._descriptor

    def _close_descriptor(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _encode(entries: Iterable[tuple[int, str]]) -> bytes:
    return "".join([f'{{"event_id":"{event_id}","seq":{seq}}}\n' for seq, event_id in entries]).encode()


def _parse(raw: bytes) -> tuple[list[tuple[int, str]], bytes, bool]:
    """The entries in order of number, the log that they make, and whether a line other than the last was lost."""
    if not raw:
        return [], b"", False
    try:
        text = raw.removesuffix(b"\n").replace(b"\n", b",")
        entries = [(line.seq, line.event_id) for line in _decode_lines(b"[%b]" % text)]
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _parse_damaged(raw)
    numbers = [seq for seq, _ in entries]
    if sorted(set(numbers)) != numbers or numbers[0] < 1:
        return _parse_damaged(raw)
    return entries, raw if raw.endswith(b"\n") else raw + b"\n", False


def _parse_damaged(raw: bytes) -> tuple[list[tuple[int, str]], bytes, bool]:
    found: list[tuple[int, str]] = []
    lost = False
    *whole, tail = raw.split(b"\n")
    for line in whole:
        found += _salvage(line)
        # What stands between whole entries is the remains of others.
        lost = lost or _OBJECT.sub(b"", line).strip() != b""
    found += _salvage(tail)
    by_number = {seq: event_id for seq, event_id in found if 0 < seq <= _SEQ_MAX}
    # One number for two events: a stored number would be ambiguous.
    lost = lost or len(by_number) < len(found)
    entries = sorted(by_number.items())
    return entries, _encode(entries), lost


def _salvage(line: bytes) -> list[tuple[int, str]]:
    return [(int(match[2]), match[1].decode()) for match in _OBJECT.finditer(line)]


def _named_twice(entries: list[tuple[int, str]], lasts: dict[str, int]) -> set[str]:
    if len(entries) == len(lasts):
        return set()
    return {event_id for seq, event_id in entries if lasts[event_id] != seq}


def _stamp(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)  # noqa: PTH116 - in every append
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_size


def _write_all(descriptor: int, content: bytes) -> None:
    written = os.write(descriptor, content)
    while written < len(content):
        written += os.write(descriptor, content[written:])
