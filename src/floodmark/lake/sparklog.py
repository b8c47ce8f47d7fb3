"""The output of Spark's JVM: into a file of the store, of bounded size, and to standard error only on request.

The JVM's two outputs are one pipe, which a thread of this process reads. What the JVM itself, its libraries and the
Python workers print comes this way, so none of it can mix with the rows on standard output or with a progress line.

Passwords in addresses and after their names are masked before a line is kept. Spark quotes values of rows in some
errors, so `purge` empties the files.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
from collections import deque
from pathlib import Path

FILE_NAME = "spark.log"
FILE_BYTES_MAX = 4 << 20
"""Past this size the file becomes `spark.log.1`, and the earlier one of that name is removed."""
LINE_BYTES_MAX = 16 << 10
LINES_KEPT = 200

_PASSWORDS = (
    (re.compile(r"(://[^/@\s:]*:)[^@\s/]+@"), r"\1***@"),
    (
        re.compile(r"(?i)((?:secret|password|token|access[._-]?key)[\w.-]*[\"']?\s*[=:]\s*[\"']?)[^\s,;&\"'})]+"),
        r"\1***",
    ),
)
_EMPTY_WORDS = re.compile(r"WARN|Could not create the Java Virtual Machine|A fatal exception has occurred")
shown = threading.Event()


def show_spark_output() -> None:
    """Write what Spark says to standard error as well, from now on."""
    shown.set()


def log_file(store: Path) -> Path:
    """A store's file for it."""
    return store / "logs" / FILE_NAME


def empty_log(store: Path) -> None:
    """Forget what Spark has said: its errors may quote values of rows."""
    file = log_file(store)
    for path in (file, _older(file)):
        with contextlib.suppress(FileNotFoundError):
            os.truncate(path, 0)  # a process that has it open continues in it, at its beginning


class SparkLog:
    """Reads the output of one JVM. It never fails: a line that cannot be written is dropped."""

    def __init__(self, file: Path | None) -> None:
        self.file = file
        self._descriptor: int | None = None
        self._lines: deque[str] = deque(maxlen=LINES_KEPT)
        self._ends, self.input = os.pipe()
        self._reader = threading.Thread(target=self._follow, name="floodmark-spark-log", daemon=True)
        self._reader.start()

    def handed_over(self) -> None:
        """The JVM has its end of the pipe (or was never started): ours is closed, so that its end is the end."""
        os.close(self.input)

    def last_words(self) -> str:
        """Why a JVM that has ended did so: its last lines that are no part of a stack."""
        self._reader.join(timeout=5)
        lines = [line for line in self._lines if not (line[0].isspace() or _EMPTY_WORDS.search(line))]
        return "; ".join(line.strip().rstrip(".") for line in lines[-2:])[-300:] or "it gave no reason"

    def _follow(self) -> None:
        with os.fdopen(self._ends, "rb") as stream:
            while raw := stream.readline(LINE_BYTES_MAX):
                self._take(raw.decode(errors="replace"))
        if self._descriptor is not None:
            os.close(self._descriptor)

    def _take(self, line: str) -> None:
        for pattern, replacement in _PASSWORDS:
            line = pattern.sub(replacement, line)
        self._lines.append(line)
        if self.file is not None:
            try:
                self._write(self.file, line.encode(errors="replace"))
            except OSError:  # a disk that is full, a store that can only be read: Spark must not wait for it
                self._close()
        if shown.is_set():
            with contextlib.suppress(OSError, ValueError):  # a standard error that is closed
                sys.stderr.write(line)
                sys.stderr.flush()

    def _write(self, file: Path, line: bytes) -> None:
        if self._descriptor is not None and os.fstat(self._descriptor).st_size > FILE_BYTES_MAX:
            self._make_room(file)
        if self._descriptor is None:
            file.parent.mkdir(mode=0o700, exist_ok=True)
            self._descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.write(self._descriptor, line)

    def _make_room(self, file: Path) -> None:
        """Begin a new file, unless another process has just done so."""
        if self._descriptor is not None and os.path.samestat(os.fstat(self._descriptor), file.stat()):
            file.replace(_older(file))
        self._close()

    def _close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _older(file: Path) -> Path:
    return file.with_name(f"{file.name}.1")
