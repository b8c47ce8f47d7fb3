"""The daemon: read the store → begin what is due → process results, until it is asked to stop.

Terms. The *loop* is one thread; it reads, decides and reports, and does nothing that could take long. The *lanes*
(`daemon.lanes`) do the work. The *mailbox* is the queue of the loop: results of work, and requests to stop. A signal
handler may post to it at any time (`SimpleQueue` is reentrant; a lock is not).

How it stops
- Asked once: nothing new begins, waits end immediately, the present chunk or commit is finished. Exit code 0.
- After `run.stop_seconds_max` running work is abandoned. Exit code 1. Asked again, too: the JVM had died, and then a
  signal arrived. (A second signal ends the process itself: `floodmark.signals`.)
- A compaction or another task of maintenance is not waited for: what it has not committed is done again by the next.
- If Spark's JVM has died, it stops automatically: this process cannot start another JVM. It asks its caller for a
  restart (`RESTART`): one dataset that crashes the JVM must not stop the others.
Abandoned work is only postponed: it is recorded, and the next process finishes it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from queue import Empty, SimpleQueue

from sqlalchemy import Connection

from floodmark import faults
from floodmark.commit.flush import FlushReport
from floodmark.control import datasets, reports, segments, sinks
from floodmark.control.database import Database
from floodmark.daemon.events import Event, Voice, text_of
from floodmark.daemon.lanes import Lanes
from floodmark.daemon.metrics import RunMetrics, kind_of, name_of
from floodmark.daemon.plan import (
    Compact,
    DatasetView,
    Export,
    Flush,
    Moment,
    Outcome,
    Plan,
    SinkView,
    StoreView,
    Tend,
    Work,
)
from floodmark.delivery.channel import ExportReport, Stop
from floodmark.errors import Corrupt, FloodmarkError, Paused, Retryable, UnknownDataset, UnknownSink
from floodmark.files import PRIVATE_FILE, try_lock
from floodmark.lake.session import session_lost
from floodmark.maintenance import upkeep
from floodmark.maintenance.compact import CompactReport, DatasetCompaction
from floodmark.maintenance.upkeep import TaskReport
from floodmark.store import Store

# ── Whether a daemon runs on a store: a file that it keeps locked ────────────────────────────────────────────────────
# Two daemons on one store are safe: all their work is safe beside other processes. But they do the same work twice,
# which should be a decision. A lock ends with its process, so there is no stale lock to remove.


FILE_NAME = "run.lock"


class AlreadyRunning(Retryable):
    """A daemon already runs on the store."""


@contextlib.contextmanager
def present(root: Path, *, beside: bool) -> Iterator[bool]:
    """Lock the store as its daemon while the block runs; yields whether another daemon runs, too.

    `AlreadyRunning` if another daemon runs, unless `beside`.
    """
    descriptor = os.open(root / FILE_NAME, os.O_RDWR | os.O_CREAT, PRIVATE_FILE)
    try:
        first = try_lock(descriptor)
        if first:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        elif not beside:
            number = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
            raise AlreadyRunning(
                f"`floodmark run` is already running on {root}" + (f" (process {number})." if number else "."),
                hint="Stop that process first, or pass --beside: this is safe, but both do the same work.",
            )
        yield not first
    finally:
        os.close(descriptor)


# ── One read of a store: what waits in the spool, which sinks exist ──────────────────────────────────────────────────


def read_store(root: Path, database: Database) -> StoreView:
    """Sizes of the landing files first, then one consistent view of the control database.

    In this order a line that is sealed in between is counted once or twice, but never missed.
    """
    landed = _landing_sizes(root / "spool")

    def work(connection: Connection) -> StoreView:
        waiting_bytes = segments.segment_bytes(connection)
        offsets = segments.sealed_offsets(connection, [file for sizes in landed.values() for file in sizes])
        for dataset, sizes in landed.items():
            unsealed = sum(_unsealed(size, offsets.get(file, 0)) for file, size in sizes.items())
            waiting_bytes[dataset] = waiting_bytes.get(dataset, 0) + unsealed
        ticks = sinks.schedules(connection)
        tended: dict[str, dict[str, datetime]] = {}
        for report in reports.everyone(connection):
            tended.setdefault(report.subject, {})[report.task] = report.ended_at
        return StoreView(
            {
                item.name: DatasetView(
                    waiting_bytes.get(item.name, 0),
                    item.horizon,
                    paused=item.paused_at is not None,
                    tended=tended.get(item.name, {}),
                )
                for item in datasets.everyone(connection)
            },
            [
                SinkView(item, created_at=ticks[item.instance][1], ticked_at=ticks[item.instance][0])
                for item in sinks.everyone(connection)
            ],
        )

    return database.read(work)


def _unsealed(size: int, sealed: int | None) -> int:
    return 0 if sealed is None else max(0, size - sealed)


def _landing_sizes(spool: Path) -> dict[str, dict[str, int]]:
    """The size of every landing file, by dataset and name."""
    found: dict[str, dict[str, int]] = {}
    for dataset in _entries(spool):
        sizes = found[dataset.name] = {}
        for entry in _entries(Path(dataset.path) / "landing"):
            if entry.name.endswith(".jsonl"):
                with contextlib.suppress(FileNotFoundError):  # removed by a concurrent seal
                    sizes[entry.name.removesuffix(".jsonl")] = entry.stat().st_size
    return found


def _entries(directory: Path) -> list[os.DirEntry[str]]:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(directory) as entries:
        return list(entries)
    return []


# ── Loop ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


READ_SECONDS = 1.0
"""How often the loop reads the store, unless rows are to be flushed sooner. Finished work wakes it earlier."""
READ_DOUBLINGS_MAX = 6
"""After a failed read it waits one second, then two, and at most about a minute: a database often recovers quickly."""
SLOW_SECONDS = 300.0
"""Work that takes longer than this is reported once."""

JVM_LOST = (
    "Its JVM exited (killed, or out of memory?). No data is lost, and it is restarted; if this happens "
    "repeatedly, increase spark.driver_memory in floodmark.toml."
)

DONE, FAILED, CORRUPT = 0, 1, 3
RESTART = 75
"""Not an exit code: the process must restart, because its JVM exited."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request to stop."""

    reason: str


@dataclass(frozen=True, slots=True)
class Running:
    """Work in progress, for those who look at it."""

    kind: str
    subject: str
    since: datetime
    work: Work


class Daemon:
    """Flushes and delivers for one store. The caller closes the store."""

    def __init__(self, store: Store, tell: Callable[[Event], None]) -> None:
        self._store = store
        self._database: Database = store.engine.database
        self._clock = store.engine.clock
        # Its own connections: a read never waits for sinks that use all connections of the store.
        self._reading = Database(self._database.url)
        upkeep.check_rules(store.settings.run)
        self.plan = Plan(store.settings.run)
        self._voice = Voice(tell)
        self._mailbox: SimpleQueue[Outcome | Asked] = SimpleQueue()
        self._lanes = Lanes(self._perform, self._mailbox.put, self._clock)
        self._asked: list[str] = []
        self._code = DONE
        self._lost = False
        self._failed_reads = 0
        self._read_at_seconds = 0.0
        self._stepped_at_seconds = self._clock.monotonic_seconds()
        self.metrics = RunMetrics()
        self._running: tuple[Running, ...] = ()

    # ── for those who look at it, from any thread ────────────────────────────────────────────────────────────────

    def running(self) -> tuple[Running, ...]:
        """What it is doing."""
        return self._running

    @property
    def silent_seconds(self) -> float:
        """How long ago the loop came round."""
        return self._clock.monotonic_seconds() - self._stepped_at_seconds

    @property
    def failed_reads(self) -> int:
        """How often in a row the store could not be read."""
        return self._failed_reads

    @property
    def under_way(self) -> list[Work]:
        return self._lanes.under_way()

    def listening_on(self, address: str) -> None:
        """Report where it is looked at."""
        self._voice.listening(address)

    def ask_to_stop(self, reason: str) -> None:
        """May be called from any thread, also from a signal handler."""
        self._mailbox.put(Asked(reason))

    # ── the ways to run it ───────────────────────────────────────────────────────────────────────────────────────

    def run(self, *, beside: bool = False) -> int:
        """Run until asked to stop; returns the exit code. `under_way` is the abandoned work."""
        self._voice.started(store=str(self._store.path), pid=os.getpid(), beside=beside)
        interval = min(READ_SECONDS, self.plan.settings.flush_seconds / 4)
        while not self._asked:
            self.step()
            self.take(interval)
        return self._stop()

    def once(self) -> int:
        """Flush everything that waits, then deliver to every sink that is due; returns the exit code."""
        for kind in (Flush, Export):
            for _ in self._round(kind):
                self.take(READ_SECONDS)
            if self._asked:
                return self._stop()
        self._close()
        return self._code

    def step(self) -> None:
        """Read the store, and begin what is due. Never waits."""
        now = self._now()
        self._stepped_at_seconds = now.seconds
        if now.seconds < self._read_at_seconds:
            return
        try:
            self._read(now)
        except Exception as error:  # noqa: BLE001 - the daemon reports any error, and continues
            wait = READ_SECONDS * 2 ** min(self._failed_reads, READ_DOUBLINGS_MAX)
            self._failed_reads += 1
            self._read_at_seconds = now.seconds + wait
            self._voice.problem("store", text_of(error), retry_seconds=wait, error=error)
            return
        self._failed_reads = 0
        self._voice.well("store")
        for work in self.plan.due(now):
            self._begin(work, now)
        self._report_slow(now)

    def take(self, seconds: float) -> bool:
        """Process messages; if there is none, wait this long for one. False if none arrived."""
        taken = False
        with contextlib.suppress(Empty):
            message = self._mailbox.get(timeout=seconds)
            while True:
                taken = True
                self._take(message)
                message = self._mailbox.get_nowait()
        return taken

    # ── the parts of a step ──────────────────────────────────────────────────────────────────────────────────────

    def _now(self) -> Moment:
        return Moment(self._clock.now(), self._clock.monotonic_seconds())

    def _read(self, now: Moment) -> None:
        seen = read_store(self._store.path, self._reading)
        engine = self._store.engine
        if not engine.announced and any(view.waiting_bytes for view in seen.datasets.values()):
            engine.announced = True
            engine.lake.prepare()  # they are flushed soon
        for change in self.plan.see(seen, now):
            self._voice.noticed(change)
            if change.what == "removed" and change.instance is not None:
                self._lanes.drop(change.instance)

    def _begin(self, work: Work, now: Moment) -> None:
        self.plan.began(work, now)
        self.metrics.began(work)
        self._lanes.begin(work)
        self._running = (*self._running, Running(kind_of(work), name_of(work), now.wall, work))

    def _round(self, kind: type[Work]) -> Iterator[None]:
        """Begin all due work of a kind exactly once; yields while work is running."""
        begun: set[str] = set()
        while not self._asked:
            now = self._now()
            self._read(now)
            due = [work for work in self.plan.due(now) if isinstance(work, kind) and _key(work) not in begun]
            for work in due:
                begun.add(_key(work))
                self._begin(work, now)
            if not self.under_way:
                return
            yield

    def _take(self, message: Outcome | Asked) -> None:
        if isinstance(message, Asked):
            self._asked.append(message.reason)
            return
        if message.error is not None and not isinstance(message.error, Exception):
            raise message.error  # not an error of the work, but the end of the process
        now = self._now()
        self._lanes.end(message.work)
        self._running = tuple(one for one in self._running if one.work is not message.work)
        self.metrics.ended(message)
        self.plan.ended(message, now)
        if isinstance(message.error, UnknownSink | UnknownDataset | Paused):
            return  # it was just removed or paused, and the next read shows it
        if message.failed:
            self._code = CORRUPT if isinstance(message.error, Corrupt) else self._code or FAILED
        self._voice.ended(message, retry_seconds=self.plan.retry_seconds(message.work, now))
        if message.failed and not self._lost and session_lost():
            self._lost = True
            self._voice.problem("spark", JVM_LOST, retry_seconds=None)
            self._asked.append("Spark's JVM exited")

    def _report_slow(self, now: Moment) -> None:
        for work in self.under_way:
            seconds = self.plan.running_seconds(work, now)
            if seconds >= SLOW_SECONDS:
                self._voice.slow(work, seconds)

    # ── the work itself, in its lane ─────────────────────────────────────────────────────────────────────────────

    def _perform(self, work: Work, stop: Stop) -> Outcome:
        """Never raises: a lane whose thread died would be busy forever."""
        begun = self._clock.monotonic_seconds()
        try:
            report = self._do(work, stop)
            self._remember(work, report)
        except BaseException as error:  # noqa: BLE001 - the loop reports it, and retries
            self._remember(work, error)
            return Outcome(work, error=error, seconds=self._clock.monotonic_seconds() - begun)
        return Outcome(work, report, seconds=self._clock.monotonic_seconds() - begun)

    def _remember(self, work: Work, result: object) -> None:
        """Record the result of a task for those who look; nothing depends on it."""
        if not isinstance(work, Compact | Tend):
            return
        task = upkeep.COMPACT if isinstance(work, Compact) else work.task
        found = result.datasets[0] if isinstance(result, CompactReport) else result
        if isinstance(found, BaseException) and not isinstance(found, FloodmarkError):
            found = FloodmarkError(text_of(found))
        if isinstance(found, TaskReport | DatasetCompaction | FloodmarkError):
            with contextlib.suppress(FloodmarkError):
                upkeep.record(self._store.engine, found, task=task, dataset=work.dataset)

    def _do(self, work: Work, stop: Stop) -> FlushReport | CompactReport | TaskReport | ExportReport:
        if isinstance(work, Flush):
            return self._store.flush(work.dataset, stop=stop)
        if isinstance(work, Compact):
            return self._store.compact(work.dataset, apart=upkeep.APART)
        if isinstance(work, Tend):
            return upkeep.tend(self._store.engine, work.task, work.dataset)
        report = self._store.export(work.sink, stop=stop)
        faults.reach("run.exported")
        # Recorded afterwards: a slot whose run was interrupted by a crash or a stop is run again.
        if work.recorded and not report.errors and not stop.is_set:
            self._database.transact(lambda c: sinks.set_ticked(c, work.instance, at=work.slot))
        return report

    # ── the end ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _stop(self) -> int:
        seconds_max = self.plan.settings.stop_seconds_max
        self._voice.stopping(self.unfinished(), reason=self._asked[0], seconds_max=seconds_max)
        self._lanes.stop()
        deadline = self._clock.monotonic_seconds() + seconds_max
        while self.unfinished() and len(self._asked) == 1:
            left = deadline - self._clock.monotonic_seconds()
            if left <= 0:
                break
            self.take(min(left, READ_SECONDS))
        self._voice.stopped(self.unfinished())
        if self._lost and len(self._asked) == 1:
            return RESTART  # work that hangs is waiting for the JVM
        if self.unfinished():
            return FAILED
        self._close()
        return DONE

    def unfinished(self) -> list[Work]:
        """What is waited for before the process ends."""
        return [work for work in self.under_way if not isinstance(work, Compact | Tend)]

    def _close(self) -> None:
        self._lanes.close()
        self._reading.close()


def _key(work: Work) -> str:
    return f"export {work.instance}" if isinstance(work, Export) else f"flush {work.dataset}"
