"""The demo's rows: messages of agents and people, the same for the same number. Pure."""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

DATASET = "messages"
IDENTITY = ["part_id"]
EVENT_TIME = "ts"
PARTITION_BY = ["source"]
COLUMNS = {"tokens": "long"}

WRITERS = 2

_START = datetime(2026, 3, 2, 8, 0, tzinfo=UTC)
_SOURCES = ("agent", "chat")
_ROLES = ("user", "assistant", "tool")
_MODELS = ("small-1", "large-2", "large-3")
_TEXT = (
    "the gauge at the lower bridge reads forty centimetres above its mean and rises while upstream the rain has "
    "stopped so expect the crest before noon please keep the gates open and report again at the full hour"
)
_WORDS = _TEXT.split()


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of rows. The expected counts are computed from this plan, not from what was observed."""

    rows: int
    """All rows of the writers: distinct messages, messages that both send, and one row each that does not fit."""

    @property
    def misfits(self) -> int:
        return WRITERS

    @property
    def duplicates(self) -> int:
        return self.rows // 50 // WRITERS * WRITERS

    @property
    def distinct(self) -> int:
        return self.rows - self.misfits - self.duplicates

    @property
    def late(self) -> int:
        """Messages that arrive after the first read, with event times between those of stored rows."""
        return self.rows // 100

    @property
    def resent(self) -> int:
        return self.late // 10

    @property
    def overlap(self) -> int:
        """Messages of the history that were captured live, too."""
        return self.rows // 20

    @property
    def older(self) -> int:
        """Messages that only the history has."""
        return self.rows // 40

    def history(self) -> list[dict[str, Any]]:
        """What a backfill loads: it overlaps the live rows."""
        first = self.distinct + self.late + WRITERS
        return [message(number) for number in (*range(self.overlap), *range(first, first + self.older))]

    def sent_by(self, writer: int) -> list[dict[str, Any]]:
        """One writer's rows in the order in which it sends them, which is not the order of events."""
        own = range(writer, self.distinct, WRITERS)
        of_the_other = range(1 - writer, self.distinct, WRITERS)[: self.duplicates // WRITERS]
        numbers = [*own, *of_the_other]
        random.Random(writer).shuffle(numbers)  # noqa: S311 - a fixed order, nothing secret
        rows = [message(number) for number in numbers]
        rows.insert(len(rows) // 2, {**message(self.distinct + self.late + writer), "tokens": "many"})
        return rows

    def sent_late(self) -> list[dict[str, Any]]:
        new = [message(self.distinct + number, at=number * 7) for number in range(self.late)]
        return new + [message(number) for number in range(self.resent)]

    def first_ids(self) -> set[str]:
        return {part_id(number) for number in range(self.distinct)}

    def late_ids(self) -> set[str]:
        return {part_id(self.distinct + number) for number in range(self.late)}


def part_id(number: int) -> str:
    return hashlib.blake2b(number.to_bytes(8, "big"), digest_size=12).hexdigest()


def message(number: int, *, at: int | None = None) -> dict[str, Any]:
    """One message of about 330 bytes as JSON."""
    start = number * 31 % len(_WORDS)
    words = (_WORDS[start:] + _WORDS[:start])[: 20 + number % 13]
    return {
        "part_id": part_id(number),
        "session_id": part_id(number // 40)[:16],
        "part_index": number % 40,
        "source": _SOURCES[number // 40 % 2],
        "ts": (_START + timedelta(seconds=number if at is None else at)).isoformat(),
        "role": _ROLES[number % 3],
        "model": _MODELS[number % 7 % 3],
        "tokens": 20 + number * 17 % 900,
        "text": " ".join(words),
    }
