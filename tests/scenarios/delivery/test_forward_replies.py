"""Every reply to a chunk is understood: stored, refused, busy, ahead, or none of the chunk's fault."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from datetime import UTC, timedelta
from email.utils import format_datetime
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from floodmark.delivery.outcomes import Ahead, Busy, Holdings, Refused
from floodmark.errors import DivergedHistory, FloodmarkError, LedgerBehind, Loop, Permanent
from floodmark.sequence import SequenceRange, Tally
from floodmark.wire import GivenUpRange
from scenarios.delivery.parcels import (
    CHANNEL,
    STORE,
    Sender,
    in_a_row,
    numbered,
    outcome,
    parcel_of,
    reply_of_a_hub,
    reply_to,
    waits,
)
from scenarios.delivery.servers import (
    Answer,
    KeyOnlyServer,
    PoisonServer,
    Reaction,
    Request,
    Silent,
    acknowledgement,
    always,
    hub_says,
    in_turn,
    met,
)


def state(
    through: int, tally: Tally, given_up: tuple[tuple[int, int], ...] = (), rows: int = 0, more: bool = False
) -> dict[str, Any]:
    """A channel as a hub shows it."""
    return {
        "through": through,
        "rows": tally.rows,
        "checksum": tally.checksum_text,
        "given_up": {"rows": rows, "ranges": [list(span) for span in given_up], "more": more},
    }


def problem(name: str, status: int = 409, **more: Any) -> Answer:
    body = {"type": f"urn:floodmark:problem:{name}", "title": name, "status": status, "detail": f"about {name}", **more}
    return Answer(status, body, {"Content-Type": "application/problem+json"})


# ── what the replies mean ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("status", [200, 201, 202, 204])
@pytest.mark.parametrize("body", [b"", b"thanks", b'{"stored": 3}', b"[1, 2]", b'{"ledger": "none"}'])
def test_where_the_status_decides_any_2xx_acknowledges(
    sender: Sender, server: KeyOnlyServer, status: int, body: bytes
) -> None:
    """A server that knows keys and no ledger must work too, if the sink says so: only the status is required of it."""
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
    given_up = GivenUpRange(SequenceRange(3, 4), Tally(1, 11))
    parcel = numbered(3, after=4, before=Tally(3, 5), range=SequenceRange(3, 7), given_up=given_up)
    total = parcel.before + parcel.tally + Tally(1, 11)
    server.script = hub_says(Answer(200, {"ledger": state(7, total, ((3, 4),), rows=1)}))
    sender.sink(server.url, accept="hub").deliver(parcel)


def test_a_ledger_with_many_given_up_ranges_is_asked_for_page_by_page(sender: Sender, server: KeyOnlyServer) -> None:
    """An answer names a thousand ranges. Those that it leaves out are rows that the hub never got."""
    parcel = numbered(3, after=100_000)
    spans = tuple((number, number + 1) for number in range(0, 5_000, 2))

    def script(request: Request) -> Answer:
        if request.method == "POST":
            ahead = {
                "acknowledged": acknowledgement(request),
                "ledger": state(100_004, parcel.tally, spans[:1], more=True),
            }
            return Answer(200, ahead)
        after = int(parse_qs(urlsplit(request.path).query)["after"][0])
        left = [span for span in spans if span[1] > after]
        channel = state(100_004, parcel.tally, tuple(left[:1000]), rows=len(spans), more=len(left) > 1000)
        return met({"dataset": "m", "partition": "all", **channel})

    server.script = script
    sink = sender.sink(server.url, accept="hub")
    assert len(sink.held(CHANNEL, after=0).given_up) == 2_500
    with pytest.raises(Ahead) as ahead:
        sink.deliver(replace(parcel, range=SequenceRange(0, 100_003)))
    assert len(ahead.value.holdings.given_up) == 2_500
    assert ahead.value.holdings.never_got(4_999)
    assert not ahead.value.holdings.never_got(4_998)


@pytest.mark.parametrize("answer", [Answer(200, {}), problem("LedgerAhead")])
def test_a_hub_that_has_more_is_ahead(sender: Sender, server: KeyOnlyServer, answer: Answer) -> None:
    assert isinstance(answer.body, dict)
    there = state(9, Tally(8, 1), ((1, 2),), rows=1)
    says = hub_says(replace(answer, body={**answer.body, "ledger": there}))
    server.script = lambda request: (
        met({"dataset": "m", "partition": "all", **there}) if request.method == "GET" else says(request)
    )
    error = outcome(sender, server, accept="hub")
    assert isinstance(error, Ahead)
    assert error.holdings == Holdings((), 9, Tally(8, 1), (SequenceRange(1, 2),), 1)


def test_a_hub_that_never_got_rows_of_the_chunk_is_ahead_and_not_done(sender: Sender, server: KeyOnlyServer) -> None:
    """It ends where the chunk does and counts the same; but it was told before that row 2 was given up."""
    tally = numbered(3).tally
    for told in (state(3, tally, ((1, 2),), rows=1), state(3, tally, more=True)):
        error = reply_of_a_hub(sender, server, Answer(200, {"ledger": told}))
        assert isinstance(error, Ahead)


@pytest.mark.parametrize(
    "answer",
    [
        problem("LedgerBehind", ledger=state(0, Tally())),
        problem("LedgerBehind"),
        Answer(200, {"stored": 0, "ledger": state(1, Tally(1, 1))}),
    ],
)
def test_a_hub_that_is_behind_stops_the_sink(sender: Sender, server: KeyOnlyServer, answer: Answer) -> None:
    error = reply_of_a_hub(sender, server, answer)
    assert isinstance(error, LedgerBehind)
    assert "add it again" in (error.hint or "")


@pytest.mark.parametrize("rows", [3, 4])
def test_other_rows_under_the_same_numbers_are_found_by_the_totals(
    sender: Sender, server: KeyOnlyServer, rows: int
) -> None:
    """A hub that has the range does not look at the rows that come again: a restored store would lose them silently."""
    error = reply_of_a_hub(sender, server, Answer(200, {"stored": 0, "ledger": state(3, Tally(rows, 12345))}))
    assert isinstance(error, DivergedHistory)
    assert "`origin`" in (error.hint or "")


def test_a_history_that_the_hub_finds_parted_is_told(sender: Sender, server: KeyOnlyServer) -> None:
    error = reply_of_a_hub(sender, server, problem("DivergedHistory", ledger=state(3, Tally(3, 1))))
    assert isinstance(error, DivergedHistory)
    assert "about DivergedHistory" in error.message


def test_rows_that_would_go_round_are_told(sender: Sender, server: KeyOnlyServer) -> None:
    error = reply_of_a_hub(sender, server, problem("Loop"))
    assert isinstance(error, Loop)
    assert "the loop" in (error.hint or "")


@pytest.mark.parametrize("answer", [Answer(409, "taken"), problem("LedgerAhead", ledger={"through": "x"})])
def test_another_conflict_blocks_the_sink(sender: Sender, server: KeyOnlyServer, answer: Answer) -> None:
    assert type(reply_of_a_hub(sender, server, answer)) is Permanent


def test_a_replay_is_acknowledged_wherever_the_ledger_is(sender: Sender, server: KeyOnlyServer) -> None:
    server.script = hub_says(Answer(200, {"ledger": state(500, Tally(400, 1))}))
    sender.sink(server.url, accept="hub").deliver(numbered(1, after=5, replay=True))


# ── which hub ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "answer",
    [
        Answer(200, "<html>please log in</html>"),
        Answer(200, b""),
        Answer(204),
        Answer(200, '{"stored": 3}'),
        Answer(201),
    ],
)
def test_what_answers_in_a_hubs_place_acknowledges_nothing(
    sender: Sender, server: KeyOnlyServer, answer: Answer
) -> None:
    """D8. A login page says 200 too."""
    first, second = in_a_row(3, 3)
    server.script = hub_says()
    sink = sender.sink(server.url, accept="hub")
    sink.deliver(first)
    server.script = lambda request: answer if request.method == "POST" else met()
    with pytest.raises(Permanent, match="not as a hub does") as blocked:
        sink.deliver(second)
    assert not isinstance(blocked.value, Refused)
    assert "accept=status" in (blocked.value.hint or "")


@pytest.mark.parametrize("key", ["origin", "dataset", "partition", "after", "through", "rows", "checksum", "replay"])
@pytest.mark.parametrize("how", ["other", "missing"])
def test_an_acknowledgement_of_something_else_acknowledges_nothing(
    sender: Sender, server: KeyOnlyServer, key: str, how: str
) -> None:
    """D8. A proxy that answers from its memory gives another chunk's."""

    def script(request: Request) -> Answer:
        if request.method == "GET":
            return met()
        told = acknowledgement(request)
        told = {**told, key: "other"} if how == "other" else {name: told[name] for name in told if name != key}
        return Answer(200, {"acknowledged": told, "ledger": state(3, numbered(3).tally)})

    server.script = script
    with pytest.raises(Permanent, match=f"'{key}' differs"):
        sender.sink(server.url, accept="hub").deliver(numbered(3))


def test_an_acknowledgement_without_a_ledger_acknowledges_nothing(sender: Sender, server: KeyOnlyServer) -> None:
    assert "without its ledger" in str(reply_of_a_hub(sender, server, Answer(200, {"ledger": None})))


def test_another_hub_behind_the_address_acknowledges_nothing(sender: Sender, server: KeyOnlyServer) -> None:
    """D8. It is refused by its name, at the first connection; and where it answers on the old one, by its answer."""
    first, second = in_a_row(3, 3)
    server.script = hub_says()
    sink = sender.sink(server.url, accept="hub")
    sink.deliver(first)
    server.script = hub_says(hub="another")
    with pytest.raises(Permanent, match="is not the hub of this sink") as blocked:
        sink.deliver(second)
    assert "remove this sink and add it again" in (blocked.value.hint or "")
    server.stop()
    server.start()
    posted = len(server.chunks_seen())
    with pytest.raises(Permanent, match="not the hub of this sink"):
        sink.deliver(second)
    assert len(server.chunks_seen()) == posted, "on a new connection it was asked first, and nothing left"


@pytest.mark.parametrize("status", [400, 409, 422])
def test_a_refusal_by_something_else_than_the_hub_gives_no_row_up(
    sender: Sender, server: KeyOnlyServer, status: int
) -> None:
    """D8. Taken for poison, every row would go to quarantine for a proxy's mistake."""
    server.script = lambda request: met() if request.method == "GET" else Answer(status, "<html>bad request</html>")
    error = outcome(sender, server, accept="hub")
    assert type(error) is Permanent
    assert "not as a hub does" in str(error)
    server.script = lambda request: met() if request.method == "GET" else Answer(status, {"hub": "another"})
    assert "is not the hub of this sink" in str(outcome(sender, server, accept="hub"))


def test_a_proxy_that_finds_a_body_too_large_has_it_split(sender: Sender, server: KeyOnlyServer) -> None:
    server.script = lambda request: met() if request.method == "GET" else Answer(413, "<html>too large</html>")
    assert isinstance(outcome(sender, server, accept="hub"), Refused)


def test_every_new_connection_begins_with_the_question_who_is_there(sender: Sender, server: KeyOnlyServer) -> None:
    server.script = hub_says()
    sink = sender.sink(server.url, accept="hub")
    for parcel in in_a_row(3, 3):
        with contextlib.suppress(DivergedHistory):  # the script counts one chunk at a time
            sink.deliver(parcel)
    assert [request.method for request in server.requests] == ["GET", "POST", "POST"]
    server.stop()
    server.start()
    server.requests.clear()
    sink.deliver(numbered(3))
    assert [request.method for request in server.requests] == ["GET", "POST"]


def test_a_hub_behind_a_proxy_that_ends_each_connection_gets_its_rows(sender: Sender, server: KeyOnlyServer) -> None:
    says = hub_says()

    def script(request: Request) -> Answer:
        answer = says(request)
        assert isinstance(answer, Answer)
        return replace(answer, headers={"Connection": "close"})

    server.script = script
    sink = sender.sink(server.url, accept="hub")
    sink.deliver(numbered(3))
    assert len(server.chunks_seen()) == 1


def test_the_ledger_is_asked_for_this_channel(sender: Sender, server: KeyOnlyServer) -> None:
    other = {"dataset": "m", "partition": "p=1", **state(99, Tally(99, 9))}
    mine = {"dataset": "m", "partition": "all", **state(7, Tally(6, 5), ((2, 3),), rows=1)}
    server.script = lambda _: met(other, mine)
    sink = sender.sink(server.url, token="let-me-in", accept="hub")
    assert sink.held(CHANNEL, after=2) == Holdings((), 7, Tally(6, 5), (SequenceRange(2, 3),), 1)
    assert sink.held(replace(CHANNEL, dataset="o"), after=0) == Holdings()
    assert [request.path.partition("?")[0] for request in server.requests] == [f"/v1/ledger/{STORE}"] * 2
    assert server.requests[0].token == "let-me-in"


def test_the_ledger_of_many_partitions_is_read_whole(sender: Sender, server: KeyOnlyServer) -> None:
    channels = [{"dataset": "m", "partition": f"p={index}", **state(index, Tally(1, 1))} for index in range(5_000)]
    server.script = lambda _: met(*channels)
    sink = sender.sink(server.url, accept="hub")
    assert sink.held(replace(CHANNEL, partition="p=4999"), after=0).end == 4999


def test_a_server_that_is_said_to_be_no_hub_is_not_asked(sender: Sender, server: KeyOnlyServer) -> None:
    sink = sender.sink(server.url)
    assert sink.held(CHANNEL, after=0) == Holdings()
    sink.deliver(numbered(3))
    assert [request.method for request in server.requests] == ["POST"]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (Answer(404), "no hub"),
        (Answer(405), "no hub"),
        (Answer(501), "no hub"),
        (Answer(400), "answered 400"),
        (Answer(200, "<html>"), "not a hub"),
        (Answer(200, {"channels": "none"}), "not a hub"),
        (Answer(200, {"origin": STORE, "channels": [], "reads": []}), "another version"),
        (Answer(200, {"hub": "h", "versions": [1], "channels": []}), "another version"),
    ],
)
def test_a_server_that_shows_no_ledger_is_sent_nothing(
    sender: Sender, server: KeyOnlyServer, answer: Answer, said: str
) -> None:
    """D8. At first contact a server says that it is a hub, and which; else the sink is blocked with the way out."""
    server.script = lambda request: answer if request.method == "GET" else None
    sink = sender.sink(server.url, accept="hub")
    for attempt in (lambda: sink.held(CHANNEL, after=0), lambda: sink.deliver(numbered(3))):
        with pytest.raises(Permanent, match=said) as blocked:
            attempt()
        assert not isinstance(blocked.value, Refused)
        assert blocked.value.hint
    assert server.chunks_seen() == []


@pytest.mark.parametrize(
    ("answer", "wanted"),
    [
        (Answer(503, headers={"Retry-After": "4"}), Busy),
        (Answer(403), Permanent),
        (Silent.breaks_off, Busy),
        (met({"dataset": "m", "partition": "all", "through": -1}), Permanent),
    ],
)
def test_a_ledger_that_cannot_be_had_is_not_taken_for_an_empty_one(
    sender: Sender, server: KeyOnlyServer, answer: Reaction, wanted: type[FloodmarkError]
) -> None:
    server.script = lambda _: answer
    with pytest.raises(wanted):
        sender.sink(server.url, accept="hub").held(CHANNEL, after=0)
