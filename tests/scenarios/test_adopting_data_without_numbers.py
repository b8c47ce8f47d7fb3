"""Rows that never had a number are adopted once and delivered once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest

from engines import set_spool
from floodmark.control import sources
from floodmark.lake.adoptable import Part
from floodmark.sources.adopt import Adopter
from floodmark.store import Store
from floodmark.testing import MemoryLake, crash_at, kill_store
from scenarios.destinations import Files


@dataclass
class Legacy:
    """Files of rows."""

    files: dict[str, list[int]]
    name: str = "table:legacy"
    version: str = "7"
    reads: list[Part] = field(default_factory=list)

    def parts(self) -> Iterator[Part]:
        for file in sorted(self.files):
            for after in range(-1, len(self.files[file]) - 1, 2):
                yield Part(file, after, min(after + 2, len(self.files[file]) - 1))

    def read(self, part: Part) -> pa.Table:
        self.reads.append(part)
        return pa.table({"n": self.files[part.file][part.after + 1 : part.through + 1]})


DATA = {"a": [1, 2, 3], "b": [4, 5], "c": [6]}


def adopt(store: Store, data: Legacy):
    return Adopter(store.engine, store.spool).adopt("m", data)


def stored(store: Store) -> list[int]:
    store.flush("m")
    return [row["n"] for batch in store.read_since("m") for row in batch.table.to_pylist()]


@pytest.fixture
def empty(store: Store) -> Store:
    store.add_dataset("m", schema={"n": "long"})
    return store


def test_it_is_adopted_once_exported_once_and_the_second_tick_is_empty(
    empty: Store, tmp_path: Path, lake: MemoryLake
) -> None:
    place = Files(tmp_path, lake)
    place.add(empty)
    assert adopt(empty, Legacy(DATA)).rows == 6

    assert empty.export("out").rows == 6
    assert adopt(empty, Legacy(DATA)).rows == 0
    assert empty.export("out").rows == 0
    assert place.rows() == {"all": [1, 2, 3, 4, 5, 6]}


@pytest.mark.parametrize("point", ["adopt.read", "adopt.stored", "segment.written", "segment.registered"])
@pytest.mark.parametrize("time", [1, 2, 4])
def test_a_crash_in_the_middle_goes_on_behind_the_last_part(empty: Store, reopen, point: str, time: int) -> None:
    """U40: a part is a segment, and behind the position, together or not at all."""
    with crash_at(point, time=time):
        adopt(empty, Legacy(DATA))
    kill_store(empty)
    again = reopen()

    adopt(again, Legacy(DATA))

    assert stored(again) == [1, 2, 3, 4, 5, 6]


def test_a_run_that_was_recorded_by_hand_is_continued(empty: Store) -> None:
    """The form of a recorded position: a store of an earlier version continues."""
    position = json.dumps({"version": "7", "next": 3, "done": False})
    empty.engine.database.transact(lambda c: sources.begin(c, id="adopt:table:legacy", dataset="m", position=position))
    report = adopt(empty, Legacy(DATA))
    assert (report.rows, report.parts, report.already) == (1, 1, 3)
    known = empty.engine.database.read(lambda c: sources.of_dataset(c, "m"))
    assert json.loads(known["adopt:table:legacy"].position) == {"version": "7", "next": 4, "done": True}


def test_it_is_committed_before_it_fills_the_spool(empty: Store) -> None:
    set_spool(empty, backlog_bytes_max=1000)
    adopt(empty, Legacy(DATA))
    assert stored(empty) == [1, 2, 3, 4, 5, 6]


def test_what_was_adopted_is_not_read_again(empty: Store) -> None:
    adopt(empty, Legacy(DATA))
    data = Legacy(DATA)
    assert adopt(empty, data).already == 4
    assert data.reads == []


def test_two_at_once_adopt_each_part_once(empty: Store, reopen) -> None:
    from floodmark import faults

    other = reopen()
    faults.arm("adopt.read", faults.nth_time(2, lambda: adopt(other, Legacy(DATA))))
    adopt(empty, Legacy(DATA))
    assert stored(empty) == [1, 2, 3, 4, 5, 6]


def test_rows_captured_meanwhile_are_kept_too(empty: Store) -> None:
    empty.capture("m", [{"n": 100}])
    adopt(empty, Legacy(DATA))
    assert sorted(stored(empty)) == [1, 2, 3, 4, 5, 6, 100]
