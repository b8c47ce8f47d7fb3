"""One look at a store: what waits in the spool, which sinks there are. No JVM, no lake, and nothing is written."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from sqlalchemy import Connection

from floodmark.control import datasets, sinks, waiting
from floodmark.control.database import Database
from floodmark.daemon.plan import DatasetView, Look, SinkView


def look_at(root: Path, database: Database) -> Look:
    """Sizes of the landing files first, then one consistent view of the control database.

    In this order a line that is sealed in between is counted at most twice, and never not at all.
    """
    landed = _landing_sizes(root / "spool")

    def work(connection: Connection) -> Look:
        waiting_bytes = waiting.segment_bytes(connection)
        offsets = waiting.sealed_offsets(connection, [file for sizes in landed.values() for file in sizes])
        for dataset, sizes in landed.items():
            unsealed = sum(_unsealed(size, offsets.get(file, 0)) for file, size in sizes.items())
            waiting_bytes[dataset] = waiting_bytes.get(dataset, 0) + unsealed
        ticks = sinks.schedules(connection)
        return Look(
            {
                item.name: DatasetView(waiting_bytes.get(item.name, 0), item.horizon)
                for item in datasets.everyone(connection)
            },
            [
                SinkView(item, created_at=ticks[item.instance][1], ticked_at=ticks[item.instance][0])
                for item in sinks.everyone(connection)
            ],
        )

    return database.read(work)


def _unsealed(size: int, sealed: int | None) -> int:
    return 0 if sealed is None else max(0, size - sealed)


def _landing_sizes(spool: Path) -> dict[str, dict[str, int]]:
    """The size of every landing file, by dataset and name."""
    found: dict[str, dict[str, int]] = {}
    for dataset in _entries(spool):
        sizes = found[dataset.name] = {}
        for entry in _entries(Path(dataset.path) / "landing"):
            if entry.name.endswith(".jsonl"):
                with contextlib.suppress(FileNotFoundError):  # a sealer has just removed it
                    sizes[entry.name.removesuffix(".jsonl")] = entry.stat().st_size
    return found


def _entries(directory: Path) -> list[os.DirEntry[str]]:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(directory) as entries:
        return list(entries)
    return []
