"""The page of evidence says what the runs recorded, and nothing else."""

from __future__ import annotations

from . import records
from .page import CHAPTERS, PAGE, render


def test_the_page_is_what_the_runs_recorded():
    assert records().keys() == CHAPTERS.keys()
    assert PAGE.read_text(encoding="utf-8") == render(records())
