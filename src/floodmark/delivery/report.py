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
    """The watermark of each partition that had new rows, by dataset and partition."""
    blocked: str | None = None
    """Why the destination accepts nothing until a user corrects the cause."""
    errors: dict[tuple[str, str], str] = field(default_factory=dict)
    """Errors by dataset and partition; the other channels continued."""
    damaged: dict[str, str] = field(default_factory=dict)
    """Datasets of the sink whose rows cannot be committed or read, with the problem. Their new rows wait."""
    quarantined: int = 0
    """Rows that the destination refused permanently."""
    spark_jobs: int = 0
    """Spark actions that were started."""
    wait_seconds: float | None = None
    """How long to wait before the next attempt, if a delivery failed."""


def together(reports: Sequence[ExportReport]) -> ExportReport:
    """Several sinks' reports as one: sums, the lowest watermark of each partition, and every problem by sink."""
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
