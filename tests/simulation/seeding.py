"""How a bug is put in, and the few steps in which it shows."""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from .places import HOLD, delay, drawn
from .schedule import PROFILES, TO_THE_END, Schedule, Step


@dataclass(frozen=True, slots=True)
class Bug:
    """One protection undone."""

    name: str
    invariant: str
    """What it breaks, as `docs/explanation/invariants.md` has it."""
    profile: str
    """The schedules in which it can show."""
    short: tuple[Step, ...]
    """A few steps in which it shows, for some chances of the power and the network."""
    patch: Callable[[], contextlib.AbstractContextManager[Any]]
    identified: bool = False
    """Whether it shows only where rows have an identity."""
    partitions: int = 1
    parallel: bool = False
    """Whether it shows only where two tasks store objects at once."""
    shows: str = ""
    """What the finding says, where any other would not do."""

    def schedule(self, seed: int) -> Schedule:
        """The short schedule with other chances."""
        steps = tuple(replace(step, seed=step.seed or seed) for step in self.short)
        profile = PROFILES[self.profile]
        return Schedule(seed, profile, self.identified, self.partitions, steps, parallel=self.parallel)

    def found(self, wrong: list[Any]) -> str | None:
        """The finding by which it is found, if it is."""
        return next((str(one) for one in wrong if self.shows in str(one)), None)


BUGS: list[Bug] = []


def bug(
    name: str, *, invariant: str, short: list[list[Step]], profile: str = "commit", **options: Any
) -> Callable[[Callable[[], Iterator[None]]], Bug]:
    """Seed a bug: the function below puts it in, until it is closed."""

    def made(function: Callable[[], Iterator[None]]) -> Bug:
        steps = tuple(step for some in short for step in some)
        BUGS.append(Bug(name, invariant, profile, steps, contextlib.contextmanager(function), **options))
        return BUGS[-1]

    return made


def does(process: int, name: str, size: int = 1) -> list[Step]:
    """A process does something to its end."""
    return [Step("begin", process, name, size), Step("run", process, number=TO_THE_END)]


def stops(process: int, name: str, at: str, *, times: int = 1, size: int = 1) -> list[Step]:
    """A process begins something and stands still in the middle."""
    return [Step("begin", process, name, size), Step("run", process, at, times)]


def dies(process: int, name: str, at: str, *, times: int = 1, size: int = 1) -> list[Step]:
    """A process begins something and dies in the middle."""
    return [Step("begin", process, name, size), Step("die", process, at, times)]


def held_up(steps: list[Step]) -> list[Step]:
    """What is begun there has its first request under way until late, whatever the other chances."""
    return [replace(step, seed=_HOLDS) for step in steps]


def fated(steps: list[Step], *fates: str) -> list[Step]:
    """What is begun there has requests that meet these fates, one after the other, whatever the other chances."""
    seeds = itertools.count(1)
    seed = next(
        seed for seed in seeds if all(drawn(chance) == fate for chance in [random.Random(seed)] for fate in fates)
    )
    return [replace(step, seed=seed) for step in steps]


def _is_held(chance: random.Random) -> bool:
    return drawn(chance) == HOLD and delay(chance) is None


_HOLDS = next(seed for seed in range(1, 1_000) if _is_held(random.Random(seed)))
GOES_ON = [Step("run", 0, number=TO_THE_END)]
OTHER_GOES_ON = [Step("run", 1, number=TO_THE_END)]
REWRITTEN = [Step("compact", 0, "edge")]
HUB_DIES = [Step("die", 3)]
POWER = [Step("power", 0, "edge")]
LATE = [Step("late")]
BACK_UP = [Step("back up")]
RESTORE = [Step("restore")]
LEARN = [Step("learn")]
DISK = [Step("disk")]
OWNER_FORGETS = [Step("owner", number=3)]
