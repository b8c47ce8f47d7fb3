"""HTTP exchanges with one server, bounded in time and in bytes.

A server may be slow, hang, break off, answer without end or one byte a minute: whatever it does, an exchange ends in an
`Reply` or in `Busy`, and other exchanges go on. Connections are kept alive. Each is one thread's at a time: where
threads share a pool of them, it may take a reply that has just begun to arrive for the end of an idle connection.
"""

from __future__ import annotations

import contextlib
import functools
import socket
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from floodmark.delivery.outcomes import Busy
from floodmark.delivery.sinks.replies import Reply
from floodmark.errors import reason_of

if TYPE_CHECKING:
    import ssl

    import httpx

WHOLE_TIMEOUTS = 10
"""An exchange takes at most so many timeouts from its first byte to its last: each byte for itself may be in time."""
IDLE_SECONDS_MAX = 2.0
"""How long a connection is kept without use: less than servers do, so that it is not closed under a request."""


Ask = Callable[[str, str, Mapping[str, str]], Reply]
"""Sends a request without a body, by method, address and headers, on a connection at hand."""


GREETINGS_MAX = 2
"""How often the other side is asked who it is before a request. Where each connection ends with its first answer, the
request goes on one of its own all the same: what is said to it is looked at, too."""


class _Unmet(Exception):
    """A request was about to make a connection on which nobody has said who he is. It has not left."""


@dataclass(slots=True)
class _Line:
    """A client of one connection at a time."""

    client: httpx.Client
    connects: bool = True
    """Whether a request may make a new connection."""


class Exchange:
    """The way to one server. Threads may use it at the same time."""

    def __init__(self, *, timeout_seconds: float, connect_timeout_seconds: float, connections_max: int) -> None:
        self._timeout_seconds = timeout_seconds
        self._connect_timeout_seconds = connect_timeout_seconds
        self._lock = threading.Lock()
        self._room = threading.BoundedSemaphore(connections_max)
        self._free: list[_Line] = []
        self._closed = False
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()

    def send(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        content: bytes | None = None,
        reply_bytes_max: int,
        greet: Callable[[Ask], None] | None = None,
    ) -> Reply:
        """Send a request and read the reply, no more of it than that many bytes. `Busy` where there is none.

        On a new connection `greet` comes first: it asks the other side who it is, and raises if that is the wrong one.
        """
        import httpx

        place = httpx.URL(url).netloc.decode()
        try:
            with self._line(place) as line, self._bounded():
                for _ in range(GREETINGS_MAX if greet is not None else 0):
                    line.connects = False
                    try:
                        return self._once(line, method, url, headers, content, reply_bytes_max)
                    except _Unmet:
                        line.connects = True
                        greet(lambda way, at, told: self._once(line, way, at, told, None, reply_bytes_max))  # type: ignore[misc]
                    finally:
                        line.connects = True
                return self._once(line, method, url, headers, content, reply_bytes_max)
        except httpx.ConnectTimeout as error:
            raise Busy(f"{place} cannot be reached within {self._connect_timeout_seconds:g} s.") from error
        except httpx.TimeoutException as error:
            raise Busy(f"{place} did not answer within {self._timeout_seconds:g} s.") from error
        except httpx.ConnectError as error:
            raise Busy(f"{place} cannot be reached: {reason_of(error)}.", hint=_advice(error)) from error
        except httpx.TransportError as error:
            raise Busy(f"{place} broke the exchange off: {reason_of(error)}.") from error

    def _once(
        self,
        line: _Line,
        method: str,
        url: str,
        headers: Mapping[str, str],
        content: bytes | None,
        reply_bytes_max: int,
    ) -> Reply:
        traced = {"trace": functools.partial(self._trace, line)}
        with line.client.stream(method, url, headers=headers, content=content, extensions=traced) as response:
            return Reply(
                response.status_code,
                _read(response, reply_bytes_max),
                retry_after=response.headers.get("retry-after"),
                location=response.headers.get("location"),
            )

    def close(self) -> None:
        """Let go of the connections, for good; what another thread has under way ends in `Busy`."""
        with self._lock:
            free, self._free, self._closed = self._free, [], True
        self._break_off()
        for line in free:
            line.client.close()

    @contextlib.contextmanager
    def _line(self, place: str) -> Iterator[_Line]:
        """A client of one connection, for one request."""
        if not self._room.acquire(timeout=self._timeout_seconds):
            raise Busy(f"All connections to {place} were in use for {self._timeout_seconds:g} s.")
        try:
            with self._lock:
                if self._closed:
                    raise Busy("The sink was closed before its request left.")
                line = self._free.pop() if self._free else _Line(self._made())
            try:
                yield line
            finally:
                if not self._kept(line):
                    line.client.close()
        finally:
            self._room.release()

    def _kept(self, line: _Line) -> bool:
        with self._lock:
            if not self._closed:
                self._free.append(line)
            return not self._closed

    def _made(self) -> httpx.Client:
        import httpx

        return httpx.Client(
            timeout=httpx.Timeout(self._timeout_seconds, connect=self._connect_timeout_seconds),
            limits=httpx.Limits(max_connections=1, keepalive_expiry=IDLE_SECONDS_MAX),
            verify=_trusted(),
            follow_redirects=False,
            # What is compressed could become anything; and the words of an error need no compression.
            headers={"Accept-Encoding": "identity", "User-Agent": "floodmark"},
        )

    @contextlib.contextmanager
    def _bounded(self) -> Iterator[None]:
        """Break off when the exchange as a whole takes too long. The timeouts alone count from byte to byte."""
        timer = threading.Timer(self._timeout_seconds * WHOLE_TIMEOUTS, self._break_off)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _break_off(self) -> None:
        """End every conversation with the server, also those that another thread is waiting in.

        Shut down and not closed: a closed descriptor could be another file's before the waiting thread wakes up.
        """
        for connection in list(self._sockets):
            with contextlib.suppress(OSError):
                socket.socket.shutdown(connection, socket.SHUT_RDWR)

    def _trace(self, line: _Line, event: str, info: Mapping[str, Any]) -> None:
        if event.endswith(".connect_tcp.started") and not line.connects:
            raise _Unmet
        if event.endswith((".connect_tcp.complete", ".start_tls.complete")):
            found = info["return_value"].get_extra_info("socket")
            if found is not None:
                self._sockets.add(found)
            if self._closed:  # while this connection was being made
                self._break_off()


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__


def _read(response: httpx.Response, bytes_max: int) -> bytes:
    """The body's beginning. The rest of a longer one is not waited for: its connection is closed instead."""
    pieces: list[bytes] = []
    room = bytes_max
    for piece in response.iter_raw():
        pieces.append(piece[:room])
        room -= len(piece)
        if room <= 0:
            break
    return b"".join(pieces)


@functools.cache
def _trusted() -> ssl.SSLContext:
    """The certificates that are trusted by default. Reading them takes longer than a request: once per process."""
    import httpx

    return httpx.create_ssl_context()


def _advice(error: BaseException) -> str | None:
    import ssl

    if any(isinstance(cause, ssl.SSLCertVerificationError) for cause in _causes(error)):
        return "Its certificate is not trusted here: name the authority that signed it in SSL_CERT_FILE."
    return None
