"""Stores that another tool of this format wrote: we agree with it on order, versions, heads and positions."""

import json
import tarfile
from pathlib import Path

import pytest

from floodmark.eventlog import EventLog
from floodmark.eventlog.transactions import Event, encode, parse

FIXTURES = Path(__file__).parents[2] / "fixtures" / "eventlog"


@pytest.fixture(scope="session")
def unpacked(tmp_path_factory):
    root = tmp_path_factory.mktemp("fixtures")
    for archive in sorted(FIXTURES.glob("*.tar.gz")):
        with tarfile.open(archive) as tar:
            tar.extractall(root, filter="data")
    return root


def cases():
    for archive in sorted(FIXTURES.glob("*.tar.gz")):
        with tarfile.open(archive) as tar:
            case = archive.name.removesuffix(".tar.gz")
            expected = json.load(tar.extractfile(f"{case}/expected.json"))
        for snapshot in expected["snapshot_order"]:
            yield pytest.param(case, snapshot, expected["snapshots"][snapshot], id=f"{case}/{snapshot}")


ALL = list(cases())
READABLE = [case for case in ALL if case.values[2]["open"] == "ok"]
# The other tool's forks are right where no merge, ordinary append after a merge or multi-stream fork came before.
FORKS_COMPARABLE = [
    case
    for case in READABLE
    if case.values[0]
    in {
        "01_linear_single_writer",
        "02_fork_unresolved",
        "03_merge_of_merges",
        "07_live_projection",
        "13_tie_breaks",
        "11_ingestion_log",
    }
    and case.values[1] != "A_7_gap_in_seq"
]


def opened(unpacked, tmp_path, case, snapshot):
    import shutil

    shutil.copytree(unpacked / case / snapshot, tmp_path / "log")
    return EventLog.open(tmp_path / "log", sync=False)


@pytest.mark.parametrize(("case", "snapshot", "expected"), READABLE)
def test_order_versions_heads_and_positions_are_equal(unpacked, tmp_path, case, snapshot, expected):
    with opened(unpacked, tmp_path, case, snapshot) as log:
        canonical = [
            {"event_id": e.event_id, "stream_id": e.stream, "transaction_id": e.transaction_id}
            for e in log.canonical_events()
        ]
        assert canonical == [
            {k: row[k] for k in ("event_id", "stream_id", "transaction_id")} for row in expected["canonical_order"]
        ]
        assert list(log.heads) == expected["heads"]
        assert log.topology_generation == expected["topology_generation"]
        assert dict(log.streams()) == {name: s["version"] for name, s in sorted(expected["streams"].items())}
        for name, stream in expected["streams"].items():
            assert [e.data for e in log.read_stream(name)] == stream["events"]
            assert [e.version for e in log.read_stream(name)] == list(range(1, stream["version"] + 1))
        read = [
            {
                "event_data": e.data,
                "event_id": e.event_id,
                "event_type": e.type,
                "position": str(e.position),
                "seq": e.seq,
                "transaction_id": e.transaction_id,
            }
            for e in log.read_events()
        ]
        assert read == expected["read_events"]


@pytest.mark.parametrize(("case", "snapshot", "expected"), FORKS_COMPARABLE)
def test_forks_and_status_are_equal_where_the_other_tool_is_right(unpacked, tmp_path, case, snapshot, expected):
    with opened(unpacked, tmp_path, case, snapshot) as log:
        status = log.status()
        forks = [
            {"base_version": p.base_version, "stream_id": p.stream, "transactions": list(p.transactions)}
            for fork in status.forks
            for p in fork.parts
        ]
        assert forks == expected["status"]["forks"]
        assert status.is_clean == expected["status"]["is_clean"]
        assert status.dangling == ()
        assert status.integrity_failures == ()
        assert status.identity_conflicts == ()


@pytest.mark.parametrize(
    ("case", "snapshot", "expected"), [case for case in READABLE if case.values[0] == "08a_random_history"]
)
def test_every_fork_that_the_other_tool_reports_is_reported(unpacked, tmp_path, case, snapshot, expected):
    with opened(unpacked, tmp_path, case, snapshot) as log:
        ours = {(p.stream, p.base_version, p.transactions) for fork in log.status().forks for p in fork.parts}
        theirs = {(f["stream_id"], f["base_version"], tuple(f["transactions"])) for f in expected["status"]["forks"]}
        assert theirs <= ours
        assert log.status().identity_conflicts == ()


@pytest.mark.parametrize(("case", "snapshot", "expected"), [c for c in ALL if c.values[2]["open"] != "ok"])
def test_ingestion_logs_that_stop_the_other_tool_are_repaired(unpacked, tmp_path, case, snapshot, expected):
    with opened(unpacked, tmp_path, case, snapshot) as log:
        events = log.read_events()
        assert [e.seq for e in events] == list(range(1, len(events) + 1))
        assert {e.event_id for e in events} == {e.event_id for e in log.canonical_events()}
        assert [e.data["text"] for e in events][:3] == ["opened", "from-A1", "from-A2"]
        assert log.status().notices


def test_every_transaction_file_is_written_again_byte_for_byte(unpacked):
    files = sorted(unpacked.glob("*/*/events/*.jsonl"))
    assert len(files) > 1000
    for file in files:
        raw = file.read_bytes()
        transaction, lines = parse(raw, name=file.stem)
        import orjson

        records = [
            (
                line.stream_version,
                Event(
                    line.stream_id,
                    orjson.loads(memoryview(line.event_data)),
                    line.event_type,
                    orjson.loads(memoryview(line.metadata)),
                ),
            )
            for line in lines
        ]
        assert encode(transaction, records) == raw
