"""Rows from any HTTP client: captured as any others, and with a key exactly once.

Without a key the rows go to the landing log, as `Store.capture` does it. With one they become a segment, and the key's
receipt is stored in the transaction that registers it (H1): a retry, by whichever worker it is met, gets the same
receipt and stores nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson
from sqlalchemy import Connection

from floodmark import faults, wire
from floodmark.control import datasets, requests
from floodmark.control.requests import Request
from floodmark.errors import KeyReused, MalformedChunk, Retryable
from floodmark.hub.intake import Intake
from floodmark.jsonread import read_json
from floodmark.rows import Problem
from floodmark.rows.jsontext import NotJson, plain_json
from floodmark.rows.textlines import not_an_object, parse_lines
from floodmark.spool.capture import Receipt, Texts

KEY_CHARACTERS_MAX = 255
RACES_MAX = 20
JSON_LINES = frozenset({"application/x-ndjson", "application/jsonl", "application/x-jsonlines"})
JSON_ARRAY = "application/json"


@dataclass(frozen=True, slots=True)
class Captures:
    """One worker's way of taking captures. Threads share it."""

    intake: Intake
    content_bytes_max: int

    def accept(self, dataset: str, body: bytes, *, encoding: str, media: str, key: str | None) -> Receipt:
        """Store the rows of a request; when this returns, they are durable."""
        self.intake.database.read(lambda c: datasets.get(c, dataset))  # an unknown one is told before anything else
        content = wire.decompress(body, encoding, bytes_max=self.content_bytes_max)
        if key is None:
            receipt = self.intake.capture.capture_texts(dataset, self._texts(content, media))
            faults.reach("hub.accepted")
            return receipt or Receipt(rows=0)
        return self._accept_once(dataset, content, media=media, key=key)

    def _accept_once(self, dataset: str, content: bytes, *, media: str, key: str) -> Receipt:
        digest = wire.digest_of(content)

        def remember(connection: Connection, receipt: Receipt) -> bool:
            request = Request(dataset, key, digest, receipt.rows, receipt.quarantined)
            if not requests.record(connection, request, now=self.intake.clock.now()):
                return False
            faults.reach("hub.stored")
            return True

        for _ in range(RACES_MAX):
            known = self.intake.database.read(lambda c: requests.find(c, dataset=dataset, key=key))
            if known is not None:
                return _receipt(known, digest)
            receipt = self.intake.capture.capture_texts(dataset, self._texts(content, media), also=remember)
            if receipt is not None:
                faults.reach("hub.accepted")
                return receipt
        raise Retryable(f"Other requests with the same key came in the way {RACES_MAX} times.")

    def _texts(self, content: bytes, media: str) -> Texts:
        """The objects of a JSON array, or of JSON lines; what among them is no object goes to quarantine."""
        if media in JSON_LINES:
            parsed = parse_lines(
                content,
                before=0,
                place=lambda number: f"line {number} of a request",
                line_bytes_max=self.intake.capture.limits.line_bytes_max,
            )
            return Texts(parsed.rows, lambda row: f"line {parsed.numbers[row]} of a request", problems=parsed.problems)
        return _elements(content)


def _receipt(known: Request, digest: str) -> Receipt:
    if known.digest != digest:
        raise KeyReused(
            "This idempotency key was used before, for a request with other rows.",
            hint="Nothing was stored. Use a fresh key for every request that is not a retry.",
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
    """An element as JSON again; what Python shows of it, where it nests too deep."""
    try:
        return orjson.dumps(plain_json(element))
    except (NotJson, TypeError):
        return repr(element).encode()


def _malformed(message: str) -> MalformedChunk:
    return MalformedChunk(
        message,
        hint="Nothing was stored. Send an array of objects as application/json, or JSON lines as application/x-ndjson.",
    )
