"""Files that grow by lines, read up to a point that was fixed beforehand.

A file unit names fixed content: the lines of one file up to `end`, the byte behind the last line that was whole when
the plan was made. What is appended later, and a last line that is still being written, belong to a later unit.
Between plan and read the file may be rotated away, replaced or cut: `head` is a digest of its beginning, and a file
that begins otherwise or ends early is refused rather than taken for the one that was planned.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from floodmark.errors import ProviderFailed
from floodmark.providers import Item, Unit

LINE_BYTES_MAX = 64 << 20
"""A longer line is not read: it is reported with its beginning, and its bytes are skipped in pieces."""
_HEAD_BYTES = 4096
PIECE_BYTES = 1 << 20
_SHOWN_CHARACTERS = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class FileUnit(Unit):
    """The lines of one file up to the byte `end`; for a compressed file, all lines."""

    path: Path
    end: int | None
    head: str
    unreadable: str | None = None

    @property
    def place(self) -> str:
        """The file, as provenance names it."""
        return shown(self.path)


def file_unit(path: Path, *, name: str | None = None) -> FileUnit | None:
    """The complete lines of the file now, as a unit named after `name`; None if it has none."""
    called = name or shown(path)
    try:
        size = path.stat().st_size
        with open_file(path) as file:
            compressed = _is_gzip(path)
            end = None if compressed else _end_of_lines(file, size)
            head = _digest(file, end)
    except FileNotFoundError:
        return None  # removed since the listing
    except (OSError, EOFError, zlib.error) as error:
        # It is part of the plan, so that it is reported; and it is another unit once it can be read.
        reason = f"the file cannot be read: {error}"
        return FileUnit(f"{called}@unreadable", shown(path), path=path, end=0, head="", unreadable=reason)
    reach = _plain_bytes(path, size) if compressed else end
    if reach == 0:
        return None
    return FileUnit(
        f"{called}@{reach}-{head[:12]}", shown(path), size if compressed else end, path=path, end=end, head=head
    )


def lines(unit: FileUnit) -> Iterator[tuple[int, bytes] | Item]:
    """The unit's lines with their numbers, without the newline; a broken item for a line that cannot be used."""
    if unit.unreadable is not None:
        yield Item.broken(unit.place, unit.unreadable)
        return
    try:
        file = open_file(unit.path)
    except FileNotFoundError:
        yield Item.broken(unit.place, "the file was removed after the plan was made")
        return
    with file:
        if _digest(file, unit.end) != unit.head:
            raise _changed(unit, "was replaced")
        yield from _numbered(unit, file)


def text_of(line: bytes) -> str:
    """The part of a line that is stored with the reason why it is not a row."""
    return line[: _SHOWN_CHARACTERS * 4].decode("utf-8", "backslashreplace")[:_SHOWN_CHARACTERS]


def _numbered(unit: FileUnit, file: BinaryIO) -> Iterator[tuple[int, bytes] | Item]:
    number = 0
    left = unit.end
    while left is None or left > 0:
        number += 1
        try:
            line = file.readline(LINE_BYTES_MAX + 1)
            length = len(line) if len(line) <= LINE_BYTES_MAX else len(line) + _pass_over(file, line)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            # A compressed file that is still being written, or is damaged: when complete, it is another unit.
            yield Item.broken(f"{unit.place}:{number}", f"the compressed file is incomplete: {error}")
            return
        if not line:
            if left is not None:
                raise _changed(unit, "was truncated")
            return
        left = None if left is None else left - length
        if length > LINE_BYTES_MAX:
            why = f"the line has {length} bytes; the limit is {LINE_BYTES_MAX}"
            yield Item.broken(f"{unit.place}:{number}", why, text_of(line))
        else:
            yield number, line.rstrip(b"\r\n")


def _pass_over(file: BinaryIO, line: bytes) -> int:
    """The bytes from here to the end of an overlong line."""
    passed = 0
    while line and not line.endswith(b"\n"):
        line = file.readline(PIECE_BYTES)
        passed += len(line)
    return passed


def _end_of_lines(file: BinaryIO, size: int) -> int:
    """The byte behind the last newline: a last line without one is still being written."""
    end = size
    while end > 0:
        start = max(0, end - PIECE_BYTES)
        file.seek(start)
        found = file.read(end - start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0


def _digest(file: BinaryIO, end: int | None) -> str:
    """A digest of the file's beginning; leaves the file at its beginning."""
    file.seek(0)
    head = file.read(_HEAD_BYTES if end is None else min(end, _HEAD_BYTES))
    file.seek(0)
    # Cut at a line, so that the beginning of a short file digests alike plain and compressed.
    return hashlib.blake2b(head[: head.rfind(b"\n") + 1] or head, digest_size=16).hexdigest()


def _is_gzip(path: Path) -> bool:
    return path.suffix == ".gz"


def open_file(path: Path) -> BinaryIO:
    return cast("BinaryIO", gzip.open(path, "rb")) if _is_gzip(path) else path.open("rb")


def _plain_bytes(path: Path, size: int) -> int:
    """How many bytes a compressed file says it holds, so that it is the same unit as before it was compressed.

    The last four bytes say it, of one member and up to 4 GiB. Where that is not so, the unit's id is another one,
    and its lines are read once more.
    """
    with path.open("rb") as file:
        file.seek(max(0, size - 4))
        return int.from_bytes(file.read(4), "little")


def _changed(unit: FileUnit, how: str) -> ProviderFailed:
    return ProviderFailed(
        f"{unit.place} {how} after the plan was made.",
        hint="No row of it was stored. Run it again with a new plan.",
    )


def shown(path: Path) -> str:
    """The path as valid text, with any bytes in its name."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def absolute(path: Path) -> Path:
    """The absolute path, with links resolved."""
    return Path(os.path.realpath(path))
