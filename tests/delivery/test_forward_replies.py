"""Every reply to a chunk is understood: stored, refused, busy, ahead, or none of the chunk's fault."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from delivery.parcels import CHANNEL, STORE, Sender, in_a_row, numbered, parcel_of, reply_to, waits
from delivery.servers import Answer, KeyOnlyServer, PoisonServer, Reaction, Silent, always, in_turn
from floodmark.delivery.outcomes import Ahead, Busy, Holdings, Refused
from floodmark.errors import DivergedHistory, FloodmarkError, LedgerBehind, Loop, Permanent
from floodmark.sequence import SequenceRange, Tally


def state(through: int, tally: Tally, given_up: tuple[int, ...] = ()) -> dict[str, Any]:
    """A channel as a hub shows it."""
    return {
        "through": through,
        "rows": tally.rows,
        "checksum": tally.checksum_text,
        "given_up": list(given_up),
    }


def problem(name: str, status: int = 409, **more: Any) -> Answer:
    body = {"type": f"urn:floodmark:problem:{name}", "title": name, "status": status, "detail": f"about {name}", **more}
    return Answer(status, body, {"Content-Type": "application/problem+json"})


# ── what the replies mean ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("status", [200, 201, 202, 204])
@pytest.mark.parametrize("body", [b"", b"thanks", b'{"stored": 3}', b"[1, 2]", b'{"ledger": "none"}'])
def test_2xx_acknowledges_whatever_it_says(sender: Sender, server: KeyOnlyServer, status: int, body: bytes) -> None:
    """A server that knows keys and no ledger must work too: only the status is required of it."""
    server.script = always(Answer(status, b"" if status == 204 else body))
    sender.sink(server.url).deliver(numbered(3))


@pytest.mark.parametrize("kind", ["text/html", "application/octet-stream", "not/a;type=", ""])
def test_a_wrong_content_type_changes_nothing(sender: Sender, server: KeyOnlyServer, kind: str) -> None:
    server.script = in_turn(
        Answer(200, "<html>hello</html>", {"Content-Type": kind}), Answer(422, "no\x00t so", {"Content-Type": kind})
    )
    sink = sender.sink(server.url)
    sink.deliver(numbered(3))
    with pytest.raises(Refused) as refused:
        sink.deliver(numbered(3))
    assert refused.value.words == "no t so"


@pytest.mark.parametrize("status", [400, 413, 422])
def test_poison_is_refused_with_the_servers_words(sender: Sender, server: KeyOnlyServer, status: int) -> None:
    error = reply_to(sender, server, problem("SchemaConflict", status, detail="row 2: n is no number", hint="Fix it."))
    assert isinstance(error, Refused)
    assert error.words == "row 2: n is no number Fix it."
    assert f"answered {status} to rows (0, 3] of 'm' (all)" in str(error)


def test_poison_without_words_has_its_status(sender: Sender, server: KeyOnlyServer) -> None:
    error = reply_to(sender, server, Answer(422))
    assert isinstance(error, Refused)
    assert error.words == "status 422"


def test_a_poisonous_row_stands_out(sender: Sender) -> None:
    with PoisonServer() as server:
        sink = sender.sink(server.url)
        with pytest.raises(Refused, match=r"poison in \[2\]"):
            sink.deliver(parcel_of([{"n": 1, "poison": False}, {"n": 2, "poison": True}]))
        sink.deliver(parcel_of([{"n": 1, "poison": False}]))
        assert [row["n"] for row in server.rows()] == [1]


@pytest.mark.parametrize("status", [402, 403, 404, 405, 406, 407, 409, 410, 411, 415, 418, 421, 426, 431, 451])
def test_a_wrong_address_or_a_missing_right_is_no_rows_fault(
    sender: Sender, server: KeyOnlyServer, status: int
) -> None:
    """Taken for poison, a dataset would go to quarantine row by row."""
    error = reply_to(sender, server, Answer(status, {"detail": "you may not"}))
    assert isinstance(error, Permanent)
    assert not isinstance(error, Refused)
    assert "you may not" in error.message
    assert error.hint


@pytest.mark.parametrize("status", [300, 301, 302, 303, 304, 307, 308])
def test_a_redirect_is_not_followed_but_told(sender: Sender, server: KeyOnlyServer, status: int) -> None:
    with KeyOnlyServer() as elsewhere:
        address = f"{elsewhere.url}/v1/datasets/m/chunks"
        error = reply_to(sender, server, Answer(status, headers={"Location": address}))
        assert elsewhere.requests == []
    assert isinstance(error, Permanent)
    assert not isinstance(error, Refused)
    assert address in (error.hint or "")


@pytest.mark.parametrize("status", [408, 425, 429, 500, 501, 502, 503, 504, 507, 520, 599])
def test_a_busy_server_is_left_alone_for_a_while(sender: Sender, server: KeyOnlyServer, status: int) -> None:
    error = reply_to(sender, server, Answer(status, {"detail": "later"}, {"Retry-After": "17"}))
    assert isinstance(error, Busy)
    assert error.retry_after_seconds == 17
    assert "later" in str(error)


@pytest.mark.parametrize("said", [None, "0", "-3", "soon", "1.5", "Thu, 01 Jan 1970 00:00:00 GMT", "", "\xff"])
def test_a_retry_after_of_nothing_is_no_hot_loop(sender: Sender, server: KeyOnlyServer, said: str | None) -> None:
    """The ladder counts instead, and no attempt follows another without a pause."""
    server.script = always(Answer(503, headers={} if said is None else {"Retry-After": said}))
    sink = sender.sink(server.url)
    assert waits(sender.clock, lambda: sink.deliver(numbered(1)), times=6) == [30, 60, 120, 300, 300, 300]
    assert len(server.chunks_seen()) == 6


def test_a_retry_after_may_be_a_date(sender: Sender, server: KeyOnlyServer) -> None:
    ahead = format_datetime((sender.clock.now() + timedelta(seconds=90)).astimezone(UTC), usegmt=True)
    error = reply_to(sender, server, Answer(429, headers={"Retry-After": ahead}))
    assert isinstance(error, Busy)
    assert error.retry_after_seconds == 90
    sender.clock.advance(90)
    error = reply_to(sender, server, Answer(429, headers={"Retry-After": ahead}))
    assert isinstance(error, Busy)
    assert error.retry_after_seconds is None


# ── a hub's ledger ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_ledger_that_agrees_acknowledges(sender: Sender, server: KeyOnlyServer) -> None:
    parcel = numbered(3, after=4, before=Tally(3, 5), range=SequenceRange(3, 7), given_up={4: Tally(1, 11)})
    total = parcel.before + parcel.tally + Tally(1, 11)
    server.script = always(Answer(200, {"stored": 3, "ledger": state(7, total, (4,))}))
    sender.sink(server.url).deliver(parcel)


def test_a_ledger_with_many_given_up_rows_is_read_whole(sender: Sender, server: KeyOnlyServer) -> None:
    parcel = numbered(3, after=100_000)
    many = tuple(range(50_000, 70_000))
    server.script = always(Answer(200, {"stored": 3, "ledger": state(100_003, parcel.tally, many)}))
    sink = sender.sink(server.url)
    for _ in range(2):
        sink.deliver(parcel)
    server.script = always(Answer(200, {"stored": 3, "ledger": state(100_004, parcel.tally, many)}))
    with pytest.raises(Ahead) as ahead:
        sink.deliver(parcel)
    assert len(ahead.value.holdings.given_up) == 20_000


@pytest.mark.parametrize("answer", [Answer(200, {}), problem("LedgerAhead")])
def test_a_hub_that_has_more_is_ahead(sender: Sender, server: KeyOnlyServer, answer: Answer) -> None:
    assert isinstance(answer.body, dict)
    ahead = replace(answer, body={**answer.body, "ledger": state(9, Tally(8, 1), (2,))})
    error = reply_to(sender, server, ahead)
    assert isinstance(error, Ahead)
    assert error.holdings == Holdings(end=9, tally=Tally(8, 1), given_up=frozenset({2}))


@pytest.mark.parametrize(
    "answer",
    [
        problem("LedgerBehind", ledger=state(0, Tally())),
        problem("LedgerBehind"),
        Answer(200, {"stored": 0, "ledger": state(1, Tally(1, 1))}),
    ],
)
def test_a_hub_that_is_behind_stops_the_sink(sender: Sender, server: KeyOnlyServer, answer: Answer) -> None:
    error = reply_to(sender, server, answer)
    assert isinstance(error, LedgerBehind)
    assert "add it again" in (error.hint or "")


@pytest.mark.parametrize("rows", [3, 4])
def test_other_rows_under_the_same_numbers_are_found_by_the_totals(
    sender: Sender, server: KeyOnlyServer, rows: int
) -> None:
    """A hub that has the range does not look at the rows that come again: a restored store would lose them silently."""
    error = reply_to(sender, server, Answer(200, {"stored": 0, "ledger": state(3, Tally(rows, 12345))}))
    assert isinstance(error, DivergedHistory)
    assert "`origin`" in (error.hint or "")


def test_a_history_that_the_hub_finds_parted_is_told(sender: Sender, server: KeyOnlyServer) -> None:
    error = reply_to(sender, server, problem("DivergedHistory", ledger=state(3, Tally(3, 1))))
    assert isinstance(error, DivergedHistory)
    assert "about DivergedHistory" in error.message


def test_rows_that_would_go_round_are_told(sender: Sender, server: KeyOnlyServer) -> None:
    error = reply_to(sender, server, problem("Loop"))
    assert isinstance(error, Loop)
    assert "the circle" in (error.hint or "")


@pytest.mark.parametrize("answer", [Answer(409, "taken"), problem("LedgerAhead", ledger={"through": "x"})])
def test_another_conflict_blocks_the_sink(sender: Sender, server: KeyOnlyServer, answer: Answer) -> None:
    error = reply_to(sender, server, answer)
    assert type(error) is Permanent


def test_a_replay_is_acknowledged_wherever_the_ledger_is(sender: Sender, server: KeyOnlyServer) -> None:
    server.script = always(Answer(200, {"stored": 1, "ledger": state(500, Tally(400, 1))}))
    sender.sink(server.url).deliver(numbered(1, after=5, replay=True))


def test_what_answers_in_a_hubs_place_acknowledges_nothing(sender: Sender, server: KeyOnlyServer) -> None:
    """A login page says 200 too. Once a server has shown a ledger, a 2xx without one is not the hub's."""
    first, second = in_a_row(3, 3)
    server.script = in_turn(
        Answer(200, {"ledger": state(3, first.tally)}), Answer(200, "<html>please log in</html>"), Answer(200, {})
    )
    sink = sender.sink(server.url)
    sink.deliver(first)
    for _ in range(2):
        with pytest.raises(Busy, match="without its ledger"):
            sink.deliver(second)


def test_the_ledger_is_asked_for_this_channel(sender: Sender, server: KeyOnlyServer) -> None:
    other = {"dataset": "m", "partition": "p=1", **state(99, Tally(99, 9))}
    mine = {"dataset": "m", "partition": "all", **state(7, Tally(6, 5), (3,))}
    server.script = lambda _: Answer(200, {"origin": STORE, "channels": [other, mine]})
    sink = sender.sink(server.url, token="let-me-in")
    assert sink.held(CHANNEL, after=2) == Holdings(end=7, tally=Tally(6, 5), given_up=frozenset({3}))
    assert sink.held(replace(CHANNEL, dataset="o"), after=0) == Holdings()
    assert [request.path.partition("?")[0] for request in server.requests] == [f"/v1/ledger/{STORE}"] * 2
    assert server.requests[0].token == "let-me-in"


def test_the_ledger_of_many_partitions_is_read_whole(sender: Sender, server: KeyOnlyServer) -> None:
    channels = [{"dataset": "m", "partition": f"p={index}", **state(index, Tally(1, 1))} for index in range(5_000)]
    server.script = lambda _: Answer(200, {"origin": STORE, "channels": channels})
    assert sender.sink(server.url).held(replace(CHANNEL, partition="p=4999"), after=0).end == 4999


@pytest.mark.parametrize(
    "answer", [Answer(404), Answer(405), Answer(501), Answer(200, "<html>"), Answer(200, {"channels": "none"})]
)
def test_a_server_without_a_ledger_holds_nothing_that_it_could_tell(
    sender: Sender, server: KeyOnlyServer, answer: Answer
) -> None:
    server.script = lambda request: answer if request.method == "GET" else None
    sink = sender.sink(server.url)
    assert sink.held(CHANNEL, after=0) == Holdings()
    sink.deliver(numbered(3))


@pytest.mark.parametrize(
    ("answer", "wanted"),
    [
        (Answer(503, headers={"Retry-After": "4"}), Busy),
        (Answer(403), Permanent),
        (Silent.breaks_off, Busy),
        (Answer(200, {"channels": [{"dataset": "m", "partition": "all", "through": -1}]}), Permanent),
    ],
)
def test_a_ledger_that_cannot_be_had_is_not_taken_for_an_empty_one(
    sender: Sender, server: KeyOnlyServer, answer: Reaction, wanted: type[FloodmarkError]
) -> None:
    server.script = lambda _: answer
    with pytest.raises(wanted):
        sender.sink(server.url).held(CHANNEL, after=0)
