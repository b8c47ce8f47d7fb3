"""A sealer that died at any point loses and doubles nothing, on PostgreSQL as on SQLite: the same tests."""

from __future__ import annotations

import pytest

from scenarios.test_sealing_survives_a_crash_at_every_point import (
    _events,  # noqa: F401 - a fixture
    test_a_process_that_dies_there_loses_and_doubles_nothing,  # noqa: F401
)

pytestmark = pytest.mark.postgres
