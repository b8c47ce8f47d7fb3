"""The data files of a snapshot, from its manifests, without a JVM.

A manifest never changes, so each is read once: what is planned next costs what is new since. Of each file only what
planning needs is kept, up to a bound; manifests that hold none of the numbers in question are not read at all.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from floodmark.lake.files import local_path
from floodmark.schema import SEQ
from floodmark.sequence import SEQUENCE_MAX, SequenceRange

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.manifest import DataFile, ManifestFile
    from pyiceberg.table import Table as IcebergTable

NUMBER_BYTES_MAX = 8
"""The bounds of numbers, dates and times are not longer; those of texts are not used."""


class ListedFile(NamedTuple):
    """A data file, as a manifest has it."""

    location: str
    rows: int
    size: int
    is_plain: bool
    """Whether its rows are what Iceberg's own reader would give: Parquet, not encrypted, none of them deleted."""
    lower: Mapping[int, bytes]
    """The least value of each column of numbers or times, by the column's id."""
    upper: Mapping[int, bytes]
    nulls: Mapping[int, int]
    partition: tuple[Any, ...] = ()
    """The values that its rows share, as the table is partitioned."""

    def span(self, column: int) -> tuple[int, int] | None:
        """The least and the greatest value of a column; None if the manifest does not say."""
        if column not in self.lower or column not in self.upper:
            return None
        low, high = (int.from_bytes(bounds[column], "little", signed=True) for bounds in (self.lower, self.upper))
        return low, high

    def numbers(self, column: int) -> tuple[int, int]:
        """The range of its rows' numbers; all numbers, if the manifest does not say."""
        return self.span(column) or (1, SEQUENCE_MAX)


@dataclass(slots=True)
class Manifests:
    """What was read of manifests, those that were used last, up to so many files. May be used by many threads."""

    files_max: int = 200_000
    _held: OrderedDict[str, tuple[ListedFile, ...]] = field(default_factory=OrderedDict)
    _count: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def files(
        self, table: IcebergTable, snapshot: int, *, within: SequenceRange, row_filter: BooleanExpression
    ) -> Iterator[ListedFile]:
        """The data files of a snapshot that may have numbers of a range and rows that a filter names, and others.

        `LookupError` if the snapshot has expired.
        """
        known = table.snapshot_by_id(snapshot)
        if known is None:
            raise LookupError(f"snapshot {snapshot} has expired")
        listed = known.manifests(table.io)
        if any(_lists_deletes(manifest) for manifest in listed):
            # Which of them are meant for a file is Iceberg's to say.
            for task in table.scan(row_filter=row_filter, snapshot_id=snapshot).plan_files():
                yield listed_file(task.file)._replace(is_plain=_is_plain(task.file) and not task.delete_files)
            return
        number = table.schema().find_field(SEQ).field_id
        for manifest in listed:
            if _may_hold(table, manifest, number, within):
                yield from (file for file in self.listed(table, manifest) if file.rows)  # a barrier has no rows

    def listed(self, table: IcebergTable, manifest: ManifestFile) -> tuple[ListedFile, ...]:
        """All files that a manifest lists."""
        place = manifest.manifest_path
        with self._lock:
            if (found := self._held.get(place)) is not None:
                self._held.move_to_end(place)
                return found
        read = tuple(listed_file(entry.data_file) for entry in manifest.fetch_manifest_entry(table.io))
        with self._lock:
            if place not in self._held:
                self._held[place] = read
                self._count += len(read)
            while self._count > self.files_max:
                self._count -= len(self._held.popitem(last=False)[1])
        return read


def listed_file(file: DataFile) -> ListedFile:
    return ListedFile(
        file.file_path,
        file.record_count,
        file.file_size_in_bytes,
        _is_plain(file),
        _numbers(file.lower_bounds),
        _numbers(file.upper_bounds),
        dict(file.null_value_counts or {}),
        tuple(file.partition),
    )


def is_reachable(table: IcebergTable, location: str) -> bool:
    """Whether this process can read a file: where it reads the table's own lists. Elsewhere only Spark knows how."""
    return local_path(location) is not None or location.partition(":")[0] == table.metadata_location.partition(":")[0]


def _is_plain(file: DataFile) -> bool:
    from pyiceberg.manifest import FileFormat

    return file.file_format == FileFormat.PARQUET and file.key_metadata is None


def _numbers(bounds: Mapping[int, bytes] | None) -> dict[int, bytes]:
    return {column: value for column, value in (bounds or {}).items() if len(value) <= NUMBER_BYTES_MAX}


def _lists_deletes(manifest: ManifestFile) -> bool:
    from pyiceberg.manifest import ManifestContent

    live = manifest.has_added_files() or manifest.has_existing_files()
    return bool(manifest.content == ManifestContent.DELETES and live)


def _may_hold(table: IcebergTable, manifest: ManifestFile, number: int, within: SequenceRange) -> bool:
    """Whether a manifest may list files with numbers of a range, as its partitions say."""
    from pyiceberg.manifest import ManifestContent
    from pyiceberg.transforms import TruncateTransform

    if manifest.content == ManifestContent.DELETES:
        return False
    spec = table.specs().get(manifest.partition_spec_id)
    if spec is None or len(spec.fields) != 1 or not manifest.partitions or len(manifest.partitions) != 1:
        return True
    (partition,), (about,) = spec.fields, manifest.partitions
    if partition.source_id != number or not isinstance(partition.transform, TruncateTransform):
        return True
    if about.lower_bound is None or about.upper_bound is None:
        return True
    first, last = (int.from_bytes(value, "little", signed=True) for value in (about.lower_bound, about.upper_bound))
    return first <= within.through and last + partition.transform.width > within.after
