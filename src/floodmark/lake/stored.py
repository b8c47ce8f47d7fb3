"""Which rows of Parquet files are in a table already, by identity and event time: a bit for each row.

Only the key's columns are read, of the files and of those data files that the span of event time reaches. What comes
back is a bit a row: a hundred million rows are twelve megabytes, and no set of identities is held anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from floodmark.schema import Schema
from floodmark.schema.types import physical

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class FileKeys:
    """Files, and which of their columns are the key of a row."""

    files: tuple[Path, ...]
    identity: tuple[tuple[str, ...], ...]
    event_time: str | None
    schema: Schema
    renamed: Mapping[str, str] = field(default_factory=dict)
    """A file's column → the dataset's."""

    @property
    def key_time(self) -> str | None:
        return self.event_time

    @property
    def by_content(self) -> bool:
        """Never: a file's rows have no content hash yet. What is compared by it is left to flush."""
        return False

    @property
    def names(self) -> tuple[str, ...]:
        """The dataset's columns of the key."""
        found = [name for names in self.identity for name in names]
        return tuple(dict.fromkeys([*found, *([self.event_time] if self.event_time else [])]))

    def sources(self) -> dict[str, str]:
        """The key's columns in the files: the dataset's name → the file's."""
        back = {new: old for old, new in self.renamed.items()}
        return {name: back.get(name, name) for name in self.names}

    def fits(self, held: pa.Schema) -> bool:
        """Whether a file has the key's columns, in the dataset's own types: what must be converted is not compared."""
        from floodmark.errors import FloodmarkError
        from floodmark.schema.types import from_arrow

        for name, source in self.sources().items():
            column = self.schema.get(name)
            if column is None or source not in held.names:
                return False
            try:
                kind = from_arrow(held.field(source).type, column=source)
            except FloodmarkError:
                return False
            if kind is None or physical(kind) != physical(column.type):
                return False
        return True

    def event_span(self) -> tuple[int, int] | None:
        """The least and greatest event time of all files, in microseconds; None if there is none."""
        import pyarrow.parquet as pq

        if self.event_time is None:
            return None
        source = self.sources()[self.event_time]
        spans = []
        for path in self.files:
            with pq.ParquetFile(path) as opened:
                spans += [event_span_of(batch.column(0)) for batch in opened.iter_batches(1 << 20, columns=[source])]
        known = [span for span in spans if span is not None]
        return (min(low for low, _ in known), max(high for _, high in known)) if known else None


def event_span_of(times: pa.ChunkedArray) -> tuple[int, int] | None:
    """The least and greatest of some event times, in microseconds; None if there is none."""
    import pyarrow as pa
    import pyarrow.compute as pc

    span = pc.min_max(times.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()))
    low, high = span["min"].as_py(), span["max"].as_py()
    return None if low is None else (low, high)


def bitmap_of(found: pa.Array) -> bytes:
    """A bit for each row, least bit first: set where it is true; empty where it is for none."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pc.any(found).as_py():
        return b""
    return bytes(pa.concat_arrays([found, pa.repeat(False, -len(found) % 8)]).buffers()[1])[: (len(found) + 7) // 8]


def keys_in(path: Path, keys: FileKeys) -> pa.Table:
    """The key's columns of a file, called as in the dataset."""
    import pyarrow.parquet as pq

    sources = {source: name for name, source in keys.sources().items()}
    rows = pq.read_table(path, columns=list(sources))
    return rows.rename_columns([sources[name] for name in rows.column_names])
