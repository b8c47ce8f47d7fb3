"""Whoever adds a test finds the folder for it in CONTRIBUTING.md."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_folder_of_tests_has_one_line_of_what_belongs_there():
    told = re.findall(r"^\| `(tests/[^`]+)` \| \S.* \|$", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    there = {path.parent.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("*.py")} - {"tests"}
    assert sorted(told) == sorted({*there, "tests/fixtures"})
