"""Rows of a past, as files; and what must be true of every report."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from floodmark.sources.units import BackfillReport
from floodmark.store import Store


def rows(first: int, last: int) -> list[dict[str, Any]]:
    return [
        {"id": id, "at": f"2026-01-{1 + id % 28:02}T00:00:00Z", "text": f"message {id}"} for id in range(first, last)
    ]


def jsonl(path: Path, content: list[dict[str, Any]], *extra: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(row) + "\n" for row in content) + "".join(line + "\n" for line in extra)
    if path.suffix == ".gz":
        with gzip.open(path, "wt") as file:
            file.write(text)
    else:
        path.write_text(text)
    return path


def csv(path: Path, content: list[dict[str, Any]]) -> Path:
    path.write_text(
        "\n".join([",".join(content[0]), *(",".join(str(v) for v in row.values()) for row in content)]) + "\n"
    )
    return path


def parquet(path: Path, content: list[dict[str, Any]], *, group: int = 10) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(content), path, row_group_size=group)
    return path


def stored(store: Store, dataset: str = "messages") -> list[int]:
    return sorted(row["id"] for batch in store.read_since(dataset) for row in batch.table.to_pylist())


def adds_up(report: BackfillReport) -> bool:
    """Every row that was read became one of these things."""
    ends = (report.new, report.already_stored, report.already_spooled, report.quarantined, report.outside)
    return report.read == sum(ends) + report.expired + report.dropped
