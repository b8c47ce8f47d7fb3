"""Captures over HTTP with an idempotency key, beside the same without: what storing each request once costs.

A real hub with its default workers, and 24 clients with a connection each, which send 100 rows a request. The two ways
take turns, each turn into a dataset of its own, and the one that begins changes from round to round.
"""

from __future__ import annotations

import http.client
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import orjson

from bench.delivery import hub_process
from bench.sample import rows
from bench.store import SCHEMA
from floodmark.store import init

CLIENTS = 24
ROWS = 100
REQUESTS = 50
"""Of each client, in a turn."""
ROUNDS = 7
WAYS = {"without a key": False, "with a key": True}


def run(scale: float = 1.0) -> dict[str, Any]:
    requests = max(1, round(REQUESTS * scale))
    bodies = [orjson.dumps(rows(ROWS, first=ROWS * client)) for client in range(CLIENTS)]
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory(prefix="floodmark-bench-") as folder:
        store = Path(folder) / "hub"
        with init(store) as hub:
            for number in range(len(WAYS) * (ROUNDS + 1)):
                hub.add_dataset(f"turn_{number}", schema=SCHEMA)
        with hub_process(store, workers=2) as url:
            turn = 0
            for number in range(ROUNDS + 1):
                for way in sorted(WAYS, reverse=number % 2 == 0):
                    took = _turn(url, f"turn_{turn}", bodies, requests, keyed=WAYS[way])
                    turn += 1
                    if number:  # the first round warms up
                        seconds[way].append(took)
    count = CLIENTS * requests * ROWS
    figures = {
        way: {"rows_per_second": round(count / statistics.median(took)), "turns": len(took)}
        for way, took in seconds.items()
    }
    ratio = figures["with a key"]["rows_per_second"] / figures["without a key"]["rows_per_second"]
    return {"rows in a turn": count, **figures, "ratio": round(ratio, 2)}


def _turn(url: str, dataset: str, bodies: list[bytes], requests: int, *, keyed: bool) -> float:
    """How long the clients take together."""
    stored: list[int] = []
    refused: list[str] = []
    ready = threading.Barrier(len(bodies) + 1, timeout=60)

    def client(number: int) -> None:
        connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)
        connection.connect()
        ready.wait()
        for request in range(requests):
            headers = {"Content-Type": "application/json"}
            if keyed:
                headers["Idempotency-Key"] = f"{dataset}-{number}-{request}"
            connection.request("POST", f"/v1/datasets/{dataset}/capture", bodies[number], headers)
            answer = connection.getresponse()
            content = answer.read()
            if answer.status != 200:
                refused.append(f"the hub answered {answer.status}: {content.decode(errors='replace')}")
                break
            stored.append(orjson.loads(content)["rows"])
        connection.close()

    clients = [threading.Thread(target=client, args=(number,)) for number in range(len(bodies))]
    for one in clients:
        one.start()
    ready.wait()
    start = time.perf_counter()
    for one in clients:
        one.join()
    took = time.perf_counter() - start
    if sum(stored) != len(bodies) * requests * ROWS:
        raise SystemExit(f"{sum(stored)} rows were stored instead of {len(bodies) * requests * ROWS}. {refused[:1]}")
    return took
