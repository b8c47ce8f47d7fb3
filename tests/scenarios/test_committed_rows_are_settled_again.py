"""What a settle function learns later: committed rows get their identities, and those that are one collapse."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from worlds import DATASET, World, dies, interrupted

from floodmark.maintenance.settle import SettledAgain, settle_again
from floodmark.schema import SEQ
from floodmark.store import Store
from floodmark.testing import kill_store

known: dict[str, str | None] = {}
"""What a key turns out to be; None: no row at all."""


def settle(rows: pa.Table) -> pa.Table:
    kept = rows.take([place for place, key in enumerate(rows["key"].to_pylist()) if known.get(key, key) is not None])
    keys = [known.get(key, key) for key in kept["key"].to_pylist()]
    return kept.set_column(kept.column_names.index("key"), "key", pa.array(keys, pa.string()))


class Keyed(World):
    def rows(self, count: int) -> list[dict[str, Any]]:
        return [{**row, "key": str(row["id"])} for row in super().rows(count)]

    def keys(self) -> dict[int, str]:
        """Number → key of every row."""
        return {row[SEQ]: row["key"] for row in self.table()}


@pytest.fixture
def world(quick_path: Path) -> Iterator[Keyed]:
    known.clear()
    made = Keyed.make(
        quick_path / "store", identity=["key"], schema={"id": "long", "key": "string"}, settle=f"{__name__}:settle"
    )
    yield made
    made.close()


def again(store: Store, **options: Any) -> SettledAgain:
    return settle_again(store.engine, DATASET, **options)


def committed(world: Keyed, *counts: int) -> Store:
    store = world.open()
    for count in counts:
        world.capture(store, count)
        store.flush(DATASET)
    return store


def test_identities_are_upgraded_in_place(world: Keyed) -> None:
    store = committed(world, 3)
    known.update({"1": "one"})
    assert again(store) == SettledAgain(changed=1)
    assert world.keys() == {1: "0", 2: "one", 3: "2"}
    assert again(store) == SettledAgain(), "it is settled now"
    world.capture(store, 1)
    store.capture(DATASET, [{"id": 100, "key": "one", "site": "s1"}])
    assert store.flush(DATASET).duplicates == 1


@pytest.mark.parametrize(("was", "turns_out"), [("3", "1"), ("1", "3")])
def test_of_two_that_turn_out_to_be_one_the_lower_number_stays(world: Keyed, was: str, turns_out: str) -> None:
    """B8"""
    store = committed(world, 2, 3)
    known.update({was: turns_out})
    report = again(store)
    assert report.collapsed == 1
    assert world.keys() == {1: "0", 2: turns_out, 3: "2", 5: "4"}
    world.check(gone=(3,))


def test_rows_that_it_leaves_out_now_are_gone(world: Keyed) -> None:
    store = committed(world, 4)
    known.update({"3": None, "1": None})
    assert again(store) == SettledAgain(dropped=2)
    assert world.ids_in_table() == [0, 2]
    world.capture(store, 1)
    store.flush(DATASET)
    assert max(world.keys()) == 5, "the number of the newest row is not given again"
    world.check(gone=(1, 3))


def test_compaction_does_it_and_says_so(world: Keyed) -> None:
    store = committed(world, 2, 3)
    known.update({"3": "1", "2": "two"})
    [report] = store.compact(DATASET).datasets
    assert report.settled == SettledAgain(changed=1, collapsed=1)
    assert sorted(world.keys().values()) == ["0", "1", "4", "two"]
    assert store.compact(DATASET).datasets[0].settled == SettledAgain()
    world.check(gone=(3,))


def test_so_many_at_once_and_the_rest_the_next_time(world: Keyed) -> None:
    store = committed(world, 6)
    known.update({str(n): f"x{n}" for n in range(6)})
    assert again(store, changed_max=4).changed == 4
    assert again(store, changed_max=4).changed == 2
    assert sorted(world.keys().values()) == [f"x{n}" for n in range(6)]


def test_rows_that_are_appended_meanwhile_are_not_overwritten(world: Keyed) -> None:
    """B7: the commit is refused; the next time finds what came."""
    store, other = committed(world, 3), world.open()
    known.update({"1": "9"})

    def append() -> None:
        other.capture(DATASET, [{"id": 9, "key": "9", "site": "s1"}])
        other.flush(DATASET)
        world.acknowledged.append(9)

    with interrupted(settle__planned=append):
        assert "meanwhile" in (again(store).problem or "")
    assert sorted(world.keys().values()) == ["0", "1", "2", "9"]
    assert again(store).collapsed == 1
    assert sorted(world.keys().values()) == ["0", "2", "9"]


@pytest.mark.parametrize("known_now", [{"2": "1"}, {"1": "2"}, {"1": "x"}, {"1": None}])
@pytest.mark.parametrize(
    "point", ["settle.planned", "settle.committed", "removal.planned", "removal.deleted", "removal.recorded"]
)
def test_after_a_crash_the_next_one_ends_it(world: Keyed, point: str, known_now: dict[str, str | None]) -> None:
    """B7"""
    store = committed(world, 4)
    known.update(known_now)
    dies(lambda: again(store), at=point)
    kill_store(store)
    store = world.open()
    again(store)
    assert again(store) == SettledAgain()
    keys = sorted(known.get(str(n), str(n)) or "" for n in range(4))
    assert sorted(world.keys().values()) == sorted({key for key in keys if key})
    gone = [id for id in range(4) if id not in world.ids_in_table()]
    world.check(gone=tuple(gone))


@pytest.mark.parametrize("known_now", [{"2": "1"}, {"1": "2"}, {"1": "x"}, {"1": None}])
@pytest.mark.parametrize("point", ["settle.committed", "removal.deleted", "removal.recorded"])
def test_what_the_power_took_of_it_is_done_again(world: Keyed, point: str, known_now: dict[str, str | None]) -> None:
    """U4: the files that were overwritten are still there, with every row as it was."""
    store = committed(world, 2, 2)
    known.update(known_now)
    dies(lambda: again(store), at=point)
    kill_store(store)
    world.lake.lose_power()
    store = world.open()
    again(store)
    assert again(store) == SettledAgain()
    keys = {key for key in (known.get(str(n), str(n)) for n in range(4)) if key}
    assert sorted(world.keys().values()) == sorted(keys)
    world.check(gone=tuple(id for id in range(4) if id not in world.ids_in_table()))


def test_what_a_sink_got_and_what_it_never_gets_add_up(world: Keyed, tmp_path: Path) -> None:
    store = committed(world, 4)
    store.add_sink("out", "blob", url=(tmp_path / "out").as_uri())
    store.export("out")
    world.capture(store, 2)
    store.flush(DATASET)
    known.update({"3": "1", "5": "1"})  # one of them was delivered, the other was not
    assert again(store).collapsed == 2
    store.export("out")
    assert store.audit("out", deep=True).sound


def test_one_that_was_cut_off_keeps_sinks_waiting_and_they_say_what_ends_it(world: Keyed, tmp_path: Path) -> None:
    """U14: nothing is pinned over rows that are going, and only a compaction asks the function again."""
    store = committed(world, 4)
    store.add_sink("out", "blob", url=(tmp_path / "out").as_uri())
    known.update({"3": "1"})
    dies(lambda: store.compact(DATASET), at="settle.planned")
    kill_store(store)
    store = world.open()
    assert "`compact` was interrupted" in next(iter(store.export("out").errors.values()))
    store.compact(DATASET)
    assert not store.export("out").errors
    assert store.audit("out", deep=True).sound


def test_one_that_fails_changes_nothing(world: Keyed, monkeypatch: pytest.MonkeyPatch) -> None:
    """B6"""
    store = committed(world, 2)

    def fails(rows: pa.Table) -> pa.Table:
        raise OSError("not today")

    replaced: Callable[[pa.Table], pa.Table] = fails
    monkeypatch.setitem(globals(), "settle", replaced)
    assert "not today" in (again(store).problem or "")
    assert world.keys() == {1: "0", 2: "1"}
