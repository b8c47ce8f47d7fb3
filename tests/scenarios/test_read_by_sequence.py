"""`read_since` gives exactly what is new since a cursor, in order, whatever happened to the table in between."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event
from worlds import DATASET, TABLE, World, dies

import floodmark
from floodmark import read as read_module
from floodmark.errors import FloodmarkError, InvalidCursor, InvalidName
from floodmark.sequence import Cursor, SequenceRange
from floodmark.store import Store


@pytest.fixture
def world(quick_path: Path) -> Iterator[World]:
    made = World.make(quick_path / "store")
    yield made
    made.close()


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(read_module, "BATCH_ROWS_MAX", 4)
    return 4


def ids(store: Store, since: Any = None, **named: Any) -> list[int]:
    return [row["id"] for batch in store.read_since(DATASET, since, **named) for row in batch.table.to_pylist()]


# ── in order, in batches ─────────────────────────────────────────────────────────────────────────────────────────────


def test_rows_come_in_order_and_each_batch_has_the_cursor_behind_it(world: World, small_batches: int) -> None:
    for count in (3, 1, 9, 2, 2):
        world.committed(count)
    store = world.open()
    seen: list[int] = []
    for batch in store.read_since(DATASET):
        assert 0 < batch.table.num_rows <= small_batches
        seen += batch.table["id"].to_pylist()
        assert ids(store, batch.cursor) == list(range(len(seen), 17))
    assert seen == list(range(17))


def test_a_reader_that_stops_anywhere_goes_on_from_there(world: World, small_batches: int) -> None:
    """`pairs` gives each row with the cursor right behind it."""
    for count in (3, 6, 1):
        world.committed(count)
    store = world.open()
    cursor: str | None = None
    seen: list[int] = []
    for _ in range(10):
        row, behind = next(pair for batch in store.read_since(DATASET, cursor) for pair in batch.pairs())
        seen.append(row["id"])
        cursor = str(behind)
    assert seen == list(range(10))
    assert list(store.read_since(DATASET, cursor)) == []


def test_a_reader_at_the_end_sees_exactly_what_comes_next(world: World) -> None:
    world.committed(3)
    store = world.open()
    cursor = store.cursor(DATASET)
    assert ids(store, cursor) == []
    world.committed(2)
    assert ids(store, cursor) == [3, 4]


def test_what_is_only_in_the_spool_is_not_read(world: World) -> None:
    store = world.open()
    world.capture(store, 3)
    assert ids(store) == []
    store.seal(DATASET)
    assert ids(store) == []


@pytest.mark.parametrize("point", ["flush.appended", "flush.decided", "flush.synced"])
def test_rows_above_the_horizon_are_not_shown_though_the_table_has_them(world: World, point: str) -> None:
    """I3: what is visible to a reader is decided and durable."""
    world.committed(2)
    store = world.open()
    world.capture(store, 3)
    assert dies(lambda: store.flush(DATASET), at=point)
    reader = world.open()
    assert len(world.table()) == 5
    assert ids(reader) == [0, 1]
    reader.flush(DATASET)
    assert ids(reader) == [0, 1, 2, 3, 4]


def test_an_empty_dataset_has_nothing_and_a_cursor(world: World) -> None:
    store = world.open()
    assert ids(store) == []
    cursor = store.cursor(DATASET)
    world.committed(1)
    assert ids(store, cursor) == [0]


# ── horizon first, then the table (I9) ───────────────────────────────────────────────────────────────────────────────


class FlushBeforeLoad:
    """A lake before whose next load another process commits."""

    def __init__(self, world: World) -> None:
        self._world, self._lake, self.armed = world, world.lake, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lake, name)

    def load(self, table: str) -> Any:
        if self.armed:
            self.armed = False
            self._world.lake = self._lake
            self._world.committed(2)
        return self._lake.load(table)


def test_a_commit_between_the_horizon_and_the_table_is_not_half_read(world: World) -> None:
    """I9: horizon first, then the table: everything up to the horizon is there, and the cursor skips nothing."""
    world.committed(3)
    lake = world.lake
    world.lake = FlushBeforeLoad(world)
    store = world.open()
    world.lake.armed = True
    batches = list(store.read_since(DATASET))
    world.lake = lake
    assert [id for batch in batches for id in batch.table["id"].to_pylist()] == [0, 1, 2]
    assert ids(store, batches[-1].cursor) == [3, 4]


def test_the_other_order_would_skip_rows(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above can fail: a snapshot that is older than the horizon makes the cursor jump over rows."""
    world.committed(3)
    store = world.open()
    view = read_module.view_of(store.engine, DATASET)
    old = world.lake.load(TABLE).head
    world.committed(2)
    wrong = read_module.View(read_module.view_of(store.engine, DATASET).dataset, old)
    assert (view.horizon, wrong.horizon) == (3, 5)
    monkeypatch.setattr(read_module, "view_of", lambda _engine, _dataset: wrong)
    (batch,) = store.read_since(DATASET)
    monkeypatch.undo()
    assert batch.table["id"].to_pylist() == [0, 1, 2]
    assert ids(store, batch.cursor) == []  # rows 3 and 4 would never be read


def test_a_read_that_has_begun_is_of_one_instant(world: World, small_batches: int) -> None:
    for _ in range(3):
        world.committed(3)
    store = world.open()
    batches = store.read_since(DATASET)
    seen = next(batches).table["id"].to_pylist()
    world.committed(3)
    world.compact()
    for batch in batches:
        seen += batch.table["id"].to_pylist()
    assert seen == list(range(9))


# ── cursors ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def bad_cursors(store: Store) -> dict[str, Any]:
    good = store.cursor(DATASET)
    text = str(good)
    return {
        "another store's": Cursor("somebody-else", DATASET, None, 1),
        "another dataset's": Cursor(store.store_id, "others", None, 1),
        "a partition's": Cursor(store.store_id, DATASET, "site=s0", 1),
        "above the horizon": Cursor(store.store_id, DATASET, None, good.seq + 1),
        "newer": text.replace("fm1.", "fm2."),
        "cut short": text[:-3],
        "changed": text[:-1] + ("A" if text[-1] != "A" else "B"),
        "nothing": "",
        "a number": "17",
        "not text": 17,
        "not ascii": "fm1.é",
    }


BAD = [
    "another store's",
    "another dataset's",
    "a partition's",
    "above the horizon",
    "newer",
    "cut short",
    "changed",
    "nothing",
    "a number",
    "not text",
    "not ascii",
]


@pytest.mark.parametrize("kind", BAD)
def test_a_cursor_that_is_not_from_here_is_refused(world: World, kind: str) -> None:
    """Taking it would skip rows or give them again."""
    world.committed(3)
    store = world.open()
    cursor = bad_cursors(store)[kind]
    with pytest.raises(InvalidCursor):
        list(store.read_since(DATASET, cursor))
    if isinstance(cursor, Cursor):
        with pytest.raises(InvalidCursor):
            list(store.read_since(DATASET, str(cursor)))


def test_the_whole_datasets_cursor_is_refused_for_a_partition(world: World) -> None:
    world.committed(3)
    store = world.open()
    with pytest.raises(InvalidCursor):
        list(store.read_since(DATASET, store.cursor(DATASET), partition="site=s0"))


def test_a_cursor_is_good_as_text_and_as_itself(world: World) -> None:
    world.committed(2)
    store = world.open()
    (batch,) = store.read_since(DATASET)
    world.committed(1)
    assert ids(store, batch.cursor) == ids(store, str(batch.cursor)) == ids(world.open(), str(batch.cursor)) == [2]


def test_an_unknown_dataset_is_told(world: World) -> None:
    with pytest.raises(floodmark.UnknownDataset):
        list(world.open().read_since("nothing"))


# ── partitions ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_partition_is_read_by_its_key_or_its_values(world: World, small_batches: int) -> None:
    for count in (5, 6):
        world.committed(count)
    store = world.open()
    assert ids(store, partition="site=s0") == ids(store, partition={"site": "s0"}) == [0, 2, 4, 6, 8, 10]
    assert ids(store, partition={"site": "s1"}) == [1, 3, 5, 7, 9]
    assert ids(store, partition={"site": "nowhere"}) == []


def test_rows_without_a_value_are_a_partition_of_their_own(world: World) -> None:
    store = world.open()
    store.capture(DATASET, [{"id": 1, "site": None}, {"id": 2, "site": ""}, {"id": 3}])
    store.flush(DATASET)
    assert ids(store, partition={"site": None}) == ids(store, partition="site!") == [1, 3]
    assert ids(store, partition={"site": ""}) == [2]


def test_a_partitions_cursor_goes_on_in_that_partition_only(world: World) -> None:
    world.committed(4)
    store = world.open()
    *_, last = store.read_since(DATASET, partition="site=s0")
    world.committed(4)
    assert ids(store, last.cursor, partition="site=s0") == [4, 6]
    with pytest.raises(InvalidCursor):
        ids(store, last.cursor, partition="site=s1")
    with pytest.raises(InvalidCursor):
        ids(store, last.cursor)


@pytest.mark.parametrize("key", ["site", "place=s0", "site=s0/more=1", "", "all", "site=%73"])
def test_what_is_no_partition_is_refused(world: World, key: str) -> None:
    world.committed(1)
    with pytest.raises(InvalidName):
        ids(world.open(), partition=key)


# ── nothing of ours is shown ─────────────────────────────────────────────────────────────────────────────────────────


def test_no_system_column_is_seen_anywhere(world: World) -> None:
    world.committed(3)
    world.compact()
    store = world.open()
    for batch in store.read_since(DATASET):
        assert batch.table.column_names == ["id", "site"]
        assert all(set(row) == {"id", "site"} for row, _ in batch.pairs())
    for batch in store.read_since(DATASET, partition="site=s0"):
        assert batch.table.column_names == ["id", "site"]


def test_columns_that_came_later_are_null_in_older_rows(world: World) -> None:
    world.committed(1)
    store = world.open()
    store.capture(DATASET, [{"id": 100, "site": "s0", "extra": 1.5}])
    assert [batch.table.to_pylist() for batch in store.read_since(DATASET)] == [
        [{"id": 0, "site": "s0", "extra": None}]
    ]
    store.flush(DATASET)
    rows = [row for batch in store.read_since(DATASET) for row in batch.table.to_pylist()]
    assert rows == [{"id": 0, "site": "s0", "extra": None}, {"id": 100, "site": "s0", "extra": 1.5}]


# ── straight through upkeep ──────────────────────────────────────────────────────────────────────────────────────────


def test_cursors_survive_compaction_deletes_and_expiry(world: World) -> None:
    """Nothing of a cursor lives in snapshots: one that is left is enough."""
    for _ in range(3):
        world.committed(3)
    store = world.open()
    cursor = next(behind for batch in store.read_since(DATASET) for row, behind in batch.pairs() if row["id"] == 3)
    world.compact()
    assert ids(store, cursor) == [4, 5, 6, 7, 8]
    world.lake.delete(TABLE, SequenceRange(5, 7))
    assert ids(store, cursor) == [4, 7, 8]
    world.compact()
    world.lake.expire(TABLE)
    assert len(world.lake.load(TABLE).lineage) == 1
    assert ids(store, cursor) == [4, 7, 8]
    world.committed(1)
    assert ids(store, cursor) == [4, 7, 8, 9]


def test_a_cursor_whose_row_was_deleted_is_still_a_place(world: World) -> None:
    world.committed(5)
    store = world.open()
    cursor = next(behind for batch in store.read_since(DATASET) for row, behind in batch.pairs() if row["id"] == 2)
    world.lake.delete(TABLE, SequenceRange(2, 3))
    assert ids(store, cursor) == [3, 4]


# ── what a read costs ────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_read_of_new_rows_touches_only_their_files(world: World) -> None:
    """Ten commits or sixty: the newest rows cost one file."""
    costs = []
    store = world.open()
    for commits in (10, 50):
        for _ in range(commits):
            world.capture(store, 2)
            store.flush(DATASET)
        cursor = store.cursor(DATASET)
        world.committed(2)
        before = world.lake.files_read
        assert len(ids(store, cursor)) == 2
        costs.append(world.lake.files_read - before)
    assert costs == [1, 1]


def test_windows_cost_by_blocks_and_not_by_the_span_of_numbers(quick_path: Path) -> None:
    """A dataset first seen at number 10^9 is read in one window, not in ten thousand empty ones."""
    world = World.make(quick_path / "store")
    store = world.open()
    store.engine.database.transact(
        lambda c: c.exec_driver_sql("UPDATE counters SET value = 1000000000 WHERE name='sequence'")
    )
    world.capture(store, 3)
    store.flush(DATASET)
    assert store.horizon(DATASET) == 1_000_000_003
    windows = list(read_module.row_windows(store.engine, DATASET, SequenceRange(0, store.horizon(DATASET))))
    assert windows == [SequenceRange(0, 1_000_000_003)]
    assert ids(store) == [0, 1, 2]
    world.close()


def test_windows_tile_the_range_and_bound_the_rows(world: World, small_batches: int) -> None:
    for count in (3, 2, 9, 1, 4, 4, 1):
        world.committed(count)
    store = world.open()
    for after, through in [(0, 24), (2, 24), (5, 13), (0, 1), (23, 24)]:
        windows = list(read_module.row_windows(store.engine, DATASET, SequenceRange(after, through)))
        assert [window.after for window in windows] == [after, *(window.through for window in windows[:-1])]
        assert windows[-1].through == through
        assert all(len(window) <= small_batches for window in windows)


def test_a_read_asks_the_records_a_fixed_number_of_times(world: World) -> None:
    """Not once per block: ten blocks or a hundred make no difference."""
    asked = []
    for commits in (5, 30):
        for _ in range(commits):
            world.committed(1)
        store = world.open()
        ids(store)
        statements: list[str] = []
        connected = store.engine.database.read(lambda c: c.engine)
        event.listen(connected, "before_cursor_execute", lambda *a, s=statements: s.append(a[2]))
        ids(store)
        asked.append(len(statements))
    assert asked[0] == asked[1]


def test_reading_what_cannot_be_read_says_so(world: World) -> None:
    world.committed(2)
    world.lake.data.clear()
    with pytest.raises(FloodmarkError):
        ids(world.open())
