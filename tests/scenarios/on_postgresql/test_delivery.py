"""A delivery that died at any point neither loses nor doubles a row, on PostgreSQL as on SQLite: the same tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from floodmark.store import Store
from floodmark.testing import MemoryLake
from scenarios.destinations import DATASET, PLACES, Place
from scenarios.test_delivery_survives_a_crash_at_every_point import (
    POINTS,
)
from scenarios.test_delivery_survives_a_crash_at_every_point import (
    test_a_crash_at_any_point_neither_loses_nor_doubles_a_row as survived,
)

pytestmark = pytest.mark.postgres


@pytest.fixture
def place(tmp_path: Path, lake: MemoryLake, store: Store) -> Iterator[Place]:
    """One kind: the records of a delivery are the same for all. Those of a hub have tests of their own."""
    store.add_dataset(DATASET, schema={"n": "long"}, partition_by=["source"])
    made = PLACES["files"](tmp_path, lake)
    made.add(store)
    yield made
    made.close()


@pytest.mark.parametrize("point", POINTS)
def test_a_crash_at_any_point_is_survived(
    store: Store, lake: MemoryLake, place: Place, reopen: Callable[[], Store], point: str
) -> None:
    survived(store, lake, place, reopen, point, time=1, between="everything")
