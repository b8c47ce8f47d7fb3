"""A control database of an hour ago, with a chunk under way that has since been delivered but for one row."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from floodmark.errors import Retryable, SchemaConflict
from floodmark.hub.chunks import Chunks
from floodmark.store import Store
from floodmark.testing import MemoryLake
from scenarios.destinations import DATASET, SINK
from scenarios.hubs import HubPlace, forget_deliveries

ACCEPT = Chunks.accept
FILES = ("control.db", "control.db-wal", "control.db-shm")


@pytest.fixture
def hub(store: Store, tmp_path: Path, lake: MemoryLake) -> Iterator[HubPlace]:
    store.add_dataset(DATASET, schema={"n": "long"}, partition_by=["source"])
    made = HubPlace(tmp_path, lake)
    made.add(store, chunk_rows=3)
    yield made
    made.close()


def copy(origin: Path, target: Path) -> None:
    target.mkdir(exist_ok=True)
    for name in FILES:
        (target / name).unlink(missing_ok=True)
        if (origin / name).exists():
            shutil.copy2(origin / name, target / name)


def not_now(self: Chunks, dataset: str, header: Any, body: bytes, **how: str) -> Any:
    raise Retryable("not now")


def refuse_row_two(self: Chunks, dataset: str, header: Any, body: bytes, **how: str) -> Any:
    if 2 in header.range and not any(2 in item.range for item in header.given_up):
        raise SchemaConflict("row 2 does not fit")
    return ACCEPT(self, dataset, header, body, **how)


def test_a_row_that_the_hub_never_got_is_held_again_when_its_chunk_is_there_already(
    store: Store, hub: HubPlace, reopen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D2: the hub's ledger ends with the chunk, counts the same rows, and names row 2 as one it never got."""
    store.capture(DATASET, [{"n": n, "source": "a"} for n in (1, 2, 3)])
    store.flush(DATASET)
    monkeypatch.setattr(Chunks, "accept", not_now)
    store.export(SINK)
    store.close()
    copy(store.path, tmp_path / "backup")

    monkeypatch.setattr(Chunks, "accept", refuse_row_two)
    with reopen() as later:
        later.export(SINK)
        assert [entry.seq for entry in later.quarantine.entries(DATASET)] == [2]
    assert hub.rows() == {"source=a": [1, 3]}
    copy(tmp_path / "backup", store.path)

    monkeypatch.setattr(Chunks, "accept", ACCEPT)
    restored = reopen()
    restored.export(SINK)

    assert restored.watermark(SINK, DATASET) == 3
    assert 2 in [entry.seq for entry in restored.quarantine.entries(DATASET)]
    restored.replay(SINK)
    assert sorted(hub.rows()["source=a"]) == [1, 2, 3]


def test_a_ledger_that_ends_inside_a_chunk_that_was_given_up_does_not_hold_an_export_for_ever(
    store: Store, hub: HubPlace, reopen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows 1 and 2 were cut in two before the records were lost, and given up as one chunk afterwards."""
    store.change_sink(SINK, chunk_rows=1)
    store.capture(DATASET, [{"n": n, "source": "a"} for n in (1, 2)])
    store.flush(DATASET)
    requests: list[Any] = []

    def lose(self: Chunks, dataset: str, header: Any, body: bytes, **how: str) -> Any:
        requests.append(partial(ACCEPT, self, dataset, header, body, **how))
        raise Retryable("too slow")

    monkeypatch.setattr(Chunks, "accept", lose)
    store.export(SINK)
    forget_deliveries(store)
    store.change_sink(SINK, chunk_rows=2)
    again = reopen()
    again.export(SINK)
    again.skip(SINK)
    requests[0]()

    def count(self: Chunks, dataset: str, header: Any, body: bytes, **how: str) -> Any:
        requests.append(header)
        if len(requests) > 20:
            raise Retryable("the same request again and again")
        return ACCEPT(self, dataset, header, body, **how)

    monkeypatch.setattr(Chunks, "accept", count)
    again.capture(DATASET, [{"n": 3, "source": "a"}])
    again.flush(DATASET)
    again.export(SINK)

    assert len(requests) < 10
    again.replay(SINK)
    assert sorted(hub.rows()["source=a"]) == [1, 2, 3]
