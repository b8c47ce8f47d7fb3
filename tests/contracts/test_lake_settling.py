"""A settle function over committed rows: what every lake makes of its answer."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from lakes import NOON, TABLE, TIMED, Blocks

from floodmark.errors import Retryable
from floodmark.schema import SEQ
from floodmark.settlement import Resettling

KNOWN = {"name 5": "name 1", "name 0": "name 4", "name 2": "final 2"}
"""`name 5` is `name 1`, which came first; `name 0` is `name 4`, which came later; `name 2` is nobody else."""
IDENTITY = (("name",),)


def settles(rows: Any) -> Any:
    """… and `name 3` is no row at all. As a DataFrame, or as the Arrow table that the lake in memory gives."""
    if isinstance(rows, pa.Table):
        kept = rows.filter(pc.not_equal(rows["name"], "name 3"))
        names = pa.array([KNOWN.get(name, name) for name in kept["name"].to_pylist()], pa.string())
        return kept.set_column(kept.column_names.index("name"), "name", names)
    from pyspark.sql import functions as F

    name = F.col("name")
    for old, new in KNOWN.items():
        name = F.when(F.col("name") == old, new).otherwise(name)
    return rows.where("name <> 'name 3'").withColumn("name", name)


def renumbers(rows: Any) -> Any:
    if isinstance(rows, pa.Table):
        return rows.set_column(rows.column_names.index(SEQ), SEQ, pc.add(rows[SEQ], 1))
    return rows.withColumn(SEQ, rows[SEQ] + 1)


@pytest.fixture
def committed(blocks: Blocks) -> Blocks:
    blocks.schema, blocks.identity, blocks.event_time = TIMED, IDENTITY, "at"
    for first in (0, 3):
        blocks.commit([{"id": id, "name": f"name {id}", "at": NOON} for id in range(first, first + 3)])
    return blocks


def asked(blocks: Blocks, function: Any = settles) -> Resettling:
    head = blocks.state().head
    assert head is not None
    path = f"{__name__}:{function.__name__}"
    return Resettling(TABLE, head, blocks.through, TIMED, path, IDENTITY, "at")


def test_values_are_changed_twins_collapse_into_the_lower_number_and_dropped_rows_go(committed: Blocks) -> None:
    """B7, B8: in one commit, which is no append."""
    found = committed.lake.resettle(asked(committed))
    assert (found.problem, found.changed, found.collapsed, found.dropped) == (None, 2, (5, 6), (4,))
    assert [row["name"] for row in committed.rows()] == [f"name {id}" for id in range(6)], "nothing is committed yet"
    found.commit()
    assert [(row[SEQ], row["name"]) for row in committed.rows()] == [(1, "name 4"), (2, "name 1"), (3, "final 2")]
    assert committed.state().lineage[0].operation == "overwrite"
    settled = committed.lake.resettle(asked(committed))
    assert (settled.changed, settled.gone) == (0, ())


def test_it_is_refused_if_anything_was_appended_since(committed: Blocks) -> None:
    """B7"""
    found = committed.lake.resettle(asked(committed))
    committed.commit([{"id": 9, "name": "name 9", "at": NOON}])
    with pytest.raises(Retryable):
        found.commit()
    assert [row["id"] for row in committed.rows()] == [0, 1, 2, 3, 4, 5, 9]


def test_a_function_that_breaks_its_rules_changes_nothing(committed: Blocks) -> None:
    """B6"""
    found = committed.lake.resettle(asked(committed, renumbers))
    assert "settle function" in (found.problem or "")
    assert (found.changed, found.gone) == (0, ())
