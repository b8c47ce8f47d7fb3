"""The invariants of the event log: each stands in the documentation, in the code that keeps it and in a test."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]


def documented():
    text = (ROOT / "docs" / "explanation" / "event-log.md").read_text()
    return dict(re.findall(r"^\| (E\d+) \|.*\| `(\w+)` \|$", text, re.MULTILINE))


def test_the_documented_invariants_are_those_that_the_code_cites():
    code = "".join(file.read_text() for file in (ROOT / "src" / "floodmark" / "eventlog").glob("*.py"))
    assert set(re.findall(r"\bE\d+\b", code)) == set(documented())


def test_every_invariant_names_a_test_that_exists():
    tests = "".join(file.read_text() for file in Path(__file__).parent.glob("test_*.py"))
    for invariant, test in documented().items():
        assert f"def {test}(" in tests, f"{invariant} is shown by {test}, which is not there"
