"""Loading history: who reads it, this process or Spark."""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from floodmark.config import SpoolSettings
from floodmark.control import datasets
from floodmark.control.datasets import Dataset
from floodmark.errors import InvalidSetting
from floodmark.providers import Provider
from floodmark.sources.files import FORMATS, file_source, find_files
from floodmark.sources.iterables import provider_source, rows_source
from floodmark.sources.load import Backfiller, Progress
from floodmark.sources.parallel_text import Workers
from floodmark.sources.shaping import Shape, kinds
from floodmark.sources.staging import Staging
from floodmark.sources.units import BackfillReport, Source, Unit

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession


# ── Sources that Spark reads: staged as files first, and then loaded like any files ──────────────────────────────────


@dataclass(frozen=True, slots=True)
class Frame:
    """What Spark reads."""

    name: str | None
    """What it is called, if it is called anything."""
    version: str
    """Its state, if it is known."""
    write: Callable[[Path], None]
    """Writes its rows, into files of a directory."""


def load_frame(
    backfiller: Backfiller,
    declared: Dataset,
    shape: Shape,
    frame: Frame,
    *,
    source_id: str | None,
    progress: Progress | None,
) -> BackfillReport:
    """Stage what Spark reads, and load that."""
    name = source_id or frame.name or f"frame-{uuid.uuid4().hex}"
    anonymous = source_id is None and frame.name is None
    named = source_id is not None
    whole = Unit(name, lambda _: iter(()), fingerprint="" if named else frame.version)
    staging = Staging.of(backfiller.engine.root, declared.name)
    known = Source(name, (whole,), anonymous)
    if backfiller.is_loaded(declared.name, known, shape, named=named):
        staging.forget(whole, name=name)  # the process that loaded it may have died before
        return backfiller.load(declared.name, known, shape, named=named, progress=progress)
    with staging.source(
        whole,
        name=name,
        anonymous=anonymous,
        resumable=lambda: bool(declared.identity) or not backfiller.is_begun(declared.name, name),
        write=frame.write,
    ) as source:
        return backfiller.load(declared.name, source, replace(shape, applied=True), named=named, progress=progress)


# ── Loading ──────────────────────────────────────────────────────────────────────────────────────────────────────────


# ── What a user names as a source, as units to read ──────────────────────────────────────────────────────────────────


_TABLE_NAME = re.compile(r"[\w-]+(\.[\w-]+){2,}")


def is_table_name(source: Any) -> bool:
    """Whether it names an Iceberg table, `catalog.namespace.table`, and no file: also none that is missing."""
    if not isinstance(source, str) or _TABLE_NAME.fullmatch(source) is None:
        return False
    return Path(source).suffix.lower() not in {*FORMATS, ".gz"} and not Path(source).exists()


def open_source(
    source: Any,
    declared: Dataset,
    *,
    renamed: Mapping[str, str],
    format: str | None,
    source_id: str | None,
    provider: Provider | None,
    limits: SpoolSettings,
) -> Source:
    """The units of a path, of rows in memory, or of a provider."""
    if provider is not None:
        if source is not None and not isinstance(source, str | Path):
            raise InvalidSetting("A provider reads a location, not rows.", hint="Give a path or a URL, or nothing.")
        location = None if source is None else str(source)
        opened = provider_source(provider, location, has_identity=bool(declared.identity), name=source_id)
    elif source is None:
        raise InvalidSetting("There is nothing to load.", hint="Give a source, or name a provider.")
    elif isinstance(source, str | Path):
        opened = file_source(source, kinds(declared.schema, renamed), format=format, limits=limits)
    else:
        opened = rows_source(source, name=source_id)
    return opened if source_id is None else replace(opened, name=source_id, anonymous=False)


# ── Loading ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Loader:
    """Loads whatever a user names into one store."""

    backfiller: Backfiller

    def load(
        self,
        declared: Dataset,
        source: Any,
        shape: Shape,
        *,
        format: str | None,
        source_id: str | None,
        provider: Provider | None,
        progress: Progress | None,
    ) -> BackfillReport:
        if _is_for_spark(source, shape, provider=provider):
            frame = self._frame(declared, source, shape, format=format)
            return load_frame(self.backfiller, declared, shape, frame, source_id=source_id, progress=progress)
        opened = open_source(
            source,
            declared,
            renamed=shape.renamed,
            format=format,
            source_id=source_id,
            provider=provider,
            limits=self.backfiller.engine.settings.spool,
        )
        with self._workers(declared, shape).reading(opened) as read:
            return self.backfiller.load(declared.name, read, shape, named=source_id is not None, progress=progress)

    def _frame(self, declared: Dataset, source: Any, shape: Shape, *, format: str | None) -> Frame:
        """A DataFrame, a table, files or rows, with the given options."""
        from floodmark.lake import staging

        name: str | None = None
        version = ""
        if hasattr(source, "sparkSession"):
            frame = source
        elif is_table_name(source):
            name, version, frame = staging.table_frame(self._session(source), source)
        elif isinstance(source, str | Path):
            paths, kind, version = _files(source, format=format)
            frame = staging.files_frame(self._session(None), paths, format=kind)
            name = str(Path(source).expanduser().absolute())
        else:
            frame = staging.frame_of(self._session(None), source)
        asked = staging.FrameShape(shape.select, shape.renamed, declared.event_time, shape.since, shape.until)
        return Frame(name, version, lambda directory: staging.stage(frame, directory, asked))

    def _session(self, table: str | None) -> SparkSession:
        from floodmark.lake.embedded import session_with

        engine = self.backfiller.engine
        return session_with(engine.lake, table, engine.settings.catalogs)

    def _workers(self, declared: Dataset, shape: Shape) -> Workers:
        engine, dataset = self.backfiller.engine, declared.name

        def gathered(tasks: Sequence[Any], work: Any, *, columns: str) -> list[Row]:
            from floodmark.lake import staging

            return staging.gathered(self._session(None), tasks, work, columns=columns)

        def written(tasks: Sequence[Any], work: Any, directory: Path, *, columns: str) -> list[Path]:
            from floodmark.lake import staging

            return staging.written(self._session(None), tasks, work, directory, columns=columns)

        return Workers(
            gathered=gathered,
            written=written,
            are_here=lambda: engine.lake.tasks_here,
            staging=Staging.of(engine.root, dataset),
            schema=lambda: engine.database.read(lambda c: datasets.get(c, dataset)).schema,
            renamed=shape.renamed,
            demands=declared.demands(engine.settings.spool),
        )


def _is_for_spark(source: Any, shape: Shape, *, provider: Provider | None) -> bool:
    """A DataFrame, an Iceberg table, or the result of a query."""
    if provider is not None:
        if shape.select is not None:
            raise InvalidSetting(
                "A query over a provider's rows is not supported.", hint="Let the provider return rows that fit."
            )
        return False
    return hasattr(source, "sparkSession") or is_table_name(source) or shape.select is not None


def _files(source: str | Path, *, format: str | None) -> tuple[list[Path], str, str]:
    """The files that a query reads, their one format, and their state."""
    files = find_files(source, format=format)
    kinds = {file.kind for file in files}
    if len(kinds) > 1:
        raise InvalidSetting(
            f"{source} has files of several formats: {', '.join(sorted(kinds))}.", hint="Load each format separately."
        )
    state = [(str(file.path), file.path.stat().st_size, file.path.stat().st_mtime_ns) for file in files]
    version = hashlib.blake2b(json.dumps(state).encode(), digest_size=16).hexdigest()
    return [file.path for file in files], kinds.pop(), version
