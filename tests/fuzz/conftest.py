"""Stores that many inputs are tried on: each input has a dataset of its own there. And the count of what was tried."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests import evidence
from trying import REFUSED, TRIED, WANTED, Stand


@pytest.fixture(scope="module")
def stands() -> Iterator[Stand]:
    made = Stand()
    yield made
    made.close()


@pytest.fixture(scope="session", autouse=True)
def _what_was_tried_is_recorded(request: pytest.FixtureRequest) -> Iterator[None]:
    """Of a long run that found nothing; an ordinary one tries the same inputs each time, and tells nothing new."""
    began = time.monotonic()
    yield
    tried = {item.path for item in request.session.items}
    if not WANTED or request.session.testsfailed or not tried.issuperset(Path(__file__).parent.glob("test_*.py")):
        return
    kinds = sorted(TRIED)
    evidence.record(
        "fuzz",
        command=f"FUZZ_EXAMPLES={WANTED} python -m pytest tests/fuzz",
        seconds=time.monotonic() - began,
        facts={
            "kinds of input": len(kinds),
            "inputs tried": TRIED.total(),
            "… refused in words": REFUSED.total(),
            "other errors, hangs, rows lost or stored in spite of a refusal, secrets shown": 0,
        },
        listings=[
            evidence.Listing(
                title="Inputs of each kind",
                columns=["kind", "tried", "refused"],
                rows=[[kind, TRIED[kind], REFUSED[kind]] for kind in kinds],
                about="What was not refused was taken, or held in quarantine with the reason.",
            )
        ],
    )
