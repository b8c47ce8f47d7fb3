"""Rows that were given up, as a hub's ledger remembers them: none is passed over, and none stands in the way."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from delivery.servers import KeyOnlyServer, Stored, in_turn
from floodmark.errors import Retryable, SchemaConflict
from floodmark.hub.chunks import Chunks
from floodmark.store import Store
from floodmark.testing import MemoryLake
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
    store._database.transact(lambda c: c.exec_driver_sql("DELETE FROM quarantine"))
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
