"""What a backfill reads: a source is units in a fixed order, a unit is batches in a fixed order.

A unit is the smallest thing that is remembered by name: a file, what a provider calls one, or all of an iterable.
Each batch ends with a *mark*, a value from which reading the same unit can continue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from floodmark.rows.textlines import Problem
from floodmark.schema import Column

if TYPE_CHECKING:
    import pyarrow as pa


# ── What a backfill did ──────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class BackfillReport:
    """The rows of one run: `read` is the sum of what became of them.

    While the run lasts, `new` counts what is in the spool and may still prove to be a duplicate. In the end it is what
    the blocks say.
    """

    dataset: str
    source: str
    read: int = 0
    new: int = 0
    """Committed."""
    already_stored: int = 0
    """Duplicates of committed rows, or of an earlier row of this source."""
    already_spooled: int = 0
    """Duplicates of rows that had been captured and waited for their commit."""
    quarantined: int = 0
    """Rows that do not fit the dataset, and what is no row at all."""
    without_identity: int = 0
    """Rows whose identity is null, among all that fit: they are compared as the dataset's `identity_null` says."""
    outside: int = 0
    """Rows that are not between `since` and `until`."""
    expired: int = 0
    """Rows whose like was removed before, by retention or a purge."""
    dropped: int = 0
    """Rows that the dataset's settle function dropped."""
    units: int = 0
    """Files, or other units, that this run has read."""
    units_loaded_before: int = 0
    bytes: int = 0
    """How much of the source was read."""
    bytes_total: int | None = None


# ── Units ────────────────────────────────────────────────────────────────────────────────────────────────────────────


__all__ = ["Batch", "Mark", "Problem", "Reading", "Source", "SourceFile", "Unit", "read_each"]

Mark = Any
"""Where reading a unit continues: whatever its reader understands and JSON can hold; None is the beginning."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Some rows of a unit, dicts or an Arrow table, and where each of them came from."""

    rows: list[dict[str, Any]] | pa.Table
    behind: Mark
    place: Callable[[int], str]
    """Where a row came from, for people: `path:line`."""
    problems: tuple[Problem, ...] = ()
    bytes: int = 0
    """How much of the source this is."""
    first: int = 0
    """Of a Parquet file: the place of the first of these rows in it."""
    columns: tuple[Column, ...] = ()
    """What the dataset lacks of a batch that is fitted."""
    fitted: bool = False
    """The rows have the names and types of the dataset; those that did not fit are among the problems."""
    lasting: bool = True
    """The places name the same rows when the source is read again."""

    @property
    def count(self) -> int:
        return len(self.rows) if isinstance(self.rows, list) else int(self.rows.num_rows)


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file, what it holds, and how."""

    path: Path
    kind: str
    """jsonl, csv or parquet."""
    constants: tuple[tuple[str, str], ...] = ()
    """What the names of its directories say."""

    @property
    def is_gzipped(self) -> bool:
        return self.path.suffix.lower() == ".gz"


@dataclass(frozen=True, slots=True)
class Unit:
    """One thing to be read."""

    name: str
    read: Callable[[Mark], Iterator[Batch]]
    """The batches after a mark."""
    fingerprint: str = ""
    """Changes with the content: the same name with another fingerprint is something else to load."""
    bytes: int | None = None
    file: Path | None = None
    """The Parquet file that it is, if it is one: Spark can read it."""
    text: SourceFile | None = None
    """The text file that it is, if it is one: what Spark's workers can parse."""
    steady: bool = True
    """Whether reading it twice gives the same rows in the same order."""


Reading = Callable[[Sequence[tuple[Unit, Mark]]], Iterator[Iterator[Batch]]]
"""The batches of some units after their marks, unit by unit: each is read to its end before the next."""


def read_each(left: Sequence[tuple[Unit, Mark]]) -> Iterator[Iterator[Batch]]:
    return (unit.read(mark) for unit, mark in left)


@dataclass(frozen=True, slots=True)
class Source:
    """Units under a name."""

    name: str
    units: tuple[Unit, ...]
    anonymous: bool = False
    """This source has no id: only the rows' identities keep it from being loaded twice."""
    read: Reading = read_each
    """How its units are read."""

    @property
    def bytes(self) -> int | None:
        sizes = [unit.bytes for unit in self.units]
        return sum(size for size in sizes if size is not None) if None not in sizes else None
