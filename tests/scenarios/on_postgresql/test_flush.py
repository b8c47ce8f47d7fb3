"""A flush that died at any point is finished by the next one, on PostgreSQL as on SQLite: the same tests."""

from __future__ import annotations

import pytest

from scenarios.conftest import quick_path  # noqa: F401 - a fixture
from scenarios.test_flush_survives_a_crash_at_every_point import (
    _processes_die,  # noqa: F401 - a fixture
    test_the_first_commit_of_a_dataset_is_finished_too,  # noqa: F401
    world,  # noqa: F401 - a fixture
)

pytestmark = pytest.mark.postgres
