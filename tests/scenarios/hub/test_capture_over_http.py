"""Rows from any client: judged as captured rows are, and with a key stored once."""

from __future__ import annotations

import gzip
import threading

import orjson
import pytest
from answers import problem

from engines import set_spool
from floodmark import faults, wire
from floodmark.hub.settings import HubSettings
from floodmark.testing import SimulatedCrash
from sending import segment_states, spooled, spooled_ids

POINTS = ["segment.announced", "segment.written", "hub.stored", "segment.registered", "hub.accepted"]


def rows(*ids: int) -> bytes:
    return orjson.dumps([{"id": id, "text": f"row {id}"} for id in ids])


def committed(store) -> list[int]:
    store.flush("events")
    return sorted(row["id"] for batch in store.read_since("events") for row in batch.table.to_pylist())


def test_an_array_of_objects_is_captured(hub, store):
    response = hub.capture(rows(1, 2, 3))
    assert response.status_code == 200
    assert response.json() == {"rows": 3, "quarantined": 0}
    assert committed(store) == [1, 2, 3]


@pytest.mark.parametrize("media", ["application/x-ndjson", "application/jsonl", "Application/X-NDJSON; charset=UTF-8"])
def test_json_lines_are_captured_and_blank_lines_do_not_count(hub, store, media):
    response = hub.capture(b'{"id":1}\n\n  \n{"id":2}', Content_Type=media)
    assert response.json() == {"rows": 2, "quarantined": 0}
    assert committed(store) == [1, 2]


@pytest.mark.parametrize(
    ("encoding", "pack"),
    [("zstd", wire.compress), ("gzip", gzip.compress), ("GZIP", gzip.compress), ("identity", bytes)],
)
def test_a_compressed_body_is_captured(hub, store, encoding, pack):
    assert hub.capture(pack(rows(1, 2)), Content_Encoding=encoding).json()["rows"] == 2
    assert committed(store) == [1, 2]


def test_nothing_is_a_capture_of_no_rows(hub, store):
    assert hub.capture(b"[]").json() == {"rows": 0, "quarantined": 0}
    assert hub.capture(b"", Content_Type="application/x-ndjson").json() == {"rows": 0, "quarantined": 0}
    assert hub.capture(b"[]", key="k").json() == {"rows": 0, "quarantined": 0}
    assert hub.capture(b"[]", key="k").json() == {"rows": 0, "quarantined": 0}
    problem(hub.capture(rows(1), key="k"), 422, "KeyReused")
    assert committed(store) == []


@pytest.mark.parametrize("key", [None, "k"])
def test_rows_that_do_not_fit_are_held_and_counted(hub, store, key):
    store.add_dataset("events", schema={"id": "long"})
    response = hub.capture(b'[{"id":1},{"id":"one"},{"id":2}]', key=key)
    assert response.json() == {"rows": 2, "quarantined": 1}
    assert committed(store) == [1, 2]
    assert store.status().datasets[0].quarantined == 1


@pytest.mark.parametrize("key", [None, "k"])
def test_what_cannot_be_stored_goes_to_quarantine_also_alone_in_its_request(hub, store, key):
    store.add_dataset("events", schema={"id": "long"})
    for number, body in enumerate((b'[{"id":"one"}]', b'[{"_ingest_seq":1}]', b"[17]")):
        for _ in range(2 if key else 1):
            answer = hub.capture(body, key=key and f"{key}{number}")
            assert (answer.status_code, answer.json()) == (200, {"rows": 0, "quarantined": 1})
    reasons = sorted(entry.reason for entry in store.quarantine.entries("events"))
    assert [reason.partition(":")[0] for reason in reasons] == ["element 0 of a request"] * 3
    assert "column 'id' is long" in "".join(reasons)
    assert "'_ingest_seq'" in "".join(reasons)
    assert "not a JSON object: a number" in "".join(reasons)
    assert hub.capture(rows(1), key=key).json()["rows"] == 1


@pytest.mark.parametrize("key", [None, "k"])
def test_a_line_that_is_no_object_goes_to_quarantine_with_its_number(hub, store, key):
    body = b'{"id":1}\n[]\n\n{"id":2}{"id":3}\n{"id":4}\n{"id":'
    answer = hub.capture(body, key=key, Content_Type="application/x-ndjson")
    assert answer.json() == {"rows": 2, "quarantined": 3}
    assert committed(store) == [1, 4]
    entries = [store.quarantine.show(entry.id) for entry in store.quarantine.entries("events")]
    found = {entry.reason.partition(":")[0]: payload for entry, payload in entries}
    assert found == {
        "line 2 of a request": b"[]",
        "line 4 of a request": b'{"id":2}{"id":3}',
        "line 6 of a request": b'{"id":',
    }


@pytest.mark.parametrize("key", [None, "k"])
def test_if_no_row_fits_all_of_them_go_to_quarantine(hub, store, key):
    store.add_dataset("events", schema={"id": "long"})
    assert hub.capture(b'[{"id":"one"}]', key=key).json() == {"rows": 0, "quarantined": 1}
    assert spooled(store) == []
    assert [entry.rows for entry in store.quarantine.entries("events")] == [1]


@pytest.mark.parametrize(
    ("content", "media"),
    [
        (b"", "application/json"),
        (b"{}", "application/json"),
        (b"null", "application/json"),
        (b'[{"id":1}', "application/json"),
        (b"\xff", "application/json"),
        (b"[" * 100_000, "application/json"),
    ],
)
@pytest.mark.parametrize("key", [None, "k"])
def test_a_body_that_is_no_list_of_rows_is_refused_whole(hub, store, content, media, key):
    problem(hub.capture(content, key=key, Content_Type=media), 400, "MalformedChunk")
    assert committed(store) == []


def test_an_unknown_dataset_is_refused_and_the_others_are_not_named(hub):
    content = problem(hub.capture(rows(1), dataset="elsewhere"), 404, "UnknownDataset")
    assert "events" not in str(content)
    problem(hub.capture(rows(1), dataset="..%2f..%2fetc"), 404, "NotFound")


# ── keys ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_same_key_again_gets_the_same_receipt_and_stores_nothing(hub, store, start_hub, reopen):
    store.add_dataset("events", schema={"id": "long"})
    body = b'[{"id":1},{"id":"one"},{"id":2}]'
    first = hub.capture(body, key="k")
    other = start_hub(reopen())
    for client in (hub, other, hub):
        again = client.capture(body, key="k")
        assert (again.status_code, again.json()) == (200, first.json())
    assert other.capture(gzip.compress(body), key="k", Content_Encoding="gzip").json() == first.json()
    assert committed(store) == [1, 2]
    assert store.status().datasets[0].quarantined == 1


def test_the_same_key_for_other_rows_is_refused(hub, store):
    hub.capture(rows(1), key="k")
    content = problem(hub.capture(rows(2), key="k"), 422, "KeyReused")
    assert "new key" in content["hint"]
    assert committed(store) == [1]


def test_keys_belong_to_their_dataset(hub, store):
    store.add_dataset("other")
    assert hub.capture(rows(1), key="k").json()["rows"] == 1
    assert hub.capture(rows(2), key="k", dataset="other").json()["rows"] == 1


@pytest.mark.parametrize("point", POINTS)
def test_a_hub_that_dies_at_any_point_stores_the_rows_of_a_key_once(hub, store, start_hub, reopen, point):
    """H1."""
    faults.arm(point, die)
    with pytest.raises(SimulatedCrash):
        hub.hub.captures.accept("events", rows(1, 2), encoding="identity", media="application/json", key="k")
    faults.disarm_all()
    assert start_hub(reopen()).capture(rows(1, 2), key="k").json() == {"rows": 2, "quarantined": 0}
    assert spooled_ids(store) == [1, 2]


def die() -> None:
    raise SimulatedCrash


def test_of_two_workers_with_one_key_one_stores_and_both_answer_alike(hub, store, start_hub, reopen):
    """H2, for one request: both have looked for the key before either writes it."""
    other = start_hub(reopen())
    answers = []
    faults.arm("segment.written", faults.nth_time(1, lambda: answers.append(other.capture(rows(1, 2), key="k"))))
    answers.append(hub.capture(rows(1, 2), key="k"))
    assert [answer.json() for answer in answers] == [{"rows": 2, "quarantined": 0}] * 2
    assert sorted(segment_states(store)) == ["dropped", "sealed"]
    assert spooled_ids(store) == [1, 2]


def test_many_threads_with_one_key_store_once(hub, store):
    body = rows(*range(100))
    accept = hub.hub.captures.accept
    receipts = []

    def push() -> None:
        receipts.append(accept("events", body, encoding="identity", media="application/json", key="k"))

    threads = [threading.Thread(target=push) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [receipt.rows for receipt in receipts] == [100] * 6
    assert spooled_ids(store) == list(range(100))


def test_keys_are_forgotten_after_their_days(hub, store, clock):
    hub.capture(rows(1), key="k")
    clock.advance(6 * 86400)
    assert hub.hub.forget_old_keys() == 0
    clock.advance(2 * 86400)
    assert hub.hub.forget_old_keys() == 1
    assert HubSettings().key_days == 7
    hub.capture(rows(2), key="k")
    assert spooled(store) == [{"id": 1, "text": "row 1"}, {"id": 2, "text": "row 2"}]


@pytest.mark.parametrize("key", ["", " ", "x" * 256, "tab\there", "ümlaut"])
def test_a_key_that_is_none_is_refused(hub, store, key):
    headers = {"Content-Type": "application/json", "Idempotency-Key": key.encode()}
    problem(hub.post("/v1/datasets/events/capture", rows(1), headers), 400, "BadRequest")
    assert committed(store) == []


@pytest.mark.parametrize("key", [None, "k"])
def test_a_full_spool_asks_for_patience(hub, store, clock, key):
    hub.capture(rows(1), key=None if key is None else "first")
    set_spool(store, backlog_bytes_max=1)
    clock.advance(5)
    response = hub.capture(rows(2), key=key)
    problem(response, 503, "SpoolFull")
    assert int(response.headers["retry-after"]) > 0
    set_spool(store, backlog_bytes_max=1 << 30)
    assert committed(store) == [1]


# ── requests that share a segment ────────────────────────────────────────────────────────────────────────────────────


def begin_group(hub, *keys: str):
    """Requests that have come and are not stored yet: whoever leads has not begun to write."""
    return [
        hub.hub.captures.begin("events", rows(number), encoding="identity", media="application/json", key=key)
        for number, key in enumerate(keys)
    ]


def test_requests_with_keys_that_come_together_share_one_segment(hub, store):
    """A segment costs two transactions and two fsyncs: each request alone would be slow for nothing."""
    group = begin_group(hub, "a", "b", "c", "d")
    assert [item.leads for item in group] == [True, False, False, False]
    hub.hub.captures.store_group("events")
    assert [item.outcome.result(0).rows for item in group] == [1] * 4
    assert segment_states(store) == ["sealed"]
    assert spooled_ids(store) == [0, 1, 2, 3]
    for number, key in enumerate("abcd"):
        assert hub.capture(rows(number), key=key).json()["rows"] == 1
    assert spooled_ids(store) == [0, 1, 2, 3]


def test_requests_of_one_group_may_bring_different_columns(hub, store):
    bodies = [b'[{"id":1,"n":5}]', b'[{"id":2,"text":"x"}]', b'[{"id":3,"n":99999999999}]', b'[{"id":"no"}]']
    group = [
        hub.hub.captures.begin("events", body, encoding="identity", media="application/json", key=str(number))
        for number, body in enumerate(bodies)
    ]
    hub.hub.captures.store_group("events")
    assert [(item.outcome.result(0).rows, item.outcome.result(0).quarantined) for item in group] == [
        (1, 0), (1, 0), (1, 0), (0, 1),
    ]  # fmt: skip
    assert spooled(store) == [
        {"id": 1, "n": 5, "text": None},
        {"id": 2, "n": None, "text": "x"},
        {"id": 3, "n": 99999999999, "text": None},
    ]
    assert store.flush("events").rows == 3


def test_a_key_that_was_taken_meanwhile_holds_up_nobody_else_of_its_group(hub, store, start_hub, reopen):
    group = begin_group(hub, "a", "b", "b", "c")
    start_hub(reopen()).capture(rows(7), key="a")
    hub.hub.captures.store_group("events")
    assert [item.outcome.result(0) is None for item in group] == [True, False, True, False]
    assert spooled_ids(store) == [1, 3, 7], "each key once"


@pytest.mark.parametrize("point", POINTS)
def test_a_hub_that_dies_with_a_group_stores_each_of_its_requests_once(hub, store, start_hub, reopen, point):
    """H1: the rows and receipts of all of them, or of none."""
    group = begin_group(hub, "a", "b", "c")
    faults.arm(point, die)
    with pytest.raises(SimulatedCrash):
        hub.hub.captures.store_group("events")
    faults.disarm_all()
    assert all(isinstance(item.outcome.exception(0), SimulatedCrash) for item in group), "nobody waits for ever"
    assert spooled_ids(store) in ([], [0, 1, 2])
    again = start_hub(reopen())
    for number, key in enumerate("abc"):
        assert again.capture(rows(number), key=key).json() == {"rows": 1, "quarantined": 0}
    assert spooled_ids(store) == [0, 1, 2]


# ── a type that the first sender fixed ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("key", [None, "again"])
def test_a_type_that_the_first_sender_fixed_is_corrected_and_every_worker_follows(store, start_hub, key):
    """U42: what differs is quarantined and not refused; after the correction it is replayed."""
    store.add_dataset("events", ["id"])
    first, second = start_hub(store), start_hub(store)
    assert first.capture(b'[{"id": 1, "price": "cheap"}]').status_code == 200
    for number, worker in enumerate((first, second)):
        answer = worker.capture(b'[{"id": %d, "price": 2}]' % (number + 2), key=key and f"{key}{number}")
        assert (answer.status_code, answer.json()["quarantined"]) == (200, 1)
    store.flush("events")
    store.purge("events", where="price IS NOT NULL")
    store.change_dataset("events", types={"price": "long"})
    assert [store.quarantine.replay(entry.id) for entry in store.quarantine.entries("events")] == [1, 1]
    for number, worker in enumerate((first, second)):
        answer = worker.capture(b'[{"id": %d, "price": 4}]' % (number + 4), key=key and f"{key}after{number}")
        assert (answer.status_code, answer.json()["rows"]) == (200, 1)
    store.flush("events")
    found = {row["id"]: row["price"] for batch in store.read_since("events") for row in batch.table.to_pylist()}
    assert found == {2: 2, 3: 2, 4: 4, 5: 4}
