"""Journals: the outcome of a writer's captures, in a file that survives the writer.

    ["attempt", 17, false, [rows…]]     before the call: these rows may be stored from now on
    ["acknowledged", 17]                after it returned, synced: from now on they must arrive

The number counts a writer's batches. An incomplete line is ignored: its rows were not sent yet, or their
acknowledgement was not used. A repeated attempt after a kill has `true`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import orjson

Rows = list[dict[str, Any]]


@dataclass(slots=True)
class Entries:
    """What a journal says."""

    attempts: dict[int, Rows] = field(default_factory=dict)
    acknowledged: set[int] = field(default_factory=set)
    rows_again: int = 0
    """Rows that were captured again, because their outcome was unknown."""

    @classmethod
    def read(cls, path: Path) -> Self:
        entries = cls()
        content = path.read_bytes() if path.exists() else b""
        for line in content.split(b"\n"):
            try:
                entry = orjson.loads(line)
            except orjson.JSONDecodeError:
                continue
            if entry[0] == "attempt":
                entries.attempts[entry[1]] = entry[3]
                entries.rows_again += len(entry[3]) if entry[2] else 0
            else:
                entries.acknowledged.add(entry[1])
        return entries

    @property
    def unanswered(self) -> dict[int, Rows]:
        return {number: rows for number, rows in self.attempts.items() if number not in self.acknowledged}

    @property
    def last_unanswered(self) -> bool:
        """Whether the outcome of the newest attempt is unknown."""
        return bool(self.attempts) and max(self.attempts) not in self.acknowledged

    @property
    def rows_acknowledged(self) -> int:
        return sum(len(self.attempts[number]) for number in self.acknowledged)


class Journal:
    """A journal that is being written."""

    def __init__(self, path: Path) -> None:
        self.entries = Entries.read(path)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.write(self._file, b"\n")  # the incomplete line of a killed process ends here

    def attempt(self, number: int, rows: Iterable[Mapping[str, Any]], *, again: bool) -> None:
        self._write(["attempt", number, again, list(rows)])

    def acknowledge(self, number: int) -> None:
        self._write(["acknowledged", number])
        os.fsync(self._file)

    def close(self) -> None:
        os.close(self._file)

    def _write(self, entry: list[Any]) -> None:
        left = memoryview(orjson.dumps(entry) + b"\n")
        while left:
            left = left[os.write(self._file, left) :]
