"""What a server's reply to a chunk means. Pure.

| reply                         | meaning                                                       |
|-------------------------------|---------------------------------------------------------------|
| 2xx                           | stored; a hub's ledger in it must agree with what we count    |
| 400, 413, 422                 | `Refused`: these rows will never be taken                     |
| 409 by a hub, with its ledger | `Ahead`, `LedgerBehind` or `DivergedHistory`                  |
| 408, 425, 429, 5xx            | `Busy`, for as long as `Retry-After` says                     |
| every other 4xx, and 3xx      | `Permanent`: no row's fault (a wrong address, a missing right) |

Only the status is required of a server: one that knows keys and nothing of ledgers works too. But a server that has
shown a ledger once is a hub, and a 2xx without one then came from something in between.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from floodmark.delivery.backoff import retry_after_seconds
from floodmark.delivery.outcomes import Ahead, Busy, Holdings, Refused
from floodmark.errors import DivergedHistory, FloodmarkError, LedgerBehind, Loop, MalformedChunk, Permanent
from floodmark.wire import COLUMNS, LINES, ChunkHeader, LedgerState

WORDS_CHARACTERS_MAX = 300
WORDS_BYTES_MAX = 64 << 10
"""Where no JSON says which are a reply's words, they are looked for in its beginning."""

POISON = frozenset({400, 413, 422})
PATIENCE = frozenset({408, 425, 429})
NO_LEDGER = frozenset({404, 405, 501})
"""What a server that is not a hub says to the question for its ledger."""

_ELSEWHERE = "If the url is wrong, remove this sink and add it again with the right one."
_ADVICE = {
    401: "The token is missing, unknown or revoked there: give another (`floodmark sink change NAME --set token=…`).",
    403: "Ask for the right there: a token is bound to origins and datasets.",
    404: f"Is the dataset there? {_ELSEWHERE}",
    405: _ELSEWHERE,
    410: _ELSEWHERE,
    415: _ELSEWHERE,
}
_BEHIND = (
    "Was the hub restored from a backup? Remove this sink and add it again: it then asks the hub, and goes on where "
    "its ledger ends."
)
_PARTED = (
    "Was one of the two restored from a backup, or this store copied? Remove the sink and add it again with an "
    "`origin` of its own: the hub then takes everything as another store's."
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

    def check(self, reply: Reply, *, header: ChunkHeader, dataset: str, hub: bool) -> None:
        """Return if the chunk is stored; raise what it means if it is not. `hub`: it has shown a ledger before."""
        where = f"{dataset!r} ({header.partition})"
        about = f"rows {header.range} of {where}"
        if not reply.good:
            raise self.error(reply, about=about)
        ledger = reply.ledger()
        if ledger is None and hub:
            raise Busy(
                f"{self.place} answered {reply.status} to {about} without its ledger.",
                hint="Something in between answers in the hub's place: look at proxies. Nothing counts as delivered.",
            )
        if ledger is None or header.replay:
            return  # a replay moves no ledger: its row was counted when it was given up
        if ledger.through > header.range.through:
            raise Ahead(f"{self.place} has more than {about}: everything up to {ledger.through}.", holdings_of(ledger))
        if ledger.through < header.range.through:
            raise self._behind(ledger, about)
        if ledger.tally != header.total:
            # It had the range already and did not look at our rows: only the totals tell that those are others.
            ours, theirs = header.total.rows, ledger.tally.rows
            others = " others" if ours == theirs else ""
            raise DivergedHistory(
                f"{self.place} counts {theirs} rows of {where} up to {ledger.through}, and this store {ours}{others}.",
                hint=_PARTED,
            )

        if any(seq in header.range and seq not in header.given_up for seq in ledger.given_up):
            raise Ahead(f"{self.place} has {about}, but for rows that were given up.", holdings_of(ledger))

    def error(self, reply: Reply, *, about: str) -> FloodmarkError:
        """What a reply other than 2xx means."""
        words = self.words(reply)
        said = f"{self.place} answered {reply.status} to {about}" + (f": {words}" if words else "")
        said = said if said.endswith((".", "!", "?", "…")) else f"{said}."
        if reply.status in POISON:
            return Refused(said, words=words or f"status {reply.status}")
        if reply.status in PATIENCE or reply.status >= 500:
            return Busy(said, retry_after_seconds=retry_after_seconds(reply.retry_after, now=self.now()))
        if reply.status == 409:
            return self._conflict(reply, said, about)
        if 300 <= reply.status < 400:
            to = self.hide(plain(reply.location or ""))[:WORDS_CHARACTERS_MAX]
            leads = f" It leads to {to} ." if to else ""
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
            return Loop(said, hint="Remove one of the forward sinks that make the circle.")
        return Permanent(said, hint="The server will not have this chunk, for the reason that it gives.")

    def _behind(self, ledger: LedgerState, about: str) -> LedgerBehind:
        return LedgerBehind(
            f"The ledger of {self.place} ends at {ledger.through}: {about} would leave a hole behind it.", hint=_BEHIND
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
    return Holdings(end=ledger.through, tally=ledger.tally, given_up=frozenset(ledger.given_up))


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
