"""Rows that nothing identifies are never left out, so what holds them is loaded once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from floodmark.errors import InvalidSetting, Permanent
from floodmark.sources import iterables, load
from floodmark.store import Store
from floodmark.testing import crash_at
from scenarios.sources.histories import jsonl, rows, stored


def test_equal_rows_all_stay(plain: Store, tmp_path: Path) -> None:
    """B3"""
    plain.capture("plain", [{"id": 1}])
    plain.backfill("plain", jsonl(tmp_path / "h.jsonl", [{"id": 1}, {"id": 1}]))
    assert stored(plain, "plain") == [1, 1, 1]


def test_a_file_is_loaded_once(plain: Store, tmp_path: Path) -> None:
    path = jsonl(tmp_path / "h.jsonl", rows(0, 5))
    plain.backfill("plain", path)
    assert plain.backfill("plain", path).units_loaded_before == 1
    assert stored(plain, "plain") == [0, 1, 2, 3, 4]


def test_a_file_that_has_changed_is_refused(plain: Store, tmp_path: Path) -> None:
    """B3: loaded again its old rows would be there twice."""
    path = jsonl(tmp_path / "h.jsonl", rows(0, 5))
    plain.backfill("plain", path)
    jsonl(path, rows(0, 6))
    with pytest.raises(Permanent, match="loaded before, with other content"):
        plain.backfill("plain", path)
    assert plain.backfill("plain", path, source_id="all of it is new").new == 6


def test_the_same_file_under_other_names_for_its_columns_is_refused(plain: Store, tmp_path: Path) -> None:
    path = jsonl(tmp_path / "h.jsonl", rows(0, 5))
    plain.backfill("plain", path)
    with pytest.raises(Permanent, match="other options"):
        plain.backfill("plain", path, map={"text": "body"})


def test_rows_from_python_need_a_name(plain: Store) -> None:
    with pytest.raises(InvalidSetting, match="rows that are loaded again are not recognised"):
        plain.backfill("plain", [{"id": 1}])
    assert plain.backfill("plain", [{"id": 1}], source_id="mine").new == 1
    assert plain.backfill("plain", [{"id": 1}], source_id="mine").units_loaded_before == 1
    assert plain.backfill("plain", [{"id": 1}], source_id="other").new == 1


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "STEP_ROWS", 4)
    monkeypatch.setattr(iterables, "BATCH_ROWS", 2)


@pytest.mark.usefixtures("small_steps")
def test_a_list_is_gone_on_with(plain: Store) -> None:
    with crash_at("backfill.stored", time=2):
        plain.backfill("plain", rows(0, 20), source_id="mine")
    assert plain.backfill("plain", rows(0, 20), source_id="mine").read == 12
    assert stored(plain, "plain") == list(range(20))


@pytest.mark.usefixtures("small_steps")
def test_an_iterator_that_broke_off_is_not_gone_on_with(plain: Store, messages: Store) -> None:
    """B4: nobody knows that it gives the same rows again. With an identity it is read from its beginning."""

    def history() -> Iterator[dict]:
        yield from rows(0, 20)

    for dataset in ("plain", "messages"):
        with crash_at("backfill.stored", time=2):
            plain.backfill(dataset, history(), source_id="mine")
    with pytest.raises(Permanent, match="partly loaded"):
        plain.backfill("plain", history(), source_id="mine")
    assert messages.backfill("messages", history(), source_id="mine").read == 20
    assert stored(messages) == list(range(20))
