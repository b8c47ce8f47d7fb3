"""Whatever changes or removes committed rows meets its like, flushes and deliveries: no row is lost, totals add up, and
what a sink has pinned keeps its values."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .places import DROP, LOSE
from .schedule import PROFILES, Schedule, Step, run
from .seeding import GOES_ON, LATE, LEARN, OTHER_GOES_ON, dies, does, fated, held_up, stops
from .workshop import Workshop, workshop

SEEDS = range(1, 4)
UNLEARN = [Step("unlearn")]
DELIVERED = [*does(2, "export archive"), *does(2, "export central")]
MET: dict[str, list[list[Step]]] = {
    "two purges of one row": [stops(0, "purge", "removal.counted", size=6), does(1, "purge", 6), GOES_ON],
    "a purge that was cut off, and another": [
        dies(0, "purge", "removal.planned", size=6),
        stops(1, "purge", "lake.remove", size=6),
        does(2, "purge", 6),
        OTHER_GOES_ON,
    ],
    "two retentions": [DELIVERED, stops(0, "retain", "removal.counted"), does(1, "retain"), GOES_ON],
    "a purge and a retention": [DELIVERED, stops(0, "purge", "removal.counted", size=6), does(1, "retain"), GOES_ON],
    "a settlement without an answer": [LEARN, fated(does(0, "settle"), LOSE), does(1, "flush")],
    "a settlement that never arrived": [LEARN, fated(does(0, "settle"), DROP), does(1, "flush")],
    "a settlement that arrives late": [LEARN, held_up(does(0, "settle")), does(1, "capture, flush"), LATE],
    "a settlement that arrives behind a delivery": [
        *[LEARN, held_up(dies(0, "settle", "settle.committed"))],
        *[dies(1, "export archive", "delivery.shipped"), LATE],
    ],
    "a settlement that a flush overtakes": [
        *[LEARN, stops(0, "settle", "settle.planned"), does(1, "capture, flush"), GOES_ON]
    ],
    "a settlement that was cut off, and a function that changed its mind": [
        *[LEARN, dies(0, "settle", "settle.planned"), UNLEARN, does(1, "capture, flush"), does(1, "settle")]
    ],
    "a settlement over what a sink has in hand": [
        *[dies(0, "export archive", "bucket.created", times=3), LEARN, does(1, "settle"), does(2, "export archive")]
    ],
    "a range that is pinned before a settlement lands": [
        *[LEARN, stops(0, "settle", "lake.settling"), dies(1, "export archive", "delivery.shipped"), GOES_ON]
    ],
    "a settlement over what a purge has counted": [
        *[[Step("learn", number=5)], stops(0, "purge", "removal.counted", size=5), does(1, "settle"), GOES_ON]
    ],
    "a settlement over what a retention has counted": [
        *[LEARN, DELIVERED, stops(0, "retain", "removal.counted"), does(1, "settle"), GOES_ON]
    ],
    "two settlements": [LEARN, stops(0, "settle", "lake.settling"), does(1, "settle"), GOES_ON],
    "a rebuild beside a settlement": [
        *[LEARN, stops(0, "rebuild", "rebuild.caught_up"), does(1, "settle"), GOES_ON, does(2, "export archive")]
    ],
    "a settlement beside a rebuild": [
        *[LEARN, stops(0, "settle", "settle.planned"), does(1, "rebuild"), GOES_ON, does(2, "export archive")]
    ],
    "a rebuild beside a purge and a delivery": [
        *[stops(0, "rebuild", "rebuild.caught_up"), stops(1, "purge", "removal.counted", size=6), GOES_ON],
        *[OTHER_GOES_ON, does(2, "export archive")],
    ],
}
"""Who meets, in few steps."""


@pytest.fixture(scope="module")
def place() -> Iterator[Workshop]:
    with workshop() as made_place:
        yield made_place


@pytest.mark.parametrize("partitions", [1, 2])
@pytest.mark.parametrize("met", MET)
def test_nothing_is_lost_and_totals_add_up_whoever_meets(met: str, partitions: int, place: Workshop) -> None:
    steps = tuple(step for some in MET[met] for step in some)
    for seed in SEEDS:
        seeded = tuple(step if step.seed else _with(step, seed) for step in steps)
        outcome = run(Schedule(seed, PROFILES["meeting"], identified=True, partitions=partitions, steps=seeded), place)
        assert outcome.wrong == [], str(outcome)


def _with(step: Step, seed: int) -> Step:
    return Step(step.what, step.process, step.name, step.number, seed)
