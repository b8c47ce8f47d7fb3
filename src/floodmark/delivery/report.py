"""What an export did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class ExportReport:
    """What one export of a sink did."""

    sink: str
    rows: int = 0
    chunks: int = 0
    bytes: int = 0
    watermarks: dict[tuple[str, str], int] = field(default_factory=dict)
    """How far each partition that had something new has come, by dataset and partition."""
    blocked: str | None = None
    """Why the destination will take nothing, until somebody does something about it."""
    errors: dict[tuple[str, str], str] = field(default_factory=dict)
    """What went wrong, by dataset and partition; the others went on."""
    damaged: dict[str, str] = field(default_factory=dict)
    """Datasets of the sink whose rows cannot be committed or read, with what is wrong: what comes of them waits."""
    quarantined: int = 0
    """Rows that the destination refused for good."""
    spark_jobs: int = 0
    """Spark actions that were started."""
    wait_seconds: float | None = None
    """How long to wait before the next try, where something did not get through."""


def together(reports: Sequence[ExportReport]) -> ExportReport:
    """Several sinks' reports as one: sums, the least watermark of each partition, and every problem by its sink."""
    whole = ExportReport("*")
    for report in reports:
        for figure in ("rows", "chunks", "bytes", "quarantined", "spark_jobs"):
            setattr(whole, figure, getattr(whole, figure) + getattr(report, figure))
        for key, seq in report.watermarks.items():
            whole.watermarks[key] = min(seq, whole.watermarks.get(key, seq))
        whole.damaged |= report.damaged
        for (dataset, partition), error in report.errors.items():
            whole.errors[f"{report.sink}: {dataset}", partition] = error
    blocked = [f"{report.sink}: {report.blocked}" for report in reports if report.blocked]
    whole.blocked = "; ".join(blocked) or None
    return whole
