"""A store that is left alone: `run` and a hub under load for half an hour, and what grows meanwhile.

Two processes send rows to the hub. `floodmark run` commits them about once a second, delivers them to files, removes
rows that are older than a few minutes, and does all other upkeep. Every few seconds memory, descriptors, files,
snapshots, the control database and the store's directories are measured, from outside. `bench.left_alone` makes the
plot and the text of the documents of it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import psutil

from floodmark.store import init

MINUTES = 30.0
RATE = 500
WRITERS = 2
SAMPLE_SECONDS = 10.0
PATIENCE_SECONDS = 180.0
STOP_SECONDS_MAX = 90
SETTINGS = {
    "FLOODMARK_RUN__FLUSH_SECONDS": "0.5",
    "FLOODMARK_RUN__EXPORT_SECONDS": "1",
    "FLOODMARK_RUN__RETAIN_SECONDS": "60",
    "FLOODMARK_RUN__FOLD_SECONDS": "60",
    "FLOODMARK_UPKEEP__SNAPSHOTS_AGE_SECONDS": "60",
    "FLOODMARK_UPKEEP__SNAPSHOTS_MAX": "60",
}
KEPT = "4m ingest"
_METRIC = re.compile(r"^(\w+)(?:\{[^}]*\})? (\S+)$", re.MULTILINE)


def run(*, scale: float = 1.0) -> dict[str, Any]:
    directory = Path(tempfile.mkdtemp(prefix="floodmark-watch-"))
    try:
        samples = watched(directory, seconds=60 * MINUTES * scale)
        return {
            "rows a second": RATE,
            "rows kept": KEPT,
            "commits": commits((directory / "run.log").read_text()),
            "audit": _audited(directory / "store"),
            "samples": [",".join(samples[0]), *(",".join(f"{value:g}" for value in one.values()) for one in samples)],
        }
    finally:
        shutil.rmtree(directory, ignore_errors=True)


# ── the processes ────────────────────────────────────────────────────────────────────────────────────────────────────


def watched(directory: Path, *, seconds: float) -> list[dict[str, float]]:
    root = directory / "store"
    with init(root) as store:
        store.add_dataset("events", identity=["id"], event_time="at", schema={"id": "long", "at": "timestamp"})
        store.add_sink("archive", "blob", url=(directory / "archive").as_uri(), format="parquet")
    settings = root / "floodmark.toml"
    settings.write_text(settings.read_text() + f'\n[run.retain]\nevents = "{KEPT}"\n')
    started: list[subprocess.Popen[bytes]] = []
    try:
        hub = _start(started, root, directory / "hub.log", "hub", "--port", "0")
        daemon = _start(started, root, directory / "run.log", "run", "--listen", "127.0.0.1:0", "--log", "json")
        hub_address = _said(directory / "hub.log", r"Hub on (\S+),")
        run_address = _said(directory / "run.log", r'"address":"(\S+?)"')
        writers = [_writer(started, hub_address, number) for number in range(WRITERS)]
        return _measure(root, run_address, daemon, hub, seconds=seconds, alive=[*writers, hub, daemon])
    finally:
        for process in reversed(started):
            process.terminate()
        for process in reversed(started):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_SECONDS_MAX)
            process.kill()


def _start(started: list[Any], root: Path, log: Path, *arguments: str) -> subprocess.Popen[bytes]:
    (scratch := root.parent / "spark").mkdir(exist_ok=True)
    with log.open("wb") as stream:
        made = subprocess.Popen(
            [sys.executable, "-m", "floodmark.cli", "-s", str(root), *arguments],
            stdout=stream,
            stderr=stream,
            env={**os.environ, **SETTINGS, "SPARK_LOCAL_DIRS": str(scratch)},
        )
    started.append(made)
    return made


def _said(log: Path, pattern: str) -> str:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        found = re.search(pattern, log.read_text(errors="replace"))
        if found:
            return found[1]
        time.sleep(0.1)
    raise TimeoutError(f"{log} never said {pattern}: {log.read_text()[-500:]}")


def _writer(started: list[Any], address: str, number: int) -> subprocess.Popen[bytes]:
    made = subprocess.Popen([sys.executable, "-m", "bench.watch", address, str(number)])
    started.append(made)
    return made


def write(address: str, number: int) -> None:
    """Send rows at a steady rate; one in fifty is sent again later."""
    import random
    from datetime import UTC, datetime

    import httpx

    sent, batch, drawn = 0, RATE // WRITERS // 5, random.Random(number)
    begun, old = time.monotonic(), []
    with httpx.Client(base_url=address, timeout=30) as client:
        while True:
            now = datetime.now(UTC).isoformat()
            rows = [{"id": (sent + i) * WRITERS + number, "at": now, "level": drawn.random()} for i in range(batch)]
            again = old[: max(1, batch // 50)]
            old = rows
            with contextlib.suppress(httpx.HTTPError):
                client.post("/v1/datasets/events/capture", json=rows + again)
            sent += batch
            time.sleep(max(0.0, begun + sent / (RATE / WRITERS) - time.monotonic()))


# ── what is measured ─────────────────────────────────────────────────────────────────────────────────────────────────


def _measure(
    root: Path, address: str, daemon: Any, hub: Any, *, seconds: float, alive: list[Any]
) -> list[dict[str, float]]:
    begun = time.monotonic()
    samples: list[dict[str, float]] = []
    while (passed := time.monotonic() - begun) < seconds:
        for process in alive:
            if process.poll() is not None:
                raise RuntimeError(f"{process.args} ended with {process.returncode}")
        found = _metrics(address)
        samples.append(
            {
                "minutes": round(passed / 60, 2),
                **_processes("run", daemon.pid, java=False),
                **_processes("jvm", daemon.pid, java=True),
                **_processes("hub", hub.pid, java=False),
                "files": found.get("floodmark_table_files", 0.0),
                "snapshots": found.get("floodmark_table_snapshots", 0.0),
                "control_mib": round(found.get("floodmark_control_bytes", 0.0) / 2**20, 2),
                **_directory("lake", root / "lake"),
                **_directory("spool", root / "spool"),
                **_directory("logs", root / "logs"),
                **_directory("scratch", root.parent / "spark"),
                "rows": found.get("floodmark_dataset_rows", 0.0),
                "committed": found.get("floodmark_flush_rows_total", 0.0),
                "lag_seconds": round(found.get("floodmark_sink_lag_seconds", 0.0), 1),
                "waiting_seconds": round(found.get("floodmark_spool_oldest_seconds", 0.0), 1),
            }
        )
        last = samples[-1]
        print("  ".join(f"{name} {value:,.1f}" for name, value in last.items()), flush=True)
        time.sleep(max(0.0, begun + len(samples) * SAMPLE_SECONDS - time.monotonic()))
    return samples


def _metrics(address: str) -> dict[str, float]:
    with urllib.request.urlopen(f"{address}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    return {name: float(value) for name, value in _METRIC.findall(text)}


def _processes(name: str, pid: int, *, java: bool) -> dict[str, float]:
    """Of a process and its children: those that are Java, with what it has started, or the others."""
    parent = psutil.Process(pid)
    memory = descriptors = threads = 0
    for process in (parent, *parent.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess, FileNotFoundError):
            family = {process.name(), *(one.name() for one in process.parents() if one.pid != pid)}
            if ("java" in family) == java:
                memory += process.memory_info().rss
                descriptors += process.num_fds()
                threads += process.num_threads()
    return {f"{name}_mib": round(memory / 2**20, 1), f"{name}_descriptors": descriptors, f"{name}_threads": threads}


def _directory(name: str, directory: Path) -> dict[str, float]:
    """How many files, and how much, is in a directory. Files may go while it is read."""
    files = size = 0
    for place, _, names in os.walk(directory):
        for one in names:
            with contextlib.suppress(OSError):
                size += os.lstat(Path(place) / one).st_size
                files += 1
    return {f"{name}_files": files, f"{name}_mib": round(size / 2**20, 2)}


def commits(log: str) -> dict[str, Any]:
    """What `run` said: how long commits took, which upkeep it did, and what went wrong."""
    events = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    took = [one["seconds"] for one in events if one["event"] == "flushed"]
    upkeep = Counter(one["task"] for one in events if one["event"] == "tended")
    upkeep["compact"] = sum(one["event"] == "compacted" for one in events)
    half = len(took) // 2
    return {
        "number": len(took),
        "seconds, median of the first half": _share(took[:half], 0.5),
        "seconds, median of the second half": _share(took[half:], 0.5),
        "seconds, 99 of 100": _share(took, 0.99),
        "seconds, longest": _share(took, 1.0),
        "upkeep": dict(sorted(upkeep.items())),
        "problems": [one["text"] for one in events if one["event"] == "problem"],
    }


def _share(values: list[float], share: float) -> float:
    ordered = sorted(values) or [0.0]
    return round(ordered[min(len(ordered) - 1, int(len(ordered) * share))], 2)


def _audited(root: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "floodmark.cli", "-s", str(root), "audit", "archive"],
        check=False,
        capture_output=True,
        text=True,
    )
    return f"exit code {done.returncode}: {(done.stdout or done.stderr).strip().splitlines()[-1]}"


if __name__ == "__main__":
    write(sys.argv[1], int(sys.argv[2]))
