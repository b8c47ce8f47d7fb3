"""Rows that a destination will never take stand alone in quarantine; their neighbours arrive, each once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from floodmark.errors import Permanent
from floodmark.store import Store
from floodmark.testing import crash_at, kill_store
from scenarios.delivery.servers import Answer, PoisonServer, Stored, always

ALL = {7, 8, 30}


@pytest.fixture
def server() -> Iterator[PoisonServer]:
    with PoisonServer() as made:
        yield made


@pytest.fixture
def forwarding(store: Store, server: PoisonServer) -> Store:
    store.add_dataset("m", schema={"n": "long", "poison": "boolean"})
    store.add_sink("out", "forward", url=server.url, accept="status", chunk_rows=1000)
    return store


def capture(store: Store, count: int, poisonous: set[int], *, start: int = 0) -> None:
    store.capture("m", [{"n": n, "poison": n in poisonous} for n in range(start, start + count)])
    store.flush("m")


def held(store: Store) -> list[int]:
    return [entry.seq or 0 for entry in store.quarantine.entries("m")]


@pytest.mark.parametrize("status", [400, 413, 422])
def test_poison_stands_alone_in_quarantine_with_the_servers_words_and_the_rest_arrives(store: Store, status) -> None:
    store.add_dataset("m", schema={"n": "long", "poison": "boolean"})
    with PoisonServer(status=status) as server:
        store.add_sink("out", "forward", url=server.url, accept="status")
        capture(store, 40, ALL)

        report = store.export("out")

        assert [row["n"] for row in server.rows()] == [n for n in range(40) if n not in ALL]
        assert (report.rows, report.quarantined, report.blocked, report.errors) == (37, 3, None, {})
        assert held(store) == [n + 1 for n in sorted(ALL)]
        assert {
            f"poison in [{n + 1}]" in entry.reason
            for n, entry in zip(sorted(ALL), store.quarantine.entries("m"), strict=True)
        } == {True}
        assert store.watermark("out", "m") == 40


def test_what_was_given_up_is_not_sent_again_and_later_rows_flow(forwarding: Store, server: PoisonServer) -> None:
    capture(forwarding, 10, {9})
    forwarding.export("out")
    asked = len(server.requests)

    assert forwarding.export("out").rows == 0
    assert len(server.requests) == asked
    capture(forwarding, 3, set(), start=10)
    assert forwarding.export("out").rows == 3


@pytest.mark.parametrize("point", ["delivery.split", "delivery.given_up", "delivery.shipped", "delivery.acknowledged"])
@pytest.mark.parametrize("time", [1, 2, 4])
def test_a_crash_in_the_middle_of_a_bisection_sends_no_half_twice(
    forwarding: Store, server: PoisonServer, reopen, point: str, time: int
) -> None:
    """D3: to a server that knows keys only, a half that is cut anew would be a new key with old rows."""
    capture(forwarding, 40, ALL)
    with crash_at(point, time=time):
        forwarding.export("out")
    kill_store(forwarding)
    again = reopen()
    capture(again, 5, set(), start=40)
    again.change_sink("out", chunk_rows=7)

    again.export("out")

    assert server.conflicts == []
    assert [row["n"] for row in server.rows()] == [n for n in range(45) if n not in ALL]
    assert held(again) == [n + 1 for n in sorted(ALL)]


def test_answers_lost_in_the_middle_of_a_bisection_double_nothing(forwarding: Store, server: PoisonServer) -> None:
    capture(forwarding, 40, ALL)
    seen = iter(range(1000))
    server.script = lambda request: Stored.answer_lost if request.method == "POST" and next(seen) % 3 == 1 else None

    for _ in range(60):
        if not forwarding.export("out").errors:
            break

    assert sorted(row["n"] for row in server.rows()) == [n for n in range(40) if n not in ALL]


@pytest.mark.parametrize("count", [101, 150])
def test_if_every_row_of_a_large_chunk_is_refused_the_sink_is_blocked_and_nothing_given_up(
    forwarding: Store, server: PoisonServer, count: int
) -> None:
    capture(forwarding, count, set(range(count)))

    report = forwarding.export("out")

    assert report.blocked is not None
    assert f"refuses all {count} rows" in report.blocked
    assert held(forwarding) == []
    assert forwarding.watermark("out", "m") == 0
    assert forwarding.sinks()[0].state == "blocked"


def test_a_large_chunk_that_was_refused_whole_is_blocked_again_after_a_crash_in_its_middle(
    forwarding: Store, server: PoisonServer, reopen
) -> None:
    """What a part came from is recorded: a retry does not take it for a small chunk of its own."""
    capture(forwarding, 120, set(range(120)))
    with crash_at("delivery.split", time=20):
        forwarding.export("out")
    kill_store(forwarding)
    again = reopen()

    assert again.export("out").blocked is not None
    assert held(again) == []


def test_one_good_row_among_a_large_chunk_of_poison_is_enough_to_blame_the_rows(
    forwarding: Store, server: PoisonServer
) -> None:
    capture(forwarding, 130, set(range(130)) - {77})

    report = forwarding.export("out")

    assert (report.rows, report.quarantined, report.blocked) == (1, 129, None)
    assert [row["n"] for row in server.rows()] == [77]


def test_a_small_chunk_of_nothing_but_poison_is_given_up(forwarding: Store, server: PoisonServer) -> None:
    capture(forwarding, 20, set(range(20)))
    assert forwarding.export("out").quarantined == 20


@pytest.mark.parametrize("status", [403, 404, 405, 409, 410, 415, 301])
def test_a_wrong_address_or_a_revoked_right_blocks_the_sink_and_quarantines_nothing(
    forwarding: Store, server: PoisonServer, status: int
) -> None:
    server.script = always(Answer(status, "not like this"))
    capture(forwarding, 10, set())

    report = forwarding.export("out")

    assert report.blocked is not None
    assert held(forwarding) == []
    assert len(server.chunks_seen()) == 1
    server.script = None
    assert forwarding.export("out").rows == 10
    assert forwarding.sinks()[0].state == "active"


def test_replay_sends_what_was_given_up_exactly_once(forwarding: Store, server: PoisonServer) -> None:
    capture(forwarding, 20, {3, 4})
    forwarding.export("out")
    assert forwarding.replay("out").refused == 2  # nothing has changed there
    server.column = "nothing"

    assert forwarding.replay("out").rows == 2
    assert forwarding.replay("out").rows == 0

    assert sorted(row["n"] for row in server.rows()) == list(range(20))
    assert held(forwarding) == []


def test_a_replay_that_dies_before_it_is_recorded_arrives_once(forwarding: Store, server: PoisonServer, reopen) -> None:
    capture(forwarding, 20, {3})
    forwarding.export("out")
    server.column = "nothing"
    with crash_at("delivery.replayed"):
        forwarding.replay("out")
    kill_store(forwarding)

    assert reopen().replay("out").rows == 1
    assert sorted(row["n"] for row in server.rows()) == list(range(20))


def test_skip_gives_up_the_chunk_that_is_stuck_and_the_rest_goes_on(forwarding: Store, server: PoisonServer) -> None:
    forwarding.change_sink("out", chunk_rows=10)
    capture(forwarding, 30, set())
    server.script = always(Answer(403, "no"))
    forwarding.export("out")
    server.script = None

    skipped = forwarding.skip("out")

    assert [(item.range.after, item.range.through, item.rows) for item in skipped] == [(0, 10, 10)]
    forwarding.export("out")
    assert [row["n"] for row in server.rows()] == list(range(10, 30))
    assert forwarding.replay("out").rows == 10
    assert sorted(row["n"] for row in server.rows()) == list(range(30))


def test_there_is_nothing_to_skip_where_nothing_is_stuck(forwarding: Store) -> None:
    with pytest.raises(Permanent, match="no pending chunk"):
        forwarding.skip("out")


def test_a_row_that_a_sink_could_not_deliver_is_not_captured_again_by_quarantine_replay(
    forwarding: Store, server: PoisonServer
) -> None:
    capture(forwarding, 5, {2})
    forwarding.export("out")
    with pytest.raises(Permanent, match="sink could not deliver") as refused:
        forwarding.quarantine.replay(forwarding.quarantine.entries("m")[0].id)
    assert "sink replay" in (refused.value.hint or "")
