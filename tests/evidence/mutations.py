"""The page that goes through the invariants one by one: who cites each, and which bug was seeded to break it.

A bug is seeded twice: as a rule left out of a model, and as a protection undone in the product's own code under
simulation. Where one of the two cannot know an invariant, the page says why.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from . import records

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "explanation" / "mutations.md"
ID = re.compile(r"\b[BDHILU][1-9][0-9]*\b")

NOT_IN_A_MODEL: dict[str, str] = {
    "L3": "one writer and one file: there is nothing to interleave",
    "L4": "one writer and one file: there is nothing to interleave",
    "U1": "a model's rewrite has no rows that it could change",
    "U5": "models have no clock",
    "U6": "a rule about sizes, not about order",
    "H6": "a rule about sizes, not about order",
    "U38": "models have one control database",
    "U43": "models have one lake",
    "U44": "models have one place for segments",
    "U37": "the models of a restore begin with an older copy of the records, however it was made",
    "U35": "a model's records are few: there is nothing to fold",
    "U36": "a model's records are few: there is nothing to fold",
    "U24": "in the model of a rebuild, a retention takes its rows from both tables at once",
    "I10": "models have one dataset, or several that are alike",
    "I11": "models have no values: a read brings all rows or none",
    "I12": "the readers of models read what is committed",
    "U33": "models have no damage that somebody could decide about",
    "U42": "models have no types of columns",
    "U30": "about a look, not about a row",
    "U31": "about a look, not about a row",
    "U32": "models have no repair: they recover by themselves",
    "B6": "models have no values that a function could change",
    "B9": "models have no values that a function could change",
    "B10": "a model's rows have nothing but their identity",
}
NOT_IN_THE_SIMULATION: dict[str, str] = {
    "U38": "its stores have one control database each, in one place",
    "U43": "its stores have one lake each",
    "U44": "its stores have one place for segments each",
    "U37": "its restores begin with an older copy of the records, however it was made",
    "D8": "the simulated network has one hub at one address",
    "H3": "the simulated hub refuses no row, so none is given up and replayed",
    "H4": "the simulation has one hub, which forwards to nobody",
    "H5": "the simulation has one hub, which forwards to nobody",
    "H6": "the simulated hub is called without HTTP, one chunk at a time",
    "U19": "all sinks of a schedule are there before its first step",
    "I10": "its stores have one dataset",
    "I11": "the lake in memory reads a file whole or not at all",
    "U33": "its disk loses what was not synced, and damages nothing that was",
}

OPENING = """\
# Every invariant, and the bug that breaks it

<!-- Written by `make evidence`. A test fails when an invariant is not cited by code, by a test and by a seeded bug. -->

A check that finds nothing may be blind. So each of the [invariants](invariants.md) is broken on purpose, twice: as a
rule left out of [a model](model.md), and as a protection undone in the product's own code under
[simulation](evidence.md). In every test run each of these bugs has to be found. Behind it: how many steps the shortest
way to the damage has; and after how many random schedules it showed, of {schedules} at most, or `steps`, where it took
the few steps that were written for it.
"""


@dataclass(frozen=True)
class Cited:
    """Where an invariant stands."""

    id: str
    title: str
    code: tuple[str, ...]
    tests: tuple[str, ...]
    model: tuple[str, ...]
    """The seeded bugs, by name."""
    simulation: tuple[str, ...]

    @property
    def missing(self) -> list[str]:
        """What it needs and does not have."""
        excused = self.id in NOT_IN_A_MODEL and self.id in NOT_IN_THE_SIMULATION  # each with its reason
        seeded = self.model or self.simulation or excused
        found = {"code": self.code, "a test": self.tests, "the model or the simulation": seeded}
        lacks = [what for what, where in found.items() if not where]
        if not self.model and self.id not in NOT_IN_A_MODEL:
            lacks.append("a model, or the reason why it has none")
        if not self.simulation and self.id not in NOT_IN_THE_SIMULATION:
            lacks.append("the simulation, or the reason why it is not there")
        return lacks


def everything() -> list[Cited]:
    """All invariants, in the order of their page."""
    from tests.model.registry import BUGS as RULES
    from tests.simulation.bugs import BUGS as SEEDED

    page = (ROOT / "docs" / "explanation" / "invariants.md").read_text(encoding="utf-8")
    code = _citing((ROOT / "src" / "floodmark").rglob("*.py"), leave_out=("eventlog",))
    tests = _citing((ROOT / "tests").rglob("*.py"), leave_out=("docs", "evidence", "model", "simulation"))
    found = []
    for id, title in re.findall(r"^### ([BDHILU][0-9]+) (.*)$", page, re.MULTILINE):
        rules = tuple(name for model, name in RULES if id in model.bugs[name].invariants)
        seeded = tuple(bug.name for bug in SEEDED if bug.invariant == id)
        found.append(Cited(id, title, tuple(code.get(id, ())), tuple(tests.get(id, ())), rules, seeded))
    return found


def write() -> None:
    """Write the page."""
    PAGE.write_text(render(everything()), encoding="utf-8")


def render(cited: Iterable[Cited]) -> str:
    from tests.simulation.evidence import SEARCH_MAX

    steps, schedules = _steps_of_models(), _schedules()
    lines = [
        OPENING.format(schedules=SEARCH_MAX),
        "| | invariant | code | tests | left out of a model | undone in the simulation |",
        "|---|---|---|---|---|---|",
    ]
    for item in cited:
        model = _bugs(item.model, steps, otherwise=NOT_IN_A_MODEL.get(item.id, ""))
        simulation = _bugs(item.simulation, schedules, otherwise=NOT_IN_THE_SIMULATION.get(item.id, ""))
        where = f"{_paths(item.code)} | {_paths(item.tests)}"
        lines.append(f"| {item.id} | {item.title} | {where} | {model} | {simulation} |")
    return "\n".join(lines) + "\n"


def _bugs(names: tuple[str, ...], found: Mapping[str, str], *, otherwise: str) -> str:
    told = "; ".join(f"{name} ({found[name]})" if name in found else name for name in names)
    return told or f"— {otherwise}"


def _paths(paths: tuple[str, ...]) -> str:
    shown = [f"`{path}`" for path in paths[:2]]
    return ", ".join(shown) + (f" and {len(paths) - 2} more" if len(paths) > 2 else "")


def _citing(paths: Iterable[Path], *, leave_out: tuple[str, ...]) -> dict[str, list[str]]:
    """For each id the files that cite it."""
    found: dict[str, list[str]] = {}
    for path in sorted(paths):
        name = path.relative_to(ROOT)
        if not set(leave_out) & set(name.parts):
            for id in sorted(set(ID.findall(path.read_text(encoding="utf-8")))):
                found.setdefault(id, []).append(str(name).removeprefix("src/floodmark/"))
    return found


def _steps_of_models() -> dict[str, str]:
    """For each rule left out the length of the way to the damage, as the models' own page has it."""
    page = (ROOT / "docs" / "explanation" / "model.md").read_text(encoding="utf-8")
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.count(" | ") == 6]
    return {row[1]: f"{row[5]} steps" for row in rows if row[5].isdigit()}


def _schedules() -> dict[str, str]:
    run = records().get("simulation")
    bugs = next((item.rows for item in run.listings if "bug" in item.columns), ()) if run is not None else ()
    return {str(row[0]): str(row[2]) for row in bugs}
