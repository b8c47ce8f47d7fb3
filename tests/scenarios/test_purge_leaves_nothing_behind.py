"""What matches goes from lake, spool and quarantine; it does not come back, and the totals still add up."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from removing import NAME, TABLE, Aged
from sqlalchemy import insert
from worlds import dies

from floodmark.control.schema import quarantine, rebuilds
from floodmark.errors import InvalidSetting, Permanent, Retryable
from floodmark.testing import kill_store

BOB = "who = 'bob the purged'"
POINTS = ["removal.planned", "removal.max_seq_raised", "removal.deleted", "removal.recorded", "removal.expired"]
SPOOL_POINTS = ["segment.announced", "segment.written", "segment.registered", "purge.segment_replaced"]


@pytest.fixture
def world(quick_path: Path) -> Aged:
    return Aged(quick_path)


def bob(world: Aged, id: int, **more):
    return world.row(id, who="bob the purged", **more)


def check_gone(world: Aged) -> None:
    assert world.bytes_anywhere("bob the purged") == []
    control = world.root / "store" / "control.db"
    for path in (control, control.with_name("control.db-wal")):
        assert not path.exists() or b"bob the purged" not in path.read_bytes()


def test_rows_go_from_the_lake_and_from_every_data_file(world: Aged) -> None:
    world.flush(world.row(1), bob(world, 2), world.row(3))
    world.flush(bob(world, 4))
    report = world.store.purge(NAME, BOB)
    assert (report.rows, report.spool_rows, report.identities, report.already_delivered) == (2, 0, 2, ())
    assert report.bytes_freed > 0
    assert world.ids() == [1, 3]
    check_gone(world)
    assert world.store.status().datasets[0].rows == 2


@pytest.mark.parametrize("arrow", [False, True])
def test_rows_that_wait_in_the_spool_do_not_come_back_at_the_next_flush(world: Aged, arrow: bool) -> None:
    """U16: purged from the lake only, they would."""
    rows = [world.row(1), bob(world, 2), world.row(3)]
    world.store.capture(NAME, pa.Table.from_pylist(rows) if arrow else rows)
    world.store.capture(NAME, [bob(world, 4)])
    report = world.store.purge(NAME, BOB)
    assert (report.rows, report.spool_rows, report.landing_files) == (0, 2, ())
    check_gone(world)
    flushed = world.store.flush(NAME)
    assert (flushed.rows, world.ids()) == (2, [1, 3])
    check_gone(world)


def test_rows_in_another_writers_landing_file_are_sealed_and_purged_and_the_file_is_named(world: Aged) -> None:
    other = world.open()
    other.capture(NAME, [bob(world, 1), world.row(2)])
    report = world.store.purge(NAME, BOB)
    assert (report.spool_rows, len(report.landing_files)) == (1, 1)
    kill_store(other)
    world.store.flush(NAME)
    assert world.ids() == [2]
    check_gone(world)


def test_a_backfill_does_not_bring_purged_rows_back(world: Aged) -> None:
    """U13: their hashed identities are kept, those of rows that were never committed too."""
    world.flush(world.row(1), bob(world, 2))
    world.store.capture(NAME, [bob(world, 3)])
    world.store.purge(NAME, BOB)
    again = world.flush(bob(world, 2), bob(world, 3), world.row(1), world.row(4))
    assert (again.rows, again.expired, again.duplicates) == (1, 2, 1)
    assert world.ids() == [1, 4]
    alone = world.flush(bob(world, 2))
    assert (alone.rows, alone.expired, alone.duplicates) == (0, 1, 0)


def test_an_identity_is_a_row_with_its_event_time(world: Aged) -> None:
    """As for duplicates: the same id at another time is another row."""
    world.flush(bob(world, 2, days=1))
    world.store.purge(NAME, BOB)
    assert world.flush(bob(world, 2, days=2)).rows == 1


def test_the_first_identity_that_is_complete_counts(quick_path: Path) -> None:
    world = Aged(quick_path, identity=[["id"], ["who", "site"]])
    first = {"id": None, "who": "bob the purged", "site": "a", "at": None}
    world.flush(first, {**first, "id": 7})
    assert world.store.purge(NAME, BOB).identities == 2
    assert world.flush(first, {**first, "id": 7}, {**first, "site": "b"}).expired == 2


def test_without_an_identity_an_equal_row_is_a_new_row(quick_path: Path) -> None:
    world = Aged(quick_path, identity=None)
    world.flush(bob(world, 2))
    assert world.store.purge(NAME, BOB).identities == 0
    assert world.flush(bob(world, 2)).rows == 1


def test_what_had_already_left_is_counted_for_each_sink(world: Aged) -> None:
    world.sink("ahead")
    world.sink("behind")
    world.sink("elsewhere", partitions={"site": ["b"]})
    world.flush(bob(world, 1), world.row(2))
    world.store.export()
    world.flush(bob(world, 3), bob(world, 4, site="b"))
    world.store.export("ahead")
    forecast = world.store.purge(NAME, BOB, dry_run=True)
    report = world.store.purge(NAME, BOB)
    assert {item.sink: item.rows for item in report.already_delivered} == {"ahead": 3, "behind": 1}
    assert (forecast.rows, forecast.already_delivered, forecast.dry_run) == (3, report.already_delivered, True)
    world.flush(world.row(5))
    world.store.export()
    assert world.delivered("behind") == [1, 2, 5]
    for name in ("ahead", "behind"):
        mark = world.watermark(name)
        assert world.counted(name, "a", mark.seq) == mark.tally


def test_rows_that_a_sinks_filter_left_here_are_not_counted_as_delivered(world: Aged) -> None:
    world.sink("some", where="id > 2")
    world.flush(bob(world, 1), bob(world, 2), bob(world, 3))
    world.store.export("some")
    world.store.change_sink("some", where="id <> 4")
    world.flush(bob(world, 4), bob(world, 5), bob(world, 6))
    world.store.export("some")
    forecast = world.store.purge(NAME, BOB, dry_run=True)
    report = world.store.purge(NAME, BOB)
    assert world.delivered("some") == [3, 5, 6]
    assert (report.rows, [(one.sink, one.rows) for one in report.already_delivered]) == (6, [("some", 3)])
    assert forecast.already_delivered == report.already_delivered


def test_a_dry_run_changes_nothing(world: Aged) -> None:
    world.flush(bob(world, 1))
    world.store.capture(NAME, pa.Table.from_pylist([bob(world, 2)]))
    report = world.store.purge(NAME, BOB, dry_run=True)
    assert (report.rows, report.spool_rows) == (1, 1)
    world.store.flush(NAME)
    assert world.ids() == [1, 2]
    assert world.removals() == []


def test_quarantined_lines_and_rows_go_and_what_cannot_be_judged_is_named(world: Aged) -> None:
    world.store.capture(NAME, [world.row(0), {"id": "no number", "who": "bob the purged", "site": "a"}])
    world.store.capture(NAME, [world.row(9), {"id": "no number", "who": "ann", "site": "a"}])
    world.flush()
    torn = {"id": "torn", "dataset": NAME, "state": "held", "reason": "torn", "payload": "{bo", "created_at": "t"}
    row = json.dumps({"id": 3, "who": "bob the purged", "site": "a", "at": "2026-05-05T00:00:00Z"})
    refused = {**torn, "id": "refused", "payload": row, "sink": "s", "seq": 3, "partition_key": "site=a"}
    world.store.engine.database.transact(
        lambda c: [c.execute(insert(quarantine).values(**one)) for one in (torn, refused)]
    )
    report = world.store.purge(NAME, BOB)
    assert (report.quarantined, report.not_evaluated) == (2, ("torn",))
    check_gone(world)
    assert max(entry.reason for entry in world.store.quarantine.entries(NAME)) == "torn"
    assert len(world.store.quarantine.entries(NAME)) == 2


def test_a_payload_in_a_file_of_its_own_goes_too(world: Aged) -> None:
    long = "x" * (70 << 10)
    world.store.capture(NAME, [world.row(0), {"id": long, "who": "bob the purged", "site": "a"}])
    assert list((world.root / "store" / "quarantine").rglob("*.jsonl"))
    assert world.store.purge(NAME, BOB).quarantined == 1
    assert list((world.root / "store" / "quarantine").rglob("*.jsonl")) == []


@pytest.mark.parametrize("point", [*POINTS, "purge.quarantine_cleared"])
def test_a_purge_that_dies_anywhere_is_ended_by_the_next_one(world: Aged, point: str) -> None:
    """U12, U15: and no row of it is counted twice."""
    world.sink()
    world.flush(world.row(1), bob(world, 2), bob(world, 3, site="b"))
    world.store.export()
    whole = {site: world.counted("out", site, 3) for site in "ab"}
    assert dies(lambda: world.store.purge(NAME, BOB), point)
    world.restart()
    world.flush(bob(world, 4), world.row(5))
    world.store.purge(NAME, BOB)
    assert world.ids() == [1, 5]
    assert sum(item.row_count for item in world.removals()) == 3
    assert {site: world.counted("out", site, 3) for site in "ab"} == whole
    assert {item.state for item in world.operations()} == {"done"}
    check_gone(world)


@pytest.mark.parametrize("point", SPOOL_POINTS)
@pytest.mark.parametrize("flush_between", [False, True])
def test_a_purge_that_dies_in_the_spool_loses_and_doubles_nothing(world: Aged, point: str, flush_between: bool) -> None:
    """U16: the rows are in the old segment or in its copy."""
    table = pa.Table.from_pylist([world.row(1), bob(world, 2), world.row(3)])
    world.store.capture(NAME, table)
    assert dies(lambda: world.store.purge(NAME, BOB), point)
    world.restart()
    if flush_between:
        world.store.flush(NAME)
    world.store.purge(NAME, BOB)
    world.store.flush(NAME)
    assert world.ids() == [1, 3]
    check_gone(world)


@pytest.mark.parametrize(
    "point", ["flush.base_loaded", "flush.reserved", "flush.appended", "flush.synced", "flush.recorded"]
)
def test_a_commit_that_nobody_recorded_is_settled_before_its_rows_are_purged(world: Aged, point: str) -> None:
    """U15: else the rows by which it is recognised would be gone, and it would be sent again."""
    world.store.capture(NAME, [world.row(1), bob(world, 2)])
    assert dies(lambda: world.store.flush(NAME), point)
    world.restart()
    world.store.purge(NAME, BOB)
    world.store.flush(NAME)
    assert world.ids() == [1]
    check_gone(world)


def test_a_request_that_arrives_late_does_not_bring_purged_rows_back(world: Aged) -> None:
    """U15: the append was sent, no answer came, and it lands in the middle of the purge."""
    world.flush(world.row(1))
    world.store.capture(NAME, [world.row(2), bob(world, 3)])
    world.lake.on_append = lambda _request: "hold"
    with pytest.raises(Retryable):
        world.store.flush(NAME)
    world.lake.on_append = None
    world.restart()
    world.store.purge(NAME, BOB)
    assert world.lake.deliver_held().count(True) == 0
    world.store.flush(NAME)
    assert world.ids() == [1, 2]


def test_a_flush_between_two_steps_takes_nothing_past_the_purge(world: Aged) -> None:
    """U16: the segment that was to be replaced is in a block by then; its rows are purged from the lake."""
    world.store.capture(NAME, pa.Table.from_pylist([world.row(1), bob(world, 2)]))
    matching = world.lake.matching
    done: list[int] = []

    def late(rows, condition, *, schema):
        if rows.num_rows and not done:
            done.append(1)
            world.open().flush(NAME)
        return matching(rows, condition, schema=schema)

    world.store.engine.lake = _Lake(world.lake, late)
    report = world.store.purge(NAME, BOB)
    assert (report.rows, report.spool_rows) == (1, 0)
    assert world.ids() == [1]
    check_gone(world)


class _Lake:
    def __init__(self, lake, matching) -> None:
        self._lake, self.matching = lake, matching

    def __getattr__(self, name: str):
        return getattr(self._lake, name)


def test_rows_on_their_way_to_a_sink_are_settled_first(world: Aged) -> None:
    """U11: nobody knows whether they arrived; sent again without the rows, the range would be another."""
    world.sink()
    world.flush(world.row(1), bob(world, 2))
    assert dies(lambda: world.store.export("out"), "delivery.shipped")
    world.restart()
    with pytest.raises(Permanent, match="being delivered to sink 'out'"):
        world.store.purge(NAME, BOB)
    world.store.export("out")
    report = world.store.purge(NAME, BOB)
    assert (report.rows, [(one.sink, one.rows) for one in report.already_delivered]) == (1, [("out", 1)])
    assert world.store.export("out").rows == 0


def test_an_intent_without_such_rows_does_not_stand_in_the_way(world: Aged) -> None:
    world.sink()
    world.flush(bob(world, 1))
    world.store.export("out")
    world.flush(world.row(2))
    assert dies(lambda: world.store.export("out"), "delivery.shipped")
    world.restart()
    assert world.store.purge(NAME, BOB).rows == 1
    world.store.export("out")
    assert world.delivered() == [1, 2]


def test_during_a_rebuild_a_purge_is_refused(world: Aged) -> None:
    world.flush(bob(world, 1))
    values = {"id": "r", "dataset": NAME, "state": "open", "epoch": 1, "settings": "{}"}
    world.store.engine.database.transact(lambda c: c.execute(insert(rebuilds).values(**values)))
    with pytest.raises(Retryable, match="rebuilt"):
        world.store.purge(NAME, BOB)
    assert world.ids() == [1]


@pytest.mark.parametrize("wrong", ["nothing = 1", "who = ", "_ingest_seq > 1", "rand() > 0.5", "1 = 1; drop table x"])
def test_a_condition_that_cannot_be_used_is_refused_before_anything_goes(world: Aged, wrong: str) -> None:
    world.flush(bob(world, 1))
    with pytest.raises(InvalidSetting):
        world.store.purge(NAME, wrong)
    assert world.ids() == [1]


def test_a_copy_of_duplicates_that_is_kept_for_a_restored_database_goes_too(world: Aged) -> None:
    world.flush(bob(world, 1))
    world.flush(bob(world, 1))
    assert [path for path in (world.root / "store" / "spool").rglob("*.parquet") if pq.read_table(path).num_rows]
    world.store.purge(NAME, BOB)
    check_gone(world)


def test_a_purge_of_a_dataset_without_rows_does_nothing(world: Aged) -> None:
    report = world.store.purge(NAME, BOB)
    assert (report.rows, report.spool_rows, report.quarantined) == (0, 0, 0)
    assert world.lake.load(TABLE) is None


def test_what_spark_has_quoted_of_a_row_in_its_log_goes_too(world: Aged) -> None:
    world.store.capture(NAME, [bob(world, 1)])
    world.store.flush()
    log = world.store.path / "logs" / "spark.log"
    log.parent.mkdir()
    for file in (log, log.with_name("spark.log.1")):
        file.write_text("ERROR Executor: [CAST_INVALID_INPUT] The value 'bob the purged' cannot be cast\n")
    world.store.purge(NAME, BOB, dry_run=True)
    assert log.stat().st_size > 0
    world.store.purge(NAME, BOB)
    assert [file.read_bytes() for file in log.parent.iterdir()] == [b"", b""]
