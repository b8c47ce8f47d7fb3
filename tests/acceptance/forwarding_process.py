"""A process of its own that forwards a store's rows, round after round. It begins each when a line comes in."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import floodmark


def main(root: str, name: str, folder: Path, rounds: int) -> None:
    with floodmark.open(root) as store:
        for round in range(rounds):
            (folder / f"{name}-{round}.ready").touch()
            if not sys.stdin.readline():
                raise SystemExit("nobody is left to say go")
            began = time.monotonic()
            report = store.export("central")
            if report.blocked:
                raise SystemExit(f"blocked: {report.blocked}")
            told = {"began": began, "ended": time.monotonic(), "rows": report.rows, "errors": str(report.errors)}
            (folder / f"{name}-{round}.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]))
