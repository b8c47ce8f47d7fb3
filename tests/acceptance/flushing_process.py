"""A process of its own, with its own JVM: captures, flushes and delivers, round after round. It waits for nobody, and
for another one's flush only where that has stopped its own.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace

import floodmark
from floodmark.store import Store

PATIENCE_SECONDS = 120
"""How long other processes may hold a flush up altogether: a rebuild does while it switches tables."""


def main(root: str, name: str, rounds: int, rows: int, *sinks: str) -> None:
    store = floodmark.open(root)
    for round in range(rounds):
        store.capture("events", [{"id": f"{name}-{round}-{row}", "site": name} for row in range(rows)])
        _flush(store, name)
        for sink in sinks:
            report = store.export(sink)  # what it could not deliver, the next round or the other process does
            if report.blocked:
                raise SystemExit(f"sink {sink} is blocked: {report.blocked}")
    store.close()
    print("done")


def _flush(store: Store, name: str) -> None:
    until, patience = time.monotonic() + PATIENCE_SECONDS, 0
    while time.monotonic() < until:
        settings = store.settings
        store.engine.settings = replace(settings, flush=replace(settings.flush, patience_seconds=patience))
        try:
            store.flush("events")
        except floodmark.Retryable as error:
            print(f"{name}: {error}", flush=True)
            patience = PATIENCE_SECONDS
        else:
            return
    raise SystemExit(f"no flush got through in {PATIENCE_SECONDS} seconds")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), *sys.argv[5:])
