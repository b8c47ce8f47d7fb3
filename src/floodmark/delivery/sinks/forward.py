"""A forward sink: each chunk is one POST to another store's hub, or to a server that supports idempotency keys.

    POST {url}/v1/datasets/{dataset}/chunks      rows, compressed, with the chunk's header and key
    GET  {url}/v1/ledger/{origin}                what a hub has of this store

Terms. The *origin* is the sender's name at a hub: the store's id, unless another one is set. The *key* is made of
origin, dataset, partition and range, so a retry has the same key. The *path* names the stores that the rows passed
before: a hub that finds itself there refuses them, because they would loop forever.

D8. A sink delivers to one hub: the store that responded at the first connection. It is recorded with the sink, checked
at every new connection, and named in every acknowledgement; responses of other servers are ignored. Only with
`accept = "status"` does the status alone decide.

A chunk's body depends on its rows alone, so it may be encoded ahead (`prepare`), while the chunk before it is sent. Its
header depends on what was delivered before, so it is built last.
"""

from __future__ import annotations

import bisect
import math
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from floodmark.control import datasets, provenance, sinks
from floodmark.control.deliveries import Channel
from floodmark.delivery.credentials import Credential, check_credential, shown_url
from floodmark.delivery.destination import (
    Account,
    Audited,
    Delivered,
    Finding,
    Kind,
    Parcel,
    whole_number,
)
from floodmark.delivery.outcomes import Ahead, Holdings, Oversized
from floodmark.delivery.sinks.http import Ask, Exchange, Judge, Reply, holdings_of, media_of
from floodmark.engine import Engine
from floodmark.errors import FloodmarkError, InvalidSetting, Loop, MalformedChunk, Permanent
from floodmark.sequence import SEQUENCE_MAX, SequenceRange, Tally
from floodmark.wire import (
    COLUMNS,
    HEADER,
    HEADER_CHARACTERS_MAX,
    KEY_HEADER,
    LINES,
    PATH_STORES_MAX,
    VERSION,
    ChunkHeader,
    LedgerState,
    compress,
    digest_of,
    encode_columns,
    encode_lines,
    idempotency_key,
    types_lost_in_json,
)

if TYPE_CHECKING:
    import pyarrow as pa


# ── Whether a hub's ledger agrees with the records of a channel ──────────────────────────────────────────────────────


_BEHIND = (
    "Was the hub restored from a backup? Remove this sink and add it again: it asks the hub, and continues where "
    "its ledger ends."
)
_PARTED = "Was one of the two restored from a backup, or this store copied? Audit the hub's own store as well."


def differences(held: Holdings, account: Account, where: str) -> Iterator[Finding]:
    end, tally = held.end or 0, held.tally or Tally()
    pending = max((item.through for item in account.pending), default=account.watermark)
    if end < account.end:
        gap = SequenceRange(end, account.end)
        what = f"The hub's ledger ends at {end}, but everything up to {account.end} was acknowledged."
        yield Finding("rows-missing", what, where, _BEHIND, gap)
    elif end > max(pending, account.watermark):
        what = f"The hub's ledger ends at {end}, but nothing above {pending} was sent."
        yield Finding("rows-extra", what, where, _PARTED, SequenceRange(account.watermark, end))
    elif end == account.end and tally != account.totals:
        yield _other_totals(tally, account, where)
    ours = sorted(account.given_up)
    never_got = held.given_up_rows - sum(1 for seq in ours if seq <= end)
    if never_got > 0:
        # In a range that has some of ours, it is unknown which of its rows the hub means.
        unknown = [span for span in held.given_up if not _any_within(ours, span)] or list(held.given_up)
        span = SequenceRange(unknown[0].after, unknown[-1].through) if unknown else SequenceRange(0, max(end, 1))
        what = f"The hub never received {never_got} rows of {span}, but the records say that they were delivered."
        yield Finding("rows-missing", what, where, _PARTED, span)


def _any_within(numbers: list[int], span: SequenceRange) -> bool:
    index = bisect.bisect_right(numbers, span.after)
    return index < len(numbers) and numbers[index] <= span.through


def _other_totals(tally: Tally, account: Account, where: str) -> Finding:
    ours = account.totals
    if tally.rows == ours.rows:
        what, kind = (
            f"The hub counts {tally.rows} rows up to {account.end}, as many as were sent, but with another checksum.",
            "rows-altered",
        )
    else:
        kind = "rows-missing" if tally.rows < ours.rows else "rows-extra"
        what = f"The hub counts {tally.rows} rows up to {account.end}, but {ours.rows} were sent."
    return Finding(kind, what, where, _PARTED, SequenceRange(0, account.end))


# ── Forward ──────────────────────────────────────────────────────────────────────────────────────────────────────────


ACCEPT = ("hub", "status")
"""What counts as delivered: the acknowledgement of a hub, or any 2xx."""
REPLY_BYTES_MAX = 1 << 20
"""A hub's reply names ranges that were given up: enough for all that it names at once."""
LEDGER_BYTES_MAX = 16 << 20
"""A ledger has an entry for each of our channels: enough for about 100,000."""
LEDGER_PAGES_MAX = 10_000
"""The maximum number of requests for a ledger, each for a thousand ranges that were given up."""
PREPARED_MAX = 8
"""The maximum number of prepared bodies."""
HOPELESS = 4
"""Rows that need this many times `chunk_bytes` in memory are split without encoding them first."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A parcel's rows, encoded."""

    media: str
    body: bytes
    """Compressed."""
    digest: str
    types: Mapping[str, str]


class _AnotherMedia(Exception):
    """The server does not support the media type of the body."""


class ForwardSink:
    """Delivers to one server. The channels of a dataset share it, each in its own thread."""

    def __init__(self, engine: Engine, instance: str, settings: Mapping[str, Any]) -> None:
        self._engine = engine
        self._instance = instance
        self._url: str = settings["url"]
        self._origin: str = settings["origin"] or engine.store_id
        self._chunk_bytes: int = settings["chunk_bytes"]
        self._credential = None if settings["token"] is None else Credential(settings["token"])
        self._exchange = Exchange(
            timeout_seconds=settings["timeout_seconds"],
            connect_timeout_seconds=settings["connect_timeout_seconds"],
            connections_max=settings["concurrency"],
        )
        hide = str if self._credential is None else self._credential.hide
        self._judge = Judge(urlsplit(self._url).netloc, engine.clock.now, hide)
        self._hub: str | None = None
        """The hub of the sink, after this process has connected to it."""
        # A sink may be older than this setting: if its server is not a hub, the error names the setting.
        self.keeps_ledger = settings.get("accept", "hub") == "hub"
        self._media = LINES
        """The media type of bodies: lines, until a hub reports that it supports columns."""
        self._lock = threading.Lock()
        self._ahead: list[tuple[pa.Table, Future[Prepared]]] = []
        """Bodies that are or will be prepared, with the rows that they are made of."""

    def __repr__(self) -> str:
        return f"ForwardSink({self._url})"

    def open(self) -> None:
        """Nothing: the first chunk shows whether we may deliver there."""

    def close(self) -> None:
        self._exchange.close()

    def held(self, channel: Channel, *, after: int) -> Holdings:
        """What the hub's ledger reports. A server without one reports nothing, and only keys prevent duplicates."""
        if not self.keeps_ledger:
            return Holdings()
        spans: list[SequenceRange] = []
        for _ in range(LEDGER_PAGES_MAX):
            state = self._state(channel, after=after)
            if state is None:
                return Holdings()
            spans += state.given_up
            if not state.more:
                return replace(holdings_of(state), given_up=tuple(spans))
            if not state.given_up or state.given_up[-1].through <= after:
                break
            after = spans[-1].through
        raise self._unreadable()

    def _state(self, channel: Channel, *, after: int) -> LedgerState | None:
        reply = self._send("GET", self._question(channel, after=after), reply_bytes_max=LEDGER_BYTES_MAX)
        self._meet(reply)
        where = {"dataset": channel.dataset, "partition": channel.partition}
        found = [item for item in reply.content()["channels"] if type(item) is dict and where.items() <= item.items()]
        try:
            return LedgerState.parse(found[0]) if found else None
        except MalformedChunk as error:
            raise self._unreadable() from error

    def _unreadable(self) -> Permanent:
        return Permanent(
            f"The ledger of {self._judge.place} cannot be read.",
            hint="Use the same version of Floodmark on both sides.",
        )

    def probe(self) -> str:
        """Ask for the ledger: the hub checks the token for it. Which hub it is, is compared and not recorded."""
        if not self.keeps_ledger:
            reply = self._send("GET", "")
            return f"{self._judge.place} answers ({reply.status}). Whether it accepts rows, only a delivery shows."
        reply = self._send("GET", f"/v1/ledger/{quote(self._origin, safe='')}?version={VERSION}&after={SEQUENCE_MAX}")
        pinned = self._engine.database.read(lambda c: sinks.hub_of(c, self._instance))
        return f"The hub {self._judge.met(reply, pinned=pinned)} answers at {self._judge.place} and accepts the token."

    def audited(self, channel: Channel, account: Account, *, deep: bool) -> Audited:  # noqa: ARG002 - rows are the hub's
        """Compare the hub's ledger with our totals. The hub's own audit checks its rows."""
        if not self.keeps_ledger:
            note = f"{self._judge.place} keeps no ledger: only the records were compared."
            return Audited(note=note, asked=False)
        try:
            held = self.held(channel, after=0)
        except FloodmarkError as error:
            note = f"{self._judge.place} did not report what it has: only the records were compared. {error}"
            return Audited(note=note, asked=False, failed=True)
        return Audited(None if held.tally is None else held.tally.rows, tuple(differences(held, account, self._url)))

    def prepare(self, parcel: Parcel) -> Prepared:
        """Encode the body of a parcel ahead; `deliver` uses it. Raises `Oversized` as that does."""
        making: Future[Prepared] = Future()
        with self._lock:
            self._ahead = [*self._ahead, (parcel.rows, making)][-PREPARED_MAX:]
        try:
            making.set_result(self._encoded(parcel))
        except BaseException as error:  # a thread that waits for it must not wait forever
            making.set_exception(error)
            raise
        return making.result()

    def deliver(self, parcel: Parcel) -> Delivered:
        """Send a parcel. It is delivered when our hub acknowledges it, and its ledger agrees."""
        making = self._taken(parcel)
        prepared = self._encoded(parcel) if making is None else making.result()
        try:
            return self._deliver(parcel, prepared)
        except _AnotherMedia:  # the hub was replaced by an older version
            self._media = LINES
            return self._deliver(parcel, self._encoded(parcel))

    def _deliver(self, parcel: Parcel, prepared: Prepared) -> Delivered:
        channel = parcel.channel
        if self.keeps_ledger and self._hub is None:
            self._state(channel, after=parcel.range.after)
        header = self._header(parcel, prepared)
        text = header.encode()
        if len(header.path) > PATH_STORES_MAX or len(text) > HEADER_CHARACTERS_MAX:
            raise _too_many_stores(channel.dataset, len(header.path))
        key = idempotency_key(self._origin, channel.dataset, channel.partition, parcel.range, replay=parcel.replay)
        reply = self._send(
            "POST",
            f"/v1/datasets/{quote(channel.dataset, safe='')}/chunks",
            headers={HEADER: text, KEY_HEADER: key, "Content-Type": prepared.media, "Content-Encoding": "zstd"},
            content=prepared.body,
            greet=channel if self.keeps_ledger else None,
        )
        if reply.status == 415 and prepared.media != LINES:
            raise _AnotherMedia
        try:
            self._judge.check(reply, header=header, dataset=channel.dataset, hub=self._hub)
        except Ahead as error:
            # A reply names only the missing rows of this chunk; the ledger names those of later chunks, too.
            raise Ahead(str(error), self.held(channel, after=header.range.after)) from error
        return Delivered(len(prepared.body))

    # ── which hub ────────────────────────────────────────────────────────────────────────────────────────────────

    def _question(self, channel: Channel, *, after: int) -> str:
        asked = {"dataset": channel.dataset, "partition": channel.partition, "version": VERSION, "after": after}
        question = "&".join(f"{key}={quote(str(value), safe='')}" for key, value in asked.items())
        return f"/v1/ledger/{quote(self._origin, safe='')}?{question}"

    def _meet(self, reply: Reply) -> None:
        """D8: the sink delivers to the first hub that it connects to; any other is refused."""
        database, instance = self._engine.database, self._instance
        pinned = self._hub or database.read(lambda c: sinks.hub_of(c, instance))
        hub = self._judge.met(reply, pinned=pinned)
        if pinned is None:
            pinned = database.transact(lambda c: sinks.pin_hub(c, instance, hub))
            self._judge.met(reply, pinned=pinned)
        self._hub = pinned
        self._media = media_of(reply.content())

    # ── what is sent ─────────────────────────────────────────────────────────────────────────────────────────────

    def _taken(self, parcel: Parcel) -> Future[Prepared] | None:
        with self._lock:
            found = next((making for rows, making in self._ahead if rows is parcel.rows), None)
            self._ahead = [item for item in self._ahead if item[1] is not found]
        return found

    def _encoded(self, parcel: Parcel) -> Prepared:
        several = parcel.rows.num_rows > 1
        if several and parcel.rows.nbytes > HOPELESS * self._chunk_bytes:
            raise Oversized
        schema = self._engine.database.read(lambda c: datasets.get(c, parcel.channel.dataset)).schema
        media = self._media if parcel.rows.num_rows else LINES
        if media == COLUMNS:
            content = encode_columns(parcel.rows, parcel.sequence, parcel.ids)
        else:
            content = encode_lines(parcel.rows, parcel.sequence, parcel.ids, schema=schema)
        if several and len(content) > self._chunk_bytes:
            raise Oversized
        return Prepared(media, compress(content), digest_of(content), types_lost_in_json(schema, parcel.rows))

    def _header(self, parcel: Parcel, prepared: Prepared) -> ChunkHeader:
        return ChunkHeader(
            origin=self._origin,
            partition=parcel.channel.partition,
            range=parcel.range,
            tally=parcel.tally,
            before=parcel.before,
            digest=prepared.digest,
            given_up=() if parcel.given_up is None else (parcel.given_up,),
            replay=parcel.replay,
            path=self._path(parcel.channel.dataset),
            types=prepared.types,
        )

    def _path(self, dataset: str) -> tuple[str, ...]:
        """H4: every store that rows of the dataset have passed, this one last; `Loop` if the hub is one of them."""
        # Read for each chunk, after its rows: the path of a row was recorded before the row was committed.
        before = self._engine.database.read(lambda c: provenance.stores_before(c, dataset))
        if self._hub in before:
            raise Loop(
                f"Rows of {dataset!r} have passed through {self._judge.place} before: it is the store {self._hub!r}.",
                hint="Remove one of the forward sinks that form the loop. If the rows never took this path, see which "
                "origin reported it: `floodmark provenance list`.",
            )
        # With another origin, the store itself is still one that the rows passed.
        own = tuple(dict.fromkeys((self._engine.store_id, self._origin)))
        return (*[store for store in before if store not in own], *own)

    # ── the exchange ─────────────────────────────────────────────────────────────────────────────────────────────

    def _send(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] | None = None,
        content: bytes | None = None,
        reply_bytes_max: int = REPLY_BYTES_MAX,
        greet: Channel | None = None,
    ) -> Reply:
        """Send with the token; if it is refused, once more with the present token of its source."""

        def once(token: str | None) -> Reply:
            proof = {} if token is None else {"Authorization": f"Bearer {token}"}

            def greeting(ask: Ask) -> None:
                if greet is None:
                    return
                reply = ask("GET", f"{self._url}{self._question(greet, after=SEQUENCE_MAX)}", proof)
                if reply.status != 401:  # otherwise the request itself gets 401, and its token is read again
                    self._meet(reply)

            return self._exchange.send(
                method,
                f"{self._url}{path}",
                headers={**(headers or {}), **proof},
                content=content,
                reply_bytes_max=reply_bytes_max,
                greet=None if greet is None else greeting,
            )

        if self._credential is None:
            return once(None)
        reply = once(self._credential.text())
        return once(self._credential.text()) if reply.status == 401 else reply


def _too_many_stores(dataset: str, stores: int) -> Permanent:
    """H4: if some stores were left out, rows could loop forever. So nothing is sent."""
    return Permanent(
        f"Rows of {dataset!r} have passed through {stores:,} stores, more than a chunk can name.",
        hint="Let some of those stores forward to the last hub directly, or remove wrong entries: "
        "`floodmark provenance list`.",
    )


# ── settings ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _check(settings: dict[str, Any]) -> None:
    settings["url"] = _checked_url(settings["url"])
    if settings["token"] is not None:
        check_credential("token", settings["token"])
    for key in ("chunk_rows", "chunk_bytes", "concurrency"):
        whole_number(settings, key)
    for key in ("timeout_seconds", "connect_timeout_seconds", "wait_seconds_max"):
        value = settings[key]
        if type(value) not in {int, float} or not math.isfinite(value) or value < 0:
            raise InvalidSetting(f"{key} is {value!r}.", hint="It must be a number of seconds.")
        if value == 0 and key != "wait_seconds_max":
            raise InvalidSetting(f"{key} is 0.", hint="It must be a number of seconds above zero.")
    if settings["accept"] not in ACCEPT:
        raise InvalidSetting(
            f"accept is {settings['accept']!r}.",
            hint="It must be hub, or status for a server that is not a hub: any 2xx then means that rows are stored.",
        )
    origin = settings["origin"]
    if origin is not None and not (isinstance(origin, str) and 0 < len(origin) <= 200 and origin.isprintable()):
        raise InvalidSetting(f"origin is {origin!r}.", hint="It must be a text of 1 to 200 characters.")


def _checked_url(url: Any) -> str:
    """The address without a final slash. It is not shown if it might contain a secret."""
    import httpx

    try:
        parts = httpx.URL(url)
        port = 1 if parts.port is None else parts.port  # httpx accepts any number
        whole = parts.scheme in {"http", "https"} and bool(parts.host) and 0 < port < 65_536
    except (httpx.InvalidURL, TypeError, ValueError):  # ValueError for unpaired surrogates
        whole = False
    if not whole:
        raise InvalidSetting(
            f"The url {shown_url(url)} is not the address of a hub.", hint="Write https://host[:port][/path]."
        )
    if parts.userinfo or "@" in str(parts.path):  # a password that contains a slash is parsed as part of the path
        raise InvalidSetting("The url contains a user name or password.", hint="Give a credential as the token.")
    if parts.query or parts.fragment:
        raise InvalidSetting("The url contains ? or #.", hint="Write only the part before it.")
    return str(parts).rstrip("/")


def _probe(engine: Engine, sink: sinks.Sink) -> str:
    made = ForwardSink(engine, sink.instance, sink.settings)
    try:
        return made.probe()
    finally:
        made.close()


KIND = Kind(
    name="forward",
    defaults={
        "token": None,
        "chunk_rows": 5_000,
        "chunk_bytes": 4 << 20,
        "timeout_seconds": 30,
        "connect_timeout_seconds": 5,
        "concurrency": 4,
        "wait_seconds_max": 5,
        "origin": None,
        "accept": "hub",
    },
    required=("url",),
    check=_check,
    connect=lambda engine, channel, settings: ForwardSink(engine, channel.sink, settings),
    probe=_probe,
    # The url and the origin identify the destination of an intent: a part of it at another url or origin would be a gap
    # there, and duplicates here.
    pinned=("url", "origin", "chunk_rows", "chunk_bytes"),
    secret=frozenset({"token"}),
    contiguous=True,
)
