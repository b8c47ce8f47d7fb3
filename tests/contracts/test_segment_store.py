"""Where the files of segments are: one contract, in a directory and in a bucket."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from floodmark.config import CatalogSettings
from floodmark.errors import Corrupt, Retryable
from floodmark.segment_store import BucketSegments, DirectorySegments, SegmentStore, bucket_of, folder
from s3 import SECRET, S3Server

KEY = f"{folder('rows')}/1-aa.parquet"


def in_bucket(root: Path, server: S3Server, bucket: str) -> BucketSegments:
    properties = {
        "s3.endpoint": server.endpoint,
        "s3.region": "us-east-1",
        "s3.access-key-id": "AKIDEXAMPLE",
        "s3.secret-access-key": SECRET,
    }
    return BucketSegments(root, bucket_of(f"s3://{bucket}/of/a-store", CatalogSettings("sql", "", None, properties)))


@pytest.fixture(params=["directory", "bucket"])
def segments(request: pytest.FixtureRequest, tmp_path: Path) -> SegmentStore:
    if request.param == "directory":
        return DirectorySegments(tmp_path)
    server: S3Server = request.getfixturevalue("s3_server")
    return in_bucket(tmp_path, server, server.create_bucket())


def put(segments: SegmentStore, key: str = KEY, content: bytes = b"rows") -> int:
    segments.draft(key).write_bytes(content)
    return segments.store(key)


def test_what_is_stored_is_found_with_its_size_and_content(segments: SegmentStore) -> None:
    assert put(segments) == 4
    assert segments.size(KEY) == 4
    assert segments.path(KEY).read_bytes() == b"rows"
    assert segments.names("rows") == ["1-aa.parquet"]
    assert segments.names("others") == []


def test_what_is_not_there_has_no_size(segments: SegmentStore) -> None:
    assert segments.size(KEY) is None
    segments.discard(KEY)
    segments.remove([KEY])
    assert segments.names("rows") == []


def test_what_is_removed_is_gone_and_nothing_else(segments: SegmentStore) -> None:
    put(segments)
    other = KEY.replace("1-aa", "2-bb")
    put(segments, other)
    segments.remove([KEY])
    assert segments.size(KEY) is None
    assert not segments.path(other).parent.joinpath("1-aa.parquet").exists()
    assert segments.names("rows") == ["2-bb.parquet"]


def test_a_draft_is_no_segment_where_others_look(s3_server: S3Server, tmp_path: Path) -> None:
    segments = in_bucket(tmp_path, s3_server, s3_server.create_bucket())
    segments.draft(KEY).write_bytes(b"rows")
    assert segments.size(KEY) is None
    assert segments.names("rows") == []


def test_another_host_finds_and_fetches_it(s3_server: S3Server, tmp_path: Path) -> None:
    bucket = s3_server.create_bucket()
    here, there = (in_bucket(tmp_path / name, s3_server, bucket) for name in ("here", "there"))
    put(here)
    assert there.names("rows") == ["1-aa.parquet"]
    assert there.path(KEY).read_bytes() == b"rows"
    assert pickle.loads(pickle.dumps(there.bucket)).read(KEY) == b"rows"
    there.remove([KEY])
    assert here.size(KEY) is None
    assert SECRET not in repr(here)


def test_an_object_is_created_once_and_never_overwritten(s3_server: S3Server, tmp_path: Path) -> None:
    bucket = s3_server.create_bucket()
    here, there = (in_bucket(tmp_path / name, s3_server, bucket) for name in ("here", "there"))
    put(here)
    assert put(here) == 4  # an answer was lost, and it is sent again
    with pytest.raises(Corrupt, match="exists, with another content"):
        put(there, content=b"others")
    assert here.bucket.read(KEY) == b"rows"


def test_a_bucket_that_cannot_be_reached_is_no_lost_segment(s3_server: S3Server, tmp_path: Path) -> None:
    bucket = s3_server.create_bucket()
    segments = in_bucket(tmp_path, s3_server, bucket)
    put(segments)
    s3_server.remove(f"{bucket}/of/a-store/{KEY}")
    s3_server.remove(bucket)
    with pytest.raises(Retryable, match="cannot be reached") as caught:
        segments.names("rows")
    assert SECRET not in str(caught.value)
    with pytest.raises(Retryable):
        put(segments, KEY.replace("1-aa", "2-bb"))
