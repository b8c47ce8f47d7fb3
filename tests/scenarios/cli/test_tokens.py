"""`floodmark token`, and what `floodmark hub` refuses before it serves."""

from __future__ import annotations

import socket

import pytest

from floodmark.testing import MemoryLake

ANY = ["--any-origin", "--capture", "--any-dataset"]


def test_a_token_is_printed_once_and_alone(shop):
    made = shop("token", "add", "edge-7", "--origins", "a, b", "--datasets", "orders")
    assert made.code == 0
    secret = made.out.strip()
    assert secret.startswith("fmk_")
    assert "not shown again" in made.err
    listed = shop("token", "list")
    assert secret not in listed.out
    assert listed.out.splitlines()[1].split()[:4] == ["edge-7", "a,", "b", "orders"]


def test_tokens_are_reported_as_json(shop):
    made = shop("token", "add", "edge", *ANY, "--expires", "90d", "--json").json
    assert made["name"] == "edge"
    assert made["token"].startswith("fmk_")
    assert (made["origins"], made["datasets"], made["rights"]) == (None, None, ["capture"])
    assert made["expires_at"]
    listed = shop("token", "list", "--json")
    assert [item["name"] for item in listed.json] == ["edge"]
    assert made["token"] not in listed.out
    assert "hash" not in listed.out


def test_a_revoked_token_says_when(shop):
    assert "No tokens yet" in shop("token", "list").out
    shop("token", "add", "edge", *ANY)
    assert shop("token", "revoke", "edge").out == "Token edge was revoked.\n"
    assert shop("token", "list", "--json").json[0]["revoked_at"]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["add", "edge", *ANY], "A token 'edge' already exists"),
        (["add", "new", "--capture", "--datasets", "odrers"], "There is no dataset 'odrers'"),
        (["add", "a b", *ANY], "cannot name a token"),
        (["add", "new"], "would allow nothing"),
        (["add", "new", "--datasets", "orders"], "would allow nothing"),
        (["add", "new", "--capture"], "names no dataset"),
        (["add", "new", "--origins", "a"], "names no dataset"),
        (["add", "new", "--origins", "a", "--any-origin", "--any-dataset"], "not both"),
        (["add", "new", *ANY, "--expires", "0d"], "expire before"),
        (["revoke", "nobody"], "There is no token 'nobody'"),
    ],
)
def test_what_makes_no_sense_is_told_with_the_way_out(shop, arguments, error):
    shop("token", "add", "edge", *ANY)
    outcome = shop("token", *arguments)
    assert outcome.code == 1
    assert error in outcome.err
    assert "Try:   " in outcome.err


def test_a_hub_is_not_opened_to_the_network_without_a_token(shop):
    outcome = shop("hub", "--host", "0.0.0.0", "--port", "0")
    assert outcome.code == 1
    assert "floodmark token add" in outcome.err


def test_a_port_that_is_taken_is_told(shop):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        outcome = shop("hub", "--port", str(taken.getsockname()[1]))
    assert outcome.code == 1
    assert "cannot listen" in outcome.err
    assert "--port" in outcome.err


def test_a_hub_of_no_store_is_told(cli):
    outcome = cli("hub")
    assert outcome.code == 1
    assert "There is no store" in outcome.err


def test_where_rows_say_they_came_from_is_listed_and_taken_back(shop, tmp_path):
    from floodmark.control import provenance
    from floodmark.store import open_store

    assert "no forwarded rows" in shop("provenance", "list").out
    with open_store(tmp_path / "store", lake=MemoryLake()) as store:
        for dataset in ("orders", "other"):
            store.engine.database.transact(
                lambda c, dataset=dataset: provenance.record(c, origin="edge", dataset=dataset, stores=["far"])
            )
    assert len(shop("provenance", "list", "--json").json) == 4
    assert [item["origin"] for item in shop("provenance", "list", "--passed", "far", "--json").json] == ["edge"] * 2
    assert "edge" in shop("provenance", "list", "--dataset", "orders").out
    assert shop("provenance", "forget", "edge", "--passed", "far").out == "Removed 2 entries of edge.\n"
    refused = shop("provenance", "forget", "edge", "--passed", "far")
    assert refused.code == 1
    assert "provenance list" in refused.err
    assert {item["store"] for item in shop("provenance", "list", "--json").json} == {"edge"}
