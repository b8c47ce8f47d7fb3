"""A seed becomes a list of steps, a list of steps is run, and one that fails is shrunk.

The steps say everything: who begins what, who runs for how many pauses, who dies, what arrives late. So a schedule runs
the same way every time, and a shorter list of steps is a schedule too.
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from .judgement import findings
from .operations import ANYWHERE, OPERATIONS, POINTS
from .workshop import Kind, Workshop
from .world import Process, World

TO_THE_END = 10_000
OWNERS = ("append", "delete", "compact", "forget")


@dataclass(frozen=True, slots=True)
class Profile:
    """A family of schedules: what is done in them, and what may happen to them."""

    name: str
    operations: dict[str, int]
    sinks: tuple[str, ...] = ()
    events: dict[str, int] = field(default_factory=dict)
    """What else happens in them, beside what may happen in all of them."""
    steps: int = 12
    settles: bool = False


_SPOOL = {"capture": 5, "capture arrow": 1, "seal": 2, "flush": 7, "read": 1}
_BACKFILL = {"backfill": 3, "backfill in another order": 4}
_OWNER = {"owner": 6}
PROFILES = {
    profile.name: profile
    for profile in (
        Profile("commit", {**_SPOOL, "block off": 1, "check": 1}),
        Profile("bucket", {**_SPOOL, "export archive": 5, "check": 1}, ("archive",)),
        Profile("hub", {**_SPOOL, "export central": 5}, ("central",), {"repeat": 3}),
        Profile("table", {**_SPOOL, "export mirror": 6}, ("mirror",), _OWNER),
        Profile("projection", {**_SPOOL, "export figures": 6}, ("figures",)),
        Profile("upkeep", {**_SPOOL, **_BACKFILL, "adopt": 3, "rebuild": 4, "compact": 5}),
        Profile(
            "removal",
            {**_SPOOL, "export archive": 4, "export mirror": 3, "retain": 2, "purge": 5, "backfill": 1, "rebuild": 1},
            ("archive", "mirror"),
        ),
        Profile("settlement", {**_SPOOL, "export archive": 3, "settle": 5}, ("archive",), {"learn": 12}, settles=True),
        Profile(
            "changes",
            {**_SPOOL, "export archive": 3, "settle": 4, "purge": 3, "retain": 2, "rebuild": 1},
            ("archive",),
            {"learn": 8},
            settles=True,
        ),
        Profile(
            "restored",
            {**_SPOOL, "export archive": 3, "export mirror": 2, "export figures": 2},
            ("archive", "mirror", "figures"),
            {"back up": 8, "restore": 16},
        ),
        Profile(
            "everything",
            {
                **_SPOOL,
                "export archive": 3,
                "export central": 3,
                "export mirror": 2,
                "export figures": 2,
                "retain": 1,
                "purge": 2,
                "backfill": 1,
                "adopt": 1,
                "rebuild": 1,
                "compact": 1,
            },
            ("archive", "central", "mirror", "figures"),
            {"repeat": 3, **_OWNER},
            steps=16,
        ),
    )
}
SHARES = {
    "commit": 32,
    "bucket": 12,
    "hub": 12,
    "table": 8,
    "projection": 4,
    "upkeep": 10,
    "removal": 7,
    "settlement": 4,
    "changes": 4,
    "restored": 5,
    "everything": 2,
}


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that happens."""

    what: str
    """`begin`, `run`, `die` (run, then die), or something that happens: `power`, `late`, `clock` and others."""
    process: int = 0
    name: str = ""
    number: int = 0
    seed: int = 0

    def __str__(self) -> str:
        match self.what:
            case "begin":
                return f"{who(self.process)} begins: {self.name} ({self.number})"
            case "run":
                return f"{who(self.process)} runs {self._how_far()}"
            case "die":
                return f"{who(self.process)} runs {self._how_far()} and dies"
            case "power":
                return f"the power of the {self.name} goes"
            case "late":
                return "what is under way arrives"
            case "repeat":
                return "a request arrives once more"
            case "compact":
                return f"the table of the {self.name} is compacted"
            case "owner":
                return f"the owner of the target: {OWNERS[self.number % len(OWNERS)]}"
            case "disk":
                return f"the next sync of the {self.name} fails"
            case "learn":
                return "two rows turn out to be one"
            case "back up" | "restore":
                return "the control database is copied" if self.what == "back up" else "… and the copy put back"
            case _:
                return f"the clock jumps by {self.number} s"

    def _how_far(self) -> str:
        if self.number == TO_THE_END:
            return "on"
        times = "once" if self.number == 1 else f"{self.number} times"
        return f"until it has reached {self.name} {times}" if self.name else f"for {self.number} pauses"


def who(process: int) -> str:
    return f"edge{process}" if process < 3 else f"hub{process - 3}"


@dataclass(frozen=True, slots=True)
class Schedule:
    """Steps, in a world of a kind."""

    seed: int
    profile: Profile
    identified: bool
    """Whether the dataset has an identity, so that a producer may send again what was not answered."""
    partitions: int
    steps: tuple[Step, ...]

    def __str__(self) -> str:
        kind = f"{self.profile.name}, {self.partitions} partitions, {'an' if self.identified else 'no'} identity"
        return "\n".join([f"seed {self.seed} ({kind})", *(f"  {step}" for step in self.steps)])


@dataclass(slots=True)
class Outcome:
    """How a schedule ended."""

    schedule: Schedule
    wrong: list[Any]
    counts: Counter[str] = field(default_factory=Counter)
    died: Counter[str] = field(default_factory=Counter)
    passed: Counter[str] = field(default_factory=Counter)
    trace: tuple[Any, ...] = ()

    def __str__(self) -> str:
        return "\n".join([str(self.schedule), *(f"  → {one}" for one in self.wrong)])


def made(seed: int, profile: Profile | None = None) -> Schedule:
    """The schedule of a seed."""
    chance = random.Random(seed)
    chosen = profile or PROFILES[chance.choices(list(SHARES), list(SHARES.values()))[0]]
    identified = chance.random() < 0.5
    partitions = 1 if chance.random() < 0.6 else 2
    operations = dict(chosen.operations) | ({"capture again": 3} if identified else {})
    steps: list[Step] = []
    count = chance.randint(chosen.steps // 2, chosen.steps)
    while len(steps) < count:
        steps += _some(chance, chosen, operations)
    return Schedule(seed, chosen, identified, partitions, tuple(steps))


def _some(chance: random.Random, profile: Profile, operations: dict[str, int]) -> list[Step]:
    hub = "central" in profile.sinks
    process = 3 + chance.randrange(2) if hub and chance.random() < 0.15 else chance.randrange(3)
    events = {
        "operation": 60,
        "run": 18,
        "die": 4,
        "late": 6,
        "compact": 4,
        "power": 3,
        "clock": 1,
        "disk": 1,
        **profile.events,
    }
    what = chance.choices(list(events), list(events.values()))[0]
    if what == "operation":
        known = operations if process < 3 else {"flush": 1}
        name = chance.choices(list(known), list(known.values()))[0]
        size = chance.randint(1, 8) if name == "purge" else chance.randint(1, 3)
        begin = Step("begin", process, name, size, chance.getrandbits(32))
        if name in {"flush", "seal"} and process < 3 and chance.random() < 0.6:
            # Without rows that wait there would be nothing to stop or die over.
            begin = replace(begin, name=f"capture, {name}")
        # To its end, or to somewhere in the middle; there it stays while others run, or dies.
        then = chance.choices(["end", "stay", "die"], [28, 36, 36])[0]
        if then == "end":
            return [begin, Step("run", process, number=TO_THE_END)]
        point = chance.choice(POINTS[name] if chance.random() < 0.7 else ANYWHERE)
        times = chance.choice([1, 1, 2]) if point in POINTS[name] else chance.randint(1, 15)
        stopped = Step("die" if then == "die" else "run", process, point, times)
        if chance.random() < 0.12:
            return [begin, stopped, Step("power", 0, "edge" if process < 3 else "hub", 0, chance.getrandbits(32))]
        if point.startswith(("hub.", "segment.")) and name == "export central" and chance.random() < 0.5:
            return [begin, stopped, Step("die", 3)]  # the worker that takes its request
        again = name == "backfill in another order"  # of which the rest is the question
        if again or (then == "stay" and process < 3 and chance.random() < 0.4):
            other = (process + 1) % 3
            overtakes = replace(begin, process=other, seed=chance.getrandbits(32))
            return [begin, stopped, overtakes, Step("run", other, number=TO_THE_END)]
        return [begin, stopped]
    if what in {"run", "die"}:
        return [Step(what, process, number=chance.choice([5, 20, TO_THE_END]) if what == "run" else 0)]
    role = "hub" if hub and chance.random() < 0.4 else "edge"
    happens = Step(what, process, role, chance.choice([-3600, 90, 86_400]), chance.getrandbits(32))
    if what == "owner":
        return [replace(happens, number=chance.randrange(len(OWNERS)))]
    if what == "restore":  # and then the store is looked at, by somebody who may die over it
        looks = Step("begin", 0, "fsck", 1, chance.getrandbits(32))
        how = Step("die", 0, chance.choice(POINTS["fsck"]), 1) if chance.random() < 0.3 else None
        return [happens, looks, how or Step("run", 0, number=TO_THE_END)]
    return [happens]


# ── running ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def run(schedule: Schedule, workshop: Workshop, bug: Callable[[], Any] = contextlib.nullcontext) -> Outcome:
    """Run a schedule to its end, perhaps with a bug, and compare every destination with what was acknowledged."""
    profile = schedule.profile
    kind = Kind(schedule.identified, profile.sinks, profile.settles)
    workshop.beginning(kind)  # which is sound, whatever the bug
    with bug(), workshop.world(schedule.seed, kind, partitions=schedule.partitions) as world:
        if "restore" in profile.events:
            world.back_up()
        try:
            for step in schedule.steps:
                _take(world, step)
            world.settle(sinks=profile.sinks)
            wrong = findings(world, sinks=profile.sinks)
        except AssertionError as error:
            wrong = [*world.wrong, f"{type(error).__name__}: {error}"]
        trace = (
            tuple(world.oracle.acknowledged),
            sorted(world.bucket.objects.items()),
            sum(world.stage.passed.values()),
        )
        return Outcome(schedule, wrong, world.counts, world.stage.died, world.stage.passed, trace)


def _take(world: World, step: Step) -> None:
    process = world.processes[step.process]
    match step.what:
        case "begin":
            operation = OPERATIONS[step.name]
            if process.busy and process.actor is not None:
                world.stage.finish(process.actor)
            world.start(process, step.name, lambda store: operation(world, store, step.number), step.seed)
        case "run":
            if process.busy and process.actor is not None:
                world.stage.run(process.actor, step.number, until=step.name)
        case "die":
            _die(world, process, step)
        case "power":
            world.lose_power(step.name, random.Random(step.seed))
        case "late":
            world.deliver_late()
        case "repeat":
            world.repeat_request(random.Random(step.seed))
        case "compact":
            world.compact(step.name)
        case "owner":
            world.own_target(OWNERS[step.number % len(OWNERS)])
        case "disk":
            world.counts["failed syncs"] += 1
            world.disks[step.name or "edge"].failing = True
        case "learn":
            world.learn(random.Random(step.seed))
        case "back up":
            world.back_up()
        case "restore":
            world.restore()
        case "clock":
            world.counts["clock jumps"] += 1
            world.clock.jump(step.number)


def _die(world: World, process: Process, step: Step) -> None:
    actor = process.actor
    if process.busy and actor is not None and step.number:
        world.stage.run(actor, step.number, until=step.name, dies=True)
    world.crash(process)


def shrunk(outcome: Outcome, workshop: Workshop, *, runs_max: int = 400) -> Outcome:
    """The shortest list of steps found that still fails: steps are left out, more and fewer at a time."""
    best = outcome
    size = max(1, len(best.schedule.steps) // 2)
    runs = 0
    while size >= 1 and runs < runs_max:
        start, smaller = 0, False
        while start < len(best.schedule.steps) and runs < runs_max:
            steps = best.schedule.steps
            tried = run(replace(best.schedule, steps=steps[:start] + steps[start + size :]), workshop)
            runs += 1
            if tried.wrong:
                best, smaller = tried, True
            else:
                start += size
        size = size if smaller and size == 1 else size // 2
    return best
