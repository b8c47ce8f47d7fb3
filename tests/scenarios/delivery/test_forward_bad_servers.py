"""Servers that hang, break off, answer without end, or tell our secrets: an exchange ends, and nothing leaks."""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

import httpx
import pytest

from floodmark.delivery.outcomes import Busy, Refused
from floodmark.delivery.sinks import http
from floodmark.errors import FloodmarkError, Permanent, Retryable
from scenarios.delivery.parcels import CHANNEL, Sender, numbered, reply_to
from scenarios.delivery.servers import (
    Answer,
    KeyOnlyServer,
    Reaction,
    Request,
    ScriptedServer,
    Silent,
    Stored,
    always,
    hub_says,
    in_turn,
)

TOKEN = "fm-t0ken/with+signs="


class DrippingServer:
    """Sends the head of an answer one byte at a time, for ever."""

    def __enter__(self) -> Self:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()
        return self

    def _serve(self) -> None:
        connection, _ = self._listening.accept()
        with connection:
            connection.sendall(b"HTTP/1.1 200 OK\r\nX-Slow: ")
            while not self._stop.wait(0.05):
                try:
                    connection.sendall(b"x")
                except OSError:
                    return

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._listening.close()


# ── servers that do not answer ────────────────────────────────────────────────────────────────────────────────────────


def test_a_server_that_hangs_is_given_up_in_time(sender: Sender, server: KeyOnlyServer) -> None:
    began = time.monotonic()
    error = reply_to(sender, server, Silent.hangs)
    assert isinstance(error, Busy)
    assert "did not answer within 0.3 s" in str(error)
    assert time.monotonic() - began < 5


def test_a_server_that_hangs_holds_no_other_sink_up_and_no_stop(sender: Sender, server: KeyOnlyServer) -> None:
    arrived = threading.Event()

    def hang(_: Request) -> Reaction:
        arrived.set()
        return Silent.hangs

    with ScriptedServer() as hanging, ThreadPoolExecutor(1) as pool:
        hanging.script = hang
        slow = sender.sink(hanging.url, timeout_seconds=60)
        waiting = pool.submit(slow.deliver, numbered(3))
        assert arrived.wait(30)
        sender.sink(server.url).deliver(numbered(3))
        assert not waiting.done()
        slow.close()
        assert isinstance(waiting.exception(30), Busy)


def test_a_closed_sink_sends_nothing_more(sender: Sender, server: KeyOnlyServer) -> None:
    sink = sender.sink(server.url)
    sink.close()
    with pytest.raises(Busy, match="closed"):
        sink.deliver(numbered(3))
    assert server.requests == []


def test_a_server_that_answers_a_byte_at_a_time_is_given_up_as_a_whole(
    sender: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each byte for itself is in time, and the last one would never come."""
    monkeypatch.setattr(http, "WHOLE_TIMEOUTS", 1)
    with DrippingServer() as server:
        sink = sender.sink(server.url, timeout_seconds=0.5)
        began = time.monotonic()
        with pytest.raises(Busy, match="closed the connection"):
            sink.deliver(numbered(3))
        assert time.monotonic() - began < 5


def test_the_servers_own_client_would_wait_for_it() -> None:
    """The test above shows something: without a bound over the whole, the timeouts do not fire."""
    with ThreadPoolExecutor(1) as pool, DrippingServer() as server:
        waiting = pool.submit(httpx.get, server.url, timeout=0.5)
        with pytest.raises(TimeoutError):
            waiting.result(1.5)


@pytest.mark.parametrize(
    "reaction",
    [
        Silent.breaks_off,
        Stored.answer_lost,
        Answer(200, "x" * 1000, cut_after=10),
        Answer(422, "x" * 1000, cut_after=10),
        Answer(200, "short", {"Content-Length": "5000"}, cut_after=5),
    ],
)
def test_a_reply_that_breaks_off_decides_nothing(sender: Sender, server: KeyOnlyServer, reaction: Reaction) -> None:
    error = reply_to(sender, server, reaction)
    assert isinstance(error, Busy)
    server.script = None
    sender.sink(server.url).deliver(numbered(3))
    assert len(server.rows()) == 3


def test_a_server_that_is_not_there_is_busy(sender: Sender) -> None:
    server = ScriptedServer().start()
    server.stop()
    with pytest.raises(Busy, match="cannot be reached"):
        sender.sink(server.url).deliver(numbered(3))
    with pytest.raises(Busy, match="cannot be reached"):
        sender.sink("http://nowhere.invalid", accept="hub").held(CHANNEL, after=0)


def test_a_server_without_a_certificate_that_is_trusted_is_not_spoken_to(sender: Sender, server: KeyOnlyServer) -> None:
    with pytest.raises(Busy, match="cannot be reached"):
        sender.sink(server.url.replace("http:", "https:")).deliver(numbered(3))
    assert server.requests == []


def test_an_answer_without_end_is_not_waited_for(sender: Sender, server: KeyOnlyServer) -> None:
    huge = "no " * 10_000_000
    error = reply_to(sender, server, Answer(422, huge))
    assert isinstance(error, Refused)
    assert len(error.words) == 300
    server.script = in_turn(Answer(200, huge))
    sender.sink(server.url).deliver(numbered(3))


def test_a_compressed_answer_is_not_decompressed(sender: Sender, server: KeyOnlyServer) -> None:
    error = reply_to(sender, server, Answer(422, b"\x1f\x8b\x08garbage", {"Content-Encoding": "gzip"}))
    assert isinstance(error, Refused)
    assert server.requests[0].headers["accept-encoding"] == "identity"


def test_words_are_one_line_that_a_terminal_does_not_obey(sender: Sender, server: KeyOnlyServer) -> None:
    error = reply_to(sender, server, Answer(422, "bad\r\n\x1b[31mred\x07 \u202eesrever\u2028 caf\u00e9 \xff"))
    assert isinstance(error, Refused)
    assert error.words == "bad [31mred esrever café ÿ"
    assert all(character.isprintable() for character in str(error))


# ── the token ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_token_goes_with_each_request(sender: Sender, server: KeyOnlyServer) -> None:
    server.script = hub_says()
    sink = sender.sink(server.url, token=TOKEN, accept="hub")
    sink.deliver(numbered(3))
    assert [request.headers["authorization"] for request in server.requests] == [f"Bearer {TOKEN}"] * 2


def test_a_token_that_is_rotated_under_a_request_is_read_again(
    sender: Sender, server: KeyOnlyServer, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text("old\n")

    def rotate(request: Request) -> Reaction | None:
        if request.token == "new":
            return None
        file.write_text("new\n")
        return Answer(401)

    server.script = rotate
    sink = sender.sink(server.url, token=f"file:{file}")
    sink.deliver(numbered(3))
    assert [request.token for request in server.requests] == ["old", "new"]
    assert len(server.rows()) == 3


def test_a_token_that_is_refused_twice_blocks_until_there_is_another(
    sender: Sender, server: KeyOnlyServer, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text("old\n")
    server.script = lambda request: None if request.token == "new" else Answer(401)
    sink = sender.sink(server.url, token=f"file:{file}")
    with pytest.raises(Permanent) as blocked:
        sink.deliver(numbered(3))
    assert not isinstance(blocked.value, Refused)
    assert "token" in (blocked.value.hint or "")
    assert len(server.requests) == 2
    file.write_text("new\n")
    sink.deliver(numbered(3))


def test_without_a_token_a_401_blocks_at_once(sender: Sender, server: KeyOnlyServer) -> None:
    error = reply_to(sender, server, Answer(401, {"detail": "who are you"}))
    assert type(error) is Permanent
    assert len(server.requests) == 1


def test_a_token_file_that_is_away_for_a_moment_blocks_nothing(sender: Sender, server: KeyOnlyServer, tmp_path) -> None:
    sink = sender.sink(server.url, token=f"file:{tmp_path / 'token'}")
    with pytest.raises(Retryable, match="missing or empty"):
        sink.deliver(numbered(3))
    (tmp_path / "token").write_text(TOKEN)
    sink.deliver(numbered(3))


@pytest.mark.parametrize("status", [200, 302, 400, 401, 403, 409, 422, 429, 500])
@pytest.mark.parametrize(
    "echo",
    [
        f"got {TOKEN}!",
        json.dumps({"detail": f"Bearer {TOKEN} is unknown"}),
        json.dumps({"message": TOKEN}),
        " " * 40_000 + "\n" * (25_536 - 8) + TOKEN,  # cut off in its middle
        "x" * 295 + TOKEN,
        TOKEN.replace("/", "%2F").replace("+", "%2B").replace("=", "%3D"),
    ],
)
@pytest.mark.parametrize("accept", ["status", "hub", "hub after it was met"])
def test_a_token_that_the_server_echoes_is_shown_nowhere(
    sender: Sender, server: KeyOnlyServer, caplog: pytest.LogCaptureFixture, status: int, echo: str, accept: str
) -> None:
    caplog.set_level(logging.DEBUG)
    answer = Answer(status, echo, {"Location": f"http://x/?token={TOKEN}", "Retry-After": TOKEN})
    server.script = hub_says(answer) if accept == "hub after it was met" else lambda _: answer
    sink = sender.sink(server.url, token=TOKEN, accept=accept.partition(" ")[0])
    shown = [repr(sink), str(sink)]
    try:
        sink.deliver(numbered(3))
    except FloodmarkError as error:
        shown += [str(error), repr(error), error.hint or "", traceback.format_exc()]
        shown += [error.words] if isinstance(error, Refused) else []
    shown += [record.getMessage() for record in caplog.records if record.name.startswith("floodmark")]
    beginning = TOKEN[:8]
    assert [text for text in shown if beginning in text or "t0ken%2F" in text] == []


def test_an_error_of_the_network_does_not_show_the_token(sender: Sender, server: KeyOnlyServer) -> None:
    server.script = always(Silent.breaks_off)
    with pytest.raises(Busy) as raised:
        sender.sink(server.url, token=TOKEN).deliver(numbered(3))
    assert TOKEN not in "".join(traceback.format_exception(raised.value))
