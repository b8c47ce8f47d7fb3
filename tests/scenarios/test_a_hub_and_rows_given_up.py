"""Rows that were given up, as a hub's ledger remembers them: none is passed over, and none stands in the way."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from floodmark.errors import Retryable, SchemaConflict
from floodmark.hub.chunks import Chunks
from floodmark.store import Store
from floodmark.testing import MemoryLake
from scenarios.delivery.servers import KeyOnlyServer, Stored, in_turn
from scenarios.destinations import DATASET, SINK
from scenarios.hubs import HubPlace, forget_deliveries

ACCEPT = Chunks.accept


@pytest.fixture
def hub(store: Store, tmp_path: Path, lake: MemoryLake) -> Iterator[HubPlace]:
    store.add_dataset(DATASET, schema={"n": "long"}, partition_by=["source"])
    made = HubPlace(tmp_path, lake)
    made.add(store, chunk_rows=1)
    yield made
    made.close()


def capture(store: Store, *numbers: int) -> None:
    store.capture(DATASET, [{"n": n, "source": "a"} for n in numbers])
    store.flush(DATASET)


def brings_row_two(header: Any) -> bool:
    return 2 in header.range and not any(2 in item.range for item in header.given_up)


def refuse_row_two(self: Chunks, dataset: str, header: Any, body: bytes, **how: str) -> Any:
    if brings_row_two(header):
        raise SchemaConflict("row 2 does not fit")
    return ACCEPT(self, dataset, header, body, **how)


def held_by(store: Store) -> list[int]:
    return [entry.seq for entry in store.quarantine.entries(DATASET)]


def test_a_store_that_lost_its_records_does_not_pass_over_a_row_that_the_hub_never_got(
    store: Store, hub: HubPlace, reopen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D2: what is settled is there or in quarantine. The hub's ledger names row 2 as given up; nobody else does now."""
    capture(store, 1, 2, 3)
    monkeypatch.setattr(Chunks, "accept", refuse_row_two)
    store.export(SINK)
    assert hub.rows() == {"source=a": [1, 3]}
    assert held_by(store) == [2]

    forget_deliveries(store)
    store.engine.database.transact(lambda c: c.exec_driver_sql("DELETE FROM quarantine"))
    again = reopen()
    capture(again, 4)
    again.export(SINK)

    assert hub.rows() == {"source=a": [1, 3, 4]}
    assert held_by(again) == [2]


def test_a_chunk_that_arrives_after_it_was_given_up_does_not_stop_the_channel(
    store: Store, hub: HubPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Row 2's first request is under way when its second one is refused; it is stored after the row was given up."""
    capture(store, 1, 2)
    under_way: list[Any] = []

    def lose(self: Chunks, dataset: str, header: Any, body: bytes, **how: str) -> Any:
        if brings_row_two(header):
            under_way.append(partial(ACCEPT, self, dataset, header, body, **how))
            raise Retryable("too slow")
        return ACCEPT(self, dataset, header, body, **how)

    monkeypatch.setattr(Chunks, "accept", lose)
    store.export(SINK)
    monkeypatch.setattr(Chunks, "accept", refuse_row_two)
    store.export(SINK)
    assert held_by(store) == [2]
    monkeypatch.setattr(Chunks, "accept", ACCEPT)
    under_way[0]()

    capture(store, 3)
    report = store.export(SINK)

    assert report.blocked is None
    assert hub.rows() == {"source=a": [1, 2, 3]}
    assert store.replay(SINK).rows == 1
    assert hub.rows() == {"source=a": [1, 2, 3]}


def unreachable(*_: Any, **__: Any) -> Any:
    raise Retryable("not now")


def skip_all(store: Store, monkeypatch: pytest.MonkeyPatch, *, chunks: int) -> None:
    """Nothing gets through, and a person gives one chunk up after the other."""
    monkeypatch.setattr(Chunks, "accept", unreachable)
    for _ in range(chunks):
        store.export(SINK)
        store.skip(SINK)
    monkeypatch.setattr(Chunks, "accept", ACCEPT)


def ledger_of(hub: HubPlace) -> tuple[list[Any], list[Any]]:
    """The channels as they are stored, and the ranges that they never got."""
    database = hub.store.engine.database
    return (
        database.read(
            lambda c: c.exec_driver_sql(
                "SELECT through_seq, row_count, given_up_rows, length(given_up) + length(path) FROM ledger"
            ).fetchall()
        ),
        database.read(lambda c: c.exec_driver_sql("SELECT after_seq, through_seq FROM ledger_given_up").fetchall()),
    )


def test_a_skip_of_any_size_and_several_in_a_row_leave_the_sink_going_and_the_hub_knowing(
    store: Store, hub: HubPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H3. 15,000 numbers in one header were too many, and the sink was stuck for good."""
    store.change_sink(SINK, chunk_rows=5_000)
    capture(store, *range(1, 15_001))
    skip_all(store, monkeypatch, chunks=3)
    capture(store, 15_001)

    report = store.export(SINK)

    assert (report.rows, report.blocked) == (1, None)
    channels, ranges = ledger_of(hub)
    assert [tuple(row) for row in channels] == [(15_001, 15_001, 15_000, 4)]
    assert [tuple(row) for row in ranges] == [(0, 15_000)]
    assert store.audit(SINK).findings == ()
    assert store.replay(SINK).rows == 15_000
    assert ledger_of(hub)[1] == []
    assert sorted(hub.rows()["source=a"]) == list(range(1, 15_002))
    assert store.audit(SINK).findings == ()
    capture(store, 15_002)
    assert store.export(SINK).blocked is None


def test_rows_that_were_skipped_last_are_replayed_although_nothing_followed_them(
    store: Store, hub: HubPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H3. The hub hears of rows that were given up with the next chunk; a replay does not wait for one."""
    store.change_sink(SINK, chunk_rows=2)
    capture(store, 1)
    store.export(SINK)
    capture(store, 2, 3, 4, 5)
    skip_all(store, monkeypatch, chunks=2)

    assert store.replay(SINK).rows == 4

    assert hub.rows() == {"source=a": [1, 2, 3, 4, 5]}
    capture(store, 6)
    assert store.export(SINK).blocked is None
    assert store.replay(SINK).rows == 0
    assert hub.rows() == {"source=a": [1, 2, 3, 4, 5, 6]}


def test_one_row_of_a_skipped_chunk_is_replayed_by_itself_and_the_others_later(
    store: Store, hub: HubPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H3. It is cut out of its range, and comes once."""
    store.change_sink(SINK, chunk_rows=5)
    capture(store, 1, 2, 3, 4, 5)
    skip_all(store, monkeypatch, chunks=1)
    capture(store, 6)
    store.export(SINK)
    third = next(entry for entry in store.quarantine.entries(DATASET) if entry.seq == 3)
    assert store.replay(SINK, id=third.id).rows == 1
    assert [tuple(row) for row in ledger_of(hub)[1]] == [(0, 2), (3, 5)]

    assert store.replay(SINK).rows == 4

    assert sorted(hub.rows()["source=a"]) == [1, 2, 3, 4, 5, 6]
    assert ledger_of(hub)[1] == []


def test_a_store_that_lost_its_records_holds_a_skipped_range_again(
    store: Store, hub: HubPlace, reopen, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.change_sink(SINK, chunk_rows=3)
    capture(store, 1, 2, 3, 4, 5, 6)
    skip_all(store, monkeypatch, chunks=1)
    store.export(SINK)
    forget_deliveries(store)
    store.engine.database.transact(lambda c: c.exec_driver_sql("DELETE FROM quarantine"))
    again = reopen()
    capture(again, 7)

    again.export(SINK)

    assert held_by(again) == [1, 2, 3]
    assert again.replay(SINK).rows == 3
    assert sorted(hub.rows()["source=a"]) == [1, 2, 3, 4, 5, 6, 7]


def test_a_chunk_whose_answer_was_lost_is_not_stored_again_when_it_is_skipped_and_replayed(store: Store) -> None:
    """A server that knows keys only recognises a row by the key that it came under the first time."""
    store.add_dataset(DATASET, schema={"n": "long"})
    with KeyOnlyServer() as server:
        store.add_sink(SINK, "forward", url=server.url, accept="status", chunk_rows=2, timeout_seconds=1)
        store.capture(DATASET, [{"n": 1}, {"n": 2}])
        store.flush(DATASET)
        server.script = in_turn(Stored.answer_lost)
        store.export(SINK)
        assert [row["n"] for row in server.rows()] == [1, 2]

        store.skip(SINK)
        store.replay(SINK)

        assert [row["n"] for row in server.rows()] == [1, 2]
