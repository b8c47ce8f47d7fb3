"""What the demo does, step by step, and what must be true afterwards."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from floodmark.cli.demo.rows import COLUMNS, DATASET, EVENT_TIME, IDENTITY, PARTITION_BY, WRITERS, Plan
from floodmark.cli.demo.writer import WriterReport
from floodmark.errors import Permanent

if TYPE_CHECKING:
    from floodmark.flush import FlushReport
    from floodmark.sequence import Cursor
    from floodmark.status import DatasetStatus
    from floodmark.store import Store

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Step:
    """Something the demo did, how long it took, and what came of it."""

    name: str
    seconds: float
    result: str


@dataclass(frozen=True, slots=True)
class Claim:
    """Something that must hold, with what was counted."""

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
            self._late_rows(store, cursor)
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
            Step("  of which inside capture()", max(r.seconds for r in reports), f"{rate:,.0f} rows/s together")
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
        # By its text, as another process would do it next week.
        ids, _ = self._do(
            "Read since the stored cursor", lambda: _read(store, str(cursor)), lambda done: f"{len(done[0]):,} rows"
        )
        self._claim("new rows read since the cursor", wanted=self.plan.late, found=len(ids))
        self._claim("late messages among them", wanted=self.plan.late, found=len(self.plan.late_ids() & {*ids}))

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
    """Two processes at once, each a fresh interpreter, as two programs on one machine would be."""
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
        raise Permanent("A writer process of the demo failed; what it said stands above.")
    return [msgspec.json.decode(output, type=WriterReport) for output in outputs]
