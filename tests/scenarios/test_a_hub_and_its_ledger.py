"""A store forwards to a hub: whatever is lost, restored or copied on either side, no row is doubled or lost."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from floodmark.store import Store, open_store
from floodmark.testing import MemoryLake, crash_at, kill_store
from scenarios.delivery.servers import KeyOnlyServer
from scenarios.destinations import DATASET, SINK
from scenarios.hubs import HubPlace, forget_deliveries, free_port


@pytest.fixture
def hub(store: Store, tmp_path: Path, lake: MemoryLake) -> Iterator[HubPlace]:
    store.add_dataset(DATASET, schema={"n": "long"}, partition_by=["source"])
    made = HubPlace(tmp_path, lake)
    made.add(store)
    yield made
    made.close()


def capture(store: Store, *numbers: int, source: str = "a", **more: object) -> None:
    store.capture(DATASET, [{"n": n, "source": source, **more} for n in numbers])
    store.flush(DATASET)


def test_every_row_arrives_once_and_the_ledger_stays_one_line_per_channel(store: Store, hub: HubPlace) -> None:
    for start in range(0, 40, 4):
        capture(store, *range(start, start + 4))
        store.export(SINK)
    capture(store, 100, source="b")
    store.export(SINK)

    assert hub.rows() == {"source=a": list(range(40)), "source=b": [100]}
    assert sorted(hub.ledger()) == [("source=a", 40, 40), ("source=b", 41, 1)]


def test_a_store_that_lost_its_watermarks_goes_on_from_the_hubs_ledger(store: Store, hub: HubPlace, reopen) -> None:
    capture(store, *range(10))
    store.export(SINK)
    forget_deliveries(store)
    again = reopen()
    again.change_sink(SINK, chunk_rows=4)
    capture(again, 10, 11)

    report = again.export(SINK)

    assert report.rows == 2
    assert hub.rows() == {"source=a": list(range(12))}
    assert again.watermark(SINK, DATASET) == 12


def test_a_lost_watermark_with_nothing_new_is_recovered_without_sending_a_row(
    store: Store, hub: HubPlace, reopen
) -> None:
    capture(store, *range(10))
    store.export(SINK)
    forget_deliveries(store)

    assert reopen().export(SINK).rows == 0
    assert reopen().watermark(SINK, DATASET) == 10


def test_a_restored_record_of_deliveries_overlaps_what_the_hub_has_and_doubles_nothing(
    store: Store, hub: HubPlace, reopen
) -> None:
    """Another exporter was further than this one's record says; its next chunk reaches over the ledger's end."""
    capture(store, *range(4))
    store.export(SINK)
    keep = store.engine.database.read(lambda c: c.exec_driver_sql("SELECT * FROM watermarks").fetchall())
    capture(store, *range(4, 9))
    store.export(SINK)
    forget_deliveries(store)
    store.engine.database.transact(
        lambda c: c.exec_driver_sql(f"INSERT INTO watermarks VALUES ({','.join('?' * len(keep[0]))})", tuple(keep[0]))
    )
    again = reopen()
    again.change_sink(SINK, chunk_rows=100)
    capture(again, 9, 10)

    again.export(SINK)

    assert hub.rows() == {"source=a": list(range(11))}


@pytest.mark.parametrize("more", [0, 1, 20])
def test_a_store_restored_from_a_backup_is_refused_when_it_numbers_other_rows_alike(
    store: Store, hub: HubPlace, lake: MemoryLake, tmp_path: Path, clock, more: int
) -> None:
    """Its new rows carry numbers that the hub has acknowledged: taken for duplicates, they would be lost in silence."""
    import copy

    capture(store, 1, 2)
    store.export(SINK)
    store.close()
    shutil.copytree(store.path, tmp_path / "backup")
    lake_then = copy.deepcopy({"tables": lake.tables, "data": lake.data})
    with open_store(store.path, lake=lake, clock=clock) as later:
        capture(later, 3, 4, 5)
        later.export(SINK)
    old = MemoryLake(tables=lake_then["tables"], data=lake_then["data"])
    old.numbers = iter(range(10_000, 20_000))
    with open_store(tmp_path / "backup", lake=old, clock=clock) as restored:
        capture(restored, *range(900, 902 + more))

        report = restored.export(SINK)

        assert report.rows == 0
        assert report.blocked is not None
        assert "origin" in report.blocked
        restored.remove_sink(SINK)
        hub.add(restored, origin="the restored one", start="beginning")
        assert restored.export(SINK).rows == 4 + more
    assert hub.rows()["source=a"] == [1, 2, 3, 4, 5, 1, 2, *range(900, 902 + more)]


def test_a_copied_store_that_goes_its_own_way_is_refused(
    store: Store, hub: HubPlace, lake: MemoryLake, tmp_path: Path, clock
) -> None:
    import copy

    capture(store, 1, 2)
    store.export(SINK)
    store.close()
    shutil.copytree(store.path, tmp_path / "copy")
    twin = MemoryLake(tables=copy.deepcopy(lake.tables), data=dict(lake.data))
    twin.numbers = iter(range(10_000, 20_000))
    with open_store(store.path, lake=lake, clock=clock) as first, open_store(tmp_path / "copy", lake=twin) as second:
        capture(first, 3)
        capture(second, 33)
        first.export(SINK)
        refused = second.export(SINK)
    assert "diverged" in (refused.blocked or "") or "another checksum" in (refused.blocked or "")
    assert hub.rows() == {"source=a": [1, 2, 3]}


def test_a_restored_hub_takes_no_chunk_that_would_leave_a_hole(store: Store, hub: HubPlace, tmp_path: Path) -> None:
    capture(store, 1, 2, 3)
    store.export(SINK)
    hub.back_up(tmp_path / "hub-backup")
    capture(store, 4, 5, 6)
    store.export(SINK)
    hub.restore(tmp_path / "hub-backup")
    capture(store, 7)

    report = store.export(SINK)

    assert "would leave a gap" in (report.blocked or "")
    assert "add it again" in (report.blocked or "")
    store.remove_sink(SINK)
    hub.add(store)
    assert store.export(SINK).rows == 4
    assert hub.rows() == {"source=a": [1, 2, 3, 4, 5, 6, 7]}


def test_two_stores_that_forward_to_each_other_are_refused_before_a_row_goes_round(
    store: Store, hub: HubPlace, tmp_path: Path, lake: MemoryLake
) -> None:
    capture(store, 1, 2)
    store.export(SINK)
    hub.store.flush(DATASET)
    back = HubPlace.__new__(HubPlace)
    back.root, back.lake, back.port = store.path, lake, free_port()
    back.settings = {"url": f"http://127.0.0.1:{back.port}", "concurrency": 1}
    back.start()
    try:
        back.add(hub.store)
        refused = hub.store.export(SINK)
    finally:
        back.close()
    assert "have passed through" in (refused.blocked or "")
    assert store.horizon(DATASET) == 2


def test_rows_that_do_not_fit_at_the_hub_are_given_up_replayed_and_counted_on_both_sides(
    store: Store, hub: HubPlace
) -> None:
    hub.store.add_dataset(DATASET, partition_by=["source"], schema={"size": "long"})
    capture(store, 1, 2)
    capture(store, 3, size="large")
    capture(store, 4)

    report = store.export(SINK)

    assert (report.rows, report.quarantined, report.blocked) == (3, 1, None)
    assert hub.rows() == {"source=a": [1, 2, 4]}
    assert hub.ledger() == [("source=a", 4, 4)]
    assert store.replay(SINK).refused == 1
    capture(store, 5)
    assert store.export(SINK).rows == 1  # totals agree, although a row is missing there


@pytest.mark.parametrize("time", range(1, 9))
def test_a_crash_while_rows_wait_for_a_neighbour_to_be_accepted_is_survived(
    store: Store, hub: HubPlace, reopen, time: int
) -> None:
    """The hub may have been told that they are given up before this store recorded it."""
    hub.store.add_dataset(DATASET, partition_by=["source"], schema={"size": "long"})
    store.change_sink(SINK, chunk_rows=1000)
    rows = [{"n": n, "source": "a", "size": "x" if n < 3 else None} for n in range(110)]
    store.capture(DATASET, rows)
    store.flush(DATASET)
    with crash_at("delivery.shipped", time=time):
        store.export(SINK)
    kill_store(store)
    again = reopen()
    capture(again, 110)

    again.export(SINK)

    assert again.sinks()[0].state == "active", again.sinks()[0].reason
    assert sorted(hub.rows()["source=a"]) == list(range(3, 111))
    assert [entry.seq for entry in again.quarantine.entries(DATASET)] == [1, 2, 3]


def test_two_partitions_are_sent_at_once_and_each_keeps_its_order(store: Store, hub: HubPlace) -> None:
    store.change_sink(SINK, concurrency=4)
    store.capture(DATASET, [{"n": n, "source": f"s{n % 7}"} for n in range(210)])
    store.flush(DATASET)

    assert store.export(SINK).rows == 210
    assert hub.rows() == {f"source=s{k}": list(range(k, 210, 7)) for k in range(7)}


def test_a_server_that_is_said_to_be_no_hub_is_not_asked_and_needs_no_ledger(store: Store) -> None:
    store.add_dataset(DATASET, schema={"n": "long"}, partition_by=["source"])
    with KeyOnlyServer() as server:
        store.add_sink(SINK, "forward", url=server.url, accept="status")
        capture(store, 1)
        store.export(SINK)
        capture(store, 2)
        store.export(SINK)
        questions = [request for request in server.requests if request.method == "GET"]
        assert questions == []
        assert [row["n"] for row in server.rows()] == [1, 2]


def test_a_store_that_lost_its_records_holds_again_what_the_hub_never_got(store: Store, hub: HubPlace, reopen) -> None:
    hub.store.add_dataset(DATASET, partition_by=["source"], schema={"size": "long"})
    capture(store, 1, 2)
    capture(store, 3, size="large")
    capture(store, 4)
    store.export(SINK)
    forget_deliveries(store)
    store.engine.database.transact(lambda c: c.exec_driver_sql("DELETE FROM quarantine"))
    again = reopen()
    capture(again, 5)

    again.export(SINK)

    assert [entry.seq for entry in again.quarantine.entries(DATASET)] == [3]
    assert hub.rows() == {"source=a": [1, 2, 4, 5]}
