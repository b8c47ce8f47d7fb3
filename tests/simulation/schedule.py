"""A seed becomes a list of steps, a list of steps is run, and one that fails is shrunk.

The steps say everything: who begins what, who runs for how many pauses, who dies, what arrives late. So a schedule runs
the same way every time, and a shorter list of steps is a schedule too.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from floodmark.store import Store

from .world import DATASET, Process, Workshop, World

TO_THE_END = 10_000

_SEGMENT = ("segment.announced", "segment.written", "segment.registered")
_SEAL = (*_SEGMENT, "seal.landing_finished", "seal.landing_removed")
_DELIVERY = ("delivery.pinned", "delivery.planned", "delivery.shipped", "delivery.acknowledged")
_ANYWHERE = ("control.transact", "control.transacted", "control.read", "lake.load")
POINTS: dict[str, tuple[str, ...]] = {
    "capture": ("capture.written", "capture.synced", "capture.answered"),
    "capture again": ("capture.written", "capture.synced", "capture.answered"),
    "capture arrow": (*_SEGMENT, "capture.answered"),
    "seal": _SEAL,
    "flush": (
        *(
            "flush.base_loaded",
            "flush.reserved",
            "flush.appending",
            "lake.append",
            "lake.committing",
            "flush.appended",
            "flush.decided",
        ),
        *("lake.sync", "flush.synced", "flush.recorded", "flush.segment_removed", "flush.released"),
        *_SEAL,
    ),
    "read": ("lake.scan", "read.stored"),
    "export archive": (*_DELIVERY, "bucket.list", "bucket.create", "bucket.created", "lake.scan"),
    "export central": (
        *(*_DELIVERY, "network.sending", "network.answering", "lake.scan"),
        *("hub.stored", "hub.accepted", "segment.announced", "segment.written", "segment.registered"),
    ),
    "retain": (
        *("removal.planned", "removal.max_seq_raised", "removal.deleted", "removal.recorded", "removal.expired"),
        "lake.remove",
    ),
    "compact": (
        "compact.rewriting",
        "compact.rewritten",
        "compact.expired",
        "lake.rewrite",
        "lake.expire",
        "lake.sync",
    ),
    "backfill": (
        "backfill.sealed",
        "backfill.read",
        "backfill.stored",
        "backfill.loaded",
        "backfill.answered",
        *_SEGMENT,
    ),
    "rebuild": (
        *("rebuild.taken_over", "rebuild.named", "rebuild.copying", "rebuild.copied", "rebuild.caught_up"),
        *("rebuild.fenced", "rebuild.renamed", "rebuild.settled", "rebuild.equal", "rebuild.switched", "lake.copy"),
    ),
}
"""Where each operation is stopped or killed: its own instants, each as often as any other."""

Operation = Callable[[World, Store, int], Any]

OPERATIONS: dict[str, Operation] = {
    "capture": lambda world, store, size: world.capture(store, size),
    "capture arrow": lambda world, store, size: world.capture(store, size, arrow=True),
    "capture again": lambda world, store, size: world.capture(store, size, again=True),
    "capture, seal": lambda world, store, size: (world.capture(store, size), store.seal(DATASET))[1],
    "capture, flush": lambda world, store, size: (world.capture(store, size), store.flush(DATASET))[1],
    "seal": lambda _world, store, _size: store.seal(DATASET),
    "flush": lambda _world, store, _size: store.flush(DATASET),
    "read": lambda world, store, _size: world.read(store),
    "export archive": lambda _world, store, _size: store.export("archive"),
    "export central": lambda _world, store, _size: store.export("central"),
    "retain": lambda world, store, size: world.retain(store, size),
    "backfill": lambda world, store, _size: world.backfill(store),
    "compact": lambda _world, store, _size: store.compact(DATASET),
    "rebuild": lambda world, store, _size: world.rebuild(store),
}


@dataclass(frozen=True, slots=True)
class Profile:
    """A family of schedules: what is done in them, and what may happen to them."""

    name: str
    operations: dict[str, int]
    sinks: tuple[str, ...] = ()
    power: bool = True
    steps: int = 12


_SPOOL = {"capture": 5, "capture arrow": 1, "seal": 2, "flush": 7, "read": 1}
PROFILES = {
    profile.name: profile
    for profile in (
        Profile("commit", _SPOOL),
        Profile("bucket", {**_SPOOL, "export archive": 5}, ("archive",)),
        Profile("hub", {**_SPOOL, "export central": 5}, ("central",)),
        Profile("upkeep", {**_SPOOL, "backfill": 4, "rebuild": 4, "compact": 5}),
        Profile(
            "everything",
            {
                **_SPOOL,
                "export archive": 3,
                "export central": 3,
                "retain": 2,
                "backfill": 1,
                "rebuild": 1,
                "compact": 1,
            },
            ("archive", "central"),
            steps=16,
        ),
    )
}
SHARES = {"commit": 48, "bucket": 18, "hub": 14, "upkeep": 14, "everything": 6}


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that happens."""

    what: str
    """`begin`, `run`, `die` (run, then die), `power`, `late`, `repeat`, `compact` or `clock`."""
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
    what = chance.choices(
        ["operation", "run", "die", "late", "repeat", "compact", "power", "clock"],
        [60, 18, 4, 6, 3 if hub else 0, 4, 3 if profile.power else 0, 1],
    )[0]
    if what == "operation":
        known = operations if process < 3 else {"flush": 1}
        name = chance.choices(list(known), list(known.values()))[0]
        begin = Step("begin", process, name, chance.randint(1, 3), chance.getrandbits(32))
        if name in {"flush", "seal"} and process < 3 and chance.random() < 0.6:
            # Without rows that wait there would be nothing to stop or die over.
            begin = replace(begin, name=f"capture, {name}")
        # To its end, or to somewhere in the middle; there it stays while others run, or dies.
        then = chance.choices(["end", "stay", "die"], [28, 36, 36])[0]
        if then == "end":
            return [begin, Step("run", process, number=TO_THE_END)]
        point = chance.choice(POINTS[name] if chance.random() < 0.7 else _ANYWHERE)
        times = chance.choice([1, 1, 2]) if point in POINTS[name] else chance.randint(1, 15)
        stopped = Step("die" if then == "die" else "run", process, point, times)
        if profile.power and chance.random() < 0.12:
            return [begin, stopped, Step("power", 0, "edge" if process < 3 else "hub", 0, chance.getrandbits(32))]
        if point.startswith(("hub.", "segment.")) and name == "export central" and chance.random() < 0.5:
            return [begin, stopped, Step("die", 3)]  # the worker that takes its request
        if then == "stay" and process < 3 and chance.random() < 0.4:
            other = (process + 1) % 3
            overtakes = replace(begin, process=other, seed=chance.getrandbits(32))
            return [begin, stopped, overtakes, Step("run", other, number=TO_THE_END)]
        return [begin, stopped]
    if what in {"run", "die"}:
        return [Step(what, process, number=chance.choice([5, 20, TO_THE_END]) if what == "run" else 0)]
    role = "hub" if hub and chance.random() < 0.4 else "edge"
    return [Step(what, process, role, chance.choice([-3600, 90, 86_400]), chance.getrandbits(32))]


# ── running ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def run(schedule: Schedule, workshop: Workshop) -> Outcome:
    """Run a schedule to its end, and compare every destination with what was acknowledged."""
    kind = {"identified": schedule.identified, "partitions": schedule.partitions}
    with workshop.world(schedule.seed, **kind) as world:
        try:
            for step in schedule.steps:
                _take(world, step)
            world.settle(sinks=schedule.profile.sinks)
            wrong = world.findings(sinks=schedule.profile.sinks)
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
        case "clock":
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
