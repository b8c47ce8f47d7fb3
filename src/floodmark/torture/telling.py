"""What the daemon tells, followed line by line through all its lives."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson


@dataclass(slots=True)
class Told:
    """The events of one daemon: counted, and by life."""

    path: Path
    events: Counter[str] = field(default_factory=Counter)
    rows: Counter[str] = field(default_factory=Counter)
    """By event: flushed and exported."""
    duplicates: int = 0
    chunks: int = 0
    problems: dict[str, str] = field(default_factory=dict)
    """What each subject suffers from at present."""
    life_began: float = 0.0
    life_spoke: bool = False
    life_worked: float | None = None
    """When its first work got through, or failed for a reason that will keep it waiting."""
    _offset: int = 0

    def new_life(self) -> None:
        with self.path.open("ab") as file:
            file.write(b"\n")  # whatever a death has cut off ends here
        self.listen()
        self.life_began, self.life_spoke, self.life_worked = time.monotonic(), False, None
        self.problems.clear()

    def listen(self) -> None:
        """Take in what has been said since."""
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(self._offset)
            content = file.read()
        whole, newline, _ = content.rpartition(b"\n")  # what follows the last line's end is still being written
        self._offset += len(whole) + len(newline)
        for line in whole.split(b"\n"):
            try:
                event = orjson.loads(line)
            except orjson.JSONDecodeError:
                continue  # a death cut it off
            self._take(event)

    def _take(self, event: dict[str, Any]) -> None:
        name = event["event"]
        self.life_spoke = True
        self.events[name] += 1
        if name in {"flushed", "exported"}:
            self.rows[name] += event["rows"]
            self.chunks += event.get("chunks", 0)
            self.duplicates += event.get("duplicates", 0)
            if self.life_worked is None:
                self.life_worked = time.monotonic()
        elif name == "problem":
            self.problems[event["subject"]] = event["problem"]
            if not event["subject"].startswith("sink") and self.life_worked is None:
                self.life_worked = time.monotonic()
        elif name == "recovered":
            self.problems.pop(event["subject"], None)
