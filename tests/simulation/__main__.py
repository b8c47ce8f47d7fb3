"""Run schedules: `python -m tests.simulation [--schedules N | --minutes M] [--first SEED] [--seed SEED] [--page]`."""

from __future__ import annotations

import argparse
import sys
import time

from . import evidence
from .schedule import made, run, shrunk
from .workshop import Workshop, workshop


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--schedules", type=int, default=2_000, help="how many")
    parser.add_argument("--minutes", type=float, help="for how long, instead")
    parser.add_argument("--first", type=int, help="the first seed; with --minutes, others than ever before")
    parser.add_argument("--seed", type=int, help="one schedule, shown step by step")
    parser.add_argument("--page", action="store_true", help="look for every bug too, and write the page of evidence")
    parser.add_argument(
        "--new-bugs", action="store_true", help="look for the bugs that the page does not have, and add them"
    )
    asked = parser.parse_args()
    with workshop() as place:
        if asked.new_bugs:
            evidence.add([evidence.search(bug, place) for bug in evidence.not_told()])
            return 0
        if asked.seed is not None:
            outcome = run(made(asked.seed), place)
            print(outcome)
            return 1 if outcome.wrong else 0
        first = asked.first
        if first is None:
            first = 0 if asked.minutes is None else int(time.time()) * 1000
        tally = many(place, first, asked.schedules, asked.minutes)
        if tally is None:
            return 1
        print(f"{sum(tally.schedules.values()):,} schedules, nothing wrong, {tally.seconds:,.0f} s")
        if asked.page:
            found = evidence.search_all(place)
            command = f"python -m tests.simulation --schedules {sum(tally.schedules.values())} --page"
            evidence.record(tally, found, command=command, seconds=tally.seconds)
            missed = [item.bug.name for item in found if item.finding == evidence.NOT_FOUND]
            print("\n".join(f"not found: {name}" for name in missed) or "every bug was found")
            return 1 if missed else 0
    return 0


def many(place: Workshop, first: int, schedules: int, minutes: float | None) -> evidence.Tally | None:
    """Run one after another; the first that fails is shrunk and shown, and None comes back."""
    tally, began = evidence.Tally(), time.monotonic()
    seed = first
    while (time.monotonic() - began < minutes * 60) if minutes is not None else (seed < first + schedules):
        outcome = run(made(seed), place)
        if outcome.wrong:
            print(f"{outcome}\n\nShrunk:\n{shrunk(outcome, place)}\n\nAgain: python -m tests.simulation --seed {seed}")
            return None
        tally.add(outcome)
        seed += 1
        if sys.stderr.isatty():
            print(f"\r{seed - first:,} schedules", end="", file=sys.stderr)
    tally.seconds = time.monotonic() - began
    return tally


if __name__ == "__main__":
    sys.exit(main())
