"""Sources that Spark reads: staged as files first, and then loaded like any files."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from floodmark.backfill.files import find_files
from floodmark.backfill.load import Backfiller, Progress
from floodmark.backfill.opening import is_table_name
from floodmark.backfill.report import BackfillReport
from floodmark.backfill.shaping import Shape
from floodmark.backfill.staged import Staging
from floodmark.backfill.units import Source, Unit
from floodmark.control.datasets import Dataset
from floodmark.errors import InvalidSetting
from floodmark.providers import Provider

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def needs_spark(source: Any, shape: Shape, *, provider: Provider | None) -> bool:
    """Whether this is for Spark to read: a DataFrame, an Iceberg table, or anything that is asked for by a query."""
    if provider is not None:
        if shape.select is not None:
            raise InvalidSetting(
                "A query over what a provider gives is not possible.", hint="Let the provider give rows that fit."
            )
        return False
    return hasattr(source, "sparkSession") or is_table_name(source) or shape.select is not None


@dataclass(frozen=True, slots=True)
class Frame:
    """What Spark reads."""

    name: str | None
    """What it is called, if it is called anything."""
    version: str
    """Its state, if that can be told."""
    write: Callable[[Path], None]
    """Writes its rows, as they are asked for, into files of a directory."""


def open_frame(
    source: Any, declared: Dataset, shape: Shape, *, format: str | None, session: Callable[[str | None], SparkSession]
) -> Frame:
    """A DataFrame, a table, files or rows, under what is asked of them. `session` knows the table's catalog."""
    from floodmark.lake import staging

    name: str | None = None
    version = ""
    if hasattr(source, "sparkSession"):
        frame = source
    elif is_table_name(source):
        name, version, frame = staging.table_frame(session(source), source)
    elif isinstance(source, str | Path):
        paths, kind, version = _files(source, format=format)
        name, frame = str(Path(source).expanduser().absolute()), staging.files_frame(session(None), paths, format=kind)
    else:
        frame = staging.given_frame(session(None), source)
    asked = staging.FrameShape(shape.select, shape.renamed, declared.event_time, shape.since, shape.until)
    return Frame(name, version, lambda directory: staging.stage(frame, directory, asked))


def _files(source: str | Path, *, format: str | None) -> tuple[list[Path], str, str]:
    """The files that a query is asked over, their one format, and their state."""
    files = find_files(source, format=format)
    kinds = {file.kind for file in files}
    if len(kinds) > 1:
        raise InvalidSetting(
            f"{source} has files of several formats: {', '.join(sorted(kinds))}.", hint="Load each by itself."
        )
    state = [(str(file.path), file.path.stat().st_size, file.path.stat().st_mtime_ns) for file in files]
    version = hashlib.blake2b(json.dumps(state).encode(), digest_size=16).hexdigest()
    return [file.path for file in files], kinds.pop(), version


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
    staging = Staging.of(backfiller.root, declared.name)
    known = Source(name, (whole,), anonymous)
    if backfiller.is_loaded(declared.name, known, shape, named=named):
        staging.forget(whole, name=name)  # whoever loaded it may have died before it could, or before it flushed
        return backfiller.load(declared.name, known, shape, named=named, progress=progress)
    with staging.source(
        whole,
        name=name,
        anonymous=anonymous,
        resumable=lambda: bool(declared.identity) or not backfiller.is_begun(declared.name, name),
        write=frame.write,
    ) as source:
        return backfiller.load(declared.name, source, replace(shape, applied=True), named=named, progress=progress)
