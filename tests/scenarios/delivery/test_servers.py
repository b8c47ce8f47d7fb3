"""The servers of the delivery tests do what those tests rely on."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
import zstandard

from scenarios.delivery.servers import Answer, KeyOnlyServer, PoisonServer, ScriptedServer, Silent, Stored, in_turn


def post(server: ScriptedServer, key: str, *rows: dict[str, Any], seconds: float = 5) -> httpx.Response:
    body = zstandard.compress(b"".join(json.dumps(row).encode() + b"\n" for row in rows))
    headers = {"Idempotency-Key": key, "Content-Encoding": "zstd"}
    return httpx.post(f"{server.url}/v1/datasets/m/chunks", content=body, headers=headers, timeout=seconds)


def test_a_key_is_stored_once_and_its_rows_are_counted_once() -> None:
    with KeyOnlyServer() as server:
        assert post(server, "s/m/all/0-2", {"n": 1}, {"n": 2}).status_code == 200
        assert post(server, "s/m/all/0-2", {"n": 1}, {"n": 2}).status_code == 200
        assert post(server, "s/o/all/2-3", {"n": 3}).status_code == 200
        assert [row["n"] for row in server.rows()] == [1, 2, 3]
        assert [row["n"] for row in server.rows("m")] == [1, 2]
        assert post(server, "s/m/all/0-2", {"n": 9}).status_code == 409
        assert server.conflicts == ["s/m/all/0-2"]
        assert httpx.get(f"{server.url}/v1/ledger/s").status_code == 404


def test_poison_refuses_the_whole_chunk() -> None:
    with PoisonServer(status=400) as server:
        refused = post(server, "k1", {"_origin_seq": 1}, {"_origin_seq": 2, "poison": True})
        assert (refused.status_code, refused.json()) == (400, {"detail": "poison in [2]"})
        assert post(server, "k2", {"_origin_seq": 1, "poison": False}).status_code == 200
        assert [row["_origin_seq"] for row in server.rows()] == [1]


def test_a_script_answers_in_turn_and_a_lost_answer_has_stored() -> None:
    with KeyOnlyServer() as server:
        server.script = in_turn(Answer(503, headers={"Retry-After": "7"}), Silent.breaks_off, Stored.answer_lost)
        assert post(server, "k", {"n": 1}).headers["retry-after"] == "7"
        for stored in ([], [{"n": 1}]):
            with pytest.raises(httpx.TransportError):
                post(server, "k", {"n": 1})
            assert server.rows() == stored
        assert post(server, "k", {"n": 1}).status_code == 200
        assert server.rows() == [{"n": 1}]


@pytest.mark.parametrize(("reaction", "stored"), [(Silent.hangs, 0), (Stored.hangs, 1)])
def test_a_server_that_hangs_can_be_stopped_and_started_at_its_address(reaction: Any, stored: int) -> None:
    server = KeyOnlyServer().start()
    address = server.url
    server.script = in_turn(reaction)
    with pytest.raises(httpx.ReadTimeout):
        post(server, "k", {"n": 1}, seconds=0.2)
    server.stop()
    with pytest.raises(httpx.ConnectError):
        post(server, "k", {"n": 1})
    with server:
        assert server.url == address
        assert len(server.rows()) == stored
        assert post(server, "k", {"n": 1}).status_code == 200
        assert len(server.chunks_seen()) == 2


def test_an_answer_may_break_off_in_the_middle() -> None:
    with ScriptedServer() as server:
        server.script = in_turn(Answer(200, "x" * 1000, cut_after=10))
        with pytest.raises(httpx.TransportError):
            post(server, "k")
