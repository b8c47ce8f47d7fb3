"""The demo's whole story on lakes in memory: real writers, a real hub that is killed, real files."""

from __future__ import annotations

import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import floodmark
import floodmark.store
from floodmark.cli.demo.rows import Plan
from floodmark.cli.demo.story import Story
from floodmark.store import Store
from floodmark.testing import MemoryLake


@pytest.fixture
def in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every store that this process opens has a lake of its own in memory."""
    lakes: dict[str, MemoryLake] = {}

    def with_lake(work: Callable[..., Store]) -> Callable[..., Store]:
        return lambda path, **given: work(path, **{**given, "lake": lakes.setdefault(str(path), MemoryLake())})

    for name in ("init", "open_store"):
        monkeypatch.setattr(floodmark.store, name, with_lake(getattr(floodmark.store, name)))
    monkeypatch.setattr(Store, "spark", property(lambda _: types.SimpleNamespace(version="none")))

    def counted(store: Store, _query: str) -> Any:
        rows = list(store.engine.lake.targets.rows("warehouse.copies.messages"))  # type: ignore[attr-defined]
        return types.SimpleNamespace(collect=lambda: [(len(rows), len({row["part_id"] for row in rows}))])

    monkeypatch.setattr(Store, "sql", counted)


def test_every_claim_of_the_story_holds_and_it_is_told(in_memory: None, tmp_path: Path) -> None:
    told: list[str] = []
    seen: list[str] = []
    story = Story(Plan(1000), str(tmp_path / "store"), told.append, seen.append)
    story.run()
    assert [claim for claim in story.claims if not claim.holds] == []
    assert "hubs killed in the middle" in {claim.text for claim in story.claims}
    assert sum("audit" in claim.text for claim in story.claims) == 4
    assert any("The hub does not answer" in line for line in told)
    assert seen[0].startswith("http://127.0.0.1:"), "the dashboard was there to be looked at"


def test_what_is_wanted_is_known_before_anything_is_sent() -> None:
    plan = Plan(1000)
    sent = [row["part_id"] for writer in (0, 1) for row in plan.sent_by(writer)]
    assert len(sent) == plan.rows
    assert len(set(sent)) == plan.distinct + plan.misfits
    history = {row["part_id"] for row in plan.history()}
    assert len(history & plan.first_ids()) == plan.overlap
    assert len(history - plan.first_ids()) == plan.older
    assert not history & plan.late_ids()
    assert not plan.first_ids() & plan.late_ids()
