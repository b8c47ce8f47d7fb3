"""Bombs, torn bodies, wrong lengths, garbage: refused, nothing stored, nothing told about the inside."""

from __future__ import annotations

import asyncio
import gzip
import re
from dataclasses import replace
from pathlib import Path

import orjson
import pyarrow as pa
import pytest
from answers import problem

from floodmark import wire
from floodmark.hub import chunks
from sending import Sender, entry, segment_states

MB = 1 << 20


@pytest.fixture
def sender(media) -> Sender:
    sender = Sender(media=media)
    sender.add(10)
    return sender


def stores(test):
    """Marks the tests in which something is stored after all."""
    test.stores = True
    return test


@pytest.fixture(autouse=True)
def _nothing_is_stored(request, store):
    yield
    if not getattr(request.function, "stores", False):
        assert entry(store) is None
        assert segment_states(store) == []
        assert store.status().datasets[0].spool.landing_bytes == 0


def ask(hub, *, headers, messages, path="/v1/datasets/events/capture"):
    """An exchange in ASGI's own words, for what no proper client would send. The answer's status and body."""

    async def exchange():
        sent = []
        waiting = iter(messages)

        async def receive():
            message = next(waiting, None)
            if message is None:
                await asyncio.Event().wait()  # for ever
            return message

        async def send(message):
            sent.append(message)

        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": "POST",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "scheme": "http",
            "query_string": b"",
            "headers": [(name.lower().encode(), value.encode()) for name, value in headers],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 2),
        }
        await hub.app(scope, receive, send)
        return sent[0], b"".join(message.get("body", b"") for message in sent)

    start, body = asyncio.run(exchange())
    return start["status"], orjson.loads(body), dict(start["headers"])


JSON = ("Content-Type", "application/json")


def part(body: bytes, *, more: bool = False) -> dict:
    return {"type": "http.request", "body": body, "more_body": more}


# ── size ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("encoding", ["zstd", "gzip"])
@pytest.mark.parametrize("route", ["chunks", "capture"])
def test_a_bomb_is_stopped_before_it_takes_memory(store, start_hub, sender, encoding, route):
    store.add_dataset("events")
    hub = start_hub(store, content_bytes_max=8 * MB)
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, encoding) as stream:
        for _ in range(128):
            stream.write(bytes(MB))
    bomb = sink.getvalue().to_pybytes()
    assert len(bomb) < MB
    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here
    before = peak_bytes()
    if route == "capture":
        response = hub.capture(bomb, Content_Encoding=encoding)
    else:
        chunk = sender.chunk(0, 10)
        response = hub.post(chunk.path, bomb, {**chunk.headers(), "Content-Encoding": encoding})
    problem(response, 413, "TooLarge")
    assert peak_bytes() - before < 48 * MB


def peak_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024


@pytest.mark.parametrize("parts", [1, 7])
def test_a_body_above_the_limit_is_refused_with_its_length_or_without(store, start_hub, parts):
    store.add_dataset("events")
    hub = start_hub(store, body_bytes_max=10_000)
    size = 15_000
    pieces = [part(b" " * (size // parts), more=index < parts - 1) for index in range(parts)]
    length = sum(len(piece["body"]) for piece in pieces)
    for headers in ([JSON], [JSON, ("Content-Length", str(length))]):
        status, content, _ = ask(hub, headers=headers, messages=pieces)
        assert (status, content["title"]) == (413, "TooLarge")


def test_a_client_that_never_stops_sending_is_cut_off(store, start_hub):
    store.add_dataset("events")
    hub = start_hub(store, body_bytes_max=10_000)
    endless = (part(b" " * 1000, more=True) for _ in range(10**9))
    status, content, headers = ask(hub, headers=[JSON], messages=endless)
    assert (status, content["title"]) == (413, "TooLarge")
    assert headers[b"connection"] == b"close"


@stores
def test_a_body_of_just_the_limit_is_taken(store, start_hub):
    store.add_dataset("events")
    body = orjson.dumps([{"id": 1}])
    hub = start_hub(store, body_bytes_max=len(body), content_bytes_max=len(body))
    assert hub.capture(body).status_code == 200
    problem(hub.capture(body + b" "), 413, "TooLarge")


def test_a_chunks_header_is_bounded(hub, sender):
    chunk = sender.chunk(0, 10)
    headers = {**chunk.headers(), wire.HEADER: "A" * (wire.HEADER_CHARACTERS_MAX + 1)}
    problem(hub.post(chunk.path, chunk.body, headers), 400, "MalformedChunk")


# ── half a body ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_half_a_body_is_not_stored(hub):
    messages = [part(b'[{"id":1}]', more=True), {"type": "http.disconnect"}]
    status, content, _ = ask(hub, headers=[JSON], messages=messages)
    assert (status, content["title"]) == (400, "MalformedChunk")


@pytest.mark.parametrize("length", ["9", "11", "0", "-10", "ten", "1e1", "٣", "9" * 30])
def test_a_wrong_content_length_is_refused(hub, length):
    status, _, _ = ask(
        hub,
        headers=[JSON, ("Content-Length", length)] if length.isascii() else [JSON, ("Content-Length", "x")],
        messages=[part(b'[{"id":1}]')],
    )
    assert status in {400, 413}


def test_a_client_that_goes_to_sleep_is_cut_off(store, start_hub):
    store.add_dataset("events")
    hub = start_hub(store, request_seconds_max=0.05)
    status, content, headers = ask(hub, headers=[JSON], messages=[part(b"[", more=True)])
    assert (status, content["title"]) == (408, "TooSlow")
    assert headers[b"connection"] == b"close"


@pytest.mark.parametrize("cut", [1, 10, 100])
@pytest.mark.parametrize("encoding", ["zstd", "identity"])
def test_a_torn_chunk_is_refused(hub, sender, cut, encoding):
    chunk = sender.chunk(0, 10)
    body = (chunk.body if encoding == "zstd" else chunk.content)[:-cut]
    problem(hub.post(chunk.path, body, {**chunk.headers(), "Content-Encoding": encoding}), 400, "MalformedChunk")


@pytest.mark.parametrize("encoding", ["zstd", "gzip"])
def test_a_torn_capture_is_refused(hub, encoding):
    whole = orjson.dumps([{"id": number} for number in range(1000)])
    packed = wire.compress(whole) if encoding == "zstd" else gzip.compress(whole)
    problem(hub.capture(packed[: len(packed) // 2], Content_Encoding=encoding), 400, "MalformedChunk")
    problem(hub.capture(b"garbage", Content_Encoding=encoding), 400, "MalformedChunk")


# ── garbage ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "change",
    [
        {"digest": "0" * 64},
        {"tally": replace(Sender().total(0), rows=9)},
        {"tally": replace(Sender().total(0), rows=10, checksum=1)},
    ],
)
def test_a_chunk_that_is_not_what_it_says_is_refused(hub, sender, change):
    problem(hub.send(sender.chunk(0, 10, **change)), 400, "MalformedChunk")


@pytest.mark.parametrize("header", ["", "garbage", "e30", "bnVsbA", "%%%%"])
def test_a_header_that_is_garbage_is_refused(hub, sender, header):
    chunk = sender.chunk(0, 10)
    problem(hub.post(chunk.path, chunk.body, {**chunk.headers(), wire.HEADER: header}), 400, "MalformedChunk")


def test_a_chunk_without_its_header_is_refused(hub, sender):
    chunk = sender.chunk(0, 10)
    headers = {name: value for name, value in chunk.headers().items() if name != wire.HEADER}
    problem(hub.post(chunk.path, chunk.body, headers), 400, "BadRequest")


@pytest.mark.parametrize(
    "name",
    ["Content-Length", "Content-Type", "Content-Encoding", "Idempotency-Key", "Authorization", "Floodmark-Chunk"],
)
def test_a_header_that_came_twice_is_refused(hub, sender, name):
    chunk = sender.chunk(0, 10)
    headers = list({**chunk.headers(), "Content-Length": str(len(chunk.body)), "Authorization": "Bearer x"}.items())
    path = chunk.path if name != "Idempotency-Key" else "/v1/datasets/events/capture"
    headers = [
        (key, value if name != "Idempotency-Key" or key != "Content-Type" else wire.LINES) for key, value in headers
    ]
    again = next(item for item in headers if item[0] == name)
    status, content, _ = ask(hub, headers=[*headers, again], messages=[part(chunk.body)], path=path)
    assert (status, content["title"]) == (400, "BadRequest")


@pytest.mark.parametrize("other", ["", "text/plain", "application/json", "application/x-ndjson; charset=latin-1"])
def test_a_chunk_of_another_type_is_refused(hub, sender, other):
    problem(hub.send(sender.chunk(0, 10), Content_Type=other), 415, "UnsupportedType")


@pytest.mark.parametrize("media", ["", "text/csv", "multipart/form-data", "application/json; charset=utf-16"])
def test_a_capture_of_another_type_is_refused(hub, media):
    problem(hub.capture(b"[]", Content_Type=media), 415, "UnsupportedType")


@pytest.mark.parametrize("encoding", ["br", "deflate", "gzip, gzip", "zstd;q=1", "x"])
def test_another_encoding_is_refused_with_those_that_are_read(hub, sender, encoding):
    for response in (
        hub.send(sender.chunk(0, 10), Content_Encoding=encoding),
        hub.capture(b"", Content_Encoding=encoding),
    ):
        problem(response, 415, "UnsupportedEncoding")
        assert "zstd" in response.headers["accept-encoding"]


def test_addresses_and_methods_that_there_are_not_are_told_so(hub):
    problem(hub.get("/v1/datasets/events/chunks"), 405, "NotAllowed")
    problem(hub.get("/nothing"), 404, "NotFound")
    problem(hub.post("/v1/ledger/edge-1"), 405, "NotAllowed")


# ── trouble inside ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("error", "status", "name"),
    [
        (ZeroDivisionError("/secret/path fmk_token"), 500, "Unexpected"),
        (MemoryError(), 500, "Unexpected"),
        (RecursionError("deep"), 500, "Unexpected"),
    ],
)
def test_what_goes_wrong_inside_is_not_told_to_the_client(hub, sender, monkeypatch, caplog, error, status, name):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(wire, "decode_lines", fail)
    monkeypatch.setattr(wire, "decode_columns", fail)
    response = hub.send(sender.chunk(0, 10))
    problem(response, status, name)
    assert "secret" not in response.text
    assert "secret" not in caplog.text
    assert type(error).__name__ in caplog.text


def test_records_that_contradict_each_other_are_told_in_general(hub, store, sender, monkeypatch):
    from floodmark.errors import Corrupt, OutcomeUnknown

    def fail(error):
        def add(*_, **__):
            raise error

        return add

    monkeypatch.setattr(chunks, "store", fail(Corrupt(f"{store.path} is broken")))
    problem(hub.send(sender.chunk(0, 10)), 500, "Corrupt")
    monkeypatch.setattr(chunks, "store", fail(OutcomeUnknown(f"{store.path} is away")))
    response = hub.send(sender.chunk(0, 10))
    problem(response, 503, "OutcomeUnknown")
    assert response.headers["retry-after"]


def test_more_requests_than_a_worker_takes_are_told_to_come_again(store, start_hub):
    store.add_dataset("events")
    hub = start_hub(store, requests_max=1)
    assert hub.hub.places.take("another")
    response = hub.capture(b"[]")
    problem(response, 429, "Crowded")
    assert int(response.headers["retry-after"]) > 0
    assert hub.get("/healthz").status_code == 200, "who asks for health is not turned away"
    hub.hub.places.leave("another")
    assert hub.capture(b"[]").status_code == 200
    assert hub.hub.places.taken == 0


def test_an_address_with_a_slash_too_many_is_no_address_and_nobody_is_sent_elsewhere(hub):
    problem(hub.get("/healthz/"), 404, "NotFound")
    problem(hub.post("/v1/datasets/events/capture/", b"[]"), 404, "NotFound")
