"""A transaction without events, as other tools of the format write one: a header and one blank line."""

import hashlib
import json

import pytest
from replicas import merged

from floodmark.eventlog import EventLog
from floodmark.eventlog.transactions import InvalidTransaction, parse

EMPTY = "019b0000-0000-7000-8000-000000000001"
STRANGER = "019b0000-0000-7000-8000-00000000000a"


def foreign(events_folder, parents=(), body=b"\n", *, transaction_id=EMPTY, content_hash=None, bases=None):
    """The file that another tool of the format writes."""
    header = {
        "record": "header",
        "format_version": 2,
        "transaction_id": transaction_id,
        "replica_id": STRANGER,
        "parent_transaction_ids": sorted(parents),
        "created_at": "2027-01-01T00:00:00+00:00",
        "stream_bases": bases or {},
        "content_hash": content_hash or hashlib.sha256(body).hexdigest(),
    }
    content = json.dumps(header, separators=(",", ":")).encode() + b"\n" + body
    (events_folder / f"{transaction_id}.jsonl").write_bytes(content)
    return content


def event_line(number, stream="s"):
    return json.dumps(
        {
            "record": "event",
            "event_id": f"019b0000-0000-7000-8000-0000000001{number:02d}",
            "stream_id": stream,
            "stream_version": number,
            "event_type": "Event",
            "event_data": {"text": f"foreign-{number}"},
            "metadata": {},
        },
        separators=(",", ":"),
    ).encode()


def test_a_header_and_one_blank_line_are_a_transaction(replica):
    a = replica("A")
    before = a.append("opened").transaction_id
    foreign(a.path / "events", [before])
    a.log.refresh()
    for log in (a.log, a.reopen()):
        assert log.history[EMPTY].events == ()
        assert log.heads == (EMPTY,)
        assert log.status().integrity_failures == ()
        assert log.status().is_clean
        assert log.fsck().ok
        assert log.fsck().transactions == 2
        assert [event.data["text"] for event in log.read_events()] == ["opened"]


def test_what_is_written_next_names_it_as_its_parent_and_is_deeper_by_one(replica):
    a = replica("A")
    foreign(a.path / "events", [a.append("opened").transaction_id])
    a.log.refresh()
    after = a.append("after").transaction_id
    assert a.log.history[after].parents == (EMPTY,)
    assert a.log.history.graph.depth[after] == 2
    assert a.log.status().dangling == ()


def test_logs_with_such_a_transaction_on_one_side_merge(forked):
    a, b = forked
    foreign(b.path / "events", b.log.heads)
    b.log.refresh()
    b.append("behind it", stream="elsewhere")
    a.pull(b)
    assert a.log.topology_generation == 1
    assert a.log.status().integrity_failures == ()
    report = a.log.reconcile(merged)
    assert len(report.resolved) == 1
    b.pull(a)
    assert a.log.heads == b.log.heads == report.resolved
    assert a.log.history.order == b.reopen().history.order
    assert a.log.fsck().ok


@pytest.mark.parametrize(
    "body",
    [
        event_line(1) + b"\n\n" + event_line(2) + b"\n",
        event_line(1) + b"\n" + event_line(2) + b"\n\n",
        b"\n\n" + event_line(1) + b"\n" + event_line(2) + b"\n\n\n",
    ],
    ids=["between", "after", "everywhere"],
)
def test_blank_lines_beside_events_are_passed_over_where_the_hash_matches(replica, body):
    a = replica("A")
    foreign(a.path / "events", body=body)
    a.log.refresh()
    assert a.texts() == ["foreign-1", "foreign-2"]
    assert a.log.fsck().ok


@pytest.mark.parametrize("body", [b"\n\n", event_line(1) + b"\n\n"], ids=["no events", "an event"])
def test_a_blank_line_that_the_hash_does_not_cover_is_damage(tmp_path, body):
    other = hashlib.sha256(body[:-1]).hexdigest()
    content = foreign(tmp_path, body=body, content_hash=other)
    with pytest.raises(InvalidTransaction, match="content_hash"):
        parse(content, name=EMPTY)


def test_line_ends_that_a_checkout_converted_are_restored_in_it_as_well(replica):
    a = replica("A")
    content = foreign(a.path / "events")
    a.file(EMPTY).write_bytes(content.replace(b"\n", b"\r\n"))
    a.log.refresh()
    assert a.log.heads == (EMPTY,)
    assert a.log.restore_line_ends() == 1
    assert a.file(EMPTY).read_bytes() == content


def test_it_is_fed_to_a_dataset_as_its_marker(store, replica):
    a = replica("A")
    foreign(a.path / "events", [a.append("opened").transaction_id])
    with EventLog.open(a.path, read_only=False) as log:
        report = store.feed("events", log)
    assert (report.events, report.markers) == (1, 1)
