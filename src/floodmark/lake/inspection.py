"""Looking into a table without changing it: where one row stands, and whether the files it refers to are there.

Audit, trace and fsck ask; each implementation of a lake answers in its own way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class StoredRow:
    """One row where it stands."""

    seq: int
    content_id: str
    segment: int | None
    """The segment that brought it."""
    file: str
    """The data file that holds it."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """Those of its columns that were asked for."""


@dataclass(frozen=True, slots=True)
class FileReport:
    """What the head of a table refers to."""

    files: int = 0
    missing: tuple[str, ...] = ()
    """Not there, or not as long as they were written."""
    twice: tuple[str, ...] = ()
    """Data files that the head refers to more than once: each of their rows is read as often."""


def file_report(files: Iterator[str], missing: set[str]) -> FileReport:
    counted = Counter(files)
    twice = tuple(sorted(file for file, times in counted.items() if times > 1))
    return FileReport(len(counted), tuple(sorted(missing)), twice)
