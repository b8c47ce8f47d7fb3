"""What a process knows of the files: the history, and which file each part of it came from.

Transitions
    load      the index, checked against the directory, then the files that it does not cover
    refresh   only the files that are new, changed or gone since
    add       a transaction that this process has just written
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from floodmark import faults
from floodmark.eventlog.directory import UNKNOWN, EventsDirectory, Signature, Stamp
from floodmark.eventlog.history import History
from floodmark.eventlog.transactions import SUFFIX, InvalidTransaction, Transaction, parse

# ── The persisted index: what was learnt from the transaction files, so that opening need not read them ──────────────
# E10  The index is a cache and never believed: it is used only if its checksum holds, and of its entries only
#      those whose file still has the signature it was read with. Deleting, tearing, ageing or copying it
#      costs time, never correctness.
#
# A file's time stamps have a granularity; a file changed twice within it looks unchanged. Entries as young as
# that when the index was written are therefore read again.


_MAGIC = b"floodmark event log index 1 "
_HEADER_BYTES = len(_MAGIC) + 64 + 1
SETTLE_NANOSECONDS = 50_000_000


class _Body(msgspec.Struct, array_like=True):
    """Transactions in canonical order; `signatures` holds four numbers for each."""

    settled_before: int
    transactions: list[Transaction]
    depths: list[int]
    signatures: list[int]


_decoder = msgspec.msgpack.Decoder(_Body)


class IndexContent(msgspec.Struct):
    """What the index knows, checked against its own sum but not yet against the files.

    Only files whose time stamps are below `settled_before` can be told from changed ones.
    """

    settled_before: int
    transactions: list[Transaction]
    depths: list[int]
    signatures: list[Signature]


def load(path: Path) -> IndexContent | None:
    """The index, or None if it is missing, incomplete, or of another version."""
    try:
        raw = path.read_bytes()
    except OSError:
        return None
    body = memoryview(raw)[_HEADER_BYTES:]
    if raw[:_HEADER_BYTES] != _MAGIC + hashlib.sha256(body).hexdigest().encode() + b"\n":
        return None
    try:
        found = _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    four = iter(found.signatures)
    signatures = list(zip(four, four, four, four, strict=True))
    return IndexContent(found.settled_before, found.transactions, found.depths, signatures)


def save(path: Path, history: History, signatures: dict[str, Signature]) -> None:
    """Write the index atomically. It is not synced: after a power loss its checksum detects damage."""
    transactions = list(history)
    body = msgspec.msgpack.encode(
        _Body(
            settled_before=time.time_ns() - SETTLE_NANOSECONDS,
            transactions=transactions,
            depths=[history.graph.depth[t.id] for t in transactions],
            signatures=[number for t in transactions for number in signatures[t.id]],
        )
    )
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_bytes(_MAGIC + hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
    faults.reach("eventlog.index_staged")
    temporary.rename(path)


# ── View ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


# The index is written again when it lags behind by this many files, and by this part of the whole: appending
# must not consist of rewriting it, and a process that dies must not leave much to read.
_LAG_FILES = 2048
_LAG_PART = 4


@dataclass(frozen=True, slots=True)
class IntegrityFailure:
    """A file that is not a valid transaction: skipped and reported."""

    file: str
    reason: str


class View:
    """The valid transactions of one directory, as of the last read."""

    def __init__(self, directory: EventsDirectory, index_path: Path) -> None:
        self._directory = directory
        self._index_path = index_path
        self.history = History()
        self._signatures: dict[str, Signature] = {}
        self._invalid: dict[str, tuple[Signature, str]] = {}
        self._strange: list[str] = []
        self._unindexed = 0
        self.stamp: Stamp = UNKNOWN

    def load(self) -> None:
        """Start from the index, if it is valid."""
        with _collector_paused():
            self._load()

    def _load(self) -> None:
        content = load(self._index_path)
        if content is None:
            self.refresh()
            return
        self.stamp = self._directory.stamp()
        found, self._strange = self._directory.scan({t.id for t in content.transactions})
        settled = content.settled_before
        sound = [
            (transaction, depth)
            for transaction, depth, signature in zip(
                content.transactions, content.depths, content.signatures, strict=True
            )
            if found.get(transaction.id) == signature and signature[1] < settled and signature[2] < settled
        ]
        # What is missing at the end of the order is above nothing, so the depths that the index states still
        # hold. In the middle it may be what others hang below.
        if not sound or content.transactions[len(sound) - 1] is sound[-1][0]:
            self.history = History.restored(sound)
        else:
            self.history = History.of(transaction for transaction, _ in sound)
        self._signatures = {transaction.id: found[transaction.id] for transaction, _ in sound}
        self._take_in(found)

    def refresh(self) -> list[str]:
        """Read the directory again; returns the new transactions."""
        # The stamp first: what is added during the scan then changes it again.
        self.stamp = self._directory.stamp()
        found, self._strange = self._directory.scan(self._signatures)
        stale = {t for t, signature in self._signatures.items() if found.get(t) != signature}
        if stale:
            self._signatures = {t: s for t, s in self._signatures.items() if t not in stale}
            self.history = History.of(self.history.all_of(self._signatures))
        return self._take_in(found)

    def _take_in(self, found: dict[str, Signature]) -> list[str]:
        arrived: list[Transaction] = []
        invalid: dict[str, tuple[Signature, str]] = {}
        for transaction_id in found.keys() - self._signatures.keys():
            signature = found[transaction_id]
            known = self._invalid.get(transaction_id)
            if known is not None and known[0] == signature:
                invalid[transaction_id] = known
                continue
            try:
                transaction, _ = parse(self._directory.read(transaction_id), name=transaction_id)
            except InvalidTransaction as error:
                invalid[transaction_id] = (signature, str(error))
            except FileNotFoundError:
                continue
            except OSError as error:
                invalid[transaction_id] = (signature, f"it cannot be read: {error.strerror}")
            else:
                arrived.append(transaction)
                self._signatures[transaction_id] = signature
        self._invalid = invalid
        self.history.extend(arrived)
        self._unindexed += len(arrived)
        return [transaction.id for transaction in arrived]

    def add(self, transaction: Transaction, signature: Signature) -> None:
        self._signatures[transaction.id] = signature
        self.history.add(transaction)
        self._unindexed += 1
        # If it is another directory by now, what else is in that one is not known.
        stamp = self._directory.held_stamp()
        self.stamp = stamp if stamp[0] == self.stamp[0] else UNKNOWN

    def failures(self) -> list[IntegrityFailure]:
        """Every skipped file, and why."""
        broken = {f"events/{t}{SUFFIX}": reason for t, (_, reason) in self._invalid.items()}
        for name in self._strange:
            broken[f"events/{name}"] = "its name is not a transaction id"
        for transaction_id in self.history.cyclic:
            broken[f"events/{transaction_id}{SUFFIX}"] = "it is its own ancestor: the parents form a cycle"
        return [IntegrityFailure(file, reason) for file, reason in sorted(broken.items())]

    def converted(self) -> list[str]:
        """Files whose line endings a checkout has converted; they are still read."""
        return [f"events/{t.id}{SUFFIX}" for t in self.history if t.converted]

    def lags(self) -> bool:
        return self._unindexed > max(_LAG_FILES, len(self.history) // _LAG_PART)

    def save_index(self) -> None:
        """Write the index if anything is new. It is a cache: a failed write is ignored."""
        if self._unindexed:
            with contextlib.suppress(OSError):
                save(self._index_path, self.history, self._signatures)
                self._unindexed = 0


@contextlib.contextmanager
def _collector_paused() -> Iterator[None]:
    """A long history is many small objects and no cycles: looking for cycles meanwhile doubles the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
