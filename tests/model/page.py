"""The page of the documentation that the models write: what was explored, and every bug that was seeded and found."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from .checker import Model, Result
from .registry import MODELS

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "model.md"

Found = Mapping[tuple[str, str], Result]
"""By model and bug."""

_OPENING = """\
# What the models have tried

<!-- Written by `make model`. A test holds this page against what the models give. -->

Each protocol is also written down as a small state machine: who acts, in which steps, what may go wrong between any two of
them. A checker then takes *every* order of steps, crashes, lost answers and late requests, up to a bound, and looks at every
state that can be reached. Two things must be true: no state breaks an invariant ([which there are](invariants.md)), and from every state everything
can still be brought to its end (*progress*).

The models are written from the protocol, not from the code, and share none of it; their steps have the same names. They
stand in `tests/model/`. Where the code and a model disagree, one of them is wrong: that is what they are for.

## Explored

Every state within the bounds, in an ordinary test run. `make model BOUND=large` goes further, for hours.
"""

_BUGS = """\
## Seeded and found

A model that finds nothing may be blind. So each rule of a protocol is left out once, on purpose, and the checker has to notice.
*Steps* is the length of the shortest way to the damage, *states* how many were looked at until then. `make model SHOW="…"`
prints that way, step by step.
"""

_ASSUMED = """\
## What is assumed

- A transaction of the control database is one step, and so is one load of a table's metadata. That both are so is what I5 and the
  contract tests are for.
- An append to a table is a compare-and-swap on the head that it was prepared on. The contract tests show it of Iceberg.
- Checksums do not collide: a tally stands for exactly the rows it was made of.
- A server that knows keys only, and refused a row, is corrected while nobody is sending to it. It has no way to tell a chunk from its
  halves.
- Records of deliveries that are lost are put back while no exporter is at work and no request to objects is under way.
- The bounds: two or three of everybody, a few rows, and as much trouble as the table above says. What needs more than that to
  go wrong has not been tried here; the simulation tries larger cases, at random.
"""


def render(explored: Mapping[str, Result], found: Found) -> str:
    """The whole page."""
    return "\n".join([_OPENING, _explored_table(explored), _BUGS, _bug_table(found), _ASSUMED])


def _explored_table(explored: Mapping[str, Result]) -> str:
    lines = ["| model | what happens in it | trouble | states | steps | depth |", "|---|---|---:|---:|---:|---:|"]
    for model in MODELS:
        result = explored[model.name]
        counts = f"{model.bounds['trouble']} | {result.states:,} | {result.steps:,} | {result.depth}"
        lines.append(f"| {model.name} | {model.about} | {counts} |")
    states = sum(result.states for result in explored.values())
    steps = sum(result.steps for result in explored.values())
    lines.append(f"| **all** | | | **{states:,}** | **{steps:,}** | |")
    return "\n".join(lines) + "\n"


def _bug_table(found: Found) -> str:
    lines = [
        "| model | the rule left out | what then happens | of | breaks | steps | states |",
        "|---|---|---|---|---|---:|---:|",
    ]
    for model in MODELS:
        for name, bug in model.bugs.items():
            result = found[model.name, name]
            broken = "nothing" if result.violation is None else result.violation.invariant
            told = f"{bug.what} | {', '.join(bug.invariants)} | {broken}"
            lines.append(f"| {model.name} | {name} | {told} | {result.depth} | {result.states:,} |")
    return "\n".join(lines) + "\n"


def explored_line(model: type[Model], result: Result) -> str:
    return f"{model.name}: {result.states:,} states, {result.steps:,} steps, {result.depth} deep"
