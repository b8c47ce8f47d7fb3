"""What `run` shows of itself over HTTP: dashboard, metrics and health.

A thread of its own serves it, on connections of its own to the control database: a browser that asks too much, or a
database that hangs, delays no flush and no export. If the thread ends, the daemon continues.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Self, TypeVar

import orjson
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from floodmark.control.database import Database
from floodmark.control.tokens import METRICS
from floodmark.daemon.loop import Daemon
from floodmark.dashboard.pages import Dashboard
from floodmark.engine import Engine
from floodmark.errors import InvalidSetting, Retryable
from floodmark.hub import access, bodies
from floodmark.hub.access import Access
from floodmark.hub.app import BROWSER_LOGIN, Quiet, not_found, tell
from floodmark.hub.problems import problem_of
from floodmark.hub.serve import BoundedProtocol, check_exposure, hosts_of, is_loopback, listen
from floodmark.metrics import CONTENT_TYPE, text_of
from floodmark.store import Store

T = TypeVar("T")
Work = Callable[[Request], Awaitable[Response]]

THREADS = 2
STOP_SECONDS_MAX = 2
ALIVE_SECONDS_MAX = 120.0
"""A loop that has not come round for this long hangs; it comes round every second, and after a failed read later."""

log = logging.getLogger("floodmark.run")


def parse_address(text: str) -> tuple[str, int]:
    """`127.0.0.1:8765`, `[::1]:8765`, `localhost:8765`, or a port on this machine."""
    host, colon, port = text.strip().rpartition(":")
    host = host.removeprefix("[").removesuffix("]") if colon else "127.0.0.1"
    if not host or not (port.isascii() and port.isdigit() and int(port) < 65_536):
        raise InvalidSetting(
            f"{text[:100]!r} is not an address to listen on.", hint="Write HOST:PORT, such as 127.0.0.1:8765."
        )
    return host, int(port)


class Listener:
    """Serves one daemon. A context manager: leaving it ends the thread."""

    def __init__(self, daemon: Daemon, store: Store, address: str, *, warn: Callable[[str], None]) -> None:
        host, port = parse_address(address)
        check_exposure(store, host, what="`floodmark run`", danger="see its rows in quarantine")
        self._socket = listen(host, port, what="`floodmark run`", hint="Choose another with --listen HOST:PORT.")
        self._socket.set_inheritable(False)  # a restart of the process must not keep the port
        if not is_loopback(host):
            warn(
                f"WARNING: `floodmark run` listens on {host} without TLS. Tokens are sent unencrypted. Put a proxy "
                "with TLS in front of it."
            )
        shown = f"[{host}]" if ":" in host else host
        self.address = f"http://{shown}:{self._socket.getsockname()[1]}"
        self._daemon = daemon
        own = store.engine
        self._engine = Engine(own.root, own.settings, Database(own.database.url), lambda: own.lake, own.clock)
        self._access = Access(self._engine)
        self._hosts = hosts_of(host, ())
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="listen")
        self.dashboard = Dashboard(self._engine, title="run", running=daemon.running)
        self._figures = self.dashboard.figures()
        config = uvicorn.Config(
            self.app(),
            http=BoundedProtocol,
            ws="none",
            loop="asyncio",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=64,
            timeout_graceful_shutdown=STOP_SECONDS_MAX,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._serve, name="listen", daemon=True)

    def __enter__(self) -> Self:
        for handler in logging.getLogger().handlers:
            handler.addFilter(Quiet())
        self._thread.start()
        self.dashboard.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self.dashboard.stop()
        if self._thread.is_alive():
            self._thread.join(STOP_SECONDS_MAX + 1)
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._socket.close()
        self._engine.database.close()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):  # the daemon continues without its pages
            self._server.run(sockets=[self._socket])

    # ── routes ───────────────────────────────────────────────────────────────────────────────────────────────────

    def app(self) -> Starlette:
        found = Starlette(
            routes=[
                Route("/healthz", self._guarded(self._show_health), methods=["GET"]),
                Route("/readyz", self._guarded(self._show_readiness), methods=["GET"]),
                Route("/metrics", self._guarded(self._show_metrics), methods=["GET"]),
                *self.dashboard.routes(self._guarded, self._allow, self._run),
            ],
            exception_handlers={HTTPException: not_found},
        )
        found.router.redirect_slashes = False
        return found

    def _guarded(self, work: Work) -> Work:
        async def endpoint(request: Request) -> Response:
            try:
                bodies.check_host(request, self._hosts)
                return await work(request)
            except Exception as error:  # noqa: BLE001 - the last handler: an error response, never a traceback
                problem = problem_of(error)
                if problem.status == 401:
                    problem = replace(problem, headers=BROWSER_LOGIN)
                if problem.status >= 500:
                    log.warning("%s answered %d: %s", request.url.path, problem.status, type(error).__name__)
                return tell(problem)

        return endpoint

    def _allow(self, request: Request, right: str) -> None:
        access.check_reader(self._access, request, right, doing=f"the {right}")

    async def _run(self, work: Callable[..., T], *arguments: Any, **options: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, lambda: work(*arguments, **options))

    async def _show_health(self, _request: Request) -> Response:
        silent = self._daemon.silent_seconds
        if silent > ALIVE_SECONDS_MAX:
            raise Retryable(f"The loop of `floodmark run` has not come round for {silent:.0f} s.")
        return _json({"status": "alive"})

    async def _show_readiness(self, _request: Request) -> Response:
        if self._daemon.failed_reads:
            raise Retryable("The store cannot be read.")
        await self._run(self._engine.database.read, lambda connection: connection.exec_driver_sql("SELECT 1"))
        return _json({"status": "ready"})

    async def _show_metrics(self, request: Request) -> Response:
        await self._run(access.check_reader, self._access, request, METRICS, doing="metrics")
        return Response(await self._run(self._metrics), media_type=CONTENT_TYPE)

    def _metrics(self) -> bytes:
        return self._daemon.metrics.text() + text_of(self._figures)


def _json(content: Any) -> Response:
    return Response(orjson.dumps(content) + b"\n", media_type="application/json")
