"""The command line as its users meet it, on the memory lake: no JVM in this tier unless a test is marked so."""

from __future__ import annotations

import io
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import orjson
import pytest

import floodmark.store
from floodmark.cli.entry import run
from floodmark.signals import SIGNALS
from floodmark.testing import MemoryLake


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str

    @property
    def json(self):
        return orjson.loads(self.out)

    @property
    def rows(self):
        return [orjson.loads(line) for line in self.out.splitlines()]

    @property
    def cursor(self) -> str:
        return next(line.removeprefix("cursor: ") for line in self.err.splitlines() if line.startswith("cursor: "))


Cli = Callable[..., Outcome]


@pytest.fixture
def lake() -> MemoryLake:
    return MemoryLake()


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], lake: MemoryLake) -> Cli:
    """Runs `floodmark -s STORE …` in this process; every call opens the store afresh."""
    real = floodmark.store.open_store
    monkeypatch.setattr(floodmark.store, "open_store", lambda path, **given: real(path, **{**given, "lake": lake}))
    monkeypatch.delenv("FLOODMARK_TRACEBACK", raising=False)

    def call(*arguments: str, stdin: bytes = b"") -> Outcome:
        capfd.readouterr()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        before = [signal.getsignal(number) for number in SIGNALS]
        code = run(["-s", str(tmp_path / "store"), *arguments])
        for number, handler in zip(SIGNALS, before, strict=True):  # the end of the process does it otherwise
            signal.signal(number, handler)
        out, err = capfd.readouterr()
        return Outcome(code, out, err)

    return call


@pytest.fixture
def shop(cli: Cli) -> Cli:
    """A store with one dataset, `orders`."""
    assert cli("init").code == 0
    assert cli("dataset", "add", "orders", "--identity", "id", "--column", "total:long").code == 0
    return cli
