"""An explicit-state model checker: breadth-first, so that the first violation found has a shortest trace.

A *model* is a state machine. Its states are values (nested tuples), equal when nothing tells them apart. `steps` gives
every step that anybody could take next, `broken` says which invariant a state breaks. Nothing is random and nothing is
left out: within the bounds of a model, every order of events is tried.

Two questions are asked of a model:

- *safety*: does any state that can be reached break an invariant?
- *progress*: can everything still be brought to its end from every state? A state from which it cannot is a wedge:
  no row is lost there, and none will ever arrive either.

A model can be told to have one *bug*: a rule of the protocol that is left out on purpose. The checker has to find it;
else the rule, or the model of it, is for nothing.
"""

from __future__ import annotations

import gc
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

State = Any
Step = tuple[str, State]

PROGRESS = "progress"
"""The invariant that a wedge breaks."""


@dataclass(frozen=True)
class Bug:
    """A rule that is left out, and the invariants of which at least one must then be found broken."""

    what: str
    breaks: tuple[str, ...]
    bounds: Mapping[str, int] = field(default_factory=dict)
    """What the search for it needs beyond the ordinary bounds."""
    rules: tuple[str, ...] = ()
    """The invariants that say the rule, where the damage shows as another one."""

    @property
    def invariants(self) -> tuple[str, ...]:
        """The ids of what was left out."""
        return self.rules or self.breaks


class Model:
    """A protocol as a state machine. Subclasses say how it moves and what must be true."""

    name: ClassVar[str]
    about: ClassVar[str]
    """One sentence for the page: who acts, and what may happen to them."""
    bounds: ClassVar[Mapping[str, int]] = {}
    """How often each kind of trouble may happen in the ordinary run."""
    large: ClassVar[Mapping[str, int]] = {}
    """… and in a long one."""
    sizes: ClassVar[frozenset[str]] = frozenset()
    """Those bounds that say how much there is, not how often something goes wrong."""
    bugs: ClassVar[Mapping[str, Bug]] = {}

    def __init__(self, bug: str | None = None, **bounds: int) -> None:
        if bug is not None and bug not in self.bugs:
            raise LookupError(f"{self.name} has no bug {bug!r}")
        extra = {} if bug is None else self.bugs[bug].bounds
        self.bug = bug
        self.bound = {**self.bounds, **extra, **bounds}
        self.kinds = [kind for kind in self.bound if kind not in self.sizes]
        """The kinds of trouble. The first, `trouble`, bounds all of them together."""

    def initial(self) -> State:
        raise NotImplementedError

    def steps(self, state: State) -> Iterator[Step]:
        raise NotImplementedError

    def broken(self, state: State) -> str | None:
        """`"I2 …"`: the id of the invariant that the state breaks, and how; None if all is well."""
        raise NotImplementedError

    def done(self, state: State) -> bool:
        """Whether everything has come to its end: everything delivered, or refused with a reason that is right."""
        raise NotImplementedError

    def plenty(self) -> tuple[int, ...]:
        """How much trouble is to come, at the beginning: a state keeps it as `left`."""
        return tuple(self.bound[kind] for kind in self.kinds)

    def spend(self, state: State, kind: str) -> State | None:
        """The state with one trouble fewer to come; None if there were enough of them."""
        place = self.kinds.index(kind)
        if not state.left[0] or not state.left[place]:
            return None
        total = state.left[0] - 1
        left = tuple(min(count - (index == place), total) for index, count in enumerate(state.left))
        return state._replace(left=(total, *left[1:]))

    def same(self, state: State) -> State:
        """The state that stands for all that differ only in names (two processes that could change places)."""
        return state


@dataclass(frozen=True)
class Violation:
    """A broken invariant, and the shortest way there."""

    invariant: str
    words: str
    trace: tuple[str, ...]
    state: State

    def __str__(self) -> str:
        lines = [f"{number:4} {label}" for number, label in enumerate(self.trace, 1)]
        return "\n".join([f"{self.words}, after {len(self.trace)} steps:", *lines, f"     {self.state}"])


@dataclass(frozen=True)
class Result:
    """What the search has seen."""

    states: int
    steps: int
    depth: int
    violation: Violation | None = None


class StatesExceeded(Exception):
    """The model is larger than it was meant to be."""


def explore(model: Model, *, states_max: int = 5_000_000, progress: bool = True) -> Result:
    """Walk through every state of a model; end at the first one that breaks an invariant."""
    collecting = gc.isenabled()
    gc.disable()  # states are tuples and hold no circles: looking for some would take a third of the time
    try:
        return _Search(model, states_max=states_max, progress=progress).run()
    finally:
        if collecting:
            gc.enable()


class _Search:
    def __init__(self, model: Model, *, states_max: int, progress: bool) -> None:
        self.model = model
        self.states_max = states_max
        self.progress = progress
        self.number: dict[State, int] = {}
        self.parent = array("l")
        self.label: list[str] = []
        self.depth = array("l")
        self.steps_from = array("l")
        self.steps_to = array("l")
        self.steps = 0

    def run(self) -> Result:
        model = self.model
        first = model.same(model.initial())
        self._add(first, parent=-1, label="")
        level = [first]
        if (words := model.broken(first)) is not None:
            return self._found(words, 0, first)
        while level:
            following: list[State] = []
            for state in level:
                here = self.number[state]
                for label, reached in model.steps(state):
                    new = model.same(reached)
                    self.steps += 1
                    known = self.number.get(new)
                    if known is None:
                        known = self._add(new, parent=here, label=label)
                        if (words := model.broken(new)) is not None:
                            return self._found(words, known, new)
                        following.append(new)
                    if self.progress:
                        self.steps_from.append(here)
                        self.steps_to.append(known)
            level = following
        wedged = self._first_wedge() if self.progress else None
        if wedged is not None:
            state = next(state for state, number in self.number.items() if number == wedged)
            return self._found(f"{PROGRESS}: nothing that can happen leads to the end", wedged, state)
        return Result(len(self.number), self.steps, self.depth[-1])

    def _add(self, state: State, *, parent: int, label: str) -> int:
        number = len(self.number)
        if number >= self.states_max:
            raise StatesExceeded(f"{self.model.name}: more than {self.states_max:,} states")
        self.number[state] = number
        self.parent.append(parent)
        self.label.append(label)
        self.depth.append(0 if parent < 0 else self.depth[parent] + 1)
        return number

    def _found(self, words: str, number: int, state: State) -> Result:
        trace: list[str] = []
        at = number
        while self.parent[at] >= 0:
            trace.append(self.label[at])
            at = self.parent[at]
        invariant = words.split()[0].rstrip(":,")
        violation = Violation(invariant, words, tuple(reversed(trace)), state)
        return Result(len(self.number), self.steps, len(trace), violation)

    def _first_wedge(self) -> int | None:
        """The state nearest to the beginning from which no finished state can be reached."""
        backward: list[list[int]] = [[] for _ in self.number]
        for origin, reached in zip(self.steps_from, self.steps_to, strict=True):
            backward[reached].append(origin)
        alive = bytearray(len(self.number))
        waiting = [number for state, number in self.number.items() if self.model.done(state)]
        for number in waiting:
            alive[number] = 1
        while waiting:
            for origin in backward[waiting.pop()]:
                if not alive[origin]:
                    alive[origin] = 1
                    waiting.append(origin)
        wedged = alive.find(0)
        return None if wedged < 0 else wedged


# ── values ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def put(values: tuple[Any, ...], index: int, value: Any) -> tuple[Any, ...]:
    """A tuple with one place changed."""
    return (*values[:index], value, *values[index + 1 :])


def without(values: tuple[Any, ...], value: Any) -> tuple[Any, ...]:
    """A tuple with one occurrence of a value taken out."""
    index = values.index(value)
    return (*values[:index], *values[index + 1 :])


def with_one(values: Iterable[Any], value: Any) -> tuple[Any, ...]:
    """A bag with one more value in it: kept in order, so that equal bags are equal."""
    return tuple(sorted((*values, value)))
