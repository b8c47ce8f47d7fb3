"""The hub's records, on every control database: the ledger, tokens, and the keys of captures."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from floodmark.control import ledger, provenance, requests, tokens
from floodmark.control.database import Database
from floodmark.control.datasets import Dataset, insert
from floodmark.control.ledger import Entry
from floodmark.control.requests import Request
from floodmark.control.tokens import Token
from floodmark.errors import Corrupt, TokenExists, UnknownToken
from floodmark.schema import Schema
from floodmark.sequence import SEQUENCE_MAX, SequenceRange, Tally

NOW = datetime(2026, 1, 1, tzinfo=UTC)
EVERYTHING = SequenceRange(0, SEQUENCE_MAX)
ENTRY = Entry("edge", "events", "all", 10, Tally(7, 2**64 - 1), 2)


def write(database: Database, entry: Entry, *, seen: int | None) -> bool:
    return database.transact(lambda c: ledger.write(c, entry, seen=seen, now=NOW))


def find(database: Database) -> Entry | None:
    return database.read(lambda c: ledger.find(c, origin="edge", dataset="events", partition="all"))


# ── the ledger ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_entry_is_found_as_it_was_written(database: Database) -> None:
    assert find(database) is None
    assert write(database, ENTRY, seen=None)
    assert find(database) == ENTRY


def test_the_highest_numbers_are_kept_exactly(database: Database) -> None:
    entry = replace(ENTRY, through=SEQUENCE_MAX, given_up_rows=SEQUENCE_MAX, tally=Tally(SEQUENCE_MAX, 2**64 - 1))
    assert write(database, entry, seen=None)
    assert find(database) == entry


def test_an_entry_moves_only_from_the_version_that_was_seen(database: Database) -> None:
    """H2."""
    write(database, ENTRY, seen=None)
    moved = replace(ENTRY, through=20, version=2)
    assert write(database, moved, seen=1)
    assert find(database) == moved
    assert not write(database, replace(ENTRY, through=30, version=2), seen=1)
    assert not write(database, replace(ENTRY, through=30), seen=None)
    assert find(database) == moved


def test_an_entry_that_is_not_there_does_not_move(database: Database) -> None:
    assert not write(database, ENTRY, seen=1)
    assert find(database) is None


def test_an_end_never_goes_back(database: Database) -> None:
    write(database, ENTRY, seen=None)
    assert not write(database, replace(ENTRY, through=9, version=2), seen=1)
    assert find(database) == ENTRY


def together(work: Callable[[int], Any], *, threads: int = 4) -> list[Any]:
    results: list[Any] = [None] * threads
    start = threading.Barrier(threads)

    def one(index: int) -> None:
        start.wait()
        results[index] = work(index)

    running = [threading.Thread(target=one, args=(index,)) for index in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    return results


@pytest.mark.parametrize("known", [False, True], ids=["a new channel", "a known channel"])
def test_of_several_that_move_one_entry_at_once_one_does(database: Database, known: bool) -> None:
    """H2, with real connections: each has seen the same version."""
    if known:
        write(database, ENTRY, seen=None)
    outcomes = together(
        lambda index: write(
            database, replace(ENTRY, through=11 + index, version=2 if known else 1), seen=1 if known else None
        )
    )
    assert sorted(outcomes) == [False, False, False, True]
    found = find(database)
    assert found is not None
    assert found.through == 11 + outcomes.index(True)


def test_a_transaction_that_fails_leaves_the_entry_as_it_was(database: Database) -> None:
    """H1."""
    write(database, ENTRY, seen=None)

    def work(connection: Any) -> None:
        assert ledger.write(connection, replace(ENTRY, through=20, version=2), seen=1, now=NOW)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        database.transact(work)
    assert find(database) == ENTRY


def test_an_origins_channels_are_listed_in_order_and_only_its_own(database: Database) -> None:
    for origin, dataset, partition in [("edge", "b", "x"), ("edge", "a", "y"), ("edge", "a", "x"), ("other", "a", "x")]:
        write(database, replace(ENTRY, origin=origin, dataset=dataset, partition=partition), seen=None)
    found = database.read(lambda c: ledger.of_origin(c, "edge"))
    assert [(entry.dataset, entry.partition) for entry in found] == [("a", "x"), ("a", "y"), ("b", "x")]
    assert database.read(lambda c: ledger.of_origin(c, "nobody")) == []
    totals = database.read(ledger.totals)
    assert [(item.origin, item.dataset, item.channels, item.rows) for item in totals] == [
        ("edge", "a", 2, 14),
        ("edge", "b", 1, 7),
        ("other", "a", 1, 7),
    ]


def ranges(database: Database, within: SequenceRange = EVERYTHING, **more: int) -> list[SequenceRange]:
    return database.read(lambda c: ledger.given_up_within(c, ENTRY, within, **more))


def test_ranges_that_were_given_up_are_kept_joined_and_cut(database: Database) -> None:
    """H3."""

    def move(seen: int | None, version: int, rows: int, **what: Any) -> None:
        entry = replace(ENTRY, given_up_rows=rows, version=version)
        assert database.transact(lambda c: ledger.write(c, entry, seen=seen, now=NOW, **what))

    move(None, 1, 4, given_up=[SequenceRange(2, 4), SequenceRange(6, 8)])
    move(1, 2, 6, given_up=[SequenceRange(8, 10)])
    assert ranges(database) == [SequenceRange(2, 4), SequenceRange(6, 10)]
    assert ranges(database, SequenceRange(4, 6)) == []
    assert ranges(database, SequenceRange(3, 7)) == [SequenceRange(2, 4), SequenceRange(6, 10)]
    assert ranges(database, ranges_max=1) == [SequenceRange(2, 4)]
    move(2, 3, 5, replayed=SequenceRange(7, 8))
    assert ranges(database) == [SequenceRange(2, 4), SequenceRange(6, 7), SequenceRange(8, 10)]
    move(3, 4, 3, replayed=SequenceRange(2, 4))
    assert ranges(database) == [SequenceRange(6, 7), SequenceRange(8, 10)]
    move(4, 5, 0, replayed=SequenceRange(8, 10))
    assert ranges(database) == [], "where no row is left, no range is"


def test_ranges_of_a_move_that_lost_are_not_kept(database: Database) -> None:
    """H2, H3."""
    write(database, ENTRY, seen=None)
    late = replace(ENTRY, through=20, version=2)
    given_up = [SequenceRange(10, 20)]
    assert not database.transact(lambda c: ledger.write(c, late, seen=7, given_up=given_up, now=NOW))
    assert ranges(database) == []


def test_the_stores_that_rows_came_by_are_those_of_the_dataset(database: Database) -> None:
    """H4. Each is kept once, however many chunks name it."""

    def record(*stores: str, origin: str = "edge", dataset: str = "events") -> None:
        database.transact(lambda c: provenance.record(c, origin=origin, dataset=dataset, stores=stores))

    record("far", "edge")
    record("far", "farther")
    record(origin="nobody", dataset="else")
    assert database.read(lambda c: provenance.stores_before(c, "events")) == ["edge", "far", "farther"]
    assert database.read(lambda c: provenance.stores_before(c, "unheard")) == []
    assert len(database.read(provenance.everything)) == 4
    assert database.transact(lambda c: provenance.forget(c, origin="edge", store="far")) == 1
    assert database.transact(lambda c: provenance.forget(c, origin="edge", dataset="else")) == 0
    assert database.read(lambda c: provenance.stores_before(c, "events")) == ["edge", "farther"]


def test_the_first_hub_of_a_sink_stands(database: Database) -> None:
    """D8. Two exporters may meet two hubs at once."""
    from channels import open_channel
    from floodmark.control import sinks

    instance = open_channel(database, dataset="some").sink
    assert database.read(lambda c: sinks.hub_of(c, instance)) is None
    assert database.transact(lambda c: sinks.pin_hub(c, instance, "one")) == "one"
    assert database.transact(lambda c: sinks.pin_hub(c, instance, "other")) == "one"


# ── tokens ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def add(database: Database, name: str, secret: str, **bound: Any) -> None:
    token = Token(name, **{"origins": None, "datasets": None, "created_at": NOW.isoformat(), **bound})
    database.transact(lambda c: tokens.add(c, token, secret=secret))


def token_of(database: Database, secret: str, *, now: datetime = NOW) -> Token | None:
    return database.read(lambda c: tokens.find(c, hash=tokens.hash_of(secret), now=now))


def test_a_token_is_found_by_its_hash_and_says_what_it_is_for(database: Database) -> None:
    add(database, "edge", "secret", origins=("edge",), datasets=("events",))
    add(database, "any", "other")
    found = token_of(database, "secret")
    assert found is not None
    assert (found.name, found.origins, found.datasets) == ("edge", ("edge",), ("events",))
    assert found.allows_origin("edge")
    assert not found.allows_origin("other")
    assert found.allows_dataset("events")
    assert not found.allows_dataset("other")
    wide = token_of(database, "other")
    assert wide is not None
    assert wide.allows_origin("whoever")
    assert wide.allows_dataset("whatever")
    assert token_of(database, "guess") is None


def test_a_token_that_has_expired_is_not_found(database: Database) -> None:
    add(database, "edge", "secret", expires_at=(NOW + timedelta(days=90)).isoformat())
    assert token_of(database, "secret", now=NOW + timedelta(days=89)) is not None
    assert token_of(database, "secret", now=NOW + timedelta(days=90)) is None
    assert database.read(tokens.any_exist), "and the hub stays closed"


def test_keys_from_before_tokens_were_noted_with_them_are_still_known(with_datasets: Database) -> None:
    """A retry across an upgrade is stored once."""
    old = Request("events", requests.NOT_KNOWN, "k", "d", 3, 0)
    with_datasets.transact(lambda c: requests.record_all(c, [old], now=NOW))
    assert with_datasets.read(lambda c: requests.find(c, dataset="events", token="edge", key="k")) == old
    assert not with_datasets.transact(lambda c: requests.record_all(c, [replace(old, token="edge")], now=NOW))


def test_a_token_bound_to_nothing_allows_nothing(database: Database) -> None:
    add(database, "none", "secret", origins=(), datasets=())
    found = token_of(database, "secret")
    assert found is not None
    assert not found.allows_origin("edge")
    assert not found.allows_dataset("events")


def test_the_token_itself_is_nowhere_in_the_database(database: Database) -> None:
    from sqlalchemy import text

    secret = tokens.new_secret()
    add(database, "edge", secret)
    row = database.read(lambda c: c.execute(text("SELECT * FROM tokens")).one())
    assert secret not in str(row)
    assert secret.removeprefix(tokens.PREFIX) not in str(row)


def test_a_revoked_token_is_not_found_and_still_counts(database: Database) -> None:
    assert not database.read(tokens.any_exist)
    add(database, "edge", "secret")
    database.transact(lambda c: tokens.revoke(c, "edge", now=NOW))
    database.transact(lambda c: tokens.revoke(c, "edge", now=NOW + timedelta(days=1)))
    assert token_of(database, "secret") is None
    assert database.read(tokens.any_exist), "a hub whose last token was revoked must not be open to all"
    assert [item.revoked_at for item in database.read(tokens.everyone)] == [NOW.isoformat()]


def test_a_name_is_used_once(database: Database) -> None:
    add(database, "edge", "secret")
    with pytest.raises(TokenExists, match="edge"):
        add(database, "edge", "other")
    with pytest.raises(UnknownToken, match="nobody"):
        database.transact(lambda c: tokens.revoke(c, "nobody", now=NOW))
    with pytest.raises(Corrupt):
        add(database, "copy", "secret")


def test_no_two_secrets_are_alike() -> None:
    assert len({tokens.new_secret() for _ in range(1000)}) == 1000


# ── keys ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def with_datasets(database: Database) -> Database:
    for name in ("events", "other"):
        database.transact(
            lambda c, name=name: insert(
                c, Dataset(name=name, identity=(), event_time=None, partition_by=(), schema=Schema()), now=NOW
            )
        )
    return database


def test_a_key_is_remembered_once_with_its_receipt(with_datasets: Database) -> None:
    """H1, for one request."""
    request = Request("events", "edge", "k", "d", 3, 1)
    record = lambda item: with_datasets.transact(lambda c: requests.record_all(c, [item], now=NOW))  # noqa: E731
    assert record(request)
    assert not record(replace(request, digest="e"))
    assert record(replace(request, dataset="other"))
    assert record(replace(request, token="another", digest="e")), "a key belongs to its token"
    assert with_datasets.read(lambda c: requests.find(c, dataset="events", token="edge", key="k")) == request
    assert with_datasets.read(lambda c: requests.find(c, dataset="events", token="edge", key="j")) is None


def test_of_several_requests_with_one_key_one_is_recorded(with_datasets: Database) -> None:
    outcomes = together(
        lambda index: with_datasets.transact(
            lambda c: requests.record_all(c, [Request("events", "edge", "k", f"d{index}", index, 0)], now=NOW)
        )
    )
    assert sorted(outcomes) == [False, False, False, True]
    found = with_datasets.read(lambda c: requests.find(c, dataset="events", token="edge", key="k"))
    assert found is not None
    assert found.rows == outcomes.index(True)


def test_old_keys_are_forgotten_and_young_ones_are_not(with_datasets: Database) -> None:
    for age in (0, 5, 10):
        moment = NOW - timedelta(days=age)
        with_datasets.transact(
            lambda c, age=age, moment=moment: requests.record_all(
                c, [Request("events", "edge", f"{age}", "d", 1, 0)], now=moment
            )
        )
    forgotten = with_datasets.transact(lambda c: requests.forget(c, before=NOW - timedelta(days=7)))
    assert forgotten == 1
    assert with_datasets.read(lambda c: requests.find(c, dataset="events", token="edge", key="10")) is None
    assert with_datasets.read(lambda c: requests.find(c, dataset="events", token="edge", key="5")) is not None


# ── records of an older version ──────────────────────────────────────────────────────────────────────────────────────


def test_a_ledger_of_before_ranges_keeps_what_it_knew(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """H3, H4. It named rows by number and stores in a list, both as JSON."""
    from floodmark.control import database as control

    every = control.migration_scripts(Database(database_url).dialect)
    before = next(index for index, script in enumerate(every) if any("ledger_given_up" in line for line in script))
    old = Database(database_url)
    with monkeypatch.context() as patch:
        patch.setattr(control, "migration_scripts", lambda _dialect: every[:before])
        control.migrate(old)
    columns = "origin, dataset, partition_key, through_seq, row_count, checksum, given_up, version, path"
    rows = [
        "('edge', 'events', 'all', 10, 7, '00000000000000ff', '[3, 5]', 4, '[\"far\", \"edge\"]')",
        "('edge', 'events', 'other', 10, 7, '00000000000000ff', '[]', 4, '[\"far\", \"farther\"]')",
        "('liar', 'events', 'all', 10, 0, '0000000000000000', '[]', 1, '[\"upstream\", \"liar\"]')",
    ]
    old.transact(lambda c: [c.exec_driver_sql(f"INSERT INTO ledger ({columns}) VALUES {row}") for row in rows])

    control.migrate(old)

    found = find(old)
    assert found is not None
    assert (found.through, found.given_up_rows, found.version) == (10, 2, 4)
    assert ranges(old) == [SequenceRange(2, 3), SequenceRange(4, 5)]
    assert old.read(lambda c: provenance.stores_before(c, "events")) == ["edge", "far", "farther"]
    old.close()
