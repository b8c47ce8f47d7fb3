"""The transaction file: one immutable file per transaction, read and written byte for byte.

Terms
    header        line 1: who wrote the transaction, what it had seen, and the hash of the rest.
    body          everything after the first LF: one line per event; blank lines are passed over.
    base          per stream, the version that the writer saw when it wrote.
    decision      a fork that this transaction settles: the stream and the concurrent transactions on it.

Invariants
    E1  A transaction file is written once and never changed. Whatever differs from its hashes is reported
        and left out; it never stops the rest from being read.
    E2  What one tool writes the other reads: our additions are extra header fields, which readers that
        do not know them skip.

The content hash covers the body only. Our own header hash (`floodmark_header_hash`, always the last field)
covers the header's other bytes, content hash included, so no byte of a file of ours can change unseen.
"""

from __future__ import annotations

import hashlib
import math
import re
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
import orjson

from floodmark.errors import UnserialisableValue
from floodmark.eventlog.identifiers import as_uuid

FORMAT_VERSION = 2
_VERSION_MAX = 2**63 - 1
SUFFIX = ".jsonl"

_HEADER_HASH = re.compile(rb',"([^"]*)":"([0-9a-f]{64})"}$')
# An unpaired surrogate, and a number beyond a double: the decoder does not detect them.
_DOUBTFUL = re.compile(rb"\\u[dD]|[0-9.][eE]\+?[0-9]{3}|[0-9]{300}")
_NESTING_SAFE = 1000
_STRICT = orjson.OPT_SORT_KEYS | orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_DATACLASS


@dataclass(frozen=True, slots=True)
class Event:
    """An event to append: its stream, its data (any JSON value), its type and metadata."""

    stream: str
    data: Any
    type: str = "Event"
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RecordedEvent(Event):
    """An event as the log holds it.

    `version` counts within the stream in canonical order and may change when a merge brings earlier
    events; `seq` and `position` are this replica's own and never change. Both are None where they do not
    apply: a read-only log cannot number events that no writer has taken in yet.
    """

    event_id: str = ""
    transaction_id: str = ""
    replica_id: str = ""
    parents: tuple[str, ...] = ()
    created_at: str = ""
    depth: int = 0
    ordinal: int = 0
    version: int = 0
    seq: int | None = None
    position: UUID | None = None


class EventKey(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The in-memory part of an event; its data stays in the file."""

    event_id: str
    stream: str
    type: str


class Decision(msgspec.Struct, frozen=True, gc=False):
    """A fork that a transaction resolves, with the field names of the header."""

    stream_id: str
    transaction_ids: tuple[str, ...]


class Transaction(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One valid transaction, without its events' data.

    `decides` is None for files of tools that do not mark decisions; `converted` says that the file's line
    ends were turned into CRLF on the way.
    """

    id: str
    replica: str
    parents: tuple[str, ...]
    created_at: str
    bases: dict[str, int]
    events: tuple[EventKey, ...]
    decides: tuple[Decision, ...] | None = None
    converted: bool = False

    @property
    def streams(self) -> frozenset[str]:
        """The streams it writes to; those it only read are in `bases` alone."""
        return frozenset(event.stream for event in self.events)


class InvalidTransaction(Exception):
    """The reason why a file is not a valid transaction. It is reported, not raised to callers."""


class _Header(msgspec.Struct, gc=False):
    record: Literal["header"]
    format_version: int
    transaction_id: str
    replica_id: str
    parent_transaction_ids: list[str]
    created_at: str
    stream_bases: dict[str, Annotated[int, msgspec.Meta(ge=0, le=_VERSION_MAX)]]
    content_hash: str | None = None
    floodmark_header_hash: str | None = None
    floodmark_decides: tuple[Decision, ...] = ()


class EventLine(msgspec.Struct, gc=False):
    """One event line, its data and metadata still as bytes."""

    record: Literal["event"]
    event_id: str
    stream_id: str
    event_type: str
    event_data: msgspec.Raw
    stream_version: int = 0
    metadata: msgspec.Raw = msgspec.Raw(b"{}")


_decode_header = msgspec.json.Decoder(_Header).decode
_decode_line = msgspec.json.Decoder(EventLine).decode


def parse(raw: bytes, *, name: str) -> tuple[Transaction, list[EventLine]]:
    """Check a file's bytes in full; `name` is the transaction id that the file name states."""
    try:
        raw.decode()
        return _parse(raw, name=name)
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
        # ValidationError is a DecodeError: both say which field is wrong and why.
        raise InvalidTransaction(f"not a transaction: {error}") from error
    except RecursionError as error:
        raise InvalidTransaction("not a transaction: it is nested too deeply") from error


def _parse(raw: bytes, *, name: str) -> tuple[Transaction, list[EventLine]]:
    # A raw CR cannot stand inside JSON text, so CRLF can only be a line end that a checkout converted;
    # turning it back is lossless, and the hash then proves that it was.
    converted = b"\r\n" in raw
    if converted:
        raw = raw.replace(b"\r\n", b"\n")
    line, newline, body = raw.partition(b"\n")
    if not newline or (body and not body.endswith(b"\n")):
        raise InvalidTransaction("incomplete: the file ends in the middle of a line")
    header = _decode_header(line)
    _check_header(header, line, body, name=name)
    # Other tools write a transaction without events as a header and one blank line. A blank line holds nothing, and the
    # hash above covers it: one that came in later is damage, as any other change is.
    lines = [_decode_line(text) for text in body.split(b"\n") if text.strip()]
    if _DOUBTFUL.search(body) or body.count(b"[") + body.count(b"{") > _NESTING_SAFE:
        for line_of in lines:  # an event that passes here and cannot be read later would stop every reader of the log
            orjson.loads(memoryview(line_of.event_data))
            orjson.loads(memoryview(line_of.metadata))
    events = tuple(EventKey(as_uuid(e.event_id), e.stream_id, e.event_type) for e in lines)
    if len({event.event_id for event in events}) != len(events):
        raise InvalidTransaction("it contains an event id twice")
    transaction = Transaction(
        id=name,
        replica=as_uuid(header.replica_id),
        parents=tuple(as_uuid(parent) for parent in header.parent_transaction_ids),
        created_at=header.created_at,
        bases=header.stream_bases,
        events=events,
        decides=header.floodmark_decides if header.floodmark_header_hash is not None else None,
        converted=converted,
    )
    return transaction, lines


def _check_header(header: _Header, line: bytes, body: bytes, *, name: str) -> None:
    if not 1 <= header.format_version <= FORMAT_VERSION:
        raise InvalidTransaction(f"format_version {header.format_version} is not supported (supported: 1, 2)")
    if as_uuid(header.transaction_id) != name:
        raise InvalidTransaction(f"its header names transaction {header.transaction_id}, which is not its file name")
    if header.content_hash is not None and header.content_hash != hashlib.sha256(body).hexdigest():
        raise InvalidTransaction("the events do not match content_hash: the file was changed after it was written")
    match = _HEADER_HASH.search(line)
    named = match is not None and match[1] == b"floodmark_header_hash"
    holds = match is not None and hashlib.sha256(line[: match.start()] + b"}").hexdigest().encode() == match[2]
    # A hash that holds under another name is ours too: its name is what was changed.
    if (header.floodmark_header_hash is not None or named or holds) and not (named and holds):
        raise InvalidTransaction("the header does not match its hash: it was changed after it was written")


def encode(
    transaction: Transaction,
    records: list[tuple[int, Event]],
) -> bytes:
    """The file of a transaction. `records` pairs each event with its (advisory) stream version."""
    body = b"".join(
        [
            encode_event(key.event_id, version, event)
            for key, (version, event) in zip(transaction.events, records, strict=True)
        ]
    )
    header: dict[str, Any] = {
        "record": "header",
        "format_version": FORMAT_VERSION,
        "transaction_id": transaction.id,
        "replica_id": transaction.replica,
        "parent_transaction_ids": transaction.parents,
        "created_at": transaction.created_at,
        "stream_bases": dict(sorted(transaction.bases.items())),
        "content_hash": hashlib.sha256(body).hexdigest(),
    }
    if transaction.decides is None:
        return orjson.dumps(header) + b"\n" + body
    if transaction.decides:
        header["floodmark_decides"] = [
            {"stream_id": decision.stream_id, "transaction_ids": decision.transaction_ids}
            for decision in transaction.decides
        ]
    line = orjson.dumps(header)
    seal = hashlib.sha256(line).hexdigest().encode()
    return line[:-1] + b',"floodmark_header_hash":"' + seal + b'"}\n' + body


def encode_event(event_id: str, version: int, event: Event) -> bytes:
    return orjson.dumps(
        {
            "record": "event",
            "event_id": event_id,
            "stream_id": event.stream,
            "stream_version": version,
            "event_type": event.type,
            "event_data": orjson.Fragment(_encode_value(event.data, event)),
            "metadata": orjson.Fragment(_encode_value(event.metadata, event)),
        },
        option=orjson.OPT_APPEND_NEWLINE,
    )


def _encode_value(value: Any, event: Event) -> bytes:
    try:
        text = orjson.dumps(value, option=_STRICT)
    except TypeError as error:
        raise UnserialisableValue(
            f"An event for stream {event.stream!r} cannot be written: {error}.",
            hint="Event data is JSON: text, numbers, booleans, null, lists, and dictionaries with text keys.",
        ) from error
    # The encoder writes NaN and infinity as null, which would silently change the data.
    if b"null" in text and _holds_non_finite(value):
        raise UnserialisableValue(
            f"An event for stream {event.stream!r} contains NaN or infinity, which JSON cannot express.",
            hint="Write null or text instead.",
        )
    return text


def _holds_non_finite(value: Any) -> bool:
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, float) and not math.isfinite(item):
            return True
        if isinstance(item, dict):
            pending.extend(item.values())
        elif isinstance(item, list | tuple):
            pending.extend(item)
    return False
