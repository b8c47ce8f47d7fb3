"""Tokens: who comes in, for what, and what is said to those who do not."""

from __future__ import annotations

import logging

import pytest
from answers import problem

from floodmark.errors import InvalidName, Permanent, TokenExists, UnknownDataset, UnknownToken
from floodmark.hub.serve import check_exposure, is_loopback
from floodmark.hub.tokens import add_token, list_tokens, revoke_token
from sending import Sender, entry, spooled


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
    _, secret = add_token(store, "edge")
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
    _, secret = add_token(store, "edge")
    problem(hub.capture(b"[]", Authorization=scheme.format(secret)), 401, "Unauthorised")


def test_another_stores_token_is_unknown_here(hub, store, sender, tmp_path, lake, clock):
    from floodmark.store import init

    add_token(store, "edge")
    with init(tmp_path / "other", lake=lake, clock=clock) as other:
        _, secret = add_token(other, "edge")
    for answer in ask_all(hub, sender, secret):
        problem(answer, 401, "Unauthorised")
    assert spooled(store) == []


def test_a_revoked_token_is_refused_within_a_second_and_the_hub_stays_closed(hub, store, sender, clock):
    _, secret = add_token(store, "edge")
    assert ask_all(hub, sender, secret)[0].status_code == 200
    revoke_token(store, "edge")
    clock.advance(1)
    for token in (secret, None):
        for answer in ask_all(hub, sender, token):
            problem(answer, 401, "Unauthorised")


def test_a_token_is_for_its_datasets_only(hub, store, sender):
    store.add_dataset("other")
    _, secret = add_token(store, "edge", datasets=["other"])
    chunk, capture, _ = ask_all(hub, sender, secret)
    problem(chunk, 403, "Forbidden")
    problem(capture, 403, "Forbidden")
    missing = hub.capture(b"[]", dataset="unheard", Authorization=f"Bearer {secret}")
    problem(missing, 403, "Forbidden")  # whether it exists is not told
    assert hub.capture(b'[{"id":1}]', dataset="other", Authorization=f"Bearer {secret}").status_code == 200
    assert spooled(store) == []


def test_a_token_is_for_its_origins_only(hub, store, sender):
    _, secret = add_token(store, "edge", origins=["edge-2"])
    chunk, capture, ledger = ask_all(hub, sender, secret)
    problem(chunk, 403, "Forbidden")
    problem(ledger, 403, "Forbidden")
    assert capture.status_code == 200, "captured rows have no origin"
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
    _, secret = add_token(store, "edge", datasets=["other"])
    seen = hub.get("/v1/ledger/edge-1", Authorization=f"Bearer {secret}").json()
    assert [channel["dataset"] for channel in seen["channels"]] == ["other"]


def test_what_is_not_under_v1_needs_no_token(hub, store):
    add_token(store, "edge")
    for path in ("/healthz", "/readyz", "/metrics", "/"):
        assert hub.get(path).status_code == 200


def test_no_token_is_ever_in_an_answer_or_a_log(hub, store, sender, caplog):
    caplog.set_level(logging.DEBUG)
    _, secret = add_token(store, "edge", datasets=[])
    answers = [*ask_all(hub, sender, secret), *ask_all(hub, sender, secret + "x"), hub.get("/metrics")]
    said = caplog.text + "".join(answer.text + str(answer.headers) for answer in answers)
    assert secret not in said
    assert secret[4:20] not in said
    assert "403 Forbidden" in caplog.text


# ── the operator's side ──────────────────────────────────────────────────────────────────────────────────────────────


def test_tokens_are_made_listed_and_revoked(store):
    store.add_dataset("events")
    made, secret = add_token(store, "edge-7", origins=["a"], datasets=["events"])
    assert secret.startswith("fmk_")
    assert len(secret) > 40
    assert list_tokens(store) == [made]
    with pytest.raises(TokenExists):
        add_token(store, "edge-7")
    with pytest.raises(UnknownDataset):
        add_token(store, "edge-8", datasets=["evnts"])
    with pytest.raises(InvalidName):
        add_token(store, "no/slashes")
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
    with pytest.raises(Permanent, match="no token") as refused:
        check_exposure(store, "0.0.0.0")
    assert "floodmark token add" in refused.value.hint
    add_token(store, "edge")
    check_exposure(store, "0.0.0.0")
    revoke_token(store, "edge")
    with pytest.raises(Permanent, match="no token"):
        check_exposure(store, "0.0.0.0")
