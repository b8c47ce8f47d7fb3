"""Where objects are: a directory, or a prefix of a bucket. Nothing that is there is ever replaced.

An object appears whole and durable, or not at all, and creating it tells whether it was there before: of two who
create one key at the same time, one is told that it did. That is all a blob sink builds on.

Keys are texts of parts joined by `/`, below the place's own root.
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
    """Keeps objects. Can be pickled, and then works in another process; whatever fails is a `FloodmarkError`."""

    @property
    def where(self) -> str:
        """The place in words for a message."""
        ...

    @property
    def remote(self) -> bool:
        """Whether a server creates the objects, which may ignore the condition or stop honouring it."""
        ...

    def create(self, key: str, content: Content) -> bool:
        """Create the object with its whole content, durably; false, and nothing changed, if the key is taken."""
        ...

    def read(self, key: str) -> bytes | None:
        """The object's content; None if there is none."""
        ...

    def list(self, prefix: str) -> Iterable[str]:
        """The names of the objects directly below a prefix, in no order."""
        ...


@dataclass(frozen=True, slots=True)
class Claim:
    """The object that says whose a place is. It also proves that the place creates nothing over what is there."""

    key: str
    content: bytes

    def proves(self, place: ObjectPlace) -> bool:
        """Create it once more. A server that says twice in a row that it did replaces objects instead.

        Once would not do: the claim may have been removed. A server that replaces it does so with the same content.
        """
        return not (place.create(self.key, self.content) and place.create(self.key, self.content))


@dataclass(frozen=True, slots=True)
class LocalObjects:
    """Objects are files below a directory, which is made when it is needed."""

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
            raise _told(error, doing=f"Writing {path}") from error

    def read(self, key: str) -> bytes | None:
        path = self.directory / key
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _told(error, doing=f"Reading {path}") from error

    def list(self, prefix: str) -> Iterable[str]:
        folder = self.directory / prefix
        try:
            with os.scandir(folder) as entries:
                # A name with a dot in front is an object that somebody is writing, or died over.
                return [entry.name for entry in entries if not entry.name.startswith(".") and entry.is_file()]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise _told(error, doing=f"Listing {folder}") from error


def create_file(path: Path, content: Content) -> bool:
    """Create a file with its whole content, durably; false if the name is taken. Never replaces."""
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
        # Also where the name was taken: whoever took it may have died before this, and it is relied upon from now on.
        sync_directory(path.parent)


_HINTS = {
    errno.EACCES: "Give this process permission to read and write there, then export again.",
    errno.EPERM: "Give this process permission to read and write there, then export again.",
    errno.EROFS: "Mount it for writing, or deliver to another directory.",
    errno.ENOTDIR: "A part of the path is a file: correct the sink's url, or move the file away.",
    errno.EISDIR: "A directory has the object's name: move it away, then export again.",
    errno.ENAMETOOLONG: "The partition's values are too long for file names: deliver to an object store.",
}


def _told(error: OSError, *, doing: str) -> FloodmarkError:
    """What does not pass by itself stops the sink; anything else is tried again."""
    hint = _HINTS.get(error.errno or 0)
    if hint is None:
        return retryable_os_error(error, doing=doing)
    return Permanent(f"{doing} failed: {error.strerror}.", hint=hint)
