"""The page that tells what the simulation did: written by a run, never by hand."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from .bugs import BUGS, Bug
from .schedule import PROFILES, Outcome, made, run
from .world import Workshop

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "evidence.md"
SEARCH_MAX = 200
"""How many random schedules a bug may take to be found."""
SHORT_MAX = 20
"""With how many chances of power and network the steps that were written for a bug are tried."""

INTRODUCTION = """
The simulation runs the product's own code: capture, sealing, flush, reading, delivery to an object store and to a hub,
retention, compaction, rebuild and backfill, by several processes on two stores. A seed says who runs when, who dies
where, when the power goes and what the network does. An oracle that shares no code with the product writes down every
acknowledged row, and compares every destination with that in the end. A failing seed runs the same way again, and is
shrunk to the steps that matter.
"""


@dataclass
class Tally:
    """What a run of many schedules did."""

    schedules: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    died: Counter[str] = field(default_factory=Counter)
    pauses: int = 0
    seconds: float = 0.0

    def add(self, outcome: Outcome) -> None:
        self.schedules[outcome.schedule.profile.name] += 1
        self.counts += outcome.counts
        self.died += outcome.died
        self.pauses += sum(outcome.passed.values())


@dataclass(frozen=True)
class Found:
    """How a bug that was put in came out."""

    bug: Bug
    schedules: int | None
    """How many random schedules it took; None: only the few steps that were written for it showed it."""
    finding: str = ""


def search(bug: Bug, place: Workshop, *, schedules_max: int = SEARCH_MAX) -> Found:
    """Try random schedules with a bug put in, until one fails."""
    for seed in range(schedules_max):
        with bug.patch():
            outcome = run(made(seed, PROFILES[bug.profile]), place)
        if outcome.wrong:
            return Found(bug, seed + 1, str(outcome.wrong[0]))
    for seed in range(SHORT_MAX):
        with bug.patch():
            outcome = run(bug.schedule(seed), place)
        if outcome.wrong:
            return Found(bug, None, str(outcome.wrong[0]))
    return Found(bug, None, "not found")


def write(tally: Tally, found: list[Found]) -> None:
    """Write the page."""
    PAGE.write_text("\n".join(_lines(tally, found)) + "\n", encoding="utf-8")


def _lines(tally: Tally, found: list[Found]) -> list[str]:
    total = sum(tally.schedules.values())
    counts = tally.counts
    lost = counts["append: lose_answer"] + counts["append: drop"]
    unanswered = counts["request: lost"] + counts["request: answer lost"]
    return [
        "# Evidence",
        "",
        f"Written by `python -m tests.simulation --page` on {time.strftime('%Y-%m-%d', time.gmtime())}.",
        "",
        *INTRODUCTION.strip().splitlines(),
        "",
        "## What was tried",
        "",
        "| | |",
        "|---|---|",
        f"| schedules | {total:,} |",
        *(f"| … of the kind `{name}` | {count:,} |" for name, count in tally.schedules.most_common()),
        "| rows lost, doubled, altered, out of order | 0 |",
        f"| instants at which another process could have run | {tally.pauses:,} |",
        f"| processes that died in the middle of something | {sum(tally.died.values()):,} |",
        f"| power cuts | {counts['power cuts']:,} |",
        f"| commits whose answer was lost, or that were lost | {lost:,} |",
        f"| commits that arrived after their process had given up | {counts['append: hold']:,} |",
        f"| commits refused because another came first | {counts['append: AppendRefused']:,} |",
        f"| compactions beside everything else | {counts['compactions']:,} |",
        f"| objects written without an answer, or late | {counts['object: no answer']:,} |",
        f"| objects that were there already | {counts['object: there already']:,} |",
        f"| requests to the hub that were lost, or their answers | {unanswered:,} |",
        f"| requests that arrived late or twice | {counts['request: late or repeated']:,} |",
        f"| rows captured again and dropped as duplicates | {counts['duplicates dropped']:,} |",
        f"| seconds | {tally.seconds:,.0f} |",
        "",
        "## Where processes died",
        "",
        "| instant | times |",
        "|---|---|",
        *(f"| `{name}` | {count:,} |" for name, count in sorted(tally.died.items())),
        "",
        "## Bugs put in on purpose",
        "",
        "Each undoes one protection, and is found in every test run by a few steps that were written for it. The third",
        f"column says how many random schedules it took to find it as well, of {SEARCH_MAX} at most.",
        "",
        "| bug | breaks | found after | as |",
        "|---|---|---|---|",
        *(_row(item) for item in found),
    ]


def _row(item: Found) -> str:
    after = "—" if item.schedules is None else f"{item.schedules:,}"
    finding = item.finding.replace("|", "/")
    shown = finding if len(finding) <= 90 else finding[:89] + "…"
    return f"| {item.bug.name} | [{item.bug.invariant}](invariants.md) | {after} | {shown} |"


def search_all(place: Workshop) -> list[Found]:
    return [search(bug, place) for bug in BUGS]
