"""Where objects are stored: a directory, or a prefix of a bucket. An existing object is never replaced.

An object is created completely and durably, or not at all, and `create` returns whether it created it: of two processes
that create one key at the same time, exactly one succeeds. A blob sink needs nothing else.

Keys are parts joined by `/`, below the root of the place.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from floodmark.errors import FloodmarkError, Permanent
from floodmark.files import make_directory, retryable_os_error, sync_directory

Content = bytes | memoryview


class ObjectPlace(Protocol):
    """Stores objects. Can be pickled for another process; every failure is a `FloodmarkError`."""

    @property
    def where(self) -> str:
        """The place, for messages."""
        ...

    @property
    def remote(self) -> bool:
        """Whether a server creates the objects: it may ignore the precondition."""
        ...

    def create(self, key: str, content: Content) -> bool:
        """Create the object with its whole content, durably; false, without a change, if the key exists."""
        ...

    def read(self, key: str) -> bytes | None:
        """The object's content; None if there is none."""
        ...

    def list(self, prefix: str) -> Iterable[str]:
        """The names of the objects directly below a prefix, in no order."""
        ...


@dataclass(frozen=True, slots=True)
class Claim:
    """The object that names the owner of a place. It also proves that the place never replaces objects."""

    key: str
    content: bytes

    def proves(self, place: ObjectPlace) -> bool:
        """Create it again. A server that reports success twice in a row replaces objects.

        Once is not enough: the claim may have been removed. A replaced claim has the same content.
        """
        return not (place.create(self.key, self.content) and place.create(self.key, self.content))


@dataclass(frozen=True, slots=True)
class LocalObjects:
    """Objects are files below a directory, which is created when needed."""

    directory: Path
    remote: bool = field(default=False, init=False)

    @property
    def where(self) -> str:
        return str(self.directory)

    def create(self, key: str, content: Content) -> bool:
        path = self.directory / key
        try:
            make_directory(path.parent)
            return create_file(path, content)
        except OSError as error:
            raise _error_of(error, doing=f"Writing {path}") from error

    def read(self, key: str) -> bytes | None:
        path = self.directory / key
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _error_of(error, doing=f"Reading {path}") from error

    def list(self, prefix: str) -> Iterable[str]:
        folder = self.directory / prefix
        try:
            with os.scandir(folder) as entries:
                # A name that begins with a dot is an object that is being written, or whose writer crashed.
                return [entry.name for entry in entries if not entry.name.startswith(".") and entry.is_file()]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise _error_of(error, doing=f"Listing {folder}") from error


def create_file(path: Path, content: Content) -> bool:
    """Create a file with its whole content, durably; false if the name exists. Never replaces a file."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        with os.fdopen(descriptor, "wb", buffering=0) as file:
            left = memoryview(content)
            while left:
                left = left[file.write(left) :]
            os.fsync(file.fileno())
        os.link(temporary, path)
    except FileExistsError:
        return False
    else:
        return True
    finally:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
        # Also if the name existed: its writer may have crashed before this, and the file must be durable from now on.
        sync_directory(path.parent)


_HINTS = {
    errno.EACCES: "Give this process permission to read and write there, then export again.",
    errno.EPERM: "Give this process permission to read and write there, then export again.",
    errno.EROFS: "Mount it for writing, or deliver to another directory.",
    errno.ENOTDIR: "A part of the path is a file: correct the sink's url, or move the file away.",
    errno.EISDIR: "A directory has the object's name: move it away, then export again.",
    errno.ENAMETOOLONG: "The partition's values are too long for file names: deliver to an object store.",
}


def _error_of(error: OSError, *, doing: str) -> FloodmarkError:
    """Errors that need a user block the sink; others are retried."""
    hint = _HINTS.get(error.errno or 0)
    if hint is None:
        return retryable_os_error(error, doing=doing)
    return Permanent(f"{doing} failed: {error.strerror}.", hint=hint)
