"""What a blob sink needs from the place where its objects are, on a directory and on a real S3 server."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import random
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from floodmark.delivery.sinks import objects
from floodmark.delivery.sinks.blob import KIND, ObjectWriter
from floodmark.delivery.sinks.objects import LocalObjects, ObjectPlace, place_of
from floodmark.errors import Permanent, Retryable
from floodmark.schema import Schema
from floodmark.sequence import SequenceRange
from s3 import S3Server
from seeds import SEED

ODD = "m/site=a%2Fb%20%C3%A9/kind!"
"""Partition keys hold percent signs and exclamation marks; a name must come back as it was given."""


@pytest.fixture(params=["local", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectPlace:
    if request.param == "local":
        return LocalObjects(tmp_path / "not" / "yet" / "there")
    server = request.getfixturevalue("s3_server")
    return place_of({**KIND.defaults, **server.settings(f"s3://{server.create_bucket()}/deep/er")})


@pytest.mark.parametrize("prefix", ["", "/a b/é%20=!", "/~x/(1)*'"])
def test_a_prefix_is_taken_as_it_stands(s3_server: S3Server, prefix: str) -> None:
    """Whatever else looks into the bucket finds the objects under the names that the url says."""
    bucket = s3_server.create_bucket()
    place = place_of({**KIND.defaults, **s3_server.settings(f"s3://{bucket}{prefix}")})

    assert place.create("m/all/0-3.parquet", b"content")

    assert (place.read("m/all/0-3.parquet"), list(place.list("m/all"))) == (b"content", ["0-3.parquet"])
    assert s3_server.keys(bucket) == [f"{prefix}/m/all/0-3.parquet".removeprefix("/")]


@pytest.fixture(scope="module")
def processes() -> Iterator[ProcessPoolExecutor]:
    """Processes that share nothing with this one, as Spark's workers do."""
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield pool


def create(place: ObjectPlace, key: str, content: bytes) -> bool:
    return place.create(key, content)


def test_what_was_created_is_read_back_whole(place: ObjectPlace) -> None:
    contents = {
        "a": b"x",
        "m/all/0-3.parquet": random.Random(SEED).randbytes(3 << 20),
        f"{ODD}/0-3.jsonl": "é\n".encode(),
    }

    assert [place.create(key, content) for key, content in contents.items()] == [True, True, True]

    assert {key: place.read(key) for key in contents} == contents


def test_a_taken_key_is_told_and_its_object_left_as_it_was(place: ObjectPlace) -> None:
    assert place.create("k", b"first")

    assert not place.create("k", b"second")
    assert not place.create("k", b"first")

    assert place.read("k") == b"first"


def test_bytes_of_arrow_need_no_copy(place: ObjectPlace) -> None:
    assert place.create("k", memoryview(pa.py_buffer(b"abc")).cast("B"))
    assert place.read("k") == b"abc"


def test_what_is_not_there_reads_as_nothing(place: ObjectPlace) -> None:
    assert place.read("m/all/0-3.parquet") is None
    assert list(place.list("m/all")) == []


def test_a_list_has_the_names_directly_below_and_no_others(place: ObjectPlace) -> None:
    for key in ("m/all/0-3.parquet", "m/all/3-6.jsonl", "m/all/deeper/6-9.jsonl", "m/allover/9-12.jsonl", "m/x", "all"):
        place.create(key, b"content")
    place.create(f"{ODD}/0-1.jsonl", b"content")

    assert sorted(place.list("m/all")) == ["0-3.parquet", "3-6.jsonl"]
    assert list(place.list("m/al")) == []
    assert list(place.list(ODD)) == ["0-1.jsonl"]


def test_a_list_goes_on_past_the_first_page(place: ObjectPlace) -> None:
    """S3 answers with a thousand names at a time."""
    names = [f"{n}-{n + 1}.jsonl" for n in range(1_050)]
    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(lambda name: place.create(f"m/all/{name}", b"x"), names))

    assert sorted(place.list("m/all")) == sorted(names)


def test_of_many_who_create_one_key_at_once_exactly_one_wins(place: ObjectPlace) -> None:
    for turn in range(5):
        with ThreadPoolExecutor(8) as pool:
            won = list(pool.map(lambda n, turn=turn: place.create(f"k{turn}", f"{n}".encode()), range(8)))
        assert sum(won) == 1
        assert place.read(f"k{turn}") == f"{won.index(True)}".encode()


def test_of_two_processes_exactly_one_wins(place: ObjectPlace, processes: ProcessPoolExecutor) -> None:
    for turn in range(3):
        tries = [processes.submit(create, place, f"k{turn}", b"%d" % n) for n in range(4)]
        assert sum(one.result(timeout=60) for one in tries) == 1


def test_a_writer_does_the_same_in_another_process(place: ObjectPlace, processes: ProcessPoolExecutor) -> None:
    """One task and its repetition, by whoever gets there first: one object, and both are told its size."""
    write = ObjectWriter(place, "m/all", "parquet", Schema.declare({"n": "long"}), chunk_bytes=1 << 20)
    rows = pa.table({"n": pa.array(range(1_000), pa.int64())})

    done = [processes.submit(write, SequenceRange(0, 1_000), rows).result(timeout=60) for _ in range(2)]
    here = pickle.loads(pickle.dumps(write))(SequenceRange(0, 1_000), rows)

    assert [one["created"] for one in (*done, here)] == [True, False, False]
    assert len({one["bytes"] for one in (*done, here)}) == 1
    assert list(place.list("m/all")) == ["0-1000.parquet"]


# ── directories ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_file_is_durable_before_it_has_its_name_and_the_name_before_it_is_told(tmp_path: Path, monkeypatch) -> None:
    order: list[str] = []

    def noted(name: str, real):
        def call(*args, **kwargs):
            order.append(name)
            return real(*args, **kwargs)

        return call

    monkeypatch.setattr(os, "fsync", noted("fsync", os.fsync))
    monkeypatch.setattr(os, "link", noted("link", os.link))
    monkeypatch.setattr(objects, "sync_directory", noted("sync directory", objects.sync_directory))

    assert LocalObjects(tmp_path).create("k", b"content")
    assert order == ["fsync", "link", "sync directory", "fsync"]
    order.clear()
    assert not LocalObjects(tmp_path).create("k", b"content")
    # Whoever made it may have died before the name was durable: from now on it is relied upon.
    assert order == ["fsync", "link", "sync directory", "fsync"]
    assert [path.name for path in tmp_path.iterdir()] == ["k"]


def test_what_a_dead_writer_left_behind_is_no_object(tmp_path: Path) -> None:
    (tmp_path / ".0-3.parquet.0123456789abcdef").write_bytes(b"half")
    (tmp_path / "3-6.parquet").mkdir()

    assert list(LocalObjects(tmp_path).list("")) == []


def test_a_full_disk_is_told_as_something_that_passes(tmp_path: Path, monkeypatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(Retryable, match="No space left on device"):
        LocalObjects(tmp_path).create("k", b"content")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("key", "said"), [("file/k", "Not a directory"), ("x" * 300, "File name too long"), ("folder", "Is a directory")]
)
def test_what_stays_wrong_stops_the_sink_with_the_way_out(tmp_path: Path, key: str, said: str) -> None:
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "folder").mkdir()

    with pytest.raises(Permanent, match=said) as refused:
        LocalObjects(tmp_path).read(key)
    assert refused.value.hint
