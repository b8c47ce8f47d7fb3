"""Two exporters begin the same chunk while the target's owner appends: neither takes the base for an expired one."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from worlds import dies

from floodmark.store import Store
from floodmark.testing import MemoryLake
from floodmark.testing.memory.targets import MemoryTarget

TARGET = "central.copies.events"


def test_an_older_load_is_not_judged_by_a_newer_base(
    store: Store, lake: MemoryLake, reopen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One exporter has loaded the target; the owner appends; another records its base. Nothing has expired."""
    store.add_dataset("events", schema={"id": "long"})
    store.add_sink("out", "table", table="central.copies", datasets=["events"])
    store.capture("events", [{"id": 1}])
    store.flush("events")
    store.export("out")
    store.capture("events", [{"id": 2}])
    store.flush("events")
    loads = iter(range(1, 100))
    load = MemoryTarget.load

    def interrupted(self: MemoryTarget) -> Any:
        found = load(self)
        if next(loads) == 1:
            monkeypatch.setattr(MemoryTarget, "load", load)
            first = lake.targets.data[next(iter(lake.targets.data))]
            stranger = first.set_column(first.column_names.index("_origin_store"), "_origin_store", pa.array(["other"]))
            lake.targets.add(TARGET, stranger)
            other = reopen()
            assert dies(lambda: other.export("out"), "table.base_recorded")
        return found

    # The exporter has asked the target before: the next load is the one that it decides on.
    monkeypatch.setattr(MemoryTarget, "load", interrupted)
    report = store.export("out")

    assert report.blocked is None
    assert sorted(row["id"] for row in lake.targets.rows(TARGET) if row["_origin_store"] != "other") == [1, 2]
