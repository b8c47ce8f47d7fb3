"""Waiting for what another process or thread does: no longer than it takes, and never for ever."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

SECONDS_MAX = 60.0
LOOK_SECONDS = 0.01


def wait_until(
    met: Callable[[], object],
    *,
    seconds_max: float = SECONDS_MAX,
    look_seconds: float = LOOK_SECONDS,
    story: Callable[[], str] = lambda: "",
) -> None:
    """Look again and again until it is so. A test that waits in vain fails with what `story` tells."""
    deadline = time.monotonic() + seconds_max
    while not met():
        if time.monotonic() >= deadline:
            pytest.fail(f"It was not so within {seconds_max:g} s. {story()}")
        time.sleep(look_seconds)
