"""Loading history: who reads it, this process or Spark."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from floodmark.backfill.files import find_files
from floodmark.backfill.framed import Frame, load_frame
from floodmark.backfill.load import Backfiller, Progress
from floodmark.backfill.opening import is_table_name, open_source
from floodmark.backfill.report import BackfillReport
from floodmark.backfill.shaping import Shape
from floodmark.backfill.spread import Workers
from floodmark.backfill.staged import Staging
from floodmark.control import datasets
from floodmark.control.datasets import Dataset
from floodmark.errors import InvalidSetting
from floodmark.providers import Provider

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession


@dataclass(frozen=True, slots=True)
class Loader:
    """Loads whatever a user names into one store."""

    backfiller: Backfiller
    session: Callable[[str | None], SparkSession]
    """The Spark session, with the catalog of a table if one is named."""

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
            limits=self.backfiller.limits,
        )
        with self._workers(declared, shape).reading(opened) as read:
            return self.backfiller.load(declared.name, read, shape, named=source_id is not None, progress=progress)

    def _frame(self, declared: Dataset, source: Any, shape: Shape, *, format: str | None) -> Frame:
        """A DataFrame, a table, files or rows, under what is asked of them."""
        from floodmark.lake import staging

        name: str | None = None
        version = ""
        if hasattr(source, "sparkSession"):
            frame = source
        elif is_table_name(source):
            name, version, frame = staging.table_frame(self.session(source), source)
        elif isinstance(source, str | Path):
            paths, kind, version = _files(source, format=format)
            frame = staging.files_frame(self.session(None), paths, format=kind)
            name = str(Path(source).expanduser().absolute())
        else:
            frame = staging.given_frame(self.session(None), source)
        asked = staging.FrameShape(shape.select, shape.renamed, declared.event_time, shape.since, shape.until)
        return Frame(name, version, lambda directory: staging.stage(frame, directory, asked))

    def _workers(self, declared: Dataset, shape: Shape) -> Workers:
        parts, dataset = self.backfiller, declared.name

        def gathered(tasks: Sequence[Any], work: Any, *, columns: str) -> list[Row]:
            from floodmark.lake import spreading

            return spreading.gathered(self.session(None), tasks, work, columns=columns)

        def written(tasks: Sequence[Any], work: Any, directory: Path, *, columns: str) -> list[Path]:
            from floodmark.lake import spreading

            return spreading.written(self.session(None), tasks, work, directory, columns=columns)

        return Workers(
            gathered=gathered,
            written=written,
            staging=Staging.of(parts.root, dataset),
            schema=lambda: parts.database.read(lambda c: datasets.get(c, dataset)).schema,
            renamed=shape.renamed,
            demands=declared.demands(parts.limits),
        )


def _is_for_spark(source: Any, shape: Shape, *, provider: Provider | None) -> bool:
    """A DataFrame, an Iceberg table, or anything that is asked for by a query."""
    if provider is not None:
        if shape.select is not None:
            raise InvalidSetting(
                "A query over what a provider gives is not possible.", hint="Let the provider give rows that fit."
            )
        return False
    return hasattr(source, "sparkSession") or is_table_name(source) or shape.select is not None


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
