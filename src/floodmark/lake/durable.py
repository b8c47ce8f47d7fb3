"""Commits made durable. Hadoop's local file system does not fsync: every file of a commit is opened and synced here.

On other file systems the files are only checked: one that is missing, or shorter than it was written, is noticed
before anybody relies on it.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from floodmark.commit.protocol import TableState
from floodmark.errors import FilesMissing, Retryable
from floodmark.files import sync_directory, sync_file
from floodmark.lake.files import local_path
from floodmark.lake.places import check_answered

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.table import Table as IcebergTable

SYNCS_AT_ONCE = 8
"""A disk writes many files back in the time of one, if it is asked for all of them at once."""


def sync_commits(table: IcebergTable, state: TableState, *, since: int | None) -> None:
    """Make every file durable that the state reaches and snapshot `since` did not; else `FilesMissing`."""
    root = _root(table)
    directories: set[Path] = set()
    with ThreadPoolExecutor(SYNCS_AT_ONCE, thread_name_prefix="sync") as pool:
        syncs: list[Future[None]] = []
        try:
            for location, size in _files_since(table, state, since):
                syncs.append(pool.submit(_sync_whole, table.io, location, size))
                path = local_path(location)
                if path is not None:
                    directories.update(_up_to(Path(path).parent, root))
            for sync in syncs:
                sync.result()
        except (OSError, ValueError, EOFError) as error:  # a manifest that is cut off does not parse
            check_answered(table.metadata_location, error)
            raise FilesMissing(
                f"The manifests of table {state.name!r} cannot be read: {error}.",
                hint="Do not change the store, and run `floodmark fsck`.",
            ) from error
        for sync in [pool.submit(sync_directory, directory) for directory in directories]:
            sync.result()


def sync_metadata(table: IcebergTable | None) -> None:
    """Make what a table says of itself durable, where it changed without a commit of rows."""
    path = None if table is None else local_path(table.metadata_location)
    if table is not None and path is not None:
        sync_file(Path(path))
        for directory in _up_to(Path(path).parent, _root(table)):
            sync_directory(directory)


def _root(table: IcebergTable) -> Path:
    """The lake's own directory."""
    return Path(local_path(table.location()) or "/").parent.parent


def _files_since(table: IcebergTable, state: TableState, since: int | None) -> Iterator[tuple[str, int | None]]:
    """Metadata, manifest lists, manifests and data files that the state reaches and `since` did not."""
    new = state.since(since)
    ids = None if new is None else {snapshot.id for snapshot in new}
    yield table.metadata_location, None
    if not state.lineage:
        return
    head = table.snapshot_by_id(state.lineage[0].id)
    if head is None:
        raise Retryable(f"A snapshot of {state.name!r} expired while it was made durable.", hint="Run it again.")
    for snapshot in table.metadata.snapshots:
        # Only the head's must be there: another's may expire now, and its rows are not read.
        other = snapshot.snapshot_id != head.snapshot_id
        if (ids is None or snapshot.snapshot_id in ids) and not (other and _is_gone(table.io, snapshot.manifest_list)):
            yield snapshot.manifest_list, None
    for manifest in head.manifests(table.io):
        if ids is not None and manifest.added_snapshot_id not in ids:
            continue
        yield manifest.manifest_path, manifest.manifest_length
        for entry in manifest.fetch_manifest_entry(table.io):
            if ids is None or entry.snapshot_id in ids:
                yield entry.data_file.file_path, entry.data_file.file_size_in_bytes


def _is_gone(io: FileIO, location: str) -> bool:
    path = local_path(location)
    return not Path(path).exists() if path is not None else not io.new_input(location).exists()


def _sync_whole(io: FileIO, location: str, size: int | None) -> None:
    """A file that is not there, or shorter than it was written, never reached the disk. An object store makes its
    objects durable by itself, before it answers.
    """
    try:
        found = len(io.new_input(location))
    except OSError as error:
        check_answered(location, error)
        found = -1
    if found < 1 or (size is not None and found != size):
        what = "is missing" if found < 0 else f"has {found} bytes instead of {size or 'more'}"
        raise FilesMissing(
            f"A file that the table refers to {what}: {location}.",
            hint="Nothing was deleted from the spool. Restore the file; `floodmark fsck` lists the missing files.",
        )
    path = local_path(location)
    if path is not None:
        sync_file(Path(path))


def _up_to(directory: Path, root: Path) -> Iterator[Path]:
    """A directory and those above it, as far as the lake's own: a new directory's name must last too."""
    while directory != root and root in directory.parents:
        yield directory
        directory = directory.parent
    yield root
