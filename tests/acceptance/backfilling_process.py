"""A process of its own, with its own JVM: backfills a table in small steps; the environment says where it dies."""

from __future__ import annotations

import sys

import floodmark
from floodmark.sources import files, load, steps


def main(root: str, table: str) -> None:
    load.STEP_ROWS, steps.FLUSH_ROWS, files.BATCH_ROWS = 20, 20, 10
    with floodmark.open(root) as store:
        print(store.backfill("events", table))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
