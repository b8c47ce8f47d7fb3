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

from . import places
from .judgement import findings
from .operations import ANYWHERE, OPERATIONS, POINTS
from .workshop import Kind, Workshop
from .world import Process, World

TO_THE_END = 10_000
OWNERS = ("append", "delete", "compact", "forget")
_PINS = ("delivery.pinning", "delivery.pinned", "delivery.planned")
OVERTAKEN: dict[str, tuple[str, ...]] = {
    "flush": ("flush.base_loaded",),
    "export archive": (*_PINS, "bucket.list", "bucket.create"),
    "export central": (*_PINS, "network.sending", "network.answering"),
    "export mirror": (*_PINS, "target.append"),
    "export figures": _PINS,
    "capture amounts": ("segment.announced", "segment.written"),
    "correct a type": ("lake.aggregate", "column.changed"),
    "retain": ("removal.counted", "removal.planned", "lake.remove"),
    "purge": ("removal.counted", "removal.planned", "lake.remove"),
    "settle": ("lake.resettle", "settle.planned", "lake.settling"),
    "compact": ("compact.rewriting", "lake.rewrite", "upkeep.expiring"),
    "rebuild": ("rebuild.copying", "rebuild.caught_up", "rebuild.fenced", "rebuild.equal"),
}
"""What two processes of a store may be at, at once or beside each other; and where each knows what it relies on, and
has not done it yet: there another one can come first."""
LATE_SEEDS = tuple(seed for seed in range(1, 2_000) if places.is_late(random.Random(seed)))
"""Chances with which the first request of an operation arrives a little late: its client has given up by then."""


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
    typed: bool = False


_SPOOL = {"capture": 5, "capture arrow": 1, "seal": 2, "flush": 7, "read": 1}
_BACKFILL = {"backfill": 3, "backfill in another order": 4}
_OWNER = {"owner": 6}
_CHANGES = {"settle": 5, "purge": 4, "retain": 2, "rebuild": 2, "compact": 1}
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
            "meeting",
            {**_SPOOL, "export archive": 4, "export central": 2, **_CHANGES},
            ("archive", "central"),
            {"learn": 14, "unlearn": 4, "race": 60},
            settles=True,
        ),
        Profile("types", {**_SPOOL, "capture amounts": 5, "correct a type": 6}, typed=True),
        Profile(
            "folding",
            {**_SPOOL, "export archive": 4, "export central": 2, "fold": 6, "check": 1, "retain": 2, "purge": 1},
            ("archive", "central"),
            {"back up": 2, "restore": 3},
        ),
        Profile(
            "restored",
            {**_SPOOL, "export archive": 3, "export mirror": 2, "export figures": 2},
            ("archive", "mirror", "figures"),
            {"back up": 8, "restore": 16},
        ),
        Profile(
            "rewound",
            {
                **_SPOOL,
                **{f"export {sink}": 4 for sink in ("archive", "central", "mirror")},
                **{f"rewind {sink}": 5 for sink in ("archive", "central", "mirror")},
                "rest": 2,
                "retain": 1,
            },
            ("archive", "central", "mirror"),
            {"repeat": 2},
            steps=16,
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
SHARES = {  # those of `types` have a test of their own: once a row has a value, no type is corrected any more
    "commit": 24,
    "bucket": 12,
    "hub": 12,
    "table": 8,
    "projection": 5,
    "upkeep": 14,
    "removal": 14,
    "settlement": 5,
    "changes": 5,
    "restored": 5,
    "everything": 3,
    "meeting": 12,
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
            case "learn" | "unlearn":
                return "two rows turn out to be one" if self.what == "learn" else "… and then not to be"
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
    parallel: bool = False
    """Whether two tasks store the objects of a bucket, so that a later chunk may be settled before an earlier one."""

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
    operations = dict(chosen.operations) | ({"capture again": 3} if identified and not chosen.typed else {})
    steps: list[Step] = []
    count = chance.randint(chosen.steps // 2, chosen.steps)
    while len(steps) < count:
        steps += _some(chance, chosen, operations)
    return Schedule(seed, chosen, identified, partitions, tuple(steps), parallel=chance.random() < 0.5)


def _begins(chance: random.Random, process: int, name: str) -> Step:
    size = chance.randint(1, 8) if name == "purge" else chance.randint(1, 3)
    seed = chance.choice(LATE_SEEDS) if chance.random() < 0.25 else chance.getrandbits(32)
    begin = Step("begin", process, name, size, seed)
    if name in {"flush", "seal"} and process < 3 and chance.random() < 0.6:
        # Without rows that wait there would be nothing to stop or die over.
        begin = replace(begin, name=f"capture, {name}")
    return begin


def _race(chance: random.Random, operations: dict[str, int]) -> list[Step]:
    """Two processes at the same thing at once, or at two that must not meet; rows come in meanwhile."""
    known = {name: weight for name, weight in operations.items() if name in OVERTAKEN}
    known["flush"] = max(2, known["flush"] - sum(weight for name, weight in known.items() if name != "flush"))
    one, other, third = chance.sample(range(3), 3)
    name = chance.choices(list(known), list(known.values()))[0]
    any_other = chance.choices(list(known), list(known.values()))[0]
    against = chance.choices([name, "flush", any_other], [50, 25, 25])[0]
    overtaken = chance.random() < 0.5
    against = "flush" if overtaken and name == "flush" else against
    begin = _begins(chance, one, name)
    rows = [Step("begin", third, "capture arrow", 1, chance.getrandbits(32)), Step("run", third, number=TO_THE_END)]
    point = chance.choice((OVERTAKEN if overtaken else POINTS)[name])
    steps = [begin, Step("run", one, point, 1 if overtaken else chance.choice([1, 1, 2]))]
    if "settle" in (name, against):  # which has nothing to do unless something was learnt
        steps = [Step("learn", seed=chance.getrandbits(32)), *steps]
    meets = _begins(chance, other, against)
    steps += [replace(meets, number=begin.number) if against == name else meets]  # two purges want the same row gone
    if overtaken or chance.random() < 0.4:
        steps += [Step("run", other, number=TO_THE_END), *rows]
    else:
        for turn in range(chance.randint(3, 6)):
            steps += [Step("run", one if turn % 2 else other, number=chance.randint(1, 12))]
            steps += rows if turn == 1 and chance.random() < 0.5 else []
    if chance.random() < 0.2:
        steps += [Step("late")]
    ends = chance.choices(["both", "one dies", "power"], [70, 24, 6])[0]
    if ends == "one dies":
        return [*steps, Step("die", chance.choice([one, other]), number=chance.randint(0, 8))]
    if ends == "power":
        return [*steps, Step("power", 0, "edge", 0, chance.getrandbits(32))]
    return [*steps, *(Step("run", process, number=TO_THE_END) for process in (one, other))]


def _some(chance: random.Random, profile: Profile, operations: dict[str, int]) -> list[Step]:
    hub = "central" in profile.sinks
    process = 3 + chance.randrange(2) if hub and chance.random() < 0.15 else chance.randrange(3)
    events = {
        "operation": 40,
        "race": 30,
        "run": 12,
        "die": 4,
        "late": 6,
        "compact": 4,
        "power": 3,
        "clock": 1,
        "disk": 1,
        **profile.events,
    }
    what = chance.choices(list(events), list(events.values()))[0]
    if what == "race":
        return _race(chance, operations)
    if what == "operation":
        known = operations if process < 3 else {"flush": 1}
        name = chance.choices(list(known), list(known.values()))[0]
        begin = _begins(chance, process, name)
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
    return [replace(happens, number=0) if what == "learn" else happens]


# ── running ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def run(schedule: Schedule, workshop: Workshop, bug: Callable[[], Any] = contextlib.nullcontext) -> Outcome:
    """Run a schedule to its end, perhaps with a bug, and compare every destination with what was acknowledged."""
    profile = schedule.profile
    kind = Kind(schedule.identified, profile.sinks, profile.settles, profile.typed)
    workshop.beginning(kind)  # which is sound, whatever the bug
    with bug(), _world(schedule, workshop, kind) as world:
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


def _world(schedule: Schedule, workshop: Workshop, kind: Kind) -> contextlib.AbstractContextManager[World]:
    return workshop.world(schedule.seed, kind, partitions=schedule.partitions, parallel=schedule.parallel)


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
            world.learn(random.Random(step.seed), from_the_end=step.number)
        case "unlearn":
            world.unlearn()
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
