"""Sources that Spark reads: staged as files first, and then loaded like any files."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from floodmark.backfill.load import Backfiller, Progress
from floodmark.backfill.report import BackfillReport
from floodmark.backfill.shaping import Shape
from floodmark.backfill.staged import Staging
from floodmark.backfill.units import Source, Unit
from floodmark.control.datasets import Dataset


@dataclass(frozen=True, slots=True)
class Frame:
    """What Spark reads."""

    name: str | None
    """What it is called, if it is called anything."""
    version: str
    """Its state, if that can be told."""
    write: Callable[[Path], None]
    """Writes its rows, as they are asked for, into files of a directory."""


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
