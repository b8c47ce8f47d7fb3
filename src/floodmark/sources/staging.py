"""Rows that Spark has written down for a backfill, until they are segments.

    spool/DATASET/staged/NAME/   part-00000.parquet …   whole.json, once all of them are durable

A purge that finds rows among them leaves what is still to be loaded in files of other names, under a new token.
`whole.json` says which, and is replaced at once: either all of the old ones count or all of the new.

Staged rows are a source like any other files: read in order, remembered by position, continued after a crash. They
are removed when all of them are committed. Files without a name are removed when their process has died.
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
from typing import TYPE_CHECKING

from floodmark import faults
from floodmark.config import SpoolSettings
from floodmark.control import sources
from floodmark.control.datasets import Dataset
from floodmark.engine import Engine
from floodmark.errors import Permanent, Retryable, SchemaConflict
from floodmark.files import (
    PRIVATE_DIRECTORY,
    PRIVATE_FILE,
    durable_write,
    make_directory,
    sync_directory,
    sync_file,
    try_lock,
)
from floodmark.lake.filters import check_text
from floodmark.rows.fit import Fit, fit, fit_table
from floodmark.rows.identities import identity_hashes
from floodmark.sources.files import file_source
from floodmark.sources.units import Source, Unit

if TYPE_CHECKING:
    import pyarrow as pa


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
            content = json.loads((place / _WHOLE).read_text())
        except FileNotFoundError:
            return None
        return cls(place, content["source"], content["token"], content.get("parts", _WRITTEN))

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

        `resumable` says whether the rows may be staged again although some of them were loaded before.
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
                        f"{name} was partly loaded, and its staged files are missing.",
                        hint="Its rows have no identity, so it cannot continue. Load the rest as another source.",
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
    """Two processes must not write the same files. A dead process has released the lock."""
    descriptor = os.open(_lock_of(place), os.O_RDWR | os.O_CREAT, PRIVATE_FILE)
    try:
        if not try_lock(descriptor):
            raise Retryable(f"Another process is loading {name}.", hint="Wait for it, or check whether it hangs.")
        yield
    finally:
        os.close(descriptor)


# ── Purging what Spark has written down for a backfill: rows that match a condition go from there too ────────────────
# A partly loaded source continues by position, so its files cannot just lose rows. What is still to be loaded, and does
# not match, is written into new files under a new token, which have no position yet; `whole.json` then names those.


SCAN_ROWS = 250_000
"""How many rows are compared at once."""


@dataclass(frozen=True, slots=True)
class _Found:
    """What matches in one file."""

    part: Path
    loaded: int
    """How many of its rows, from its beginning, are loaded already: those are purged elsewhere."""
    places: tuple[int, ...]
    hashes: tuple[str, ...]

    @property
    def waiting(self) -> int:
        """How many of the matching rows are still to be loaded."""
        return sum(1 for place in self.places if place >= self.loaded)


def count_staged(engine: Engine, declared: Dataset, where: str) -> int:
    """How many rows match that are still to be loaded. Changes nothing."""
    found = [Staged.at(place) for place in Staging.of(engine.root, declared.name).places()]
    return sum(item.waiting for staged in found if staged for item in _matching(engine, declared, staged, where))


def purge_staged(
    engine: Engine, declared: Dataset, where: str, remember: Callable[[list[str]], int]
) -> tuple[int, int]:
    """(rows, identities that `remember` had not known). `Retryable` while another process loads a source."""
    rows = hashes = 0
    for place in Staging.of(engine.root, declared.name).places():
        with _nobody_loads(place, declared.name):
            staged = Staged.at(place)
            if staged is None:
                shutil.rmtree(place)  # its process died while writing: it is staged again, or never
                continue
            staged.remove_others()
            found = _matching(engine, declared, staged, where)
            if any(item.places for item in found):
                hashes += remember([hash for item in found for hash in item.hashes])
                _replace(staged, found)
                rows += sum(item.waiting for item in found)
    return rows, hashes


def _matching(engine: Engine, declared: Dataset, staged: Staged, where: str) -> list[_Found]:
    records = engine.database.read(lambda c: sources.of_dataset(c, declared.name))
    found = []
    for part in staged.parts:
        name = staged.unit_name(part)
        # No other id has the token; the text after the name depends on the options.
        position = next((item.position for id, item in records.items() if name in id), None)
        found.append(_judged(engine, declared, part, where, loaded=_loaded(position, part)))
    return found


def _judged(engine: Engine, declared: Dataset, part: Path, where: str, *, loaded: int) -> _Found:
    """A row that does not fit is not compared: it is not loaded but quarantined, and compared there."""
    import pyarrow as pa

    asked = check_text(where, declared.schema.names).union(*declared.identity)
    if declared.event_time is not None:
        asked |= {declared.event_time}
    places: list[int] = []
    hashes: list[str] = []
    first = 0
    for rows in _batches(part, asked):
        fitted = _fitted(declared, rows)
        matching = pa.array(engine.lake.matching(fitted.table, where, schema=fitted.schema), pa.int64())
        kept = range(rows.num_rows) if fitted.kept is None else fitted.kept
        places += [first + kept[place] for place in matching.to_pylist()]
        gone = identity_hashes(fitted.table.take(matching), declared.identity, declared.key_time)
        hashes += [item for item in gone if item is not None]
        first += rows.num_rows
    return _Found(part, loaded, tuple(places), tuple(hashes))


@contextlib.contextmanager
def _nobody_loads(place: Path, dataset: str) -> Iterator[None]:
    """Hold a staged source, or say that it is being loaded."""
    with contextlib.ExitStack() as locks:
        try:
            locks.enter_context(alone(place, place.name))
        except Retryable as error:
            raise Retryable(
                f"Rows are being loaded into dataset {dataset!r} now.",
                hint="Purge again when the backfill is complete.",
            ) from error
        yield


def _loaded(position: str | None, part: Path) -> int:
    import pyarrow.parquet as pq

    if position is None:
        return 0
    content = json.loads(position)
    return int(pq.read_metadata(part).num_rows if content["done"] else content["mark"] or 0)


def _batches(part: Path, columns: frozenset[str] | None = None) -> Iterator[pa.Table]:
    """Some columns of a file, or all, a bounded number of rows at a time."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with pq.ParquetFile(part) as opened:
        known = opened.schema_arrow.names
        # All where it has none of them: a table without columns has no rows.
        names = [name for name in known if columns is None or name in columns] or known
        for batch in opened.iter_batches(SCAN_ROWS, columns=names):
            yield pa.Table.from_batches([batch])


def _fitted(declared: Dataset, rows: pa.Table) -> Fit:
    try:
        return fit_table(declared.schema, rows)
    except SchemaConflict:
        values = [column.to_pylist() for column in rows.columns]
        return fit(declared.schema, rows.column_names, values, rows=rows.num_rows)


def _replace(staged: Staged, found: list[_Found]) -> None:
    """Stage again the rows that are still to be loaded and do not match."""
    token = new_token()
    for number, item in enumerate(found):
        _write_rest(item, staged.place / f"kept-{token}-{number:05}.parquet")
    sync_directory(staged.place)
    kept = Staged(staged.place, staged.source, token, f"kept-{token}-*.parquet")
    faults.reach("purge.staged_written")
    kept.record()
    faults.reach("purge.staged_replaced")
    kept.remove_others()


def _write_rest(item: _Found, path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    going = set(item.places)
    with pq.ParquetFile(item.part) as opened, pq.ParquetWriter(path, opened.schema_arrow, compression="lz4") as writer:
        first = 0
        for rows in _batches(item.part):
            stay = [
                place for place in range(rows.num_rows) if first + place >= item.loaded and first + place not in going
            ]
            writer.write_table(rows.take(pa.array(stay, pa.int64())))
            first += rows.num_rows
    sync_file(path)
