"""The places of tables' files: a directory, or a prefix of a bucket that is reached as the table's own files are.

A file of a bucket that is not there and a bucket that does not answer are two things: only the first is damage.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from floodmark.errors import Retryable, reason_of
from floodmark.lake.files import local_path

if TYPE_CHECKING:
    from pyiceberg.io import FileIO

BUCKETS = frozenset({"s3", "s3a", "s3n", "gs"})
"""The schemes of locations that are a bucket and a key."""


@dataclass(frozen=True, slots=True)
class Found:
    """A file in a place."""

    location: str
    size: int
    at: datetime
    """When it was written."""


def files_below(io: FileIO, location: str) -> Iterator[Found]:
    """All files of a place, in any order; none of a place that can be neither walked nor listed."""
    home = local_path(location)
    return _walked(Path(home)) if home is not None else _listed(io, location)


def _walked(home: Path) -> Iterator[Found]:
    for directory, _, names in os.walk(home):
        for name in sorted(names):
            path = Path(directory) / name
            with contextlib.suppress(FileNotFoundError):
                found = path.stat()
                yield Found(str(path), found.st_size, datetime.fromtimestamp(found.st_mtime, UTC))


def _listed(io: FileIO, location: str) -> Iterator[Found]:
    from pyarrow.fs import FileSelector, FileType
    from pyiceberg.io.pyarrow import PyArrowFileIO

    scheme = location.partition("://")[0]
    if scheme not in BUCKETS or not isinstance(io, PyArrowFileIO):
        return
    _, bucket, path = io.parse_location(location, io.properties)
    selector = FileSelector(path, recursive=True, allow_not_found=True)
    for found in io.fs_by_scheme(scheme, bucket).get_file_info(selector):
        if found.type == FileType.File and found.mtime is not None:
            yield Found(f"{scheme}://{found.path}", found.size, found.mtime)


def identity(io: FileIO, location: str) -> tuple[int, ...] | None:
    """What distinguishes a file from another of its name; None if it is missing, or cannot be asked for."""
    from pyiceberg.io.pyarrow import PyArrowFileIO

    path = local_path(location)
    try:
        if path is not None:
            status = Path(path).stat()
            return status.st_ino, status.st_size, status.st_mtime_ns
        if not isinstance(io, PyArrowFileIO):
            return None
        scheme, bucket, key = io.parse_location(location, io.properties)
        found = io.fs_by_scheme(scheme, bucket).get_file_info(key)
    except OSError:
        return None
    return None if found.size is None else (found.size, found.mtime_ns or 0)


def check_answered(location: str, error: Exception) -> None:
    """`Retryable` if a place elsewhere did not answer: what it has is not known. A disk always answers."""
    if local_path(location) is None and isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
        raise Retryable(
            f"The place of the tables' files did not answer for {location}: {reason_of(error)}.",
            hint="Nothing was changed. Check network and permissions, and run it again.",
        ) from error
