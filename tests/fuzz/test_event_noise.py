"""Files of an event log that anybody may have written: each is a transaction or is reported; the rest is read."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from noise import HALVES, INTEGERS, JSON, TEXTS, altered, dumped, mutated
from trying import fresh, inputs, refusal, scratch, scratch_store

from floodmark.eventlog import Event, EventLog
from floodmark.store import Store

STREAMS = ("s", "account-1")


@pytest.fixture(scope="module")
def written() -> Any:
    """A log of a few transactions, closed."""
    with scratch() as place:
        with EventLog.open(place / "log", sync=False) as log:
            for number in range(4):
                log.append([Event(STREAMS[number % 2], {"n": number}), Event("both", [number])])
        yield place / "log"


def copied(written: Path, place: Path) -> Path:
    return Path(shutil.copytree(written, place / "log", symlinks=True))


def used(path: Path) -> list[tuple[str, Any]]:
    """Everything that reads, and an append; what it gives are the events that are there."""
    for read_only in (True, False):
        with EventLog.open(path, read_only=read_only, sync=False) as log:
            found = [(event.event_id, event.data) for event in log.canonical_events()]
            list(log.read_events())
            for stream in log.streams():
                list(log.read_stream(stream))
            log.status()
            log.forks()
            assert log.fsck() is not None
            if not read_only:
                assert log.append([Event("s", {"after": True})]).versions["s"] >= 1
    return found


def check(path: Path, kind: str, expected: dict[str, Any]) -> None:
    """Whatever the strangers are, the log opens, takes events, and gives every one of its own."""
    found, error = refusal(kind, lambda: used(path))
    assert error is None, error
    assert found is not None
    here = dict(found)
    assert {event_id: here.get(event_id) for event_id in expected} == expected


def events_in(path: Path) -> dict[str, Any]:
    lines = [line for file in (path / "events").glob("*.jsonl") for line in file.read_bytes().splitlines()[1:]]
    return {event["event_id"]: event["event_data"] for event in map(json.loads, lines)}


# ── files with hashes that are right ──────────────────────────────────────────────────────────────────────────────────

ID = "01890000-0000-7000-8000-00000000000%d"
HEADER = {
    "record": "header",
    "format_version": 2,
    "transaction_id": ID % 1,
    "replica_id": ID % 2,
    "parent_transaction_ids": [],
    "created_at": "2026-01-01T00:00:00+00:00",
    "stream_bases": {"s": 0},
}
LINE = {
    "record": "event",
    "event_id": ID % 3,
    "stream_id": "s",
    "stream_version": 1,
    "event_type": "T",
    "event_data": {"a": 1},
    "metadata": {},
}
VALUES = (
    JSON | HALVES | INTEGERS.filter(lambda n: abs(n) < 10**400) | st.sampled_from([ID % 1, ID % 3, "{" + ID % 4 + "}"])
)
NESTED = st.sampled_from([90, 300, 1000, 1500, 20_000]).map(lambda levels: b"[" * levels + b"]" * levels)
RAW = st.sampled_from([b'"\\ud800"', b"1e999", b"-1e999", b"9" * 400, b'{"a":1,"a":2}', b"NaN", b"1.5e-400", b"[1,]"])


@st.composite
def transactions(draw: Any) -> tuple[str, bytes]:
    """A file whose hash is right, whatever stands in it."""
    lines = draw(altered([LINE], VALUES).filter(lambda lines: isinstance(lines, list)))
    body = b"".join(dumped(line).replace(b"\n", b"") + b"\n" for line in lines)
    if draw(st.integers(0, 3)) == 0:
        body = dumped(LINE).replace(b'{"a": 1}', draw(NESTED | RAW)) + b"\n"
    header = draw(st.just(HEADER) | altered(HEADER, VALUES))
    if isinstance(header, dict) and draw(st.integers(0, 4)):
        header = {**header, "content_hash": hashlib.sha256(body).hexdigest()}
    return ID % 1, dumped(header) + b"\n" + body


@given(file=transactions())
@inputs(12)
def test_a_transaction_with_the_right_hash_and_anything_in_it_stops_nothing(written: Path, file: Any) -> None:
    name, content = file
    with scratch() as place:
        path = copied(written, place)
        (path / "events" / f"{name}.jsonl").write_bytes(content)
        check(path, "event files", events_in(written))


@given(data=st.data())
@inputs(12)
def test_a_damaged_transaction_is_left_out_and_the_others_are_read(written: Path, data: st.DataObject) -> None:
    with scratch() as place:
        path = copied(written, place)
        file = data.draw(st.sampled_from(sorted(entry.name for entry in (path / "events").iterdir())))
        own = path / "events" / file
        content = data.draw(mutated(own.read_bytes()))
        own.write_bytes(content)
        expected = events_in(written)
        for line in (written / "events" / file).read_bytes().splitlines()[1:]:
            expected.pop(json.loads(line)["event_id"])
        check(path, "event files", expected)


NAMES = st.one_of(
    st.sampled_from(
        [
            (ID % 7).encode() + b".jsonl",
            (ID % 7).upper().encode() + b".jsonl",
            b".jsonl",
            b"x.jsonl",
            b"\xff.jsonl",
            b"\n.jsonl",
            b"x" * 240 + b".jsonl",
            b"README.md",
        ]
    ),
    st.binary(min_size=1, max_size=10).map(lambda name: name + b".jsonl"),
).filter(lambda name: b"/" not in name and b"\0" not in name)


@given(name=NAMES, kind=st.sampled_from(["file", "directory", "link", "loop", "pipe"]))
@inputs(6)
def test_files_of_strangers_among_the_events_stop_nothing(written: Path, name: bytes, kind: str) -> None:
    with scratch() as place:
        path = copied(written, place)
        put = os.fsencode(path / "events") + b"/" + name
        if kind == "file":
            Path(os.fsdecode(put)).write_bytes(b"noise")
        elif kind == "directory":
            Path(os.fsdecode(put)).mkdir()
        elif kind == "pipe":
            os.mkfifo(put)
        else:
            Path(os.fsdecode(put)).symlink_to(os.fsdecode(put) if kind == "loop" else "/nowhere")
        check(path, "names of event files", events_in(written))


@given(parents=st.lists(st.lists(st.integers(0, 6), max_size=3), min_size=1, max_size=5))
@inputs(6)
def test_transactions_that_are_their_own_ancestors_stop_nothing(written: Path, parents: list[list[int]]) -> None:
    with scratch() as place:
        path = copied(written, place)
        for number, above in enumerate(parents):
            body = dumped({**LINE, "event_id": str(uuid.UUID(int=number + 100))}) + b"\n"
            header = {
                **HEADER,
                "transaction_id": ID % number,
                "parent_transaction_ids": [ID % parent for parent in above],
                "content_hash": hashlib.sha256(body).hexdigest(),
            }
            (path / "events" / f"{ID % number}.jsonl").write_bytes(dumped(header) + b"\n" + body)
        check(path, "cycles of events", events_in(written))


# ── what a replica keeps for itself ───────────────────────────────────────────────────────────────────────────────────

NUMBERS = st.lists(
    st.tuples(st.sampled_from([ID % 1, "x", ""]) | TEXTS, INTEGERS.filter(lambda n: abs(n) < 10**100)), max_size=3
).map(lambda pairs: b"".join(dumped({"event_id": event, "seq": seq}) + b"\n" for event, seq in pairs))


@given(data=st.data())
@inputs(12)
def test_what_a_replica_keeps_beside_the_events_may_be_anything(written: Path, data: st.DataObject) -> None:
    with scratch() as place:
        path = copied(written, place)
        with EventLog.open(path, sync=False):
            pass
        kept = sorted(
            file
            for folder in (path / "index", path / ".eventcore", path)
            for file in folder.iterdir()
            if file.is_file()
        )
        for _ in range(data.draw(st.integers(1, 2))):
            file = data.draw(st.sampled_from(kept))
            if not file.is_file():
                continue
            how = data.draw(st.sampled_from(["mutate"] * 5 + ["numbers", "numbers", "directory", "remove"]))
            if how == "mutate":
                file.write_bytes(data.draw(mutated(file.read_bytes())))
            elif how == "numbers":
                (path / "index" / "ingestion.log").write_bytes(data.draw(NUMBERS))
            else:
                file.unlink()
                if how == "directory":
                    file.mkdir()
        found, error = refusal("files of a replica", lambda: used(path))
        if error is None:
            assert events_in(written).items() <= dict(found or []).items()


@given(after=TEXTS | HALVES | st.sampled_from(["5", "-1", "1@x", "x@", "@", "9" * 5000, "٣@" + ID % 1, ID % 1]))
@inputs(8)
def test_a_position_is_one_or_is_refused(written: Path, after: str) -> None:
    with EventLog.open(written, read_only=True) as log:
        refusal("positions", lambda: list(log.read_events(after=after)))


# ── events as rows ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def fed() -> Any:
    with scratch_store() as store:
        yield store


@given(file=transactions(), at=TEXTS | st.sampled_from(["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59.9-23:00"]))
@inputs(6)
def test_events_of_strangers_become_rows_or_are_held(fed: Store, written: Path, file: Any, at: str) -> None:
    name, content = file
    with scratch() as place:
        path = copied(written, place)
        (path / "events" / f"{name}.jsonl").write_bytes(content)
        body = dumped({**LINE, "event_id": ID % 9}) + b"\n"
        header = {**HEADER, "transaction_id": ID % 8, "created_at": at, "replica_id": ID % 8}
        header["content_hash"] = hashlib.sha256(body).hexdigest()
        (path / "events" / f"{ID % 8}.jsonl").write_bytes(dumped(header) + b"\n" + body)
        dataset = fresh("fed")
        report, error = refusal("events as rows", lambda: fed.feed(dataset, path))
        assert error is None, error
        assert report is not None
        fed.flush(dataset)
        stored = {row["event_id"] for batch in fed.read_since(dataset) for row in batch.table.to_pylist()}
        assert set(events_in(written)) <= stored
        with suppress(OSError):
            shutil.rmtree(path)
