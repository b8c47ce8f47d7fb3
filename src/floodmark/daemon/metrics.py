"""What `run` counts of its own work, for its `/metrics`."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

from floodmark.commit.flush import FlushReport
from floodmark.daemon.plan import Outcome, Tend, Work
from floodmark.delivery.channel import ExportReport
from floodmark.maintenance.compact import CompactReport
from floodmark.maintenance.upkeep import EXPIRE, FOLD, RETAIN, TaskReport

_SECONDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)


class RunMetrics:
    """Counters and histograms since the process began. Any thread may read them."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._flush_seconds = self._histogram("floodmark_flush_seconds", "Seconds of a flush with rows.", "dataset")
        self._flush_rows = self._counter("floodmark_flush_rows", "Rows committed by this process.", "dataset")
        self._duplicates = self._counter("floodmark_flush_duplicates", "Duplicates that were dropped.", "dataset")
        self._export_seconds = self._histogram("floodmark_export_seconds", "Seconds of an export with rows.", "sink")
        self._export_rows = self._counter("floodmark_export_rows", "Rows delivered by this process.", "sink")
        self._export_bytes = self._counter("floodmark_export_bytes", "Bytes delivered by this process.", "sink")
        self._export_chunks = self._counter("floodmark_export_chunks", "Chunks delivered by this process.", "sink")
        self._compaction_seconds = self._histogram(
            "floodmark_compaction_seconds", "Seconds of a compaction.", "dataset"
        )
        self._files_before = self._counter("floodmark_compaction_files_before", "Files that were joined.", "dataset")
        self._files_after = self._counter("floodmark_compaction_files_after", "Files that they became.", "dataset")
        self._expired = self._counter("floodmark_snapshots_expired", "Snapshots that were expired.", "dataset")
        self._retained = self._counter("floodmark_rows_retired", "Rows that retention removed.", "dataset")
        self._folded = self._counter("floodmark_records_folded", "Records that were folded.", "dataset")
        self._failures = Counter(
            "floodmark_work_failures",
            "Flushes, exports and tasks of maintenance that failed and are retried.",
            ["work", "subject"],
            registry=self.registry,
        )
        self._running = Gauge("floodmark_work_running", "Pieces of work in progress.", ["work"], registry=self.registry)

    def text(self) -> bytes:
        return generate_latest(self.registry)

    def began(self, work: Work) -> None:
        self._running.labels(kind_of(work)).inc()

    def ended(self, outcome: Outcome) -> None:
        """Count the result of work."""
        self._running.labels(kind_of(outcome.work)).dec()
        if outcome.failed:
            self._failures.labels(kind_of(outcome.work), name_of(outcome.work)).inc()
        match outcome.report:
            case FlushReport() as report if report.rows or report.duplicates:
                self._flush_seconds.labels(report.dataset).observe(outcome.seconds)
                self._flush_rows.labels(report.dataset).inc(report.rows)
                self._duplicates.labels(report.dataset).inc(report.duplicates)
            case ExportReport() as report if report.rows:
                self._export_seconds.labels(report.sink).observe(outcome.seconds)
                self._export_rows.labels(report.sink).inc(report.rows)
                self._export_bytes.labels(report.sink).inc(report.bytes)
                self._export_chunks.labels(report.sink).inc(report.chunks)
            case CompactReport():
                for item in outcome.report.datasets:
                    self._compaction_seconds.labels(item.dataset).observe(outcome.seconds)
                    self._files_before.labels(item.dataset).inc(sum(one.files_before for one in item.compacted))
                    self._files_after.labels(item.dataset).inc(sum(one.files_after or 0 for one in item.compacted))
                    self._expired.labels(item.dataset).inc(item.snapshots_expired)
            case TaskReport() as report if report.task == EXPIRE:
                self._expired.labels(report.dataset).inc(report.details.get("snapshots", 0))
            case TaskReport() as report if report.task == RETAIN:
                self._retained.labels(report.dataset).inc(report.details["rows"])
            case TaskReport() as report if report.task == FOLD:
                self._folded.labels(report.dataset).inc(report.details["records"])

    def _counter(self, name: str, words: str, label: str) -> Counter:
        return Counter(name, words, [label], registry=self.registry)

    def _histogram(self, name: str, words: str, label: str) -> Histogram:
        return Histogram(name, words, [label], registry=self.registry, buckets=_SECONDS)


def kind_of(work: Work) -> str:
    """What kind of work it is, in one word."""
    return work.task if isinstance(work, Tend) else type(work).__name__.lower()


def name_of(work: Work) -> str:
    """The name of its dataset or sink."""
    return str(getattr(work, "sink", None) or getattr(work, "dataset", ""))
