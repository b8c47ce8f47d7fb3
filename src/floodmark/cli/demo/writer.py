"""One of the demo's writer processes: it captures its part of the rows and prints what it did.

python -m floodmark.cli.demo.writer STORE ROWS WRITER
"""

from __future__ import annotations

import sys
import time

import msgspec

import floodmark
from floodmark.cli.demo.rows import DATASET, Plan

BATCH_ROWS = 1000


class WriterReport(msgspec.Struct):
    """The sums of a writer's receipts."""

    rows: int
    quarantined: int
    calls: int
    seconds: float


def write(store: str, rows: int, writer: int) -> WriterReport:
    """Capture one writer's rows, a thousand per call."""
    sent = Plan(rows).sent_by(writer)
    report = WriterReport(rows=0, quarantined=0, calls=0, seconds=0.0)
    with floodmark.open(store) as opened:
        started = time.perf_counter()
        for start in range(0, len(sent), BATCH_ROWS):
            receipt = opened.capture(DATASET, sent[start : start + BATCH_ROWS])
            report.rows += receipt.rows
            report.quarantined += receipt.quarantined
            report.calls += 1
        report.seconds = time.perf_counter() - started
    return report


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.encode(write(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
