"""The hub as processes: one that listens and supervises, and workers that serve, each with its own open store."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import os
import resource
import shutil
import signal
import socket
import ssl
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

from uvicorn.config import STARTUP_FAILURE, Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import Server
from uvicorn.supervisors.multiprocess import Multiprocess, Process

from floodmark.control import tokens
from floodmark.errors import FloodmarkError, InvalidSetting, Permanent, Retryable, reason_of
from floodmark.files import make_directory
from floodmark.hub.settings import HubSettings
from floodmark.process import is_certainly_dead, process_identity
from floodmark.signals import StopSignals
from floodmark.store import Store, open_store

log = logging.getLogger("floodmark.hub")

# ── How many connections a worker accepts: in total, and from one address ────────────────────────────────────────────


# An idle connection costs a descriptor. Without descriptors a worker can neither accept connections nor open files, and
# logs every attempt. So it sends a refusal while it still can.


DESCRIPTORS_KEPT = 256
"""For files, the control database and the worker's own sockets."""
ADDRESS_MAX = 512
"""Connections from one address. A proxy is one address too."""
REFUSAL = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/problem+json\r\nRetry-After: 5\r\n"
    b"Connection: close\r\nContent-Length: %d\r\n\r\n%s"
)
CONTENT = (
    b'{"type":"urn:floodmark:problem:Crowded","title":"Crowded","status":503,'
    b'"detail":"The hub has reached its limit of connections. Nothing was stored.",'
    b'"hint":"Send the same request again later, and close connections that are not used."}\n'
)


def connections_max() -> int:
    """The limit that the descriptors of this process allow."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 65_536 if soft == resource.RLIM_INFINITY else max(16, soft - DESCRIPTORS_KEPT)


@dataclass(slots=True)
class Connections:
    """The connections of one worker."""

    all_max: int
    address_max: int = ADDRESS_MAX
    _open: Counter[str] = field(default_factory=Counter)

    def admit(self, address: str) -> bool:
        """Count a connection; false, without counting it, if the limit is reached."""
        if self._open.total() >= self.all_max or self._open[address] >= self.address_max:
            return False
        self._open[address] += 1
        return True

    def leave(self, address: str) -> None:
        self._open[address] -= 1
        if self._open[address] <= 0:
            del self._open[address]


def refusal() -> bytes:
    """The response to a connection before it is closed."""
    return REFUSAL % (len(CONTENT), CONTENT)


# ── uvicorn's HTTP protocol with a timeout for headers ───────────────────────────────────────────────────────────────


HEADER_SECONDS_MAX = 20.0


class BoundedProtocol(H11Protocol):
    """Between requests uvicorn's keep-alive limit applies; during a body, the hub's own. This one is for headers."""

    counted: ClassVar[Connections | None] = None
    """The connections of this worker, created with the first one."""
    _header_timer: asyncio.TimerHandle | None = None
    _address: str | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        kind = type(self)
        if kind.counted is None:
            kind.counted = Connections(connections_max())
        address = str((transport.get_extra_info("peername") or ("?",))[0])
        if not kind.counted.admit(address):
            transport.write(refusal())
            transport.close()
            return
        self._address = address
        self._expect_headers()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_timer()
        elif self._header_timer is None:
            self._expect_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        if self._address is not None and self.counted is not None:
            self.counted.leave(self._address)
            self._address = None
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        self._stop_timer()
        super().on_response_complete()

    def _expect_headers(self) -> None:
        self._header_timer = self.loop.call_later(HEADER_SECONDS_MAX, self._give_up)

    def _stop_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _give_up(self) -> None:
        self._header_timer = None
        if not self.transport.is_closing():
            self.transport.close()


# ── The process that starts workers and replaces those that die or hang ──────────────────────────────────────────────


START_SECONDS_MAX = 120.0
"""A hub without any worker that serves, after this time, stops."""
START_LOOK_SECONDS = 0.05
LOOK_SECONDS = 0.5
RETRY_DOUBLINGS_MAX = 6
"""A replacement that cannot start is followed by another after half a second, then one, and at most half a minute."""


class Worker(Process):
    """uvicorn's, but it tells its supervisor why it could not start, and leaves Ctrl-C to it.

    A terminal sends SIGINT to every process that it started. A worker that stopped by itself would end requests that an
    orderly stop finishes, or print a traceback if it had only begun to start.
    """

    def start(self) -> None:
        resource_tracker.ensure_running()  # as a part of the first start, it would unblock the signal again
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            super().start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def target(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            super().target(sockets)
        except Exception as error:  # noqa: BLE001 - a sentence for the supervisor, never a page of code
            if os.environ.get("FLOODMARK_TRACEBACK"):
                traceback.print_exc()
            unexpected = FloodmarkError(f"Unexpected failure ({type(error).__name__}: {reason_of(error)}).")
            told = error if isinstance(error, FloodmarkError) else unexpected
            self.child_conn.send((told.message, told.hint))
            sys.exit(STARTUP_FAILURE)


class Supervisor(Multiprocess):
    """uvicorn's, but a worker that dies is replaced at the next check, half a second later, whatever others do.

    `serving` is called once, when the first worker serves requests. `Retryable` if a worker cannot start before that,
    or none does in time. Afterwards one that cannot start, because a database is away, is tried again.
    """

    def __init__(self, config: Config, sockets: list[socket.socket], serving: Callable[[], None]) -> None:
        super().__init__(config, sockets)
        self._serving = serving
        self._served = False
        self._began = time.monotonic()
        self._failed: tuple[str, str | None] | None = None
        self._failures = 0
        self._retry_at = 0.0
        self._asked: WeakKeyDictionary[Process, float] = WeakKeyDictionary()
        """When each worker was pinged, if it has not responded yet."""

    def init_processes(self) -> None:
        self.processes = [self._new() for _ in range(self.processes_num)]

    def run(self) -> None:
        self.init_processes()
        try:
            while not self.should_exit.wait(LOOK_SECONDS if self._served else START_LOOK_SECONDS):
                self.handle_signals()
                self.keep_subprocess_alive()
        finally:
            self.terminate_all()
            self.join_all()

    def kill_all(self) -> None:
        """End the workers at once. For a signal handler: it takes no lock, and waits for nobody."""
        for worker in self.processes:
            if worker.pid is not None and worker.exitcode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(worker.pid, signal.SIGKILL)

    def keep_subprocess_alive(self) -> None:
        for index, worker in enumerate(self.processes):
            if self.should_exit.is_set():
                return
            lives = worker.process.is_alive()
            if (lives and self._answers(worker)) or time.monotonic() < self._retry_at:
                continue
            if not lives:
                with contextlib.suppress(OSError, EOFError):
                    self._read(worker)  # what it said before it exited
            self._end(worker, hangs=lives)
            if worker.exitcode == STARTUP_FAILURE:
                self._could_not_start()
            self.processes[index] = self._new()
        if not self._served and time.monotonic() - self._began > START_SECONDS_MAX:
            raise Retryable(
                f"No worker of the hub served requests within {START_SECONDS_MAX:.0f} s.",
                hint="Check the control database and the load of the machine (`floodmark doctor`), then try again.",
            )

    def _new(self) -> Worker:
        worker = Worker(self.config, self.sockets)
        worker.start()
        return worker

    def _could_not_start(self) -> None:
        reason, hint = self._failed or ("It exited without a reason.", None)
        if not self._served:
            raise Retryable(f"The hub could not start. {reason}", hint=hint)
        log.error("A worker could not start: %s", reason)
        self._retry_at = time.monotonic() + LOOK_SECONDS * 2 ** min(self._failures, RETRY_DOUBLINGS_MAX)
        self._failures += 1

    def _answers(self, worker: Process) -> bool:
        """Never waits: a worker that dies after its ping would block the supervision of all others."""
        now = time.monotonic()
        try:
            self._read(worker)
            if worker not in self._asked:
                worker.parent_conn.send(b"ping")
                self._asked[worker] = now
        except (OSError, EOFError):
            return False
        return now - self._asked[worker] < self.config.timeout_worker_healthcheck

    def _read(self, worker: Process) -> None:
        while worker.parent_conn.poll(0):
            said = worker.parent_conn.recv()
            self._asked.pop(worker, None)
            if isinstance(said, tuple):
                self._failed = said
            elif said:
                self._failures = 0
                if not self._served:
                    self._served = True
                    self._serving()

    @staticmethod
    def _end(worker: Process, *, hangs: bool) -> None:
        worker.kill()
        worker.join()
        log.warning(
            "Worker %s %s; a new one is started.",
            worker.pid,
            "did not respond and was killed" if hangs else f"exited with {worker.exitcode}",
        )


# ── Serve ────────────────────────────────────────────────────────────────────────────────────────────────────────────


BACKLOG = 1024
KEEP_ALIVE_SECONDS = 75
STOP_SECONDS_MAX = 30
WORKER_PATIENCE_SECONDS = 60
"""A worker that does not respond to its supervisor for this time counts as dead."""
DESCRIPTORS_WANTED = 65_536
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
COUNTERS = "hub"
SHARED_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"  # the name in prometheus_client


@dataclass(frozen=True, slots=True)
class Tls:
    """A certificate with its key, both as PEM files."""

    certificate: Path
    key: Path

    def check(self) -> None:
        """`InvalidSetting` if workers could not use them."""
        try:
            ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(self.certificate, self.key)
        except (OSError, ValueError) as error:  # of which ssl.SSLError is one
            raise InvalidSetting(
                f"The certificate {self.certificate} and the key {self.key} cannot be used: {reason_of(error)}.",
                hint="Give --tls-cert a PEM file with the certificate and its chain, and --tls-key its private key.",
            ) from error


def serve(
    path: Path,
    *,
    host: str,
    port: int,
    workers: int,
    settings: HubSettings,
    signals: StopSignals,
    listening: Callable[[str], None],
    stopped_at_once: Callable[[], None],
    warn: Callable[[str], None],
    allowed_hosts: Sequence[str] = (),
    tls: Tls | None = None,
) -> None:
    """Serve the store until a signal; present requests are finished first, unless a second one arrives.

    `listening` is called with the address when a worker serves requests, and `warn` with what is unsafe. A second
    signal calls `stopped_at_once`, in its handler.
    """
    if tls is not None:
        tls.check()
    raise_descriptors()
    with open_store(path) as store:  # its errors are reported here once, not by every worker
        store.check_writable()
        check_exposure(store, host)
        root = store.path
    listener = listen(host, port)
    if tls is None and not is_loopback(host):
        warn(
            f"WARNING: The hub listens on {host} without TLS. Tokens and rows are sent unencrypted, and anyone who "
            "sees a token can use it. Pass --tls-cert and --tls-key, or put a proxy with TLS in front of it."
        )
    settings = replace(settings, hosts=hosts_of(host, allowed_hosts))
    try:
        with _shared_counters(root):
            run_workers(
                path,
                listener,
                workers=workers,
                settings=settings,
                tls=tls,
                signals=signals,
                serving=lambda: listening(_address(host, listener, tls)),
                stopped_at_once=stopped_at_once,
            )
    finally:
        listener.close()


@contextlib.contextmanager
def _shared_counters(root: Path) -> Iterator[None]:
    """A directory for the counters of all workers, while this hub runs; directories of killed hubs are removed."""
    for left in (root / COUNTERS).glob("*"):
        if left.name.count("~") == 3 and is_certainly_dead(left.name.replace("~", "/")):
            shutil.rmtree(left, ignore_errors=True)
    own = root / COUNTERS / process_identity().replace("/", "~")
    make_directory(own, private=True)
    os.environ[SHARED_VARIABLE] = str(own)  # prometheus_client reads it at import, after workers start
    try:
        yield
    finally:
        os.environ.pop(SHARED_VARIABLE, None)
        shutil.rmtree(own, ignore_errors=True)


def run_workers(
    path: Path,
    listener: socket.socket,
    *,
    workers: int,
    settings: HubSettings,
    tls: Tls | None,
    signals: StopSignals,
    serving: Callable[[], None],
    stopped_at_once: Callable[[], None],
) -> None:
    from floodmark.hub.app import worker_app

    parent = os.getpid() if workers > 1 else None
    config = Config(
        partial(worker_app, partial(open_store, path), settings, parent),
        factory=True,
        http=BoundedProtocol,
        ws="none",
        loop="asyncio",
        lifespan="on",
        workers=workers,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        h11_max_incomplete_event_size=settings.header_bytes_max,
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=STOP_SECONDS_MAX,
        timeout_worker_healthcheck=WORKER_PATIENCE_SECONDS,
        ssl_certfile=None if tls is None else tls.certificate,
        ssl_keyfile=None if tls is None else tls.key,
    )
    if workers > 1:
        supervisor = Supervisor(config, [listener], serving)
        signals.install()  # uvicorn has replaced the handlers

        def end() -> None:
            supervisor.kill_all()
            stopped_at_once()

        signals.ask(lambda _: supervisor.signal_queue.append(signal.SIGTERM), last_words=end)
        supervisor.run()
        return
    server = _OnlyWorker(config, serving)
    signals.ask(lambda _: setattr(server, "should_exit", True), last_words=stopped_at_once)
    server.run(sockets=[listener])


class _OnlyWorker(Server):
    """The worker of a hub that has no other: it says itself when it serves, and the process handles its signals."""

    def __init__(self, config: Config, serving: Callable[[], None]) -> None:
        super().__init__(config)
        self._serving = serving

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._serving()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def check_exposure(store: Store, host: str, *, what: str = "The hub", danger: str = "send rows") -> None:
    """A store without tokens accepts every client, so only this machine may connect."""
    if is_loopback(host):
        return
    engine = store.engine
    found = engine.database.read(tokens.everyone)
    if not any(token.is_in_force(engine.clock.now()) for token in found):
        raise Permanent(
            f"{what} would listen on {host}, but the store has no valid token: anyone who reaches it could {danger}.",
            hint="Create one with `floodmark token add`, or listen on 127.0.0.1 behind a proxy that authenticates.",
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        pass
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return all(ipaddress.ip_address(str(item[4][0]).partition("%")[0]).is_loopback for item in found)


def hosts_of(host: str, allowed: Sequence[str]) -> frozenset[str] | None:
    """The allowed host names of requests; any if other machines reach the hub and no names are given."""
    if is_loopback(host):
        return frozenset({*LOOPBACK_NAMES, host.lower(), *(name.lower() for name in allowed)})
    return frozenset(name.lower() for name in allowed) or None


def raise_descriptors() -> None:
    """Let this process and its workers have as many open files as the system grants; most start with 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS_WANTED if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS_WANTED)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # then the limit stays, with fewer connections
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def listen(
    host: str,
    port: int,
    *,
    what: str = "The hub",
    hint: str = "Choose another with --host and --port; port 0 selects a free port.",
) -> socket.socket:
    """A socket that accepts connections; `InvalidSetting` if the address cannot be used."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(BACKLOG)  # from now on requests wait for the first worker instead of being refused
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise InvalidSetting(
            f"{what} cannot listen on {host}, port {port}: {error.strerror or error}.", hint=hint
        ) from error
    listener.set_inheritable(True)
    return listener


def _address(host: str, listener: socket.socket, tls: Tls | None) -> str:
    shown = f"[{host}]" if ":" in host else host
    return f"{'http' if tls is None else 'https'}://{shown}:{listener.getsockname()[1]}"
