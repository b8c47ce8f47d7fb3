"""A hub's ledger, on PostgreSQL as on SQLite: the same tests."""

from __future__ import annotations

import pytest

from floodmark.store import Store
from scenarios.destinations import Place
from scenarios.test_a_hub_and_its_ledger import (
    hub,  # noqa: F401 - a fixture
    test_every_row_arrives_once_and_the_ledger_stays_one_line_per_channel,  # noqa: F401
)
from scenarios.test_a_hub_and_its_ledger import (
    test_a_crash_while_rows_wait_for_a_neighbour_to_be_accepted_is_survived as survived,
)

pytestmark = pytest.mark.postgres


@pytest.mark.parametrize("time", [1, 5])
def test_a_crash_before_and_behind_what_the_hub_was_told_is_survived(
    store: Store,
    hub: Place,  # noqa: F811
    reopen,
    time: int,
) -> None:
    survived(store, hub, reopen, time)
