"""Rows that Spark has written down for a backfill, until they are segments.

    spool/DATASET/staged/NAME/   part-00000.parquet …   whole.json, once all of them are durable

Staged rows are a source like any other files: read in order, remembered by position, gone on with after a crash. They
are removed when all of them are committed. What has no name of its own is removed by whoever finds its process dead.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from floodmark import faults
from floodmark.backfill.files import file_source
from floodmark.backfill.units import Source, Unit
from floodmark.errors import Permanent, Retryable
from floodmark.files import durable_write, make_directory, try_lock

_ONCE = "once-"


@dataclass(frozen=True, slots=True)
class Staging:
    """Where the rows of one dataset are staged."""

    directory: Path

    @classmethod
    def of(cls, root: Path, dataset: str) -> Staging:
        return cls(root / "spool" / dataset / "staged")

    @contextlib.contextmanager
    def source(
        self, whole: Unit, *, name: str, anonymous: bool, resumable: Callable[[], bool], write: Callable[[Path], None]
    ) -> Iterator[Source]:
        """A source's rows as files, and behind them the `whole` of it: done when all of them are.

        `resumable` says whether the rows may be staged anew although some of them were loaded before.
        """
        make_directory(self.directory)
        self._remove_dead()
        label = _label(whole, name)
        place = self.directory / (f"{_ONCE}{label}" if anonymous else label)
        with _alone(place, name):
            token = self._token(place)
            if token is None:
                if not resumable():
                    raise Permanent(
                        f"{name} was loaded in part, and what Spark had read of it is gone.",
                        hint="Its rows have no identity, so it cannot be gone on with. Load the rest as another one.",
                    )
                write(place)
                token = secrets.token_hex(8)
                faults.reach("backfill.staging")
                durable_write(place / "whole.json", json.dumps({"source": name, "token": token}).encode())
            faults.reach("backfill.staged")
            yield Source(name, (*_parts(place, name, token), whole), anonymous)
            shutil.rmtree(place)

    def forget(self, whole: Unit, *, name: str) -> None:
        """Remove what is left of a source that is loaded."""
        shutil.rmtree(self.directory / _label(whole, name), ignore_errors=True)

    def _token(self, place: Path) -> str | None:
        """Which writing-down this is; None if there is none, or not all of it."""
        try:
            return str(json.loads((place / "whole.json").read_text())["token"])
        except FileNotFoundError:
            return None

    def _remove_dead(self) -> None:
        for place in self.directory.glob(f"{_ONCE}*"):
            if place.is_dir():
                with contextlib.suppress(Retryable), _alone(place, place.name):
                    shutil.rmtree(place)


def _label(whole: Unit, name: str) -> str:
    return hashlib.blake2b(f"{name}#{whole.fingerprint}".encode(), digest_size=12).hexdigest()


def _parts(place: Path, name: str, token: str) -> tuple[Unit, ...]:
    paths = sorted(place.glob("part-*.parquet"))
    found = [unit for path in paths for unit in file_source(path, lambda _: None, format="parquet").units]
    return tuple(
        Unit(f"{name} {token} {path.stem}", unit.read, bytes=unit.bytes, file=path)
        for path, unit in zip(paths, found, strict=True)
    )


@contextlib.contextmanager
def _alone(place: Path, name: str) -> Iterator[None]:
    """Two processes must not write the same files. Whoever died has let go."""
    lock = place.with_suffix(".lock")
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        if not try_lock(descriptor):
            raise Retryable(f"Another process is loading {name}.", hint="Wait for it, or look whether it hangs.")
        yield
    finally:
        os.close(descriptor)
