"""Many stores forward to one hub: how fast, how evenly, and what a hub pays for each request.

200 edge stores, each with its own control database and a real forward sink, send over HTTP on this machine to a hub of
four workers whose control database is in PostgreSQL; once alone, and once beside an edge that sends as much as it can.
The edges' tables are in memory: nothing here starts a JVM, and what is measured is the hub.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import psutil
from sqlalchemy import func, select, text

from bench.delivery import hub_process
from bench.sample import rows
from bench.store import SCHEMA
from floodmark.control.schema import ledger, segments
from floodmark.hub.access import add_token
from floodmark.store import Store, init, open_store
from floodmark.testing import MemoryLake

DATASET, SINK = "events", "hub"
EDGES = 200
PROCESSES = 2
AT_ONCE = 16
"""Edges of a process that send at the same time."""
TURNS = 4
CHUNKS = (50, 500)
"""Rows in a chunk."""
LOUD_SITES = 48
"""Channels of the loud edge, each with a connection of its own."""
LOUD_ROWS = 60_000
SAMPLE = {**SCHEMA, "site": "string"}
SAMPLE_ROWS = 1_000
PAUSE_SECONDS_MAX = 1.0


def run(*, scale: float = 1.0) -> dict[str, Any]:
    from tests.postgres import running_server

    edges = max(4, int(EDGES * scale))
    folder = Path(tempfile.mkdtemp(prefix="floodmark-edges-"))
    try:
        with running_server() as server:
            figures = {}
            for count, loud in ((CHUNKS[0], 0), (CHUNKS[1], 0), (CHUNKS[1], int(LOUD_ROWS * scale))):
                place = folder / f"{len(figures)}"
                place.mkdir()
                with init(place / "hub", control=server.create_database(), lake=MemoryLake()) as hub:
                    hub.add_dataset(DATASET, schema=SAMPLE)
                    name = f"chunks of {count} rows" + (" beside a loud edge" if loud else "")
                    figures[name] = _measured(hub, place, edges, count, loud=loud)
        return {"edges": edges, "workers": 4, **figures}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _measured(hub: Store, place: Path, edges: int, count: int, *, loud: int) -> dict[str, Any]:
    fleets = [_quiet(place / f"fleet-{number}", edges // PROCESSES, number, count) for number in range(PROCESSES)]
    if loud:
        fleets.append(_loud(place / "loud", loud))
    with contextlib.ExitStack() as running:
        url = running.enter_context(hub_process(hub.path, workers=4))
        processes = [running.enter_context(started(fleet, hub, url)) for fleet in fleets]
        for process in processes:
            process.wait_until_ready()
        before, begin = _used(hub, url), time.perf_counter()
        found = [process.go() for process in processes]
        quiet = {name: told for one in found[:PROCESSES] for name, told in one.result().items()}
        seconds = time.perf_counter() - begin
        after = _used(hub, url)
        others = {} if not loud else next(iter(found[-1].result().values()))
    turns = [turn for told in quiet.values() for turn in told["turns"]]
    sent = sum(turn["rows"] for turn in turns)
    figures: dict[str, Any] = {
        "rows per second": round(sent / seconds),
        "chunks per second": round(len(turns) / seconds, 1),
        "a turn of an edge": _quantiles([turn["milliseconds"] for turn in turns]),
        "the slowest edge's p50": round(max(statistics.median(_times(told)) for told in quiet.values()), 1),
        "most attempts of a turn": max(turn["attempts"] for turn in turns),
        "ledger rows": hub.engine.database.read(lambda c: c.execute(select(func.count()).select_from(ledger)).scalar()),
        "channels": len(quiet) + (LOUD_SITES if loud else 0),
    }
    if loud:
        figures["loud edge"] = {"turns": [turn["attempts"] for turn in others["turns"]], "refusals": others["refusals"]}
    else:
        figures["a chunk costs"] = _cost(hub, before, after, chunks=len(turns))
    return figures


def _times(told: Mapping[str, Any]) -> list[float]:
    return [turn["milliseconds"] for turn in told["turns"]]


def _quantiles(times: Sequence[float]) -> dict[str, float]:
    ordered = sorted(times)
    return {"p50 ms": round(statistics.median(ordered), 1), "p99 ms": round(ordered[int(0.99 * len(ordered))], 1)}


# ── what a hub uses ──────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class _Used:
    hub_seconds: float
    server_seconds: float
    transactions: int
    log_bytes: int
    segments: int
    segment_bytes: int


def _used(hub: Store, url: str) -> _Used:
    """CPU seconds of the hub's processes and of the PostgreSQL server's, and what the server counts itself."""

    def work(connection: Any) -> tuple[int, ...]:
        counted = connection.execute(
            text(
                "SELECT xact_commit, pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0') FROM pg_stat_database "
                "WHERE datname = current_database()"
            )
        ).one()
        files = connection.execute(select(func.count(), func.coalesce(func.sum(segments.c.byte_count), 0))).one()
        return int(counted[0]), int(counted[1]), int(files[0]), int(files[1])

    transactions, log, files, size = hub.engine.database.read(work)
    port = int(url.rpartition(":")[2])
    hub_seconds = server_seconds = 0.0
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            spent = sum(process.cpu_times()[:2])
            if process.name() == "postgres":
                server_seconds += spent
            elif _is_hub(process, port):
                hub_seconds += spent
    return _Used(hub_seconds, server_seconds, transactions, log, files, size)


def _is_hub(process: psutil.Process, port: int) -> bool:
    """The supervisor, or one of its workers."""
    own = [process, *process.parents()]
    return any({"hub", str(port)} <= set(one.cmdline()) for one in own)


def _cost(hub: Store, before: _Used, after: _Used, *, chunks: int) -> dict[str, Any]:
    size = hub.engine.database.read(
        lambda c: c.execute(text("SELECT pg_total_relation_size('ledger'), count(*) FROM ledger")).one()
    )
    return {
        "hub CPU ms": round(1000 * (after.hub_seconds - before.hub_seconds) / chunks, 2),
        "PostgreSQL CPU ms": round(1000 * (after.server_seconds - before.server_seconds) / chunks, 2),
        "transactions": round((after.transactions - before.transactions) / chunks, 2),
        "bytes of PostgreSQL's log": round((after.log_bytes - before.log_bytes) / chunks),
        "segments": round((after.segments - before.segments) / chunks, 2),
        "bytes of segments": round((after.segment_bytes - before.segment_bytes) / chunks),
        "bytes of a ledger row": round(size[0] / max(1, size[1])),
    }


# ── edges ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Fleet:
    """Some edges of one process."""

    folder: Path
    edges: dict[str, list[Any]]
    """By name, the rows of each turn: captured, committed and then forwarded. A number: so many of the sample's."""
    schema: Mapping[str, str]
    at_once: int = AT_ONCE
    sink: dict[str, Any] = field(default_factory=dict)
    sites: int = 1
    """Channels of an edge, where its rows are the sample's."""
    pause_seconds_max: float = PAUSE_SECONDS_MAX


def _quiet(folder: Path, edges: int, number: int, count: int) -> Fleet:
    return Fleet(folder, {f"edge-{number}-{edge}": [count] * TURNS for edge in range(edges)}, SAMPLE)


def _loud(folder: Path, count: int) -> Fleet:
    return Fleet(folder, {"loud": [count]}, SAMPLE, 1, {"concurrency": LOUD_SITES, "chunk_rows": 100}, LOUD_SITES)


@dataclass
class FleetProcess:
    """A process with edges that are ready to send."""

    process: subprocess.Popen[str]
    _thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))

    def wait_until_ready(self) -> None:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if line != "ready\n":
            raise SystemExit(f"A process of edges ended: {line}")

    def go(self) -> Any:
        """Let them send; what each of them saw, by name."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        return self._thread.submit(lambda: json.loads(self.process.stdout.readline()))


@contextlib.contextmanager
def started(fleet: Fleet, hub: Store, url: str) -> Iterator[FleetProcess]:
    """A process with the stores of a fleet, each with a token of its own at the hub."""
    fleet.folder.mkdir(parents=True)
    made, own = _template(fleet)
    for name in fleet.edges:
        id = _copied(made, own, fleet.folder / name)
        _, secret = add_token(hub, name, origins=[id], datasets=[DATASET])
        (fleet.folder / f"{name}.token").write_text(secret)
    told = fleet.folder / "fleet.json"
    told.write_text(json.dumps({**fleet.__dict__, "folder": str(fleet.folder), "url": url}))
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.edges", str(told)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[1],
    )
    try:
        yield FleetProcess(process)
    finally:
        process.kill()
        process.wait()


def _template(fleet: Fleet) -> tuple[Path, str]:
    root = fleet.folder / "template"
    with init(root, lake=MemoryLake()) as store:
        store.add_dataset(DATASET, partition_by=["site"], schema=fleet.schema)
        return root, store.store_id


def _copied(made: Path, own: str, root: Path) -> str:
    """Another store like one that was just created, with an id of its own: a fraction of the time of creating it."""
    shutil.copytree(made, root)
    settings, id = root / "floodmark.toml", str(uuid.uuid4())
    settings.write_text(settings.read_text().replace(own, id))
    with contextlib.closing(sqlite3.connect(root / "control.db")) as connection:
        connection.execute("UPDATE meta SET value = ? WHERE value = ?", (id, own))
        connection.commit()
    return id


# ── in the process of a fleet ────────────────────────────────────────────────────────────────────────────────────────


def serve_fleet(told: Path) -> None:
    """Open the stores, say so, wait for the word, send, and print what happened."""
    fleet = json.loads(told.read_text())
    folder = Path(fleet["folder"])
    with contextlib.ExitStack() as opened, ThreadPoolExecutor(fleet["at_once"]) as pool:
        stores = {name: opened.enter_context(open_store(folder / name, lake=MemoryLake())) for name in fleet["edges"]}
        for name, store in stores.items():
            store.add_sink(SINK, "forward", url=fleet["url"], token=f"file:{folder / name}.token", **fleet["sink"])
        print("ready", flush=True)
        sys.stdin.readline()
        pause = fleet["pause_seconds_max"]
        found = {
            name: pool.submit(_send, store, _turns(name, fleet), pause_seconds_max=pause)
            for name, store in stores.items()
        }
        print(json.dumps({name: one.result() for name, one in found.items()}), flush=True)


def _turns(name: str, fleet: dict[str, Any]) -> Iterator[list[dict[str, Any]]]:
    for turn in fleet["edges"][name]:
        if isinstance(turn, int):
            yield [{**_sample()[at % SAMPLE_ROWS], "site": f"{name}-{at % fleet['sites']}"} for at in range(turn)]
        else:
            yield turn


@cache
def _sample() -> list[dict[str, Any]]:
    return rows(SAMPLE_ROWS)


def _send(store: Store, turns: Iterable[list[dict[str, Any]]], *, pause_seconds_max: float) -> dict[str, Any]:
    """Every turn until all of it has arrived; how often it was tried, and how long that took."""
    found, refusals = [], 0
    for batch in turns:
        store.capture(DATASET, batch)
        store.flush(DATASET)
        attempts, sent, begin = 0, 0, time.perf_counter()
        while True:
            attempts += 1
            report = store.export(SINK)
            sent += report.rows
            if not report.errors:
                break
            refusals += len(report.errors)
            if report.blocked:
                raise SystemExit(report.blocked)
            time.sleep(min(report.wait_seconds or 0, pause_seconds_max))
        found.append({"attempts": attempts, "rows": sent, "milliseconds": 1000 * (time.perf_counter() - begin)})
    return {"turns": found, "refusals": refusals}


if __name__ == "__main__":
    serve_fleet(Path(sys.argv[1]))
