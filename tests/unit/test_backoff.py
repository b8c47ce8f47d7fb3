"""How long a destination is left alone: never without a pause, never for days."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from floodmark.delivery.backoff import ASKED_SECONDS_MAX, LADDER_SECONDS, retry_after_seconds, wait_seconds

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
moments = st.datetimes(min_value=datetime(1970, 1, 1), max_value=datetime(9000, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001


def test_the_ladder_rises_and_ends() -> None:
    assert [wait_seconds(failures) for failures in range(8)] == [30, 30, 60, 120, 300, 300, 300, 300]


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        ("1", 1),
        ("120", 120),
        (" 007 ", 7),
        ("86400", ASKED_SECONDS_MAX),
        ("9" * 5000, ASKED_SECONDS_MAX),
        ("Sat, 31 Jan 2026 12:01:30 GMT", 90),
        ("Saturday, 31-Jan-26 12:01:30 GMT", 90),
        ("Sat Jan 31 12:01:30 2026", 90),
        ("Sat, 31 Jan 2026 13:01:30 +0100", 90),
        ("Sat, 31 Jan 2060 12:00:00 GMT", ASKED_SECONDS_MAX),
    ],
)
def test_whole_seconds_and_dates_are_kept_up_to_the_bound(said: str, wanted: float) -> None:
    assert retry_after_seconds(said, now=NOW) == wanted
    assert wait_seconds(3, wanted) == wanted


@pytest.mark.parametrize(
    "said",
    [
        None,
        "",
        "0",
        "0" * 5000,
        "-1",
        "+5",
        "1.5",
        "1e3",
        "١٢",
        "NaN",
        "inf",
        "soon",
        "Sat, 31 Jan 2026 12:00:00 GMT",
        "Sat, 31 Jan 2026 11:59:59 GMT",
        "Thu, 01 Jan 1970 00:00:00 GMT",
        "Sat, 99 Jan 2026 99:99:99 GMT",
        "Sat, 31 Jan 99999 12:00:00 GMT",
        "Sat, 31 Jan 2026 12:00:00 +9999999999",
        "x" * 100_000,
    ],
)
def test_zero_past_and_garbage_are_the_ladders(said: str | None) -> None:
    assert retry_after_seconds(said, now=NOW) is None


def test_a_moment_ahead_is_a_whole_second() -> None:
    date = format_datetime(NOW + timedelta(seconds=1), usegmt=True)
    assert retry_after_seconds(date, now=NOW + timedelta(milliseconds=999)) == 1


@given(st.text() | st.from_regex(r"\A[A-Z][a-z]{2}, \d+ [A-Z][a-z]{2} \d+ \d+:\d+:\d+ \S+\Z"), st.integers(0, 20))
@example("0", 1)
@example("Mon, 01 Jan 0001 00:00:00 +2359", 1)
def test_whatever_is_said_the_wait_has_a_floor_and_a_bound(said: str, failures: int) -> None:
    asked = retry_after_seconds(said, now=NOW)
    waited = wait_seconds(failures, asked)
    assert waited <= ASKED_SECONDS_MAX
    if asked is None:
        assert waited in LADDER_SECONDS
    else:
        assert waited == asked >= 1


@given(moments, moments)
def test_a_date_is_kept_if_it_is_ahead(now: datetime, date: datetime) -> None:
    date = date.replace(microsecond=0)
    asked = retry_after_seconds(format_datetime(date, usegmt=True), now=now)
    if date <= now:
        assert asked is None
    else:
        assert asked is not None
        assert min((date - now).total_seconds(), ASKED_SECONDS_MAX) <= asked <= ASKED_SECONDS_MAX


@given(st.integers(-5, 50), st.none() | st.floats(allow_nan=True))
def test_no_wish_makes_the_wait_shorter_than_a_second_or_longer_than_the_bound(failures: int, asked: float) -> None:
    assert 1 <= wait_seconds(failures, asked) <= ASKED_SECONDS_MAX
