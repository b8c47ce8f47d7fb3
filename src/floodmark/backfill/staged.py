"""Rows that Spark has written down for a backfill, until they are segments.

    spool/DATASET/staged/NAME/   part-00000.parquet …   whole.json, once all of them are durable

A purge that finds rows among them leaves what is still to be loaded in files of other names, under a new token.
`whole.json` says which, and is replaced at once: either all of the old ones count or all of the new.

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
from floodmark.config import SpoolSettings
from floodmark.errors import Permanent, Retryable
from floodmark.files import PRIVATE_DIRECTORY, PRIVATE_FILE, durable_write, make_directory, sync_directory, try_lock

_ONCE = "once-"
_WHOLE = "whole.json"
_WRITTEN = "part-*.parquet"
"""The files that Spark has written."""


@dataclass(frozen=True, slots=True)
class Staged:
    """A source that is written down as a whole."""

    place: Path
    source: str
    token: str
    """Which writing-down this is."""
    pattern: str = _WRITTEN

    @classmethod
    def at(cls, place: Path) -> Staged | None:
        """None if there is nothing, or not all of it."""
        try:
            held = json.loads((place / _WHOLE).read_text())
        except FileNotFoundError:
            return None
        return cls(place, held["source"], held["token"], held.get("parts", _WRITTEN))

    @property
    def parts(self) -> list[Path]:
        return sorted(self.place.glob(self.pattern))

    def unit_name(self, part: Path) -> str:
        return f"{self.source} {self.token} {part.stem}"

    def record(self) -> None:
        """From here on this is what is written down."""
        about = {"source": self.source, "token": self.token, "parts": self.pattern}
        durable_write(self.place / _WHOLE, json.dumps(about).encode(), private=True)

    def remove_others(self) -> None:
        """Remove what does not belong to this writing-down."""
        own = {*self.parts, self.place / _WHOLE}
        for path in self.place.iterdir():
            if path not in own:
                path.unlink()
        sync_directory(self.place)


def new_token() -> str:
    return secrets.token_hex(8)


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
        make_directory(self.directory, private=True)
        self._remove_dead()
        label = _label(whole, name)
        place = self.directory / (f"{_ONCE}{label}" if anonymous else label)
        with alone(place, name):
            staged = Staged.at(place)
            if staged is None:
                if not resumable():
                    raise Permanent(
                        f"{name} was loaded in part, and what Spark had read of it is gone.",
                        hint="Its rows have no identity, so it cannot be gone on with. Load the rest as another one.",
                    )
                write(place)
                staged = Staged(place, name, new_token())
                faults.reach("backfill.staging")
                staged.record()
            faults.reach("backfill.staged")
            yield Source(name, (*_units(staged), whole), anonymous)
            shutil.rmtree(place)

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        """A directory for what can be read from its source again at any time."""
        make_directory(self.directory, private=True)
        self._remove_dead()
        place = self.directory / f"{_ONCE}{new_token()}"
        with alone(place, place.name):
            place.mkdir(PRIVATE_DIRECTORY)
            try:
                yield place
            finally:
                shutil.rmtree(place, ignore_errors=True)
                _lock_of(place).unlink(missing_ok=True)

    def forget(self, whole: Unit, *, name: str) -> None:
        """Remove what is left of a source that is loaded."""
        shutil.rmtree(self.directory / _label(whole, name), ignore_errors=True)

    def places(self) -> list[Path]:
        """The directories of all sources that are written down here, or were begun to be."""
        return sorted(path for path in self.directory.glob("*") if path.is_dir())

    def _remove_dead(self) -> None:
        for place in self.directory.glob(f"{_ONCE}*"):
            if place.is_dir():
                with contextlib.suppress(Retryable), alone(place, place.name):
                    shutil.rmtree(place)


def _label(whole: Unit, name: str) -> str:
    return hashlib.blake2b(f"{name}#{whole.fingerprint}".encode(), digest_size=12).hexdigest()


def _units(staged: Staged) -> tuple[Unit, ...]:
    paths = staged.parts
    found = [
        unit
        for path in paths
        for unit in file_source(path, lambda _: None, format="parquet", limits=SpoolSettings()).units
    ]
    return tuple(
        Unit(staged.unit_name(path), unit.read, bytes=unit.bytes, file=path)
        for path, unit in zip(paths, found, strict=True)
    )


def _lock_of(place: Path) -> Path:
    return place.with_suffix(".lock")


@contextlib.contextmanager
def alone(place: Path, name: str) -> Iterator[None]:
    """Two processes must not write the same files. Whoever died has let go."""
    descriptor = os.open(_lock_of(place), os.O_RDWR | os.O_CREAT, PRIVATE_FILE)
    try:
        if not try_lock(descriptor):
            raise Retryable(f"Another process is loading {name}.", hint="Wait for it, or look whether it hangs.")
        yield
    finally:
        os.close(descriptor)
