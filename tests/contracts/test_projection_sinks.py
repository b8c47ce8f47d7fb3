"""What a projection sink promises, on every control database: at least once, or exactly once inside it."""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest
from sqlalchemy import Connection, text

import channels
from engines import engine_of
from floodmark import errors
from floodmark.clock import SystemClock
from floodmark.control import chunks
from floodmark.control.database import Database
from floodmark.control.deliveries import Channel, Intent
from floodmark.delivery.destination import CopyingDestination, Parcel, TransactionalDestination
from floodmark.delivery.sinks.projection import KIND, Delivery
from floodmark.rows.content import tally_of_ids
from floodmark.sequence import SequenceRange
from floodmark.testing import SimulatedCrash
from floodmark.testing.memory.lake import MemoryLake

RANGES = [SequenceRange(0, 3), SequenceRange(3, 5)]
MODULE = "functions_of_this_test"


@pytest.fixture
def functions() -> Iterator[types.ModuleType]:
    """A module into which a test puts the functions of its user."""
    module = types.ModuleType(MODULE)
    sys.modules[MODULE] = module
    yield module
    del sys.modules[MODULE]


def parcel_of(channel: Channel, span: SequenceRange) -> Parcel:
    numbers = list(range(span.after + 1, span.through + 1))
    ids = pa.chunked_array([[f"{number:016x}{'0' * 16}" for number in numbers]])
    rows = pa.table({"amount": pa.array([10 * number for number in numbers], pa.int64())})
    return Parcel(channel, span, rows, pa.chunked_array([numbers], pa.int64()), ids, tally_of_ids(ids))


@dataclass
class Export:
    """The steps of a tick that concern this kind of sink, and nothing else."""

    database: Database
    channel: Channel
    settings: dict[str, Any]
    intent: Intent = field(init=False)

    def __post_init__(self) -> None:
        self.intent = channels.pin(self.database, self.channel, RANGES)

    def destination(self) -> Any:
        engine = engine_of(self.database, MemoryLake(), SystemClock(), store_id="store-1")
        made = KIND.connect(engine, self.channel, self.settings)
        made.open()
        return made

    def run(self, *, before_acknowledging: Callable[[], None] = lambda: None) -> None:
        destination = self.destination()
        for span in RANGES:
            if span.through <= channels.watermark(self.database, self.channel):
                continue
            parcel = parcel_of(self.channel, span)
            if isinstance(destination, TransactionalDestination):
                self.database.transact(lambda c, parcel=parcel: self.within(c, destination, parcel))
            else:
                destination.deliver(parcel)
                before_acknowledging()
                channels.acknowledge(self.database, self.intent, span, parcel.tally)

    def within(self, connection: Connection, destination: TransactionalDestination, parcel: Parcel) -> None:
        if chunks.acknowledge(connection, self.intent, parcel.range, parcel.tally, now=channels.NOW):
            destination.deliver_within(connection, parcel)


def settings(function: str, **more: Any) -> dict[str, Any]:
    whole = {**KIND.defaults, "function": f"{MODULE}:{function}", **more}
    KIND.check(whole)
    return whole


@pytest.fixture
def channel(database: Database) -> Channel:
    database.transact(lambda c: c.execute(text("CREATE TABLE my_totals (amount BIGINT NOT NULL)")))
    database.transact(lambda c: c.execute(text("INSERT INTO my_totals VALUES (0)")))
    return channels.open_channel(database)


def total(database: Database) -> int:
    return int(database.read(lambda c: c.execute(text("SELECT amount FROM my_totals")).scalar_one()))


def add_up(batch: pa.Table, delivery: Delivery) -> None:
    assert delivery.connection is not None
    for row in batch.to_pylist():
        delivery.connection.execute(text("UPDATE my_totals SET amount = amount + :amount"), {"amount": row["amount"]})


def test_rows_come_in_ingest_order_with_their_range_and_a_key(functions, database: Database, channel: Channel):
    seen: list[tuple[list[int], Delivery]] = []
    functions.see = lambda batch, delivery: seen.append((batch["amount"].to_pylist(), delivery))

    Export(database, channel, settings("see")).run()

    assert [amounts for amounts, _ in seen] == [[10, 20, 30], [40, 50]]
    assert [(item.dataset, item.partition, item.range) for _, item in seen] == [
        ("events", "all", RANGES[0]),
        ("events", "all", RANGES[1]),
    ]
    assert seen[0][1].key != seen[1][1].key
    assert seen[0][1].connection is None
    assert channels.watermark(database, channel) == 5


@pytest.mark.parametrize("style", ["batch only", "both", "by keyword", "a default", "a method", "anything"])
def test_a_function_is_called_as_its_signature_says(style: str, functions, database: Database, channel: Channel):
    seen: list[int] = []

    class Totals:
        def add(self, batch: pa.Table) -> None:
            seen.append(batch.num_rows)

    styles: dict[str, Callable[..., None]] = {
        "batch only": lambda batch: seen.append(batch.num_rows),
        "both": lambda batch, delivery: seen.append(batch.num_rows * bool(delivery.key)),
        "by keyword": lambda batch, *, delivery: seen.append(batch.num_rows * bool(delivery.key)),
        "a default": lambda batch, delivery=None: seen.append(batch.num_rows * bool(delivery.key)),
        "a method": Totals().add,
        "anything": lambda *given: seen.append(given[0].num_rows * bool(given[1].key)),
    }
    functions.see = styles[style]

    Export(database, channel, settings("see")).run()

    assert seen == [3, 2]


def test_a_crash_before_the_acknowledgement_brings_the_same_range_with_the_same_key_again(
    functions, database: Database, channel: Channel
):
    seen: list[tuple[str, list[int]]] = []
    functions.see = lambda batch, delivery: seen.append((delivery.key, batch["amount"].to_pylist()))
    export = Export(database, channel, settings("see"))

    def die() -> None:
        raise SimulatedCrash

    with pytest.raises(SimulatedCrash):
        export.run(before_acknowledging=die)
    export.run()

    assert seen[0] == seen[1]
    assert len(seen) == 3


def test_effect_and_acknowledgement_are_one_whatever_dies(functions, database: Database, channel: Channel):
    crashes = iter([True, False, True, False])

    def fail_now_and_then(batch: pa.Table, delivery: Delivery) -> None:
        add_up(batch, delivery)
        if next(crashes):
            raise SimulatedCrash

    functions.add_up = fail_now_and_then
    export = Export(database, channel, settings("add_up", transactional=True))

    for wanted, mark in ((0, 0), (60, 3)):
        with pytest.raises(SimulatedCrash):
            export.run()
        assert (total(database), channels.watermark(database, channel)) == (wanted, mark)
    export.run()
    export.run()

    assert (total(database), channels.watermark(database, channel)) == (150, 5)


def test_a_late_exporter_has_no_effect_where_another_has_acknowledged(functions, database: Database, channel: Channel):
    functions.add_up = add_up
    export = Export(database, channel, settings("add_up", transactional=True))
    late = parcel_of(channel, RANGES[0])
    destination = export.destination()

    export.run()
    database.transact(lambda c: export.within(c, destination, late))

    assert total(database) == 150


def test_a_function_that_raises_moves_nothing_and_is_named_with_its_range(
    functions, database: Database, channel: Channel
):
    def fail(batch: pa.Table, delivery: Delivery) -> None:
        if delivery.connection is not None:
            add_up(batch, delivery)
        raise KeyError("colour")

    functions.fail = fail
    export = Export(database, channel, settings("fail"))
    for transactional in (False, True):
        export.settings["transactional"] = transactional
        with pytest.raises(errors.Retryable) as raised:
            export.run()
        assert f"{MODULE}:fail" in str(raised.value)
        assert "(0, 3]" in str(raised.value)
        assert "KeyError" in str(raised.value)
    assert (total(database), channels.watermark(database, channel)) == (0, 0)


def test_a_mistake_in_its_sql_is_the_functions_and_not_the_stores(functions, database: Database, channel: Channel):
    def wrong(batch: pa.Table, delivery: Delivery) -> None:
        assert delivery.connection is not None
        delivery.connection.execute(text("INSERT INTO my_totals VALUES (NULL)"))

    functions.wrong = wrong
    with pytest.raises(errors.Retryable, match="wrong"):
        Export(database, channel, settings("wrong", transactional=True)).run()
    assert channels.watermark(database, channel) == 0


@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize("ending", ["commit", "rollback"])
def test_a_function_cannot_end_the_transaction_it_was_lent(
    ending: str, hidden: bool, functions, database: Database, channel: Channel
):
    def end(batch: pa.Table, delivery: Delivery) -> None:
        add_up(batch, delivery)
        assert delivery.connection is not None
        with contextlib.suppress(*([Exception] if hidden else [])):
            getattr(delivery.connection, ending)()

    functions.end = end
    export = Export(database, channel, settings("end", transactional=True))
    with pytest.raises(errors.Permanent, match="commit or roll back the transaction"):
        export.run()

    assert (total(database), channels.watermark(database, channel)) == (0, 0)
    functions.end = add_up
    export.run()
    assert total(database) == 150, "the connection is as good as before"


def test_a_savepoint_is_the_functions_own(functions, database: Database, channel: Channel):
    def careful(batch: pa.Table, delivery: Delivery) -> None:
        assert delivery.connection is not None
        inner = delivery.connection.begin_nested()
        add_up(batch, delivery)
        inner.rollback()
        add_up(batch, delivery)

    functions.careful = careful
    Export(database, channel, settings("careful", transactional=True)).run()
    assert total(database) == 150


def test_a_function_may_say_itself_that_it_will_never_take_the_rows(functions, database: Database, channel: Channel):
    def refuse(batch: pa.Table) -> None:
        raise errors.Permanent("The account is closed.")

    functions.refuse = refuse
    with pytest.raises(errors.Permanent, match="account is closed"):
        Export(database, channel, settings("refuse")).run()


def test_what_cannot_be_called_is_refused_when_the_sink_is_added(functions):
    async def coroutine(batch: pa.Table) -> None: ...

    functions.coroutine = coroutine
    functions.number = 7
    functions.nothing = lambda: None
    functions.three = lambda batch, delivery, more: None
    functions.batch_only = lambda batch: None
    for name in ("coroutine", "number", "nothing", "three", "missing"):
        with pytest.raises(errors.InvalidSetting, match=name):
            settings(name)
    for path in ("no_such_module_at_all:function", "json", "json:", ":dumps", 7, None):
        with pytest.raises(errors.InvalidSetting):
            KIND.check({**KIND.defaults, "function": path})
    with pytest.raises(errors.InvalidSetting, match="delivery"):
        settings("batch_only", transactional=True)
    with pytest.raises(errors.InvalidSetting, match="transactional"):
        settings("batch_only", transactional="yes")
    with pytest.raises(errors.InvalidSetting, match="chunk_rows"):
        settings("batch_only", chunk_rows=0)


def test_it_tells_the_tick_what_it_is(functions, database: Database, channel: Channel):
    functions.add_up = add_up
    export = Export(database, channel, settings("add_up"))
    assert not isinstance(export.destination(), TransactionalDestination | CopyingDestination)
    export.settings["transactional"] = True
    assert isinstance(export.destination(), TransactionalDestination)
