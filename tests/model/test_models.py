"""Within their bounds the protocols break no invariant, and every rule that is left out on purpose is missed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from .checker import PROGRESS, Bug, Model, Result, StatesExceeded, Step, explore
from .page import PAGE, explored_line, render
from .registry import BUGS, MODELS

_explored: dict[str, Result] = {}
_found: dict[tuple[str, str], Result] = {}


def explored(model: type[Model]) -> Result:
    if model.name not in _explored:
        _explored[model.name] = explore(model())
    return _explored[model.name]


def found(model: type[Model], bug: str) -> Result:
    if (model.name, bug) not in _found:
        _found[model.name, bug] = explore(model(bug))
    return _found[model.name, bug]


# ── the protocols ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_no_order_of_events_breaks_an_invariant_or_stops_everything(model: type[Model]) -> None:
    result = explored(model)
    print(explored_line(model, result))
    assert result.violation is None, str(result.violation)


@pytest.mark.parametrize(("model", "bug"), BUGS, ids=[f"{model.name}: {bug}" for model, bug in BUGS])
def test_a_rule_that_is_left_out_is_missed(model: type[Model], bug: str) -> None:
    result = found(model, bug)
    print(result.violation)
    assert result.violation is not None
    assert result.violation.invariant in model.bugs[bug].breaks
    assert len(result.violation.trace) == result.depth


@pytest.mark.skipif(not os.environ.get("MODEL_LARGE"), reason="takes hours: MODEL_LARGE=1")
@pytest.mark.timeout(0)
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_larger_bounds_break_nothing_either(model: type[Model]) -> None:
    result = explore(model(**model.large), states_max=30_000_000)
    print(explored_line(model, result))
    assert result.violation is None, str(result.violation)


def test_every_invariant_of_the_documentation_has_a_seeded_bug_that_breaks_it() -> None:
    """I1 to I9, L1, L5 and D1 to D4 and H1 to H2. L2, L3 and L4 are about one writer and one file: scenarios show those."""
    breaks = {result.violation.invariant for key in BUGS if (result := found(*key)).violation is not None}
    wanted = {f"I{number}" for number in range(1, 10)} | {f"D{number}" for number in range(1, 5)}
    assert wanted | {"L1", "L5", "H1", "H2"} <= breaks


def test_the_page_says_what_the_models_give() -> None:
    for model in MODELS:
        explored(model)
    for model, bug in BUGS:
        found(model, bug)
    assert PAGE.read_text(encoding="utf-8") == render(_explored, _found), "run `make model`"


# ── the checker itself ───────────────────────────────────────────────────────────────────────────────────────────────


class Lamp(NamedTuple):
    switches: tuple[bool, bool]
    broken: bool = False


class LampModel(Model):
    """Two people flick two switches; one way to hold the lamp breaks it for good."""

    name = "lamp"
    about = "for the checker's own tests"
    bounds = {"trouble": 0}
    bugs = {"it breaks": Bug("both switches at once", ("L9",)), "it sticks": Bug("nobody can switch off", (PROGRESS,))}

    def initial(self) -> Lamp:
        return Lamp((False, False))

    def steps(self, state: Lamp) -> Iterator[Step]:
        for place in (0, 1):
            if self.bug == "it sticks" and state.switches[place]:
                continue
            switches = tuple(on != (index == place) for index, on in enumerate(state.switches))
            yield f"switch {place}", Lamp(switches, all(switches) and self.bug == "it breaks")

    def broken(self, state: Lamp) -> str | None:
        return "L9 the lamp broke" if state.broken else None

    def done(self, state: Lamp) -> bool:
        return not any(state.switches)


class MirrorModel(LampModel):
    """Which of the switches is on does not matter."""

    def same(self, state: Lamp) -> Lamp:
        return state._replace(switches=tuple(sorted(state.switches)))


def test_the_checker_walks_through_every_state_once() -> None:
    result = explore(LampModel())
    assert (result.states, result.steps, result.depth, result.violation) == (4, 8, 2, None)


def test_states_that_differ_in_names_only_are_one() -> None:
    assert explore(MirrorModel()).states == 3


def test_the_first_violation_has_a_shortest_trace() -> None:
    violation = explore(LampModel("it breaks")).violation
    assert violation is not None
    assert (violation.invariant, violation.trace) == ("L9", ("switch 0", "switch 1"))
    assert "L9 the lamp broke, after 2 steps" in str(violation)


def test_a_state_without_a_way_to_the_end_is_found() -> None:
    violation = explore(LampModel("it sticks")).violation
    assert violation is not None
    assert (violation.invariant, violation.trace) == (PROGRESS, ("switch 0",))


def test_a_model_that_is_larger_than_meant_is_stopped() -> None:
    with pytest.raises(StatesExceeded, match="lamp"):
        explore(LampModel(), states_max=2)


def test_a_bug_that_a_model_does_not_have_is_a_mistake() -> None:
    with pytest.raises(LookupError):
        LampModel("no such bug")
