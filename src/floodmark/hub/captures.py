"""Rows from any HTTP client: captured as any others, and with a key exactly once.

Without a key the rows go to the landing log, as `Store.capture` does it. With one they become a segment, and the key's
receipt is stored in the transaction that registers it (H1): a retry, by whichever worker it is met, gets the same
receipt and stores nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import orjson
from sqlalchemy import Connection

from floodmark import faults, wire
from floodmark.control import datasets, quarantine, requests
from floodmark.control.requests import Request
from floodmark.errors import KeyReused, MalformedChunk, Retryable
from floodmark.hub.intake import Intake
from floodmark.spool.capture import Receipt
from floodmark.spool.payloads import Sender

KEY_CHARACTERS_MAX = 255
RACES_MAX = 20
JSON_LINES = frozenset({"application/x-ndjson", "application/jsonl", "application/x-jsonlines"})
JSON_ARRAY = "application/json"
_BLANK_LINES = re.compile(rb"\n\s+")


@dataclass(frozen=True, slots=True)
class Captures:
    """One worker's way of taking captures. Threads share it."""

    intake: Intake
    content_bytes_max: int
    limits: wire.Limits = field(default_factory=wire.Limits)
    quarantine_max: int = 10_000
    quarantine_token_max: int = 1_000

    def accept(
        self, dataset: str, body: bytes, *, encoding: str, media: str, key: str | None, token: str = ""
    ) -> Receipt:
        """Store the rows of a request; when this returns, they are durable."""
        self.intake.database.read(lambda c: datasets.get(c, dataset))  # an unknown one is told before anything else
        content = wire.decompress(body, encoding, bytes_max=self.content_bytes_max)
        if key is None:
            rows = self._rows(content, media)
            receipt = self.intake.capture.capture(dataset, rows, sender=self._sender(dataset, token))
            faults.reach("hub.accepted")
            return receipt
        return self._accept_once(dataset, content, media=media, key=key, token=token)

    def _accept_once(self, dataset: str, content: bytes, *, media: str, key: str, token: str) -> Receipt:
        digest = wire.digest_of(content)

        def remember(connection: Connection, receipt: Receipt) -> bool:
            request = Request(dataset, token, key, digest, receipt.rows, receipt.quarantined)
            if not requests.record(connection, request, now=self.intake.clock.now()):
                return False
            faults.reach("hub.stored")
            return True

        for _ in range(RACES_MAX):
            known = self.intake.database.read(lambda c: requests.find(c, dataset=dataset, token=token, key=key))
            if known is not None:
                return _receipt(known, digest)
            receipt = self.intake.capture.capture_once(
                dataset, self._rows(content, media), sender=self._sender(dataset, token), also=remember
            )
            if receipt is not None:
                faults.reach("hub.accepted")
                return receipt
        raise Retryable(f"Other requests with the same key came in the way {RACES_MAX} times.")

    def _sender(self, dataset: str, token: str) -> Sender:
        """Who sends, and how much room quarantine has: a bad client fills its own share and not everybody's."""

        def room() -> int:
            mine, everybodys = self.intake.database.read(lambda c: quarantine.held_entries(c, dataset, token=token))
            return min(self.quarantine_token_max - mine, self.quarantine_max - everybodys)

        return Sender(token, room)

    def _rows(self, content: bytes, media: str) -> list[Any]:
        """The objects of a JSON array, or of JSON lines; blank lines do not count."""
        if media in JSON_LINES:
            content = _BLANK_LINES.sub(b"\n", content)
            self.limits.check_rows(content.count(b"\n"))
        self.limits.check_text(content)
        rows = _parsed(content, media)
        wire.check_objects(rows, self.limits)
        return rows


def _receipt(known: Request, digest: str) -> Receipt:
    if known.digest != digest:
        raise KeyReused(
            "This idempotency key was used before, for a request with other rows.",
            hint="Nothing was stored. Use a fresh key for every request that is not a retry.",
        )
    return Receipt(rows=known.rows, quarantined=known.quarantined)


def _parsed(content: bytes, media: str) -> list[Any]:
    if media in JSON_LINES:
        return wire.parse_lines(content.strip())
    try:
        rows = orjson.loads(content)
    except ValueError:
        raise _malformed("The body is not JSON.") from None
    if type(rows) is not list:
        raise _malformed("The body is not a JSON array.")
    if not set(map(type, rows)) <= {dict}:
        index = next(index for index, row in enumerate(rows) if type(row) is not dict)
        raise _malformed(f"Element {index} of the array is not an object.")
    return rows


def _malformed(message: str) -> MalformedChunk:
    return MalformedChunk(
        message,
        hint="Nothing was stored. Send an array of objects as application/json, or JSON lines as application/x-ndjson.",
    )
