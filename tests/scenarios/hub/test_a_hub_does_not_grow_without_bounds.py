"""What a client can make a hub keep: a few entries for a request, its share of quarantine, no channel of nothing."""

from __future__ import annotations

import logging

import orjson
import pytest
from answers import problem
from sqlalchemy import func, select

from floodmark import wire
from floodmark.control.schema import ledger, quarantine
from floodmark.hub.access import add_token
from sending import Sender, spooled


def count(store, table) -> int:
    return store.engine.database.read(lambda c: c.execute(select(func.count()).select_from(table)).scalar_one())


@pytest.fixture
def orders(store, start_hub):
    store.add_dataset("events", schema={"id": "long not null", "at": "timestamp"})
    return start_hub(store)


def test_rows_that_do_not_fit_for_the_same_reason_are_one_entry_and_come_back_whole(orders, store):
    bad = [{"id": f"x{number}"} for number in range(50_000)]
    body = wire.compress(orjson.dumps([{"id": 1}, *bad]))
    response = orders.capture(body, Content_Encoding="zstd", key="one")
    assert response.json() == {"rows": 1, "quarantined": 50_000}
    (entry,) = store.quarantine.entries("events")
    assert entry.rows == 50_000
    assert "column 'id' is long" in entry.reason
    assert "and 49,999 more rows" in entry.reason
    assert store.status().datasets[0].quarantined == 50_000
    assert orders.capture(body, Content_Encoding="zstd", key="one").json() == {"rows": 1, "quarantined": 50_000}
    assert count(store, quarantine) == 1


def test_whatever_is_wrong_with_its_rows_a_request_leaves_a_few_entries(orders, store):
    bad = [{"id": 1, "at": f"never {number}"} for number in range(500)] + [{"id": "x"}] * 500 + [{}] * 500
    assert orders.capture(orjson.dumps(bad)).json() == {"rows": 0, "quarantined": 1500}
    entries = store.quarantine.entries("events")
    assert sum(entry.rows for entry in entries) == 1500
    assert len(entries) <= 20


def test_rows_of_one_entry_are_replayed_together_once_they_fit(store, start_hub):
    store.add_dataset("events", schema={"id": "int not null"})
    hub = start_hub(store)
    hub.capture(orjson.dumps([{"id": None, "note": f"n{number}"} for number in range(100)]))
    (entry,) = store.quarantine.entries("events")
    payload = store.quarantine.show(entry.id)[1].replace(b"[null,", b"[7,")
    (store.path / entry.payload_path).write_bytes(payload) if entry.payload_path else store.engine.database.transact(
        lambda c: c.execute(quarantine.update().values(payload=payload.decode()))
    )
    assert store.quarantine.replay(entry.id) == 100
    assert sorted(row["note"] for row in spooled(store)) == sorted(f"n{number}" for number in range(100))


def test_captures_that_do_not_fit_go_to_quarantine_and_hold_up_nobody(orders, store):
    """The first sender fixed the type; others are not refused for ever, and nothing of theirs is lost."""
    for key in (None, "k"):
        assert orders.capture(b'[{"id":"a text"}]', key=key).json() == {"rows": 0, "quarantined": 1}
        assert orders.capture(b'[{"id":1}]', key=key and "l").json() == {"rows": 1, "quarantined": 0}
    assert len(store.quarantine.entries("events")) == 2


def test_a_client_fills_its_own_share_of_quarantine_and_not_everybodys(store, start_hub):
    store.add_dataset("events", schema={"id": "long not null"})
    hub = start_hub(store, quarantine_token_max=3, quarantine_max=5)
    tokens = {name: add_token(store, name, rights=["capture"], any_dataset=True)[1] for name in ("a", "b", "c")}

    def send(name, body=b'[{"id":"x"},{"id":1}]'):
        return hub.capture(body, Authorization=f"Bearer {tokens[name]}")

    for _ in range(3):
        assert send("a").json() == {"rows": 1, "quarantined": 1}
    content = problem(send("a"), 422, "QuarantineFull")
    assert "floodmark quarantine" in content["hint"]
    assert send("a", b'[{"id":1}]').status_code == 200, "rows that fit are taken all the same"
    assert send("b").status_code == 200
    assert send("b").status_code == 200
    problem(send("c"), 422, "QuarantineFull")
    assert [entry.token for entry in store.quarantine.entries("events")] == ["a", "a", "a", "b", "b"]
    for entry in store.quarantine.entries("events")[:3]:
        store.quarantine.discard(entry.id)
    assert send("a").status_code == 200, "until somebody decides"


def test_chunks_of_no_rows_leave_nothing_behind(hub, store):
    for number in range(200):
        sender = Sender(origin=f"edge-{number}", partition=f"p{number}" * 100)
        response = hub.send(sender.chunk(0, 10, path=tuple(f"store-{number}-{step}" for step in range(20))))
        assert response.status_code == 200
        assert response.json()["ledger"]["through"] == 10
    assert count(store, ledger) == 0
    sender = Sender()
    sender.add(3, first=11)
    assert hub.send(sender.chunk(0, 10)).json()["stored"] == 0
    assert hub.send(sender.chunk(10, 13)).json()["stored"] == 3, "and the channel begins with its first row"


# ── logs ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_log_names_client_and_token_and_no_value_of_a_row(store, start_hub, caplog):
    caplog.set_level(logging.DEBUG, logger="floodmark.hub")
    store.add_dataset("events", schema={"id": "long not null"})
    hub = start_hub(store, quarantine_token_max=0)
    hub.client = ("203.0.113.9", 5)
    _, secret = add_token(store, "shop", rights=["capture"], any_dataset=True)
    problem(hub.capture(b'[{"id":"4111 1111 1111 1111"}]', Authorization=f"Bearer {secret}"), 422, "QuarantineFull")
    problem(hub.capture(b"[]"), 401, "Unauthorised")
    assert "4111" not in caplog.text
    assert "capture answered 422 QuarantineFull to 203.0.113.9, token shop" in caplog.text
    assert "capture answered 401 Unauthorised to 203.0.113.9" in caplog.text


def test_lines_of_a_log_that_say_the_same_are_counted_and_not_repeated(hub, caplog):
    caplog.set_level(logging.DEBUG, logger="floodmark.hub")
    from floodmark.hub.app import LINES_MAX, SECONDS, Quiet

    now = [0.0]
    quiet = Quiet(lambda: now[0])
    logger = logging.getLogger("floodmark.hub")
    logger.addFilter(quiet)
    try:
        for _ in range(10_000):
            hub_log = logger.info
            hub_log("%s answered %d", "capture", 400)
        assert len(caplog.records) == LINES_MAX
        now[0] += SECONDS
        logger.info("%s answered %d", "capture", 400)
        assert f"{10_000 - LINES_MAX:,} more lines like this one" in caplog.records[-1].getMessage()
        logger.info("something else")
        assert caplog.records[-1].getMessage() == "something else"
    finally:
        logger.removeFilter(quiet)
