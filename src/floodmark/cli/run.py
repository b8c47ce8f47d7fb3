"""`floodmark run`"""

from __future__ import annotations

import contextlib
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

import click

from floodmark import logs, traces
from floodmark.cli.options import open_store
from floodmark.cli.output import note
from floodmark.signals import StopSignals, keep_for_the_next_program, say_now

if TYPE_CHECKING:
    from floodmark.daemon.events import Event
    from floodmark.daemon.loop import Daemon
    from floodmark.store import Store


STEADY_SECONDS = 600
"""After this time a JVM counts as healthy: the next restart has no wait."""
_RESTARTS = "FLOODMARK_RUN_RESTARTS"


@click.command()
@click.option("--once", is_flag=True, help="Do everything that is due once, then exit. For cron and timers.")
@click.option("--beside", is_flag=True, help="Run even if another `floodmark run` is running on this store.")
@click.option(
    "--listen",
    metavar="HOST:PORT",
    help="Serve dashboard, metrics and health here, such as 127.0.0.1:8765. Default: the setting run.listen.",
)
@click.option("--json", "as_json", is_flag=True, help="Print events as JSON lines on standard output.")
@click.option(
    "--log", type=click.Choice(["text", "json"]), default="text", show_default=True, help="The form of log lines."
)
@click.pass_context
def run(context: click.Context, once: bool, beside: bool, listen: str | None, as_json: bool, log: str) -> None:
    """Flush, deliver and compact continuously, until stopped.

    A dataset is flushed when its rows have waited run.flush_seconds, or when run.flush_bytes are waiting. Each sink
    receives new rows on its own schedule. Datasets with new commits are compacted (run.compact). Datasets and sinks
    that are added, changed or removed are detected. Spark starts with the first rows and keeps running. Capture and the
    hub are separate processes and do not depend on this one.

    With --listen it serves a dashboard (/), metrics for Prometheus (/metrics) and health (/healthz, /readyz). On an
    address that other machines reach, they need a token: `floodmark token add`.

    On SIGTERM or Ctrl-C it finishes the work in progress, then stops. On a second signal it stops at once and says what
    is not finished; the next start completes it. No row is lost in either case.

    \b
    Examples:
      floodmark run
      floodmark run --listen 127.0.0.1:8765
      floodmark run --json >> events.jsonl
      floodmark run --once

    Events go to standard error, one line each; with --log json each is a JSON object. Exit codes: 0 stopped, all work
    finished; 1 the work in progress took longer than run.stop_seconds_max, or a step failed with --once; 3 corruption
    found with --once; 130 stopped at once by a second signal, at any time until the process has ended.
    """
    signals = StopSignals()
    from floodmark.daemon.events import Voice
    from floodmark.daemon.loop import DONE, FAILED, RESTART, Daemon, present

    store = open_store()
    store.check_writable()
    end_traces = traces.start("floodmark-run", **{"floodmark.store": store.store_id})
    with present(store.path, beside=beside) as another:
        form = "json" if as_json else log
        daemon = Daemon(store, _event_writer(form, lambda line: _say(lambda: click.echo(line, err=not as_json))))
        ended = Voice(_event_writer(form, partial(say_now, to_output=as_json)))
        signals.ask(daemon.ask_to_stop, last_words=lambda: ended.stopped(daemon.unfinished(), at_once=True))
        begun = time.monotonic()
        with _listening(daemon, store, "" if once else listen):
            code = daemon.once() if once else daemon.run(beside=another)
        end_traces()
        if code == RESTART and not once:
            _begin_anew(signals, lasted_seconds=time.monotonic() - begun)
            code = FAILED if daemon.under_way else DONE
        code = FAILED if code == RESTART else code
        if daemon.under_way:
            _leave(code)
        store.close()
    context.exit(code)


@contextlib.contextmanager
def _listening(daemon: Daemon, store: Store, address: str | None) -> Iterator[None]:
    """Serve dashboard, metrics and health while the loop runs, where an address is given or set."""
    address = store.settings.run.listen if address is None else address
    if not address:
        yield
        return
    from floodmark.daemon.listen import Listener

    with Listener(daemon, store, address, warn=note) as listener:
        daemon.listening_on(listener.address)
        yield


def _begin_anew(signals: StopSignals, *, lasted_seconds: float) -> None:
    """Replace this process by a new one with the same arguments: Python cannot start a second JVM. The lock is released
    with the old one. Returns only if a signal asks for a stop instead.

    If the JVM dies repeatedly, the wait before each restart grows.
    """
    from floodmark.delivery.backoff import wait_seconds

    times = 1 if lasted_seconds >= STEADY_SECONDS else int(os.environ.get(_RESTARTS) or 0) + 1
    wait = 0.0 if times == 1 else wait_seconds(times - 1)
    if wait:
        click.echo(f"{_time()} The JVM has exited {times} times: restarting in {wait:.0f} s.", err=True)
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os.environ[_RESTARTS] = str(times)
    if signals.arrived(wait):
        return
    keep_for_the_next_program()
    # By module: the called file may be a wrapper.
    os.execv(sys.executable, [sys.executable, "-m", "floodmark.cli", *sys.argv[1:]])  # noqa: S606 - ourselves


def _leave(code: int) -> None:
    """Exit at once. A thread hangs, and a normal exit would close resources that it uses."""
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _event_writer(form: str, write: Callable[[str], None]) -> Callable[[Event], None]:
    """How events become lines."""
    logger = logs.event_logger(form, write)

    def tell(event: Event) -> None:
        say = logger.warning if event.name in {"problem", "slow"} else logger.info
        say(event.name, text=event.text, **event.details)
        if event.error is not None and os.environ.get("FLOODMARK_TRACEBACK"):
            traceback.print_exception(event.error)

    return tell


def _say(line: Callable[[], None]) -> None:
    """The reader of the output may close the pipe; deliveries must continue."""
    with contextlib.suppress(OSError):
        line()


def _time() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
