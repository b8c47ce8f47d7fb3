"""Rows from any HTTP client: captured like other rows, and with an idempotency key exactly once.

Without a key the rows are written to the landing log, as in `Store.capture`. With a key they become a segment, together
with those of other requests that arrived meanwhile, and all receipts are stored in the transaction that registers it
(H1): a retry, at any worker, gets the same receipt and stores nothing.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import orjson
from sqlalchemy import Connection

from floodmark import faults, wire
from floodmark.control import datasets, quarantine, requests
from floodmark.control.requests import Request
from floodmark.engine import Engine
from floodmark.errors import KeyReused, MalformedChunk, Retryable
from floodmark.hub.shares import Room
from floodmark.jsonread import read_json
from floodmark.rows.jsontext import NotJson, plain_json
from floodmark.rows.textlines import Problem, not_an_object, parse_lines
from floodmark.spool.capture import Capture, Prepared, Receipt, Texts
from floodmark.spool.quarantine import Sender

KEY_CHARACTERS_MAX = 255
RACES_MAX = 20
JSON_LINES = frozenset({"application/x-ndjson", "application/jsonl", "application/x-jsonlines"})
JSON_ARRAY = "application/json"


@dataclass(slots=True)
class Keyed:
    """A request with a key, fitted and waiting to be stored with others."""

    request: Request
    prepared: Prepared
    leads: bool = False
    outcome: Future[Receipt | None] = field(default_factory=Future)
    """None: another request stored the key meanwhile; read it again."""


@dataclass(slots=True)
class _Groups:
    """Requests with keys, of each dataset, that will share a segment. The thread of the first request stores them all.

    A segment costs two transactions and two fsyncs, for any number of rows. So requests that arrive while one is being
    written are grouped, as lines of the landing log are.
    """

    joining: threading.Lock = field(default_factory=threading.Lock)
    writing: dict[str, threading.Lock] = field(default_factory=dict)
    open: dict[str, list[Keyed]] = field(default_factory=dict)

    def join(self, dataset: str, item: Keyed) -> None:
        with self.joining:
            group = self.open.setdefault(dataset, [])
            item.leads = not group
            group.append(item)

    def close(self, dataset: str) -> list[Keyed]:
        """The next request begins another group."""
        with self.joining:
            return self.open.pop(dataset)

    def lock(self, dataset: str) -> threading.Lock:
        with self.joining:
            return self.writing.setdefault(dataset, threading.Lock())


@dataclass(slots=True)
class Captures:
    """Accepts captures in one worker. Threads share it."""

    engine: Engine
    spool: Capture
    content_bytes_max: int
    limits: wire.Limits = field(default_factory=wire.Limits)
    quarantine_max: int = 10_000
    quarantine_token_max: int = 1_000
    room: Room = field(default_factory=Room)
    _groups: _Groups = field(default_factory=_Groups)

    def accept(
        self, dataset: str, body: bytes, *, encoding: str, media: str, key: str | None, token: str = ""
    ) -> Receipt:
        """Store the rows of a request; when this returns, they are durable."""
        if key is None:
            return self.accept_unkeyed(dataset, body, encoding=encoding, media=media, token=token)
        for _ in range(RACES_MAX):
            found = self.enter(dataset, body, encoding=encoding, media=media, key=key, token=token)
            receipt = found if isinstance(found, Receipt) else found.outcome.result()
            if receipt is not None:
                return receipt
        raise lost_races()

    def accept_unkeyed(self, dataset: str, body: bytes, *, encoding: str, media: str, token: str = "") -> Receipt:
        texts = self._texts(self._content(dataset, body, encoding), media)
        self.room.check(dataset, token, *self.spool.room(dataset))
        receipt = self.spool.capture_texts(dataset, texts, sender=self._sender(dataset, token))
        self.room.add(dataset, token, len(body))
        faults.reach("hub.accepted")
        return receipt

    def enter(self, dataset: str, body: bytes, **how: str) -> Receipt | Keyed:
        """Begin, and store the group if this request leads it: in one call, because others wait for the leader."""
        found = self.begin(dataset, body, **how)
        if isinstance(found, Keyed) and found.leads:
            self.store_group(dataset)
        return found

    def begin(
        self, dataset: str, body: bytes, *, encoding: str, media: str, key: str, token: str = ""
    ) -> Receipt | Keyed:
        """The receipt of a known key; otherwise the request, fitted and in a group."""
        known = self.engine.database.read(lambda c: _known(c, dataset=dataset, token=token, key=key))
        content = wire.decompress(body, encoding, bytes_max=self.content_bytes_max)
        digest = wire.digest_of(content)
        if known is not None:
            return _receipt(known, digest)
        texts = self._texts(content, media)
        self.room.check(dataset, token, *self.spool.room(dataset))
        prepared = self.spool.prepare(dataset, texts, sender=self._sender(dataset, token))
        self.room.add(dataset, token, len(body))
        receipt = prepared.receipt
        item = Keyed(Request(dataset, token, key, digest, receipt.rows, receipt.quarantined), prepared)
        self._groups.join(dataset, item)
        return item

    def store_group(self, dataset: str) -> None:
        """Store all requests of the dataset's group, and set the outcome of each."""
        with self._groups.lock(dataset):
            group = self._groups.close(dataset)
            try:
                self._store(group)
            except BaseException as error:
                for item in group:
                    if not item.outcome.done():
                        item.outcome.set_exception(error)
                raise

    def _store(self, group: list[Keyed]) -> None:
        """H1: rows and receipts in one transaction. If a key was stored meanwhile, each request is stored alone."""

        def remember(connection: Connection) -> bool:
            now = self.engine.clock.now()
            if not requests.record_all(connection, [item.request for item in group], now=now):
                return False
            faults.reach("hub.stored")
            return True

        if self.spool.store([item.prepared for item in group], also=remember):
            faults.reach("hub.accepted")
            for item in group:
                item.outcome.set_result(item.prepared.receipt)
        elif len(group) == 1:
            group[0].outcome.set_result(None)
        else:
            for item in group:
                self._store([item])

    def _content(self, dataset: str, body: bytes, encoding: str) -> bytes:
        self.engine.database.read(
            lambda c: datasets.get(c, dataset)
        )  # an unknown dataset is reported before other errors
        return wire.decompress(body, encoding, bytes_max=self.content_bytes_max)

    def _sender(self, dataset: str, token: str) -> Sender:
        """The sender, and the free space in quarantine: a faulty client can fill only its own share."""

        def room() -> int:
            own, total = self.engine.database.read(lambda c: quarantine.held_entries(c, dataset, token=token))
            return min(self.quarantine_token_max - own, self.quarantine_max - total)

        return Sender(token, room)

    def _texts(self, content: bytes, media: str) -> Texts:
        """The objects of a JSON array, or of JSON lines; other elements are quarantined."""
        if media in JSON_LINES:
            # Blank lines too: each uses memory until it is skipped.
            self.limits.check_rows(content.count(b"\n"))
        self.limits.check_text(content)
        found = self._lines(content) if media in JSON_LINES else _elements(content)
        wire.check_objects(found.rows, self.limits)
        return found

    def _lines(self, content: bytes) -> Texts:
        parsed = parse_lines(
            content,
            before=0,
            place=lambda number: f"line {number} of a request",
            line_bytes_max=self.engine.settings.spool.line_bytes_max,
        )
        return Texts(parsed.rows, lambda row: f"line {parsed.numbers[row]} of a request", problems=parsed.problems)


def lost_races() -> Retryable:
    return Retryable(f"This request conflicted {RACES_MAX} times with others that have the same key.")


def _known(connection: Connection, *, dataset: str, token: str, key: str) -> Request | None:
    """The stored request; an unknown dataset is reported before other errors."""
    datasets.get(connection, dataset)
    return requests.find(connection, dataset=dataset, token=token, key=key)


def _receipt(known: Request, digest: str) -> Receipt:
    if known.digest != digest:
        raise KeyReused(
            "This idempotency key was used before, for a request with other rows.",
            hint="Nothing was stored. Use a new key for every request that is not a retry.",
        )
    return Receipt(rows=known.rows, quarantined=known.quarantined)


def _elements(content: bytes) -> Texts:
    try:
        elements = read_json(content)
    except ValueError:
        raise _malformed("The body is not JSON.") from None
    if type(elements) is not list:
        raise _malformed("The body is not a JSON array.")
    if set(map(type, elements)) <= {dict}:
        return Texts(elements, lambda row: f"element {row} of a request")
    places = [index for index, element in enumerate(elements) if type(element) is dict]
    problems = [
        Problem(f"element {index} of a request", not_an_object(element), _text_of(element))
        for index, element in enumerate(elements)
        if type(element) is not dict
    ]
    return Texts(
        [elements[index] for index in places], lambda row: f"element {places[row]} of a request", problems=problems
    )


def _text_of(element: Any) -> bytes:
    """An element as JSON; its `repr` if it is nested too deeply."""
    try:
        return orjson.dumps(plain_json(element))
    except (NotJson, TypeError):
        return repr(element).encode()


def _malformed(message: str) -> MalformedChunk:
    return MalformedChunk(
        message,
        hint="Nothing was stored. Send an array of objects as application/json, or JSON lines as application/x-ndjson.",
    )
