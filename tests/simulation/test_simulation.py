"""The product's own code, under thousands of schedules of crashes, power cuts, lost and late requests."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator

import pytest
from tests.evidence import records

from floodmark import faults
from floodmark.testing.oracle import Oracle

from .bugs import BUGS, Bug
from .evidence import FACTS, NOT_FOUND, SHORT_MAX, Tally
from .schedule import PROFILES, Schedule, made, run, shrunk
from .seeding import dies, does
from .stage import Stage, Stuck
from .workshop import Workshop, workshop
from .world import MEETS

SCHEDULES = int(os.environ.get("SIMULATION_SCHEDULES", "500"))
"""The fewest with which everything below comes to pass. `make soak` and `make evidence` run more."""
BATCH = 100
TYPES_SCHEDULES = 40


@pytest.fixture(scope="module")
def place() -> Iterator[Workshop]:
    with workshop() as made_place:
        yield made_place


@pytest.fixture(scope="module")
def tally() -> Tally:
    """What the schedules of this run did, all together."""
    return Tally()


@pytest.mark.parametrize("first", range(0, SCHEDULES, BATCH))
def test_every_acknowledged_row_is_everywhere_exactly_once_in_every_schedule(first: int, place: Workshop, tally: Tally):
    for seed in range(first, min(first + BATCH, SCHEDULES)):
        outcome = run(made(seed), place)
        if outcome.wrong:
            pytest.fail(f"{shrunk(outcome, place)}\n\nRun it again with: python -m tests.simulation --seed {seed}")
        tally.add(outcome)


def test_folding_old_records_beside_everything_else_changes_nothing(place: Workshop):
    """U35, U36: everything that is decided is old enough, so that each fold meets what others are in the middle of."""
    for seed in range(60):
        outcome = run(made(seed, PROFILES["folding"]), place)
        if outcome.wrong:
            pytest.fail(f"{shrunk(outcome, place)}")


def test_no_value_is_lost_when_a_column_s_type_is_corrected_at_any_moment(place: Workshop):
    """U42"""
    counts: Counter[str] = Counter()
    for seed in range(TYPES_SCHEDULES):
        outcome = run(made(seed, PROFILES["types"]), place)
        assert outcome.wrong == [], f"{outcome}"
        counts += outcome.counts
    happened = ("types corrected", "correct a type: refused", "capture amounts: SchemaChanged")
    assert all(counts[what] for what in happened), counts


def _expect_all_of_them(tally: Tally) -> int:
    schedules = sum(tally.schedules.values())
    if schedules < 500:
        pytest.skip("too few schedules were run to expect everything of them")
    return schedules


def test_the_schedules_really_did_what_they_are_for(tally: Tally):
    _expect_all_of_them(tally)
    rest = ("append: lose_answer", "object: no answer", "request: answer lost", "request: lost")
    # A history that is cut off between two of its rows needs two accidents in a row: there are schedules without any.
    rare = {"backfill: refused", "settlement: late and landed", "settlement: late and refused"}
    missing = [what for what in (*FACTS, *rest) if what not in rare and not tally.counts[what]]
    assert missing == []


def test_flushes_lose_the_race_and_commits_land_late_in_a_good_part_of_the_schedules(tally: Tally):
    """I4, D4, U14: what nobody contends for proves nothing of what decides between two."""
    schedules = _expect_all_of_them(tally)
    one_in = {"append: AppendRefused": 10, "append: late and landed": 8}
    one_in |= {"met: two flushes": 6, "met: two exporters of one sink": 10, "met: two at upkeep": 25}
    one_in |= {"met: upkeep beside a flush": 40, "met: upkeep beside a delivery": 100}
    assert one_in.keys() >= {f"met: {what}" for what in MEETS}
    assert {what: tally.counts[what] for what, few in one_in.items() if tally.counts[what] * few < schedules} == {}


def test_processes_died_at_every_instant_of_a_commit_and_before_it(tally: Tally):
    _expect_all_of_them(tally)
    points = {point for point in faults.POINTS if point.startswith(("capture.", "segment.", "seal.", "flush."))}
    # A block is void only after a true conflict, which is rare: dying right there as well is left to the scenarios.
    assert points - set(tally.died) <= {"flush.released"}


def test_a_schedule_runs_the_same_way_every_time(place: Workshop):
    for seed in range(100, 110):
        first, second = run(made(seed), place), run(made(seed), place)
        assert (first.trace, first.counts, first.died, first.passed) == (
            second.trace,
            second.counts,
            second.died,
            second.passed,
        )


# ── bugs on purpose ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_bug_that_is_put_in_is_found_and_without_it_nothing_is(bug: Bug, place: Workshop):
    for seed in range(SHORT_MAX):
        schedule = bug.schedule(seed)
        outcome = run(schedule, place, bug.patch)
        if bug.found(outcome.wrong):
            assert run(schedule, place).wrong == []
            return
    pytest.fail(f"{bug.name} was not found")


def test_the_page_of_evidence_tells_how_every_bug_was_found():
    told = next(item for item in records()["simulation"].listings if "bug" in item.columns)
    assert [bug.name for bug in BUGS if bug.name not in {row[0] for row in told.rows}] == []
    assert [row[0] for row in told.rows if row[2] == NOT_FOUND] == []


def test_a_failing_schedule_is_shrunk_to_the_steps_that_matter(place: Workshop):
    bug = next(one for one in BUGS if one.name == "a live writer's file is removed")
    noise = (*does(2, "capture"), *does(2, "flush"), *dies(2, "capture", "capture.written"))
    long = Schedule(0, PROFILES["commit"], identified=False, partitions=1, steps=(*noise, *bug.short, *noise))
    with bug.patch():
        outcome = run(long, place)
        assert outcome.wrong
        short = shrunk(outcome, place)
    assert short.wrong
    assert len(short.schedule.steps) <= len(bug.short)
    assert "seed 0" in str(short)


# ── the machinery itself ─────────────────────────────────────────────────────────────────────────────────────────────


def test_the_oracle_sees_what_is_wrong():
    oracle = Oracle()
    rows = oracle.rows(4, partitions=["a"])
    oracle.acknowledge(rows)
    assert oracle.compare("here", rows) == []
    wrong = [rows[0], rows[0], {**rows[1], "text": "other"}, {**rows[2], "id": "nobody's"}]
    kinds = Counter(finding.kind for finding in oracle.compare("here", wrong))
    assert kinds == {"doubled": 1, "altered": 1, "invented": 1, "missing": 2}
    assert [f.kind for f in oracle.compare_order("here", [rows[1], rows[0]], rows)] == ["out of order"]


def test_the_oracle_expects_nothing_of_what_was_never_acknowledged():
    oracle = Oracle()
    rows = oracle.rows(2, partitions=["a", "b"])
    oracle.acknowledge(rows[:1])
    assert oracle.compare("here", rows[:1]) == oracle.compare("here", rows) == []
    assert oracle.unanswered() == rows[1:]


def test_actors_run_one_at_a_time_and_stop_where_they_are_told():
    stage, seen = Stage(), []

    def work(name: str):
        for number in range(4):
            seen.append(f"{name}{number}")
            stage.pause("even" if number % 2 == 0 else "odd")

    one, other = (stage.add(name, None, lambda name=name: work(name)) for name in "ab")
    stage.run(one, 2)
    stage.run(other, 1, until="odd")
    stage.finish(one)
    assert seen == ["a0", "a1", "b0", "b1", "a2", "a3"]
    stage.abandon(other)
    stage.run(other, 100)
    assert seen[-1] == "a3"
    stage.clear()


def test_an_operation_that_never_ends_is_told(monkeypatch):
    monkeypatch.setattr("simulation.stage.PAUSES_MAX", 50)
    stage = Stage()

    def work():
        while True:
            stage.pause("again")

    actor = stage.add("a", None, work)
    stage.finish(actor)
    assert isinstance(actor.error, Stuck)
    stage.clear()
