"""Files in a table's own place that no snapshot refers to: in a directory, or below a prefix of a bucket.

An object store is listed with the settings that the table's own files are read with.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from floodmark.lake.files import local_path
from floodmark.lake.inventory import Orphan

if TYPE_CHECKING:
    from pyiceberg.table import Table as IcebergTable

BUCKETS = frozenset({"s3", "s3a", "s3n", "gs"})
"""The schemes of locations that are a bucket and a key."""


def orphans_of(table: IcebergTable, *, before: datetime) -> list[Orphan]:
    """The files that nothing refers to. A place that can be neither walked nor listed is not searched.

    It is listed before the snapshots are read: what a commit adds in between is referred to by then, or too young.
    """
    home = local_path(table.location())
    old = list(_files_before(Path(home), before) if home is not None else _objects_before(table, before))
    table.refresh()
    known = {_place(location) for location in _referred_to(table)}
    return [item for item in old if _place(_owner(item.location)) not in known]


def remove_files(orphans: Sequence[Orphan], settings: Mapping[str, str]) -> None:
    """Settings are those of the catalog whose tables they were found beside."""
    from pyiceberg.io import load_file_io

    for item in orphans:
        path = local_path(item.location)
        with contextlib.suppress(FileNotFoundError):
            if path is not None:
                Path(path).unlink()
            else:
                load_file_io(dict(settings), item.location).delete(item.location)


# ── looking ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _files_before(home: Path, before: datetime) -> Iterator[Orphan]:
    for directory, _, names in os.walk(home):
        for name in sorted(names):
            path = Path(directory) / name
            with contextlib.suppress(FileNotFoundError):
                found = path.stat()
                if datetime.fromtimestamp(found.st_mtime, UTC) < before:
                    yield Orphan(str(path), found.st_size)


def _objects_before(table: IcebergTable, before: datetime) -> Iterator[Orphan]:
    from pyarrow.fs import FileSelector, FileType
    from pyiceberg.io.pyarrow import PyArrowFileIO

    scheme = table.location().partition("://")[0]
    if scheme not in BUCKETS or not isinstance(table.io, PyArrowFileIO):
        return
    _, bucket, path = table.io.parse_location(table.location(), table.io.properties)
    listed = table.io.fs_by_scheme(scheme, bucket)
    for found in listed.get_file_info(FileSelector(path, recursive=True, allow_not_found=True)):
        if found.type == FileType.File and found.mtime is not None and found.mtime < before:
            yield Orphan(f"{scheme}://{found.path}", found.size)


def _owner(location: str) -> str:
    """Hadoop keeps a checksum beside each file: it is as needed as the file itself."""
    directory, _, name = location.rpartition("/")
    if name.startswith(".") and name.endswith(".crc"):
        return f"{directory}/{name.removeprefix('.').removesuffix('.crc')}"
    return location


def _place(location: str) -> str:
    """What two names of one file have in common: `file:/x` and `/x`, `s3://x` and `s3a://x`."""
    path = local_path(location)
    return location.partition("://")[2] if path is None else os.path.normpath(path)


def _referred_to(table: IcebergTable) -> Iterator[str]:
    metadata = table.metadata
    yield table.metadata_location
    yield from (item.metadata_file for item in metadata.metadata_log)
    yield from (item.statistics_path for item in metadata.statistics)
    yield from (item.statistics_path for item in metadata.partition_statistics)
    seen: set[str] = set()
    for snapshot in metadata.snapshots:
        yield snapshot.manifest_list
        for manifest in snapshot.manifests(table.io):
            if manifest.manifest_path in seen:
                continue
            seen.add(manifest.manifest_path)
            yield manifest.manifest_path
            for entry in manifest.fetch_manifest_entry(table.io):
                yield entry.data_file.file_path
