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
# | 2xx by our hub                | stored, if it names this very chunk and its ledger counts what we count |
# | 400, 422 by our hub; 413      | `Refused`: these rows will never be taken                     |
# | 409 by our hub                | `Ahead`, `LedgerBehind`, `DivergedHistory` or `Loop`          |
# | the same by anything else     | `Permanent`: something else answers in the hub's place        |
# | 408, 425, 429, 5xx            | `Busy`, for as long as `Retry-After` says                     |
# | every other 4xx, and 3xx      | `Permanent`: no row's fault (a wrong address, a missing right) |
#
# D8. Our hub is the one that the sink met first: it names its store in every answer that has consequences. Where a
# sink
# says that its server is no hub (`accept = "status"`), the status alone decides.


WORDS_CHARACTERS_MAX = 300
WORDS_BYTES_MAX = 64 << 10
"""Where no JSON says which are a reply's words, they are looked for in its beginning."""

POISON = frozenset({400, 413, 422})
PATIENCE = frozenset({408, 425, 429})
NO_HUB = frozenset({404, 405, 501})
"""What a server that is not a hub says to the request for its ledger."""

_ELSEWHERE = "If the url is wrong, remove this sink and add it again with the right one."
_ADVICE = {
    401: "The token is missing, unknown or revoked there: give another (`floodmark sink change NAME --set token=…`).",
    403: "Ask there for a token that allows it: a token is bound to origins and datasets.",
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
    "Was one of the two restored from a backup, or this store copied? Remove the sink and add it again with an "
    "`origin` of its own: the hub then treats all rows as those of another store."
)


@dataclass(frozen=True, slots=True)
class Reply:
    """What a server said; of its body no more than is read of any."""

    status: int
    body: bytes = b""
    retry_after: str | None = None
    location: str | None = None

    @property
    def good(self) -> bool:
        return 200 <= self.status < 300

    def content(self) -> dict[str, Any]:
        """The JSON object that the body is; empty where it is none."""
        import orjson

        try:
            content = orjson.loads(self.body)
        except ValueError:
            return {}
        return content if type(content) is dict else {}

    def ledger(self) -> LedgerState | None:
        """The ledger of the channel, where the reply carries one."""
        try:
            return LedgerState.parse(self.content().get("ledger"))
        except MalformedChunk:
            return None

    @property
    def hub(self) -> str | None:
        """The store that a hub says it is."""
        found = self.content().get("hub")
        return found if isinstance(found, str) and found else None

    @property
    def problem(self) -> str:
        """The name of the error that a hub replies with."""
        kind = self.content().get("type")
        return kind.rpartition(":")[2] if isinstance(kind, str) else ""


@dataclass(frozen=True, slots=True)
class Judge:
    """Turns replies into what the tick understands."""

    place: str
    """The server, in words that may be shown."""
    now: Callable[[], datetime]
    hide: Callable[[str], str]
    """Takes our own secret out of a text."""

    def met(self, reply: Reply, *, pinned: str | None) -> str:
        """The hub that answered the request for its ledger; raises where that is no hub, or not the `pinned` one."""
        if reply.status in NO_HUB:
            raise Permanent(f"There is no hub at {self.place}: it answered {reply.status}.", hint=_NO_HUB)
        if not reply.good:
            error = self.error(reply, about="the request for its ledger")
            # Taken for poison, the answer to a question would be held against the rows that follow.
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
        """Return if the chunk is stored; raise what it means if it is not. `hub`: None where the status decides."""
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
            return  # a replay moves no ledger: its rows were counted when they were given up
        if ledger.through > header.range.through:
            raise Ahead(f"{self.place} has more than {about}: everything up to {ledger.through}.", holdings_of(ledger))
        if ledger.through < header.range.through:
            raise self._behind(ledger, about)
        if ledger.tally != header.total:
            # It had the range already and did not look at our rows: only the totals tell that those are others.
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
        """D8: an acknowledgement says who gives it, and for what. Anything else is not one, whatever its status."""
        told = reply.content().get("acknowledged")
        if type(told) is not dict:
            raise Permanent(f"{self.place} answered {reply.status} to {about}, but not as a hub does.", hint=_NO_HUB)
        if told.get("hub") != wanted.hub:
            raise self._another_hub(told.get("hub"), wanted.hub)
        if told != wanted.content():
            odd = next(key for key, value in wanted.content().items() if told.get(key) != value)
            raise Permanent(f"{self.place} acknowledged something other than {about}: {odd!r} differs.", hint=_NO_HUB)

    def _refusal(self, reply: Reply, *, about: str, hub: str) -> FloodmarkError:
        """D8: rows are given up, and a ledger is believed, only on the word of the hub itself."""
        error = self.error(reply, about=about)
        if reply.status not in {400, 409, 422}:  # a proxy may well say that a body is too large for it
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
        told = self.hide(plain(str(found)))[:80]
        return Permanent(
            f"{self.place} is not the hub of this sink: it is {told!r}, and not {pinned!r}.", hint=_ANOTHER_HUB
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
        """The server's own words, short, on one line, and without our secret whatever the server echoes."""
        content = reply.content()
        told = [content[key] for key in ("detail", "hint") if isinstance(content.get(key), str)]
        told = told or [content[key] for key in ("message", "error", "title") if isinstance(content.get(key), str)][:1]
        raw = reply.body[:WORDS_BYTES_MAX].decode("utf-8", errors="replace")
        text = self.hide(plain(" ".join(told)[:WORDS_BYTES_MAX] or raw))
        return text if len(text) <= WORDS_CHARACTERS_MAX else text[: WORDS_CHARACTERS_MAX - 1] + "…"


def holdings_of(ledger: LedgerState) -> Holdings:
    return Holdings((), ledger.through, ledger.tally, ledger.given_up, ledger.given_up_rows)


def _covered(span: SequenceRange, header: ChunkHeader, ours: list[SequenceRange]) -> bool:
    """Whether a range that the hub never got is, inside the chunk, one that we have given up ourselves."""
    inside = span.intersect(header.range)
    return inside is None or any(item.intersect(inside) == inside for item in ours)


def plain(text: str) -> str:
    """A text of somebody else's on one line, with nothing in it that a terminal would obey."""
    shown = (
        character if character.isprintable() else " " if character.isspace() or character < " " else ""
        for character in text
    )
    return " ".join("".join(shown).split())


def media_of(ledger: dict[str, Any]) -> str:
    """What a hub that answered so is sent: columns if it says that it reads them."""
    reads = ledger.get("reads")
    return COLUMNS if type(reads) is list and COLUMNS in reads else LINES


# ── Exchange ─────────────────────────────────────────────────────────────────────────────────────────────────────────


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
        return "Its certificate is not trusted: set SSL_CERT_FILE to the certificate of its authority."
    return None
