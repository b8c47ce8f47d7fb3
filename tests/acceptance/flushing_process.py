"""A process of its own, with its own JVM: captures and flushes, round after round, and waits for nobody."""

from __future__ import annotations

import sys

import floodmark


def main(root: str, name: str, rounds: int, rows: int) -> None:
    store = floodmark.open(root)
    store._flusher.patience_seconds = 0
    for round in range(rounds):
        store.capture("events", [{"id": f"{name}-{round}-{row}", "site": name} for row in range(rows)])
        for _ in range(20):
            try:
                store.flush("events")
                break
            except floodmark.Retryable as error:
                print(f"{name}: {error}", flush=True)
        else:
            raise SystemExit("no flush got through in twenty attempts")
    store.close()
    print("done")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
