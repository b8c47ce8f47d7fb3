"""The steps of the demo, and the checks after each."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

import floodmark
from floodmark.cli.demo.rows import COLUMNS, DATASET, EVENT_TIME, IDENTITY, PARTITION_BY, Plan
from floodmark.cli.demo.writer import WriterReport
from floodmark.errors import Permanent

if TYPE_CHECKING:
    from floodmark.delivery.channel import ExportReport
    from floodmark.maintenance.compact import CompactReport
    from floodmark.sequence import Cursor
    from floodmark.store import Store


# ── Hub ──────────────────────────────────────────────────────────────────────────────────────────────────────────────
# The demo's hub: a real process on a store of its own, which is killed in the middle and started again.


@dataclass(slots=True)
class HubProcess:
    """`floodmark hub` on a store in a directory."""

    path: Path
    port: int = 0
    _process: subprocess.Popen[str] | None = field(default=None, init=False)

    def make_store(self, *, tables: Path) -> None:
        """A store with one dataset, and a catalog of other tables."""
        with floodmark.init(self.path) as store:
            store.add_dataset(DATASET, IDENTITY, event_time=EVENT_TIME, partition_by=PARTITION_BY, schema=COLUMNS)
        tables.mkdir()
        settings = self.path / "floodmark.toml"
        text = settings.read_text(encoding="utf-8").replace("# files_min = 8", "files_min = 2")  # there are few files
        with settings.open("w", encoding="utf-8") as file:
            file.write(
                f'{text}\n[catalogs.{CATALOG}]\ntype = "sql"\nuri = "sqlite:///{tables}/catalog.db"\n'
                f'warehouse = "{tables.as_uri()}"\n'
            )

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
CATALOG = "warehouse"
ROUNDS_MAX = 1000
"""A demo that does not come to its end fails."""


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
    wait: Callable[[str], None] | None = None
    """Called with the dashboard's address before everything is stopped."""
    steps: list[Step] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)
    _dropped: int = 0
    """Duplicates that the hub has dropped."""

    @property
    def holds(self) -> bool:
        return all(claim.holds for claim in self.claims)

    def run(self) -> None:
        """North and south collect rows; both forward them to a hub, which delivers them to files and to a table."""
        with contextlib.ExitStack() as held:
            north, south = (held.enter_context(self._edge(name)) for name in ("north", "south"))
            hub = self._hub(held)
            central = held.enter_context(floodmark.open(hub.path))
            self._live((north, south), hub, central)
            self._history(central)
            self._deliver(central)
            self._compact(central)
            self._late_rows(north, central)
            self._nothing_new((north, south), central)
            self._audit((north, south), central)
            self._arrived(central)
            if self.wait is not None:
                self.wait(hub.url)

    def _do(self, name: str, work: Callable[[], T], result: Callable[[T], str]) -> T:
        self.say(f"{name} …")
        started = time.perf_counter()
        done = work()
        said = result(done)
        self.steps.append(Step(name, time.perf_counter() - started, said))
        self.say(f"    {said}")
        return done

    def _claim(self, text: str, *, wanted: int, found: int) -> None:
        self.claims.append(Claim(text, wanted, found))

    # ── the stores ───────────────────────────────────────────────────────────────────────────────────────────────

    def _path(self, name: str) -> Path:
        return Path(f"{self.store_path}-{name}")

    def _edge(self, name: str) -> Store:
        store = floodmark.init(self._path(name))
        store.add_dataset(DATASET, IDENTITY, event_time=EVENT_TIME, partition_by=PARTITION_BY, schema=COLUMNS)
        return store

    def _hub(self, held: contextlib.ExitStack) -> HubProcess:
        self.say("Three stores: north and south collect messages, a hub in a process of its own receives them.")
        hub = HubProcess(Path(self.store_path))
        hub.make_store(tables=self._path("tables"))
        held.callback(hub.stop)
        return self._do("Start the hub", hub.start, lambda done: f"It listens on {done.url}.")

    # ── the steps ────────────────────────────────────────────────────────────────────────────────────────────────

    def _live(self, edges: Sequence[Store], hub: HubProcess, central: Store) -> None:
        """Two writers send while everything commits and both edges forward; the hub dies in the middle of it."""
        self.say(
            f"Two writers send {self.plan.rows:,} messages, out of order. {self.plan.duplicates:,} of them are sent to "
            "both edges, and each sends one that does not fit."
        )
        writers = _start_writers([edge.path for edge in edges], self.plan.rows)
        self._do("Start Spark, while they send", lambda: edges[0].spark, lambda spark: f"Spark {spark.version}.")
        for edge in edges:
            edge.add_sink("central", "forward", url=hub.url, chunk_rows=max(50, self.plan.rows // 20))
        killed = _KilledAtHalf(hub, self.plan.rows // 2)
        reports = self._do(
            "Commit and forward, while they send; the hub is killed halfway",
            lambda: self._until_everything_arrived(edges, hub, central, writers, killed),
            lambda done: f"{sum(r.rows for r in done):,} messages were acknowledged to the writers.",
        )
        self._claim("hubs killed in the middle", wanted=1, found=int(killed.done))
        sent = self.plan.rows - self.plan.misfits
        self._claim("rows acknowledged to the writers", wanted=sent, found=sum(r.rows for r in reports))
        held = sum(len(edge.quarantine.entries(DATASET)) for edge in edges)
        self._claim("rows in quarantine, with their reason", wanted=self.plan.misfits, found=held)
        self._claim("rows committed at both edges", wanted=sent, found=sum(_rows(edge) for edge in edges))
        self._claim("rows committed", wanted=self.plan.distinct, found=_rows(central))
        self._claim("messages that both edges had, dropped", wanted=self.plan.duplicates, found=self._dropped)

    def _until_everything_arrived(
        self,
        edges: Sequence[Store],
        hub: HubProcess,
        central: Store,
        writers: Sequence[subprocess.Popen[bytes]],
        killed: _KilledAtHalf,
    ) -> list[WriterReport]:
        rounds = 0
        while True:
            done = all(writer.poll() is not None for writer in writers)
            for edge in edges:
                edge.flush(DATASET)
                killed.before = killed.rows_now
                report = edge.export("central", progress=killed)
                killed.rows_now = killed.before + report.rows
                rounds += 1
                if report.errors:
                    self.say(
                        f"    The hub does not answer: {next(iter(report.errors.values()))[:70]} … It is started again."
                    )
                    hub.start()
            self._dropped += central.flush(DATASET).duplicates
            behind = sum(sink.lag for edge in edges for sink in edge.status().sinks)
            if (done and not behind) or rounds > ROUNDS_MAX:
                return _finished(writers)

    def _history(self, central: Store) -> None:
        rows = self.plan.history()
        report = self._do(
            f"Load history: {len(rows):,} messages, most of them stored already",
            lambda: central.backfill(DATASET, rows, source_id="history"),
            lambda done: f"{done.new:,} new, {done.already_stored:,} were stored already.",
        )
        self._claim("new messages of the history", wanted=self.plan.older, found=report.new)
        self._claim("messages of it that were stored already", wanted=self.plan.overlap, found=report.already_stored)

    def _deliver(self, central: Store) -> None:
        central.add_sink("archive", "blob", url=self._path("archive").as_uri(), format="parquet")
        central.add_sink("copy", "table", table=f"{CATALOG}.copies")
        for name, where in (("archive", "files"), ("copy", "another Iceberg table")):
            self._do(f"Deliver to {where}", partial(central.export, name), _exported)

    def _compact(self, central: Store) -> None:
        self._do("Compact the table", lambda: central.compact(DATASET), _compacted)

    def _late_rows(self, north: Store, central: Store) -> None:
        """A reader stores a cursor; messages with old times come after it, and it gets exactly these."""
        ids, cursor = self._do(
            "A reader reads everything", lambda: _read(central, None), lambda d: f"{len(d[0]):,} rows."
        )
        self._claim("rows read", wanted=self.plan.distinct + self.plan.older, found=len(ids))
        sent = self.plan.sent_late()
        self._do(
            "Late messages arrive at north, and go all the way",
            lambda: (
                north.capture(DATASET, sent),
                north.flush(DATASET),
                north.export(),
                central.flush(),
                central.export(),
            ),
            lambda done: f"{done[0].rows:,} captured, {done[3].rows:,} new at the hub, {done[4].rows:,} delivered.",
        )
        # By its text, like another process would do it.
        ids, _ = self._do(
            "The reader continues at its cursor", lambda: _read(central, str(cursor)), lambda d: f"{len(d[0]):,} rows."
        )
        self._claim("new rows read since the cursor", wanted=self.plan.late, found=len(ids))
        self._claim("late messages among them", wanted=self.plan.late, found=len(self.plan.late_ids() & {*ids}))

    def _nothing_new(self, edges: Sequence[Store], central: Store) -> None:
        ticks = [_timed(partial(store.export, sink.name)) for store in (*edges, central) for sink in store.sinks()]
        self.steps.append(
            Step("Export with nothing new", max(seconds for seconds, _ in ticks), "No row, no Spark job, no request.")
        )
        self._claim("rows sent by an export with nothing new", wanted=0, found=sum(one.rows for _, one in ticks))
        self._claim("Spark jobs started by it", wanted=0, found=sum(one.spark_jobs for _, one in ticks))

    def _audit(self, edges: Sequence[Store], central: Store) -> None:
        self.say("An audit compares every row at every destination with what was committed.")
        for store, name in [(edge, "central") for edge in edges] + [(central, "archive"), (central, "copy")]:
            report = self._do(
                f"Audit {store.path.name}, sink {name}",
                partial(store.audit, name, deep=True),
                lambda done: "Every row arrived exactly once." if done.sound else f"{len(done.findings)} findings.",
            )
            self._claim(
                f"problems found by the audit of {store.path.name}, sink {name}",
                wanted=0,
                found=sum(one.wrong for one in report.findings),
            )

    def _arrived(self, central: Store) -> None:
        """Count the rows at the destinations: each row of the store, once."""
        wanted = self.plan.distinct + self.plan.older + self.plan.late
        rows, ids = self._do("Count the files", lambda: _in_files(self._path("archive")), lambda d: f"{d[0]:,} rows.")
        self._claim("rows in the files", wanted=wanted, found=rows)
        self._claim("distinct rows in the files", wanted=wanted, found=len(ids))
        count = f"SELECT count(*), count(DISTINCT part_id) FROM {CATALOG}.copies.{DATASET}"  # noqa: S608 - our own names
        counted = self._do(
            "Count the table with SQL", lambda: central.sql(count).collect()[0], lambda row: f"{row[0]:,} rows."
        )
        self._claim("rows in the table", wanted=wanted, found=counted[0])
        self._claim("distinct rows in the table", wanted=wanted, found=counted[1])
        self._claim("rows in the dataset", wanted=wanted, found=_rows(central))
        waiting = central.status().datasets[0].spool
        self._claim("rows left in the spool", wanted=0, found=waiting.segment_rows + waiting.landing_bytes)


def _exported(report: ExportReport) -> str:
    return f"{report.rows:,} rows in {report.chunks} chunks, {report.bytes / 1e6:.1f} MB."


@dataclass(slots=True)
class _KilledAtHalf:
    """Called with a growing report: kills the hub once half of the rows have been acknowledged."""

    hub: HubProcess
    rows: int
    before: int = 0
    """Rows of the exports before this one."""
    rows_now: int = 0
    done: bool = False

    def __call__(self, report: ExportReport) -> None:
        if not self.done and self.before + report.rows >= self.rows:
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


def _rows(store: Store) -> int:
    return sum(dataset.rows for dataset in store.status().datasets)


def _compacted(report: CompactReport) -> str:
    parts = [part for dataset in report.datasets for part in dataset.compacted]
    if not parts:
        return "Nothing to join."
    return f"{sum(part.files_before for part in parts)} files became {sum(part.files_after or 0 for part in parts)}."


def _read(store: Store, since: str | None) -> tuple[list[str], Cursor]:
    ids: list[str] = []
    cursor = store.cursor(DATASET)
    for batch in store.read_since(DATASET, since):
        ids += batch.table["part_id"].to_pylist()
        cursor = batch.cursor
    return ids, cursor


def _start_writers(stores: Sequence[Path], rows: int) -> list[subprocess.Popen[bytes]]:
    """One process for each store, all at the same time, each with its own interpreter."""
    return [
        subprocess.Popen(
            [sys.executable, "-m", "floodmark.cli.demo.writer", str(store), str(rows), str(writer)],
            stdout=subprocess.PIPE,
            cwd=Path.cwd(),
        )
        for writer, store in enumerate(stores)
    ]


def _finished(writers: Sequence[subprocess.Popen[bytes]]) -> list[WriterReport]:
    outputs = [writer.communicate()[0] for writer in writers]
    if any(writer.returncode != 0 for writer in writers):
        raise Permanent("A writer process of the demo failed. Its output is above.")
    return [msgspec.json.decode(output, type=WriterReport) for output in outputs]
