"""The control database's contract, on SQLite and on a real PostgreSQL.

Serial transactions, settled commits, and what the database itself refuses whatever the code above it does.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import Connection, MetaData, func, inspect, select, text, update
from sqlalchemy.exc import DBAPIError, OperationalError

from floodmark.commit.protocol import Base, PartitionRows
from floodmark.control import blocks, datasets, deliveries, dependents, quarantine, removals, schema, segments
from floodmark.control import database as database_module
from floodmark.control.blocks import BatchLimits, Block, BlockUndecided
from floodmark.control.database import Database, migrate
from floodmark.control.datasets import Dataset
from floodmark.control.quarantine import QuarantineInput
from floodmark.control.segments import LandingRange, SegmentContent, SourceStep
from floodmark.errors import (
    Corrupt,
    FloodmarkError,
    InvalidName,
    OutcomeUnknown,
    Permanent,
    Retryable,
    StoreTooNew,
    UnknownDataset,
)
from floodmark.schema import Column, Schema
from floodmark.sequence import SEQUENCE_MAX, SequenceRange, Tally

NOW = datetime(2026, 1, 1, tzinfo=UTC)
BASE = Base("table", 1, None)


# ── what a test puts in ──────────────────────────────────────────────────────────────────────────────────────────


def add_dataset(database: Database, name: str = "d") -> None:
    declared = Dataset(name=name, identity=(), event_time=None, partition_by=(), schema=Schema())
    database.transact(lambda c: datasets.insert(c, declared, now=NOW))


def content(rows: int, *, size: int = 10, path: str = "p") -> SegmentContent:
    parts = (PartitionRows("all", Tally(rows, 7), 0, rows - 1),)
    return SegmentContent(path=path, rows=rows, bytes=size, event_min=None, event_max=None, partitions=parts)


def add_segment(database: Database, *, rows: int = 1, dataset: str = "d", id: int | None = None) -> int:
    id = segments.fresh_segment_id() if id is None else id

    def work(c: Connection) -> None:
        segments.announce(c, id=id, dataset=dataset, path="p", owner="me", now=NOW)
        assert segments.register(c, id=id, content=content(rows))

    database.transact(work)
    return id


def reserve(database: Database, *, id: str = "b", dataset: str = "d", **changed: Any) -> blocks.Reservation | None:
    given: dict[str, Any] = {"base": BASE, "seen_through": 0, "limits": BatchLimits(), "now": NOW, **changed}
    return database.transact(lambda c: blocks.reserve(c, id=id, dataset=dataset, **given))


def void(database: Database, block: Block, *, consume: bool = False) -> bool:
    return database.transact(lambda c: blocks.void(c, block, reason="r", consume=consume, now=NOW))


def record(database: Database, block: Block, *, rows: int) -> bool:
    return database.transact(
        lambda c: blocks.record(c, block, snapshot=1, synced_snapshot=1, rows=rows, stats=[], now=NOW)
    )


def value_of(database: Database, name: str = "sequence") -> int:
    return database.read(
        lambda c: c.execute(select(schema.counters.c.value).where(schema.counters.c.name == name)).scalar_one()
    )


def one(database: Database, query: Any) -> Any:
    return database.read(lambda c: c.execute(query).one())


# ── migrations ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_migrating_twice_changes_nothing(database: Database) -> None:
    """Opening a store again is not an event: tables, rows and version stay as they are."""
    add_dataset(database)
    migrate(database)
    again = Database(database.url)
    migrate(again)
    assert again.read(lambda c: [item.name for item in datasets.everyone(c)]) == ["d"]
    again.close()


def test_a_database_that_needs_no_migration_is_opened_while_another_process_writes(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_module, "BUSY_SECONDS_MAX", 0.1)
    other = Database(database.url)
    database.transact(lambda c: (datasets.everyone(c), migrate(other, create=False)))
    other.close()


def test_many_may_migrate_a_new_database_at_once(database_url: str) -> None:
    """Of several processes that open a new store at the same time each finds its tables made, once."""
    everyone = [Database(database_url) for _ in range(4)]
    together = threading.Barrier(len(everyone))

    def start(database: Database) -> int:
        together.wait()
        migrate(database)
        return value_of(database)

    with ThreadPoolExecutor(len(everyone)) as pool:
        assert list(pool.map(start, everyone)) == [0] * len(everyone)
    for database in everyone:
        database.close()


def test_sinks_and_removals_of_an_older_database_are_numbered_in_the_order_of_their_times(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """U19: of two at the same time the removal counts as the earlier one, so that it proves nothing for the sink."""
    every = database_module.migration_scripts
    monkeypatch.setattr(database_module, "migration_scripts", lambda dialect: every(dialect)[:3])
    database = Database(database_url)
    migrate(database)

    def older(c: Connection) -> None:
        c.exec_driver_sql(
            "INSERT INTO datasets (name, identity_columns, partition_by, columns, generation, fenced, horizon, "
            "created_at) VALUES ('d', '[]', '[]', '{}', 1, FALSE, 0, '')"
        )
        for name, hour in (("first", 1), ("same", 3), ("last", 5)):
            c.exec_driver_sql(
                "INSERT INTO sinks (instance, name, kind, settings, state, created_at) "
                f"VALUES ('{name}', '{name}', 'blob', '{{}}', 'active', '2026-01-01T0{hour}:00:00+00:00')"
            )
        for id, hour, state in (("a", 0, "done"), ("b", 3, "done"), ("c", 4, "planned")):
            c.exec_driver_sql(
                "INSERT INTO operations (id, dataset, kind, state, selection, begun_at) VALUES "
                f"('{id}', 'd', 'purge', '{state}', '{{}}', '2026-01-01T0{hour}:00:00+00:00')"
            )
            for part in (id, f"{id}.1"):
                c.exec_driver_sql(
                    "INSERT INTO removals (operation, dataset, partition_key, after_seq, through_seq, row_count, "
                    f"checksum, reason, removed_at, state) VALUES ('{part}', 'd', 'all', {len(part)}, {len(part) + 2}, "
                    "1, '00', 'purge', '', 'done')"
                )

    database.transact(older)
    monkeypatch.setattr(database_module, "migration_scripts", every)
    migrate(database)
    numbers = {
        **dict(database.read(lambda c: c.execute(select(schema.sinks.c.instance, schema.sinks.c.number)).all())),
        **dict(database.read(lambda c: c.execute(select(schema.operations.c.id, schema.operations.c.number)).all())),
    }
    assert sorted(numbers, key=numbers.__getitem__) == ["a", "first", "b", "same", "c", "last"]
    assert len(set(numbers.values())) == 6
    assert database.transact(database_module.next_event) == 7
    spans = database.read(lambda c: c.execute(select(schema.touched)).all())
    assert {(row.operation, row.after_seq, row.through_seq) for row in spans} == {(id, 1, 5) for id in "abc"}
    channel = deliveries.Channel("last", "d", "all")
    assert database.read(lambda c: removals.under_way(c, channel, after=4))
    assert database.read(lambda c: removals.proved_delivered(c, channel)) == 0
    assert database.read(lambda c: removals.proved_delivered(c, replace(channel, sink="same"))) == 5
    database.close()


def test_a_database_of_a_newer_version_is_refused_and_left_alone(database: Database) -> None:
    def age(c: Connection) -> None:
        c.execute(update(schema.meta).where(schema.meta.c.name == "schema_version").values(value="999"))

    database.transact(age)
    with pytest.raises(StoreTooNew, match="version 999"):
        migrate(database)
    assert one(database, select(schema.meta.c.value)).value == "999"


def test_the_frozen_sql_and_the_declared_tables_agree(database: Database) -> None:
    """Column by column: name, order, type family, whether null is allowed, and the primary key."""
    found = MetaData()
    database.read(found.reflect)
    assert set(found.tables) == set(schema.metadata.tables)
    for name, declared in schema.metadata.tables.items():
        real = found.tables[name]
        assert [c.name for c in real.columns] == [c.name for c in declared.columns], name
        for column in declared.columns:
            there = real.columns[column.name]
            assert there.type.python_type is column.type.python_type, f"{name}.{column.name}"
            assert there.primary_key == column.primary_key, f"{name}.{column.name}"
            assert column.primary_key or there.nullable == column.nullable, f"{name}.{column.name}"


def test_the_two_dialects_hold_the_same_triggers(database: Database) -> None:
    query = (
        "SELECT name FROM sqlite_master WHERE type = 'trigger'"
        if database.dialect == "sqlite"
        else "SELECT tgname FROM pg_trigger JOIN pg_class c ON c.oid = tgrelid "
        "WHERE NOT tgisinternal AND c.relnamespace = current_schema()::regnamespace"
    )
    assert set(database.read(lambda c: c.execute(text(query)).scalars().all())) == {
        "block_decided_once",
        "horizon_never_back",
        "watermark_never_back",
        "counter_never_back",
        "landing_never_back",
        "chunk_needs_open_intent",
    }


def test_the_two_dialects_hold_the_same_indexes(database: Database) -> None:
    """What is unique, and under which condition, is the same on both; SQLite is the reference."""

    def unique(c: Connection) -> set[tuple[str, tuple[str, ...]]]:
        looked = inspect(c)
        found = set()
        for table in looked.get_table_names():
            found |= {(table, tuple(i["column_names"])) for i in looked.get_indexes(table) if i["unique"]}
            found |= {(table, tuple(i["column_names"])) for i in looked.get_unique_constraints(table)}
        return found

    assert database.read(unique) == {
        ("tokens", ("hash",)),
        ("blocks", ("after_seq",)),
        ("blocks", ("dataset",)),
        ("segments", ("registered",)),
        ("segments", ("landing_file", "landing_from")),
        ("segments", ("source", "ordinal")),
        ("sinks", ("name",)),
        ("intents", ("sink", "dataset", "partition_key")),
        ("chunks", ("intent", "through_seq")),
        ("quarantine", ("sink", "dataset", "seq")),
        ("quarantine", ("landing_file", "landing_offset", "landing_row")),
        ("quarantine", ("dataset", "source_key")),
        ("rebuilds", ("dataset",)),
        ("operations", ("dataset",)),
    }


# ── what the database itself refuses ─────────────────────────────────────────────────────────────────────────────

ROWS: dict[str, dict[str, Any]] = {
    "datasets": {
        "name": "d",
        "identity_columns": "[]",
        "partition_by": "[]",
        "columns": Schema().to_json(),
        "generation": 1,
        "fenced": False,
        "horizon": 10,
        "created_at": "t",
    },
    "blocks": {
        "id": "b",
        "dataset": "d",
        "after_seq": 0,
        "through_seq": 10,
        "state": "reserved",
        "generation": 1,
        "table_uuid": "u",
        "reserved_at": "t",
    },
    "removed_datasets": {"name": "gone", "removed_at": "t"},
    "landing": {"file": "f", "dataset": "d", "sealed": 10, "state": "open"},
    "segments": {
        "id": 1,
        "dataset": "d",
        "state": "sealed",
        "registered": 1,
        "path": "p",
        "owner": "o",
        "landing_file": "f",
        "landing_from": 0,
        "source": "s",
        "ordinal": 0,
        "created_at": "t",
    },
    "segment_partitions": {
        "segment": 1,
        "partition_key": "all",
        "row_count": 1,
        "checksum": "0",
        "first_row": 0,
        "last_row": 0,
    },
    "block_partitions": {
        "block": "b",
        "partition_key": "all",
        "row_count": 1,
        "checksum": "0",
        "first_seq": 1,
        "last_seq": 1,
    },
    "partitions": {"dataset": "d", "partition_key": "all", "row_count": 1, "checksum": "0", "last_seq": 1},
    "sinks": {"instance": "s1", "name": "s", "kind": "k", "settings": "{}", "state": "active", "created_at": "t"},
    "watermarks": {"sink": "s1", "dataset": "d", "partition_key": "all", "seq": 10},
    "intents": {
        "id": "i",
        "sink": "s1",
        "dataset": "d",
        "partition_key": "all",
        "after_seq": 0,
        "through_seq": 10,
        "settings": "{}",
        "state": "open",
        "pinned_at": "t",
    },
    "chunks": {"intent": "i", "after_seq": 0, "through_seq": 5, "state": "pending"},
    "ledger": {
        "origin": "o",
        "dataset": "d",
        "partition_key": "all",
        "through_seq": 1,
        "row_count": 1,
        "checksum": "0",
        "given_up": "[]",
        "version": 1,
    },
    "tokens": {"name": "t", "hash": "h", "created_at": "t"},
    "keyed_requests": {"dataset": "d", "token": "t", "key": "k", "digest": "h", "receipt": "{}", "created_at": "t"},
    "quarantine": {
        "id": "q",
        "dataset": "d",
        "state": "held",
        "reason": "r",
        "sink": "s",
        "seq": 1,
        "landing_file": "f",
        "landing_offset": 0,
        "landing_row": 0,
        "created_at": "t",
    },
    "rebuilds": {"id": "r", "dataset": "d", "state": "open", "epoch": 1, "settings": "{}"},
    "sources": {"id": "s", "dataset": "d", "position": "0", "next_ordinal": 0, "state": "open"},
    "removals": {
        "operation": "o",
        "dataset": "d",
        "partition_key": "all",
        "after_seq": 0,
        "through_seq": 1,
        "row_count": 1,
        "checksum": "0",
        "reason": "r",
        "removed_at": "t",
    },
    "forfeits": {
        "operation": "o",
        "sink": "s1",
        "dataset": "d",
        "partition_key": "all",
        "after_seq": 0,
        "through_seq": 1,
        "row_count": 1,
        "checksum": "0",
        "recorded_at": "t",
    },
    "operations": {
        "id": "o",
        "dataset": "d",
        "kind": "retain",
        "state": "planned",
        "selection": "{}",
        "begun_at": "t",
    },
    "purged": {"dataset": "d", "identity_hash": "h", "operation": "o"},
    "generations": {"dataset": "d", "generation": 1, "state": "current"},
    "problems": {"dataset": "d", "message": "m", "gist": "m", "failures": 1, "first_at": "t", "last_at": "t"},
    "losses": {"segment": 7, "dataset": "d", "row_count": 1, "reason": "r", "recorded_at": "t"},
    "touched": {"operation": "o", "dataset": "d", "partition_key": "all", "after_seq": 0, "through_seq": 1},
    "filtered_removals": {
        "operation": "o",
        "dataset": "d",
        "partition_key": "all",
        "filter": "n > 1",
        "after_seq": 0,
        "through_seq": 1,
        "row_count": 1,
        "checksum": "0",
    },
    "ledger_given_up": {"origin": "e", "dataset": "d", "partition_key": "all", "after_seq": 0, "through_seq": 1},
    "provenance": {"origin": "e", "dataset": "d", "store": "e"},
    "reports": {"task": "compact", "subject": "d", "ended_at": "", "message": "", "details": "{}", "failures": 0},
}
"""One good row of every table, in an order that the references between them allow."""


def fill(c: Connection) -> None:
    for table, row in ROWS.items():
        c.execute(schema.metadata.tables[table].insert().values(**row))


@pytest.fixture
def filled(database: Database) -> Database:
    """One row in every table."""
    database.transact(fill)
    return database


@pytest.fixture(scope="module")
def guarded(
    request: pytest.FixtureRequest, dialect: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Database]:
    """The same, for tests that change nothing: made once."""
    if dialect == "sqlite":
        url = f"sqlite:///{tmp_path_factory.mktemp('guarded') / 'control.db'}"
    else:
        url = request.getfixturevalue("postgres_server").create_schema()
    made = Database(url)
    migrate(made)
    made.transact(fill)
    yield made
    made.close()


def test_a_dataset_that_is_forgotten_leaves_no_record_in_any_table(filled: Database) -> None:
    """Also in tables that are added later: each of them has a row above, and refers to no dataset that is not there."""
    tables = schema.metadata.tables.values()
    [name] = filled.read(lambda c: c.execute(select(schema.datasets.c.name)).scalars().all())
    filled.transact(lambda c: dependents.forget(c, name))
    left = {
        table.name
        for table in tables
        if "dataset" in table.c
        and filled.read(
            lambda c, table=table: c.execute(select(table.c.dataset).where(table.c.dataset == name)).first()
        )
    }
    parts = {
        table.name
        for table in tables
        if {"intent", "block", "segment"} & set(table.c.keys())
        and "dataset" not in table.c
        and filled.read(lambda c, table=table: c.execute(select(table)).first())
    }
    assert (left, parts) == (set(), set())
    assert filled.read(lambda c: c.execute(select(schema.datasets)).first()) is None


def insert(database: Database, table: str, **changed: Any) -> None:
    values = {**ROWS[table], **changed}
    database.transact(lambda c: c.execute(schema.metadata.tables[table].insert().values(**values)))


def test_every_table_of_rows_has_a_good_row_here(guarded: Database) -> None:
    """So that each refusal below is the fault of the one thing it changes."""
    assert set(ROWS) | {"meta", "counters"} == set(schema.metadata.tables)


REFUSED: list[tuple[str, str, dict[str, Any]]] = [
    ("an operation touches a range that has numbers", "touched", {"partition_key": "other", "after_seq": 1}),
    ("an operation touches one range of a partition", "touched", {}),
    ("what a filter lets through of a removal is counted once", "filtered_removals", {}),
    ("counted rows have numbers", "filtered_removals", {"filter": "n > 2", "after_seq": 1}),
    ("a given-up range has numbers", "ledger_given_up", {"after_seq": 1}),
    ("a range is given up once", "ledger_given_up", {}),
    ("a store is named once", "provenance", {}),
    ("a forfeit has numbers", "forfeits", {"operation": "p", "after_seq": 1}),
    ("an identity is purged once", "purged", {}),
    ("a generation is in one of four states", "generations", {"generation": 2, "state": "lost"}),
    ("a generation's number is used once", "generations", {"state": "retired"}),
    ("a removal is planned or done", "removals", {"operation": "p", "state": "perhaps"}),
    ("a dataset has one problem at a time (I10)", "problems", {}),
    ("a segment is lost once (U33)", "losses", {}),
    ("a dataset has one declaration", "datasets", {}),
    ("a null identity is compared in one of three ways", "datasets", {"name": "e", "identity_null": "never"}),
    ("an identity is compared at one time or at all", "datasets", {"name": "e", "identity_scope": "some"}),
    ("generations count from one", "datasets", {"name": "e", "generation": 0}),
    ("a horizon is not negative", "datasets", {"name": "e", "horizon": -1}),
    ("one undecided block per dataset (I8)", "blocks", {"id": "b2", "after_seq": 10, "through_seq": 20}),
    ("no two blocks begin at one number (I1)", "blocks", {"id": "b2", "state": "void"}),
    ("a block has numbers", "blocks", {"id": "b2", "state": "void", "after_seq": 5, "through_seq": 5}),
    ("numbers begin at one", "blocks", {"id": "b2", "state": "void", "after_seq": -1}),
    ("a block's state is one of three", "blocks", {"id": "b2", "state": "lost", "after_seq": 10, "through_seq": 20}),
    ("a block's id is its own", "blocks", {"state": "void", "after_seq": 10, "through_seq": 20}),
    ("a block is of a dataset", "blocks", {"id": "b2", "dataset": "?", "after_seq": 10, "through_seq": 20}),
    ("a landing file has one record", "landing", {}),
    ("a landing file is open or removed", "landing", {"file": "g", "state": "lost"}),
    ("an offset is not negative", "landing", {"file": "g", "sealed": -1}),
    (
        "lines are in one segment (I6)",
        "segments",
        {"id": 2, "registered": 2, "source": "t"},
    ),
    (
        "a source's step is one segment",
        "segments",
        {"id": 2, "registered": 2, "landing_file": "g"},
    ),
    (
        "segments are registered in an order",
        "segments",
        {"id": 2, "landing_file": "g", "source": "t"},
    ),
    (
        "a sealed segment has its place in the order",
        "segments",
        {"id": 2, "registered": None, "landing_file": "g", "source": "t"},
    ),
    ("a segment's state is one of four", "segments", {"id": 2, "state": "lost", "landing_file": "g", "source": "t"}),
    ("a segment's id is its own", "segments", {"registered": 2, "landing_file": "g", "source": "t"}),
    (
        "a segment joins a block that exists",
        "segments",
        {"id": 2, "registered": 2, "landing_file": "g", "source": "t", "block": "?"},
    ),
    ("a segment has one figure per partition", "segment_partitions", {}),
    ("a block has one figure per partition", "block_partitions", {}),
    ("a partition has one total", "partitions", {}),
    ("two sinks of one name", "sinks", {"instance": "s2"}),
    ("one last result per task and subject", "reports", {}),
    ("a dataset is removed once", "removed_datasets", {}),
    ("failures are counted up", "reports", {"subject": "e", "failures": -1}),
    ("one watermark per sink, dataset and partition", "watermarks", {}),
    ("a watermark is not negative", "watermarks", {"partition_key": "b", "seq": -1}),
    ("one open intent per sink, dataset and partition", "intents", {"id": "i2", "after_seq": 10, "through_seq": 20}),
    ("an intent has numbers", "intents", {"id": "i2", "state": "closed", "after_seq": 10}),
    ("no two chunks begin at one number", "chunks", {"through_seq": 6}),
    ("no two chunks end at one number", "chunks", {"after_seq": 1}),
    ("a chunk has numbers", "chunks", {"after_seq": 7, "through_seq": 7}),
    ("a chunk is of an intent", "chunks", {"intent": "?", "after_seq": 5, "through_seq": 6}),
    ("one ledger row per channel", "ledger", {}),
    ("a ledger's end is not negative", "ledger", {"origin": "p", "through_seq": -1}),
    ("a token's name is its own", "tokens", {"hash": "h2"}),
    ("a token is one token", "tokens", {"name": "t2"}),
    ("a key of a token has one receipt", "keyed_requests", {"digest": "h2"}),
    ("a key is of a dataset", "keyed_requests", {"dataset": "?", "key": "k2"}),
    ("a row is quarantined once per sink", "quarantine", {"id": "q2", "landing_row": 1}),
    ("a captured row is quarantined once", "quarantine", {"id": "q2", "seq": 2}),
    ("one rebuild per dataset at a time", "rebuilds", {"id": "r2"}),
    ("one position per source", "sources", {}),
    ("a removal is counted once", "removals", {}),
    ("one removal of rows at a time", "operations", {"id": "o2"}),
]


@pytest.mark.parametrize(("table", "changed"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED])
def test_a_row_that_may_not_be_is_refused(guarded: Database, table: str, changed: dict[str, Any]) -> None:
    """I1, I6, I8: the database itself is the last line of defence."""
    with pytest.raises(Corrupt, match="refused a change"):
        insert(guarded, table, **changed)


ACCEPTED: list[tuple[str, str, dict[str, Any]]] = [
    ("any number of decided blocks", "blocks", {"id": "b2", "state": "void", "after_seq": 10, "through_seq": 20}),
    ("closed intents beside the open one", "intents", {"id": "i2", "state": "closed"}),
    ("a removed sink's name again", "sinks", {"instance": "s2", "state": "removed"}),
    ("finished rebuilds beside the open one", "rebuilds", {"id": "r2", "state": "done"}),
    ("finished removals beside the one under way", "operations", {"id": "o2", "state": "done"}),
    ("the next lines of a file", "segments", {"id": 2, "registered": 2, "landing_from": 5, "source": None}),
    (
        "quarantined rows that came another way",
        "quarantine",
        {"id": "q2", "sink": None, "seq": None, "landing_file": None, "landing_offset": None, "landing_row": None},
    ),
]


@pytest.mark.parametrize(("table", "changed"), [case[1:] for case in ACCEPTED], ids=[case[0] for case in ACCEPTED])
def test_a_row_that_may_be_is_accepted(guarded: Database, table: str, changed: dict[str, Any]) -> None:
    class Accepted(Exception):
        """Ends the transaction without keeping its row."""

    def work(c: Connection) -> None:
        c.execute(schema.metadata.tables[table].insert().values({**ROWS[table], **changed}))
        raise Accepted

    with pytest.raises(Accepted):
        guarded.transact(work)


@pytest.mark.parametrize("verdict", ["committed", "void"])
def test_a_decided_block_keeps_its_verdict(filled: Database, verdict: str) -> None:
    """I4: whoever comes later with another opinion is refused by the database itself."""
    move = update(schema.blocks)
    filled.transact(lambda c: c.execute(move.values(state=verdict)))
    for other in {"reserved", "committed", "void"} - {verdict}:
        with pytest.raises(Corrupt, match="a decided block keeps its verdict"):
            filled.transact(lambda c, other=other: c.execute(move.values(state=other)))
    assert one(filled, select(schema.blocks.c.state)).state == verdict


@pytest.mark.parametrize(
    ("table", "column"),
    [("datasets", "horizon"), ("watermarks", "seq"), ("landing", "sealed"), ("counters", "value")],
)
def test_what_only_grows_cannot_go_back(filled: Database, table: str, column: str) -> None:
    """I1, I3, I6: the horizon, a watermark, a sealed offset and the allocator stand or rise."""
    there = schema.metadata.tables[table]
    filled.transact(lambda c: c.execute(update(there).values({column: 10})))
    filled.transact(lambda c: c.execute(update(there).values({column: 10})))
    with pytest.raises(Corrupt, match="never goes back"):
        filled.transact(lambda c: c.execute(update(there).values({column: 9})))
    filled.transact(lambda c: c.execute(update(there).values({column: 11})))


def test_a_chunk_is_acknowledged_only_while_its_intent_is_open(filled: Database) -> None:
    acknowledge = update(schema.chunks).values(state="acknowledged")
    filled.transact(lambda c: c.execute(acknowledge))
    insert(filled, "chunks", after_seq=5, through_seq=10)
    filled.transact(lambda c: c.execute(update(schema.intents).values(state="closed")))
    with pytest.raises(Corrupt, match="only while its intent is open"):
        filled.transact(lambda c: c.execute(acknowledge.where(schema.chunks.c.after_seq == 5)))
    assert one(filled, select(schema.chunks.c.state).where(schema.chunks.c.after_seq == 5)).state == "pending"


# ── serial transactions ──────────────────────────────────────────────────────────────────────────────────────────


def test_two_transactions_that_read_decide_and_write_lose_no_update(database: Database) -> None:
    """I5: forty times "read the counter, write one more" by four threads make it forty."""
    counter = schema.counters
    together = threading.Barrier(4)

    def add_one(c: Connection) -> None:
        seen = c.execute(select(counter.c.value).where(counter.c.name == "sequence")).scalar_one()
        c.execute(update(counter).where(counter.c.name == "sequence").values(value=seen + 1))

    def worker(_: int) -> None:
        together.wait()
        for _ in range(10):
            database.transact(add_one)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(worker, range(4)))
    assert value_of(database) == 40


def test_two_decisions_that_exclude_each_other_are_not_both_taken(database: Database) -> None:
    """I5: "insert unless somebody has" on different rows is no conflict of rows, only of decisions.

    Both look before either writes, if the database lets them; without serial transactions both would insert.
    """
    looked = threading.Barrier(2)

    def decide(name: str) -> bool:
        first = itertools.count()

        def work(c: Connection) -> bool:
            taken = c.execute(select(func.count()).select_from(schema.ledger)).scalar_one()
            if next(first) == 0 and database.dialect == "postgresql":
                looked.wait(timeout=10)
            if taken:
                return False
            c.execute(schema.ledger.insert().values({**ROWS["ledger"], "origin": name}))
            return True

        return database.transact(work)

    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(decide, ["a", "b"])) == [False, True]


def test_a_transaction_that_fails_leaves_nothing(database: Database) -> None:
    """Whatever kind of error it was: none of its writes are there, and the next one is not in its way."""

    def half(c: Connection) -> None:
        datasets.insert(c, Dataset("d", (), None, (), Schema()), now=NOW)
        raise Permanent("no")

    for _ in range(20):  # more than a pool holds: none of the connections may stay out
        with pytest.raises(Permanent):
            database.transact(half)
    assert database.read(datasets.everyone) == []


def test_readers_see_one_instant(database: Database) -> None:
    """A look of two queries shows both from before a commit in between, never one from each side."""
    add_dataset(database)

    def look(c: Connection) -> tuple[int, int]:
        query = select(schema.counters.c.value).where(schema.counters.c.name == "sequence")
        first = c.execute(query).scalar_one()
        database.transact(lambda other: blocks.raise_allocator(other, seen_through=50))
        return first, c.execute(query).scalar_one()

    assert database.read(look) == (0, 0)
    assert value_of(database) == 50


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_module, "BUSY_SECONDS_MAX", 0.01)


@pytest.mark.usefixtures("impatient")
def test_a_locked_sqlite_database_is_retryable(tmp_path: Any) -> None:
    """Another program that keeps the write lock costs time, never a row: the caller is told to come again."""
    database, other = Database(f"sqlite:///{tmp_path / 'c.db'}"), Database(f"sqlite:///{tmp_path / 'c.db'}")
    migrate(database)

    def while_locked(_: Connection) -> None:
        with pytest.raises(Retryable, match="locked"):
            other.transact(lambda c: blocks.raise_allocator(c, seen_through=1))
        assert other.read(datasets.everyone) == []  # readers are not in the way

    database.transact(while_locked)
    other.transact(lambda c: blocks.raise_allocator(c, seen_through=1))
    database.close()
    other.close()


def test_a_transaction_that_cannot_be_ordered_is_tried_again_and_then_retryable(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_module, "ATTEMPTS_MAX", 3)
    tries = itertools.count(1)

    class NotSerial(Exception):
        sqlstate = "40001"

    def work(c: Connection) -> int:
        number = next(tries)
        c.execute(update(schema.counters).where(schema.counters.c.name == "sequence").values(value=number))
        if number <= refused:
            raise OperationalError("UPDATE", {}, NotSerial())
        return number

    refused = 2
    assert database.transact(work) == 3
    assert value_of(database) == 3
    refused, tries = 99, itertools.count(10)
    with pytest.raises(Retryable, match="could not serialize"):
        database.transact(work)
    assert value_of(database) == 3


def test_a_foreign_kind_of_database_is_refused() -> None:
    with pytest.raises(Permanent, match="mysql"):
        Database("mysql://localhost/x")


def test_an_unreachable_database_is_retryable() -> None:
    database = Database("postgresql://postgres@127.0.0.1:1/nothing")
    with pytest.raises(Retryable, match="not available"):
        database.read(datasets.everyone)


# ── the answer to COMMIT is lost ─────────────────────────────────────────────────────────────────────────────────


LoseAnswers = Callable[[list[bool | None]], list[bool | None]]


@pytest.fixture
def lose_answers(database: Database, monkeypatch: pytest.MonkeyPatch) -> Iterator[LoseAnswers]:
    """Lose the answers to the next commits. For each: whether it happens all the same, or None to leave it alone."""
    fates: list[bool | None] = []
    dialect = database.read(lambda c: c.dialect)
    real = dialect.do_commit

    def do_commit(connection: Any) -> None:
        fate = fates.pop(0) if fates else None
        if fate is False:
            connection.rollback()
        else:
            real(connection)
        if fate is None:
            return
        raise dialect.loaded_dbapi.OperationalError("the connection is gone")

    monkeypatch.setattr(dialect, "do_commit", do_commit)
    monkeypatch.setattr(dialect, "is_disconnect", lambda error, *_: "the connection is gone" in str(error))

    def arm(wanted: list[bool | None]) -> list[bool | None]:
        fates.extend(wanted)
        return fates

    yield arm
    fates.clear()


def test_a_commit_that_happened_without_an_answer_is_found_by_its_id(
    database: Database, lose_answers: LoseAnswers
) -> None:
    """It is not run again, and its result stands."""
    add_dataset(database)
    add_segment(database, rows=3)
    runs = []

    def work(c: Connection) -> Any:
        runs.append(1)
        return blocks.reserve(c, id="b", dataset="d", base=BASE, seen_through=0, limits=BatchLimits(), now=NOW)

    left = lose_answers([True])
    made = database.transact(work, landed=lambda c: blocks.get(c, "b") is not None)
    assert made.block.range == SequenceRange(0, 3)
    assert (runs, left) == ([1], [])
    assert value_of(database) == 3


def test_a_commit_that_did_not_happen_is_made_again(database: Database, lose_answers: LoseAnswers) -> None:
    """Twice lost, then settled: done once, however often it was tried."""
    add_dataset(database)
    add_segment(database, rows=3)
    runs = []

    def work(c: Connection) -> Any:
        runs.append(1)
        return blocks.reserve(c, id="b", dataset="d", base=BASE, seen_through=0, limits=BatchLimits(), now=NOW)

    lose_answers([False, None, False])  # the one in between is the look
    made = database.transact(work, landed=lambda c: blocks.get(c, "b") is not None)
    assert made.block.range == SequenceRange(0, 3)
    assert len(runs) == 3
    assert value_of(database) == 3


@pytest.mark.parametrize("happened", [True, False])
def test_a_lost_answer_that_nothing_can_settle_is_outcome_unknown(
    database: Database, lose_answers: LoseAnswers, happened: bool
) -> None:
    lose_answers([happened])
    with pytest.raises(OutcomeUnknown, match="response to COMMIT was lost"):
        database.transact(lambda c: blocks.raise_allocator(c, seen_through=9))
    assert value_of(database) == (9 if happened else 0)


def test_a_lost_answer_to_a_database_that_is_gone_is_never_called_harmless(
    database: Database, lose_answers: LoseAnswers
) -> None:
    """`Retryable` promises that nothing happened; with the database away nobody can promise that."""

    def unreachable(_: Connection) -> bool:
        raise Retryable("The control database is not available.")

    lose_answers([True])
    with pytest.raises(OutcomeUnknown, match="cannot be reached"):
        database.transact(lambda c: blocks.raise_allocator(c, seen_through=9), landed=unreachable)


@pytest.mark.postgres
def test_a_backend_that_is_killed_at_commit_is_settled(postgres_server: Any) -> None:
    """A real server's connection dies right before or right after COMMIT: done once in both cases."""
    database = Database(postgres_server.create_database())
    migrate(database)
    add_dataset(database)
    kill: list[str] = []
    dialect = database.read(lambda c: c.dialect)
    real = dialect.do_commit

    def do_commit(connection: Any) -> None:
        when = kill.pop() if kill else ""
        pid = connection.driver_connection.info.backend_pid
        if when == "before":
            postgres_server.execute(f"SELECT pg_terminate_backend({pid}, 5000)")
        real(connection)
        if when == "after":
            postgres_server.execute(f"SELECT pg_terminate_backend({pid}, 5000)")
            connection.driver_connection.execute("SELECT 1")  # finds the connection dead, as the lost answer would

    dialect.do_commit = do_commit
    for number, when in enumerate(["before", "after"]):
        runs = []
        held = QuarantineInput(reason="r", payload=str(number), landing_file="f", landing_offset=number, landing_row=0)

        def work(c: Connection, held: QuarantineInput = held, runs: list[int] = runs) -> None:
            runs.append(1)
            quarantine.hold(c, "d", [held], now=NOW)

        def landed(c: Connection, held: QuarantineInput = held) -> bool:
            return any(entry.payload == held.payload for entry in quarantine.entries(c))

        kill.append(when)
        database.transact(work, landed=landed)
        assert len(runs) == (2 if when == "before" else 1)
    assert sorted(entry.payload for entry in database.read(quarantine.entries)) == ["0", "1"]
    database.close()


@pytest.mark.postgres
def test_a_server_that_restarted_meanwhile_is_noticed_before_work_begins(postgres_server: Any) -> None:
    """An idle connection that died is replaced, and nobody is told."""
    url = postgres_server.create_database()
    database = Database(url)
    migrate(database)
    name = url.rpartition("/")[2]
    postgres_server.execute(f"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = '{name}'")
    database.transact(lambda c: blocks.raise_allocator(c, seen_through=9))
    assert value_of(database) == 9
    database.close()


# ── reserving ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_reservation_takes_the_oldest_segments_and_as_many_numbers_as_rows(database: Database) -> None:
    add_dataset(database)
    ids = [add_segment(database, rows=rows) for rows in (3, 2, 4)]
    made = reserve(database, limits=BatchLimits(rows_max=5))
    assert made is not None
    assert made.block.range == SequenceRange(0, 5)
    assert [(s.id, s.block_offset) for s in made.segments] == [(ids[0], 0), (ids[1], 3)]
    assert database.read(lambda c: blocks.undecided(c, "d")) == made.block


@pytest.mark.parametrize(
    "limits", [BatchLimits(rows_max=1), BatchLimits(bytes_max=1), BatchLimits(segments_max=1)], ids=str
)
def test_a_segment_that_is_larger_than_every_bound_still_goes(database: Database, limits: BatchLimits) -> None:
    """One at a time: a bound is never a reason to wait for ever."""
    add_dataset(database)
    add_segment(database, rows=100)
    add_segment(database, rows=100)
    made = reserve(database, limits=limits)
    assert made is not None
    assert len(made.segments) == 1


def test_nothing_is_reserved_for_nothing(database: Database) -> None:
    add_dataset(database)
    assert reserve(database) is None
    assert value_of(database) == 0


def test_a_second_block_has_to_wait_for_the_first(database: Database) -> None:
    """I8: there is at most one undecided block, and its segments are in no other."""
    add_dataset(database)
    add_segment(database)
    reserve(database, id="b1")
    add_segment(database)
    with pytest.raises(BlockUndecided):
        reserve(database, id="b2")


@pytest.mark.parametrize("values", [{"fenced": True}, {"generation": 2}], ids=["fenced", "another generation"])
def test_a_dataset_that_is_being_rebuilt_is_not_reserved_for(database: Database, values: dict[str, Any]) -> None:
    add_dataset(database)
    add_segment(database)
    database.transact(lambda c: c.execute(update(schema.datasets).values(**values)))
    with pytest.raises(Retryable, match="being rebuilt"):
        reserve(database)
    assert value_of(database) == 0


def test_concurrent_reservations_are_disjoint_and_leave_no_segment_out(database: Database) -> None:
    """I1, I8: eight threads on four datasets: no number twice, no hole, each segment in one block."""
    names = [f"d{number}" for number in range(4)]
    for name in names:
        add_dataset(database, name)
        for _ in range(3):
            add_segment(database, rows=2, dataset=name)
    together = threading.Barrier(8)

    def worker(number: int) -> list[SequenceRange]:
        together.wait()
        mine = []
        for turn in range(30):
            name = names[(number + turn) % len(names)]
            try:
                made = reserve(database, id=f"{number}-{turn}", dataset=name, limits=BatchLimits(segments_max=1))
            except BlockUndecided:
                continue
            if made is not None:
                mine.append(made.block.range)
                assert record(database, made.block, rows=2)
        return mine

    with ThreadPoolExecutor(8) as pool:
        found = sorted(itertools.chain.from_iterable(pool.map(worker, range(8))))
    for name in names:  # what the threads left to each other at the very end
        while (made := reserve(database, id=f"last-{name}-{len(found)}", dataset=name)) is not None:
            record(database, made.block, rows=len(made.block.range))
            found.append(made.block.range)
    assert [r.after for r in found] == [0, *(r.through for r in found[:-1])]
    assert found[-1].through == value_of(database) == 24
    assert database.read(lambda c: [segments.backlog(c, name)[0] for name in names]) == [0] * 4


def test_the_numbers_end_with_a_clear_word(database: Database) -> None:
    add_dataset(database)
    add_segment(database, rows=3)
    database.transact(lambda c: blocks.raise_allocator(c, seen_through=SEQUENCE_MAX - 2))
    with pytest.raises(Permanent, match="used up"):
        reserve(database)
    assert value_of(database) == SEQUENCE_MAX - 2


# ── the allocator ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("table", ["blocks", "datasets", "watermarks", "intents"])
def test_the_allocator_starts_above_everything_that_carries_a_number(filled: Database, table: str) -> None:
    """I1: a counter that was lost or restored low is raised above blocks, horizons, watermarks and intents."""
    column = {"blocks": "through_seq", "datasets": "horizon", "watermarks": "seq", "intents": "through_seq"}[table]
    there = schema.metadata.tables[table]
    filled.transact(lambda c: c.execute(update(there).values({column: 777})))
    assert value_of(filled) == 0
    filled.transact(lambda c: blocks.raise_allocator(c, seen_through=5))
    assert value_of(filled) == 777
    filled.transact(void_everything)
    made = reserve(filled, id="next")
    assert made is not None
    assert made.block.range.after == 777


def void_everything(c: Connection) -> None:
    c.execute(update(schema.blocks).values(state="void"))
    c.execute(update(schema.segments).values(row_count=1))


def test_the_allocator_starts_above_what_the_table_shows(database: Database) -> None:
    """I1: also in the reservation itself, should the table have grown since the store was opened."""
    add_dataset(database)
    add_segment(database, rows=2)
    database.transact(lambda c: blocks.raise_allocator(c, seen_through=40))
    assert value_of(database) == 40
    made = reserve(database, seen_through=100)
    assert made is not None
    assert made.block.range == SequenceRange(100, 102)


def test_a_void_block_gives_its_segments_back_and_keeps_its_numbers(database: Database) -> None:
    """I1: the numbers of a void block are gone for good; its rows get others."""
    add_dataset(database)
    id = add_segment(database, rows=2)
    first = reserve(database, id="b1")
    assert first is not None
    assert void(database, first.block)
    assert not void(database, first.block), "a second verdict changes nothing"
    assert not record(database, first.block, rows=2), "nor does another one"
    second = reserve(database, id="b2")
    assert second is not None
    assert second.block.range == SequenceRange(2, 4)
    assert [s.id for s in second.segments] == [id]


def test_recording_consumes_the_segments_and_raises_the_horizon_together(database: Database) -> None:
    """I3, I4."""
    add_dataset(database)
    add_segment(database, rows=2)
    made = reserve(database)
    assert made is not None
    assert record(database, made.block, rows=1)
    assert not record(database, made.block, rows=1)
    assert not void(database, made.block)
    block = database.read(lambda c: blocks.get(c, "b"))
    assert block is not None
    assert (block.state, block.rows, block.duplicates) == ("committed", 1, 1)
    assert database.read(lambda c: datasets.get(c, "d")).horizon == 2
    assert database.read(lambda c: segments.backlog(c, "d")) == (0, 0, 0)


def test_a_late_record_of_an_older_block_does_not_lower_the_horizon(database: Database) -> None:
    """I3."""
    add_dataset(database)
    database.transact(lambda c: datasets.raise_horizon(c, "d", through=10, synced_snapshot=7))
    database.transact(lambda c: datasets.raise_horizon(c, "d", through=5, synced_snapshot=None))
    found = database.read(lambda c: datasets.get(c, "d"))
    assert (found.horizon, found.synced_snapshot) == (10, 7)


ALLOCATE = """
import sys
from datetime import UTC, datetime
from floodmark.commit.protocol import Base, PartitionRows
from floodmark.control import blocks, segments
from floodmark.control.blocks import BatchLimits
from floodmark.control.database import Database
from floodmark.control.segments import SegmentContent
now = datetime(2026, 1, 1, tzinfo=UTC)
database, name = Database(sys.argv[1]), sys.argv[2]
print("ready", flush=True)
sys.stdin.readline()
for turn in range(15):
    id = segments.fresh_segment_id()
    def add(c):
        segments.announce(c, id=id, dataset=name, path="p", owner="me", now=now)
        segments.register(c, id=id, content=SegmentContent("p", 3, 1, None, None, ()))
    database.transact(add)
    made = database.transact(lambda c: blocks.reserve(
        c, id=f"{name}-{turn}", dataset=name, base=Base("t", 1, None), seen_through=0, limits=BatchLimits(), now=now))
    print(made.block.range.after, made.block.range.through, flush=True)
    database.transact(lambda c: blocks.record(
        c, made.block, snapshot=1, synced_snapshot=1, rows=3, stats=[], now=now))
"""


def test_two_processes_allocate_at_once_without_meeting(database: Database) -> None:
    """I1: the allocator belongs to the store, not to a process: every number once, none below an earlier one."""
    url = database.url.render_as_string(hide_password=False)
    running = []
    for name in ("a", "b"):
        add_dataset(database, name)
        running.append(
            subprocess.Popen(
                [sys.executable, "-c", ALLOCATE, url, name],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
    for process in running:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    outputs = []
    for process in running:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in running:
        out, _ = process.communicate(timeout=60)
        assert process.returncode == 0
        outputs.append([tuple(map(int, line.split())) for line in out.splitlines()])
    for ranges in outputs:
        assert ranges == sorted(ranges), "in each process numbers only rise"
    together = sorted(itertools.chain.from_iterable(outputs))
    assert [after for after, _ in together] == list(range(0, 90, 3))
    assert value_of(database) == 90


# ── segments and landing files ───────────────────────────────────────────────────────────────────────────────────


def announce(c: Connection, id: int, *, path: str = "p", owner: str = "me") -> None:
    segments.announce(c, id=id, dataset="d", path=path, owner=owner, now=NOW)


def state_of(database: Database, id: int) -> tuple[str, str]:
    row = one(database, select(schema.segments).where(schema.segments.c.id == id))
    return row.state, row.path


LINES = LandingRange("file", 0, 100)


def seen(c: Connection) -> int | None:
    return segments.landing_offset(c, file="file", dataset="d")


def test_of_two_sealers_of_the_same_lines_one_registers(database: Database) -> None:
    """I6: the offset moves once, with the segment that holds the lines."""
    add_dataset(database)
    id = segments.landing_segment_id(LINES)
    assert database.transact(seen) == 0
    database.transact(lambda c: announce(c, id, path="mine"))
    database.transact(lambda c: announce(c, id, path="theirs"))
    assert database.transact(lambda c: segments.register(c, id=id, content=content(1, path="mine"), lines=LINES))
    assert not database.transact(lambda c: segments.register(c, id=id, content=content(1, path="theirs"), lines=LINES))
    assert state_of(database, id) == ("sealed", "mine")
    assert database.transact(seen) == 100


def test_lines_that_begin_elsewhere_move_no_offset(database: Database) -> None:
    """I6: a sealer that saw more lines than the one that was first registers none of them."""
    add_dataset(database)
    database.transact(seen)
    longer = LandingRange("file", 0, 200)
    for lines in (LINES, longer):
        database.transact(lambda c, lines=lines: announce(c, segments.landing_segment_id(lines)))
    first, second = map(segments.landing_segment_id, (LINES, longer))
    assert database.transact(lambda c: segments.register(c, id=first, content=content(1), lines=LINES))
    assert not database.transact(lambda c: segments.register(c, id=second, content=content(2), lines=longer))
    assert database.transact(seen) == 100
    assert state_of(database, second)[0] == "writing"


@pytest.mark.parametrize("state", ["dropped", "sealed", "consumed"])
def test_an_offset_never_moves_without_its_segment(database: Database, state: str) -> None:
    """I6: a registration that is refused changes nothing at all; a moved offset alone would lose the lines."""
    add_dataset(database)
    database.transact(seen)
    id = segments.landing_segment_id(LINES)
    database.transact(lambda c: announce(c, id))
    database.transact(lambda c: c.execute(update(schema.segments).values(state=state, registered=1)))
    assert not database.transact(lambda c: segments.register(c, id=id, content=content(1), lines=LINES))
    assert database.transact(seen) == 0
    assert state_of(database, id)[0] == state


def test_what_was_announced_anew_is_not_dropped_for_a_dead_writer(database: Database) -> None:
    """A sealer that takes up a dead one's lines is not robbed of its segment by a clean-up that looked before."""
    add_dataset(database)
    database.transact(lambda c: announce(c, 1, path="dead's", owner="dead"))
    [(id, path, _)] = database.read(lambda c: segments.unfinished(c, "d"))
    database.transact(lambda c: announce(c, 1, path="alive's", owner="alive"))
    assert not database.transact(lambda c: segments.drop(c, id, path=path))
    assert state_of(database, 1) == ("writing", "alive's")
    assert database.transact(lambda c: segments.drop(c, id, path="alive's"))
    assert not database.transact(lambda c: segments.register(c, id=1, content=content(1)))


def test_a_dropped_segment_can_be_written_anew(database: Database) -> None:
    """The id is a function of the lines, so the next sealer of the same lines has the same id."""
    add_dataset(database)
    database.transact(lambda c: announce(c, 1))
    database.transact(lambda c: segments.drop(c, 1, path="p"))
    database.transact(lambda c: announce(c, 1, path="again"))
    assert database.transact(lambda c: segments.register(c, id=1, content=content(1, path="again")))
    assert state_of(database, 1) == ("sealed", "again")


def test_a_registered_segment_is_not_announced_or_dropped_away(database: Database) -> None:
    """I7: from registration to commit nothing touches a segment."""
    add_dataset(database)
    id = add_segment(database, rows=2)
    database.transact(lambda c: announce(c, id, path="other"))
    assert not database.transact(lambda c: segments.drop(c, id, path="p"))
    assert state_of(database, id) == ("sealed", "p")
    assert database.read(lambda c: segments.partitions_of(c, [id])) == {id: [PartitionRows("all", Tally(2, 7), 0, 1)]}


def test_a_segment_in_a_block_joins_no_other(database: Database) -> None:
    add_dataset(database)
    id = add_segment(database)
    made = reserve(database)
    assert made is not None
    with pytest.raises(Corrupt, match="two blocks"):
        database.transact(lambda c: blocks.join_segments(c, made.block, list(made.segments)))
    assert database.read(lambda c: [s.id for s in segments.of_block(c, "b")]) == [id]


def test_a_source_step_is_loaded_once(database: Database) -> None:
    add_dataset(database)
    step = SourceStep("history.csv", 0)
    for number in (1, 2):
        database.transact(lambda c, number=number: announce(c, number))
    assert database.transact(lambda c: segments.register(c, id=1, content=content(1), step=step))
    with pytest.raises(Corrupt):
        database.transact(lambda c: segments.register(c, id=2, content=content(1), step=step))


def test_a_removed_landing_file_is_remembered_for_good(database: Database) -> None:
    add_dataset(database)
    database.transact(seen)
    database.transact(lambda c: segments.advance_landing(c, LINES))
    assert database.read(lambda c: segments.landing_offsets(c, "d")) == {"file": 100}
    database.transact(lambda c: segments.close_landing(c, "file"))
    assert database.transact(seen) is None
    assert not database.transact(lambda c: segments.advance_landing(c, LandingRange("file", 100, 200)))
    assert database.read(lambda c: segments.landing_offsets(c, "d")) == {}


# ── datasets and quarantine ──────────────────────────────────────────────────────────────────────────────────────


def test_two_writers_with_other_ideas_of_a_new_column_are_put_in_an_order(database: Database) -> None:
    """The second is told, and the schema is the first one's."""
    add_dataset(database)
    together = threading.Barrier(2)

    def evolve(kind: str) -> str:
        columns = Schema.declare({"x": kind}).columns
        together.wait()
        try:
            database.transact(lambda c: datasets.evolve(c, "d", columns))
        except FloodmarkError as error:
            return type(error).__name__
        return kind

    with ThreadPoolExecutor(2) as pool:
        outcome = set(pool.map(evolve, ["string", "boolean"]))
    assert "SchemaConflict" in outcome
    kept: tuple[Column, ...] = database.read(lambda c: datasets.get(c, "d")).schema.columns
    assert {str(column.type) for column in kept} == outcome - {"SchemaConflict"}


def test_an_unknown_dataset_is_told_with_those_there_are(database: Database) -> None:
    add_dataset(database, "orders")
    with pytest.raises(UnknownDataset, match="orders"):
        database.read(lambda c: datasets.get(c, "order"))


def test_a_quarantine_entry_leaves_once(database: Database) -> None:
    add_dataset(database)
    database.transact(lambda c: quarantine.hold(c, "d", [QuarantineInput(reason="why", payload="{}")], now=NOW))
    [entry] = database.read(quarantine.entries)
    assert (entry.reason, entry.payload, entry.state) == ("why", "{}", "held")
    assert database.transact(lambda c: quarantine.decide(c, entry.id, state="replayed", now=NOW))
    assert not database.transact(lambda c: quarantine.decide(c, entry.id, state="discarded", now=NOW))
    assert database.read(quarantine.entries) == []
    assert database.read(lambda c: quarantine.get(c, entry.id[:8])).state == "replayed"


@pytest.mark.parametrize("wanted", ["", "%", "_", "nothing"])
def test_an_entry_is_found_by_its_own_beginning_only(database: Database, wanted: str) -> None:
    add_dataset(database)
    database.transact(lambda c: quarantine.hold(c, "d", [QuarantineInput(reason="why", payload="{}")], now=NOW))
    with pytest.raises(FloodmarkError, match="entry has the id"):
        database.read(lambda c: quarantine.get(c, wanted))


def test_an_error_of_the_database_says_which_and_hides_no_cause(database: Database) -> None:
    with pytest.raises(Retryable, match=r"no such table|does not exist") as caught:
        database.read(lambda c: c.execute(text("SELECT * FROM nowhere")))
    assert isinstance(caught.value.__cause__, DBAPIError)


def test_sqlite_commits_survive_a_power_loss(tmp_path: Any) -> None:
    """An answered commit was synced: write-ahead log, `synchronous=FULL`, foreign keys on, the lock first (I5)."""
    database = Database(f"sqlite:///{tmp_path / 'c.db'}")
    statements: list[str] = []
    database.read(lambda c: c.connection.driver_connection.set_trace_callback(statements.append))
    statements.clear()
    pragmas = ("journal_mode", "synchronous", "foreign_keys")
    found = database.transact(lambda c: [c.exec_driver_sql(f"PRAGMA {name}").scalar() for name in pragmas])
    assert found == ["wal", 2, 1]
    assert statements[0] == "BEGIN IMMEDIATE"
    database.close()


def test_a_read_that_is_interrupted_before_it_begins_leaves_the_next_write_serial(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I5: connections are used again, and a transaction that writes takes the lock first whatever came before it."""
    database = Database(f"sqlite:///{tmp_path / 'c.db'}")
    statements: list[str] = []
    database.read(lambda c: c.connection.driver_connection.set_trace_callback(statements.append))
    with monkeypatch.context() as patched:
        patched.setattr(Connection, "begin", raise_interrupt)
        with pytest.raises(KeyboardInterrupt):
            database.read(lambda _: None)
    statements.clear()
    database.transact(lambda c: c.exec_driver_sql("PRAGMA foreign_keys"))
    assert statements[0] == "BEGIN IMMEDIATE"
    database.close()


def raise_interrupt(_connection: Connection) -> None:
    raise KeyboardInterrupt


# ── what cannot be written or read ───────────────────────────────────────────────────────────────────────────────


def test_a_text_with_half_a_character_is_refused_as_a_name(database: Database) -> None:
    with pytest.raises(InvalidName, match="unpaired surrogate"):
        database.read(lambda c: datasets.find(c, "a\udcff"))


@pytest.mark.parametrize("column", ["identity_columns", "partition_by", "columns", "layout"])
@pytest.mark.parametrize("value", ["", "{", "7", '"x"', "[[[]]]", '{"x": 1}'])
def test_a_record_that_cannot_be_read_back_is_corrupt(database: Database, column: str, value: str) -> None:
    add_dataset(database)
    database.transact(lambda c: c.execute(update(schema.datasets).values({column: value})))
    with pytest.raises(Corrupt):
        database.read(lambda c: datasets.get(c, "d"))


def test_values_stand_neither_in_a_log_of_everything_nor_in_errors(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    other = Database(database.url)
    other.transact(lambda c: c.execute(schema.meta.insert().values(name="hush-name", value="hush-value")))
    assert other.read(
        lambda c: c.execute(select(schema.meta.c.value).where(schema.meta.c.name == "hush-name")).scalar()
    )
    with pytest.raises(FloodmarkError) as caught:
        other.transact(lambda c: c.execute(schema.meta.insert().values(name="hush-name", value="hush-value")))
    other.close()
    assert "hush-value" not in caplog.text
    assert "hush-value" not in str(caught.value.__cause__)
