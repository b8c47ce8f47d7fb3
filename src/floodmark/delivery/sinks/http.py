"""HTTP requests to one server, bounded in time and in bytes.

A server may be slow, hang, close the connection, respond without end or with one byte a minute: every request ends in a
`Reply` or in `Busy`, and other requests continue. Connections are kept alive. Each is used by one thread at a time: a
shared pool may mistake a response that begins to arrive for the end of an idle connection.
"""

from __future__ import annotations

import contextlib
import functools
import socket
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from floodmark.delivery.backoff import retry_after_seconds
from floodmark.delivery.outcomes import Ahead, Busy, Holdings, Refused
from floodmark.errors import DivergedHistory, FloodmarkError, LedgerBehind, Loop, MalformedChunk, Permanent, reason_of
from floodmark.sequence import SequenceRange
from floodmark.wire import COLUMNS, LINES, VERSION, Acknowledgement, ChunkHeader, LedgerState

if TYPE_CHECKING:
    import ssl

    import httpx


# ── What a server's reply to a chunk means ───────────────────────────────────────────────────────────────────────────
# | reply                         | meaning                                                       |
# |-------------------------------|---------------------------------------------------------------|
# | 2xx by our hub                | stored, if it names this chunk and its totals equal ours      |
# | 400, 422 by our hub; 413      | `Refused`: these rows will never be accepted                  |
# | 409 by our hub                | `Ahead`, `LedgerBehind`, `DivergedHistory` or `Loop`          |
# | the same by anything else     | `Permanent`: another server responds at the hub's address     |
# | 408, 425, 429, 5xx            | `Busy`, with the wait of `Retry-After`                        |
# | every other 4xx, and 3xx      | `Permanent`: not caused by rows (wrong url, missing right)    |
#
# D8. Our hub is the one of the sink's first connection: it names its store in every response that has consequences. If
# the sink's server is not a hub (`accept = "status"`), the status alone decides.


WORDS_CHARACTERS_MAX = 300
WORDS_BYTES_MAX = 64 << 10
"""Without JSON, the message of a reply is taken from this many bytes at its beginning."""

POISON = frozenset({400, 413, 422})
PATIENCE = frozenset({408, 425, 429})
NO_HUB = frozenset({404, 405, 501})
"""How a server that is not a hub responds to a request for its ledger."""

_ELSEWHERE = "If the url is wrong, remove this sink and add it again with the right one."
_ADVICE = {
    401: "The token is missing, unknown or revoked there: give another (`floodmark sink change NAME --set token=…`).",
    403: "A token is limited to the origins and datasets that it names.",
    404: f"Does the dataset exist there? {_ELSEWHERE}",
    405: _ELSEWHERE,
    410: _ELSEWHERE,
    409: "The server rejects this chunk for the reason that it gives.",
    415: _ELSEWHERE,
}
_BEHIND = (
    "Was the hub restored from a backup? Remove this sink and add it again: it then asks the hub, and continues "
    "where its ledger ends."
)
_NO_HUB = (
    "Nothing counts as delivered. If a proxy or a login page answers here, correct that. If the url is wrong, remove "
    "this sink and add it again. If the server is not a hub and any 2xx from it means that rows are stored: "
    "`floodmark sink change NAME --set accept=status`."
)
_ANOTHER_HUB = (
    "Nothing counts as delivered. If the address is wrong, correct it. If the hub was replaced on "
    "purpose, remove this sink and add it again: it then asks the new hub, and sends the rows that are missing there."
)
_PARTED = (
    "Was one of the two restored from a backup, or this store copied? Remove the sink and add it again with its "
    "own `origin`: the hub then treats all rows as those of another store."
)


@dataclass(frozen=True, slots=True)
class Reply:
    """The response of a server, with the beginning of its body."""

    status: int
    body: bytes = b""
    retry_after: str | None = None
    location: str | None = None

    @property
    def good(self) -> bool:
        return 200 <= self.status < 300

    def content(self) -> dict[str, Any]:
        """The body as a JSON object; empty if it is not one."""
        import orjson

        try:
            content = orjson.loads(self.body)
        except ValueError:
            return {}
        return content if type(content) is dict else {}

    def ledger(self) -> LedgerState | None:
        """The ledger of the channel, if the reply has one."""
        try:
            return LedgerState.parse(self.content().get("ledger"))
        except MalformedChunk:
            return None

    @property
    def hub(self) -> str | None:
        """The id of the hub's store, if the reply has one."""
        found = self.content().get("hub")
        return found if isinstance(found, str) and found else None

    @property
    def problem(self) -> str:
        """The name of the hub's error."""
        kind = self.content().get("type")
        return kind.rpartition(":")[2] if isinstance(kind, str) else ""


@dataclass(frozen=True, slots=True)
class Judge:
    """Converts replies to errors of the delivery contract."""

    place: str
    """The server, for messages."""
    now: Callable[[], datetime]
    hide: Callable[[str], str]
    """Removes our own secret from a text."""

    def met(self, reply: Reply, *, pinned: str | None) -> str:
        """The hub that responded with its ledger; raises if it is not a hub, or not the `pinned` one."""
        if reply.status in NO_HUB:
            raise Permanent(f"There is no hub at {self.place}: it answered {reply.status}.", hint=_NO_HUB)
        if not reply.good:
            error = self.error(reply, about="the request for its ledger")
            # As `Refused`, the response to this request would be attributed to the rows that follow.
            raise Permanent(error.message, hint=_NO_HUB) if isinstance(error, Refused) else error
        content = reply.content()
        if type(content.get("channels")) is not list:
            raise Permanent(f"The server at {self.place} is not a hub.", hint=_NO_HUB)
        versions = content.get("versions")
        if reply.hub is None or type(versions) is not list or VERSION not in versions:
            raise Permanent(
                f"The hub at {self.place} is of another version than this store.",
                hint="Nothing was sent. Upgrade Floodmark there first: a hub reads what older stores send.",
            )
        self._check_hub(reply, pinned or reply.hub)
        return reply.hub

    def check(self, reply: Reply, *, header: ChunkHeader, dataset: str, hub: str | None) -> None:
        """Return if the chunk is stored; otherwise raise. `hub`: None if the status alone decides."""
        where = f"{dataset!r} ({header.partition})"
        about = f"rows {header.range} of {where}"
        if hub is None:
            if not reply.good:
                raise self.error(reply, about=about)
            return
        if not reply.good:
            raise self._refusal(reply, about=about, hub=hub)
        self._check_acknowledged(reply, Acknowledgement.of(header, hub=hub, dataset=dataset), about)
        ledger = reply.ledger()
        if ledger is None:
            raise Permanent(f"{self.place} acknowledged {about} without its ledger.", hint=_NO_HUB)
        if header.replay:
            return  # a replay does not change the ledger: its rows were counted when they were given up
        if ledger.through > header.range.through:
            raise Ahead(f"{self.place} has more than {about}: everything up to {ledger.through}.", holdings_of(ledger))
        if ledger.through < header.range.through:
            raise self._behind(ledger, about)
        if ledger.tally != header.total:
            # It had the range already and did not compare our rows: only the totals show that they differ.
            ours, theirs = header.total.rows, ledger.tally.rows
            others = ", with another checksum" if ours == theirs else ""
            raise DivergedHistory(
                f"{self.place} counts {theirs} rows of {where} up to {ledger.through}, but this store counts "
                f"{ours}{others}.",
                hint=_PARTED,
            )
        ours_too = [item.range for item in header.given_up]
        if ledger.more or any(not _covered(span, header, ours_too) for span in ledger.given_up):
            raise Ahead(f"{self.place} has {about}, except rows that were given up.", holdings_of(ledger))

    def _check_acknowledged(self, reply: Reply, wanted: Acknowledgement, about: str) -> None:
        """D8: an acknowledgement names its hub and its chunk. Anything else is not one, whatever its status."""
        found = reply.content().get("acknowledged")
        if type(found) is not dict:
            raise Permanent(f"{self.place} answered {reply.status} to {about}, but not as a hub does.", hint=_NO_HUB)
        if found.get("hub") != wanted.hub:
            raise self._another_hub(found.get("hub"), wanted.hub)
        if found != wanted.content():
            odd = next(key for key, value in wanted.content().items() if found.get(key) != value)
            raise Permanent(f"{self.place} acknowledged something other than {about}: {odd!r} differs.", hint=_NO_HUB)

    def _refusal(self, reply: Reply, *, about: str, hub: str) -> FloodmarkError:
        """D8: only the hub itself can refuse rows or report a ledger."""
        error = self.error(reply, about=about)
        if reply.status not in {400, 409, 422}:  # a proxy may also refuse a body as too large
            return error
        if reply.hub is None:
            return Permanent(f"{error.message.rstrip('.')}, but not as a hub does.", hint=_NO_HUB)
        if reply.hub != hub:
            return self._another_hub(reply.hub, hub)
        return self._conflict(reply, error.message, about) if reply.status == 409 else error

    def _check_hub(self, reply: Reply, pinned: str) -> None:
        if reply.hub != pinned:
            raise self._another_hub(reply.hub, pinned)

    def _another_hub(self, found: Any, pinned: str) -> Permanent:
        shown = self.hide(plain(str(found)))[:80]
        return Permanent(
            f"{self.place} is not the hub of this sink: it is {shown!r}, and not {pinned!r}.", hint=_ANOTHER_HUB
        )

    def error(self, reply: Reply, *, about: str) -> FloodmarkError:
        """What a reply other than 2xx means."""
        words = self.words(reply)
        said = f"{self.place} answered {reply.status} to {about}" + (f": {words}" if words else "")
        said = said if said.endswith((".", "!", "?", "…")) else f"{said}."
        if reply.status in POISON:
            return Refused(said, words=words or f"status {reply.status}")
        if reply.status in PATIENCE or reply.status >= 500:
            return Busy(said, retry_after_seconds=retry_after_seconds(reply.retry_after, now=self.now()))
        if 300 <= reply.status < 400:
            to = self.hide(plain(reply.location or ""))[:WORDS_CHARACTERS_MAX]
            leads = f" It redirects to {to} ." if to else ""
            return Permanent(said, hint=f"Redirects are not followed.{leads} {_ELSEWHERE}")
        return Permanent(said, hint=_ADVICE.get(reply.status, "Correct the sink's settings, or the server's."))

    def _conflict(self, reply: Reply, said: str, about: str) -> FloodmarkError:
        ledger = reply.ledger()
        if reply.problem == "LedgerAhead" and ledger is not None:
            return Ahead(said, holdings_of(ledger))
        if reply.problem == "LedgerBehind":
            return LedgerBehind(said, hint=_BEHIND) if ledger is None else self._behind(ledger, about)
        if reply.problem == "DivergedHistory":
            return DivergedHistory(said, hint=_PARTED)
        if reply.problem == "Loop":
            return Loop(
                said,
                hint="Remove one of the forward sinks that form the loop. If the rows never took this path, see which "
                "origin reported it: `floodmark provenance list`.",
            )
        return Permanent(said, hint="The server rejects this chunk for the reason that it gives.")

    def _behind(self, ledger: LedgerState, about: str) -> LedgerBehind:
        return LedgerBehind(
            f"The ledger of {self.place} ends at {ledger.through}: {about} would leave a gap after it.", hint=_BEHIND
        )

    def words(self, reply: Reply) -> str:
        """The server's own message, short, on one line, and without our secret."""
        content = reply.content()
        texts = [content[key] for key in ("detail", "hint") if isinstance(content.get(key), str)]
        texts = (
            texts or [content[key] for key in ("message", "error", "title") if isinstance(content.get(key), str)][:1]
        )
        raw = reply.body[:WORDS_BYTES_MAX].decode("utf-8", errors="replace")
        text = self.hide(plain(" ".join(texts)[:WORDS_BYTES_MAX] or raw))
        return text if len(text) <= WORDS_CHARACTERS_MAX else text[: WORDS_CHARACTERS_MAX - 1] + "…"


def holdings_of(ledger: LedgerState) -> Holdings:
    return Holdings((), ledger.through, ledger.tally, ledger.given_up, ledger.given_up_rows)


def _covered(span: SequenceRange, header: ChunkHeader, ours: list[SequenceRange]) -> bool:
    """Whether we have given up the part of the range, inside the chunk, that the hub never received."""
    inside = span.intersect(header.range)
    return inside is None or any(item.intersect(inside) == inside for item in ours)


def plain(text: str) -> str:
    """A foreign text on one line, without control characters."""
    shown = (
        character if character.isprintable() else " " if character.isspace() or character < " " else ""
        for character in text
    )
    return " ".join("".join(shown).split())


def media_of(ledger: dict[str, Any]) -> str:
    """The media type for a hub with this ledger: columns if it supports them."""
    reads = ledger.get("reads")
    return COLUMNS if type(reads) is list and COLUMNS in reads else LINES


# ── Exchange ─────────────────────────────────────────────────────────────────────────────────────────────────────────


WHOLE_TIMEOUTS = 10
"""A whole request takes at most this many timeouts: the timeout alone applies to each read."""
IDLE_SECONDS_MAX = 2.0
"""How long an idle connection is kept: less than servers do, so that it is not closed during a request."""


Ask = Callable[[str, str, Mapping[str, str]], Reply]
"""Sends a request without a body, by method, address and headers, on the present connection."""


GREETINGS_MAX = 2
"""How often the server is asked for its identity before a request. If each connection ends after its first response,
the request is sent on a new one: its response is checked, too."""


class _Unmet(Exception):
    """A request needs a new connection whose server is not identified yet. It was not sent."""


@dataclass(slots=True)
class _Line:
    """A client of one connection at a time."""

    client: httpx.Client
    connects: bool = True
    """Whether a request may open a new connection."""


class Exchange:
    """The connections to one server. Threads may use it in parallel."""

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
        """Send a request and read at most that many bytes of the reply. `Busy` if there is none.

        On a new connection `greet` is called first: it asks for the server's identity, and raises if it is wrong.
        """
        import httpx

        place = httpx.URL(url).netloc.decode()
        try:
            with self._line(place) as line, self._bounded():
                for _ in range(0 if greet is None else GREETINGS_MAX):
                    line.connects = False
                    try:
                        return self._once(line, method, url, headers, content, reply_bytes_max)
                    except _Unmet:
                        line.connects = True
                        if greet is not None:
                            greet(lambda way, at, extra: self._once(line, way, at, extra, None, reply_bytes_max))
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
            raise Busy(f"{place} closed the connection: {reason_of(error)}.") from error

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
        """Close all connections permanently; requests of other threads end in `Busy`."""
        with self._lock:
            free, self._free, self._closed = self._free, [], True
        self._shut_down()
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
                    raise Busy("The sink was closed before its request was sent.")
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
            # A compressed reply could expand to any size; and error messages need no compression.
            headers={"Accept-Encoding": "identity", "User-Agent": "floodmark"},
        )

    @contextlib.contextmanager
    def _bounded(self) -> Iterator[None]:
        """Close the connections when the whole request takes too long. The timeouts apply to each read."""
        timer = threading.Timer(self._timeout_seconds * WHOLE_TIMEOUTS, self._shut_down)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _shut_down(self) -> None:
        """End every connection to the server, also those of waiting threads.

        Shut down, not closed: a closed descriptor could be reused for another file before the waiting thread wakes up.
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
            if self._closed:  # while this connection was being opened
                self._shut_down()


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__


def _read(response: httpx.Response, bytes_max: int) -> bytes:
    """The beginning of the body. The rest of a longer one is not read: its connection is closed."""
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
    """The default trusted certificates. Reading them takes longer than a request: once per process."""
    import httpx

    return httpx.create_ssl_context()


def _advice(error: BaseException) -> str | None:
    import ssl

    if any(isinstance(cause, ssl.SSLCertVerificationError) for cause in _causes(error)):
        return "Its certificate is not trusted: set SSL_CERT_FILE to the certificate of its authority."
    return None
