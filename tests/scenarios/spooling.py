"""What the scenarios of capture and sealing share: looking into a store, and writers that are real processes."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from floodmark.spool.landing import landing_files
from floodmark.store import Store

EVENTS = "events"


def rows_of(store: Store, dataset: str = EVENTS) -> list[dict[str, Any]]:
    """Every committed row, in sequence order."""
    return [row for batch in store.read_since(dataset) for row in batch.table.to_pylist()]


def ids_of(store: Store, dataset: str = EVENTS) -> list[Any]:
    """The `id` of every committed row, sorted: equal to what was captured exactly if each is there once."""
    return sorted(row["id"] for row in rows_of(store, dataset))


def numbered(*ids: int) -> list[dict[str, Any]]:
    return [{"id": id} for id in ids]


def landing_of(store: Store, dataset: str = EVENTS) -> list[Path]:
    return landing_files(store.path / "spool" / dataset / "landing")


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder with what is in it."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


_WRITER = """
import json, sys
from floodmark.store import open_store
from floodmark.testing import MemoryLake
store = open_store(sys.argv[1], lake=MemoryLake())
print("ready", flush=True)
for line in sys.stdin:
    verb, rows = json.loads(line)
    if verb == "capture":
        print(store.capture("events", rows).rows, flush=True)
    if verb == "capture each":
        print(sum(store.capture("events", [row]).rows for row in rows), flush=True)
    if verb == "seal":
        print(sum(store.seal("events").rows for _ in range(rows)), flush=True)
"""


class Writer:
    """A real second process on the same store. It does what it is told, and dies only by SIGKILL."""

    def __init__(self, path: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _WRITER, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={key: value for key, value in os.environ.items() if key != "FLOODMARK_FAULT"},
        )

    def ready(self) -> Writer:
        assert self._answer() == "ready"
        return self

    def tell(self, verb: str, argument: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([verb, argument]) + "\n")
        self.process.stdin.flush()

    def answer(self) -> int:
        return int(self._answer())

    def ask(self, verb: str, argument: Any) -> int:
        self.tell(verb, argument)
        return self.answer()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()

    def _answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()


@contextlib.contextmanager
def writers(path: Path, count: int = 1) -> Iterator[list[Writer]]:
    """That many processes, ready."""
    running = [Writer(path) for _ in range(count)]
    try:
        yield [writer.ready() for writer in running]
    finally:
        for writer in running:
            writer.kill()
