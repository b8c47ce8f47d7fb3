"""The property that every input is tried against: it is taken, or refused in words; and how many were tried."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from hypothesis import HealthCheck, settings

from floodmark.errors import FloodmarkError
from floodmark.store import Store, init
from floodmark.testing import ManualClock, MemoryLake

T = TypeVar("T")

SECONDS_MAX = 30.0
"""No input takes longer; most take a thousandth of it."""
TRIED: Counter[str] = Counter()
"""Inputs of each kind."""
REFUSED: Counter[str] = Counter()
"""Those of them that were refused."""

WANTED = int(os.environ.get("FUZZ_EXAMPLES", "0"))
_numbers = count()


def inputs(ordinary: int) -> Any:
    """How many inputs a property is tried with; which they are, the run's seed says."""
    return settings(max_examples=max(ordinary, WANTED), suppress_health_check=list(HealthCheck))


def refusal(kind: str, work: Callable[[], T]) -> tuple[T | None, FloodmarkError | None]:
    """What became of an input: a result, or a refusal in words. Any other error, or a hang, fails the test."""
    TRIED[kind] += 1
    began = time.monotonic()
    result: T | None = None
    error: FloodmarkError | None = None
    try:
        result = work()
    except FloodmarkError as raised:
        REFUSED[kind] += 1
        check_words(raised)
        error = raised
    assert time.monotonic() - began < SECONDS_MAX
    return result, error


def check_words(error: FloodmarkError) -> None:
    """A sentence or a few, on one line, that any terminal shows and no terminal obeys."""
    for text in (error.message, error.hint or "x"):
        assert 0 < len(text) < 4000, text
        assert text.strip(), repr(text)
        assert not any(character < " " or character == "\x7f" for character in text), repr(text)
        assert "Traceback" not in text
        assert " object at 0x" not in text, text
        text.encode()  # no halves of characters: they could not be printed


def fresh(prefix: str) -> str:
    """A name that no other input of this run has."""
    return f"{prefix}{next(_numbers)}"


@contextmanager
def scratch() -> Iterator[Path]:
    """A directory in memory, where there is some: nothing here is about disks."""
    where = "/dev/shm" if Path("/dev/shm").is_dir() else None
    made = Path(tempfile.mkdtemp(prefix="floodmark-fuzz-", dir=where))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


@contextmanager
def scratch_store(**more: Any) -> Iterator[Store]:
    """A store of its own, on the memory lake."""
    with scratch() as place, init(place / "store", lake=MemoryLake(), clock=ManualClock(), **more) as store:
        yield store


class Stand:
    """A store that many inputs are tried on, until it is full of their datasets; then there is another one."""

    INPUTS_MAX = 12

    def __init__(self) -> None:
        self._open: Any = None
        self._store: Store | None = None
        self._left = 0

    def again(self) -> Store:
        """For the next input."""
        if self._store is None or self._left == 0:
            self.close()
            self._open = scratch_store()
            self._store, self._left = self._open.__enter__(), self.INPUTS_MAX
        self._left -= 1
        return self._store

    def close(self) -> None:
        if self._open is not None:
            self._open.__exit__(None, None, None)
        self._open = self._store = None


def rows_of(store: Store, dataset: str) -> list[dict[str, Any]]:
    return [row for batch in store.read_since(dataset) for row in batch.table.to_pylist()]


def ids_of(store: Store, dataset: str) -> list[Any]:
    """The `id` of every committed row, sorted as text: rows of all kinds are among them."""
    return sorted((row.get("id") for row in rows_of(store, dataset)), key=repr)
