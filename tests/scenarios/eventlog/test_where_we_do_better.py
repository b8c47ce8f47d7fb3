"""The points where tools of this format go wrong: one test (or more) for each, named for what holds here."""

import hashlib
import json
import os
import shutil

import pytest
from replicas import merged

from floodmark import faults
from floodmark.errors import Corrupt
from floodmark.eventlog import Event, EventLog, Runner, SqliteTarget, Unresolvable, projection


def parts(log):
    return [(p.stream, p.base_version, p.transactions) for fork in log.status().forks for p in fork.parts]


# 1


def test_a_branch_longer_than_one_transaction_is_reconciled_whole(replica):
    a, b = replica("A"), replica("B")
    a.append("opened")
    b.pull(a)
    a.append("A1")
    a.append("A2")
    b.append("B1")
    b.append("elsewhere", stream="t")
    b.append("B2")
    a.pull(b)
    (fork,) = a.log.forks()
    assert [[e.data["text"] for e in branch.events] for branch in fork.branches] == [
        ["A1", "A2"],
        ["B1", "elsewhere", "B2"],
    ]
    heads = a.log.heads
    report = a.log.reconcile(merged)
    assert len(report.resolved) == 1
    assert a.log.history[report.resolved[0]].parents == heads
    assert a.log.heads == report.resolved
    assert a.texts()[-1] == "A1+A2+B1+B2"
    for log in (a.log, a.reopen()):
        assert log.forks() == []
        assert log.status().is_clean
        assert log.fsck().ok


def test_a_fork_over_several_streams_is_one_unit_and_one_decision(replica):
    a, b = replica("A"), replica("B")
    a.append("opened")
    b.pull(a)
    for one in (a, b):
        one.log.append([Event("x", {"text": one.path.name}), Event("y", {"text": one.path.name})], {"x": 0, "y": 0})
    a.pull(b)
    (fork,) = a.log.forks()
    assert fork.streams == ("x", "y")
    report = a.log.reconcile(merged)
    assert len(report.resolved) == 1
    assert a.texts("x")[-1] == a.texts("y")[-1] == "A+B"
    assert a.reopen().status().is_clean
    assert a.log.reconcile(merged).resolved == ()


# 2


@pytest.mark.parametrize("stream", ["s", "elsewhere"])
def test_an_ordinary_append_after_a_merge_decides_nothing(forked, stream):
    a, _ = forked
    before = parts(a.log)
    assert len(before) == 1
    a.append("ordinary", stream=stream)
    assert len(a.log.heads) == 1, "it has seen both sides"
    assert parts(a.log) == before
    assert parts(a.reopen()) == before
    (fork,) = a.log.forks()
    assert [e.data["text"] for e in fork.later] == ["ordinary"]
    report = a.log.reconcile(merged)
    assert a.log.heads == report.resolved
    assert a.log.status().is_clean


# 3


def test_a_stream_that_was_only_read_is_not_forked(replica):
    a, b = replica("A"), replica("B")
    a.append("rates", stream="rates")
    b.pull(a)
    a.append("A", stream="a", expected={"rates": 1})
    b.append("B", stream="b", expected={"rates": 1})
    a.pull(b)
    assert a.log.status().is_clean
    b.append("new rates", stream="rates", expected={"rates": 1})
    a.pull(b)
    assert a.log.status().is_clean, "one writer is no fork, however many readers there were"


# 4


def test_the_order_in_process_is_the_order_after_reopening(forked):
    a, b = forked
    for n in range(3):
        b.append(f"later-{n}")
        a.append(f"early-{n}", stream="t")
        a.pull(b)
        in_process = [e.event_id for e in a.log.canonical_events()]
        versions = dict(a.log.streams())
        a.reopen()
        assert [e.event_id for e in a.log.canonical_events()] == in_process
        assert dict(a.log.streams()) == versions


# 5


@pytest.mark.parametrize("damage", ["gone", "damaged"])
def test_a_hole_in_mid_chain_is_reported_and_the_rest_is_readable(replica, damage):
    a = replica()
    made = [a.append(f"e{n}").transaction_id for n in range(5)]
    if damage == "gone":
        a.file(made[2]).unlink()
    else:
        a.file(made[2]).write_bytes(a.file(made[2]).read_bytes().replace(b"e2", b"E2"))
    for log in (a.reopen(), EventLog.open(a.path, read_only=True)):
        status = log.status()
        assert [(d.transaction, d.missing_parents) for d in status.dangling] == [(made[3], (made[2],))]
        assert [f.file for f in status.integrity_failures] == ([] if damage == "gone" else [f"events/{made[2]}.jsonl"])
        assert sorted(e.data["text"] for e in log.read_stream("s")) == ["e0", "e1", "e3", "e4"]
        assert any(made[3] in p.file for p in log.fsck().problems)
        assert log.fsck().ok == (damage == "gone")
    a.append("after", expected={"s": 4})


# 6


def test_a_checkout_with_crlf_line_ends_is_read_and_reported(replica):
    a = replica()
    for n in range(3):
        a.append(f"e{n}")
    for file in (a.path / "events").iterdir():
        file.write_bytes(file.read_bytes().replace(b"\n", b"\r\n"))
    log = a.reopen()
    assert a.texts() == ["e0", "e1", "e2"]
    assert log.status().integrity_failures == ()
    assert any("CRLF" in notice for notice in log.status().notices)
    assert len([p for p in log.fsck().problems if "CRLF" in p.reason]) == 3
    assert log.fsck().ok


# 7


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"created_at":"2026', b'"created_at":"2020'),
        (b'"s":1', b'"s":7'),
        (b'"record":"header"', b'"record": "header"'),
    ],
)
def test_an_edited_header_is_noticed(replica, old, new):
    a = replica()
    a.append("e0")
    made = a.append("e1").transaction_id
    raw = a.file(made).read_bytes()
    assert old in raw
    a.file(made).write_bytes(raw.replace(old, new, 1))
    log = a.reopen()
    assert "header does not match" in log.status().integrity_failures[0].reason
    assert not log.fsck().ok
    assert a.texts() == ["e0"]


def test_every_single_flipped_byte_is_noticed(replica):
    a = replica()
    made = a.append("e0").transaction_id
    raw = a.file(made).read_bytes()
    from floodmark.eventlog.transactions import InvalidTransaction, parse

    for place in range(len(raw)):
        with pytest.raises(InvalidTransaction):
            parse(raw[:place] + bytes([raw[place] ^ 1]) + raw[place + 1 :], name=made)


# 8


def test_a_page_full_of_events_that_a_projection_cannot_use_does_not_stall_it(replica, tmp_path):
    a = replica()
    for n in range(30):
        a.append(f"noise-{n}", stream="noise")
    a.append("wanted")
    seen = []

    @projection("p", prefix="s")
    def follow(event, _connection):
        seen.append(event.data["text"])

    Runner(a.log, follow, SqliteTarget(tmp_path / "p.db"), batch_events=7).run()
    assert seen == ["wanted"]

    @projection("q", on_poison="quarantine")
    def strict(event, _connection):
        seen.append({"wanted": 1}[event.data["text"]])

    report = Runner(a.log, strict, SqliteTarget(tmp_path / "p.db"), batch_events=7).run()
    assert (report.applied, report.quarantined) == (1, 30)


# 9


@pytest.mark.parametrize("cut", range(1, 60))
def test_a_torn_ingestion_log_line_is_repaired_wherever_it_is_torn(replica, cut):
    a = replica()
    a.append("one", "two", "three")
    a.log.close()
    path = a.path / "index" / "ingestion.log"
    path.write_bytes(path.read_bytes()[:-cut])
    log = a.reopen()
    assert [(e.seq, e.data["text"]) for e in log.read_events()] == [(1, "one"), (2, "two"), (3, "three")]
    assert [json.loads(line)["seq"] for line in path.read_text().splitlines()] == [1, 2, 3]


def test_garbage_in_the_middle_of_the_ingestion_log_costs_the_numbering_its_identity(replica):
    a = replica()
    a.append("one", "two", "three")
    identity = a.log.identity
    a.log.close()
    path = a.path / "index" / "ingestion.log"
    first, second, third = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + second[:20] + b"\n" + third)
    log = a.reopen()
    assert log.identity != identity
    assert [(e.seq, e.data["text"]) for e in log.read_events()] == [(1, "one"), (3, "three"), (4, "two")]


# 10: test_projections.py shows the same for every way of losing the numbering.


def test_a_checkpoint_outlives_the_numbering_it_was_made_in(replica, tmp_path):
    a, b = replica("A"), replica("B")
    a.append("opened")
    b.pull(a)
    b.append("from-B")
    a.append("from-A1")
    a.append("from-A2")
    seen = []

    @projection("p")
    def follow(event, _connection):
        seen.append(event.data["text"])

    Runner(a.log, follow, SqliteTarget(tmp_path / "p.db")).run()
    assert seen == ["opened", "from-A1", "from-A2"]
    a.pull(b)
    a.log.close()
    shutil.rmtree(a.path / "index")
    a.reopen()
    assert [e.data["text"] for e in a.log.read_events()][1] == "from-B", "the numbering did change"
    Runner(a.log, follow, SqliteTarget(tmp_path / "p.db")).run()
    assert seen == ["opened", "from-A1", "from-A2", "from-B"]


# 11


def test_a_snapshot_of_a_stream_is_not_used_once_a_merge_changed_what_it_covers(replica):
    a, b = replica("A"), replica("B")
    a.append("opened")
    b.pull(a)
    b.append("from-B")
    a.append("from-A")
    a.log.save_snapshot("s", "count", {"texts": a.texts()})
    assert a.log.load_snapshot("s", "count").version == 2
    a.append("more")
    snapshot = a.log.load_snapshot("s", "count")
    assert (
        snapshot.state["texts"] + [e.data["text"] for e in a.log.read_stream("s", after=snapshot.version)] == a.texts()
    )
    a.pull(b)
    assert a.log.load_snapshot("s", "count") is None
    assert a.log.load_snapshot("s", "another") is None


# 12


def test_no_malformed_file_blocks_opening(replica):
    a = replica()
    made = a.append("whole").transaction_id
    bad = {
        "00000000-0000-7000-8000-000000000001": b"",
        "00000000-0000-7000-8000-000000000002": b"not json\n",
        "00000000-0000-7000-8000-000000000003": b'{"record":"header"}\n',
        "00000000-0000-7000-8000-000000000004": b"\xff\xfe\n",
        "00000000-0000-7000-8000-000000000005": b"[" * 100_000 + b"\n",
        "00000000-0000-7000-8000-000000000006": a.file(made).read_bytes(),
        "00000000-0000-7000-8000-000000000007": a.file(made).read_bytes()[:-10],
        "00000000-0000-7000-8000-000000000008": a.file(made)
        .read_bytes()
        .replace(b'"format_version":2', b'"format_version":3'),
        "not-a-transaction": b"{}\n",
    }
    for name, content in bad.items():
        (a.path / "events" / f"{name}.jsonl").write_bytes(content)
    (a.path / "events" / "00000000-0000-7000-8000-000000000009.jsonl").mkdir()
    (a.path / "events" / "notes.txt").write_text("ignored")
    log = a.reopen()
    failures = log.status().integrity_failures
    assert [f.file for f in failures] == sorted(
        f"events/{name}.jsonl" for name in [*bad, "00000000-0000-7000-8000-000000000009"]
    )
    assert all(f.reason for f in failures)
    assert a.texts() == ["whole"]
    a.append("and on", expected={"s": 1})
    assert not log.fsck().ok


def test_a_transaction_that_is_its_own_ancestor_is_left_out_and_named(replica):
    a = replica()
    made = a.append("whole").transaction_id
    one, two, below = (f"00000000-0000-7000-8000-00000000000{n}" for n in (1, 2, 3))

    def forge(name, *parents):
        header = json.loads(a.file(made).read_bytes().splitlines()[0])
        header = {k: v for k, v in header.items() if k != "floodmark_header_hash"}
        event = {"record": "event", "event_id": name.replace("8000", "9000"), "stream_id": "s", "stream_version": 1}
        event |= {"event_type": "E", "event_data": {"text": name[-1]}, "metadata": {}}
        header |= {"transaction_id": name, "parent_transaction_ids": list(parents), "content_hash": None}
        a.file(name).write_text(json.dumps(header) + "\n" + json.dumps(event) + "\n")

    forge(one, two)
    forge(two, one)
    forge(below, two)
    for log in (a.reopen(), a.reopen()):
        assert [f.file for f in log.status().integrity_failures] == [f"events/{one}.jsonl", f"events/{two}.jsonl"]
        assert sorted(a.texts()) == ["3", "whole"], "what merely descends from the cycle is readable"
        assert [d.transaction for d in log.status().dangling] == [below]
        assert set(log.heads) == {made, below}
    forge(one, one)
    assert {f.file for f in a.reopen().status().integrity_failures} == {f"events/{one}.jsonl"}


# 13 and 14


def test_deep_histories_overflow_nothing_and_status_stays_quick(tmp_path):
    import time

    from floodmark.eventlog.forks import find_forks, identity_conflicts
    from floodmark.eventlog.history import History
    from floodmark.eventlog.transactions import EventKey, Transaction

    def ident(n):
        return f"00000000-0000-7000-8000-{n:012d}"

    # Two replicas, forking on every tenth transaction and merging without deciding: thousands of open forks.
    transactions, heads, n = [], {0: (), 1: ()}, 0
    for step in range(5_000):
        for replica in (0, 1):
            n += 1
            parents = heads[0] + heads[1] if step % 10 == 0 else heads[replica]
            event = EventKey(ident(n + 50_000), f"s-{step % 50}", "E")
            transactions.append(
                Transaction(
                    ident(n),
                    ident(900_000 + replica),
                    tuple(sorted(set(parents))),
                    f"{step:06d}",
                    {event.stream: step},
                    (event,),
                    (),
                )
            )
            if step % 10 == 0 and replica == 1:
                heads = {0: (ident(n - 1),), 1: (ident(n),)}
            elif step % 10:
                heads[replica] = (ident(n),)
    history = History.of(transactions)
    assert max(history.graph.depth.values()) == 4_999
    started = time.process_time()
    assert len(find_forks(history)) == 5_000
    assert identity_conflicts(history) == []
    assert time.process_time() - started < 3.0


# 15


def test_an_append_whose_numbering_fails_is_reported_as_done(replica, monkeypatch):
    a = replica()
    a.append("one")

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("floodmark.eventlog.ingestion._write_all", full)
        a.append("two", expected={"s": 1})
    assert a.texts() == ["one", "two"]
    assert [(e.seq, e.data["text"]) for e in a.log.read_events()] == [(1, "one"), (2, "two")]
    a.append("three", expected={"s": 2})
    assert [e.seq for e in a.reopen().read_events()] == [1, 2, 3]


def test_half_a_line_left_by_a_full_disk_does_not_glue_to_the_next(replica, monkeypatch):
    a = replica()
    a.append("one")

    def torn(descriptor, content):
        os.write(descriptor, content[:20])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("floodmark.eventlog.ingestion._write_all", torn)
        a.append("two")
    a.append("three")
    assert [(e.seq, e.data["text"]) for e in a.reopen().read_events()] == [(1, "one"), (2, "two"), (3, "three")]


# 16


def test_reading_needs_no_lock_and_arrivals_are_seen_after_refresh(replica):
    import fcntl

    a = replica()
    a.append("one")
    reader = EventLog.open(a.path, read_only=True)
    with (a.path / ".lock").open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert [e.data["text"] for e in EventLog.open(a.path, read_only=True).read_events()] == ["one"]
    a.append("two")
    assert [e.data["text"] for e in reader.read_stream("s")] == ["one"]
    assert reader.refresh() == 1
    assert [e.data["text"] for e in reader.read_stream("s")] == ["one", "two"]
    assert [e.seq for e in reader.read_events()] == [1, 2]


def test_files_that_a_merge_brings_are_seen_by_the_next_append_without_asking(replica):
    a, b = replica("A"), replica("B")
    a.append("opened")
    shutil.copy(a.file(a.log.heads[0]), b.path / "events")
    b.append("from-B", expected={"s": 1})
    assert b.texts() == ["opened", "from-B"]


def test_a_file_damaged_while_the_log_is_open_stops_only_its_own_events(replica):
    a = replica()
    made = a.append("one").transaction_id
    a.append("other", stream="t")
    a.reopen()
    a.file(made).write_bytes(b"ruined")
    with pytest.raises(Corrupt, match=made):
        a.log.read_stream("s")
    assert a.texts("t") == ["other"]
    a.log.refresh()
    assert a.texts("s") == []
    assert [f.file for f in a.log.status().integrity_failures] == [f"events/{made}.jsonl"]


def test_a_declined_fork_stays_with_its_reason(forked):
    a, _ = forked
    report = a.log.reconcile(lambda _: Unresolvable("ask the owner"))
    assert report.resolved == ()
    assert [fork.reason for fork in report.declined] == ["ask the owner"]
    assert [fork.reason for fork in a.reopen().status().forks] == ["ask the owner"]
    assert not a.log.status().is_clean
    assert len(a.log.reconcile(merged).resolved) == 1
    assert a.log.status().is_clean


def test_fault_points_of_the_event_log_are_all_exercised_by_the_crash_tests():
    from test_crashes import EXERCISED

    assert {point for point in faults.POINTS if point.startswith("eventlog.")} == set(EXERCISED)


# Files with hashes that are right, and with content that a reader would stumble over later.


def strange(path, *, data=b"{}", bases='{"s":0}', at="2026-01-01T00:00:00+00:00"):
    name, event = "01890000-0000-7000-8000-000000000001", "01890000-0000-7000-8000-000000000002"
    body = b'{"record":"event","event_id":"%s","stream_id":"s","event_type":"T","event_data":%s}\n' % (
        event.encode(),
        data,
    )
    header = (
        f'{{"record":"header","format_version":2,"transaction_id":"{name}","replica_id":"{name}",'
        f'"parent_transaction_ids":[],"created_at":"{at}","stream_bases":{bases},'
        f'"content_hash":"{hashlib.sha256(body).hexdigest()}"}}\n'
    )
    (path / "events" / f"{name}.jsonl").write_bytes(header.encode() + body)


@pytest.mark.parametrize(
    "content",
    [
        {"data": b"[" * 20_000 + b"]" * 20_000},
        {"data": b"[" * 1100 + b"]" * 1100},
        {"data": b'"\\ud800"'},
        {"bases": '{"s":18446744073709551616}'},
        {"bases": '{"s":-1}'},
    ],
)
def test_a_transaction_that_could_not_be_read_later_is_reported_and_left_out_at_once(replica, content):
    a = replica()
    a.append("one")
    strange(a.path, **content)
    a.reopen()
    assert a.texts() == ["one"]
    a.append("two")
    assert [problem.error for problem in a.log.fsck().problems] == [True]
    a.reopen()
    assert a.texts() == ["one", "two"]


def test_numbers_beyond_a_position_are_damage_and_not_believed(replica):
    a = replica()
    a.append("one")
    a.log.close()
    log = a.path / "index" / "ingestion.log"
    log.write_bytes(log.read_bytes() + b'{"event_id":"01890000-0000-7000-8000-000000000001","seq":%d}\n' % 2**70)
    a.reopen()
    assert [event.seq for event in a.log.read_events()] == [1]


def test_a_link_to_itself_among_the_events_is_reported_and_stops_nothing(replica):
    a = replica()
    a.append("one")
    link = a.file("01890000-0000-7000-8000-000000000001")
    link.symlink_to(link)
    a.reopen()
    assert a.texts() == ["one"]
    assert [problem.file for problem in a.log.fsck().problems] == [f"events/{link.name}"]
