"""Rows that Spark has written down are loaded like files, once, and gone on with after a crash."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from floodmark import faults
from floodmark.errors import InvalidSetting, Permanent, Retryable
from floodmark.sources import files, load, steps
from floodmark.sources.loading import Frame, load_frame
from floodmark.sources.shaping import Shape
from floodmark.sources.staging import Staging
from floodmark.sources.units import BackfillReport
from floodmark.store import Store
from floodmark.testing import crash_at, kill_store
from scenarios.sources.histories import parquet, rows, stored


@dataclass
class Table:
    """A table that Spark would read: it gives the same rows, in another order each time."""

    name: str | None = "table:/warehouse/old"
    version: str = "7"
    ids: list[int] = field(default_factory=lambda: list(range(60)))
    written: int = 0

    def write(self, directory: Path) -> None:
        self.written += 1
        order = self.ids[self.written :] + self.ids[: self.written]
        by_id = {row["id"]: row for row in rows(0, 200)}
        for number in range(3):
            parquet(directory / f"part-{number:05}.parquet", [by_id[id] for id in order[number::3]])

    def load(
        self, store: Store, dataset: str, shape: Shape | None = None, source_id: str | None = None
    ) -> BackfillReport:
        declared = next(item for item in store.datasets() if item.name == dataset)
        return load_frame(
            load.Backfiller(store.engine, store.spool),
            declared,
            shape or Shape(),
            Frame(self.name, self.version, self.write),
            source_id=source_id,
            progress=None,
        )


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "STEP_ROWS", 10)
    monkeypatch.setattr(files, "BATCH_ROWS", 5)


def staged(store: Store, dataset: str) -> list[Path]:
    return [path for path in Staging.of(store.path, dataset).directory.glob("*") if path.is_dir()]


POINTS = [
    "backfill.staging",
    "backfill.staged",
    "backfill.read",
    "backfill.stored",
    "backfill.loaded",
    "flush.appended",
]


@pytest.mark.parametrize(("dataset", "source_id"), [("messages", None), ("plain", None), ("plain", "mine")])
@pytest.mark.parametrize(("point", "time"), [(point, 1) for point in POINTS] + [("backfill.stored", 4)])
def test_after_a_crash_at_any_point(
    messages: Store,
    plain: Store,
    reopen: Callable[[], Store],
    point: str,
    time: int,
    source_id: str | None,
    dataset: str,
) -> None:
    """B1, B4: what was written down is the same rows in the same order."""
    table = Table()
    with crash_at(point, time=time):
        table.load(messages, dataset, source_id=source_id)
    kill_store(messages)
    again = reopen()
    table.load(again, dataset, source_id=source_id)
    assert stored(again, dataset) == list(range(60))
    assert table.written == (2 if point == "backfill.staging" else 1)
    assert staged(again, dataset) == []
    assert table.load(again, dataset, source_id=source_id).units_loaded_before == 1
    assert stored(again, dataset) == list(range(60))


def test_what_was_written_down_and_is_gone_is_not_gone_on_with(messages: Store, plain: Store) -> None:
    """B4: written down again it may be in another order. Identities tell what is stored."""
    import shutil

    for dataset, source_id in (("messages", None), ("plain", None), ("plain", "mine")):
        table = Table()
        with crash_at("backfill.stored", time=2):
            table.load(messages, dataset, source_id=source_id)
        shutil.rmtree(messages.path / "spool" / dataset / "staged")
        if dataset == "messages":
            table.load(messages, dataset)
            assert stored(messages) == list(range(60))
        else:
            with pytest.raises(Permanent, match="are missing"):
                table.load(plain, dataset, source_id=source_id)


def test_a_later_state_is_another_source_with_an_identity_and_refused_without(messages: Store, plain: Store) -> None:
    """B3"""
    for store, dataset in ((messages, "messages"), (plain, "plain")):
        Table().load(store, dataset)
        later = Table(version="8", ids=list(range(80)))
        if dataset == "messages":
            assert later.load(store, dataset).new == 20
        else:
            with pytest.raises(Permanent, match="loaded before"):
                later.load(store, dataset)


def test_a_frame_without_a_name_needs_an_identity(messages: Store, plain: Store) -> None:
    with pytest.raises(InvalidSetting, match="source_id"):
        Table(name=None).load(plain, "plain")
    assert Table(name=None).load(messages, "messages").new == 60
    assert Table(name=None).load(messages, "messages").already_stored == 60
    assert staged(messages, "messages") == []


def test_what_a_dead_process_wrote_down_without_a_name_is_removed(messages: Store) -> None:
    with crash_at("backfill.staged"):
        Table(name=None).load(messages, "messages")
    assert len(staged(messages, "messages")) == 1
    Table(name=None).load(messages, "messages")
    assert staged(messages, "messages") == []


def test_two_at_once_do_not_write_the_same_files(messages: Store, reopen: Callable[[], Store]) -> None:
    table, other = Table(), reopen()
    refused: list[Retryable] = []

    def try_too() -> None:
        with pytest.raises(Retryable) as caught:
            table.load(other, "messages")
        refused.append(caught.value)

    faults.arm("backfill.staged", faults.nth_time(1, try_too))
    table.load(messages, "messages")
    assert "Another process is loading" in refused[0].message
    assert stored(messages) == list(range(60))


def test_committed_rows_are_left_out_before_they_are_stored(messages: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """B2: their twins are committed. The numbers still add up."""
    monkeypatch.setattr(load, "STORED_ROWS_MIN", 1)
    messages.capture("messages", rows(10, 40))
    messages.flush("messages")
    sent: list[int] = []
    write = steps.write_segment
    monkeypatch.setattr(steps, "write_segment", lambda *a, **k: sent.append(a[2].num_rows) or write(*a, **k))
    path = parquet(messages.path.parent / "h.parquet", _typed(rows(0, 60)))
    report = messages.backfill("messages", path)
    assert (report.read, report.new, report.already_stored) == (60, 30, 30)
    assert sum(sent) == 30
    assert stored(messages) == list(range(60))


def _typed(content: list[dict]) -> list[dict]:
    from datetime import datetime

    return [{**row, "at": datetime.fromisoformat(row["at"])} for row in content]
