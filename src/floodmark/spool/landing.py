"""The landing log: where captured rows first touch the disk.

Terms. A *landing file* belongs to one writer for life: it has a fresh uuid for a name, and its writer holds the
file's lock until it closes it or dies. A *line* is one envelope, the rows of one capture call. *Group commit*:
the lines of threads that call at the same time share one write and one fsync.

Invariants
- L1 A call returns only after an fsync that covers its line.
- L2 A file is named `*.jsonl` only while its writer holds the lock, or afterwards: a sealer that can take the
  lock of such a file knows that no line will ever follow.
- L3 After a failed write or fsync nothing more is written to that file: the kernel may have dropped the dirty
  pages, so a later fsync that succeeds would prove nothing.
"""

from __future__ import annotations

import contextlib
import os
import threading
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from floodmark import faults
from floodmark.errors import OutcomeUnknown
from floodmark.files import PRIVATE_FILE, make_directory, sync_directory, try_lock

FILE_BYTES_MAX = 64 << 20
"""A file past this size is closed, so that it can be sealed to its end and removed."""
NAME_BYTES_MAX = 128
"""A writer's own name has 38; what is quarantined of a file is kept under a longer one."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a line is."""

    file: str
    """The name of its file, which no other file ever has."""
    offset: int


@dataclass(slots=True)
class _Group:
    """Lines that will share one fsync. The thread with the first line leads: it writes them all."""

    lines: list[bytes] = field(default_factory=list)
    size: int = 0
    place: Place | None = None
    """Where the first of them is, once they are written."""
    finished: threading.Event = field(default_factory=threading.Event)
    error: BaseException | None = None


class LandingWriter:
    """One process's writer for one dataset. Threads may share it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._joining = threading.Lock()
        self._writing = threading.Lock()
        self._group = _Group()
        self._descriptor: int | None = None
        self._name = ""
        self._size = 0
        self._process = os.getpid()

    def append(self, line: bytes) -> Place:
        """Write one line; it is durable on return. Where it is comes back.

        `OutcomeUnknown` if the disk refused: the line may or may not be there, and nothing that was
        acknowledged before is touched.
        """
        self._forget_after_fork()
        with self._joining:
            group = self._group
            before = group.size
            group.lines.append(line)
            group.size += len(line)
            leads = len(group.lines) == 1
        if leads:
            self._lead(group)
        else:
            group.finished.wait()
        if group.error is not None or group.place is None:
            raise OutcomeUnknown(
                f"The landing log in {self._directory} could not be made durable: {group.error}.",
                hint="These rows may or may not have been stored; everything acknowledged before is safe. "
                "Fix the cause (disk full?) and capture them again if the dataset has an identity.",
            ) from group.error
        return Place(group.place.file, group.place.offset + before)

    def close(self) -> None:
        """Give the file up: it may now be sealed to its end and removed."""
        # A leader may be writing to this very descriptor: closed under it, the number could name another file.
        with self._writing:
            self._close_file()

    def _lead(self, group: _Group) -> None:
        """Write a group. While an earlier one is being written, others join this one."""
        try:
            with self._writing:
                self._complete(group)
                try:
                    group.place = self._write(b"".join(group.lines))
                except BaseException:  # also an interrupt: part of a line may be in the file
                    self.abandon()
                    raise
        except OSError as error:
            group.error = error
        except BaseException as error:
            group.error = error
            raise
        finally:
            self._complete(group)
            group.finished.set()

    def _complete(self, group: _Group) -> None:
        """No thread joins this group any more."""
        with self._joining:
            if self._group is group:
                self._group = _Group()

    def _write(self, content: bytes) -> Place:
        if self._descriptor is None:
            self._descriptor, self._name = create_file(self._directory)
            self._size = 0
        place = Place(self._name, self._size)
        write_durably(self._descriptor, content)
        self._size += len(content)
        if self._size >= FILE_BYTES_MAX:
            self._close_file()
        return place

    def abandon(self) -> None:
        """L3: after a failure, never touch this file again."""
        self._close_file()

    def _close_file(self) -> None:
        """The next line opens a new one."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with contextlib.suppress(OSError):
                os.close(descriptor)

    def _forget_after_fork(self) -> None:
        """A child shares its parent's open file: two writers on one file would tear each other's lines."""
        if self._process != os.getpid():
            self._joining, self._writing, self._group = threading.Lock(), threading.Lock(), _Group()
            self._close_file()  # the parent's own descriptor, and with it the lock, stays
            self._process = os.getpid()


def write_durably(descriptor: int, content: bytes) -> None:
    """L1."""
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]
    faults.reach("capture.written")
    os.fsync(descriptor)
    faults.reach("capture.synced")


def create_file(directory: Path) -> tuple[int, str]:
    """A new landing file, open, and its name.

    It is locked before it has the name (L2): a sealer that met it empty and unlocked would remove it, and its writer
    would keep writing to a file without a name.
    """
    make_directory(directory, private=True)
    name = uuid.uuid4().hex
    unready = directory / f"{name}.new"
    descriptor = os.open(unready, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, PRIVATE_FILE)
    try:
        try_lock(descriptor)
        unready.rename(directory / f"{name}.jsonl")
        sync_directory(directory)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor, name


def landing_files(directory: Path) -> list[Path]:
    """The landing files of a dataset, oldest first."""
    found = []
    with contextlib.suppress(FileNotFoundError), os.scandir(directory) as entries:
        for entry in entries:
            if not _is_ours(entry):
                continue
            with contextlib.suppress(FileNotFoundError):  # another sealer has just removed this one, not the others
                found.append((entry.stat().st_mtime_ns, Path(entry.path)))
    return [path for _, path in sorted(found)]


def _is_ours(entry: os.DirEntry[str]) -> bool:
    """Whether it can be a landing file: not a directory, a pipe or a link, nor a name that no record could hold."""
    name = entry.name
    fits = name.endswith(".jsonl") and name.isprintable() and len(os.fsencode(name)) <= NAME_BYTES_MAX
    return fits and entry.is_file(follow_symlinks=False)


def landing_bytes(directory: Path, *, sealed: Mapping[str, int] | None = None) -> int:
    """How many bytes the landing files have, without those that are `sealed` of each."""
    offsets = sealed or {}
    total = 0
    for path in landing_files(directory):
        with contextlib.suppress(FileNotFoundError):
            total += max(0, path.stat().st_size - offsets.get(path.stem, 0))
    return total
