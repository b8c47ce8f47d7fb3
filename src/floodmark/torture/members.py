"""Members: processes that are killed and restarted. Each is checked in turn (`step`).

When and how a process is killed comes from the member's random generator, seeded with the run's seed and its name. The
timing of the machine is not seeded: with the same seed, processes may be killed at other points.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from floodmark.errors import Permanent

ASTRAY_MAX = 20
"""After this many unexpected exits in a row the run stops."""


@dataclass(frozen=True, slots=True)
class Kill:
    """One death that we caused."""

    seconds: float
    """Since the run began."""
    kind: str
    how: str
    where: str
    """Roughly what it was doing."""


@dataclass(slots=True)
class Records:
    """What a member remembers of itself."""

    kills: list[Kill] = field(default_factory=list)
    starts: int = 0
    astray: list[str] = field(default_factory=list)
    """Unexpected exits, with the last output of the process."""
    astray_in_a_row: int = 0

    def killed(self, kill: Kill) -> None:
        self.kills.append(kill)
        self.astray_in_a_row = 0

    def ended_by_itself(self, code: int, log: Path) -> None:
        self.astray.append(f"exited unexpectedly with code {code}: {last_words(log)}")
        self.astray_in_a_row += 1
        if self.astray_in_a_row >= ASTRAY_MAX:
            raise Permanent(
                f"A process of this run exited unexpectedly {ASTRAY_MAX} times. Its last output: {last_words(log)}",
                hint="Check that `floodmark run` works on this store. `--keep` keeps the output of every process.",
            )


class Member(Protocol):
    """Something that lives, is killed, and comes back."""

    @property
    def kind(self) -> str: ...
    @property
    def records(self) -> Records: ...
    def step(self, *, trouble: bool) -> None:
        """Bring it back if it is dead; if there is to be trouble and its time has come, make some."""
        ...

    def close(self) -> None:
        """Kill all remaining processes of the member."""
        ...


def dice(seed: int, name: str) -> random.Random:
    return random.Random(f"{seed} {name}")  # noqa: S311 - not for secrets


def last_words(log: Path) -> str:
    """The last lines of what a process said on standard error."""
    content = log.read_bytes()[-2000:] if log.exists() else b""
    return " / ".join(content.decode(errors="replace").strip().splitlines()[-3:])
