"""A dataset gets a new table while others flush, deliver, read, remove rows and rebuild: nobody notices."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from rebuilding import POINTS, SOME_POINTS, Rebuilding, patiently
from removing import NAME, Aged
from worlds import DATASET, dies, interrupted

from floodmark import faults
from floodmark.control.generations import TakenOver
from floodmark.errors import Corrupt, InvalidSetting, Permanent, Retryable
from floodmark.layout import Layout
from floodmark.maintenance.rebuild import remove_retired
from floodmark.testing import kill_store


def at(point: str, action: Any) -> Any:
    return interrupted(**{point.replace(".", "__"): action})


def refused(work: Callable[[], Any], said: str) -> None:
    with pytest.raises(Retryable, match=said):
        work()


# ── flushes, sinks, readers ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("point", POINTS)
def test_a_flush_at_any_step_is_in_the_new_table_or_waits(rebuilding: Rebuilding, point: str) -> None:
    """U23: what landed between the last copy and the fence is found by the comparison behind it."""
    rebuilding.begun()
    behind_the_fence = POINTS.index("rebuild.fenced") <= POINTS.index(point) < POINTS.index("rebuild.switched")
    told: list[bool] = []
    with at(point, lambda: told.append(rebuilding.flush())):
        rebuilding.rebuild()
    assert told == [not behind_the_fence]
    rebuilding.check_all()


@pytest.mark.parametrize("point", SOME_POINTS)
def test_a_sink_gets_what_is_new_at_any_step(rebuilding: Rebuilding, point: str) -> None:
    store = rebuilding.begun()
    rebuilding.capture(store, 3)
    store.flush(DATASET)
    reports: list[Any] = []
    with at(point, lambda: reports.append(rebuilding.open().export("out"))):
        rebuilding.rebuild()
    assert [(report.rows, report.errors) for report in reports] == [(3, {})]
    rebuilding.check_all()


def test_watermarks_and_cursors_do_not_notice(rebuilding: Rebuilding) -> None:
    store = rebuilding.begun()
    cursor, mark, horizon = store.cursor(DATASET), store.watermark("out", DATASET), store.horizon(DATASET)
    before = rebuilding.table()
    rebuilding.rebuild()
    assert rebuilding.table() == before, "every row has its number and its content"
    assert (store.watermark("out", DATASET), store.horizon(DATASET)) == (mark, horizon)
    rebuilding.lake.rows_read = 0
    assert store.export("out").rows == 0
    assert list(store.read_since(DATASET, cursor)) == []
    assert rebuilding.lake.rows_read == 0, "a tick without anything new touches nothing"
    rebuilding.flush(3)
    assert store.export("out").rows == 3
    assert sum(batch.table.num_rows for batch in store.read_since(DATASET, cursor)) == 3


def test_a_reader_in_the_middle_is_told_to_read_again_from_its_cursor(rebuilding: Rebuilding) -> None:
    store = rebuilding.begun()
    seen, cursor = [], None
    batches = store.read_since(DATASET)
    first = next(batches)
    seen += first.table["id"].to_pylist()
    cursor = first.cursor
    rebuilding.rebuild()
    try:
        for batch in batches:
            seen += batch.table["id"].to_pylist()
            cursor = batch.cursor
    except Retryable:
        pass
    seen += [id for batch in store.read_since(DATASET, cursor) for id in batch.table["id"].to_pylist()]
    assert seen == rebuilding.ids_in_table()


def test_an_export_in_the_middle_sends_the_same_ranges_afterwards(rebuilding: Rebuilding) -> None:
    store = rebuilding.begun()
    rebuilding.capture(store, 5)
    store.flush(DATASET)
    reports: list[Any] = []
    with at("delivery.planned", rebuilding.rebuild):
        reports.append(store.export("out"))
    assert patiently(lambda: store.export("out"))
    rebuilding.check_all()


def test_columns_that_come_meanwhile_are_in_the_new_table(rebuilding: Rebuilding) -> None:
    rebuilding.begun()

    def wider() -> None:
        store = rebuilding.open()
        rows = [{**row, "note": "new"} for row in rebuilding.rows(2)]
        store.capture(DATASET, rows)
        rebuilding.acknowledged.extend(row["id"] for row in rows)
        store.flush(DATASET)

    with at("rebuild.copied", wider):
        rebuilding.rebuild()
    assert [row.get("note") for row in rebuilding.table()].count("new") == 2
    rebuilding.check(gone=())


def test_a_compaction_and_an_expiry_of_the_old_table_do_no_harm(rebuilding: Rebuilding) -> None:
    rebuilding.begun()

    def tidy() -> None:
        rebuilding.lake.compact("events_g1")
        rebuilding.lake.expire("events_g1", keep=1)

    with at("rebuild.copied", tidy):
        rebuilding.rebuild()
    rebuilding.check_all()


@pytest.mark.usefixtures("small_copies")
@pytest.mark.parametrize("point", ["rebuild.copied", "rebuild.caught_up"])
def test_values_that_change_in_the_old_table_meanwhile_are_those_of_the_new_one(quick_path: Path, point: str) -> None:
    """U23: a row that is settled again keeps its number and its content id, and is another row all the same."""
    world = Rebuilding.make(quick_path / "store", schema={"id": "long", "note": "string"})
    world.begun()

    def settle() -> None:
        found = world.lake.tables["events_g1"]
        files = found.files[found.head or 0]
        rows = world.lake.data[files[0]]
        notes = pa.array(["settled"] * rows.num_rows)
        names = [name for name in rows.column_names if name != "note"]
        changed = world.lake.store(rows.select(names).append_column("note", notes))
        world.lake.commit(found, operation="overwrite", files=(changed, *files[1:]), added_rows=0)

    with at(point, settle):
        world.rebuild()
    assert [row.get("note") for row in world.table()].count("settled") == 4
    world.close()


# ── several rebuilders ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("point", POINTS)
def test_a_second_rebuilder_takes_over_and_the_first_finds_out(rebuilding: Rebuilding, point: str) -> None:
    """U20: two of them never double a row."""
    rebuilding.begun()
    second: list[Any] = []
    with at(point, lambda: second.append(rebuilding.rebuild(takeover=True))):
        try:
            rebuilding.rebuild()
        except TakenOver:
            assert point != "rebuild.switched"
        else:
            assert point == "rebuild.switched"
    assert second[0].rows == 7
    rebuilding.check_all()


@pytest.mark.parametrize("point", ["rebuild.taken_over", "rebuild.copying", "rebuild.equal"])
@pytest.mark.parametrize("other", ["rebuild.taken_over", "rebuild.renamed"])
def test_a_rebuilder_that_was_taken_over_from_goes_on_at_any_step_of_the_other(
    rebuilding: Rebuilding, point: str, other: str
) -> None:
    """U20, U23: the other has begun, and dies; the first is too late for everything; a third one ends it."""
    rebuilding.begun()
    with at(point, lambda: dies(lambda: rebuilding.rebuild(takeover=True), other)), pytest.raises(TakenOver):
        rebuilding.rebuild()
    rebuilding.flush()
    rebuilding.rebuild(takeover=True)
    rebuilding.check_all()


def test_without_being_told_to_nobody_takes_over_from_a_process_at_work(rebuilding: Rebuilding) -> None:
    rebuilding.begun()
    with at("rebuild.copied", lambda: refused(rebuilding.rebuild, "another process")):
        rebuilding.rebuild()
    rebuilding.check_all()


@pytest.mark.parametrize("point", ["rebuild.caught_up", "rebuild.equal", "rebuild.switched"])
def test_a_slow_copy_of_an_earlier_epoch_has_nowhere_to_land(rebuilding: Rebuilding, point: str) -> None:
    """U20: after the comparison it would double rows."""
    rebuilding.begun()
    rebuilding.lake.on_copy = lambda _: "hold"
    assert dies(rebuilding.rebuild, "rebuild.taken_over", time=2)
    rebuilding.close()
    rebuilding.lake.on_copy = None
    landed: list[bool] = []
    with at(point, lambda: landed.extend(rebuilding.lake.deliver_held_copies())):
        rebuilding.rebuild()
    assert landed == [False]
    rebuilding.check_all()


@pytest.mark.parametrize("fate", ["hold", "lose_answer", "drop"])
def test_who_does_not_know_what_became_of_a_copy_takes_over_from_itself(rebuilding: Rebuilding, fate: str) -> None:
    """U21"""
    rebuilding.begun()
    fates = iter([fate])
    rebuilding.lake.on_copy = lambda _: next(fates, "land")
    report = rebuilding.rebuild()
    assert report.epochs == 2
    assert rebuilding.lake.deliver_held_copies() == ([False] if fate == "hold" else [])
    rebuilding.check_all()


def test_a_rebuild_that_never_gets_a_copy_through_says_so_and_goes_on_later(rebuilding: Rebuilding) -> None:
    rebuilding.begun()
    rebuilding.lake.on_copy = lambda _: "drop"
    with pytest.raises(Retryable, match="5 attempts"):
        rebuilding.rebuild()
    rebuilding.lake.on_copy = None
    assert rebuilding.flush()
    rebuilding.rebuild()
    rebuilding.check_all()


# ── removals ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("point", POINTS)
def test_rows_that_retention_removes_at_any_step_do_not_come_back(rebuilding: Rebuilding, point: str) -> None:
    """U23, U24: they go from the staging table too, or the retention waits for the switch."""
    rebuilding.begun()

    def retain() -> None:
        patiently(lambda: rebuilding.open().retain(DATASET, keep_rows=4), times=1)

    with at(point, retain):
        rebuilding.rebuild()
    rebuilding.open().retain(DATASET, keep_rows=4)
    rebuilding.check_all(gone=(0, 1, 2))
    assert rebuilding.ids_in_table() == [3, 4, 5, 6]


@pytest.mark.parametrize("point", ["removal.planned", "removal.deleted", "removal.recorded"])
@pytest.mark.parametrize("moment", ["rebuild.copied", "rebuild.caught_up"])
def test_a_removal_that_was_left_unfinished_is_ended_before_the_fence(
    rebuilding: Rebuilding, point: str, moment: str
) -> None:
    """U24"""
    rebuilding.begun()

    def retain_and_die() -> None:
        store = rebuilding.open()
        assert dies(lambda: store.retain(DATASET, keep_rows=4), point)

    with at(moment, retain_and_die):
        rebuilding.rebuild()
    rebuilding.check_all(gone=(0, 1, 2))
    assert rebuilding.ids_in_table() == [3, 4, 5, 6]


@pytest.mark.parametrize("point", ["rebuild.fenced", "rebuild.renamed", "rebuild.equal"])
def test_behind_the_fence_no_removal_begins(rebuilding: Rebuilding, point: str) -> None:
    """U24: planned now, and carried out after the switch, it would look for its rows in a table that nobody reads."""
    rebuilding.begun()
    planned: list[bool] = []

    def retain() -> None:
        store = rebuilding.open()
        planned.append(dies(lambda: patiently(lambda: store.retain(DATASET, keep_rows=4), times=1), "removal.planned"))

    with at(point, retain):
        rebuilding.rebuild()
    assert planned == [False]
    rebuilding.open().retain(DATASET, keep_rows=4)
    rebuilding.check_all(gone=(0, 1, 2))


@pytest.mark.parametrize("time", [1, 2])
def test_a_repair_that_died_is_repaired(rebuilding: Rebuilding, time: int) -> None:
    rebuilding.begun()

    def retain_then_die() -> None:
        rebuilding.open().retain(DATASET, keep_rows=4)
        faults.arm("rebuild.cleared", faults.nth_time(time, _die))

    try:
        with at("rebuild.copied", retain_then_die):
            rebuilding.rebuild()
    except _Died:
        rebuilding.close()
        rebuilding.rebuild()
    rebuilding.check_all(gone=(0, 1, 2))


class _Died(BaseException):
    pass


def _die() -> None:
    raise _Died


def test_a_late_copy_does_not_bring_back_what_retention_removed(rebuilding: Rebuilding) -> None:
    """U21: the rebuilder did not wait for it; the rows went from both tables; then it arrives."""
    rebuilding.begun()
    fates = iter(["hold"])
    rebuilding.lake.on_copy = lambda _: next(fates, "land")
    rebuilding.rebuild()
    rebuilding.open().retain(DATASET, keep_rows=4)
    assert rebuilding.lake.deliver_held_copies() == [False]
    rebuilding.check_all(gone=(0, 1, 2))


@pytest.fixture
def aged(quick_path: Path) -> Any:
    made = Aged(quick_path)
    yield made
    kill_store(made.store)


def test_purge_is_refused_while_a_dataset_is_rebuilt_and_rebuild_ends_a_purge_first(aged: Aged) -> None:
    aged.flush(*[aged.row(id, who="bob" if id == 2 else "ann") for id in range(5)])
    assert dies(lambda: aged.store.purge(NAME, "who = 'bob'"), "removal.planned")
    aged.restart()
    other = aged.open()
    with at("rebuild.copied", lambda: refused(lambda: other.purge(NAME, "who = 'ann'"), "rebuilt")):
        aged.store.rebuild(NAME)
    kill_store(other)
    ids = [row["id"] for batch in aged.store.read_since(NAME) for row in batch.table.to_pylist()]
    assert ids == [0, 1, 3, 4]


def test_purged_rows_are_gone_from_retired_tables_too(aged: Aged) -> None:
    aged.flush(*[aged.row(id, who="bob" if id == 2 else "ann") for id in range(5)])
    aged.store.rebuild(NAME)
    assert aged.store.purge(NAME, "who = 'bob'").rows == 1
    assert aged.bytes_anywhere("bob") == []


# ── layouts, names, what is left behind ──────────────────────────────────────────────────────────────────────────────


def test_the_new_table_has_the_layout_asked_for_and_keeps_it(rebuilding: Rebuilding) -> None:
    rebuilding.begun()
    report = rebuilding.rebuild(bucket_width=4096, warehouse="memory://elsewhere", sort=["site"])
    wanted = Layout(4096, 2, "memory://elsewhere", ("site",))
    assert (report.layout, rebuilding.declared().layout) == (wanted, wanted)
    assert rebuilding.lake.tables[rebuilding.current()].layout == wanted
    assert report.location == f"memory://elsewhere/{rebuilding.current()}"
    assert report.previous_location == "memory:/events_g1"
    assert rebuilding.rebuild(format_version=3).layout == Layout(4096, 3, "memory://elsewhere", ("site",))
    rebuilding.check_all()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"bucket_width": 3}, "bucket width"),
        ({"format_version": 1}, "format version"),
        ({"sort": ["colour"]}, "colour"),
    ],
)
def test_a_layout_that_cannot_be_is_refused_before_anything_begins(
    rebuilding: Rebuilding, options: dict[str, Any], said: str
) -> None:
    rebuilding.begun()
    with pytest.raises(InvalidSetting, match=said):
        rebuilding.rebuild(**options)
    assert rebuilding.generations() == {}


def test_a_rebuild_that_was_begun_is_ended_in_its_own_layout(rebuilding: Rebuilding) -> None:
    rebuilding.begun()
    assert dies(lambda: rebuilding.rebuild(bucket_width=4096), "rebuild.copied")
    rebuilding.close()
    with pytest.raises(Permanent, match="another layout"):
        rebuilding.rebuild(bucket_width=8192)
    assert rebuilding.rebuild().layout.bucket_width == 4096
    rebuilding.check_all()


def test_a_dataset_that_was_never_flushed_can_be_rebuilt(rebuilding: Rebuilding) -> None:
    assert rebuilding.rebuild(bucket_width=4096).rows == 0
    rebuilding.begun()
    rebuilding.check_all()


def test_the_old_table_stays_for_a_while_and_then_goes(rebuilding: Rebuilding) -> None:
    rebuilding.begun()
    rebuilding.rebuild()
    assert remove_retired(rebuilding.open().engine, DATASET) == ()
    assert "events_g1_fenced" in rebuilding.lake.tables
    rebuilding.clock.advance(2 * 86_400)
    assert remove_retired(rebuilding.open().engine, DATASET) == (1,)
    assert list(rebuilding.lake.tables) == [rebuilding.current()]
    assert rebuilding.generations() == {1: "removed", 2: "current"}
    rebuilding.check_all()


def test_numbers_are_not_given_again_after_a_rebuild(rebuilding: Rebuilding) -> None:
    """I1: also those that only the old table's history knows."""
    store = rebuilding.begun()
    store.retain(DATASET, keep_rows=0)
    rebuilding.rebuild()
    state = rebuilding.lake.load(rebuilding.current())
    assert state is not None
    assert rebuilding.lake.highest_seq(state) >= 7


def test_a_control_database_of_before_the_rebuild_makes_no_empty_table(rebuilding: Rebuilding, tmp_path: Path) -> None:
    """A name is never used again, and what is committed is never hidden behind a new table."""
    rebuilding.begun()
    rebuilding.close()
    saved = tmp_path / "saved"
    shutil.copytree(rebuilding.root, saved)
    rebuilding.rebuild()
    rebuilding.close()
    for name in ("control.db", "control.db-wal", "control.db-shm"):
        (rebuilding.root / name).unlink(missing_ok=True)
        if (saved / name).exists():
            shutil.copy(saved / name, rebuilding.root / name)
    tables = dict(rebuilding.lake.tables)
    store = rebuilding.open()
    rebuilding.capture(store, 1)
    with pytest.raises(Corrupt, match="before a rebuild"):
        store.flush(DATASET)
    assert rebuilding.lake.tables == tables
