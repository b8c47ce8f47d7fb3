"""A purge reaches what a backfill has written down and not yet loaded; what stays is loaded once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from floodmark import faults
from floodmark.errors import Retryable
from floodmark.sources import files, load
from floodmark.store import Store
from floodmark.testing import crash_at, kill_store
from scenarios.sources.histories import stored
from scenarios.sources.test_what_spark_wrote_down import Table, staged

GONE = {7, 25, 44, 58}
WHERE = f"id IN ({', '.join(map(str, sorted(GONE)))})"
LEFT = [id for id in range(60) if id not in GONE]


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "STEP_ROWS", 10)
    monkeypatch.setattr(files, "BATCH_ROWS", 5)


def broken_off(store: Store, dataset: str, source_id: str | None, *, point: str, time: int) -> Table:
    """A backfill whose process died with its rows written down."""
    table = Table()
    with crash_at(point, time=time):
        table.load(store, dataset, source_id=source_id)
    kill_store(store)
    return table


def written_down(store: Store, dataset: str) -> set[int]:
    paths = [path for place in staged(store, dataset) for path in place.rglob("*.parquet")]
    return {id for path in paths for id in pq.read_table(path)["id"].to_pylist()}


@pytest.mark.parametrize(("dataset", "source_id"), [("messages", None), ("plain", None), ("plain", "mine")])
@pytest.mark.parametrize(("point", "time"), [("backfill.staged", 1), ("backfill.stored", 2), ("backfill.stored", 4)])
def test_the_rest_is_loaded_once_and_without_the_purged_rows(
    messages: Store,
    plain: Store,
    reopen: Callable[[], Store],
    dataset: str,
    source_id: str | None,
    point: str,
    time: int,
) -> None:
    """B1, B4, U13: positions in the old files mean nothing in the new ones."""
    table = broken_off(messages, dataset, source_id, point=point, time=time)
    again = reopen()
    assert written_down(again, dataset) >= GONE
    forecast = again.purge(dataset, WHERE, dry_run=True)
    report = again.purge(dataset, WHERE)
    assert forecast.rows + forecast.spool_rows == report.rows + report.spool_rows == len(GONE)
    assert report.identities == (len(GONE) if dataset == "messages" else 0)
    assert not written_down(again, dataset) & GONE
    table.load(again, dataset, source_id=source_id)
    assert stored(again, dataset) == LEFT
    assert table.written == 1
    assert staged(again, dataset) == []
    assert table.load(again, dataset, source_id=source_id).units_loaded_before == 1


@pytest.mark.parametrize("point", ["purge.staged_written", "purge.staged_replaced"])
def test_a_purge_that_dies_over_it_loses_and_doubles_nothing(
    plain: Store, reopen: Callable[[], Store], point: str
) -> None:
    table = broken_off(plain, "plain", "mine", point="backfill.stored", time=2)
    dying = reopen()
    with crash_at(point):
        dying.purge("plain", WHERE)
    kill_store(dying)
    again = reopen()
    again.purge("plain", WHERE)
    assert not written_down(again, "plain") & GONE
    table.load(again, "plain", source_id="mine")
    assert stored(again, "plain") == LEFT


def test_what_does_not_match_is_left_as_it_is(plain: Store, reopen: Callable[[], Store]) -> None:
    table = broken_off(plain, "plain", "mine", point="backfill.stored", time=2)
    again = reopen()
    before = sorted(path.name for place in staged(again, "plain") for path in place.iterdir())
    assert again.purge("plain", "id > 1000").spool_rows == 0
    assert sorted(path.name for place in staged(again, "plain") for path in place.iterdir()) == before
    table.load(again, "plain", source_id="mine")
    assert stored(again, "plain") == list(range(60))


def test_what_was_not_written_down_to_its_end_goes_as_a_whole(plain: Store, reopen: Callable[[], Store]) -> None:
    table = broken_off(plain, "plain", "mine", point="backfill.staging", time=1)
    again = reopen()
    assert again.purge("plain", WHERE).spool_rows == 0
    assert staged(again, "plain") == []
    table.load(again, "plain", source_id="mine")
    assert stored(again, "plain") == list(range(60))


def test_while_another_process_loads_it_a_purge_is_refused(messages: Store, reopen: Callable[[], Store]) -> None:
    other, table = reopen(), Table()
    refused: list[Retryable] = []

    def try_to_purge() -> None:
        with pytest.raises(Retryable, match="being loaded") as caught:
            other.purge("messages", WHERE)
        refused.append(caught.value)

    faults.arm("backfill.staged", faults.nth_time(1, try_to_purge))
    table.load(messages, "messages")
    assert len(refused) == 1
    assert stored(messages) == list(range(60))


def test_a_condition_on_a_column_that_is_not_there_is_judged_all_the_same(
    plain: Store, reopen: Callable[[], Store], tmp_path: Path
) -> None:
    """A column that the files lack is null in each of their rows."""
    plain.capture("plain", [{"id": 1000, "colour": "red"}])
    plain.flush("plain")
    broken_off(plain, "plain", "mine", point="backfill.staged", time=1)
    again = reopen()
    assert again.purge("plain", "colour IS NULL").spool_rows == 60
    assert written_down(again, "plain") == set()
