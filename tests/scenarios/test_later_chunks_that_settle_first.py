"""Tasks store the chunks of a range at once: a later one may be settled while an earlier one is not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from floodmark.delivery import channel
from floodmark.delivery.outcomes import Busy
from floodmark.delivery.sinks.blob import ObjectWriter
from floodmark.store import Store
from floodmark.testing import MemoryLake, kill_store
from scenarios.destinations import DATASET, SINK, Files


@pytest.fixture
def files(tmp_path: Path, lake: MemoryLake, store: Store, monkeypatch: pytest.MonkeyPatch) -> Iterator[Files]:
    store.add_dataset(DATASET, schema={"n": "long"}, partition_by=["source"])
    monkeypatch.setattr(channel, "PARALLEL_ROWS_MIN", 1)
    made = Files(tmp_path, lake)
    made.add(store)
    yield made
    made.close()


@pytest.mark.parametrize("fails", [0, 3, 6])
def test_the_watermark_waits_for_the_first_chunk_that_is_not_settled(
    store: Store, files: Files, reopen, monkeypatch: pytest.MonkeyPatch, fails: int
) -> None:
    """D2: it moves only over a gapless run. Moved to the last settled chunk, it would leave the first out for ever."""
    store.capture(DATASET, [{"n": number, "source": "a"} for number in range(9)])
    store.flush(DATASET)
    real = ObjectWriter.__call__

    def busy_once(self: ObjectWriter, range: Any, rows: Any) -> Any:
        if range.after == fails:
            monkeypatch.setattr(ObjectWriter, "__call__", real)
            raise Busy("no answer to a put")
        return real(self, range, rows)

    monkeypatch.setattr(ObjectWriter, "__call__", busy_once)
    report = store.export(SINK)
    there = {name for numbers in files.rows().values() for name in numbers}

    assert report.errors
    assert {fails, fails + 1, fails + 2}.isdisjoint(there)
    assert fails == 6 or there & set(range(fails + 3, 9))  # a later chunk was first
    assert store.watermark(SINK, DATASET, partition={"source": "a"}) == fails

    kill_store(store)
    again = reopen()
    assert again.export(SINK).errors == {}
    assert files.rows() == {"source=a": list(range(9))}
    assert again.watermark(SINK, DATASET, partition={"source": "a"}) == again.horizon(DATASET)
