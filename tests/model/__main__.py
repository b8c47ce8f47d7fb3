"""Runs the models and writes their page.

python -m tests.model                      explore everything, find every seeded bug, write the page
python -m tests.model --large              explore further, and write nothing
python -m tests.model --only hub           one model
python -m tests.model --show "cached snapshot"    print the shortest way to the damage
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping

from tests import evidence

from .checker import Model, Result, explore
from .page import PAGE, Found, explored_line, render
from .registry import BUGS, MODELS

STATES_MAX_LARGE = 30_000_000


def main() -> int:
    begun = time.monotonic()
    options = _options()
    if options.show is not None:
        return _show(options.show)
    chosen = [model for model in MODELS if options.only in (None, model.name)]
    if not chosen:
        print(f"There is no model {options.only!r}. There are: {', '.join(model.name for model in MODELS)}.")
        return 2
    explored = {model.name: _explore(model, large=options.large) for model in chosen}
    broken = [result for result in explored.values() if result.violation is not None]
    found = {(model.name, bug): explore(model(bug)) for model, bug in BUGS if model in chosen and not options.large}
    missed = [key for key, result in found.items() if result.violation is None]
    for model, bug in missed:
        print(f"{model}: not found: {bug}")
    if not options.large and options.only is None and not broken:
        PAGE.write_text(render(explored, found), encoding="utf-8")
        _record(explored, found, seconds=time.monotonic() - begun)
        print(f"{len(found)} bugs seeded, {len(found) - len(missed)} found; {PAGE} is written.")
    return 1 if broken or missed else 0


def _record(explored: Mapping[str, Result], found: Found, *, seconds: float) -> None:
    evidence.record(
        "model",
        command="make model",
        seconds=seconds,
        facts={
            "protocols": len(explored),
            "states explored": sum(result.states for result in explored.values()),
            "steps between them": sum(result.steps for result in explored.values()),
            "invariants broken": 0,
            "bugs seeded": len(found),
            "… and found": sum(result.violation is not None for result in found.values()),
        },
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.model")
    parser.add_argument("--large", action="store_true", help="explore with larger bounds; write nothing")
    parser.add_argument("--only", help="one model, by its name")
    parser.add_argument("--show", help="a seeded bug, whose trace is printed")
    return parser.parse_args()


def _explore(model: type[Model], *, large: bool) -> Result:
    begun = time.monotonic()
    result = explore(model(**model.large), states_max=STATES_MAX_LARGE) if large else explore(model())
    print(f"{explored_line(model, result)}, {time.monotonic() - begun:.1f} s", flush=True)
    if result.violation is not None:
        print(result.violation)
    return result


def _show(bug: str) -> int:
    found = [(model, name) for model, name in BUGS if name == bug]
    for model, name in found:
        print(f"{model.name}: {model.bugs[name].what}.")
        print(explore(model(name)).violation)
    return 0 if found else 2


if __name__ == "__main__":
    sys.exit(main())
