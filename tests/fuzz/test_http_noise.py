"""Requests of any kind to a hub: an answer that the reference documents, and nothing stored that was refused."""

from __future__ import annotations

import asyncio
import base64
import gzip
import hashlib
import json
import logging
import re
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import orjson
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from noise import PIECES, TEXTS, altered, dumped, mutated
from sqlalchemy import func, select
from trying import REFUSED, SECONDS_MAX, TRIED, fresh, inputs, scratch_store

from floodmark import wire
from floodmark.control.schema import ledger, quarantine, requests, segments
from floodmark.hub.access import add_token
from floodmark.hub.app import Hub, build_app
from floodmark.hub.settings import HubSettings
from floodmark.store import Store
from sending import Sender, spooled

REFERENCE = (Path(__file__).parents[2] / "docs" / "reference" / "http.md").read_text()
ENDPOINTS = [tuple(found) for found in re.findall(r"^\| `(GET|POST) (/[^`]*)` \|", REFERENCE, re.MULTILINE)]
STATUSES = {
    int(status): set(re.findall(r"`(\w+)`", names))
    for status, names in re.findall(r"^\| ([45]\d\d) \| (.*?) \|", REFERENCE, re.MULTILINE)
}
LEAKS = ("Traceback", ".py", "/tmp", "/dev/shm", "sqlite", "0x7f")
CAPTURE = "application/json"


@dataclass
class Told:
    status: int
    headers: dict[str, str]
    body: bytes


class Stand:
    """A hub, its store, and the question whether anything was stored."""

    def __init__(self, store: Store) -> None:
        self.store = store
        store.add_dataset("events")
        store.add_dataset("strict", ["id"], schema={"id": "long not null", "at": "timestamp", "more": "json"})
        limits = HubSettings(body_bytes_max=50_000, content_bytes_max=100_000, request_seconds_max=0.2)
        self.hub = Hub(store.engine, store.spool, limits)
        self.app = build_app(self.hub)
        self.loop = asyncio.new_event_loop()

    def close(self) -> None:
        self.hub.close()
        self.loop.close()

    def holdings(self) -> tuple[Any, ...]:
        """What would differ if anything had been stored."""

        def counted(connection: Any) -> list[int]:
            return [
                connection.execute(select(func.count()).select_from(table)).scalar_one()
                for table in (segments, ledger, requests, quarantine)
            ]

        moved = self.store.engine.database.read(lambda c: c.execute(select(func.sum(ledger.c.version))).scalar_one())
        landing = sum(file.stat().st_size for file in self.store.path.rglob("landing/*.jsonl"))
        return (*self.store.engine.database.read(counted), moved, landing)

    def ask(
        self,
        method: str,
        path: str,
        headers: list[tuple[bytes, bytes]],
        messages: list[dict[str, Any]],
        query: bytes = b"",
    ) -> Told:
        """One exchange in ASGI's own words, so that anything can be said."""

        async def exchange() -> Told:
            sent: list[dict[str, Any]] = []
            waiting = iter(messages)

            async def receive() -> Any:
                message = next(waiting, None)
                if message is None:
                    await asyncio.Event().wait()  # for ever
                return message

            async def send(message: dict[str, Any]) -> None:
                sent.append(message)

            scope = {
                "type": "http",
                "http_version": "1.1",
                "method": method,
                "path": path,
                "raw_path": quote(path).encode(),
                "root_path": "",
                "scheme": "http",
                "query_string": query,
                "headers": headers,
                "client": ("127.0.0.1", 1),
                "server": ("127.0.0.1", 2),
            }
            await self.app(scope, receive, send)
            named = {name.decode("latin-1"): value.decode("latin-1") for name, value in sent[0]["headers"]}
            return Told(sent[0]["status"], named, b"".join(message.get("body", b"") for message in sent))

        return self.loop.run_until_complete(asyncio.wait_for(exchange(), SECONDS_MAX))


def check(told: Told, before: tuple[Any, ...], after: tuple[Any, ...], kind: str) -> None:
    TRIED[kind] += 1
    text = told.body.decode()
    for leak in LEAKS:
        assert leak not in text, text
    if told.status == 200:
        return
    REFUSED[kind] += 1
    assert told.status in STATUSES, (told.status, text)
    assert told.status != 500, text
    problem = orjson.loads(told.body)
    assert told.headers["content-type"] == "application/problem+json"
    assert problem["title"] in STATUSES[told.status], problem
    assert problem["status"] == told.status
    assert problem["detail"]
    assert "\x1b" not in problem["detail"] + problem.get("hint", "")
    assert after == before, problem


@pytest.fixture(scope="module")
def place() -> Iterator[Stand]:
    with scratch_store() as store:
        made = Stand(store)
        yield made
        made.close()


def sender(media: str, rows: int = 4) -> Sender:
    made = Sender(origin=fresh("edge"), media=media)
    made.add(rows)
    return made


# ── requests, from the reference ──────────────────────────────────────────────────────────────────────────────────────

HEADERS = {
    "content-type": [CAPTURE, "application/x-ndjson", wire.COLUMNS, "text/plain", "application/json; charset=utf-16"],
    "content-encoding": ["identity", "zstd", "gzip", "br", "gzip, gzip"],
    "content-length": ["0", "5", "-1", "99999999999999999999", "0x10", "²", "1e3", "50001"],
    "idempotency-key": ["k", "x" * 255, "x" * 256, "", "a\tb", "é"],
    "authorization": ["Bearer fmk_x", "Bearer", "Basic eDp5", "bearer  ", "Bearer " + "x" * 600],
    "floodmark-chunk": ["", "e30", "bnVsbA", "%%%", "A" * 300_000],
    "accept": ["text/html"],
    "expect": ["100-continue"],
    "transfer-encoding": ["chunked", "gzip"],
}
NAMES = st.sampled_from(list(HEADERS))


@st.composite
def header_lists(draw: Any) -> list[tuple[bytes, bytes]]:
    found = []
    for name in draw(st.lists(NAMES, max_size=5)):
        value = draw(st.sampled_from(HEADERS[name]) | st.text(max_size=10))
        found.append((name.encode(), value.encode("utf-8", "replace")))
    return found


@st.composite
def messages(draw: Any, body: bytes) -> list[dict[str, Any]]:
    """A body in pieces, that may end in the middle or go on for ever."""
    cuts = sorted(draw(st.lists(st.integers(0, max(len(body), 1)), max_size=3)))
    pieces = [body[start:end] for start, end in zip([0, *cuts], [*cuts, len(body)], strict=True)]
    found: list[dict[str, Any]] = [{"type": "http.request", "body": piece, "more_body": True} for piece in pieces]
    ending = draw(st.sampled_from(["whole"] * 8 + ["breaks off", "hangs"]))
    if ending == "whole":
        found[-1]["more_body"] = False
    elif ending == "breaks off":
        found.append({"type": "http.disconnect"})
    return found


BODIES = st.one_of(
    altered([{"id": 1, "text": "x"}, {"id": 2}]).map(dumped),
    mutated(b'[{"id":1,"text":"x","at":"2026-01-01T00:00:00Z"}]'),
    mutated(b'{"id":1}\n{"id":2}\n\n{"id":3}'),
    st.sampled_from([b"[" * 3000, b'[{"a":' * 600 + b"1" + b"}]" * 600, b"[]", b"", b"[{}]", b"[[]]", b"{}", *PIECES]),
    st.binary(max_size=50),
)
QUERIES = st.sampled_from([b"", b"dataset=events", b"dataset=%ff&partition=%00", b"&&=&x", b"dataset=a&dataset=b"])


@given(data=st.data())
@inputs(30)
def test_any_request_gets_an_answer_of_the_reference(place: Stand, data: st.DataObject) -> None:
    method, path = data.draw(st.sampled_from(ENDPOINTS))
    method = data.draw(st.sampled_from([method] * 6 + ["GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "X"]))
    names = st.sampled_from(["events", "strict", "nothing", "..", "%2e%2e", "a/b", "\0", "events "]) | TEXTS
    path = re.sub(r"\{\w+\}", lambda _: data.draw(names), path)
    path = data.draw(st.sampled_from([path] * 9 + [path + "/", "/" + path, path.upper(), path[:-1]]))
    body = data.draw(BODIES)
    before = place.holdings()
    told = place.ask(method, path, data.draw(header_lists()), data.draw(messages(body)), data.draw(QUERIES))
    if method == "HEAD":
        return
    check(told, before, place.holdings(), "HTTP requests")


@given(data=st.data())
@inputs(25)
def test_a_capture_is_stored_as_it_is_counted_or_not_at_all(place: Stand, data: st.DataObject) -> None:
    dataset = fresh("captured")
    place.store.add_dataset(dataset, schema=data.draw(st.sampled_from([None, {"id": "long", "text": "string"}])))
    media = data.draw(st.sampled_from([CAPTURE, "application/x-ndjson"]))
    body = data.draw(BODIES)
    encoding = data.draw(st.sampled_from(["identity", "zstd", "gzip"]))
    packed = {"identity": lambda b: b, "zstd": wire.compress, "gzip": gzip.compress}[encoding](body)
    if encoding != "identity" and data.draw(st.booleans()):
        packed = data.draw(mutated(packed))
    headers = [(b"content-type", media.encode()), (b"content-encoding", encoding.encode())]
    if data.draw(st.booleans()):
        headers.append((b"idempotency-key", fresh("key").encode()))
    before = place.holdings()
    pieces = [{"type": "http.request", "body": packed, "more_body": False}]
    told = place.ask("POST", f"/v1/datasets/{dataset}/capture", headers, pieces)
    check(told, before, place.holdings(), "captures over HTTP")
    if told.status == 200:
        place.store.spool.give_file_up(dataset)
        place.store.seal(dataset)
        receipt = orjson.loads(told.body)
        assert len(spooled(place.store, dataset)) == receipt["rows"]
        assert len(place.store.quarantine.entries(dataset)) == receipt["quarantined"]


# ── chunks ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def encoded(content: Any) -> str:
    return base64.urlsafe_b64encode(dumped(content)).decode().rstrip("=")


def decoded(text: str) -> Any:
    return json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))


@pytest.mark.parametrize("media", wire.MEDIA, ids=["lines", "columns"])
@given(data=st.data())
@inputs(15)
def test_a_chunk_whose_header_was_changed_is_refused_or_is_another_chunk(
    place: Stand, media: str, data: st.DataObject
) -> None:
    chunk = sender(media).chunk(0, 4)
    whole = decoded(chunk.header.encode())
    if data.draw(st.booleans()):
        text = encoded(data.draw(altered(whole)))
    else:
        text = data.draw(mutated(chunk.header.encode().encode())).decode("latin-1")
    headers = {**chunk.headers(), wire.HEADER: text}
    before = place.holdings()
    listed = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]
    pieces = [{"type": "http.request", "body": chunk.body, "more_body": False}]
    told = place.ask("POST", chunk.path, listed, pieces)
    check(told, before, place.holdings(), "chunks")


@pytest.mark.parametrize("media", wire.MEDIA, ids=["lines", "columns"])
@given(data=st.data())
@inputs(20)
def test_a_body_that_was_changed_with_its_digest_is_read_or_refused_as_a_whole(
    place: Stand, media: str, data: st.DataObject
) -> None:
    """The digest guards against damage and not against malice: behind it, the parsers must hold."""
    made = sender(media)
    chunk = made.chunk(0, 4)
    if media == wire.LINES and data.draw(st.booleans()):
        rows = [json.loads(line) for line in chunk.content.splitlines()]
        body = b"\n".join(dumped(row) for row in data.draw(altered(rows).filter(lambda rows: isinstance(rows, list))))
    else:
        body = data.draw(mutated(chunk.content))
    header = decoded(chunk.header.encode())
    header["digest"] = hashlib.sha256(body).hexdigest()
    if data.draw(st.integers(0, 3)) == 0:
        header["types"] = data.draw(st.dictionaries(TEXTS, st.sampled_from(["long", "json", "list<json>", "x"])))
    dataset = data.draw(st.sampled_from(["events", "strict"]))
    listed = [
        (b"content-type", media.encode()),
        (wire.HEADER.lower().encode(), encoded(header).encode()),
    ]
    before, rows_before = place.holdings(), len(spooled(place.store, dataset))
    pieces = [{"type": "http.request", "body": body, "more_body": False}]
    told = place.ask("POST", f"/v1/datasets/{dataset}/chunks", listed, pieces)
    check(told, before, place.holdings(), "bodies of chunks")
    stored = orjson.loads(told.body)["stored"] if told.status == 200 else 0
    assert len(spooled(place.store, dataset)) == rows_before + stored
    if len(spooled(place.store, dataset)) > 50:
        place.store.flush(dataset)


def test_columns_of_types_that_there_are_not_are_refused(place: Stand) -> None:
    made = sender(wire.COLUMNS)
    chunk = made.chunk(0, 4)
    table = pa.ipc.open_stream(chunk.content).read_all()
    odd = [
        pa.array([None] * 4, pa.null()),
        pa.array([[1]] * 4, pa.list_view(pa.int64())),
        pa.DictionaryArray.from_arrays(pa.array([0, 1, 0, 1], pa.int8()), pa.array(["a", "b"])),
        pa.array([{"a": 1}] * 4, pa.struct([("a", pa.int8())])),
        pa.array([{"a": 1}] * 4, pa.map_(pa.string(), pa.int64())),
        pa.RunEndEncodedArray.from_arrays(pa.array([4], pa.int32()), pa.array(["x"])),
        pa.array([1] * 4, pa.duration("s")),
        pa.UnionArray.from_dense(pa.array([0] * 4, pa.int8()), pa.array(range(4), pa.int32()), [pa.array(range(4))]),
    ]
    for name in ("odd", "_origin_seq", "_origin_id", "", "_ingest_seq"):
        for array in odd:
            other = made.chunk(0, 4)
            changed = table.append_column(name, array)
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, changed.schema) as stream:
                stream.write_table(changed)
            body = sink.getvalue().to_pybytes()
            header = {**decoded(other.header.encode()), "digest": hashlib.sha256(body).hexdigest()}
            header["origin"] = fresh("odd")
            listed = [(b"content-type", wire.COLUMNS.encode()), (b"floodmark-chunk", encoded(header).encode())]
            before = place.holdings()
            pieces = [{"type": "http.request", "body": body, "more_body": False}]
            told = place.ask("POST", "/v1/datasets/events/chunks", listed, pieces)
            check(told, before, place.holdings(), "bodies of chunks")


# ── tokens ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@given(data=st.data())
@inputs(10)
def test_nothing_but_a_token_opens_a_hub_that_has_one(guarded: Any, data: st.DataObject) -> None:
    stand, secret = guarded
    value = data.draw(
        st.one_of(
            mutated(f"Bearer {secret}".encode()),
            st.sampled_from([b"", b"Bearer", b"Bearer ", f"Basic {secret}".encode(), secret.encode()]),
        ).filter(lambda text: text.split(b" ", 1)[-1].strip() != secret.encode())
    )
    before = stand.holdings()
    headers = [(b"content-type", b"application/json"), (b"authorization", value)]
    pieces = [{"type": "http.request", "body": b'[{"id":1}]', "more_body": False}]
    told = stand.ask("POST", "/v1/datasets/events/capture", headers, pieces)
    assert told.status in {400, 401}
    check(told, before, stand.holdings(), "tokens")
    assert secret not in told.body.decode()


@pytest.fixture(scope="module")
def guarded() -> Iterator[tuple[Stand, str]]:
    with scratch_store() as store:
        made = Stand(store)
        _, secret = add_token(store, "only", any_origin=True, any_dataset=True, rights=["capture"])
        yield made, secret
        made.close()


# ── sockets ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def port() -> Iterator[tuple[Stand, int]]:
    """The hub behind a real socket, with uvicorn and the protocol of the product in between."""
    import uvicorn

    from floodmark.hub.serve import BoundedProtocol

    with scratch_store() as store:
        made = Stand(store)
        listener = socket.create_server(("127.0.0.1", 0))
        config = uvicorn.Config(
            made.app, http=BoundedProtocol, ws="none", loop="asyncio", lifespan="off", log_config=None, access_log=False
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        yield made, listener.getsockname()[1]
        server.should_exit = True
        thread.join(10)
        made.close()


RAW = (
    b"POST /v1/datasets/events/capture HTTP/1.1\r\nHost: hub\r\nContent-Type: application/json\r\n"
    b'Content-Length: 10\r\n\r\n[{"id":1}]'
)
CHUNKED = (
    b"POST /v1/datasets/events/capture HTTP/1.1\r\nHost: hub\r\nContent-Type: application/json\r\n"
    b'Transfer-Encoding: chunked\r\n\r\n5\r\n[{"id\r\n5\r\n":1}]\r\n0\r\n\r\n'
)
LIES = [
    RAW.replace(b"Content-Length: 10", b"Content-Length: 10\r\nContent-Length: 9"),
    RAW.replace(b"Content-Length: 10", b"Content-Length: 10\r\nTransfer-Encoding: chunked"),
    RAW.replace(b"Content-Length: 10", b"Content-Length: -1"),
    RAW.replace(b"HTTP/1.1", b"HTTP/9.9"),
    RAW.replace(b"/v1/datasets/events/capture", b"http://elsewhere/v1/datasets/events/capture"),
    CHUNKED.replace(b"5\r\n[", b"FFFFFFFFFFFFFFFFF\r\n["),
    CHUNKED.replace(b"5\r\n[", b"-5\r\n["),
    CHUNKED.replace(b"0\r\n\r\n", b""),
    b"\x16\x03\x01\x02\x00\x01\x00",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
]


@given(request=mutated(RAW) | mutated(CHUNKED) | st.sampled_from(LIES))
@inputs(8)
def test_bytes_that_are_no_request_get_an_answer_or_an_end(port: tuple[Stand, int], request: bytes) -> None:
    stand, number = port
    TRIED["bytes on a socket"] += 1
    logging.getLogger("uvicorn").setLevel(logging.CRITICAL)
    with socket.create_connection(("127.0.0.1", number), timeout=5) as connection:
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        said = b""
        began = time.monotonic()
        try:
            while (piece := connection.recv(65536)) and time.monotonic() - began < SECONDS_MAX:
                said += piece
        except ConnectionError:
            pass
    assert b"Traceback" not in said
    assert b"500 Internal" not in said
    assert not said or said.startswith(b"HTTP/1.1 ")
    alive = stand.ask("GET", "/healthz", [], [{"type": "http.request", "body": b"", "more_body": False}])
    assert alive.status == 200


def test_the_reference_names_the_requests_and_statuses_that_are_tried_here() -> None:
    assert len(ENDPOINTS) == 7
    assert STATUSES[409] == {"LedgerBehind", "LedgerAhead", "DivergedHistory", "Loop"}
    assert len(STATUSES) == 14
