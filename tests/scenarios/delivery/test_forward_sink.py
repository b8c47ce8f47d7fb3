"""A chunk is one POST: what leaves, what is made ahead, what is too large, and which settings make sense."""

from __future__ import annotations

import contextlib
import hashlib
import re
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest

from floodmark import wire
from floodmark.control import provenance
from floodmark.delivery.destination import Destination, Parcel
from floodmark.delivery.outcomes import Busy, Oversized, Refused
from floodmark.delivery.sinks import forward
from floodmark.delivery.sinks.forward import HOPELESS, KIND, ForwardSink
from floodmark.errors import DivergedHistory, InvalidSetting, LedgerBehind, Loop, Permanent
from floodmark.sequence import SequenceRange, Tally
from floodmark.wire import HEADER_CHARACTERS_MAX, GivenUpRange
from scenarios.delivery.parcels import CHANNEL, STORE, Sender, in_a_row, numbered, parcel_of
from scenarios.delivery.servers import HUB, Answer, KeyOnlyServer, Reaction, Request, hub_says, in_turn

# ── what leaves ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_it_keeps_the_contract(sink: ForwardSink) -> None:
    destination: Destination = sink
    destination.open()
    assert KIND.contiguous
    assert KIND.secret == {"token"}


def test_opening_sends_nothing(sink: ForwardSink, server: KeyOnlyServer) -> None:
    sink.open()
    sink.close()
    assert server.requests == []
    assert server.connections == 0


def test_a_chunk_is_one_post_with_its_rows_its_header_and_its_key(sink: ForwardSink, server: KeyOnlyServer) -> None:
    parcel = numbered(2, after=40, before=Tally(38, 7), range=SequenceRange(39, 42))

    delivered = sink.deliver(parcel)

    (request,) = server.requests
    assert (request.method, request.path) == ("POST", "/v1/datasets/m/chunks")
    assert request.headers["content-type"] == "application/x-ndjson"
    assert request.headers["content-encoding"] == "zstd"
    assert request.key == f"{STORE}/m/all/39-42"
    assert request.token is None
    assert delivered.bytes == len(request.body)
    ids = [identifier[:16] for identifier in parcel.ids.to_pylist()]
    assert request.rows() == [
        {"n": 41, "text": "row 41", "_origin_seq": 41, "_origin_id": ids[0]},
        {"n": 42, "text": "row 42", "_origin_seq": 42, "_origin_id": ids[1]},
    ]
    assert request.chunk == {
        "version": 2,
        "origin": STORE,
        "partition": "all",
        "after": 39,
        "through": 42,
        "rows": 2,
        "checksum": f"{sum(int(one, 16) for one in ids) % 2**64:016x}",
        "before": {"rows": 38, "checksum": "0000000000000007"},
        "given_up": [],
        "replay": False,
        "path": [STORE],
        "digest": hashlib.sha256(request.text).hexdigest(),
    }


def test_rows_that_were_given_up_travel_as_a_range_and_a_replay_has_a_key_of_its_own(
    sink: ForwardSink, server: KeyOnlyServer
) -> None:
    given_up = GivenUpRange(SequenceRange(4, 7), Tally(2, 0xAC))
    sink.deliver(numbered(1, after=7, range=SequenceRange(4, 8), given_up=given_up))
    sink.deliver(numbered(1, after=5, replay=True))

    first, replay = server.requests
    assert first.chunk["given_up"] == [[4, 7, 2, "00000000000000ac"]]
    assert (replay.chunk["replay"], replay.key) == (True, f"{STORE}/m/all/5-6/replay")


def test_a_retry_is_the_same_request(sink: ForwardSink, server: KeyOnlyServer) -> None:
    server.script = in_turn(Answer(503))
    with pytest.raises(Busy):
        sink.deliver(numbered(5))
    sink.deliver(numbered(5))

    first, second = server.requests
    assert (first.key, first.body, first.chunk) == (second.key, second.body, second.chunk)
    assert len(server.rows()) == 5


def test_a_range_without_rows_moves_the_ledger_only(sink: ForwardSink, server: KeyOnlyServer) -> None:
    nothing = pa.chunked_array([], pa.int64())
    sink.deliver(
        Parcel(CHANNEL, SequenceRange(0, 9), pa.table({}), nothing, nothing.cast(pa.string()), Tally()),
    )
    assert (server.requests[0].chunk["rows"], server.requests[0].text) == (0, b"")


def test_parts_of_key_and_address_are_quoted(sender: Sender, server: KeyOnlyServer) -> None:
    server.script = hub_says()
    sink = sender.sink(f"{server.url}/behind/", origin="my store/ü", accept="hub")
    channel = replace(CHANNEL, partition="source=a%2Fb/day!")
    sink.deliver(replace(numbered(1), channel=channel))

    question, chunk = server.requests
    assert chunk.path == "/behind/v1/datasets/m/chunks"
    assert chunk.key == "my%20store%2F%C3%BC/m/source%3Da%252Fb%2Fday%21/0-1"
    assert chunk.chunk["partition"] == "source=a%2Fb/day!"
    assert question.path.startswith("/behind/v1/ledger/my%20store%2F%C3%BC")


def test_connections_are_kept_alive_between_chunks(sink: ForwardSink, server: KeyOnlyServer) -> None:
    for parcel in in_a_row(3, 3, 3, 3):
        sink.deliver(parcel)
    assert server.connections == 1


def test_partitions_share_the_sink_from_threads_and_each_row_arrives_once(
    sink: ForwardSink, server: KeyOnlyServer
) -> None:
    parcels = [replace(numbered(20), channel=replace(CHANNEL, partition=f"p={index}")) for index in range(40)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(sink.deliver, parcels))
    assert len(server.rows()) == 800
    assert server.connections <= KIND.defaults["concurrency"]


def test_a_connection_is_one_threads_at_a_time(
    sink: ForwardSink, server: KeyOnlyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pool that threads share may close a connection as idle on which a reply has just begun to arrive."""
    handle = httpx.HTTPTransport.handle_request
    busy: Counter[int] = Counter()
    most: Counter[int] = Counter()

    def watched(self: httpx.HTTPTransport, request: httpx.Request) -> httpx.Response:
        busy[id(self)] += 1
        most[id(self)] = max(most[id(self)], busy[id(self)])
        try:
            return handle(self, request)
        finally:
            busy[id(self)] -= 1

    monkeypatch.setattr(httpx.HTTPTransport, "handle_request", watched)
    parcels = [replace(numbered(3), channel=replace(CHANNEL, partition=f"p={index}")) for index in range(40)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(sink.deliver, parcels))
    assert set(most.values()) == {1}
    assert server.connections <= KIND.defaults["concurrency"]


# ── lines or columns ──────────────────────────────────────────────────────────────────────────────────────────────────


READS = [wire.LINES, wire.COLUMNS]


def test_a_hub_that_reads_columns_gets_columns(sender: Sender, server: KeyOnlyServer) -> None:
    server.script = hub_says(reads=READS)
    sink = sender.sink(server.url, accept="hub")
    sink.held(CHANNEL, after=0)
    sink.deliver(numbered(3))

    sent = server.requests[-1]
    assert sent.headers["content-type"] == wire.COLUMNS
    came = wire.decode_columns(sent.text, wire.ChunkHeader.parse(sent.headers["floodmark-chunk"]))
    assert came.table.to_pylist() == [{"n": n, "text": f"row {n}"} for n in (1, 2, 3)]


@pytest.mark.parametrize("reads", [None, "all", [], [wire.LINES], [None, {}]])
def test_a_hub_that_does_not_say_so_gets_lines(sender: Sender, server: KeyOnlyServer, reads: object) -> None:
    server.script = hub_says(reads=reads)
    sink = sender.sink(server.url, accept="hub")
    sink.held(CHANNEL, after=0)
    sink.deliver(numbered(3))
    assert server.requests[-1].headers["content-type"] == wire.LINES


def test_a_hub_that_was_exchanged_for_one_that_reads_lines_only_gets_lines(
    sender: Sender, server: KeyOnlyServer
) -> None:
    says = hub_says(reads=READS)

    def exchanged(request: Request) -> Reaction | None:
        return Answer(415) if request.headers.get("content-type") == wire.COLUMNS else says(request)

    server.script = exchanged
    sink = sender.sink(server.url, accept="hub")
    sink.held(CHANNEL, after=0)
    for parcel in in_a_row(2, 2):
        with contextlib.suppress(LedgerBehind, DivergedHistory):  # the script counts one chunk at a time
            sink.deliver(parcel)
    media = [request.headers["content-type"] for request in server.requests if request.method == "POST"]
    assert media == [wire.COLUMNS, wire.LINES, wire.LINES]


# ── bodies made ahead ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_body_may_be_made_ahead_while_the_one_before_is_under_way(
    sink: ForwardSink, server: KeyOnlyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    encode = forward.encode_lines

    def counted(rows: pa.Table, *args: Any, **named: Any) -> bytes:
        made.append(rows.num_rows)
        return encode(rows, *args, **named)

    monkeypatch.setattr(forward, "encode_lines", counted)
    first, second, third = in_a_row(3, 4, 5)
    sink.prepare(second)
    sink.prepare(first)
    for parcel in (first, second, third):
        sink.deliver(parcel)
    assert made == [4, 3, 5]
    assert [row["n"] for row in server.rows()] == list(range(1, 13))
    # The header was made at its turn, with the totals of then.
    assert [request.chunk["before"]["rows"] for request in server.requests] == [0, 3, 7]


def test_a_body_that_is_being_made_is_waited_for_and_not_made_twice(
    sink: ForwardSink, server: KeyOnlyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()
    encode = forward.encode_lines
    made: list[int] = []

    def slowly(rows: pa.Table, *args: Any, **named: Any) -> bytes:
        begun.set()
        assert go_on.wait(30)
        made.append(rows.num_rows)
        return encode(rows, *args, **named)

    monkeypatch.setattr(forward, "encode_lines", slowly)
    parcel = numbered(3)
    with ThreadPoolExecutor(2) as pool:
        pool.submit(sink.prepare, parcel)
        assert begun.wait(30)
        delivered = pool.submit(sink.deliver, parcel)
        go_on.set()
        assert delivered.result(30).bytes > 0
    assert made == [3]
    assert len(server.rows()) == 3


def test_a_body_that_could_not_be_made_ahead_fails_when_its_turn_comes(sender: Sender, server: KeyOnlyServer) -> None:
    sink = sender.sink(server.url, chunk_bytes=100)
    parcel = numbered(30)
    with pytest.raises(Oversized):
        sink.prepare(parcel)
    for _ in range(2):
        with pytest.raises(Oversized):
            sink.deliver(parcel)


def test_what_was_made_ahead_of_other_rows_is_not_sent(sink: ForwardSink, server: KeyOnlyServer) -> None:
    sink.prepare(numbered(3))
    sink.deliver(parcel_of([{"n": 9, "text": "another"}]))
    assert [row["n"] for row in server.rows()] == [9]


# ── too large ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_more_bytes_than_a_chunk_may_have_are_not_sent_but_split(sender: Sender, server: KeyOnlyServer) -> None:
    sink = sender.sink(server.url, chunk_bytes=1000)
    with pytest.raises(Oversized):
        sink.deliver(numbered(100))
    with pytest.raises(Oversized):
        sink.prepare(numbered(100))
    assert server.requests == []
    sink.deliver(numbered(2))


def test_what_is_hopelessly_large_is_not_even_encoded(
    sender: Sender, server: KeyOnlyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("floodmark.delivery.sinks.forward.encode_lines", lambda *_, **__: pytest.fail("encoded"))
    sink = sender.sink(server.url, chunk_bytes=1000)
    with pytest.raises(Oversized):
        sink.deliver(parcel_of([{"n": 1, "text": "x" * 1000 * HOPELESS}, {"n": 2, "text": ""}]))


def test_a_single_row_that_is_too_large_is_sent_anyway(sender: Sender, server: KeyOnlyServer) -> None:
    sender.sink(server.url, chunk_bytes=1000).deliver(parcel_of([{"n": 1, "text": "x" * 50_000}]))
    assert len(server.rows()) == 1


# ── loops ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def arrived(sender: Sender, origin: str, *path: str, dataset: str = "m") -> None:
    sender.database.transact(lambda c: provenance.record(c, origin=origin, dataset=dataset, stores=path))


def test_the_stores_that_rows_passed_before_travel_with_them(sender: Sender, server: KeyOnlyServer) -> None:
    arrived(sender, "edge-1")
    arrived(sender, "edge-2", "far-1", "far-2", "edge-2")
    arrived(sender, "edge-2", "far-1", "edge-2")
    arrived(sender, "elsewhere", dataset="o")
    sender.sink(server.url).deliver(numbered(1))
    *before, last = server.requests[0].chunk["path"]
    assert sorted(before) == ["edge-1", "edge-2", "far-1", "far-2"]
    assert last == STORE


def test_under_another_origin_the_store_is_still_in_the_path(sender: Sender, server: KeyOnlyServer) -> None:
    """Else its own rows could come back to it by way of the hub, and it would not know them."""
    sender.sink(server.url, origin="second-life").deliver(numbered(1))
    (request,) = server.requests
    assert request.chunk["path"] == [STORE, "second-life"]
    assert (request.chunk["origin"], request.key) == ("second-life", "second-life/m/all/0-1")


def test_a_path_is_never_cut_and_one_that_is_too_long_is_not_sent(sender: Sender, server: KeyOnlyServer) -> None:
    """H4. With some of them left out, rows could go round for ever."""
    stores = [f"edge-{index}" for index in range(500)]
    arrived(sender, "edge-0", *stores)
    sender.sink(server.url).deliver(numbered(1))
    assert server.requests[0].chunk["path"] == [*sorted(stores), STORE]
    arrived(sender, "far", *(f"{index:036}" for index in range(HEADER_CHARACTERS_MAX // 36)))
    with pytest.raises(Permanent, match="more than a chunk can name") as blocked:
        sender.sink(server.url).deliver(numbered(1))
    assert not isinstance(blocked.value, Refused)
    assert len(server.requests) == 1


def test_rows_that_passed_through_the_hub_are_not_even_sent_there(sender: Sender, server: KeyOnlyServer) -> None:
    """H4. Which hub it is was asked before."""
    server.script = hub_says()
    arrived(sender, "edge-1", HUB)
    with pytest.raises(Loop, match="have passed through"):
        sender.sink(server.url, accept="hub").deliver(numbered(1))
    assert server.chunks_seen() == []


# ── settings ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"url": "ftp://hub"}, "not the address of a hub"),
        ({"url": "hub.example"}, "not the address of a hub"),
        ({"url": "http://"}, "not the address of a hub"),
        ({"url": 7}, "not the address of a hub"),
        ({"url": "http://[::1"}, "not the address of a hub"),
        ({"url": "http://me:s3cret@hub"}, "a user name or password"),
        ({"url": "https://hub/?key=1"}, "contains \\? or #"),
        ({"token": "two words"}, "token is not one word"),
        ({"token": 7}, "token is not a text"),
        ({"chunk_rows": 0}, "chunk_rows is 0"),
        ({"chunk_bytes": 1.5}, "chunk_bytes is 1.5"),
        ({"concurrency": "4"}, "concurrency is '4'"),
        ({"timeout_seconds": 0}, "timeout_seconds is 0"),
        ({"timeout_seconds": float("inf")}, "timeout_seconds is inf"),
        ({"timeout_seconds": True}, "timeout_seconds is True"),
        ({"connect_timeout_seconds": -1}, "connect_timeout_seconds is -1"),
        ({"wait_seconds_max": -1}, "wait_seconds_max is -1"),
        ({"wait_seconds_max": "5"}, "wait_seconds_max is '5'"),
        ({"origin": ""}, "origin is ''"),
        ({"origin": "a\nb"}, "origin is"),
        ({"origin": 7}, "origin is 7"),
        ({"accept": "anything"}, "accept is 'anything'"),
        ({"accept": True}, "accept is True"),
    ],
)
def test_settings_that_make_no_sense_are_refused_with_the_way_out(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidSetting, match=said) as refused:
        KIND.check({**KIND.defaults, "url": "https://hub.example", **settings})
    assert refused.value.hint
    assert "s3cret" not in str(refused.value)


def test_good_settings_are_put_into_one_form() -> None:
    settings = {**KIND.defaults, "url": "HTTPS://Hub.Example:443/base//", "wait_seconds_max": 0, "timeout_seconds": 0.5}
    KIND.check(settings)
    assert settings["url"] == "https://hub.example:443/base"


def test_an_intent_keeps_where_it_goes_and_how_it_is_cut_but_no_credential() -> None:
    """D1"""
    assert set(KIND.pinned) == {"url", "origin", "chunk_rows", "chunk_bytes"}
    assert set(KIND.pinned) <= {*KIND.defaults, *KIND.required}


def test_every_setting_stands_in_the_reference_with_its_default() -> None:
    page = (Path(__file__).parents[3] / "docs/reference/configuration.md").read_text(encoding="utf-8")
    section = page.partition("### `forward`")[2].partition("\n#")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \| (.+?) \|", section, re.MULTILINE))
    assert set(rows) == {*KIND.defaults, *KIND.required}
    assert {key: rows[key] for key, value in KIND.defaults.items() if value is not None} == {
        key: f"`{value}`" for key, value in KIND.defaults.items() if value is not None
    }
