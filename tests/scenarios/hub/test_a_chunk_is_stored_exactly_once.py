"""Chunks of another store: in any order of retries, crashes and workers, each row is stored once."""

from __future__ import annotations

import itertools
import sqlite3
import threading
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from answers import problem
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engines import set_spool
from floodmark import faults, wire
from floodmark.control import ledger, provenance
from floodmark.errors import Retryable
from floodmark.hub import chunks
from floodmark.schema import Schema
from floodmark.sequence import SEQUENCE_MAX, Tally
from floodmark.store import init
from floodmark.testing import ManualClock, MemoryLake, SimulatedCrash
from sending import Sender, check, entry, never_got, segment_states, spooled, spooled_ids

NOTHING = {"rows": 0, "ranges": [], "more": False}
POINTS = ["segment.announced", "segment.written", "hub.stored", "segment.registered", "hub.accepted"]


@pytest.fixture
def sender(media) -> Sender:
    sender = Sender(media=media)
    sender.add(10)
    return sender


# ── the ordinary way ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_chunk_is_stored_and_the_answer_says_how_far_the_channel_is(hub, store, sender):
    response = hub.send(sender.chunk(0, 4))
    assert response.status_code == 200
    assert response.json() == {
        "stored": 4,
        "ledger": {"through": 4, "rows": 4, "checksum": sender.total(4).checksum_text, "given_up": NOTHING},
        "acknowledged": {
            "hub": store.store_id,
            "origin": "edge-1",
            "dataset": "events",
            "partition": "all",
            "after": 0,
            "through": 4,
            "rows": 4,
            "checksum": sender.total(4).checksum_text,
            "replay": False,
        },
    }
    check(store, sender, through=4)


def test_the_same_chunk_again_stores_nothing_and_is_answered_with_success(hub, store, sender):
    hub.send(sender.chunk(0, 4))
    hub.send(sender.chunk(4, 10))
    for chunk in (sender.chunk(0, 4), sender.chunk(4, 10), sender.chunk(0, 10), sender.chunk(2, 7)):
        response = hub.send(chunk)
        assert response.status_code == 200
        assert response.json()["stored"] == 0
        assert response.json()["ledger"]["through"] == 10
    check(store, sender, through=10)


def test_the_first_chunk_may_begin_anywhere_if_nothing_was_ever_delivered(hub, store):
    sender = Sender()
    sender.add(3, first=10**9)
    assert hub.send(sender.chunk(10**9 - 5, 10**9 + 2)).json()["stored"] == 3
    check(store, sender, through=10**9 + 2)


def test_a_chunk_without_rows_moves_the_channel(hub, store, sender):
    hub.send(sender.chunk(0, 10))
    response = hub.send(sender.chunk(10, 50))
    assert response.json()["stored"] == 0
    assert entry(store).through == 50
    sender.add(1, first=51)
    assert hub.send(sender.chunk(50, 51)).json()["stored"] == 1


def test_the_highest_number_is_taken_and_the_one_above_it_is_not(hub, store):
    """A client that sends 2^63-1: the number behind it would not exist."""
    sender = Sender()
    sender.add(1, first=SEQUENCE_MAX)
    good = sender.chunk(SEQUENCE_MAX - 1, SEQUENCE_MAX)
    content = good.content.replace(str(SEQUENCE_MAX).encode(), str(SEQUENCE_MAX + 1).encode())
    good_header = good.headers()
    for through in (SEQUENCE_MAX + 1, 2**63, 2**64):
        headers = {**good_header, "Floodmark-Chunk": forged(good.header, through=through)}
        problem(hub.post(good.path, good.body, headers), 400, "MalformedChunk")
    lying = sender.chunk(SEQUENCE_MAX - 1, SEQUENCE_MAX, digest=__import__("hashlib").sha256(content).hexdigest())
    lying.content = content
    problem(hub.send(lying), 400, "MalformedChunk")
    assert spooled(store) == []
    assert entry(store) is None
    assert hub.send(good).json()["stored"] == 1


def forged(header, **changes) -> str:
    import base64
    import json

    text = header.encode()
    content = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    return base64.urlsafe_b64encode(json.dumps({**content, **changes}).encode()).decode().rstrip("=")


def test_rows_and_ledger_of_different_origins_and_partitions_are_apart(hub, store):
    for origin, partition in itertools.product(("edge-1", "edge-2"), ("site=a", "site=b")):
        sender = Sender(origin=origin, partition=partition)
        sender.add(3)
        assert hub.send(sender.chunk(0, 3)).json()["stored"] == 3
    assert len(spooled(store)) == 12


def test_stored_rows_are_flushed_like_any_others(hub, store, sender):
    hub.send(sender.chunk(0, 10))
    assert store.flush("events").rows == 10
    rows = [row for batch in store.read_since("events") for row in batch.table.to_pylist()]
    assert rows == [{"id": seq, "text": f"edge-1 {seq}"} for seq in range(1, 11)]


# ── one transaction ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("second", [False, True], ids=["first chunk", "second chunk"])
def test_a_hub_that_dies_at_any_point_has_stored_rows_and_ledger_together_or_neither(
    hub, store, sender, start_hub, reopen, point, second
):
    """H1. Rows without their ledger entry would be stored again; an entry without its rows would lose them."""
    if second:
        hub.send(sender.chunk(0, 3))
    chunk = sender.chunk(3, 10) if second else sender.chunk(0, 10)
    faults.arm(point, die)
    with pytest.raises(SimulatedCrash):
        hub.hub.chunks.accept("events", chunk.header, chunk.body, encoding="zstd", media=chunk.media)
    faults.disarm_all()
    held = entry(store)
    whole = held is not None and held.through == 10
    assert spooled_ids(store) == list(range(1, 11 if whole else 4 if second else 1))
    retried = start_hub(reopen()).send(chunk)
    assert retried.status_code == 200
    assert retried.json()["stored"] == (0 if whole else len(range(4, 11)) if second else 10)
    check(store, sender, through=10)


def die() -> None:
    raise SimulatedCrash


def test_a_control_database_that_loses_its_answer_stores_once(hub, store, sender, monkeypatch):
    """The commit may have happened: it is looked for by the segment's id before anything is repeated."""
    real = store.engine.database.transact
    lost = []

    def transact(work, *, landed=None):
        result = real(work, landed=landed)
        if landed is not None and not lost:
            lost.append(True)
            assert store.engine.database.read(landed)
        return result

    monkeypatch.setattr(
        type(store.engine.database), "transact", lambda _self, work, *, landed=None: transact(work, landed=landed)
    )
    hub.send(sender.chunk(0, 10))
    hub.send(sender.chunk(10, 20))
    assert lost
    check(store, sender, through=20)


# ── two workers ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("first", [True, False], ids=["a new channel", "a known channel"])
def test_of_two_workers_with_one_chunk_one_stores_and_the_other_finds_it_there(
    hub, store, sender, start_hub, reopen, first
):
    """H2. Both have read the ledger before either writes."""
    other = start_hub(reopen())
    if not first:
        hub.send(sender.chunk(0, 3))
    chunk = sender.chunk(0, 10) if first else sender.chunk(3, 10)
    answers = []
    faults.arm(
        "segment.written",
        faults.nth_time(1, lambda: answers.append(other.send(chunk))),
    )
    answers.append(hub.send(chunk))
    assert sorted(answer.json()["stored"] for answer in answers) == [0, 10 if first else 7]
    assert {answer.json()["ledger"]["through"] for answer in answers} == {10}
    check(store, sender, through=10)
    assert sorted(segment_states(store)) == sorted(["dropped", "sealed", *([] if first else ["sealed"])])


def test_a_worker_that_was_overtaken_by_a_shorter_chunk_says_so_and_stores_nothing(
    hub, store, sender, start_hub, reopen
):
    """H2. The overlap is not split by the hub: the sender compares totals first."""
    other = start_hub(reopen())
    faults.arm("segment.written", faults.nth_time(1, lambda: other.send(sender.chunk(0, 4))))
    content = problem(hub.send(sender.chunk(0, 10)), 409, "LedgerAhead")
    assert content["ledger"]["through"] == 4
    check(store, sender, through=4)


def test_many_threads_on_one_channel_store_each_row_once(hub, store, start_hub, reopen):
    """H2, with real threads on two workers, each sending everything."""
    sender = Sender()
    sender.add(40)
    chunks = [sender.chunk(after, after + 4) for after in range(0, 40, 4)]
    workers = [hub.hub, start_hub(reopen()).hub]

    def push(worker) -> None:
        for chunk in chunks:
            for _ in range(50):
                try:
                    worker.chunks.accept("events", chunk.header, chunk.body, encoding="zstd", media=chunk.media)
                    break
                except Retryable:
                    continue

    threads = [threading.Thread(target=push, args=(workers[index % 2],)) for index in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    check(store, sender, through=40)


def test_a_channel_that_never_stands_still_is_answered_with_patience(hub, sender, monkeypatch):
    monkeypatch.setattr(ledger, "write", lambda *_, **__: False)
    response = hub.send(sender.chunk(0, 10))
    assert problem(response, 503, "Busy")
    assert int(response.headers["retry-after"]) > 0


# ── histories that do not fit ────────────────────────────────────────────────────────────────────────────────────────


def test_a_hub_that_was_restored_from_a_backup_does_not_accept_a_hole(hub, store, sender):
    hub.send(sender.chunk(0, 4))
    content = problem(hub.send(sender.chunk(7, 10)), 409, "LedgerBehind")
    assert content["ledger"] == {
        "through": 4,
        "rows": 4,
        "checksum": sender.total(4).checksum_text,
        "given_up": NOTHING,
    }
    check(store, sender, through=4)


def test_a_hub_whose_control_database_is_an_older_copy_refuses_to_go_on_and_says_where_it_is(
    hub, store, sender, start_hub, reopen, tmp_path
):
    """The copy is a real one, brought back under the hub's feet."""
    hub.send(sender.chunk(0, 4))
    with sqlite3.connect(store.path / "control.db") as live, sqlite3.connect(tmp_path / "backup.db") as backup:
        live.backup(backup)
    hub.send(sender.chunk(4, 7))
    with sqlite3.connect(tmp_path / "backup.db") as backup, sqlite3.connect(store.path / "control.db") as live:
        backup.backup(live)
    restored = start_hub(reopen())
    content = problem(restored.send(sender.chunk(7, 10)), 409, "LedgerBehind")
    assert content["ledger"]["through"] == 4
    check(store, sender, through=4)
    for after, through in ((4, 7), (7, 10)):  # what its sender still has comes again, and then it goes on
        assert restored.send(sender.chunk(after, through)).json()["stored"] == 3
    check(store, sender, through=10)


def test_a_hub_that_lost_its_ledger_does_not_accept_a_hole(hub, store, sender):
    content = problem(hub.send(sender.chunk(7, 10)), 409, "LedgerBehind")
    assert content["ledger"] == {"through": 0, "rows": 0, "checksum": "0" * 16, "given_up": NOTHING}
    assert spooled(store) == []
    assert entry(store) is None


def test_an_overlap_is_not_stored_in_part(hub, store, sender):
    hub.send(sender.chunk(0, 4))
    content = problem(hub.send(sender.chunk(2, 10)), 409, "LedgerAhead")
    assert content["ledger"]["through"] == 4
    check(store, sender, through=4)


def test_a_store_that_was_restored_and_numbers_other_rows_alike_is_refused_with_the_way_out(hub, store, sender):
    hub.send(sender.chunk(0, 4))
    copy = Sender(rows={seq: {"id": seq, "text": f"other {seq}"} for seq in range(1, 9)})
    content = problem(hub.send(copy.chunk(4, 8)), 409, "DivergedHistory")
    assert "origin" in content["hint"]
    assert content["ledger"]["checksum"] == sender.total(4).checksum_text
    check(store, sender, through=4)


@pytest.mark.parametrize("by", ["origin", "path"])
def test_rows_that_were_here_before_are_refused_so_that_two_hubs_cannot_send_in_a_circle(hub, store, sender, by):
    changes = {"origin": store.store_id} if by == "origin" else {"path": ("a", store.store_id, "edge-1")}
    problem(hub.send(sender.chunk(0, 4, **changes)), 409, "Loop")
    assert spooled(store) == []
    assert entry(store) is None


def test_the_stores_that_rows_passed_are_remembered_for_those_who_forward_them_on(hub, store, sender):
    hub.send(sender.chunk(0, 4, path=("far", "edge-1")))
    hub.send(sender.chunk(4, 10, path=("farther", "edge-1")))
    assert store.engine.database.read(lambda c: provenance.stores_before(c, "events")) == ["edge-1", "far", "farther"]


def test_totals_of_no_rows_with_a_checksum_make_no_sense(hub, sender):
    problem(hub.send(sender.chunk(0, 4, before=Tally(0, 5))), 400, "MalformedChunk")


# ── rows that were given up ──────────────────────────────────────────────────────────────────────────────────────────


def test_rows_that_were_given_up_count_in_the_totals_and_may_come_later_once(hub, store, sender):
    sender.given_up = {3, 7}
    first, second = (hub.send(sender.chunk(*span)).json()["ledger"]["given_up"] for span in ((0, 5), (5, 10)))
    assert first == {"rows": 1, "ranges": [[2, 3]], "more": False}
    assert second == {"rows": 2, "ranges": [[6, 7]], "more": False}
    check(store, sender, through=10)
    sender.given_up = {7}
    response = hub.send(sender.replay(3)).json()
    assert response["stored"] == 1
    assert response["ledger"]["rows"] == 10
    assert response["ledger"]["given_up"]["rows"] == 1
    assert hub.send(sender.replay(3)).json()["stored"] == 0
    check(store, sender, through=10)


def test_a_replay_of_a_row_that_was_delivered_stores_nothing(hub, store, sender):
    hub.send(sender.chunk(0, 10))
    assert hub.send(sender.replay(5)).json()["stored"] == 0
    check(store, sender, through=10)


def test_rows_that_were_given_up_together_come_together_or_not_at_all(hub, store, sender):
    """H3. Of a range of which some rows came since, none is taken: the hub cannot tell which the others are."""
    sender.given_up = {3, 4, 5, 6}
    hub.send(sender.chunk(0, 10))
    sender.given_up = {4, 5, 6}
    assert hub.send(sender.replay(3)).json()["stored"] == 1
    content = problem(hub.send(sender.chunk(2, 6, replay=True, before=Tally(), given_up=())), 409, "LedgerAhead")
    assert content["ledger"]["given_up"]["ranges"] == [[3, 6]]
    check(store, sender, through=10)


def test_a_range_that_was_given_up_comes_later_once(hub, store, sender):
    """H3."""
    sender.given_up = {3, 4, 5, 6}
    hub.send(sender.chunk(0, 10))
    sender.given_up = set()
    whole = sender.chunk(2, 6, replay=True, before=Tally())
    assert hub.send(whole).json()["stored"] == 4
    assert hub.send(whole).json()["stored"] == 0
    assert hub.send(sender.replay(4)).json()["stored"] == 0
    check(store, sender, through=10)


def test_a_store_of_an_older_version_is_understood_and_answered_in_its_own_form(hub, store, sender):
    """It names rows that were given up by number, and wants to be told of all of them so."""
    sender.given_up = {3, 7}
    first = hub.send(sender.chunk(0, 5, version=1)).json()
    assert first == {"stored": 4, "ledger": {**first["ledger"], "given_up": [3]}}
    assert hub.send(sender.chunk(5, 10, version=1)).json()["ledger"]["given_up"] == [3, 7]
    content = problem(hub.send(sender.chunk(8, 12, version=1)), 409, "LedgerAhead")
    assert content["ledger"]["given_up"] == [3, 7]
    assert hub.get("/v1/ledger/edge-1").json()["channels"][0]["given_up"] == [3, 7]
    check(store, sender, through=10)


def test_a_store_of_an_older_version_that_may_have_left_stores_out_is_refused(hub, store, sender):
    """H4. It cut its path at 64 stores."""
    path = (*(f"far-{index}" for index in range(63)), "edge-1")
    problem(hub.send(sender.chunk(0, 4, version=1, path=path)), 409, "Loop")
    assert hub.send(sender.chunk(0, 4, version=1, path=path[1:])).status_code == 200
    assert hub.send(sender.chunk(4, 8, path=("farther", *path))).status_code == 200


@pytest.mark.parametrize("known", [True, False])
def test_a_replay_from_beyond_the_ledger_is_refused(hub, store, sender, known):
    if known:
        hub.send(sender.chunk(0, 4))
    problem(hub.send(sender.replay(7)), 409, "LedgerBehind")
    assert spooled_ids(store) == ([1, 2, 3, 4] if known else [])


def test_a_chunk_of_nothing_but_given_up_rows_moves_the_channel(hub, store, sender):
    hub.send(sender.chunk(0, 4))
    sender.given_up = {5, 6}
    assert hub.send(sender.chunk(4, 6)).json()["stored"] == 0
    check(store, sender, through=6)


@pytest.mark.parametrize("point", POINTS)
def test_a_hub_that_dies_in_a_replay_stores_the_row_once(hub, store, sender, start_hub, reopen, point):
    """H1."""
    sender.given_up = {3}
    hub.send(sender.chunk(0, 10))
    sender.given_up = set()
    chunk = sender.replay(3)
    faults.arm(point, die)
    with pytest.raises(SimulatedCrash):
        hub.hub.chunks.accept("events", chunk.header, chunk.body, encoding="zstd", media=chunk.media)
    faults.disarm_all()
    assert start_hub(reopen()).send(chunk).status_code == 200
    check(store, sender, through=10)


def test_the_ledger_does_not_grow_with_what_has_arrived(hub, store):
    """A ledger that kept ranges or keys would grow for ever, and one with a window would forget."""
    sender = Sender()
    sender.add(60)
    sizes = []
    for after in range(0, 60, 2):
        hub.send(sender.chunk(after, after + 2))
        rows = store.engine.database.read(lambda c: ledger.of_origin(c, "edge-1"))
        named = store.engine.database.read(lambda c: provenance.everything(c, dataset="events"))
        sizes.append((len(rows), len(never_got(store, rows[0])), len(named)))
    assert set(sizes) == {(1, 0, 1)}
    for after in range(0, 60, 3):  # whatever the chunking of a retry, however old it is
        assert hub.send(sender.chunk(after, after + 3)).json()["stored"] == 0
    check(store, sender, through=60)


# ── schemas ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_new_columns_get_the_types_that_they_have_at_the_origin(hub, store, media):
    schema = Schema.declare({"id": "long", "at": "timestamp", "price": "decimal(9,2)", "raw": "binary", "doc": "json"})
    sender = Sender(schema=schema, media=media)
    sender.rows = {
        1: {"id": 1, "at": "2026-01-31T12:00:00Z", "price": "1.50", "raw": b"\0\1", "doc": {"a": [1, None]}},
        2: {"id": 2, "doc": "just text"},
    }
    assert hub.send(sender.chunk(0, 2)).status_code == 200
    columns = {column.name: str(column.type) for column in store.datasets()[0].schema}
    assert columns == {"id": "long", "at": "timestamp", "price": "decimal(9,2)", "raw": "binary", "doc": "json"}
    import pyarrow.parquet as pq

    from floodmark.rows.content import content_ids

    stored = pq.read_table(next((store.path / "spool/events/segments").iterdir()))
    assert stored["_ingest_id"].to_pylist() == content_ids(sender.table([1, 2]))[0].to_pylist()


def test_a_column_of_another_type_is_read_the_same_however_it_came(store, start_hub, media):
    """The hub declares a time where the sender has a text: what lines are read as, columns are read as too."""
    store.add_dataset("events", schema={"id": "double", "at": "timestamp", "doc": "json"})
    sender = Sender(
        rows={1: {"id": 1, "at": "2026-01-31T12:00:00Z", "doc": "x"}, 2: {"id": 2, "doc": "y"}}, media=media
    )
    assert start_hub(store).send(sender.chunk(0, 2)).status_code == 200
    assert spooled(store) == [
        {"id": 1.0, "at": datetime(2026, 1, 31, 12, tzinfo=UTC), "doc": '"x"'},
        {"id": 2.0, "at": None, "doc": '"y"'},
    ]


def test_columns_that_come_later_grow_the_dataset(hub, store, sender):
    hub.send(sender.chunk(0, 4))
    sender.rows[11] = {"id": 11, "text": "edge-1 11", "more": 1.5}
    hub.send(sender.chunk(4, 11))
    assert [str(column.type) for column in store.datasets()[0].schema] == ["long", "string", "double"]
    check(store, sender, through=11)


def test_rows_that_do_not_fit_are_named_and_nothing_is_stored(store, start_hub, media):
    store.add_dataset("events", schema={"id": "long not null", "text": "boolean"})
    hub = start_hub(store)
    sender = Sender(media=media)
    sender.add(9)
    content = problem(hub.send(sender.chunk(0, 9)), 422, "SchemaConflict")
    assert "9 of 9 rows do not fit 'events'. row 1: column 'text' is boolean" in content["detail"]
    assert "row 5:" in content["detail"]
    assert "and 4 more" in content["detail"]
    assert spooled(store) == []
    assert entry(store) is None
    assert segment_states(store) == []


@pytest.mark.parametrize(
    ("types", "limits", "words"),
    [
        (
            {f"k{n}": "long" for n in range(5)},
            {"new_columns_max": 4},
            "5 new columns in one call; new_columns_max is 4",
        ),
        ({f"k{n}": "long" for n in range(5)}, {"columns_max": 4}, "would have 5 columns; columns_max is 4"),
        ({"k": "struct<a:long,b:struct<c:long,d:long>>"}, {"columns_max": 2}, "would have 3 columns; columns_max is 2"),
    ],
    ids=["in one chunk", "in total", "in structs"],
)
def test_a_chunk_with_too_many_new_columns_is_refused_like_a_capture(store, start_hub, media, types, limits, words):
    store.add_dataset("events")
    set_spool(store, **limits)
    schema = Schema.declare(types)
    row = {name: {"a": 1, "b": {"c": 2, "d": 3}} if text.startswith("struct") else 1 for name, text in types.items()}
    sender = Sender(schema=schema, rows={1: row}, media=media)
    hub = start_hub(store)
    content = problem(hub.send(sender.chunk(0, 1)), 422, "SchemaConflict")
    assert words in content["detail"]
    assert "[spool]" in content["hint"]
    assert (len(store.datasets()[0].schema), spooled(store), entry(store)) == (0, [], None)
    set_spool(store, columns_max=100, new_columns_max=100)
    assert hub.send(sender.chunk(0, 1)).status_code == 200, "the same chunk is accepted once the limit is raised"


def test_declared_columns_do_not_count_towards_the_new_ones_of_a_chunk(store, start_hub, media):
    types = {f"k{n}": "long" for n in range(5)}
    store.add_dataset("events", schema=types)
    set_spool(store, new_columns_max=1, columns_max=6)
    sender = Sender(
        schema=Schema.declare({**types, "more": "long"}), rows={1: dict.fromkeys([*types, "more"], 1)}, media=media
    )
    assert start_hub(store).send(sender.chunk(0, 1)).status_code == 200


def test_a_column_that_no_dataset_may_have_is_refused(hub, store):
    sender = Sender(rows={1: {"id": 1, "text": "x"}})
    chunk = sender.chunk(0, 1)
    chunk.content = chunk.content.replace(b'"text"', b'"_row_id"')
    chunk.header = replace(chunk.header, digest=wire.digest_of(chunk.content))
    problem(hub.send(chunk), 422, "InvalidName")
    assert spooled(store) == []


def test_a_worker_that_remembers_a_narrower_schema_looks_again(hub, store, start_hub, reopen, sender):
    other = start_hub(reopen())
    for client in (hub, other):
        assert client.send(sender.chunk(0, 2)).status_code == 200  # both know the dataset now, as it is
    store.add_dataset("events", schema={"flag": "string"})
    sender.rows[11] = {"id": 11, "text": "edge-1 11", "flag": "x"}
    assert other.send(sender.chunk(2, 11)).status_code == 200
    sender.rows[12] = {"id": 12, "text": "edge-1 12", "flag": "y"}
    assert hub.send(sender.chunk(11, 12)).status_code == 200
    check(store, sender, through=12)


def test_an_unknown_dataset_is_not_made_by_sending_to_it(hub, store, sender):
    chunk = sender.chunk(0, 4)
    chunk.dataset = "elsewhere"
    content = problem(hub.send(chunk), 404, "UnknownDataset")
    assert "events" not in str(content)
    assert [item.name for item in store.datasets()] == ["events"]


# ── back-pressure ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_full_spool_asks_for_patience_and_stores_nothing(hub, store, sender, clock):
    hub.send(sender.chunk(0, 4))
    set_spool(store, backlog_bytes_max=1)
    clock.advance(5)
    response = hub.send(sender.chunk(4, 10))
    problem(response, 503, "SpoolFull")
    assert int(response.headers["retry-after"]) > 0
    assert hub.send(sender.chunk(0, 4)).json()["stored"] == 0, "what is there already needs no room"
    check(store, sender, through=4)
    set_spool(store, backlog_bytes_max=1 << 30)
    assert hub.send(sender.chunk(4, 10)).json()["stored"] == 6


def test_a_control_database_that_is_away_asks_for_patience_and_names_nothing(hub, store, sender, monkeypatch):
    def away(*_, **__):
        raise Retryable(f"The control database is not available: {store.path} is locked.")

    monkeypatch.setattr(chunks, "store", away)
    response = hub.send(sender.chunk(0, 4))
    problem(response, 503, "Busy")
    assert int(response.headers["retry-after"]) > 0
    assert str(store.path) not in response.text


# ── any history ──────────────────────────────────────────────────────────────────────────────────────────────────────


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(
        st.tuples(
            st.integers(0, 12),
            st.integers(1, 8),
            st.sampled_from([None, *POINTS]),
            st.booleans(),
        ),
        max_size=12,
    )
)
def test_whatever_ranges_come_and_wherever_the_hub_dies_nothing_is_doubled_and_nothing_is_missing(
    tmp_path_factory, steps
):
    """H1, H2: after every step the spool holds exactly the rows up to the ledger's end."""
    from floodmark.hub.chunks import Chunks
    from floodmark.hub.decision import Disagreement

    sender = Sender()
    sender.add(20)
    with init(tmp_path_factory.mktemp("hub") / "store", lake=MemoryLake(), clock=ManualClock()) as store:
        store.add_dataset("events")
        chunks = Chunks(store.engine, store.spool, 1 << 20)
        for after, length, point, fresh in steps:
            chunk = sender.chunk(after, after + length)
            if fresh:
                chunks = Chunks(store.engine, store.spool, 1 << 20)
            if point is not None:
                faults.arm(point, die)
            try:
                chunks.accept("events", chunk.header, chunk.body, encoding="zstd", media=chunk.media)
            except (SimulatedCrash, Disagreement):
                pass
            finally:
                faults.disarm_all()
            end = 0 if entry(store) is None else entry(store).through
            begin = min((row["id"] for row in spooled(store)), default=end + 1)
            assert spooled_ids(store) == list(range(begin, end + 1))
            if end:
                assert entry(store).tally == sender.total(end) - sender.total(begin - 1)
