"""Reading for delivery: ordered objects of exact ranges from Spark tasks, against a plain unordered write by Spark."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.measure import Cost, measured, median
from bench.sample import table
from bench.store import SCHEMA, SEGMENT_ROWS, USER_COLUMNS
from floodmark.lake.embedded import on_spark
from floodmark.lake.table import Work
from floodmark.schema import Schema
from floodmark.sequence import SequenceRange
from floodmark.store import Store, init

OBJECT_ROWS = 100_000
TURNS = 3
FEW_ROWS = 1000


def run(*, scale: float = 1.0) -> dict[str, Any]:
    directory = Path(tempfile.mkdtemp(prefix="floodmark-bench-"))
    try:
        with init(directory / "store") as store:
            count = int(1_000_000 * scale)
            fill(store, count)
            return {"objects": object_figures(store, count, directory / "out"), "few_rows": scan_figures(store, count)}
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def fill(store: Store, count: int) -> None:
    store.add_dataset("rows", schema=SCHEMA)
    for first in range(0, count, SEGMENT_ROWS):
        store.capture("rows", table(min(SEGMENT_ROWS, count - first), first=first))
    store.flush("rows")
    store.capture("rows", table(FEW_ROWS, first=count))
    store.flush("rows")


# ── objects ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def write_objects(directory: Path) -> Work:
    """Work that writes each range as one Parquet object: whole and on the disk under its name, or not there."""
    place = str(directory)

    def write(within: Any, rows: Any) -> dict[str, Any]:
        import os
        from pathlib import Path

        import pyarrow.parquet as pq

        name = Path(place) / f"{within.after:019d}-{within.through:019d}.parquet"
        temporary = name.with_suffix(f".{os.getpid()}.tmp")
        with temporary.open("wb") as file:
            pq.write_table(rows, file, compression="zstd", compression_level=1, use_dictionary=["source", "role"])
            file.flush()
            os.fsync(file.fileno())
            size = file.tell()
        temporary.rename(name)
        return {"bytes": size}

    return write


def object_figures(store: Store, count: int, out: Path) -> dict[str, Any]:
    lake = on_spark(store.engine.lake)
    (dataset,) = store.datasets()
    head = lake.load(dataset.table_name).head
    ranges = [SequenceRange(after, min(after + OBJECT_ROWS, count)) for after in range(0, count, OBJECT_ROWS)]

    def plainly(directory: Path) -> None:
        frame = lake.frame(dataset.table_name, snapshot=head).where(f"_ingest_seq <= {count}").select(*USER_COLUMNS)
        frame.write.parquet(str(directory / "plain"))

    def exactly(directory: Path, *, direct: bool) -> None:
        lake.direct = direct
        found = list(
            lake.each_range(
                dataset.table_name,
                snapshot=head,
                ranges=ranges,
                columns=USER_COLUMNS,
                schema=Schema.declare(SCHEMA),
                work=write_objects(directory),
            )
        )
        lake.direct = True
        if sum(tally.rows for _, tally, _ in found) != count or len(list(directory.iterdir())) != len(ranges):
            raise SystemExit("rows are missing")

    ways: dict[str, Callable[[Path], None]] = {
        "plain_write_by_spark": plainly,
        "directly_from_files": lambda directory: exactly(directory, direct=True),
        "through_icebergs_reader": lambda directory: exactly(directory, direct=False),
    }
    costs = _in_turns(ways, out)
    plain = costs["plain_write_by_spark"]
    return {
        "rows": count,
        **{
            name: {
                "rows_per_second": round(count / cost.wall_seconds),
                "cpu_seconds": round(cost.cpu_seconds, 2),
                "ratio": round(plain.wall_seconds / cost.wall_seconds, 2),
            }
            for name, cost in costs.items()
        },
        "target": "directly >= 1.3, through Iceberg's reader >= 0.8",
    }


def _in_turns(ways: dict[str, Callable[[Path], None]], out: Path) -> dict[str, Cost]:
    """Turn by turn, so that what else the machine does falls on all of them alike; two turns warm up."""
    costs: dict[str, list[Cost]] = {name: [] for name in ways}
    for turn in range(TURNS + 2):
        for name, way in ways.items():
            out.mkdir(parents=True)
            os.sync()
            cost = measured(lambda way=way: way(out))
            shutil.rmtree(out)
            if turn >= 2:
                costs[name].append(cost)
    return {name: median(found) for name, found in costs.items()}


# ── few rows ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def scan_figures(store: Store, count: int) -> dict[str, Any]:
    """A thousand rows: the newest, in a file of their own, and others from the middle of a large file."""
    lake = on_spark(store.engine.lake)
    (dataset,) = store.datasets()
    head = lake.load(dataset.table_name).head
    found: dict[str, Any] = {"rows": FEW_ROWS, "of": count}
    for place, after in {"newest": count, "middle": count // 2 - count // 8}.items():
        for way, direct in {"directly": True, "by_spark": False}.items():
            lake.direct = direct
            times = []
            for turn in range(12):
                within = SequenceRange(after - turn if place == "middle" else after, after + FEW_ROWS)
                start = time.perf_counter()
                (rows,) = lake.scan(dataset.table_name, snapshot=head, within=within)
                times.append(time.perf_counter() - start)
                if rows.num_rows != len(within):
                    raise SystemExit("rows are missing")
            found[f"{place}_{way}_milliseconds"] = round(1000 * statistics.median(times[2:]), 1)
    lake.direct = True
    return found


if __name__ == "__main__":
    print(json.dumps(run(), indent=2))
