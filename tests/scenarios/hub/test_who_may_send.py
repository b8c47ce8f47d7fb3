"""Tokens: who comes in, for what, and what is said to those who do not."""

from __future__ import annotations

import logging
from datetime import timedelta

import pytest
from answers import problem

from floodmark.errors import InvalidName, Permanent, TokenExists, UnknownDataset, UnknownToken
from floodmark.hub.access import add_token, list_tokens, revoke_token
from floodmark.hub.serve import check_exposure, is_loopback
from sending import Sender, entry, spooled

ALL = {"any_origin": True, "any_dataset": True, "rights": ["capture", "metrics"]}


@pytest.fixture
def sender() -> Sender:
    sender = Sender()
    sender.add(4)
    return sender


def ask_all(hub, sender, token):
    """Every request under /v1, with a token or without."""
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    return [
        hub.send(sender.chunk(0, 4), token=token),
        hub.capture(b'[{"id":1}]', **headers),
        hub.get("/v1/ledger/edge-1", **headers),
    ]


def test_without_tokens_everybody_who_reaches_the_hub_may_send(hub, sender):
    assert [answer.status_code for answer in ask_all(hub, sender, None)] == [200, 200, 200]
    assert [answer.status_code for answer in ask_all(hub, sender, "whatever")] == [200, 200, 200]


def test_with_tokens_every_request_needs_one_that_is_known(hub, store, sender, clock):
    _, secret = add_token(store, "edge", **ALL)
    clock.advance(2)
    for wrong in (None, "", "wrong", secret + "x", secret[:-1], secret.upper(), "fmk_"):
        for answer in ask_all(hub, sender, wrong):
            problem(answer, 401, "Unauthorised")
            assert answer.headers["www-authenticate"].startswith("Bearer")
    assert spooled(store) == []
    assert entry(store) is None
    assert [answer.status_code for answer in ask_all(hub, sender, secret)] == [200, 200, 200]


@pytest.mark.parametrize("scheme", ["Basic {}", "{}", "Bearer{}", "Token {}", "Bearer", "Bearer " + "x" * 10_000])
def test_a_token_that_is_not_sent_as_a_bearer_is_none(hub, store, scheme):
    _, secret = add_token(store, "edge", **ALL)
    problem(hub.capture(b"[]", Authorization=scheme.format(secret)), 401, "Unauthorised")


def test_another_stores_token_is_unknown_here(hub, store, sender, tmp_path, lake, clock):
    from floodmark.store import init

    add_token(store, "edge", **ALL)
    with init(tmp_path / "other", lake=lake, clock=clock) as other:
        _, secret = add_token(other, "edge", **ALL)
    for answer in ask_all(hub, sender, secret):
        problem(answer, 401, "Unauthorised")
    assert spooled(store) == []


def test_a_revoked_token_is_refused_within_a_second_and_the_hub_stays_closed(hub, store, sender, clock):
    _, secret = add_token(store, "edge", **ALL)
    assert ask_all(hub, sender, secret)[0].status_code == 200
    revoke_token(store, "edge")
    clock.advance(1)
    for token in (secret, None):
        for answer in ask_all(hub, sender, token):
            problem(answer, 401, "Unauthorised")


def test_a_token_is_for_its_datasets_only(hub, store, sender):
    store.add_dataset("other")
    _, secret = add_token(store, "edge", datasets=["other"], any_origin=True, rights=["capture"])
    chunk, capture, _ = ask_all(hub, sender, secret)
    problem(chunk, 403, "Forbidden")
    problem(capture, 403, "Forbidden")
    missing = hub.capture(b"[]", dataset="unheard", Authorization=f"Bearer {secret}")
    problem(missing, 403, "Forbidden")  # whether it exists is not told
    assert hub.capture(b'[{"id":1}]', dataset="other", Authorization=f"Bearer {secret}").status_code == 200
    assert spooled(store) == []


def test_a_token_is_for_its_origins_only(hub, store, sender):
    _, secret = add_token(store, "edge", origins=["edge-2"], any_dataset=True)
    chunk, capture, ledger = ask_all(hub, sender, secret)
    problem(chunk, 403, "Forbidden")
    problem(ledger, 403, "Forbidden")
    problem(capture, 403, "Forbidden")
    assert spooled(store) == []
    assert entry(store) is None
    second = Sender(origin="edge-2")
    second.add(1)
    assert hub.send(second.chunk(0, 1), token=secret).json()["stored"] == 1


def test_the_ledger_lists_what_the_token_may_see(hub, store, sender):
    store.add_dataset("other")
    hub.send(sender.chunk(0, 4))
    other = sender.chunk(0, 3)
    other.dataset = "other"
    hub.send(other)
    everything = hub.get("/v1/ledger/edge-1").json()
    assert everything == {
        "hub": store.store_id,
        "versions": [1, 2],
        "origin": "edge-1",
        "channels": [
            {"dataset": "events", "partition": "all", "through": 4, "rows": 4,
             "checksum": sender.total(4).checksum_text, "given_up": []},
            {"dataset": "other", "partition": "all", "through": 3, "rows": 3,
             "checksum": sender.total(3).checksum_text, "given_up": []},
        ],
        "reads": ["application/x-ndjson", "application/vnd.apache.arrow.stream"],
    }  # fmt: skip
    assert hub.get("/v1/ledger/nobody").json()["channels"] == []
    assert hub.get("/v1/ledger/edge-1?dataset=other&partition=all").json()["channels"] == everything["channels"][1:]
    assert hub.get("/v1/ledger/edge-1?partition=none").json()["channels"] == []
    _, secret = add_token(store, "edge", datasets=["other"], any_origin=True, rights=["capture"])
    seen = hub.get("/v1/ledger/edge-1", Authorization=f"Bearer {secret}").json()
    assert [channel["dataset"] for channel in seen["channels"]] == ["other"]


def test_what_is_not_under_v1_needs_no_token(hub, store):
    add_token(store, "edge", **ALL)
    for path in ("/healthz", "/readyz", "/metrics", "/"):
        assert hub.get(path).status_code == 200


def test_no_token_is_ever_in_an_answer_or_a_log(hub, store, sender, caplog):
    store.add_dataset("other")
    caplog.set_level(logging.DEBUG)
    _, secret = add_token(store, "edge", datasets=["other"], any_origin=True)
    answers = [*ask_all(hub, sender, secret), *ask_all(hub, sender, secret + "x"), hub.get("/metrics")]
    said = caplog.text + "".join(answer.text + str(answer.headers) for answer in answers)
    assert secret not in said
    assert secret[4:20] not in said
    assert "403 Forbidden" in caplog.text


def test_a_token_bound_to_stores_may_not_capture_and_one_for_capture_may_not_send_chunks(hub, store, sender):
    """One rule for every route: a token is for what it names."""
    _, edge = add_token(store, "edge", origins=["edge-1"], datasets=["events"])
    _, shop = add_token(store, "shop", rights=["capture"], datasets=["events"])
    chunk, capture, ledger = ask_all(hub, sender, edge)
    assert (chunk.status_code, ledger.status_code) == (200, 200)
    problem(capture, 403, "Forbidden")
    chunk, capture, ledger = ask_all(hub, sender, shop)
    assert capture.status_code == 200
    problem(chunk, 403, "Forbidden")
    problem(ledger, 403, "Forbidden")


def test_a_token_that_has_expired_is_refused(hub, store, sender, clock):
    _, secret = add_token(store, "edge", **ALL, expires=timedelta(days=90))
    assert ask_all(hub, sender, secret)[0].status_code == 200
    clock.advance(90 * 86_400)
    for answer in ask_all(hub, sender, secret):
        problem(answer, 401, "Unauthorised")
    with pytest.raises(Permanent, match="no valid token"):
        check_exposure(store, "0.0.0.0")


def test_two_clients_with_the_same_key_do_not_meet(hub, store):
    """A key belongs to its token: one client's key is no answer to another's request, and tells nothing about it."""
    secrets = [add_token(store, name, rights=["capture"], any_dataset=True)[1] for name in ("a", "b")]
    answers = [
        hub.capture(f'[{{"id":{number}}}]'.encode(), key="order-1", Authorization=f"Bearer {secret}")
        for number, secret in enumerate(secrets)
        for _ in range(2)
    ]
    assert [answer.json() for answer in answers] == [{"rows": 1, "quarantined": 0}] * 4
    assert sorted(row["id"] for row in spooled(store)) == [0, 1]


def test_metrics_are_for_this_machine_or_a_token_with_that_right(hub, store):
    _, edge = add_token(store, "edge", origins=["edge-1"], any_dataset=True)
    _, prometheus = add_token(store, "prometheus", rights=["metrics"])
    assert hub.get("/metrics").status_code == 200
    through_a_proxy = {"X-Forwarded-For": "203.0.113.9"}
    problem(hub.get("/metrics", **through_a_proxy), 401, "Unauthorised")
    problem(hub.get("/metrics", **through_a_proxy, Authorization=f"Bearer {edge}"), 403, "Forbidden")
    assert hub.get("/metrics", **through_a_proxy, Authorization=f"Bearer {prometheus}").status_code == 200
    hub.client = ("203.0.113.9", 1234)
    problem(hub.get("/metrics"), 401, "Unauthorised")
    assert hub.get("/metrics", Authorization=f"Bearer {prometheus}").status_code == 200


# ── the operator's side ──────────────────────────────────────────────────────────────────────────────────────────────


def test_tokens_are_made_listed_and_revoked(store):
    store.add_dataset("events")
    made, secret = add_token(store, "edge-7", origins=["a"], datasets=["events"])
    assert secret.startswith("fmk_")
    assert len(secret) > 40
    assert list_tokens(store) == [made]
    with pytest.raises(TokenExists):
        add_token(store, "edge-7", **ALL)
    with pytest.raises(UnknownDataset):
        add_token(store, "edge-8", datasets=["evnts"], any_origin=True)
    with pytest.raises(InvalidName):
        add_token(store, "no/slashes", **ALL)
    revoke_token(store, "edge-7")
    assert list_tokens(store)[0].revoked_at is not None
    with pytest.raises(UnknownToken):
        revoke_token(store, "edge-8")


@pytest.mark.parametrize(
    ("host", "loopback"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("::", False),
     ("192.168.0.1", False), ("no.such.host.invalid", False)],
)  # fmt: skip
def test_only_this_machine_is_loopback(host, loopback):
    assert is_loopback(host) is loopback


def test_an_open_store_is_not_served_to_the_world(store):
    check_exposure(store, "127.0.0.1")
    with pytest.raises(Permanent, match="no valid token") as refused:
        check_exposure(store, "0.0.0.0")
    assert "floodmark token add" in refused.value.hint
    add_token(store, "edge", **ALL)
    check_exposure(store, "0.0.0.0")
    revoke_token(store, "edge")
    with pytest.raises(Permanent, match="no valid token"):
        check_exposure(store, "0.0.0.0")
