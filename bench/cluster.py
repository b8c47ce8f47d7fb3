"""Flush and export on a Spark cluster: what its executors cost and bring, beside the same store on local Spark.

The tables, segments and objects are in a bucket of a small S3 server on this machine; master, workers and executors are
processes of their own, each executor with one core. Each way is a store and a process of its own; the embedded store
has everything in its directory.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.sample import rows, table

TESTS = Path(__file__).parents[1] / "tests"
ROWS = 400_000
"""So many of one partition are exported by tasks."""
SMALL = 1_000
TURNS, WARM = 7, 3
LOCAL = {"master": "local[2]"}


def run(scale: float = 1.0) -> dict[str, Any]:
    sys.path.insert(0, str(TESTS))
    from s3 import S3Server, free_port, wait_for  # type: ignore[import-not-found]
    from spark_cluster import EXECUTORS, standalone  # type: ignore[import-not-found]

    count = int(ROWS * scale)
    port = free_port()
    server = subprocess.Popen([sys.executable, str(TESTS / "s3.py"), str(port)], stderr=subprocess.DEVNULL)
    try:
        wait_for(port, server)
        s3 = S3Server(port)
        with tempfile.TemporaryDirectory(prefix="floodmark-bench-") as folder:
            home, stores = Path(folder) / "cluster", Path(folder) / "stores"
            home.mkdir()
            stores.mkdir()
            found: dict[str, Any] = {
                "rows": count,
                "embedded": _measured(stores / "embedded", count, s3, LOCAL, elsewhere=False),
                "local Spark": _measured(stores / "local", count, s3, LOCAL),
            }
            with standalone(home, stores) as (master, _):
                for executors in (1, 2):
                    quiet = {key: value for key, value in EXECUTORS.items() if "speculation" not in key}
                    own = {"master": master, "settings": {**quiet, "spark.cores.max": str(executors)}}
                    name = f"{executors} executor{'s' if executors > 1 else ''}"
                    found[name] = _measured(stores / str(executors), count, s3, own)
    finally:
        server.terminate()
        server.wait()
    for way in found.values():
        if isinstance(way, dict):
            way["flush ratio"] = round(way["flush_ms"] / found["local Spark"]["flush_ms"], 2)
            way["export ratio"] = round(
                way["export_rows_per_second"] / found["local Spark"]["export_rows_per_second"], 2
            )
    return found


def _measured(root: Path, count: int, s3: Any, spark: dict[str, Any], *, elsewhere: bool = True) -> dict[str, Any]:
    """The figures of one way, from a process of its own."""
    bucket = s3.create_bucket()
    lake = {
        "warehouse": f"s3://{bucket}/lake",
        "s3.endpoint": s3.endpoint,
        "s3.region": "us-east-1",
        "s3.path-style-access": "true",
        "s3.access-key-id": "bench",
        "s3.secret-access-key": "bench",
    }
    asked = {
        "root": str(root),
        "count": count,
        "where": {"lake": lake, "segments": f"s3://{bucket}/segments", "spark": spark}
        if elsewhere
        else {"spark": spark},
        "sink": s3.settings(f"s3://{bucket}/files") if elsewhere else {"url": root.with_suffix(".files").as_uri()},
    }
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK")}
    done = subprocess.run(
        [sys.executable, "-m", "bench.cluster"],
        input=json.dumps(asked),
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def _one_way(asked: dict[str, Any]) -> dict[str, Any]:
    import floodmark

    with floodmark.init(asked["root"], **asked["where"]) as store:
        store.add_dataset("chat", ["part_id"], event_time="ts")
        store.add_sink("files", "blob", chunk_rows=max(1, asked["count"] // 16), **asked["sink"])
        small = []
        for turn in range(TURNS):
            store.capture("chat", rows(SMALL, first=turn * SMALL))
            small.append(_seconds(lambda: store.flush("chat")))
        store.export("files")
        store.capture("chat", table(asked["count"], first=TURNS * SMALL))
        bulk = _seconds(lambda: store.flush("chat"))
        exported = _seconds(lambda: store.export("files"))
    return {
        "flush_ms": round(statistics.median(small[WARM:]) * 1000),
        "flush_rows_per_second": round(asked["count"] / bulk),
        "export_rows_per_second": round(asked["count"] / exported),
    }


def _seconds(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


if __name__ == "__main__":
    print(json.dumps(_one_way(json.load(sys.stdin))))
