"""A store that is left alone: `run` and a hub under load for half an hour, and what grows meanwhile.

Two processes send rows to the hub. `floodmark run` commits them about once a second, delivers them to files and to a
table, removes rows that are older than a few minutes, and does all other upkeep. Every few seconds memory, files,
snapshots, the control database and the store's directories are measured, from outside. The plot is for the documents.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import psutil

from floodmark.store import init

MINUTES = 30.0
RATE = 500
WRITERS = 2
SAMPLE_SECONDS = 10.0
PATIENCE_SECONDS = 180.0
SETTINGS = {
    "FLOODMARK_RUN__FLUSH_SECONDS": "0.5",
    "FLOODMARK_RUN__EXPORT_SECONDS": "1",
    "FLOODMARK_RUN__RETAIN_SECONDS": "60",
    "FLOODMARK_RUN__FOLD_SECONDS": "60",
    "FLOODMARK_UPKEEP__SNAPSHOTS_AGE_SECONDS": "60",
    "FLOODMARK_UPKEEP__SNAPSHOTS_MAX": "60",
}
KEPT = "4m ingest"
PLOT = Path("docs/images/left-alone.svg")
_METRIC = re.compile(r"^(\w+)(?:\{[^}]*\})? (\S+)$", re.MULTILINE)


def run(*, scale: float = 1.0) -> dict[str, Any]:
    directory = Path(tempfile.mkdtemp(prefix="floodmark-watch-"))
    try:
        samples = watched(directory, seconds=60 * MINUTES * scale)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    PLOT.parent.mkdir(parents=True, exist_ok=True)
    PLOT.write_text(plot(samples), encoding="utf-8")
    return {**summary(samples), "samples": len(samples), "plot": str(PLOT)}


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
                process.wait(90)
            process.kill()


def _start(started: list[Any], root: Path, log: Path, *arguments: str) -> subprocess.Popen[bytes]:
    with log.open("wb") as stream:
        made = subprocess.Popen(
            [sys.executable, "-m", "floodmark.cli", "-s", str(root), *arguments],
            stdout=stream,
            stderr=stream,
            env={**os.environ, **SETTINGS},
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
                "minutes": passed / 60,
                "run_mib": _memory(daemon.pid, java=False),
                "jvm_mib": _memory(daemon.pid, java=True),
                "hub_mib": _memory(hub.pid, java=False),
                "files": found.get("floodmark_table_files", 0.0),
                "snapshots": found.get("floodmark_table_snapshots", 0.0),
                "control_mib": found.get("floodmark_control_bytes", 0.0) / 2**20,
                "lake_mib": _size(root / "lake"),
                "spool_mib": _size(root / "spool"),
                "rows": found.get("floodmark_dataset_rows", 0.0),
                "committed": found.get("floodmark_flush_rows_total", 0.0),
                "commits": found.get("floodmark_flush_seconds_count", 0.0),
                "lag_seconds": found.get("floodmark_sink_lag_seconds", 0.0),
                "waiting_seconds": found.get("floodmark_spool_oldest_seconds", 0.0),
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


def _memory(pid: int, *, java: bool) -> float:
    """MiB of a process and its children: those that are Java, or the others."""
    parent = psutil.Process(pid)
    total = 0
    for process in (parent, *parent.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            if (process.name() == "java") == java:
                total += process.memory_info().rss
    return total / 2**20


def _size(directory: Path) -> float:
    total = 0
    for path in directory.rglob("*"):
        with contextlib.suppress(OSError):
            total += path.stat().st_size if path.is_file() else 0
    return total / 2**20


def summary(samples: list[dict[str, float]]) -> dict[str, Any]:
    """Each figure as the median of the second quarter and of the last one: what does not grow is about the same."""
    quarter = max(1, len(samples) // 4)
    early, late = samples[quarter : 2 * quarter], samples[-quarter:]

    def middle(part: list[dict[str, float]], name: str) -> float:
        values = sorted(one[name] for one in part)
        return round(values[len(values) // 2], 1)

    names = ("run_mib", "jvm_mib", "hub_mib", "files", "snapshots", "control_mib", "lake_mib", "spool_mib", "rows")
    return {
        "minutes": round(samples[-1]["minutes"], 1),
        "rows committed": int(samples[-1]["committed"]),
        "commits": int(samples[-1]["commits"]),
        "longest lag, seconds": round(max(one["lag_seconds"] for one in samples), 1),
        **{f"{name}, second quarter → last quarter": f"{middle(early, name)} → {middle(late, name)}" for name in names},
    }


# ── the plot ─────────────────────────────────────────────────────────────────────────────────────────────────────────

PANELS: list[tuple[str, list[tuple[str, str]]]] = [
    ("Memory, MiB", [("jvm_mib", "JVM"), ("run_mib", "run"), ("hub_mib", "hub")]),
    ("Data files", [("files", "files")]),
    ("Snapshots", [("snapshots", "snapshots")]),
    ("Control database, MiB", [("control_mib", "database")]),
    ("Rows in the table", [("rows", "rows")]),
    ("Rows committed in all", [("committed", "committed")]),
]
WIDTH, HEIGHT, LEFT, TOP, GAP = 420, 180, 62, 34, 28
FONT = 'font-family="system-ui, sans-serif" font-size="12"'
SHADES = ("#0b7285", "#868e96", "#ced4da")


def plot(samples: list[dict[str, float]]) -> str:
    """Small charts side by side, as SVG."""
    wide, high = 2 * (WIDTH + GAP), 3 * (HEIGHT + GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" {FONT} fill="#495057">',
        f'<rect width="{wide}" height="{high}" fill="#ffffff"/>',
    ]
    for index, (title, lines) in enumerate(PANELS):
        x, y = (index % 2) * (WIDTH + GAP), (index // 2) * (HEIGHT + GAP)
        parts.append(f'<g transform="translate({x},{y})">{_panel(title, lines, samples)}</g>')
    return "\n".join([*parts, "</svg>\n"])


def _panel(title: str, lines: list[tuple[str, str]], samples: list[dict[str, float]]) -> str:
    top = max((one[name] for name, _ in lines for one in samples), default=0.0) * 1.1 or 1.0
    end = max(samples[-1]["minutes"], 0.1)

    def across(minutes: float) -> float:
        return LEFT + (WIDTH - LEFT - 12) * minutes / end

    def up(value: float) -> float:
        return TOP + (HEIGHT - TOP - 24) * (1 - value / top)

    parts = [f'<text x="{LEFT}" y="18" font-weight="600" fill="#212529">{title}</text>']
    for share in (0.0, 0.5, 1.0):
        y = up(top * share)
        shown = f"{top * share:,.0f}" if top >= 10 else f"{top * share:.1f}"
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - 12}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e9ecef"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{shown}</text>')
    for share in (0.0, 0.5, 1.0):
        parts.append(
            f'<text x="{across(end * share):.1f}" y="{HEIGHT - 4}" text-anchor="middle">{end * share:.0f} min</text>'
        )
    for number, (name, label) in enumerate(lines):
        points = " ".join(f"{across(one['minutes']):.1f},{up(one[name]):.1f}" for one in samples)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{SHADES[number]}" stroke-width="1.8"/>')
        if len(lines) > 1:
            parts.append(
                f'<text x="{WIDTH - 12 - 60 * number}" y="18" text-anchor="end" fill="{SHADES[number]}">{label}</text>'
            )
    return "".join(parts)


if __name__ == "__main__":
    write(sys.argv[1], int(sys.argv[2]))
