"""Figures become words and pictures: pure functions of the dashboard."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from floodmark.dashboard import line, views, words
from floodmark.dashboard.watch import Sample
from floodmark.sequence import SequenceRange
from floodmark.status import ChannelStatus, SinkStatus

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, ""),
        (0, "0.0 s"),
        (3.21, "3.2 s"),
        (42.4, "42 s"),
        (60, "1 min"),
        (250, "4 min 10 s"),
        (3600, "1 h"),
        (7500, "2 h 5 min"),
        (86_400 * 3 + 3600 * 4 + 59, "3 d 4 h"),
    ],
)
def test_a_duration_has_at_most_two_units(seconds: float | None, text: str) -> None:
    assert words.duration(seconds) == text


def test_an_age_is_never_negative() -> None:
    assert words.ago(NOW + timedelta(seconds=9), NOW) == "just now"
    assert words.ago(None, NOW) == "never"
    assert words.until(NOW - timedelta(seconds=1), NOW) == "now"


def sink(**changed: object) -> SinkStatus:
    values = {
        "name": "out",
        "kind": "blob",
        "place": "file:///x",
        "state": "active",
        "reason": None,
        "next_attempt": None,
        "lag": 0,
        "warnings": (),
        "channels": (),
    }
    return SinkStatus(**{**values, **changed})  # type: ignore[arg-type]


def test_what_a_sink_waits_for_is_the_first_thing_that_has_to_happen() -> None:
    pinned = ChannelStatus("m", "all", 5, 3, pinned=SequenceRange(5, 8))
    later = NOW + timedelta(hours=1)
    assert words.waits_for(sink(), NOW) == "new rows"
    assert words.waits_for(sink(lag=3), NOW) == "`floodmark run` to deliver"
    assert words.waits_for(sink(lag=3, next_attempt=later), NOW) == "its schedule"
    assert words.waits_for(sink(lag=3, channels=(pinned,)), NOW) == "the destination: 6 to 8 is being delivered"
    assert words.waits_for(sink(lag=3, reason="closed", channels=(pinned,)), NOW) == "its next attempt"
    assert words.waits_for(sink(lag=3, state="blocked", reason="gone"), NOW).startswith("you: ")
    assert words.waits_for(sink(state="paused"), NOW) == "you: it is paused"


def test_a_trend_looks_at_the_last_minute_only() -> None:
    assert views.trend([]) == ""
    assert views.trend([(0, 9), (60, 9)]) == "steady"
    assert views.trend([(0, 0), (100, 500), (130, 400)]) == "shrinking"
    assert views.trend([(0, 900), (100, 10), (130, 400)]) == "growing"


def test_when_a_sink_has_caught_up_follows_from_its_pace() -> None:
    assert views.catch_up([(0, 100), (10, 50)]) == 10
    assert views.catch_up([(0, 50), (10, 50)]) is None
    assert views.catch_up([(0, 50), (10, 90)]) is None
    assert views.catch_up([(0, 50)]) is None


def test_a_spark_line_stays_in_its_box() -> None:
    points = [(0.0, 0.0), (450.0, 10.0), (900.0, 5.0)]
    for pair in views.spark(points, until=900.0).split():
        x, y = map(float, pair.split(","))
        assert 0 <= x <= views.SPARK_WIDTH
        assert 0 <= y <= views.SPARK_HEIGHT
    assert views.spark([(0.0, 0.0), (1.0, 0.0)], until=1.0), "also if nothing is behind"


def test_a_rate_is_never_negative() -> None:
    """Retention may take rows away, and a process may begin anew."""
    samples = [
        Sample(at, {"m": value}, {}, {}, {}) for at, value in ((0.0, 0.0), (10.0, 50.0), (20.0, 10.0), (20.0, 11.0))
    ]
    assert views.rates(samples, lambda one: one.captured.get("m")) == [None, 5.0, 0.0, None]
    assert views.rates(samples, lambda one: one.captured.get("none")) == [None] * 4


@pytest.mark.parametrize(
    ("first", "last", "allocated", "window"),
    [
        (None, None, 1000, (0, 1025)),
        (101, 200, 1000, (100, 200)),
        (500, 400, 1000, (390, 400)),
        (5000, None, 1000, (1015, 1025)),
        (None, None, 0, (0, 10)),
        (1, 1, 1000, (0, 10)),
    ],
)
def test_a_window_has_some_width_and_lies_in_what_there_is(first, last, allocated, window) -> None:
    assert line.window_of(first, last, allocated=allocated) == SequenceRange(*window)


def test_zooming_keeps_the_middle_and_the_ends() -> None:
    assert line.zoomed(SequenceRange(400, 600), 0.5, allocated=1000) == (451, 550)
    assert line.zoomed(SequenceRange(0, 1000), 2.0, allocated=1000) == (1, 1025)
    assert line.zoomed(SequenceRange(0, 100), 1.0, allocated=1000, shift=-0.5) == (1, 100)
    assert line.zoomed(SequenceRange(900, 1000), 1.0, allocated=1000, shift=0.5) == (926, 1025)
