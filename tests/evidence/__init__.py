"""What the proofs have done, written down by the runs themselves and shown on one page of the documentation.

A run ends with `record(...)`. Each name holds the newest run that asked for it; ordinary tests record nothing.
`make evidence` runs them all.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

RECORDS = Path(__file__).parent / "records"


@dataclass(frozen=True)
class Listing:
    """A table of the page, below the figures of a run."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str | int]]
    about: str = ""


@dataclass(frozen=True)
class Record:
    """One run."""

    name: str
    date: str
    command: str
    seconds: float
    facts: Mapping[str, int | str]
    """What was tried, how often and what came of it, in the order in which it is to be read."""
    listings: Sequence[Listing] = ()


def record(
    name: str, *, command: str, seconds: float, facts: Mapping[str, int | str], listings: Sequence[Listing] = ()
) -> None:
    """Keep what a run did, and write the page anew."""
    from . import page

    made = Record(name, time.strftime("%Y-%m-%d", time.gmtime()), command, round(seconds, 1), facts, listings)
    text = json.dumps(asdict(made), indent=1, ensure_ascii=False)
    RECORDS.mkdir(exist_ok=True)
    (RECORDS / f"{name}.json").write_text(text + "\n", encoding="utf-8")
    page.PAGE.write_text(page.render(records()), encoding="utf-8")


def records() -> dict[str, Record]:
    """The newest of every name."""
    found = {}
    for path in sorted(RECORDS.glob("*.json")):
        held = json.loads(path.read_text(encoding="utf-8"))
        listings = [Listing(**item) for item in held.pop("listings")]
        found[path.stem] = Record(**held, listings=listings)
    return found
