"""The HTTP side of the hub: routes, limits, responses. `chunks` and `captures` process the rows.

The event loop reads requests and writes responses; disk access and parsing run in a small pool of threads, so that a
health check gets its response while a chunk is stored.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from floodmark import logs, traces, wire
from floodmark.control import datasets, requests
from floodmark.control.tokens import CAPTURE, METRICS, Token
from floodmark.dashboard.pages import Dashboard
from floodmark.engine import Engine
from floodmark.errors import FloodmarkError, SpoolFull
from floodmark.hub import access, bodies
from floodmark.hub.access import Access
from floodmark.hub.captures import JSON_ARRAY, JSON_LINES, KEY_CHARACTERS_MAX, RACES_MAX, Captures, lost_races
from floodmark.hub.chunks import Chunks
from floodmark.hub.metrics import Metrics
from floodmark.hub.problems import MEDIA_TYPE, RETRY_SECONDS, Problem, Refusal, problem_of
from floodmark.hub.settings import HubSettings
from floodmark.hub.shares import Places, Room
from floodmark.metrics import CONTENT_TYPE as METRICS_TYPE
from floodmark.spool.capture import Capture, Receipt
from floodmark.store import Store

T = TypeVar("T")
Work = Callable[[Request], Awaitable[Response]]

WATCH_SECONDS = 1.0
GARBAGE_OBJECTS = 200_000
FORGET_SECONDS = 3600.0

BROWSER_LOGIN = {"WWW-Authenticate": 'Basic realm="floodmark: any name, and the token as password", charset="UTF-8"'}
"""Makes a browser ask for a token."""

log = logging.getLogger("floodmark.hub")


@dataclass(slots=True)
class Hub:
    """One worker: an open store and the threads that work on it."""

    engine: Engine
    spool: Capture
    settings: HubSettings = field(default_factory=HubSettings)
    access: Access = field(init=False)
    chunks: Chunks = field(init=False)
    captures: Captures = field(init=False)
    dashboard: Dashboard = field(init=False)
    metrics: Metrics = field(init=False)
    places: Places = field(init=False)
    _pool: ThreadPoolExecutor = field(init=False)
    _door: ThreadPoolExecutor = field(init=False)
    """Looks at tokens: who is refused does not wait for those who are served."""

    def __post_init__(self) -> None:
        self.access = Access(self.engine)
        room = Room()
        self.chunks = Chunks(self.engine, self.spool, self.settings.content_bytes_max, self.settings.limits, room)
        self.captures = Captures(
            self.engine,
            self.spool,
            self.settings.content_bytes_max,
            self.settings.limits,
            self.settings.quarantine_max,
            self.settings.quarantine_token_max,
            room,
        )
        self.dashboard = Dashboard(self.engine, title="hub")
        self.metrics = Metrics(self.dashboard.figures())
        self.places = Places(self.settings.requests_max, self.settings.client_requests_max)
        self._pool = ThreadPoolExecutor(self.settings.threads, thread_name_prefix="hub")
        self._door = ThreadPoolExecutor(1, thread_name_prefix="hub-door")

    def close(self) -> None:
        self.dashboard.stop()
        self._door.shutdown()
        self._pool.shutdown()

    async def run(self, work: Callable[..., T], *arguments: Any, **options: Any) -> T:
        """Run blocking or CPU-bound work outside the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, lambda: work(*arguments, **options))

    # ── rows in ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def take_chunk(self, request: Request) -> Response:
        dataset = request.path_params["dataset"]
        token = await self.token(request)
        access.check_dataset(token, dataset)
        media = bodies.content_type(request, frozenset(wire.MEDIA))
        encoding = bodies.content_encoding(request)
        text = bodies.one_header(request, wire.HEADER)
        if text is None:
            raise bodies.bad_request(f"The header {wire.HEADER} is missing.")
        header = wire.ChunkHeader.parse(text)
        access.check_origin(token, header.origin)
        access.check_path(token, header.path)
        with self._place(request, token, header.origin):
            body = await self._body(request)
            accepted = await self.run(self.chunks.accept, dataset, header, body, encoding=encoding, media=media)
        self.metrics.rows.labels("chunks", dataset).inc(accepted.stored)
        return answer(accepted.content())

    async def take_capture(self, request: Request) -> Response:
        dataset = request.path_params["dataset"]
        token = await self.token(request)
        access.check_dataset(token, dataset)
        access.check_right(token, CAPTURE, doing="capture")
        media = bodies.content_type(request, JSON_LINES | {JSON_ARRAY})
        encoding = bodies.content_encoding(request)
        key = bodies.one_header(request, wire.KEY_HEADER)
        if key is not None and not (0 < len(key) <= KEY_CHARACTERS_MAX and key.isascii() and key.isprintable()):
            raise bodies.bad_request(f"{wire.KEY_HEADER} is 1 to {KEY_CHARACTERS_MAX} printable ASCII characters.")
        how = {"encoding": encoding, "media": media, "token": token.name}
        with self._place(request, token):
            body = await self._body(request)
            if key is None:
                receipt = await self.run(self.captures.accept_unkeyed, dataset, body, **how)
            else:
                receipt = await self._capture_once(dataset, body, key=key, **how)
        self.metrics.rows.labels("capture", dataset).inc(receipt.rows)
        return answer({"rows": receipt.rows, "quarantined": receipt.quarantined})

    async def _capture_once(self, dataset: str, body: bytes, **how: str) -> Receipt:
        """Like `Captures.accept`, but no thread waits while another one stores the group."""
        for _ in range(RACES_MAX):
            found = await self.run(self.captures.enter, dataset, body, **how)
            receipt = found if isinstance(found, Receipt) else await asyncio.wrap_future(found.outcome)
            if receipt is not None:
                return receipt
        raise lost_races()

    async def _body(self, request: Request) -> bytes:
        settings = self.settings
        body = await bodies.read_body(
            request, bytes_max=settings.body_bytes_max, seconds_max=settings.request_seconds_max
        )
        self.metrics.bytes.labels(request.scope["floodmark.route"]).inc(len(body))
        return body

    @contextlib.contextmanager
    def _place(self, request: Request, token: Token, origin: str = "") -> Iterator[None]:
        """H6: a place for a request, from its body to its response. A sender is a store with a token, or a token; where
        there are no tokens, a store or an address.
        """
        address = request.client.host if request.client else ""
        sender = (token.name or address, origin)
        if not self.places.take(sender):
            who = "This sender has its share" if self.places.taken < self.settings.requests_max else "The hub is full"
            raise Refusal(_crowded(f"{who} of concurrent requests."))
        try:
            yield
        finally:
            self.places.leave(sender)

    async def token(self, request: Request) -> Token:
        given = bodies.one_header(request, "authorization")
        token = await asyncio.get_running_loop().run_in_executor(self._door, self.access.token, given)
        request.scope["floodmark.token"] = token.name
        return token

    # ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def show_ledger(self, request: Request) -> Response:
        origin = request.path_params["origin"]
        token = await self.token(request)
        access.check_origin(token, origin)
        asked = dict(request.query_params)
        return answer(await self.run(self.chunks.ledger, origin, asked, allows=token.allows_dataset))

    async def show_health(self, _request: Request) -> Response:
        return answer({"status": "alive"})

    async def show_readiness(self, _request: Request) -> Response:
        full = await self.run(self._full_spools)
        if full:
            raise SpoolFull(f"The spool of {full:,} {'dataset' if full == 1 else 'datasets'} is full.")
        return answer({"status": "ready"})

    def _full_spools(self) -> int:
        full = 0
        for dataset in self.engine.database.read(datasets.everyone):
            try:
                self.spool.check_room(dataset.name)
            except SpoolFull:
                full += 1
        return full

    async def show_metrics(self, request: Request) -> Response:
        await self.run(access.check_reader, self.access, request, METRICS, doing="metrics")
        return Response(await self.run(self.metrics.text), media_type=METRICS_TYPE)

    def allow(self, request: Request, right: str) -> None:
        access.check_reader(self.access, request, right, doing=f"the {right}")

    # ── upkeep ───────────────────────────────────────────────────────────────────────────────────────────────────

    def forget_old_keys(self) -> int:
        cutoff = self.engine.clock.now() - timedelta(days=self.settings.key_days)
        return self.engine.database.transact(lambda c: requests.forget(c, before=cutoff))


def answer(content: Any, *, status: int = 200, media: str = "application/json", headers: Any = None) -> Response:
    return Response(orjson.dumps(content) + b"\n", status_code=status, media_type=media, headers=headers)


def tell(problem: Problem, *, hub: str | None = None) -> Response:
    # A sender accepts a refusal only from the hub that it delivers to.
    content = problem.content() if hub is None or problem.status >= 500 else {**problem.content(), "hub": hub}
    return answer(content, status=problem.status, media=MEDIA_TYPE, headers=problem.headers)


# ── the application ──────────────────────────────────────────────────────────────────────────────────────────────────


def build_app(hub: Hub, *, lifespan: Callable[[Starlette], Any] | None = None) -> Starlette:
    """The ASGI application of one worker."""

    def route(path: str, name: str, method: str, work: Work) -> Route:
        return Route(path, _guarded(hub, name, work), methods=[method])

    app = Starlette(
        routes=[
            route("/v1/datasets/{dataset}/chunks", "chunks", "POST", hub.take_chunk),
            route("/v1/datasets/{dataset}/capture", "capture", "POST", hub.take_capture),
            route("/v1/ledger/{origin:path}", "ledger", "GET", hub.show_ledger),
            route("/healthz", "healthz", "GET", hub.show_health),
            route("/readyz", "readyz", "GET", hub.show_readiness),
            route("/metrics", "metrics", "GET", hub.show_metrics),
            *hub.dashboard.routes(lambda work: _guarded(hub, "page", work), hub.allow, hub.run),
        ],
        exception_handlers={HTTPException: not_found},
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False  # other addresses are not found: no redirects
    return app


def _guarded(hub: Hub, route: str, work: Work) -> Work:
    """Every request gets a response; every error is logged, and no traceback is sent."""

    async def endpoint(request: Request) -> Response:
        request.scope["floodmark.route"] = route
        started = time.monotonic()
        try:
            bodies.check_host(request, hub.settings.hosts)
            with traces.span("request", route=route, method=request.method) as attribute:
                response = await work(request)
                attribute("status", response.status_code)
        except Exception as error:  # noqa: BLE001 - the last handler: an error response, never a traceback
            problem = problem_of(error)
            if problem.status == 401 and route == "page":
                problem = replace(problem, headers=BROWSER_LOGIN)
            _note(request, problem, error)
            response = tell(problem, hub=hub.engine.store_id)
        hub.metrics.requests.labels(route, str(response.status_code)).inc()
        hub.metrics.seconds.labels(route).observe(time.monotonic() - started)
        return response

    return endpoint


def _crowded(detail: str) -> Problem:
    return Problem(
        "Crowded",
        429,
        f"{detail} Nothing was stored.",
        "Send the same request again later.",
        headers={"Retry-After": str(RETRY_SECONDS)},
    )


def _note(request: Request, problem: Problem, error: Exception) -> None:
    """One log line for the operator: client and response. No value of a row, no token, no traceback."""
    route, token = request.scope["floodmark.route"], request.scope.get("floodmark.token")
    who = f"{request.client.host if request.client else '?'}{f', token {token}' if token else ''}"
    if problem.status < 500:  # its own message may quote a row
        log.info("%s answered %d %s to %s", route, problem.status, problem.name, who)
    elif isinstance(error, FloodmarkError):
        log.warning("%s answered %d %s to %s: %s", route, problem.status, problem.name, who, error.message)
    else:
        log.error("%s answered %d to %s: %s at %s", route, problem.status, who, type(error).__name__, _place(error))


def _place(error: Exception) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "?" if trace is None else f"{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}"


async def not_found(_request: Request, error: Exception) -> Response:
    """The response to an unknown address or method."""
    if not isinstance(error, HTTPException):
        raise error
    words = {
        404: ("NotFound", "There is no resource at this address."),
        405: ("NotAllowed", "This method is not allowed here."),
    }
    name, detail = words.get(error.status_code, ("BadRequest", "The request is malformed."))
    headers = dict(error.headers) if error.headers else {}
    return tell(Problem(name, error.status_code, detail, headers=headers))


# ── a worker process ─────────────────────────────────────────────────────────────────────────────────────────────────


def worker_app(open_store: Callable[[], Store], settings: HubSettings, supervisor: int | None) -> Starlette:
    """The application of a worker process. The store is opened there: connections and locks do not survive a fork."""
    logging.basicConfig(handlers=[logs.handler(settings.log)], level=logging.WARNING)
    log.setLevel(logging.INFO)
    for handler in logging.getLogger().handlers:  # asyncio and uvicorn repeat lines as well
        handler.addFilter(Quiet())
    store = open_store()
    end_traces = traces.start("floodmark-hub", **{"floodmark.store": store.store_id})
    hub = Hub(store.engine, store.spool, settings)
    # A chunk is thousands of short-lived dicts without cycles: repeated garbage collection while they are created would
    # cost a tenth of the time.
    gc.freeze()
    gc.set_threshold(GARBAGE_OBJECTS)

    @contextlib.asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        watch = asyncio.create_task(_watch(hub, supervisor))
        hub.dashboard.start()
        try:
            yield
        finally:
            watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watch
            hub.close()
            store.close()
            end_traces()

    return build_app(hub, lifespan=lifespan)


async def _watch(hub: Hub, supervisor: int | None) -> None:
    """Stop with the supervisor, and remove old keys every hour."""
    forgotten = -FORGET_SECONDS
    while True:
        if supervisor is not None and os.getppid() != supervisor:
            # No process would restart or stop this worker: an orphan would keep the port forever.
            log.warning("The supervisor of this worker has exited; the worker stops.")
            signal.raise_signal(signal.SIGTERM)
            return
        if time.monotonic() - forgotten >= FORGET_SECONDS:
            forgotten = time.monotonic()
            with contextlib.suppress(FloodmarkError):  # retried in an hour; nothing depends on it
                await hub.run(hub.forget_old_keys)
        await asyncio.sleep(WATCH_SECONDS)


# ── a rate limit for the log ─────────────────────────────────────────────────────────────────────────────────────────
# A rate limit for the log: equal lines are written a few times, and then counted.


LINES_MAX = 20
"""Lines of one kind that are written in `SECONDS`."""
SECONDS = 60.0
KINDS_MAX = 1_000


@dataclass(slots=True)
class _Kind:
    since: float
    written: int = 0
    suppressed: int = 0


class Quiet(logging.Filter):
    """Lines are of one kind if they have the same format string in the code."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._kinds: OrderedDict[tuple[str, int, str], _Kind] = OrderedDict()

    def filter(self, record: logging.LogRecord) -> bool:
        now = self._clock()
        key = (record.name, record.levelno, str(record.msg)[:200])
        kind = self._kinds.setdefault(key, _Kind(now))
        if now - kind.since >= SECONDS:
            if kind.suppressed:
                record.msg, record.args = f"{record.getMessage()} ({kind.suppressed:,} more lines like this one)", ()
            kind.since, kind.written, kind.suppressed = now, 0, 0
        if kind.written >= LINES_MAX:
            kind.suppressed += 1
            return False
        kind.written += 1
        while len(self._kinds) > KINDS_MAX:
            self._kinds.popitem(last=False)
        return True
