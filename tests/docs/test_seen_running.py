"""What the page of recorded output shows is still what the demo tells and claims."""

from __future__ import annotations

import re
from pathlib import Path

from floodmark.cli.demo import story

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "seen-running.md").read_text(encoding="utf-8")


def column(title: str) -> list[str]:
    """The first column of a recorded table."""
    lines = PAGE.split(f"\n{title}\n")[1].split("\n\n")[0].splitlines()[1:]
    return [re.split(r"  +", line)[0] for line in lines]


def test_every_step_and_every_check_of_the_record_is_one_of_the_demo() -> None:
    source = " ".join(Path(story.__file__).read_text(encoding="utf-8").split())
    recorded = [*column("What happened"), *column("Checks")]
    assert len(recorded) > 30
    known = [text for text in recorded if re.split(r"[0-9]|store|files$|another", text)[0].strip() in source]
    assert [text for text in recorded if text not in known] == []


def test_the_recorded_demo_passed_all_its_checks() -> None:
    assert "All checks passed." in PAGE
    assert "  NO\n" not in PAGE
