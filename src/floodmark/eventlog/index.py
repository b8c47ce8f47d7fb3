"""The persisted index: what was learnt from the transaction files, so that opening need not read them.

E10  The index is a cache and never believed: it is used only if its checksum holds, and of its entries only
     those whose file still has the signature it was read with. Deleting, tearing, ageing or copying it
     costs time, never correctness.

A file's time stamps have a granularity; a file changed twice within it looks unchanged. Entries as young as
that when the index was written are therefore read again.
"""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

import msgspec

from floodmark import faults
from floodmark.eventlog.directory import Signature
from floodmark.eventlog.history import History
from floodmark.eventlog.transactions import Transaction

_MAGIC = b"floodmark event log index 1 "
_HEADER_BYTES = len(_MAGIC) + 64 + 1
_SETTLE_NANOSECONDS = 50_000_000


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
    """The index, or None if it is missing, torn, or of another version."""
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
    """Write the index in one step. It is not synced: after a power cut its checksum tells."""
    transactions = list(history)
    body = msgspec.msgpack.encode(
        _Body(
            settled_before=time.time_ns() - _SETTLE_NANOSECONDS,
            transactions=transactions,
            depths=[history.graph.depth[t.id] for t in transactions],
            signatures=[number for t in transactions for number in signatures[t.id]],
        )
    )
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_bytes(_MAGIC + hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
    faults.reach("eventlog.index_staged")
    temporary.rename(path)
