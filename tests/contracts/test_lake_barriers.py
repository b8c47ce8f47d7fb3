"""What every lake promises about an append without rows, and about a table that cannot be read."""

from __future__ import annotations

from pathlib import Path

import pytest
from lakes import EVERYTHING, SIMPLE, TABLE, Blocks, SparkDriver, numbers

from floodmark.commit.protocol import Barrier, Verdict, verdict
from floodmark.lake import inventory, queries
from floodmark.lake.files import local_path
from floodmark.lake.table import AppendRefused
from floodmark.testing.memory.lake import MemoryLake


@pytest.mark.parametrize("rows_before", [0, 2])
def test_behind_a_barrier_no_request_of_the_block_lands(blocks: Blocks, rows_before: int, monkeypatch):
    """U34: not even one that was sent before and arrives late."""
    blocks.lake.ensure(TABLE, SIMPLE)
    if rows_before:
        blocks.commit([{"id": n} for n in range(rows_before)])
    request = blocks.request(blocks.segment([{"id": 10}]))
    blocks.lake.append(Barrier(TABLE, request.block, request.base, request.range.through))
    state = blocks.state()
    told = verdict(block=request.block, base=request.base, fenced=False, state=state, row_visible=False)
    assert told is Verdict.VOID
    assert state.lineage[0].barrier == request.block
    if not isinstance(blocks.lake, MemoryLake):  # Iceberg's own check, which is all that a late request meets
        monkeypatch.setattr(type(blocks.lake), "_check_base", lambda *_: None)
    with pytest.raises(Exception):
        blocks.lake.append(request)
    assert blocks.state().head == state.head

    # … and the table is as usable as before, with that number counted.
    blocks.lake.sync(state, since=None)
    assert blocks.lake.files(state, check=True).missing == ()
    assert inventory.highest_seq(blocks.lake, state) == request.range.through
    blocks.commit([{"id": 20}, {"id": 21}])
    head = blocks.state().head
    rows = [row for part in blocks.lake.scan(TABLE, snapshot=head, within=EVERYTHING) for row in part.to_pylist()]
    assert [row["id"] for row in rows] == [*range(rows_before), 20, 21]
    stats = queries.stats(blocks.lake, TABLE, snapshot=head, within=EVERYTHING, partition_by=())
    assert sum(item.tally.rows for item in stats) == rows_before + 2
    blocks.driver.compact(TABLE)
    head = blocks.state().head
    kept = [row for part in blocks.lake.scan(TABLE, snapshot=head, within=EVERYTHING) for row in part.to_pylist()]
    assert numbers(kept) == numbers(rows)


def test_a_barrier_behind_an_append_is_refused(blocks: Blocks):
    """U34: the block has landed, and stays."""
    blocks.lake.ensure(TABLE, SIMPLE)
    request = blocks.request(blocks.segment([{"id": 10}]))
    blocks.lake.append(request)
    head = blocks.state().head
    with pytest.raises(AppendRefused):
        blocks.lake.append(Barrier(TABLE, request.block, request.base, request.range.through))
    assert blocks.state().head == head


@pytest.mark.spark
def test_the_place_of_a_table_that_cannot_be_read_says_which_numbers_it_may_have(spark_driver: SparkDriver, tmp_path):
    """I10: the allocator is raised above what a damaged table may hold."""
    blocks = Blocks(spark_driver, tmp_path)
    blocks.lake.ensure(TABLE, SIMPLE)
    blocks.through = 3_000_000
    blocks.commit([{"id": 1}])
    width = 1 << 20
    pointer = spark_driver.lake.catalog.pointer(TABLE)
    Path(local_path(pointer)).write_text("torn")
    bound = blocks.lake.numbers_bound(TABLE, width=width)
    assert 3_000_001 <= bound <= 3_000_001 + width
    assert blocks.lake.numbers_bound("nothing_g1", width=width) is None
