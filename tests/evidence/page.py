"""The page: what was tried to lose a row or to send it twice, and what came of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from . import Listing, Record

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "evidence.md"
PROMISES = Path(__file__).parent / "promises.md"

OPENING = """\
# Evidence

<!-- Written by the runs themselves (`make evidence`). A test holds this page against what they recorded. -->

That every row arrives exactly once is a claim until something tries hard to break it. Four things do, in every test
run and, for longer, in `make soak`. Each looks at the same [promises](invariants.md) from another side.
"""

CHAPTERS = {
    "model": """\
## All interleavings

Every protocol as a small state machine, in every order of steps, crashes, lost answers and late requests up to a bound.
Details, and each seeded bug with the way to its damage: [what the models have tried](model.md).
""",
    "simulation": """\
## Simulation

The product's own code, several processes on two stores, under one seeded scheduler: who runs when, who dies where, when
the power goes, what the disk forgets then, and what the network loses, delays and repeats. An oracle that shares no
code with the product writes down every acknowledged row, and compares every destination with that in the end. A
failing seed runs the same way again, and is shrunk to the steps that matter.
""",
    "kills": """\
## Real kills

Real processes, real Spark and real servers, killed at random and started again, before the same oracle.
`floodmark torture` does it to [your own destinations](../how-to/torture.md).
""",
    "fuzz": """\
## Bad input

Valid inputs with bytes, fields, types and lengths changed, and plain noise, at everything that takes input. Right is a
clear error, or a quarantined row with its reason, and nothing stored.
""",
}


def render(records: Mapping[str, Record]) -> str:
    """The whole page."""
    chapters = [_chapter(about, records[name]) for name, about in CHAPTERS.items() if name in records]
    return "\n".join([OPENING, *chapters, PROMISES.read_text(encoding="utf-8")])


def _chapter(about: str, run: Record) -> str:
    facts = [(label, _shown(value)) for label, value in run.facts.items()]
    table = _table(("", ""), [*facts, ("seconds", f"{run.seconds:,.0f}")])
    listings = [_listing(item) for item in run.listings]
    return "\n".join([about, f"By `{run.command}` on {run.date}:\n", table, *listings])


def _listing(listing: Listing) -> str:
    about = [f"{listing.about}\n"] if listing.about else []
    rows = [[_shown(value) for value in row] for row in listing.rows]
    return "\n".join([f"### {listing.title}\n", *about, _table(listing.columns, rows)])


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + "\n"


def _shown(value: str | int) -> str:
    return f"{value:,}" if isinstance(value, int) else value.replace("|", "/")
