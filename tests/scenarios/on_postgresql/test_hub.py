"""A hub's ledger, on PostgreSQL as on SQLite: the same tests."""

from __future__ import annotations

import pytest

from scenarios.test_a_hub_and_its_ledger import (
    hub,  # noqa: F401 - a fixture
    test_a_crash_while_rows_wait_for_a_neighbour_to_be_accepted_is_survived,  # noqa: F401
    test_every_row_arrives_once_and_the_ledger_stays_one_line_per_channel,  # noqa: F401
)

pytestmark = pytest.mark.postgres
