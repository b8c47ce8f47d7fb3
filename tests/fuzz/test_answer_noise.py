"""Servers that answer with anything: the forwarder says what it makes of it, and every row still arrives once."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from unittest import mock

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from noise import JSON, TEXTS, altered, dumped, mutated
from trying import TRIED, inputs, refusal, scratch

from floodmark.delivery.sinks import forward, http
from floodmark.delivery.sinks.http import Reply
from scenarios.delivery.parcels import CHANNEL, STORE, Sender, in_a_row, numbered
from scenarios.delivery.servers import HUB, KeyOnlyServer

GIVEN_UP = {"rows": 1, "ranges": [[0, 1]], "more": False}
STORED = {
    "stored": 3,
    "ledger": {"through": 3, "rows": 3, "checksum": "00000000000000ff", "given_up": GIVEN_UP},
    "acknowledged": {
        "hub": HUB,
        "origin": STORE,
        "dataset": "m",
        "partition": "all",
        "after": 0,
        "through": 3,
        "rows": 3,
        "checksum": numbered(3).tally.checksum_text,
        "replay": False,
    },
}
PROBLEM = {
    "type": "urn:floodmark:problem:LedgerAhead",
    "title": "LedgerAhead",
    "status": 409,
    "detail": "The ledger ends at 2.",
    "hint": "Send the rows after it.",
    "hub": HUB,
    "ledger": {"through": 2, "rows": 2, "checksum": "00000000000000ff", "given_up": GIVEN_UP},
}
LEDGER = {
    "hub": HUB,
    "versions": [1, 2],
    "origin": "o",
    "channels": [
        {
            "dataset": "m",
            "partition": "all",
            "through": 3,
            "rows": 3,
            "checksum": "00000000000000ff",
            "given_up": GIVEN_UP,
        }
    ],
    "reads": ["application/x-ndjson", "application/vnd.apache.arrow.stream"],
}
BODIES = st.one_of(
    altered(STORED).map(dumped),
    altered(PROBLEM).map(dumped),
    altered(LEDGER).map(dumped),
    mutated(orjson.dumps(STORED)),
    mutated(orjson.dumps(PROBLEM)),
    JSON.map(dumped),
    st.binary(max_size=100),
)
STATUSES = st.sampled_from(
    [200, 201, 202, 204, 206, 300, 302, 304, 400, 401, 403, 404, 409, 413, 422, 425, 429]
) | st.sampled_from([100, 199, 299, 418, 499, 500, 503, 599, 700, 999])
WAITS = (
    st.sampled_from(
        [None, "5", "-5", "1e9", "9" * 400, "Wed, 21 Oct 2099 07:28:00 GMT", "Wed, 99 Foo 0000", "٣", "", "nan", "inf"]
    )
    | TEXTS
)


class Saying:
    """An exchange in which the other side says these replies, whatever it is sent."""

    def __init__(self, replies: Iterator[Reply]) -> None:
        self._replies = replies

    def send(self, *_arguments: Any, **_options: Any) -> Reply:
        return next(self._replies)

    def close(self) -> None:
        pass


@pytest.fixture(scope="module")
def sending() -> Iterator[Sender]:
    with scratch() as place:
        made = Sender.make(place)
        yield made
        made.close()


@given(
    replies=st.lists(
        st.builds(Reply, STATUSES, BODIES, retry_after=WAITS, location=st.none() | TEXTS), min_size=2, max_size=4
    ),
    rows=st.integers(1, 4),
    met=st.booleans(),
)
@inputs(40)
def test_any_answer_is_a_delivery_or_says_what_is_wrong(
    sending: Sender, replies: list[Reply], rows: int, met: bool
) -> None:
    left = iter([*([Reply(200, orjson.dumps(LEDGER))] if met else []), *replies * 400])
    with mock.patch.object(forward, "Exchange", return_value=Saying(left)):
        sink = sending.sink("http://hub.invalid", accept="hub" if met else "status")
    for ask in (lambda: sink.held(CHANNEL, after=0), lambda: sink.deliver(numbered(rows))):
        refusal("answers to the forwarder", ask)


@pytest.fixture(scope="module")
def noisy() -> Iterator[Any]:
    """A server that says given bytes, whatever it is asked."""
    listener = socket.create_server(("127.0.0.1", 0))
    said: list[bytes] = [b""]

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection, suppress(OSError):
                connection.settimeout(2)
                connection.recv(65536)
                connection.sendall(said[0])

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield said, f"http://127.0.0.1:{listener.getsockname()[1]}"
    listener.close()


ANSWER = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(orjson.dumps(STORED))
) + orjson.dumps(STORED)


@given(said=mutated(ANSWER) | mutated(ANSWER.replace(b"Content-Length: ", b"Transfer-Encoding: chunked\r\nX: ")))
@inputs(6)
def test_bytes_that_are_no_answer_deliver_nothing_and_lose_nothing(
    sending: Sender, noisy: Any, said: bytes, monkeypatch_module: Any
) -> None:
    content, url = noisy
    content[0] = said
    sink = sending.sink(url, timeout_seconds=2)
    try:
        refusal("bytes from a server", lambda: sink.deliver(numbered(3)))
    finally:
        sink.close()
        sending.opened.remove(sink)


@pytest.fixture(scope="module")
def monkeypatch_module() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(http, "WHOLE_TIMEOUTS", 1)
        yield patch


def test_after_all_that_an_honest_server_gets_every_row_once(sending: Sender) -> None:
    TRIED["answers to the forwarder"] += 1
    with KeyOnlyServer() as server:
        sink = sending.sink(server.url)
        for parcel in in_a_row(3, 2):
            sink.deliver(parcel)
        assert [row["n"] for row in server.rows()] == [1, 2, 3, 4, 5]
