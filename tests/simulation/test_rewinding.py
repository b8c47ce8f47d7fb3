"""Sinks that are rewound, paused and resumed while others deliver, die and lose power: each row still arrives once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from .schedule import PROFILES, made, run, shrunk
from .workshop import Workshop, workshop

SCHEDULES = 24


@pytest.fixture(scope="module")
def place() -> Iterator[Workshop]:
    with workshop() as made_place:
        yield made_place


def test_a_rewound_sink_has_every_row_exactly_once_in_every_schedule(place: Workshop) -> None:
    counts: Counter[str] = Counter()
    for seed in range(SCHEDULES):
        outcome = run(made(seed, PROFILES["rewound"]), place)
        if outcome.wrong:
            pytest.fail(f"seed {seed} of the profile rewound\n{shrunk(outcome, place)}")
        counts += outcome.counts
    assert counts["rewind: done"] >= 5
