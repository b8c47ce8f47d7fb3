"""Schedules: missed slots are caught up once, none is run twice, none is forgotten, whatever the clock does."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from floodmark.schedule import Cron, Every, Schedule, due_slot, next_slot


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("schedule", "last", "now", "due"),
    [
        # An interval counts from its last slot, and keeps its beat.
        (Every(30), "2026-01-01 00:00:00", "2026-01-01 00:00:29", None),
        (Every(30), "2026-01-01 00:00:00", "2026-01-01 00:00:30", "2026-01-01 00:00:30"),
        (Every(30), "2026-01-01 00:00:00", "2026-01-01 00:00:59", "2026-01-01 00:00:30"),
        (Every(30), "2026-01-01 00:00:00", "2026-01-01 00:05:07", "2026-01-01 00:05:00"),
        # A cron slot is due from its very second on.
        (Cron("0 2 * * *"), "2026-01-01 02:00:00", "2026-01-02 01:59:59", None),
        (Cron("0 2 * * *"), "2026-01-01 02:00:00", "2026-01-02 02:00:00", "2026-01-02 02:00:00"),
        (Cron("0 2 * * *"), "2026-01-01 02:00:00", "2026-01-02 02:00:00.250", "2026-01-02 02:00:00"),
        (Cron("0 2 * * *"), "2026-01-02 02:00:00", "2026-01-02 02:00:00.250", None),
        # Three days away: once, for the newest of the missed slots.
        (Cron("0 2 * * *"), "2026-01-01 02:00:00", "2026-01-04 09:00:00", "2026-01-04 02:00:00"),
        (Cron("*/15 * * * *"), "2026-01-01 10:00:00", "2026-01-01 11:44:00", "2026-01-01 11:30:00"),
        # A last slot between two slots, as after a change of schedule.
        (Cron("0 * * * *"), "2026-01-01 10:20:00", "2026-01-01 10:59:59", None),
        (Cron("0 * * * *"), "2026-01-01 10:20:00", "2026-01-01 11:00:00", "2026-01-01 11:00:00"),
        # The night in which clocks change in many places is a night like any other.
        (Cron("30 2 * * *"), "2026-03-28 02:30:00", "2026-03-29 02:30:00", "2026-03-29 02:30:00"),
        (Cron("30 2 * * *"), "2026-10-25 02:30:00", "2026-10-25 03:30:00", None),
        # Rare, and never.
        (Cron("0 0 29 2 *"), "2024-02-29 00:00:00", "2027-12-31 00:00:00", None),
        (Cron("0 0 29 2 *"), "2024-02-29 00:00:00", "2028-03-01 00:00:00", "2028-02-29 00:00:00"),
        (Cron("0 0 */31 * MON#5"), "2026-01-01 00:00:00", "2026-12-31 00:00:00", None),
    ],
)
def test_what_is_due(schedule: Schedule, last: str, now: str, due: str | None) -> None:
    assert due_slot(schedule, last=at(last), now=at(now)) == (None if due is None else at(due))


@pytest.mark.parametrize(
    ("schedule", "last", "now", "following"),
    [
        (Every(30), "2026-01-01 00:00:00", "2026-01-01 00:00:10", "2026-01-01 00:00:30"),
        (Cron("0 2 * * *"), "2026-01-01 02:00:00", "2026-01-01 03:00:00", "2026-01-02 02:00:00"),
        (Every(30), "2099-01-01 00:00:00", "2026-01-01 00:00:00", "2026-01-01 00:00:30"),
    ],
)
def test_when_it_is_due_next(schedule: Schedule, last: str, now: str, following: str) -> None:
    assert next_slot(schedule, last=at(last), now=at(now)) == at(following)


def test_a_clock_that_went_back_a_little_does_not_repeat_a_slot() -> None:
    last = at("2026-01-02 02:00:00")
    for schedule in (Cron("0 2 * * *"), Every(86_400)):
        assert due_slot(schedule, last=last, now=last - timedelta(seconds=1)) is None
        assert due_slot(schedule, last=last, now=last + timedelta(seconds=1)) is None


def test_a_slot_from_a_clock_that_was_years_ahead_does_not_stop_the_schedule() -> None:
    last, now = at("2099-01-01 00:00:00"), at("2026-01-01 12:00:00")
    assert next_slot(Cron("0 2 * * *"), last=last, now=now) == at("2026-01-02 02:00:00")
    assert next_slot(Every(30), last=last, now=now) == at("2026-01-01 12:00:30")


schedules = st.one_of(
    st.integers(1, 7 * 86_400).map(Every),
    st.builds(
        lambda minute, hour, day: Cron(f"{minute} {hour} * * {day}"),
        st.sampled_from(["*", "*/7", "0", "59", "5,35"]),
        st.sampled_from(["*", "*/6", "0", "23"]),
        st.sampled_from(["*", "MON", "1-5", "SUN#1"]),
    ),
)
moments = st.integers(0, 15 * 365 * 86_400_000).map(lambda passed: at("2020-01-01") + timedelta(milliseconds=passed))
pauses = st.lists(st.floats(0, 3 * 86_400).map(lambda seconds: timedelta(seconds=seconds)), min_size=1, max_size=30)


@given(schedules, moments, pauses)
def test_every_slot_is_covered_by_exactly_one_run(schedule: Schedule, begin: datetime, pauses: list[timedelta]) -> None:
    """Looking at any times whatever: runs are for rising slots, and once all is quiet no slot lies after the last."""
    last = now = begin
    for pause in pauses:
        now += pause
        slot = due_slot(schedule, last=last, now=now)
        following = schedule.following(last)
        assert (slot is not None) == (following is not None and following <= now), "a missed slot was forgotten"
        if slot is None:
            continue
        assert last < slot <= now, "a slot was run twice, or ahead of its time"
        after = schedule.following(slot)
        assert after is None or after > now, "an older slot than the newest was run: the rest would be run as well"
        last = slot
        assert due_slot(schedule, last=last, now=now) is None, "one due time was given out twice"


@given(schedules, moments, st.integers(-(10**9), 10**9))
def test_whatever_was_recorded_a_run_comes_within_two_slots(schedule: Schedule, now: datetime, ahead: int) -> None:
    """Also a record from a clock that was wrong does not put a schedule to sleep."""
    last = now + timedelta(seconds=ahead)
    first = schedule.following(now)
    assert first is not None
    second = schedule.following(first)
    assert second is not None
    after = next_slot(schedule, last=last, now=now)
    assert after is not None
    assert after <= second


def test_an_expression_that_never_matches_is_never_due_and_harms_nobody() -> None:
    never, now = Cron("0 0 */31 * MON#5"), at("2026-01-01 00:00:00")
    assert next_slot(never, last=now, now=now) is None
    assert due_slot(never, last=now + timedelta(days=1), now=now) is None
