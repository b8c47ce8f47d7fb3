"""Old rows go, but none that a sink has still to get; what is given up is recorded, and everything still adds up."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from removing import NAME, TABLE, Aged, all_numbers
from worlds import dies

from floodmark.delivery import tick
from floodmark.delivery.sinks.blob import CLAIM
from floodmark.engine import Engine
from floodmark.errors import InvalidSetting, Retryable
from floodmark.lake import inventory
from floodmark.maintenance import retain
from floodmark.maintenance.remover import Counted, count_rows
from floodmark.read import View, view_of
from floodmark.sequence import SequenceRange, Tally
from floodmark.testing import MemoryLake

POINTS = ["removal.planned", "removal.max_seq_raised", "removal.deleted", "removal.recorded", "removal.expired"]


@pytest.fixture
def world(quick_path: Path) -> Aged:
    return Aged(quick_path)


def test_rows_past_their_age_go_and_the_others_stay(world: Aged) -> None:
    world.flush(world.row(1, days=40), world.row(2, days=5), world.row(3, days=None), world.row(4, days=31))
    report = world.store.retain(NAME, older_than="30d")
    assert (report.rows, report.held_back_by) == (2, ())
    assert world.ids() == [2, 3]
    assert report.bytes_freed > 0
    assert world.store.status().datasets[0].rows == 2


def test_a_dry_run_tells_and_changes_nothing(world: Aged) -> None:
    world.flush(world.row(1, days=40), world.row(2, days=5))
    report = world.store.retain(NAME, older_than="30d", dry_run=True)
    assert (report.rows, report.dry_run, report.bytes_freed) == (1, True, 0)
    assert world.ids() == [1, 2]
    assert world.removals() == []
    assert world.store.datasets()[0].event_cutoff is None


def test_a_row_that_a_lagging_sink_has_not_got_waits_and_the_sink_is_named(world: Aged) -> None:
    """U10: pruned first, the row would never be delivered."""
    world.sink()
    world.flush(world.row(1, days=40), world.row(2, days=40, site="b"))
    world.store.export("out")
    world.flush(world.row(3, days=39), world.row(4, days=1))
    report = world.store.retain(NAME, older_than="30d")
    assert world.ids() == [3, 4]
    (holding,) = report.held_back_by
    assert (holding.sink, holding.lag_rows, holding.rows) == ("out", 2, 1)
    assert holding.bytes > 0
    world.store.export("out")
    assert world.delivered() == [1, 2, 3, 4]
    assert world.store.retain(NAME, older_than="30d").rows == 1
    assert world.ids() == [4]


def test_backfilled_old_rows_with_new_numbers_are_not_pruned_before_they_are_delivered(world: Aged) -> None:
    """U10: retention looks at times, delivery at numbers. Old rows that came late have high numbers."""
    world.sink()
    world.flush(*[world.row(id, days=1) for id in range(5)])
    world.store.export("out")
    world.flush(*[world.row(id, days=90) for id in range(10, 15)])
    assert world.store.retain(NAME, older_than="30d").rows == 0
    world.store.export("out")
    assert world.delivered() == [0, 1, 2, 3, 4, 10, 11, 12, 13, 14]
    assert world.store.retain(NAME, older_than="30d").rows == 5


def test_what_retention_removed_does_not_come_back_with_a_backfill(world: Aged) -> None:
    """U13: its identities are forgotten with it, so the cut-off is what is remembered."""
    old = [world.row(id, days=40) for id in range(3)]
    world.flush(*old, world.row(9))
    world.store.retain(NAME, older_than="30d")
    report = world.flush(*old, world.row(10), world.row(11, days=None))
    assert (report.rows, report.expired, report.duplicates) == (2, 3, 0)
    assert world.ids() == [9, 10, 11]
    again = world.flush(*old)
    assert (again.rows, again.expired) == (0, 3)
    assert world.store.flush(NAME).expired == 0


def test_the_cut_off_only_rises(world: Aged) -> None:
    world.flush(world.row(1, days=40), world.row(2, days=20))
    world.store.retain(NAME, older_than="30d")
    cutoff = world.store.datasets()[0].event_cutoff
    world.store.retain(NAME, older_than="60d")
    assert world.store.datasets()[0].event_cutoff == cutoff
    assert world.flush(world.row(3, days=45)).expired == 1


def test_duplicates_and_expired_rows_are_counted_apart(world: Aged) -> None:
    world.flush(world.row(1, days=40), world.row(2, days=1))
    world.store.retain(NAME, older_than="30d")
    report = world.flush(world.row(1, days=40), world.row(2, days=1), world.row(3))
    assert (report.rows, report.duplicates, report.expired) == (1, 1, 1)


def test_by_ingest_time_a_row_is_as_old_as_its_commit(world: Aged) -> None:
    world.flush(world.row(1, days=0))
    world.clock.advance(10 * 86_400)
    world.flush(world.row(2, days=400))
    world.clock.advance(25 * 86_400)
    report = world.store.retain(NAME, older_than="30d", by="ingest_time")
    assert (report.rows, world.ids(), report.event_cutoff) == (1, [2], None)
    assert world.flush(world.row(3, days=400)).expired == 0


@pytest.mark.parametrize(
    ("keep", "left"), [(0, []), (1, [6]), (4, [3, 4, 5, 6]), (7, list(range(7))), (99, list(range(7)))]
)
def test_all_but_the_newest_rows_go(world: Aged, keep: int, left: list[int]) -> None:
    for first, last in ((0, 3), (3, 4), (4, 7)):
        world.flush(*[world.row(id) for id in range(first, last)])
    world.store.retain(NAME, keep_rows=keep)
    assert world.ids() == left
    world.flush(world.row(7))
    world.store.retain(NAME, keep_rows=keep)
    assert world.ids() == [*left, 7][-keep:] if keep else world.ids() == []


@pytest.mark.parametrize(
    ("keep", "buckets"), [(1, 1), (700, 1), (1500, 1), (2500, 1), (3000, 0)], ids=["1", "700", "1500", "2500", "all"]
)
def test_whole_buckets_are_counted_by_the_tables_lists_and_rows_are_read_of_one(
    world: Aged, monkeypatch: pytest.MonkeyPatch, keep: int, buckets: int
) -> None:
    """Of 10^10 rows to keep half would take hours to count one by one."""
    monkeypatch.setattr(MemoryLake, "width_of", lambda _lake, _table: 1024)
    for first in range(0, 3000, 500):
        world.flush(*[world.row(id) for id in range(first, first + 500)])
    read: list[SequenceRange] = []
    scan = MemoryLake.scan

    def noted(*arguments: Any, within: SequenceRange, **options: Any) -> Any:
        read.append(within)
        return scan(*arguments, within=within, **options)

    monkeypatch.setattr(MemoryLake, "scan", noted)
    assert world.store.retain(NAME, keep_rows=keep, dry_run=True).rows == 3000 - keep
    assert len({item.through // 1024 for item in read}) == buckets
    world.store.retain(NAME, keep_rows=keep)
    assert world.ids() == list(range(3000 - keep, 3000))


def test_a_sink_in_whose_scope_a_partition_does_not_lie_holds_nothing_back(world: Aged) -> None:
    world.sink("only_b", partitions={"site": ["b"]})
    world.flush(world.row(1, days=40), world.row(2, days=40, site="b"))
    report = world.store.retain(NAME, older_than="30d")
    assert world.ids() == [2]
    assert [item.sink for item in report.held_back_by] == ["only_b"]


def test_a_blocked_sink_still_needs_its_rows_and_a_removed_one_does_not(world: Aged) -> None:
    world.sink()
    world.flush(world.row(1, days=40))
    (world.root / "out").mkdir()
    (world.root / "out" / CLAIM).write_text("{}")
    world.store.export("out")
    assert world.store.retain(NAME, older_than="30d").rows == 0
    world.store.remove_sink("out")
    assert world.store.retain(NAME, older_than="30d").rows == 1


def test_a_sink_that_starts_now_needs_nothing_from_before(world: Aged) -> None:
    world.flush(world.row(1, days=40))
    world.sink(start="now")
    assert world.store.retain(NAME, older_than="30d").rows == 1


def test_the_slowest_of_several_sinks_counts(world: Aged) -> None:
    world.sink("fast")
    world.sink("slow")
    world.flush(world.row(1, days=40))
    world.store.export()
    world.flush(world.row(2, days=40), world.row(3))
    world.store.export("fast")
    report = world.store.retain(NAME, older_than="30d")
    assert ([item.sink for item in report.held_back_by], world.ids()) == (["slow"], [2, 3])


def test_a_sink_that_is_given_up_loses_exactly_what_is_recorded(world: Aged) -> None:
    world.sink()
    world.flush(world.row(1, days=40), world.row(2, days=40))
    world.store.export("out")
    world.flush(world.row(3, days=40), world.row(4, days=40), world.row(5))
    report = world.store.retain(NAME, older_than="30d", give_up="out")
    assert (report.rows, report.held_back_by, world.ids()) == (4, (), [5])
    (forfeit,) = report.forfeited
    assert (forfeit.sink, forfeit.partition, forfeit.rows) == ("out", "site=a", 2)
    assert [(item.after_seq, item.through_seq, item.row_count) for item in world.forfeits()] == [(2, 4, 2)]
    assert [(item.after_seq, item.through_seq, item.row_count) for item in world.removals()] == [(0, 2, 2), (2, 4, 2)]
    world.store.export("out")
    assert world.delivered() == [1, 2, 5]
    mark = world.watermark()
    assert world.counted("out", "a", mark.seq) == mark.tally


def test_what_is_under_way_to_a_sink_stays_even_if_the_sink_is_given_up(world: Aged) -> None:
    """U11: the chunk may have arrived, and is sent again as it was pinned."""
    world.sink()
    world.flush(*[world.row(id, days=40) for id in range(4)])
    assert dies(lambda: world.store.export("out"), "delivery.shipped")
    world.restart()
    world.flush(world.row(8, days=40), world.row(9))
    report = world.store.retain(NAME, older_than="30d", give_up="out")
    assert world.ids() == [0, 1, 2, 3, 9]
    assert [item.rows for item in report.forfeited] == [1]
    world.store.export("out")
    assert world.delivered() == [0, 1, 2, 3, 9]
    mark = world.watermark()
    assert world.counted("out", "a", mark.seq) == mark.tally


def test_totals_still_agree_after_retention_and_after_what_came_since(world: Aged) -> None:
    """U12: a hub and this store compare rows and checksums of all that was delivered, removed rows among them."""
    world.sink()
    for day in range(3):
        world.flush(*[world.row(day * 10 + id, days=40 - day, site="ab"[id % 2]) for id in range(6)])
        world.store.export("out")
    before = {site: world.counted("out", site, 18) for site in "ab"}
    world.store.retain(NAME, older_than="39d")
    world.store.retain(NAME, older_than="30d")
    assert world.ids() == []
    assert {site: world.counted("out", site, 18) for site in "ab"} == before
    world.flush(world.row(99))
    world.store.export("out")
    mark = world.watermark()
    assert world.counted("out", "a", mark.seq) == mark.tally


@pytest.mark.parametrize("point", POINTS)
def test_a_retention_that_dies_anywhere_is_ended_by_the_next_one(world: Aged, point: str) -> None:
    """U12, U15: the same rows go, once, and are counted once."""
    world.sink()
    world.flush(*[world.row(id, days=40, site="ab"[id % 2]) for id in range(6)], world.row(7))
    world.store.export("out")
    whole = {site: world.counted("out", site, 7) for site in "ab"}
    assert dies(lambda: world.store.retain(NAME, older_than="30d"), point)
    world.restart()
    world.flush(world.row(8))
    world.store.retain(NAME, older_than="30d")
    assert world.ids() == [7, 8]
    assert [item.state for item in world.operations()] == ["done"]
    assert {item.state for item in world.removals()} == {"done"}
    assert sum(item.row_count for item in world.removals()) == 6
    assert {site: world.counted("out", site, 7) for site in "ab"} == whole
    assert world.store.status().datasets[0].rows == 2
    assert len(world.lake.tables[TABLE].snapshots) == 1


@pytest.mark.parametrize("point", ["flush.reserved", "flush.appended", "flush.synced"])
def test_a_commit_that_nobody_recorded_is_settled_before_rows_go(world: Aged, point: str) -> None:
    """U15: removed first, the rows by which the commit is recognised would be flushed again."""
    world.flush(world.row(1, days=50))
    world.store.capture(NAME, [world.row(2, days=50), world.row(3)])
    assert dies(lambda: world.store.flush(NAME), point)
    world.restart()
    world.store.retain(NAME, older_than="30d")
    world.store.flush(NAME)
    assert world.ids() == [3]
    assert all_numbers(world) == sorted(set(all_numbers(world)))


def test_no_number_is_given_twice_after_the_newest_rows_are_gone(world: Aged) -> None:
    """U15: the table itself remembers, also for a control database that was lost."""
    world.flush(*[world.row(id, days=40) for id in range(5)])
    world.store.retain(NAME, older_than="30d")
    state = world.lake.load(TABLE)
    assert state is not None
    assert state.max_seq >= 5
    assert inventory.highest_seq(world.lake, state) >= 5
    world.flush(world.row(9))
    assert all_numbers(world) == [6]


def test_an_export_that_looked_before_given_up_rows_went_does_not_send_them(
    world: Aged, monkeypatch: pytest.MonkeyPatch
) -> None:
    """U14: what would leave now and be missing at a retry must not leave."""
    world.sink()
    world.flush(world.row(1, days=40), world.row(2))

    def late(engine: Engine, dataset: str) -> View:
        view = view_of(engine, dataset)
        world.open().retain(NAME, older_than="30d", give_up="out")
        return view

    monkeypatch.setattr(tick, "view_of", late)
    report = world.store.export("out")
    assert "just removed or settled again" in next(iter(report.errors.values()))
    assert world.delivered() == []
    monkeypatch.undo()
    world.restart().export("out")
    assert world.delivered() == [2]


def test_nothing_new_is_pinned_of_rows_that_are_going(world: Aged) -> None:
    """U14: and it says what to do."""
    world.sink()
    world.flush(world.row(1, days=40), world.row(2))
    assert dies(lambda: world.store.retain(NAME, older_than="30d", give_up="out"), "removal.planned")
    world.restart()
    report = world.store.export("out")
    assert "run it again" in next(iter(report.errors.values()))
    world.store.retain(NAME, older_than="30d")
    world.store.export("out")
    assert world.delivered() == [2]
    assert world.counted("out", "a", 2) == world.watermark().tally != Tally()


def test_a_flush_that_begins_between_counting_and_planning_is_settled_first(
    world: Aged, monkeypatch: pytest.MonkeyPatch
) -> None:
    """U13: what flush leaves out does not change under a block that may be sent again."""
    world.flush(world.row(1, days=40))
    other = world.open()
    other.capture(NAME, [world.row(2, days=35), world.row(3)])
    assert dies(lambda: other.flush(NAME), "flush.appended")

    def counted(*args: Any, **kwargs: Any) -> Counted:
        found = count_rows(*args, **kwargs)
        late = world.open()
        late.capture(NAME, [world.row(4, days=35), world.row(5)])
        assert dies(lambda: late.flush(NAME), "flush.reserved")
        return found

    monkeypatch.setattr(retain, "count_rows", counted)
    world.store.retain(NAME, older_than="30d")
    monkeypatch.undo()
    world.restart().flush(NAME)
    world.store.retain(NAME, older_than="30d")
    assert world.ids() == [3, 5]


def test_two_rules_or_none_or_a_strange_age_are_refused(world: Aged) -> None:
    for wrong in (
        {},
        {"older_than": "30d", "keep_rows": 3},
        {"older_than": "soon"},
        {"older_than": "30d", "by": "size"},
        {"keep_rows": -1},
    ):
        with pytest.raises(InvalidSetting):
            world.store.retain(NAME, **wrong)
    assert world.store.retain(NAME, older_than=timedelta(days=1)).rows == 0


def test_without_an_event_time_there_is_no_age_by_it(quick_path: Path) -> None:
    world = Aged(quick_path, event_time=None)
    world.flush(world.row(1))
    with pytest.raises(InvalidSetting, match="no event time"):
        world.store.retain(NAME, older_than="1d")


def test_days_go_when_all_of_the_day_is_over(quick_path: Path) -> None:
    world = Aged(quick_path, schema={"id": "long", "who": "string", "site": "string", "at": "date"})
    world.clock.advance(12 * 3600)
    day = world.clock.now().date()
    world.flush(*[{"id": back, "site": "a", "at": day - timedelta(days=back)} for back in range(4)])
    world.store.retain(NAME, older_than="2d")
    assert world.ids() == [0, 1, 2]
    assert world.flush({"id": 9, "site": "a", "at": day - timedelta(days=3)}).expired == 1


def test_a_reader_whose_snapshot_expired_is_told_to_try_again(world: Aged) -> None:
    world.flush(world.row(1, days=40), world.row(2))
    view = view_of(world.store.engine, NAME)
    world.store.retain(NAME, older_than="30d")
    with pytest.raises(Retryable):
        list(world.lake.scan(TABLE, snapshot=view.snapshot, within=SequenceRange(0, 100)))
