"""A settle function may say something else at the second attempt to send a block than at the first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from worlds import DATASET, TABLE, World, dies

from floodmark.testing import kill_store

mind: list[Callable[[pa.Table], Any]] = []
"""What the function does, one entry for each time it is asked; the last one stays."""


def settle(rows: pa.Table) -> Any:
    return (mind.pop(0) if len(mind) > 1 else mind[0])(rows)


def leaves_all(rows: pa.Table) -> pa.Table:
    return rows


def drops_all(rows: pa.Table) -> pa.Table:
    return rows.slice(0, 0)


def drops_odd(rows: pa.Table) -> pa.Table:
    return rows.filter(pc.equal(pc.bit_wise_and(rows["id"], 1), 0))


def all_are_the_first(rows: pa.Table) -> pa.Table:
    """Every row turns out to be the row 0."""
    at = rows.column_names.index("key")
    return rows.set_column(at, "key", pa.repeat(pa.scalar("0"), rows.num_rows))


def fails(rows: pa.Table) -> pa.Table:
    raise OSError("the directory of people cannot be reached")


def moves_partitions(rows: pa.Table) -> pa.Table:
    at = rows.column_names.index("site")
    return rows.set_column(at, "site", pa.repeat(pa.scalar("elsewhere"), rows.num_rows))


class Keyed(World):
    def rows(self, count: int) -> list[dict[str, Any]]:
        return [{**row, "key": str(row["id"])} for row in super().rows(count)]


@pytest.fixture
def world(quick_path: Path) -> Iterator[Keyed]:
    made = Keyed.make(
        quick_path / "store",
        identity=["key"],
        schema={"id": "long", "key": "string"},
        settle=f"{__name__}:settle",
    )
    yield made
    made.close()


def in_table(world: World) -> set[str | None]:
    state = world.lake.load(TABLE)
    return {snapshot.block for snapshot in state.lineage} if state else set()


@pytest.mark.parametrize("later", [drops_all, all_are_the_first, fails])
def test_a_block_with_nothing_left_to_send_is_not_void_while_an_earlier_request_may_land(
    world: Keyed, later: Callable[[pa.Table], pa.Table]
) -> None:
    """I4, B5: the table decides. The first request has rows and is late; the second attempt may have none left."""
    store = world.open()
    mind[:] = [leaves_all]
    world.capture(store, 1)
    store.flush(DATASET)
    mind[:] = [leaves_all, later]
    fates = iter(["hold"])
    world.lake.on_append = lambda _: next(fates, "land")
    world.capture(store, 3)
    store.flush(DATASET)
    world.lake.deliver_held()

    void = {block.id for block in world.blocks(store) if block.state == "void"}
    assert not void & in_table(world)
    world.check()


def test_a_block_that_another_process_finds_is_not_void_either(world: Keyed) -> None:
    """B5: who finds a block does not know whether its request is under way."""
    mind[:] = [leaves_all]
    world.lake.on_append = lambda _: "hold"
    store = world.open()
    world.capture(store, 3)
    dies(lambda: store.flush(DATASET), at="flush.appended")
    kill_store(store)
    world.lake.on_append = None
    mind[:] = [drops_all]
    other = world.open()
    other.flush(DATASET)
    assert world.lake.deliver_held() == [False]
    assert sorted(world.ids_in_table()) == [0, 1, 2]
    world.check()


def test_rows_that_it_leaves_out_are_counted_and_their_numbers_stay_free(world: Keyed) -> None:
    """B5"""
    mind[:] = [drops_odd]
    store = world.open()
    world.capture(store, 5)
    report = store.flush(DATASET)
    assert (report.rows, report.dropped, report.duplicates) == (3, 2, 0)
    assert [block.dropped for block in world.blocks(store)] == [2]
    assert store.status().datasets[0].dropped == 2
    assert world.ids_in_table() == [0, 2, 4]
    assert store.horizon(DATASET) == 5

    mind[:] = [drops_all]
    world.capture(store, 2)
    report = store.flush(DATASET)
    assert (report.rows, report.dropped, report.duplicates) == (0, 2, 0)


def test_an_identity_that_is_upgraded_collapses_into_the_committed_row(world: Keyed) -> None:
    mind[:] = [leaves_all, all_are_the_first]
    store = world.open()
    world.capture(store, 1)
    store.flush(DATASET)
    world.capture(store, 3)
    report = store.flush(DATASET)
    assert (report.rows, report.dropped, report.duplicates) == (0, 0, 3)
    assert world.ids_in_table() == [0]


@pytest.mark.parametrize(
    "bad", [fails, moves_partitions, lambda rows: None, lambda rows: pa.concat_tables([rows, rows])]
)
def test_one_that_fails_or_answers_nonsense_changes_nothing_and_is_reported(
    world: Keyed, bad: Callable[[pa.Table], Any]
) -> None:
    """B6"""
    mind[:] = [bad]
    store = world.open()
    world.capture(store, 3)
    report = store.flush(DATASET)
    assert (report.rows, report.dropped) == (3, 0)
    assert "settle function" in (report.settle_problem or "")
    assert store.status().datasets[0].unsettled_blocks == 1
    world.check()


def test_a_backfill_counts_what_it_drops(world: Keyed) -> None:
    mind[:] = [drops_odd]
    store = world.open()
    report = store.backfill(DATASET, [{"id": n, "key": str(n), "site": "s"} for n in range(6)])
    assert (report.read, report.new, report.dropped, report.already_stored) == (6, 3, 3, 0)
