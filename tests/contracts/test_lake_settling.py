"""A settle function over committed rows: what every lake makes of its answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from lakes import NOON, TABLE, TIMED, Blocks, Driver

from floodmark.commit.protocol import Barrier, Base, Verdict
from floodmark.errors import Retryable
from floodmark.lake.table import AppendRefused
from floodmark.layout import Layout
from floodmark.removal import Spared
from floodmark.schema import SEQ
from floodmark.sequence import SequenceRange
from floodmark.settlement import Resettled, Resettling, verdict

KNOWN = {"name 5": "name 1", "name 0": "name 4", "name 2": "final 2"}
"""`name 5` is `name 1`, which came first; `name 0` is `name 4`, which came later; `name 2` is nobody else."""
IDENTITY = (("name",),)
REFUSED = (Retryable, AppendRefused)


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


def asked(blocks: Blocks, function: Any = settles, **options: Any) -> Resettling:
    head = blocks.state().head
    assert head is not None
    path = f"{__name__}:{function.__name__}"
    return Resettling(TABLE, head, blocks.through, TIMED, path, IDENTITY, "at", **options)


def decided(blocks: Blocks, operation: str, base: int | None = None) -> Verdict:
    """The verdict on an operation that was planned two blocks after the beginning."""
    state = blocks.state()
    base = base or next(one.id for one in state.lineage if one.through == 6)
    return verdict(operation, table_uuid=state.uuid, base=base, state=state)[0]


def supersede(blocks: Blocks) -> None:
    head = blocks.state().head
    assert head is not None
    blocks.lake.resettle(Resettling(TABLE, head, blocks.through, TIMED, settle=None)).commit(None)


def test_values_are_changed_twins_collapse_into_the_lower_number_and_dropped_rows_go(committed: Blocks) -> None:
    """B7, B8: in one commit, which is no append."""
    found = committed.lake.resettle(asked(committed))
    assert (found.problem, found.changed, found.collapsed, found.dropped) == (None, (1, 3), (5, 6), (4,))
    assert [row["name"] for row in committed.rows()] == [f"name {id}" for id in range(6)], "nothing is committed yet"
    found.commit("one")
    assert [(row[SEQ], row["name"]) for row in committed.rows()] == [(1, "name 4"), (2, "name 1"), (3, "final 2")]
    landed = committed.state().lineage[0]
    assert (landed.operation, landed.settled, landed.change) == ("overwrite", True, "one")
    settled = committed.lake.resettle(asked(committed))
    assert settled.touched == ()


def test_it_is_refused_if_anything_was_appended_since(committed: Blocks) -> None:
    """B7"""
    found = committed.lake.resettle(asked(committed))
    committed.commit([{"id": 9, "name": "name 9", "at": NOON}])
    with pytest.raises(REFUSED):
        found.commit("one")
    assert decided(committed, "one") is Verdict.VOID
    assert [row["id"] for row in committed.rows()] == [0, 1, 2, 3, 4, 5, 9]


def test_a_function_that_breaks_its_rules_changes_nothing(committed: Blocks) -> None:
    """B6"""
    found = committed.lake.resettle(asked(committed, renumbers))
    assert "settle function" in (found.problem or "")
    assert found.touched == ()


def test_what_was_superseded_can_never_land(committed: Blocks) -> None:
    """U18: no row changes by that; the one that comes later is refused, whatever its rows."""
    found = committed.lake.resettle(asked(committed))
    before = committed.rows()
    assert decided(committed, "one") is Verdict.OPEN
    supersede(committed)
    assert committed.rows() == before
    assert decided(committed, "one") is Verdict.VOID
    with pytest.raises(REFUSED):
        found.commit("one")
    assert committed.rows() == before
    again = committed.lake.resettle(asked(committed))
    again.commit("two")
    assert decided(committed, "two") is Verdict.LANDED


def test_an_append_without_rows_does_not_stand_in_its_way(committed: Blocks) -> None:
    """U18: a lake may let the settlement land behind it, so it is still to be decided."""
    found = committed.lake.resettle(asked(committed))
    state = committed.state()
    base = Base(state.uuid, 1, state.head)
    committed.lake.append(Barrier(TABLE, "given up", base, committed.through + 1))
    assert decided(committed, "one", base=state.head) is Verdict.OPEN
    supersede(committed)
    assert decided(committed, "one", base=state.head) is Verdict.VOID
    with pytest.raises(REFUSED):
        found.commit("one")


def first_only(rows: Any) -> Any:
    return _named(rows, "name 0", "other 0")


def last_only(rows: Any) -> Any:
    return _named(rows, "name 1029", "other 1029")


def _named(rows: Any, old: str, new: str) -> Any:
    if isinstance(rows, pa.Table):
        names = pa.array([new if name == old else name for name in rows["name"].to_pylist()], pa.string())
        return rows.set_column(rows.column_names.index("name"), "name", names)
    from pyspark.sql import functions as F

    return rows.withColumn("name", F.when(F.col("name") == old, new).otherwise(F.col("name")))


def test_of_two_on_one_state_only_one_lands_also_where_they_are_about_other_files(
    driver: Driver, tmp_path: Path
) -> None:
    """U18: Iceberg alone would let both land, in two buckets."""
    blocks = Blocks(driver, tmp_path, schema=TIMED, identity=IDENTITY, event_time="at")
    driver.lake.ensure(TABLE, TIMED, layout=Layout(bucket_width=1024))
    blocks.commit([{"id": id, "name": f"name {id}", "at": NOON} for id in range(1030)])
    answers: list[Resettled] = [driver.lake.resettle(asked(blocks, function)) for function in (first_only, last_only)]
    assert [found.touched for found in answers] == [(1,), (1030,)]
    answers[0].commit("one")
    with pytest.raises(REFUSED):
        answers[1].commit("two")
    names = [row["name"] for row in blocks.rows()]
    assert (names[0], names[-1], len(names)) == ("other 0", "name 1029", 1030)


def test_what_is_spared_stays_and_so_does_what_would_become_it(committed: Blocks) -> None:
    """B9: row 6 is spared, so row 2 does not become what it is, nor the other way round."""
    spared = (Spared("all", (SequenceRange(5, 6),)),)
    found = committed.lake.resettle(asked(committed, spared=spared))
    assert (found.changed, found.collapsed, found.dropped, found.waiting) == ((1, 3), (5,), (4,), 1)
    found.commit("one")
    assert [(row[SEQ], row["name"]) for row in committed.rows()] == [
        (1, "name 4"),
        (2, "name 1"),
        (3, "final 2"),
        (6, "name 5"),
    ]
    later = committed.lake.resettle(asked(committed))
    assert (later.collapsed, later.waiting) == ((6,), 0)


def test_a_row_that_would_become_one_that_is_spared_waits_with_it(committed: Blocks) -> None:
    """B9: row 1 turns out to be row 5, which has to stay as it is."""
    found = committed.lake.resettle(asked(committed, spared=(Spared("all", (SequenceRange(4, 5),)),)))
    assert (found.changed, found.collapsed, found.dropped, found.waiting) == ((3,), (6,), (4,), 1)
