"""A record that no version ever wrote is told as such, with the thing's name and a way out."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import update

from floodmark.control import schema as control
from floodmark.errors import Corrupt
from floodmark.store import Store


@pytest.fixture
def changed(store: Store, tmp_path: Path) -> Store:
    store.add_dataset("events", schema={"n": "long"})
    store.add_sink("archive", "blob", url=(tmp_path / "out").as_uri())
    store.capture("events", [{"n": 1}, {"n": "no number"}])
    store.flush("events")
    return store


def test_a_sink_of_no_kind(changed: Store) -> None:
    changed.engine.database.transact(lambda c: c.execute(update(control.sinks).values(kind="")))
    for ask in (changed.export, changed.audit):
        with pytest.raises(Corrupt, match="'archive'") as refused:
            ask("archive")
        assert "remove the sink" in (refused.value.hint or "")


@pytest.mark.parametrize("path", [" ", "", "quarantine", "quarantine/events/gone.jsonl", "a\0b"])
def test_a_payload_that_is_not_where_its_record_says(changed: Store, path: str) -> None:
    [entry] = changed.quarantine.entries()
    changed.engine.database.transact(lambda c: c.execute(update(control.quarantine).values(payload_path=path)))
    for ask in (changed.quarantine.show, changed.quarantine.replay):
        with pytest.raises(Corrupt, match=entry.id) as refused:
            ask(entry.id)
        assert "discard" in (refused.value.hint or "")
    assert changed.trace("events", {"n": 1}).known
