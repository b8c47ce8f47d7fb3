"""The steps of the demo, and the checks after each."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

import floodmark
from floodmark.cli.demo.rows import COLUMNS, DATASET, EVENT_TIME, IDENTITY, PARTITION_BY, WRITERS, Plan
from floodmark.cli.demo.writer import WriterReport
from floodmark.errors import Permanent

if TYPE_CHECKING:
    from floodmark.commit.flush import FlushReport
    from floodmark.delivery.context import ExportReport
    from floodmark.sequence import Cursor
    from floodmark.status import DatasetStatus
    from floodmark.store import Store


# ── Hub ──────────────────────────────────────────────────────────────────────────────────────────────────────────────
# The demo's hub: a real process on a store of its own, which is killed in the middle and started again.


@dataclass(slots=True)
class HubProcess:
    """`floodmark hub` on a store in a directory."""

    path: Path
    port: int = 0
    _process: subprocess.Popen[str] | None = field(default=None, init=False)

    def make_store(self) -> None:
        with floodmark.init(self.path) as store:
            store.add_dataset(DATASET, IDENTITY, event_time=EVENT_TIME, partition_by=PARTITION_BY, schema=COLUMNS)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> HubProcess:
        """Start it, on the same port as before if it ran already, and wait until it listens."""
        command = [sys.executable, "-m", "floodmark.cli", "-s", str(self.path), "hub", "--port", str(self.port)]
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
        said = self._process.stderr.readline() if self._process.stderr else ""
        found = re.search(r"http://[^ ]+:(\d+)", said)
        if found is None:
            raise Permanent(f"The hub of the demo did not start: {said.strip()}")
        self.port = int(found[1])
        threading.Thread(target=self._drain, daemon=True).start()
        return self

    def kill(self) -> None:
        """Like a power loss: no request is finished, no worker is notified."""
        self._signal(signal.SIGKILL)

    def stop(self) -> None:
        self._signal(signal.SIGTERM)

    def _signal(self, number: signal.Signals) -> None:
        import os

        if self._process is not None:
            os.killpg(self._process.pid, number)
            self._process.wait(timeout=60)
            self._process = None

    def _drain(self) -> None:
        process = self._process
        if process is not None and process.stderr is not None:
            for _line in process.stderr:
                pass


# ── Story ────────────────────────────────────────────────────────────────────────────────────────────────────────────


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the demo, with its duration and result."""

    name: str
    seconds: float
    result: str


@dataclass(frozen=True, slots=True)
class Claim:
    """One check, with the counted value."""

    text: str
    wanted: int
    found: int

    @property
    def holds(self) -> bool:
        return self.wanted == self.found


@dataclass(slots=True)
class Story:
    """A run of the demo."""

    plan: Plan
    store_path: str
    say: Callable[[str], None]
    steps: list[Step] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        return all(claim.holds for claim in self.claims)

    def run(self) -> None:
        import floodmark

        with floodmark.init(self.store_path) as store:
            store.add_dataset(DATASET, IDENTITY, event_time=EVENT_TIME, partition_by=PARTITION_BY, schema=COLUMNS)
            self._capture()
            self._do("Start Spark", lambda: store.spark, lambda spark: f"Spark {spark.version}")
            self._first_flush(store)
            cursor = self._read_everything(store)
            with contextlib.ExitStack() as held:
                hub = HubProcess(Path(f"{self.store_path}-hub"))
                archive = Path(f"{self.store_path}-archive")
                self._first_export(store, hub, archive, held)
                self._late_rows(store, cursor)
                self._second_export(store)
            self._arrived(hub, archive)
            self._totals(store)

    def _do(self, name: str, work: Callable[[], T], result: Callable[[T], str]) -> T:
        self.say(f"{name} …")
        started = time.perf_counter()
        done = work()
        self.steps.append(Step(name, time.perf_counter() - started, result(done)))
        return done

    def _claim(self, text: str, *, wanted: int, found: int) -> None:
        self.claims.append(Claim(text, wanted, found))

    # ── the steps ────────────────────────────────────────────────────────────────────────────────────────────────

    def _capture(self) -> None:
        reports = self._do(
            f"Capture from {WRITERS} writer processes",
            lambda: _run_writers(self.store_path, self.plan.rows),
            lambda done: f"{sum(r.rows for r in done):,} rows durable in {sum(r.calls for r in done)} calls",
        )
        rate = sum(report.rows / report.seconds for report in reports)
        self.steps.append(
            Step("  time inside capture()", max(r.seconds for r in reports), f"{rate:,.0f} rows/s in total")
        )
        self._claim(
            "rows acknowledged to the writers",
            wanted=self.plan.rows - self.plan.misfits,
            found=sum(r.rows for r in reports),
        )
        self._claim(
            "rows that do not fit, counted", wanted=self.plan.misfits, found=sum(r.quarantined for r in reports)
        )

    def _first_flush(self, store: Store) -> None:
        report = self._do("Flush", lambda: store.flush(DATASET), _flushed)
        self._claim("rows committed", wanted=self.plan.distinct, found=report.rows)
        self._claim("duplicates dropped", wanted=self.plan.duplicates, found=report.duplicates)
        self._claim("rows in quarantine", wanted=self.plan.misfits, found=len(store.quarantine.entries(DATASET)))

    def _read_everything(self, store: Store) -> Cursor:
        ids, cursor = self._do("Read everything", lambda: _read(store, None), lambda done: f"{len(done[0]):,} rows")
        self._claim("rows read", wanted=self.plan.distinct, found=len(ids))
        self._claim(
            "expected messages among them", wanted=self.plan.distinct, found=len(self.plan.first_ids() & {*ids})
        )
        return cursor

    def _late_rows(self, store: Store, cursor: Cursor) -> None:
        sent = self.plan.sent_late()
        self._do(
            "Capture late rows", lambda: store.capture(DATASET, sent), lambda receipt: f"{receipt.rows:,} rows durable"
        )
        report = self._do("Flush again", lambda: store.flush(DATASET), _flushed)
        self._claim("re-sent rows dropped", wanted=self.plan.resent, found=report.duplicates)
        # By its text, like another process would do it.
        ids, _ = self._do(
            "Read since the stored cursor", lambda: _read(store, str(cursor)), lambda done: f"{len(done[0]):,} rows"
        )
        self._claim("new rows read since the cursor", wanted=self.plan.late, found=len(ids))
        self._claim("late messages among them", wanted=self.plan.late, found=len(self.plan.late_ids() & {*ids}))

    def _first_export(self, store: Store, hub: HubProcess, archive: Path, held: contextlib.ExitStack) -> None:
        hub.make_store()
        held.callback(hub.stop)
        self._do("Start a hub process", hub.start, lambda done: done.url)
        store.add_sink("archive", "blob", url=archive.as_uri(), format="parquet")
        store.add_sink("central", "forward", url=hub.url, chunk_rows=max(50, self.plan.rows // 20))
        self._do("Export to files", lambda: store.export("archive"), _exported)
        killed = _KilledAtHalf(hub, self.plan.distinct)
        report = self._do(
            "Export to the hub, which is killed halfway",
            lambda: store.export("central", progress=killed),
            lambda done: f"{done.rows:,} rows acknowledged, then: {next(iter(done.errors.values()), 'nothing')[:60]}",
        )
        self._claim("exports that failed when the hub was killed", wanted=1, found=min(len(report.errors), 1))
        self._do("Start the hub again", hub.start, lambda done: done.url)

    def _second_export(self, store: Store) -> None:
        self._do("Export all new rows", store.export, _exported)
        ticks = [_timed(partial(store.export, name)) for name in ("archive", "central")]
        self.steps.append(
            Step("Export with nothing new", max(seconds for seconds, _ in ticks), "no row, no Spark job, no request")
        )
        self._claim("rows sent by an export with nothing new", wanted=0, found=sum(one.rows for _, one in ticks))
        self._claim("Spark jobs started by it", wanted=0, found=sum(one.spark_jobs for _, one in ticks))

    def _arrived(self, hub: HubProcess, archive: Path) -> None:
        """Count the rows at the destinations: each row of the store, once."""
        import floodmark

        wanted = self.plan.distinct + self.plan.late
        rows, ids = self._do("Count the files", lambda: _in_files(archive), lambda done: f"{done[0]:,} rows")
        self._claim("rows in the files", wanted=wanted, found=rows)
        self._claim("distinct rows in the files", wanted=wanted, found=len(ids))
        with floodmark.open(hub.path) as store:
            report = self._do("Flush at the hub", lambda: store.flush(DATASET), _flushed)
            self._claim("rows at the hub", wanted=wanted, found=report.rows)
            self._claim("rows stored twice at the hub", wanted=0, found=report.duplicates)

    def _totals(self, store: Store) -> None:
        status = self._do("Status", store.status, lambda done: _summed(done.datasets[0]))
        dataset = status.datasets[0]
        total = self.plan.distinct + self.plan.late
        self._claim("rows in the dataset", wanted=total, found=dataset.rows)
        self._claim("rows left in the spool", wanted=0, found=dataset.spool.segment_rows + dataset.spool.landing_bytes)
        counted = self._do(
            "Count with SQL",
            lambda: store.sql(f"SELECT count(*), count(DISTINCT part_id) FROM {DATASET}").collect()[0],  # noqa: S608
            lambda row: f"{row[0]:,} rows, {row[1]:,} identities",
        )
        self._claim("rows by SQL", wanted=total, found=counted[0])
        self._claim("distinct identities by SQL", wanted=total, found=counted[1])


def _flushed(report: FlushReport) -> str:
    return f"{report.rows:,} committed, {report.duplicates:,} duplicates dropped, {report.blocks} block {report.block}"


def _exported(report: ExportReport) -> str:
    return f"{report.rows:,} rows in {report.chunks} chunks, {report.bytes / 1e6:.1f} MB"


@dataclass(slots=True)
class _KilledAtHalf:
    """Called with a growing report: kills the hub once half of the rows have been acknowledged."""

    hub: HubProcess
    rows: int
    done: bool = False

    def __call__(self, report: ExportReport) -> None:
        if not self.done and report.rows >= self.rows // 2:
            self.done = True
            self.hub.kill()


def _timed(work: Callable[[], T]) -> tuple[float, T]:
    started = time.perf_counter()
    done = work()
    return time.perf_counter() - started, done


def _in_files(directory: Path) -> tuple[int, set[str]]:
    import pyarrow.parquet as pq

    found = [pq.read_table(path, columns=["part_id"])["part_id"].to_pylist() for path in directory.rglob("*.parquet")]
    return sum(map(len, found)), {one for ids in found for one in ids}


def _summed(dataset: DatasetStatus) -> str:
    parts = f"{len(dataset.partitions)} partitions, {dataset.quarantined} quarantined"
    return f"{dataset.rows:,} rows, horizon {dataset.horizon:,}, {parts}"


def _read(store: Store, since: str | None) -> tuple[list[str], Cursor]:
    ids: list[str] = []
    cursor = store.cursor(DATASET)
    for batch in store.read_since(DATASET, since):
        ids += batch.table["part_id"].to_pylist()
        cursor = batch.cursor
    return ids, cursor


def _run_writers(store_path: str, rows: int) -> list[WriterReport]:
    """Two processes at the same time, each with its own interpreter."""
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "floodmark.cli.demo.writer", store_path, str(rows), str(writer)],
            stdout=subprocess.PIPE,
            cwd=Path.cwd(),
        )
        for writer in range(WRITERS)
    ]
    outputs = [process.communicate()[0] for process in started]
    if any(process.returncode != 0 for process in started):
        raise Permanent("A writer process of the demo failed. Its output is above.")
    return [msgspec.json.decode(output, type=WriterReport) for output in outputs]
