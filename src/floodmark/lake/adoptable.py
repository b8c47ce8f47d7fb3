"""Data without sequence numbers, read for adoption: parts in a fixed order, each of bounded size.

A part is a stretch of one data file at one fixed version, so the same part is the same rows whenever it is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Part:
    """Some rows of one file: those whose place in it is above `after`, up to and including `through`."""

    file: str
    after: int
    through: int


class LegacyData(Protocol):
    """Something that can be adopted."""

    @property
    def name(self) -> str:
        """What it is, whatever state it is in: it is adopted once under this name."""
        ...

    @property
    def version(self) -> str:
        """The state that is read."""
        ...

    def parts(self) -> Iterator[Part]:
        """All of it, in an order that is the same every time."""
        ...

    def read(self, part: Part) -> pa.Table:
        """The rows of a part, in the order of their places."""
        ...
