"""What the simulation did, for the page of evidence: written by a run, never by hand."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from tests import evidence
from tests.evidence import Listing, mutations

from .bugs import BUGS, Bug
from .schedule import PROFILES, Outcome, made, run
from .workshop import Workshop

SEARCH_MAX = 60
"""How many random schedules a bug may take to be found."""
SHORT_MAX = 20
"""With how many chances of power and network the steps that were written for a bug are tried."""
NOT_FOUND = "not found"

FACTS = {
    "crashes": "processes killed",
    "power cuts": "power cuts",
    "failed syncs": "syncs that failed",
    "clock jumps": "jumps of the clock",
    "control databases put back": "control databases put back from an older copy",
    "met: two flushes": "flushes begun while another process was in the middle of one",
    "append: AppendRefused": "… and commits refused because another came first",
    "append: late and landed": "commits that landed after their process had given up on them",
    "append: late and refused": "… and that were refused by then",
    "copy: late and landed": "copies of a rebuild that landed after their process had given up on them",
    "settlement: late and landed": "settlements that landed after their process had given up on them",
    "settlement: late and refused": "… and that were refused by then",
    "met: two exporters of one sink": "deliveries begun while another process was delivering to the same sink",
    "met: two at upkeep": "retentions, purges, compactions and rebuilds begun while another process was at one",
    "met: upkeep beside a flush": "… beside a flush, or a flush beside them",
    "met: upkeep beside a delivery": "… beside a delivery, or a delivery beside them",
    "compactions": "rewrites by other engines",
    "object: there already": "objects that were there already",
    "object: late put": "objects that arrived late",
    "target: late append": "appends to somebody else's table that arrived late",
    "request: late or repeated": "requests to the hub that arrived late or twice",
    "retain: done": "retentions",
    "purge: done": "purges",
    "rebuild: done": "rebuilds",
    "backfill: done": "backfills",
    "backfill in another order: done": "backfills of what comes in another order each time",
    "backfill: refused": "… and refused: cut off before, and without an identity to tell what is stored",
    "adopt: done": "tables adopted",
    "rows that turned out to be one": "rows that turned out to be another one",
    "settle functions that changed their mind": "settle functions that changed their mind",
    "duplicates dropped": "rows captured again and dropped as duplicates",
}
"""What was counted, and what the page calls it."""


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
    after: str
    """After how many random schedules; or that it took the few steps that were written for it."""
    finding: str = ""


def search(bug: Bug, place: Workshop, *, schedules_max: int = SEARCH_MAX) -> Found:
    """Try random schedules with a bug put in, until one fails."""
    for seed in range(schedules_max):
        outcome = run(made(seed, PROFILES[bug.profile]), place, bug.patch)
        finding = bug.found(outcome.wrong)
        if finding is not None:
            return Found(bug, f"{seed + 1:,}", finding)
    for seed in range(SHORT_MAX):
        outcome = run(bug.schedule(seed), place, bug.patch)
        finding = bug.found(outcome.wrong)
        if finding is not None:
            return Found(bug, "steps", finding)
    return Found(bug, NOT_FOUND, NOT_FOUND)


def search_all(place: Workshop) -> list[Found]:
    return [search(bug, place) for bug in BUGS]


def record(tally: Tally, found: list[Found], *, command: str, seconds: float) -> None:
    """Keep what a run did, and write the pages anew."""
    facts: dict[str, int | str] = {
        "schedules": sum(tally.schedules.values()),
        **{f"… of the kind `{name}`": count for name, count in tally.schedules.most_common()},
        "rows lost, doubled, altered, invented, back again or out of order": 0,
        "instants at which another process could have run": tally.pauses,
        "processes that died in the middle of something": sum(tally.died.values()),
        **{label: tally.counts[name] for name, label in FACTS.items()},
        "bugs seeded": len(found),
        "… and found": sum(item.finding != NOT_FOUND for item in found),
    }
    listings = [
        Listing("Where processes died", ("instant", "times"), [(f"`{at}`", n) for at, n in sorted(tally.died.items())]),
        Listing(
            "Bugs put in on purpose",
            ("bug", "breaks", "found after", "as"),
            list(map(_row, found)),
            "Each undoes one protection, and is found in every test run by a few steps that were written for it. The "
            f"third column says how many random schedules it took to find it as well, of {SEARCH_MAX} at most.",
        ),
    ]
    evidence.record("simulation", command=command, seconds=seconds, facts=facts, listings=listings)
    mutations.write()


def not_told() -> list[Bug]:
    """The bugs of which the page does not tell yet how they were found."""
    told = {row[0] for row in _bugs_told(evidence.records()["simulation"]).rows}
    return [bug for bug in BUGS if bug.name not in told]


def add(found: list[Found]) -> None:
    """Tell of bugs that were seeded since the last whole run, without another one."""
    run = evidence.records()["simulation"]
    listing = _bugs_told(run)
    rows = {row[0]: row for row in (*listing.rows, *map(_row, found))}
    ours = replace(listing, rows=[rows[bug.name] for bug in BUGS])
    facts = {**run.facts, "bugs seeded": len(BUGS), "… and found": sum(row[2] != NOT_FOUND for row in ours.rows)}
    listings = [ours if item is listing else item for item in run.listings]
    evidence.record("simulation", command=run.command, seconds=run.seconds, facts=facts, listings=listings)
    mutations.write()


def _bugs_told(run: evidence.Record) -> Listing:
    return next(item for item in run.listings if "bug" in item.columns)


def _row(item: Found) -> tuple[str, ...]:
    return (item.bug.name, f"[{item.bug.invariant}](invariants.md)", item.after, _short(item))


def _short(item: Found) -> str:
    return item.finding if len(item.finding) <= 90 else item.finding[:89] + "…"
