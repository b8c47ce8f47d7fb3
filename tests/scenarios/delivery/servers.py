"""HTTP servers that rows are forwarded to in tests: on a real port of this machine, in a thread, and told what to say.

    with KeyOnlyServer() as server:
        server.script = in_turn(Answer(503), Stored.answer_lost)
        …                                     # point a forward sink at `server.url`
        assert [row["id"] for row in server.rows()] == […]

Import them as `delivery.servers`: `tests/` is on the path.
"""

from __future__ import annotations

import base64
import contextlib
import enum
import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

import zstandard


@dataclass(frozen=True)
class Request:
    """What a client sent."""

    method: str
    path: str
    headers: Mapping[str, str]
    """By lower-case name."""
    body: bytes
    """As it came over the wire."""

    @property
    def key(self) -> str:
        return self.headers.get("idempotency-key", "")

    @property
    def token(self) -> str | None:
        return self.headers.get("authorization", "").removeprefix("Bearer ") or None

    @property
    def chunk(self) -> dict[str, Any]:
        """The chunk's own header, read here without the product's code."""
        text = self.headers["floodmark-chunk"]
        return json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))

    @property
    def text(self) -> bytes:
        """The body, decompressed."""
        if self.headers.get("content-encoding") == "zstd":
            return zstandard.ZstdDecompressor().decompressobj().decompress(self.body)
        return self.body

    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.text.splitlines()]


@dataclass(frozen=True)
class Answer:
    """Say this, and store nothing."""

    status: int
    body: bytes | str | dict[str, Any] = b""
    """A dict goes out as JSON."""
    headers: Mapping[str, str] = field(default_factory=dict)
    cut_after: int | None = None
    """Send so many bytes of the body, then break the connection off."""

    @property
    def content(self) -> bytes:
        if isinstance(self.body, dict):
            return json.dumps(self.body).encode()
        return self.body.encode() if isinstance(self.body, str) else self.body


class Stored(enum.Enum):
    """Do what the server does by itself, except for the answer."""

    answer_lost = enum.auto()
    """The connection breaks before a byte of it."""
    hangs = enum.auto()
    """It never comes."""


class Silent(enum.Enum):
    """Store nothing, and give no answer."""

    hangs = enum.auto()
    """Until the client goes away, or the server stops."""
    breaks_off = enum.auto()
    """The connection is reset."""


Reaction = Answer | Stored | Silent
Script = Callable[[Request], Reaction | None]
"""What to do with a request; None: what the server does by itself."""

LEDGER_UNKNOWN = Answer(404, "not here")


def in_turn(*reactions: Reaction | None) -> Script:
    """To each chunk the next of these; afterwards what the server does by itself. Other requests take none."""
    left = list(reactions)
    lock = threading.Lock()

    def script(request: Request) -> Reaction | None:
        with lock:
            return left.pop(0) if left and request.method == "POST" else None

    return script


def always(reaction: Reaction) -> Script:
    """The same to each chunk."""
    return lambda request: reaction if request.method == "POST" else None


HUB = "7c1e6f1e-0000-4000-8000-0000000000b7"
"""The store that a scripted hub says it is."""


def met(*channels: dict[str, Any], hub: str = HUB, reads: Any = ()) -> Answer:
    """What a hub answers to the question for its ledger."""
    return Answer(200, {"hub": hub, "versions": [1, 2], "channels": list(channels), "reads": reads})


def acknowledgement(request: Request, *, hub: str = HUB) -> dict[str, Any]:
    """What a hub says that it has stored."""
    told = ("origin", "partition", "after", "through", "rows", "checksum", "replay")
    dataset = request.path.split("/")[-2]
    return {"hub": hub, "dataset": dataset, **{key: request.chunk[key] for key in told}}


def hub_says(*answers: Answer | None, hub: str = HUB, **asked: Any) -> Script:
    """A hub that has nothing yet, and says these to its chunks in turn, the last one for ever, in its own name.

    None, or a body without a ledger: it counts what the chunk counts.
    """
    left = list(answers or (None,))

    def script(request: Request) -> Reaction:
        if request.method == "GET":
            return met(hub=hub, **asked)
        answer = (left.pop(0) if len(left) > 1 else left[0]) or Answer(200, {})
        if not isinstance(answer.body, dict):
            return answer
        if answer.status >= 300:
            return replace(answer, body={"hub": hub, **answer.body})
        chunk = request.chunk
        given_up = {"rows": 0, "ranges": [], "more": False}
        ledger = {
            "through": chunk["through"],
            "rows": chunk["rows"],
            "checksum": chunk["checksum"],
            "given_up": given_up,
        }
        return replace(
            answer, body={"acknowledged": acknowledgement(request, hub=hub), "ledger": ledger, **answer.body}
        )

    return script


class ScriptedServer:
    """Takes every chunk with 200 and remembers the requests only; says anything else that its script wants.

    It may be stopped and started again, and then has the same address and remembers everything.
    """

    def __init__(self, *, port: int = 0) -> None:
        self.script: Script | None = None
        self.requests: list[Request] = []
        self._lock = threading.RLock()
        self._port = port
        self._server: _Listener | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> Self:
        self._server = _Listener(self, self._port)
        self._port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """Close the port and break off every connection, as the death of the server would."""
        server, self._server = self._server, None
        if server is not None and self._thread is not None:
            server.stopping.set()
            server.shutdown()
            server.server_close()
            server.break_off()
            self._thread.join()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def connections(self) -> int:
        """How many were made to it since it started."""
        return 0 if self._server is None else self._server.connections

    def chunks_seen(self) -> list[Request]:
        """The POSTs, in order of arrival, whatever was answered."""
        with self._lock:
            return [request for request in self.requests if request.method == "POST"]

    def react(self, request: Request) -> Reaction:
        with self._lock:
            self.requests.append(request)
        told = None if self.script is None else self.script(request)
        if told is None or isinstance(told, Stored):
            answer = self.take(request) if request.method == "POST" else self.look_up(request)
            return answer if told is None else told
        return told

    def take(self, request: Request) -> Answer:
        """What the server does by itself with a chunk."""
        return Answer(200, {})

    def look_up(self, request: Request) -> Answer:
        """What the server says by itself to a question: nothing that is not a hub has a ledger."""
        return LEDGER_UNKNOWN


class KeyOnlyServer(ScriptedServer):
    """Knows keys and nothing of ranges: a chunk whose key is new is stored, another one is not looked at.

    So a row arrives twice here if it ever leaves under two keys.
    """

    def __init__(self) -> None:
        super().__init__()
        self._stored: dict[str, bytes] = {}
        self.conflicts: list[str] = []
        """Keys that came again with other rows: what must never happen."""

    def take(self, request: Request) -> Answer:
        refusal = self.refusal(request)
        if refusal is not None:
            return refusal
        with self._lock:
            if self._stored.setdefault(request.key, request.text) != request.text:
                self.conflicts.append(request.key)
                return Answer(409, f"the key {request.key} was used for other rows")
        return Answer(200, {"accepted": True})

    def refusal(self, request: Request) -> Answer | None:
        """Why a chunk is not stored, if it is not."""
        return None

    def chunks(self) -> dict[str, list[dict[str, Any]]]:
        """What is stored, by key, in order of arrival."""
        with self._lock:
            stored = dict(self._stored)
        return {key: [json.loads(line) for line in text.splitlines()] for key, text in stored.items()}

    def rows(self, dataset: str | None = None) -> list[dict[str, Any]]:
        """Every stored row, as often as it is stored, with `_origin_seq` and `_origin_id`."""
        return [
            row
            for key, rows in self.chunks().items()
            if dataset is None or key.split("/")[1] == dataset
            for row in rows
        ]


class PoisonServer(KeyOnlyServer):
    """Refuses each chunk that holds a row whose column `poison` is true, and says which rows those are."""

    def __init__(self, *, status: int = 422, column: str = "poison") -> None:
        super().__init__()
        self.status = status
        self.column = column

    def refusal(self, request: Request) -> Answer | None:
        poisonous = [row["_origin_seq"] for row in request.rows() if row.get(self.column)]
        return Answer(self.status, {"detail": f"poison in {poisonous}"}) if poisonous else None


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True
    request_queue_size = 64

    def __init__(self, owner: ScriptedServer, port: int) -> None:
        self.owner = owner
        self.stopping = threading.Event()
        self.connections = 0
        self._open: set[socket.socket] = set()
        self._open_lock = threading.Lock()
        super().__init__(("127.0.0.1", port), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._open_lock:
            self._open.add(request)
            self.connections += 1
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._open_lock:
            self._open.discard(request)
        super().shutdown_request(request)

    def break_off(self) -> None:
        with self._open_lock:
            for connection in self._open:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away in the middle is part of the tests."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Listener

    def do_GET(self) -> None:
        self._respond()

    def do_POST(self) -> None:
        self._respond()

    def _respond(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        headers = {name.lower(): value for name, value in self.headers.items()}
        reaction = self.server.owner.react(Request(self.command, self.path, headers, body))
        match reaction:
            case Answer():
                self._say(reaction)
            case Stored.hangs | Silent.hangs:
                self._hang()
            case _:
                self._reset()

    def _say(self, answer: Answer) -> None:
        content = answer.content
        self.send_response(answer.status)
        kind = "application/json" if isinstance(answer.body, dict) else "text/plain"
        named = {name.lower() for name in answer.headers}
        if "content-type" not in named:
            self.send_header("Content-Type", kind)
        if "content-length" not in named:
            self.send_header("Content-Length", str(len(content)))
        for name, value in answer.headers.items():
            self.send_header(name, value)
        with self._whole():
            self.end_headers()
            self.wfile.write(content if answer.cut_after is None else content[: answer.cut_after])
        if answer.cut_after is not None:
            self._reset()

    @contextlib.contextmanager
    def _whole(self) -> Iterator[None]:
        """Head and body in one packet."""
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
        try:
            yield
        finally:
            self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 0)

    def _hang(self) -> None:
        """Until the client has gone (its end of the connection reads as empty), or the server stops."""
        self.connection.settimeout(0.02)
        while not self.server.stopping.is_set():
            with contextlib.suppress(TimeoutError):
                if self.connection.recv(1) == b"":
                    break
        self.close_connection = True

    def _reset(self) -> None:
        # Lingering for zero seconds makes the kernel send RST instead of an orderly end.
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        self.rfile.close()
        self.connection.close()

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing on standard error."""
