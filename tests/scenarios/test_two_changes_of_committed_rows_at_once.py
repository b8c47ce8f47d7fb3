"""Settling again, purge and retention beside each other and beside flushes: what is recorded is what was changed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from removing import NAME, TABLE, Aged
from sqlalchemy import select
from worlds import interrupted

from floodmark import faults
from floodmark.control.schema import block_partitions, partitions
from floodmark.engine import Engine
from floodmark.errors import Retryable
from floodmark.lake import queries
from floodmark.maintenance import settle as settle_module
from floodmark.maintenance.expiry import expire_snapshots
from floodmark.maintenance.remover import Records, read_records
from floodmark.maintenance.settle import settle_again
from floodmark.schema import SEQ
from floodmark.sequence import SequenceRange, Tally
from floodmark.testing import crash_at, kill_store
from scenarios.hubs import forget_deliveries

known: dict[str, str | None] = {}
"""Who a person turns out to be; None: nobody."""


def settle(rows: pa.Table) -> pa.Table:
    kept = rows.take([place for place, who in enumerate(rows["who"].to_pylist()) if known.get(who, who) is not None])
    names = [known.get(who, who) for who in kept["who"].to_pylist()]
    return kept.set_column(kept.column_names.index("who"), "who", pa.array(names, pa.string()))


class Settling(Aged):
    """Rows whose identity is who they are of, and somebody who learns more of that later."""

    def people(self, names: str, *, days: float = 0, first: int = 0) -> list[dict[str, object]]:
        return [self.row(first + place, who=who, days=days) for place, who in enumerate(names)]

    def whos(self) -> str:
        """Who is in the table, by number."""
        state = self.lake.load(TABLE)
        assert state is not None
        assert state.head is not None
        rows = [
            row
            for part in self.lake.scan(TABLE, snapshot=state.head, within=SequenceRange(0, 2**62))
            for row in part.to_pylist()
        ]
        return "".join(row["who"] for row in sorted(rows, key=lambda row: row[SEQ]))

    def adds_up(self) -> None:
        """Committed by blocks, without what was removed, is what the table holds, in rows and checksum."""
        database = self.store.engine.database
        committed = sum(
            (
                Tally.of(row.row_count, row.checksum)
                for row in database.read(lambda c: c.execute(select(block_partitions)).all())
            ),
            Tally(),
        )
        said = sum(
            (
                Tally.of(row.row_count, row.checksum)
                for row in database.read(lambda c: c.execute(select(partitions)).all())
            ),
            Tally(),
        )
        removed = sum(
            (Tally.of(row.row_count, row.checksum) for row in self.removals() if row.state == "done"), Tally()
        )
        state = self.lake.load(TABLE)
        assert state is not None
        assert state.head is not None
        held = queries.stats(
            self.lake, TABLE, snapshot=state.head, within=SequenceRange(0, 2**62), partition_by=("site",)
        )
        there = sum((item.tally for item in held), Tally())
        assert committed - removed == there
        assert said == there
        assert [item.what for item in self.store.fsck(deep=True).findings if item.wrong] == []


@pytest.fixture
def world(quick_path: Path) -> Iterator[Settling]:
    known.clear()
    made = Settling(quick_path, identity=["who"], settle=f"{__name__}:settle")
    yield made
    kill_store(made.store)


# ── a removal belongs to its commit ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("was", "turns_out"), [("b", "d"), ("d", "b")])
def test_a_row_that_turns_out_to_be_another_goes_only_with_the_commit_that_says_so(
    world: Settling, was: str, turns_out: str
) -> None:
    """U18: a flush comes in between, and the commit is refused. Row 2 is not yet what row 4 is, so row 4 stays."""
    world.flush(*world.people("abcd"))
    known.update({was: turns_out})
    other = world.open()

    def flush() -> None:
        other.capture(NAME, world.people("e", first=9))
        other.flush(NAME)

    with interrupted(settle__planned=flush):
        [report] = world.store.compact(NAME).datasets
    assert (report.settled.collapsed, report.settled.changed) == (0, 0)
    assert world.whos() == "abcde"
    assert world.removals() == []
    world.adds_up()
    assert world.store.compact(NAME).datasets[0].settled.collapsed == 1
    assert world.whos() == f"a{turns_out}ce"
    world.adds_up()
    kill_store(other)


@pytest.mark.parametrize("point", ["settle.planned", "settle.committed"])
@pytest.mark.parametrize("later", [{}, {"a": "c"}, {"b": None}])
def test_after_a_crash_it_is_the_table_that_says_what_went(
    world: Settling, point: str, later: dict[str, str | None]
) -> None:
    """U18: the function says something else by then, and is not asked what it has said."""
    world.flush(*world.people("abcd"))
    known.update({"b": "d"})
    with crash_at(point):
        world.store.compact(NAME)
    landed = point == "settle.committed"
    known.clear()
    world.restart()
    world.store.retain(NAME, older_than="99d")  # whoever finds it brings it to its end
    assert world.whos() == ("adc" if landed else "abcd")
    assert sum(row.row_count for row in world.removals()) == (1 if landed else 0)
    world.adds_up()
    known.update(later)
    world.store.compact(NAME)
    world.adds_up()


@pytest.mark.parametrize("fate", ["lose_answer", "hold", "drop"])
def test_a_settling_commit_that_nobody_heard_of_again_has_landed_or_never_will(world: Settling, fate: str) -> None:
    """U18: one that is late finds that it was decided without it."""
    world.flush(*world.people("abcd"))
    known.update({"b": "d"})
    world.lake.on_settle = lambda request: "land" if request.operation is None else fate
    world.store.compact(NAME)
    world.lake.on_settle = None
    assert world.operations() == [] or {item.state for item in world.operations()} == {"done"}
    landed = world.lake.deliver_held_settlements()
    assert landed == ([False] if fate == "hold" else [])
    assert world.whos() == ("adc" if fate == "lose_answer" else "abcd")
    world.adds_up()
    known.clear()
    world.store.compact(NAME)
    world.adds_up()


def test_while_it_is_undecided_the_history_it_is_decided_from_stays(world: Settling) -> None:
    """U3, U18"""
    world.flush(*world.people("abcd"))
    known.update({"b": "d"})
    with crash_at("settle.committed"):
        world.store.compact(NAME)
    world.restart()
    known.clear()
    for name in "efg":
        world.flush(*world.people(name, first=10))
        world.lake.compact(TABLE)
        expire_snapshots(world.store.engine, NAME, [TABLE])
    world.store.retain(NAME, older_than="99d")
    assert world.whos() == "adcefg"
    assert sum(row.row_count for row in world.removals()) == 1
    world.adds_up()


@pytest.mark.parametrize("change", [{"b": "x"}, {"b": "d"}])
@pytest.mark.parametrize("point", ["flush.appended", "flush.recorded"])
def test_rows_that_landed_while_the_function_was_about_to_be_asked_stay(
    world: Settling, monkeypatch: pytest.MonkeyPatch, point: str, change: dict[str, str | None]
) -> None:
    """B7: they are in the table that is settled, and above the horizon that the settlement knows of."""
    world.flush(*world.people("abcd"))
    known.update(change)
    real, left = read_records, [True]

    def read(engine: Engine, dataset: str) -> Records:
        found = real(engine, dataset)
        if left:
            left.pop()
            other = world.open()
            other.capture(NAME, world.people("e", first=9))
            with crash_at(point):
                other.flush(NAME)
            kill_store(other)
        return found

    monkeypatch.setattr(settle_module, "read_records", read)
    world.store.compact(NAME)
    world.restart().flush(NAME)
    assert world.whos() == {"x": "axcde", "d": "adce"}[change["b"] or ""]
    world.adds_up()


# ── two at once ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("point", ["removal.counted", "removal.planned", "removal.max_seq_raised"])
def test_a_purge_records_the_rows_that_it_removed_also_beside_a_settlement(world: Settling, point: str) -> None:
    """U17: the settlement changes what the purge's condition is about."""
    world.flush(*world.people("abcd"))
    other = world.open()
    known.update({"b": "x"})
    with interrupted(**{point.replace(".", "__"): lambda: other.compact(NAME)}):
        report = world.store.purge(NAME, "who = 'b'")
    assert report.rows + world.whos().count("x") == 1, "it was purged, or it was somebody else by then"
    assert report.rows == sum(row.row_count for row in world.removals())
    world.adds_up()
    kill_store(other)


@pytest.mark.parametrize("people", ["abcd", "bb"])
def test_a_purged_row_does_not_come_back_with_a_settlement(world: Settling, people: str) -> None:
    """U17: the function was asked before the purge, and its answer holds the row."""
    world.flush(world.row(0, who=people[0]), *[world.row(n, who=who, days=1) for n, who in enumerate(people[1:], 1)])
    other = world.open()
    known.update({"a": "x", "b": "y"})
    with interrupted(settle__asked=lambda: other.purge(NAME, "who = 'b'")):
        world.store.compact(NAME)
    assert "b" not in world.whos()
    assert "y" not in world.whos()
    world.adds_up()
    kill_store(other)


@pytest.mark.parametrize("change", [{"b": "x"}, {"b": "d"}])
@pytest.mark.parametrize("point", ["settle.asked", "settle.planned", "settle.committed"])
def test_a_settlement_and_a_rebuild_do_not_miss_each_other(
    world: Settling, point: str, change: dict[str, str | None]
) -> None:
    """U24, U18: what is settled in the old table is in the new one, or is settled there later; also if no row goes."""
    world.flush(*world.people("abcd"))
    known.update(change)
    other = world.open()
    with interrupted(**{point.replace(".", "__"): lambda: other.rebuild(NAME)}), contextlib.suppress(Retryable):
        world.store.compact(NAME)
    world.store.compact(NAME)
    whos = [row["who"] for batch in world.store.read_since(NAME) for row in batch.table.to_pylist()]
    assert "".join(whos) == {"x": "axcd", "d": "adc"}[change["b"] or ""]
    assert [item.what for item in world.store.fsck(deep=True).findings if item.wrong] == []
    kill_store(other)


@pytest.mark.parametrize("how", ["purge", "retain"])
@pytest.mark.parametrize("also", ["purge", "retain"])
def test_two_removals_never_record_the_same_rows(world: Settling, how: str, also: str) -> None:
    """U17: both have counted them before either has removed any."""
    world.flush(*world.people("ab", days=40), *world.people("cd", first=5))
    other = world.open()

    def remove(store, way: str) -> int:
        report = store.purge(NAME, "who <> 'd'") if way == "purge" else store.retain(NAME, older_than="30d")
        return report.rows

    second: list[int] = []
    with interrupted(removal__counted=lambda: second.append(remove(other, also))):
        first = remove(world.store, how)
    assert first + second[0] == sum(row.row_count for row in world.removals()) == 4 - len(world.whos())
    world.adds_up()
    kill_store(other)


def test_a_deep_check_names_the_partition_whose_removals_do_not_add_up(world: Settling) -> None:
    """U17"""
    world.flush(*world.people("ab"), world.row(9, site="b", who="z"))
    world.store.purge(NAME, "who = 'a'")
    world.store.engine.database.transact(
        lambda c: c.exec_driver_sql("UPDATE removals SET checksum = '00000000000000ff'")
    )
    found = [item for item in world.store.fsck(deep=True).findings if item.kind == "lake-differs"]
    assert [item.where for item in found] == [f"{NAME} site=a"]


def test_a_removal_that_was_recorded_and_not_made_is_found_by_a_deep_check(world: Settling) -> None:
    """U17"""
    world.flush(*world.people("ab"))
    before = dict(world.lake.tables[TABLE].files), world.lake.tables[TABLE].head
    snapshots, data = dict(world.lake.tables[TABLE].snapshots), dict(world.lake.data)
    world.store.purge(NAME, "who = 'a'")
    table = world.lake.tables[TABLE]
    table.files, table.head = before
    table.snapshots = snapshots
    world.lake.data |= data
    assert "lake-differs" in [item.kind for item in world.store.fsck(deep=True).findings]


# ── what is on its way ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("change", [{"b": "x"}, {"b": "d"}, {"d": "b"}, {"b": None}])
@pytest.mark.parametrize("point", ["delivery.pinned", "delivery.planned", "delivery.shipped"])
def test_a_range_that_is_on_its_way_is_not_settled_again(
    world: Settling, change: dict[str, str | None], point: str
) -> None:
    """B9: it is sent once more as it was; the next time its rows are settled with all the others."""
    world.sink()
    world.flush(*world.people("ab"))
    world.flush(*world.people("cd", first=2))
    with crash_at(point):
        world.store.export("out")
    world.restart()
    known.update(change)
    world.store.compact(NAME)
    report = world.store.export("out")
    assert (report.blocked, report.errors) == (None, {})
    assert world.store.audit("out", deep=True).sound
    world.store.compact(NAME)
    settled = [known.get(who, who) for who in "abcd"]
    assert sorted(world.whos()) == sorted({who for who in settled if who})
    world.adds_up()


def test_a_look_from_before_a_settlement_fulfils_nobodys_intent(world: Settling) -> None:
    """B9, U14: values that changed since must not leave as they were."""
    world.sink()
    world.flush(*world.people("abcd"))

    def settled_and_another_exporter() -> None:
        other = world.open()
        known.update({"b": "x"})
        settle_again(other.engine, NAME)  # and the snapshot that was looked at is still there
        with crash_at("delivery.shipped"):
            other.export("out")
        kill_store(other)

    faults.arm("delivery.pinning", faults.nth_time(1, settled_and_another_exporter))
    world.store.export("out")
    report = world.store.export("out")
    assert (report.blocked, report.errors) == (None, {})
    assert world.store.audit("out", deep=True).sound


# ── no clock ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("seconds", [-3600, 0, 3600])
def test_a_clock_that_was_set_back_makes_no_removal_younger_than_a_sink(world: Settling, seconds: int) -> None:
    """U19: the rows went before there was the sink, whatever the clock said."""
    known.clear()
    world.flush(*world.people("abc"), *world.people("d", days=40, first=3), *world.people("e", first=4))
    world.store.retain(NAME, older_than="30d")
    world.clock.advance(seconds)
    world.sink(chunk_rows=1)
    with crash_at("delivery.acknowledged"):
        world.store.export("out")
    forget_deliveries(world.store)
    world.restart()
    report = world.store.export("out")
    assert report.blocked is None
    assert world.delivered() == [0, 1, 2, 4]
